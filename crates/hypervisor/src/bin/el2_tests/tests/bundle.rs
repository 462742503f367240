// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bundle is untrusted input: an invalid one is refused with the reason, and no bytes at all crash EL2.

use alloc::vec;
use alloc::vec::Vec;

use twofold_abi::bundle::{self, Guest, Header};
use twofold_stage2::Level;
use twofold_vmm::bundle::{Bundle, BundleError};
use twofold_vmm::config::{Config, ConfigError, TestMemory};
use twofold_vmm::load::{Layout, LoadError};
use zerocopy::{FromZeros, IntoBytes};

use crate::check::Outcome;
use crate::machine::Machine;

tests!(
    bundle::a_good_one_is_read,
    bundle::test_memory_is_read,
    bundle::what_is_no_bundle_is_refused,
    bundle::what_reaches_beyond_the_end_is_refused,
    bundle::numbers_out_of_bounds_are_refused,
    bundle::several_guests_are_read,
    bundle::a_bad_head_is_refused,
    bundle::a_kernel_that_is_no_image_is_refused,
    bundle::what_does_not_fit_is_refused,
    bundle::no_bytes_bring_it_down,
);

const PAGE: usize = bundle::ALIGN as usize;
/// Where the kernel starts: after the head and the records of two guests.
const KERNEL: usize = 2 * PAGE;
const MEMORY: u64 = 256 << 20;

type Change = fn(&mut Guest);

/// The head of a bundle of this many guests.
fn head(guests: u32) -> Header {
    let mut header = Header::new_zeroed();
    header.magic = bundle::MAGIC;
    header.guests.set(guests);
    header
}

/// A guest with a kernel of one page, and an initrd of 100 bytes.
fn good() -> Guest {
    let mut guest = Guest::new_zeroed();
    guest.name[..4].copy_from_slice(b"good");
    guest.weight.set(64);
    guest.cpus.set(1);
    guest.memory.set(MEMORY);
    guest.kernel_offset.set(KERNEL as u64);
    guest.kernel_size.set(bundle::ALIGN);
    guest.initrd_offset.set(KERNEL as u64 + bundle::ALIGN);
    guest.initrd_size.set(100);
    guest.command_line[..5].copy_from_slice(b"quiet");
    guest.command_line_size.set(5);
    guest
}

/// The guests' records, followed by a kernel that needs `image_size` bytes, and an initrd of ones.
fn file_of(header: &Header, guests: &[Guest], image_size: u64) -> Vec<u8> {
    let mut bytes = vec![0; KERNEL + 2 * PAGE];
    let head = [header.as_bytes(), guests.as_bytes()].concat();
    bytes[..head.len()].copy_from_slice(&head);
    let kernel = &mut bytes[KERNEL..][..PAGE];
    kernel[16..24].copy_from_slice(&image_size.to_le_bytes());
    kernel[56..60].copy_from_slice(b"ARM\x64");
    bytes[KERNEL + PAGE..].fill(1);
    bytes
}

/// The file of one guest.
fn file(guest: &Guest, image_size: u64) -> Vec<u8> {
    file_of(&head(1), core::slice::from_ref(guest), image_size)
}

/// The only guest of the file.
fn only(bytes: &[u8]) -> Result<Config<'_>, BundleError> {
    Ok(Bundle::read(bytes)?.guests[0].config)
}

/// Why the configuration of the only guest of the file is refused.
fn refused(bytes: &[u8]) -> Option<ConfigError> {
    match only(bytes) {
        Err(BundleError::Guest { name, why }) if name.as_str() == "good" => Some(why),
        _ => None,
    }
}

/// Sets the test memory: its start, its size, and its number of slots.
fn test(guest: &mut Guest, [start, size, slots]: [u64; 3]) {
    guest.test_start.set(start);
    guest.test_size.set(size);
    guest.test_slots.set(slots as u32);
}

fn a_good_one_is_read(_: Machine) -> Outcome {
    let bytes = file(&good(), 0x10_0000);
    let config = only(&bytes)?;
    check_eq!((config.kernel.len(), config.initrd), (PAGE, &[1; 100][..]), "kernel's size, initrd");
    check_eq!((config.command_line, config.memory, config.cpus), ("quiet", MEMORY, 1), "settings");
    check_eq!((config.ipa_bits, config.test), (None, None), "settings of experiments");
    let layout = Layout::new(&config)?;
    let places = [layout.kernel, layout.initrd, layout.device_tree].map(|ipa| ipa.raw());
    check_eq!(places, [0x4000_0000, 0x4020_0000, 0x4040_0000], "kernel, initrd, device tree");
    Ok(())
}

fn test_memory_is_read(_: Machine) -> Outcome {
    let mut guest = good();
    guest.ipa_bits.set(36);
    guest.test_leaf.set(2);
    test(&mut guest, [0xf_ffc0_0000, 4 << 20, 2]);
    let mut header = head(1);
    header.policies.set(bundle::POLICIES);
    let bytes = file_of(&header, &[guest], 0x10_0000);
    let config = only(&bytes)?;
    let expected = TestMemory { start: 0xf_ffc0_0000, slot_size: 2 << 20, slots: 2, leaf: Level::new(2) };
    check_eq!((config.ipa_bits, config.test), (Some(36), Some(expected)), "IPA bits, test memory");
    check_eq!(config.policies, 31, "baselines");
    check_eq!((config.end(), expected.size()), (1 << 36, 4 << 20), "its end, its size");
    Ok(())
}

fn what_is_no_bundle_is_refused(_: Machine) -> Outcome {
    let other_version = Header { magic: *b"TWOFOLD\x03", ..head(1) };
    for bytes in [&[][..], b"TWOFOLD\x04", &[0; 2 * PAGE], other_version.as_bytes()] {
        let error = Bundle::read(bytes).err();
        check_eq!(error, Some(BundleError::NoBundle), "{} bytes", bytes.len());
    }
    Ok(())
}

fn what_reaches_beyond_the_end_is_refused(_: Machine) -> Outcome {
    let changes: [(Change, &str); 7] = [
        (|guest| guest.kernel_size.set(2 * bundle::ALIGN + 1), "kernel"),
        (|guest| guest.kernel_offset.set(u64::MAX), "kernel"),
        (|guest| guest.kernel_size.set(u64::MAX), "kernel"),
        (|guest| guest.initrd_size.set(bundle::ALIGN + 1), "initrd"),
        (|guest| guest.initrd_offset.set(u64::MAX - 99), "initrd"),
        (|guest| guest.command_line_size.set(2049), "command line"),
        (set_firmware_beyond, "firmware"),
    ];
    for (change, part) in changes {
        let mut guest = good();
        change(&mut guest);
        let error = refused(&file(&guest, 0));
        check!(matches!(error, Some(ConfigError::CutOff { what }) if what == part), "{part}: {error:?}");
    }
    Ok(())
}

fn set_firmware_beyond(guest: &mut Guest) {
    guest.kernel_size.set(0);
    guest.initrd_size.set(0);
    guest.firmware_offset.set(KERNEL as u64);
    guest.firmware_size.set(2 * bundle::ALIGN + 1);
}

fn numbers_out_of_bounds_are_refused(_: Machine) -> Outcome {
    let changes: [Change; 18] = [
        |guest| guest.cpus.set(0),
        |guest| guest.cpus.set(65),
        |guest| guest.cpus.set(u32::MAX),
        |guest| guest.memory.set(0),
        |guest| guest.memory.set(MEMORY + 1),
        |guest| guest.pages.set(3),
        |guest| {
            guest.pages.set(bundle::pages::BLOCKS);
            guest.memory.set(MEMORY + 4096);
        },
        |guest| guest.ipa_bits.set(31),
        |guest| guest.ipa_bits.set(49),
        |guest| test(guest, [0, PAGE as u64, 0]),
        |guest| test(guest, [0, 65 * PAGE as u64, 65]),
        |guest| test(guest, [0, 0, 1]),
        |guest| test(guest, [0, 3 * PAGE as u64, 2]),
        |guest| test(guest, [0, PAGE as u64 + 1, 1]),
        |guest| test(guest, [1, PAGE as u64, 1]),
        |guest| {
            test(guest, [0, PAGE as u64, 1]);
            guest.test_leaf.set(4);
        },
        |guest| {
            test(guest, [0, 3 * PAGE as u64, 1]);
            guest.test_leaf.set(3);
        },
        |guest| test(guest, [u64::MAX - PAGE as u64 + 1, PAGE as u64, 1]),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut guest = good();
        change(&mut guest);
        let error = refused(&file(&guest, 0));
        check!(matches!(error, Some(ConfigError::Number { .. })), "change {index}: {error:?}");
    }
    let mut guest = good();
    guest.command_line[0] = 0xff;
    check_eq!(refused(&file(&guest, 0)), Some(ConfigError::CommandLine), "not UTF-8");
    Ok(())
}

fn several_guests_are_read(_: Machine) -> Outcome {
    let mut second = good();
    second.name[3] = 0;
    second.weight.set(bundle::WEIGHT_MAX);
    second.memory.set(2 * MEMORY);
    second.initrd_size.set(0);
    let bytes = file_of(&head(2), &[good(), second], 0x10_0000);
    let guests = Bundle::read(&bytes)?.guests;
    check_eq!(guests.len(), 2, "guests");
    let (first, second) = (&guests[0], &guests[1]);
    check_eq!([first.name.as_str(), second.name.as_str()], ["good", "goo"], "names");
    check_eq!([first.config.memory, second.config.memory], [MEMORY, 2 * MEMORY], "memory");
    check_eq!(first.config.kernel.as_ptr(), second.config.kernel.as_ptr(), "one kernel for both");
    check_eq!(second.config.initrd.len(), 0, "no initrd");
    Ok(())
}

fn a_bad_head_is_refused(_: Machine) -> Outcome {
    for guests in [0, bundle::GUESTS_MAX + 1, u32::MAX] {
        let error = Bundle::read(&file_of(&head(guests), &[good()], 0)).err();
        check_eq!(error, Some(BundleError::Guests(guests)), "a number of guests");
    }
    // The file is too short for the records of all guests.
    let error = Bundle::read(&file_of(&head(bundle::GUESTS_MAX), &[good()], 0)).err();
    check_eq!(error, Some(BundleError::CutOff(bundle::GUESTS_MAX)), "records beyond the end");
    let mut header = head(1);
    header.policies.set(1 << 5);
    let error = Bundle::read(&file_of(&header, &[good()], 0)).err();
    check_eq!(error, Some(BundleError::Policies(1 << 5)), "unknown baselines");
    for weight in [0, bundle::WEIGHT_MAX + 1, u32::MAX] {
        let mut guest = good();
        guest.weight.set(weight);
        let error = Bundle::read(&file(&guest, 0)).err();
        check!(matches!(error, Some(BundleError::Weight { weight: given, .. }) if given == weight), "{error:?}");
    }
    let changes: [Change; 4] = [
        |guest| guest.name = [0; 16],
        |guest| guest.name = [b'a'; 16],
        |guest| guest.name[0] = b'G',
        |guest| guest.name[15] = b'a',
    ];
    for change in changes {
        let mut guest = good();
        change(&mut guest);
        let error = Bundle::read(&file_of(&head(2), &[good(), guest], 0)).err();
        check!(matches!(error, Some(BundleError::Name { number: 2, .. })), "{error:?}");
    }
    Ok(())
}

fn a_kernel_that_is_no_image_is_refused(_: Machine) -> Outcome {
    let mut bytes = file(&good(), 0);
    bytes[KERNEL + 56] = b'a';
    check_eq!(Layout::new(&only(&bytes)?).err(), Some(LoadError::NotAnImage), "wrong magic");
    let mut short = good();
    short.kernel_size.set(59);
    let bytes = file(&short, 0);
    check_eq!(Layout::new(&only(&bytes)?).err(), Some(LoadError::NotAnImage), "cut off");
    Ok(())
}

fn what_does_not_fit_is_refused(_: Machine) -> Outcome {
    for image_size in [MEMORY + 1, MEMORY, u64::MAX] {
        let bytes = file(&good(), image_size);
        let error = Layout::new(&only(&bytes)?).err();
        check!(matches!(error, Some(LoadError::DoesNotFit { .. })), "{image_size:#x}: {error:?}");
    }
    Ok(())
}

/// Heads with a few flipped bits, in numbers or anywhere, and files that were cut off.
fn no_bytes_bring_it_down(_: Machine) -> Outcome {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = SEED;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut taken = 0;
    for round in 0..20_000 {
        let mut guest = good();
        test(&mut guest, [0xf_ffc0_0000, 4 << 20, 2]);
        let mut bytes = file(&guest, random() >> (random() % 64));
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % if round % 2 == 0 { 110 } else { KERNEL + 64 };
            bytes[at] ^= 1 << (random() % 8);
        }
        bytes.truncate(bytes.len() - random() as usize % (if round % 8 == 0 { bytes.len() } else { 1 }));
        taken += u32::from(only(&bytes).is_ok_and(|config| Layout::new(&config).is_ok()));
    }
    check!(taken > 0 && taken < 20_000, "seed {SEED:#x}: {taken} of 20000 were accepted, so the test covered little");
    Ok(())
}
