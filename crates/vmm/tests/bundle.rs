// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the reading of bundles: what is written is read, a mistake names its guest, and no bytes are too much.

use proptest::prelude::*;
use twofold_abi::bundle::{self, ALIGN, GUESTS_MAX, Guest, Header, NAME_MAX, WEIGHT_MAX};
use twofold_memory::async_fault::Mode;
use twofold_vmm::bundle::{Bundle, BundleError};
use twofold_vmm::config::{ConfigError, Store, Swap};
use twofold_vmm::guests::{Host, Refused, SwapMemory, Why, admit, shares_resident};
use twofold_vmm::name::{Name, NotAName};
use zerocopy::{FromZeros, IntoBytes};

const HOST: Host = Host { free: 4 << 30, vmid_bits: 8, page: 4096, missing: None };

fn header(guests: u32) -> Header {
    let mut header = Header::new_zeroed();
    header.magic = bundle::MAGIC;
    header.guests.set(guests);
    header
}

/// A guest whose kernel is the first page after the records of all guests.
fn guest(name: &str, guests: usize) -> Guest {
    let mut guest = Guest::new_zeroed();
    guest.name[..name.len()].copy_from_slice(name.as_bytes());
    guest.weight.set(64);
    guest.cpus.set(1);
    guest.memory.set(64 << 20);
    guest.kernel_offset.set(head_size(guests) as u64);
    guest.kernel_size.set(ALIGN);
    guest
}

fn head_size(guests: usize) -> usize {
    (size_of::<Header>() + guests * size_of::<Guest>()).next_multiple_of(ALIGN as usize)
}

/// The file of these guests, with one kernel.
fn file(header: &Header, guests: &[Guest]) -> Vec<u8> {
    let mut file = [header.as_bytes(), guests.as_bytes()].concat();
    let kernel = head_size(guests.len());
    file.resize(kernel + ALIGN as usize, 0);
    file[kernel + 56..kernel + 60].copy_from_slice(b"ARM\x64");
    file
}

fn error(guests: &[Guest]) -> BundleError {
    Bundle::read(&file(&header(guests.len() as u32), guests)).unwrap_err()
}

/// A guest with a disk and a network card.
fn with_devices() -> Guest {
    let mut guest = guest("web", 1);
    guest.devices.set(bundle::devices::ALL);
    guest.disks.set(2);
    guest.disk[0].kind.set(bundle::disk::HOST);
    guest.disk[0].id[..4].copy_from_slice(b"root");
    guest.disk[1].kind.set(bundle::disk::MEMORY);
    guest.disk[1].sectors.set(1);
    guest.nets.set(1);
    guest.net[0].mac = [2, 0, 0, 0, 0, 1];
    guest
}

#[test]
fn devices_are_read() {
    let bytes = file(&header(1), &[with_devices()]);
    let config = Bundle::read(&bytes).unwrap().guests[0].config;
    assert_eq!((config.devices, config.disks.len(), config.nets.len()), (bundle::devices::ALL, 2, 1));
    assert_eq!((&config.disks[0].id[..5], config.disks[1].sectors.get()), (&b"root\0"[..], 1));
}

#[test]
fn devices_that_are_not_possible_are_refused() {
    type Change = fn(&mut Guest);
    let cases: [(Change, &str); 16] = [
        (|guest| guest.devices.set(8), "asks for 8 as its devices"),
        (|guest| guest.disks.set(5), "asks for 5 disks: 4 at most"),
        (|guest| guest.nets.set(u32::MAX), "network cards: 4 at most"),
        (|guest| guest.disk[0].kind.set(3), "--disk 1: it is of no known kind"),
        (|guest| guest.disk[0].flags.set(2), "--disk 1: it has flags"),
        (|guest| guest.disk[0].id = [0; 20], "--disk 1: a disk of the machine needs its serial number"),
        (|guest| guest.disk[0].id[3] = 0x80, "not printable ASCII"),
        (|guest| guest.disk[0].id[19] = b'x', "padded with zeros"),
        (|guest| guest.disk[0].start.set(1 << 60), "beyond the last address"),
        (|guest| guest.disk[1].sectors.set(0), "--disk 2: a disk in memory needs a size"),
        (|guest| guest.disk[1].start.set(1), "--disk 2: a disk in memory starts"),
        (|guest| guest.net[0].network.set(16), "--net 1: its network's number"),
        (|guest| guest.net[0].mac = [0; 6], "--net 1: its address"),
        (|guest| guest.net[0].mac[0] = 3, "--net 1: its address"),
        (|guest| guest.net[0].uplink[0] = 1, "--net 1: its uplink's address"),
        (|guest| guest.firmware_size.set(1), "--firmware: the guest has a kernel"),
    ];
    for (change, expected) in cases {
        let mut guest = with_devices();
        change(&mut guest);
        let text = error(&[guest]).to_string();
        assert!(text.contains(expected), "{text}");
    }
    let mut guest = with_devices();
    guest.firmware_size.set(bundle::FIRMWARE_MAX + 1);
    assert!(error(&[guest]).to_string().contains("bytes of firmware: 64 MiB at most"));
}

/// A guest with a store.
fn with_swap() -> Guest {
    let mut guest = guest("web", 1);
    guest.swap.store.set(bundle::swap::MEMORY);
    guest.swap.mode.set(bundle::swap::PV);
    guest.swap.resident.set(16 << 20);
    guest.swap.delay.set(10_000);
    guest
}

#[test]
fn a_store_is_read_and_its_memory_counted() {
    let bytes = file(&header(1), &[with_swap()]);
    let guests = Bundle::read(&bytes).unwrap().guests;
    let store = Store::Memory { delay: 10_000 };
    assert_eq!(guests[0].config.swap, Some(Swap { resident: 16 << 20, mode: Mode::Pv, store }));
    let plain = file(&header(1), &[guest("web", 1)]);
    let plain = Bundle::read(&plain).unwrap().guests;
    assert_eq!(plain[0].config.swap, None);
    let frames = |guests| admit(guests, &HOST).unwrap()[0].frames;
    // 64 MiB and the huge page of stolen time; 33 times 64 KiB of states, and what the heap keeps beside them.
    assert_eq!(frames(&guests) - frames(&plain), (33 + 3) * 512);
    assert_eq!(SwapMemory::of(&guests[0].config), SwapMemory { store: 33, heap: 3 });
    let mut on_disk = with_swap();
    on_disk.swap.store.set(bundle::swap::DISK);
    on_disk.swap.disk = *b"twofold-swap-0\0\0\0\0\0\0";
    let bytes = file(&header(1), &[on_disk]);
    let guests = Bundle::read(&bytes).unwrap().guests;
    assert_eq!(guests[0].config.swap.unwrap().store, Store::Disk(*b"twofold-swap-0\0\0\0\0\0\0"));
    // 16 of 64 MiB, and no store.
    assert_eq!(frames(&plain) - frames(&guests), (24 - 3) * 512);
}

#[test]
fn what_guests_share_in_memory_is_counted_in_the_pool() {
    let plain = file(&header(1), &[guest("web", 1)]);
    let plain = Bundle::read(&plain).unwrap().guests;
    let with = file(&header(1), &[with_swap()]);
    let mut sharing = Bundle::read(&with).unwrap().guests;
    sharing[0].config.flags |= bundle::flags::SHARE_RESIDENT;
    let (plain_frames, one) = (admit(&plain, &HOST).unwrap()[0].frames, admit(&sharing, &HOST).unwrap()[0]);
    // None of its 32 huge pages; a store of 33 and a heap of 3. The pool has its 16 MiB.
    assert_eq!((one.frames - plain_frames, one.pool), ((33 + 3 - 32) * 512, 8 * 512));
    let mut second = sharing[0];
    second.name = Name::new("db").unwrap();
    let most = (one.frames + one.pool) * 2 * 4096;
    let both = [sharing[0], second];
    assert!(admit(&both, &Host { free: most, ..HOST }).is_ok());
    assert!(admit(&both, &Host { free: most - 4096, ..HOST }).is_err());
    second.config.swap = Some(Swap { store: Store::Disk([b'd'; 20]), ..second.config.swap.unwrap() });
    second.config.flags = 0;
    assert_eq!(admit(&[second], &HOST).unwrap()[0].pool, 0);
    second.config.swap = None;
    second.config.flags = bundle::flags::SHARE_RESIDENT;
    assert!(!shares_resident(&second.config), "without a store all pages stay");
}

#[test]
fn a_store_that_is_not_possible_is_refused() {
    type Change = fn(&mut Guest);
    let cases: [(Change, &str); 8] = [
        (|guest| guest.swap.store.set(0), "--swap: a limit by --resident needs a store"),
        (|guest| guest.swap.store.set(9), "--swap: it is of no known kind"),
        (|guest| guest.swap.mode.set(3), "asks for 3 as the mode of --async-fault: 0 to 2"),
        (|guest| guest.swap.delay.set(60_000_001), "--swap: a transfer takes a minute at most"),
        (|guest| guest.swap.resident.set(60 << 10), "--resident 61440: give whole pages of 4096 bytes, 65536 bytes at"),
        (|guest| guest.swap.resident.set((64 << 20) + 4096), "67108864 at most"),
        (|guest| guest.swap.resident.set((16 << 20) + 1), "--resident 16777217: give whole pages"),
        (start_in_firmware, "--firmware: a store for the guest's pages has no room for the flash"),
    ];
    for (change, expected) in cases {
        let mut guest = with_swap();
        change(&mut guest);
        let text = error(&[guest]).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

fn start_in_firmware(guest: &mut Guest) {
    guest.kernel_size.set(0);
    guest.initrd_size.set(0);
    guest.firmware_size.set(1);
}

#[test]
fn guests_that_were_read_are_admitted() {
    let mut db = guest("db", 2);
    db.weight.set(WEIGHT_MAX);
    let file = file(&header(2), &[guest("web", 2), db]);
    let bundle = Bundle::read(&file).unwrap();
    let [web, db] = &bundle.guests[..] else { panic!("{bundle:?}") };
    assert_eq!((web.name.as_str(), db.name.as_str()), ("web", "db"));
    assert_eq!(web.config.kernel.as_ptr(), db.config.kernel.as_ptr());
    let admitted = admit(&bundle.guests, &HOST).unwrap();
    assert_eq!(admitted.iter().map(|guest| guest.vmid).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((admitted[0].weight, admitted[1].weight), (web.weight, db.weight));
    assert_ne!(web.weight, db.weight);
}

#[test]
fn guests_with_one_name_are_not_admitted() {
    let file = file(&header(2), &[guest("web", 2), guest("web", 2)]);
    let refused = admit(&Bundle::read(&file).unwrap().guests, &HOST);
    assert_eq!(refused, Err(Refused::Guest { name: Name::new("web").unwrap(), why: Why::SameName }));
}

#[test]
fn as_many_guests_as_a_bundle_can_have_are_read() {
    let guests: Vec<_> = (0..GUESTS_MAX).map(|number| guest(&format!("g{number}"), GUESTS_MAX as usize)).collect();
    assert_eq!(Bundle::read(&file(&header(GUESTS_MAX), &guests)).unwrap().guests.len(), GUESTS_MAX as usize);
    for count in [0, GUESTS_MAX + 1, u32::MAX] {
        assert_eq!(Bundle::read(&file(&header(count), &guests)).unwrap_err(), BundleError::Guests(count));
    }
}

#[test]
fn a_number_of_guests_beyond_the_file_is_refused() {
    let whole = file(&header(3), &["a", "b", "c"].map(|name| guest(name, 3)));
    let records = size_of::<Header>() + 3 * size_of::<Guest>();
    for size in [size_of::<Header>(), records - size_of::<Guest>(), records - 1] {
        assert_eq!(Bundle::read(&whole[..size]).unwrap_err(), BundleError::CutOff(3), "{size} bytes");
    }
    // With its records, it is the kernel that is missing.
    assert!(matches!(Bundle::read(&whole[..records]).unwrap_err(), BundleError::Guest { .. }));
    assert_eq!(Bundle::read(&whole[..size_of::<Header>() - 1]).unwrap_err(), BundleError::NoBundle);
    let other = Header { magic: *b"TWOFOLD\x02", ..header(1) };
    assert_eq!(Bundle::read(&file(&other, &[guest("a", 1)])).unwrap_err(), BundleError::NoBundle);
}

#[test]
fn a_mistake_names_its_guest() {
    let mut bad = guest("bad", 2);
    bad.cpus.set(65);
    let text = error(&[guest("good", 2), bad]).to_string();
    assert_eq!(text, "guest \"bad\": the bundle asks for 65 vCPUs: 1 to 64");
    let mut bad = guest("bad", 2);
    bad.kernel_size.set(ALIGN + 1);
    let name = Name::new("bad").unwrap();
    let why = ConfigError::CutOff { what: "kernel" };
    assert_eq!(error(&[guest("good", 2), bad]), BundleError::Guest { name, why });
    for weight in [0, WEIGHT_MAX + 1] {
        let mut bad = guest("bad", 2);
        bad.weight.set(weight);
        assert_eq!(error(&[guest("good", 2), bad]), BundleError::Weight { name, weight });
    }
    let text = error(&[guest("good", 2), guest("Bad", 2)]).to_string();
    assert!(text.starts_with("guest 2 of the bundle: --name: "), "{text}");
}

#[test]
fn baselines_without_a_meaning_are_refused() {
    let mut header = header(1);
    header.policies.set(bundle::POLICIES);
    let read = file(&header, &[guest("a", 1)]);
    assert_eq!(Bundle::read(&read).unwrap().guests[0].config.policies, bundle::POLICIES);
    header.policies.set(bundle::POLICIES + 1);
    let read = file(&header, &[guest("a", 1)]);
    assert_eq!(Bundle::read(&read).unwrap_err(), BundleError::Policies(bundle::POLICIES + 1));
}

#[test]
fn a_name_needs_no_quotes() {
    for good in ["a", "web-1", "0", "-", "fifteen-letters"] {
        let name = Name::new(good).unwrap();
        assert_eq!(
            (name.as_str(), format!("{name}"), format!("{name:?}")),
            (good, good.to_owned(), format!("{good:?}"))
        );
    }
    for bad in ["", "sixteen-letters-", "far more than sixteen letters", "Web", "a b", "a\0", "a\0b", "ä", "a\n"] {
        assert_eq!(Name::new(bad), Err(NotAName), "{bad:?}");
    }
    assert_eq!(Name::from_padded(*b"a\0b\0\0\0\0\0\0\0\0\0\0\0\0\0"), Err(NotAName));
    assert_eq!(Name::from_padded([b'a'; NAME_MAX + 1]), Err(NotAName));
}

proptest! {
    /// Whatever the numbers are, nothing panics, and what is read is inside the file.
    #[test]
    fn any_numbers_are_read_or_refused(
        count in 0_u32..6,
        size in 0_usize..20_000,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let guests: Vec<_> = (0..count).map(|number| guest(&format!("g{number}"), count as usize)).collect();
        let mut file = file(&header(count), &guests);
        // Numbers are in the first bytes of the header and of each record.
        for (index, byte) in changes {
            let record = index.index(count.max(1) as usize);
            let at = size_of::<Header>() * record.min(1) + size_of::<Guest>() * record + index.index(104);
            let length = file.len();
            file[at.min(length - 1)] = byte;
        }
        file.truncate(size.max(8));
        let Ok(bundle) = Bundle::read(&file) else { return Ok(()) };
        let inside = file.as_ptr_range();
        for guest in &bundle.guests {
            let kernel = guest.config.kernel.as_ptr_range();
            prop_assert!(kernel.start >= inside.start && kernel.end <= inside.end);
        }
        let _ = admit(&bundle.guests, &HOST);
    }
}
