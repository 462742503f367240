// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the admission of several guests: each thing that is wrong is refused by the name of its option, and what is
//! admitted fits.

use proptest::prelude::*;
use twofold_abi::{bundle, virt};
use twofold_memory::Pages;
use twofold_vmm::config::{Config, TestMemory};
use twofold_vmm::guests::{Admitted, Guest, Host, Missing, Refused, Why, admit, table_frames};
use twofold_vmm::images::{ImageError, check_initrd, check_kernel};
use twofold_vmm::load::LoadError;
use twofold_vmm::name::Name;
use twofold_vmm::scheduler::Weight;
use zerocopy::IntoBytes;

const HOST: Host = Host { free: 4 << 30, vmid_bits: 8, page: 4096, missing: None };
const MIB: u64 = 1 << 20;

/// The head of an Image of 16 MiB.
fn image() -> Vec<u8> {
    let mut image = vec![0; 64];
    image[16..24].copy_from_slice(&(16 * MIB).to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    image
}

fn config(kernel: &[u8]) -> Config<'_> {
    Config {
        kernel,
        initrd: &[],
        firmware: &[],
        devices: 0,
        swap: None,
        disks: &[],
        nets: &[],
        command_line: "",
        memory: 512 * MIB,
        cpus: 2,
        pages: Pages::Largest,
        flags: 0,
        ipa_bits: None,
        test: None,
        policies: 0,
    }
}

fn one<'a>(name: &str, config: &Config<'a>) -> Guest<'a> {
    Guest { name: Name::new(name).unwrap(), config: *config, weight: weight(64) }
}

fn weight(weight: u32) -> Weight {
    Weight::checked(weight).unwrap()
}

/// The reason why this guest is refused, after one that fits.
fn why(guest: &Guest<'_>) -> (Why, String) {
    let (kernel, name) = (image(), guest.name);
    let fits = config(&kernel);
    match admit(&[one("first", &fits), *guest], &HOST) {
        Err(error @ Refused::Guest { .. }) => {
            let text = error.to_string();
            let Refused::Guest { name: named, why } = error else { unreachable!() };
            assert_eq!(named, name);
            (why, text)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn guests_that_fit_are_admitted_with_limits_of_their_own() {
    let kernel = image();
    let (small, large) = (config(&kernel), Config { memory: 3 << 30, cpus: 64, ..config(&kernel) });
    let admitted = admit(&[one("web", &small), Guest { weight: weight(1024), ..one("db-2", &large) }], &HOST).unwrap();
    let [web, db]: &[Admitted; 2] = admitted[..].try_into().unwrap();
    assert_eq!((web.vmid, db.vmid), (1, 2));
    assert_eq!((web.weight, db.weight), (weight(64), weight(1024)));
    assert!(web.frames >= 512 * 256 + table_frames(&small, 4096) && web.frames < 520 * 256);
    assert!((web.frames + db.frames) * 4096 <= HOST.free);
    assert_eq!(web.layout.kernel.raw(), 0x4000_0000);
}

/// A program of 10 bytes for this address, with this entry.
fn program(load: u64, entry: u64) -> Vec<u8> {
    let head =
        bundle::Program { load: load.into(), entry: entry.into(), reserved: [0; 40], magic: bundle::PROGRAM_MAGIC };
    let mut kernel = head.as_bytes().to_vec();
    kernel.resize(bundle::ALIGN as usize, 0);
    kernel.extend(b"a program.");
    kernel
}

#[test]
fn a_program_goes_to_its_address_and_starts_at_its_entry() {
    const AT: u64 = 0x4123_4568;
    let kernel = program(AT, AT + 9);
    let starts = Config { initrd: b"070701", ..config(&kernel) };
    let layout = admit(&[one("program", &starts)], &HOST).unwrap()[0].layout;
    let places = [layout.kernel, layout.entry, layout.initrd, layout.device_tree].map(|at| at.raw());
    assert_eq!(places, [AT, AT + 9, 0x4140_0000, 0x4160_0000]);
    assert_eq!(starts.program(), b"a program.");
    for (load, entry) in [(AT, AT + 10), (AT, AT - 1), (0x3fff_ffff, 0x4000_0000), (u64::MAX, 0)] {
        let kernel = program(load, entry);
        let (why, text) = why(&one("program", &config(&kernel)));
        assert_eq!(why, Why::Load(LoadError::Program { load, entry }), "{text}");
    }
    for load in [0x6000_0000, u64::MAX - 5] {
        let kernel = program(load, load);
        let (why, text) = why(&one("program", &config(&kernel)));
        assert!(matches!(why, Why::Load(LoadError::DoesNotFit { what: "the kernel", .. })), "{text}");
    }
    let kernel = program(AT, AT);
    let empty = &kernel[..bundle::ALIGN as usize];
    assert!(matches!(why(&one("empty", &config(empty))).0, Why::Load(LoadError::Program { .. })));
    assert!(check_kernel(&kernel[..bundle::ALIGN as usize - 1]).is_err());
}

/// The flash is part of what it may own, and needs no kernel.
#[test]
fn a_guest_may_start_in_a_firmware() {
    let starts = Config { firmware: b"firmware", ..config(&[]) };
    let admitted = admit(&[one("boot", &starts)], &HOST).unwrap();
    let Admitted { layout, frames, .. } = admitted[0];
    assert_eq!((layout.kernel.raw(), layout.device_tree.raw()), (0, 0x4000_0000));
    assert!(frames >= (512 + 128) * 256 + table_frames(&starts, 4096), "{frames}");
    assert_eq!(starts.program(), b"firmware");
    let small = Config { memory: 4096, ..starts };
    let (why, text) = why(&one("small", &small));
    assert!(matches!(why, Why::Load(LoadError::DoesNotFit { over: 0xf000, .. })), "{text}");
}

#[test]
fn what_a_machine_lacks_is_named_first() {
    for (missing, word) in [
        (Missing::El2, "virtualization=on"),
        (Missing::GicV3, "gic-version=3"),
        (Missing::ListRegisters, "list registers"),
    ] {
        let error = admit(&[], &Host { missing: Some(missing), ..HOST }).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn as_many_guests_as_vmids_are_possible() {
    let kernel = image();
    let tiny = Config { memory: 32 * MIB, cpus: 1, ..config(&kernel) };
    let names: Vec<_> = (0..256).map(|number| format!("g{number}")).collect();
    let guests: Vec<_> = names.iter().map(|name| one(name, &tiny)).collect();
    let host = Host { free: 1 << 40, ..HOST };
    assert_eq!(admit(&guests, &host), Err(Refused::Count { given: 256, most: 255 }));
    assert_eq!(admit(&[], &host), Err(Refused::Count { given: 0, most: 255 }));
    let admitted = admit(&guests[..255], &host).unwrap();
    let vmids: std::collections::BTreeSet<_> = admitted.iter().map(|guest| guest.vmid).collect();
    assert!(vmids.len() == 255 && !vmids.contains(&0));
    let many = Config { cpus: 64, ..tiny };
    let guests: Vec<_> = names[..9].iter().map(|name| one(name, &many)).collect();
    assert!(admit(&guests[..8], &host).is_ok());
    let error = admit(&guests, &host).unwrap_err();
    assert_eq!(error, Refused::Vcpus { given: 576 });
    assert!(error.to_string().contains("--cpus"), "{error}");
}

#[test]
fn a_vmid_has_16_bits_at_most() {
    let refused = admit(&[], &Host { vmid_bits: 20, ..HOST });
    assert_eq!(refused, Err(Refused::Count { given: 0, most: 65535 }));
}

/// For 512 MiB: tables of each level, two more for each of three ranges, and those of the root.
#[test]
fn tables_are_counted_for_each_granule() {
    let kernel = image();
    let plain = config(&kernel);
    assert_eq!(table_frames(&plain, 4096), (256 + 6) + 6 + 6 + 16);
    assert_eq!(table_frames(&plain, 16 << 10), 4 * ((16 + 6) + 6 + 6) + 16);
    assert_eq!(table_frames(&plain, 64 << 10), 16 * ((1 + 6) + 6 + 6) + 16);
}

#[test]
fn each_mistake_is_named_by_its_option() {
    let kernel = image();
    let good = config(&kernel);
    assert_eq!(why(&one("first", &good)).0, Why::SameName);
    for cpus in [0, 65, u32::MAX] {
        let (why, text) = why(&one("g", &Config { cpus, ..config(&kernel) }));
        assert!(
            why == Why::Cpus(cpus) && text.contains(&format!("guest \"g\": --cpus {cpus}: give 1 to 64")),
            "{text}"
        );
    }
    for memory in [0, 4097] {
        let (why, text) = why(&one("g", &Config { memory, ..config(&kernel) }));
        assert!(why == Why::Memory { memory, page: 4096 } && text.contains("--memory"), "{text}");
    }
    // The first guest has taken its part of the 4 GiB.
    for memory in [3584 * MIB, 1 << 50, !4095] {
        let (why, text) = why(&one("g", &Config { memory, ..config(&kernel) }));
        assert!(matches!(why, Why::NoMemory { free: 3580, .. }) && text.contains("--memory"), "{text}");
    }
    assert!(matches!(
        why(&one("g", &Config { memory: 8 * MIB, ..config(&kernel) })).0,
        Why::Load(LoadError::DoesNotFit { .. })
    ));
    let (missing, text) = why(&one("g", &Config { kernel: &[], ..config(&kernel) }));
    assert!(missing == Why::Image(ImageError::NoKernel) && text.contains("--kernel"), "{text}");
    let (wrong, text) = why(&one("g", &Config { initrd: b"hello", ..config(&kernel) }));
    assert!(wrong == Why::Image(ImageError::Initrd(*b"hell")) && text.contains("--initrd"), "{text}");
}

#[test]
fn a_kernel_of_another_kind_is_named() {
    let text = |kernel: &[u8]| check_kernel(kernel).unwrap_err().to_string();
    assert_eq!(check_kernel(&image()), Ok(()));
    for (head, word) in [
        (&b"\x1f\x8b\x08"[..], "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"MZ\0\0zimg", "EFI"),
        (b"\x7fELF", "vmlinux"),
        (b"MZ\0\0", "ARM"),
        (b"hello", "ARM"),
    ] {
        let mut kernel = head.to_vec();
        assert!(text(&kernel).contains(word), "{}", text(&kernel));
        kernel.resize(100, 7);
        assert!(text(&kernel).contains(word) && text(&kernel).starts_with("--kernel"), "{}", text(&kernel));
    }
    let mut big = image();
    big[24] = 0b1011;
    assert_eq!(check_kernel(&big), Err(ImageError::BigEndian));
    big[24] = 0b1010;
    assert_eq!(check_kernel(&big), Ok(()), "only the lowest flag is the byte order");
    assert!(check_kernel(&image()[..59]).is_err());
}

#[test]
fn an_initrd_is_an_archive_compressed_or_not() {
    for good in [
        &b""[..],
        b"\0\0\0\0",
        b"070701...",
        b"070702...",
        b"\0\0\0\0\0\0\0\x00070701",
        b"\x1f\x8b\x08",
        b"BZh9",
        b"\x5d\0\0",
        b"\xfd7zXZ\0",
        b"\x89LZO",
        b"\x02\x21\x4c\x18",
        b"\x04\x22\x4d\x18",
        b"\x28\xb5\x2f\xfd",
    ] {
        assert_eq!(check_initrd(good), Ok(()), "{good:x?}");
    }
    for bad in [&b"0"[..], b"070700", b"\x1f", b"\x00070701", b"ARM\x64"] {
        assert!(check_initrd(bad).is_err(), "{bad:x?}");
    }
    assert_eq!(check_initrd(b"\0\0\0\0ab"), Err(ImageError::Initrd(*b"ab\0\0")));
}

proptest! {
    /// What is admitted fits, and no two share anything. Any numbers are admitted or refused.
    #[test]
    fn what_is_admitted_fits(
        sizes in prop::collection::vec((0_u64..3000, 0_u32..70, 1_u32..=1024, 0_u64..64, 1_u32..8), 1..6),
        free in 0_u64..8192,
    ) {
        let kernel = image();
        let configs: Vec<_> = sizes.iter().map(|(memory, cpus, _, slot, slots)| {
            let test = TestMemory { start: 1 << 40, slot_size: (slot + 1) * 4096, slots: *slots, leaf: None };
            let test = (*slot != 0).then_some(test);
            Config { memory: memory * MIB, cpus: *cpus, test, ..config(&kernel) }
        }).collect();
        let names: Vec<_> = (0..sizes.len()).map(|number| number.to_string()).collect();
        let guests: Vec<_> = names.iter().zip(&configs).zip(&sizes)
            .map(|((name, config), (_, _, share, _, _))| Guest { weight: weight(*share), ..one(name, config) }).collect();
        let host = Host { free: free * MIB, ..HOST };
        let Ok(admitted) = admit(&guests, &host) else { return Ok(()) };
        prop_assert!(admitted.iter().map(|guest| guest.frames * 4096).sum::<u64>() <= host.free);
        for (guest, config) in admitted.iter().zip(&configs) {
            let test = config.test.map_or(0, |test| test.size());
            let memory = config.memory + test + virt::STOLEN_TIME_SIZE;
            prop_assert!(guest.frames * 4096 >= memory + table_frames(config, 4096) * 4096);
        }
    }

    /// No guest's tables take more than what is reserved, with each granule: counted page by page over its ranges.
    #[test]
    fn tables_never_take_more_than_was_reserved(
        shift in prop::sample::select(vec![12_u32, 14, 16]),
        pages in 1_u64..2_000_000,
        start in 0_u64..1 << 27,
        slots in 1_u64..20,
        slot in 1_u64..3000,
    ) {
        let kernel = image();
        let test = TestMemory { start: (1 << 39) + start * 4096, slot_size: slot * 4096, slots: slots as u32, leaf: None };
        let config = Config { memory: pages * 4096, test: Some(test), ..config(&kernel) };
        let ram = (0x4000_0000, config.memory);
        let ranges = [ram].into_iter().chain((0..slots).map(|number| (test.start + number * test.slot_size, test.slot_size)));
        let ranges: Vec<_> = ranges.chain([(virt::STOLEN_TIME_BASE, virt::STOLEN_TIME_SIZE)]).collect();
        let mut tables = 0;
        for bits in (1..=3).map(|level| shift + (shift - 3) * level) {
            let mut seen = std::collections::BTreeSet::new();
            for (start, size) in &ranges {
                seen.extend(start >> bits..=(start + size - 1) >> bits);
            }
            tables += seen.len() as u64;
        }
        let (frames, reserved) = ((tables << (shift - 12)) + 16, table_frames(&config, 1 << shift));
        prop_assert!(frames <= reserved, "{frames} frames for tables of {} bytes, {reserved} reserved", 1 << shift);
    }
}
