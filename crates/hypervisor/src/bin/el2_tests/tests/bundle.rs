// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bundle is untrusted input: an invalid one is refused with the reason, and no bytes at all crash EL2.

use alloc::vec;
use alloc::vec::Vec;

use twofold_abi::bundle::{self, Header};
use twofold_stage2::Level;
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
    bundle::a_kernel_that_is_no_image_is_refused,
    bundle::what_does_not_fit_is_refused,
    bundle::no_bytes_bring_it_down,
);

const PAGE: usize = bundle::ALIGN as usize;
const MEMORY: u64 = 256 << 20;

type Change = fn(&mut Header);

/// A bundle with a kernel of one page, and an initrd of 100 bytes.
fn good() -> Header {
    let mut header = Header::new_zeroed();
    header.magic = bundle::MAGIC;
    header.cpus.set(1);
    header.memory.set(MEMORY);
    header.kernel_offset.set(bundle::ALIGN);
    header.kernel_size.set(bundle::ALIGN);
    header.initrd_offset.set(2 * bundle::ALIGN);
    header.initrd_size.set(100);
    header.command_line[..5].copy_from_slice(b"quiet");
    header.command_line_size.set(5);
    header
}

/// The header, followed by a kernel that needs `image_size` bytes, and an initrd of ones.
fn file(header: &Header, image_size: u64) -> Vec<u8> {
    let mut bytes = vec![0; 3 * PAGE];
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    let kernel = &mut bytes[PAGE..2 * PAGE];
    kernel[16..24].copy_from_slice(&image_size.to_le_bytes());
    kernel[56..60].copy_from_slice(b"ARM\x64");
    bytes[2 * PAGE..].fill(1);
    bytes
}

/// Sets the test memory: its start, its size, and its number of slots.
fn test(header: &mut Header, [start, size, slots]: [u64; 3]) {
    header.test_start.set(start);
    header.test_size.set(size);
    header.test_slots.set(slots as u32);
}

fn a_good_one_is_read(_: Machine) -> Outcome {
    let bytes = file(&good(), 0x10_0000);
    let config = Config::from_bundle(&bytes)?;
    check_eq!((config.kernel.len(), config.initrd), (PAGE, &[1; 100][..]), "kernel's size, initrd");
    check_eq!((config.command_line, config.memory, config.cpus), ("quiet", MEMORY, 1), "settings");
    check_eq!((config.ipa_bits, config.test), (None, None), "settings of experiments");
    let layout = Layout::new(&config)?;
    let places = [layout.kernel, layout.initrd, layout.device_tree].map(|ipa| ipa.raw());
    check_eq!(places, [0x4000_0000, 0x4020_0000, 0x4040_0000], "kernel, initrd, device tree");
    Ok(())
}

fn test_memory_is_read(_: Machine) -> Outcome {
    let mut header = good();
    header.ipa_bits.set(36);
    header.test_leaf.set(2);
    header.policies.set(bundle::POLICIES);
    test(&mut header, [0xf_ffc0_0000, 4 << 20, 2]);
    let bytes = file(&header, 0x10_0000);
    let config = Config::from_bundle(&bytes)?;
    let expected = TestMemory { start: 0xf_ffc0_0000, slot_size: 2 << 20, slots: 2, leaf: Level::new(2) };
    check_eq!((config.ipa_bits, config.test), (Some(36), Some(expected)), "IPA bits, test memory");
    check_eq!(config.policies, 31, "baselines");
    check_eq!((config.end(), expected.size()), (1 << 36, 4 << 20), "its end, its size");
    Ok(())
}

fn what_is_no_bundle_is_refused(_: Machine) -> Outcome {
    let other_version = Header { magic: *b"TWOFOLD\x01", ..good() };
    for bytes in [&[][..], b"TWOFOLD\x02", &[0; 2 * PAGE], other_version.as_bytes()] {
        let error = Config::from_bundle(bytes).err();
        check_eq!(error, Some(ConfigError::NoBundle), "{} bytes", bytes.len());
    }
    Ok(())
}

fn what_reaches_beyond_the_end_is_refused(_: Machine) -> Outcome {
    let changes: [(Change, &str); 6] = [
        (|header| header.kernel_size.set(2 * bundle::ALIGN + 1), "kernel"),
        (|header| header.kernel_offset.set(u64::MAX), "kernel"),
        (|header| header.kernel_size.set(u64::MAX), "kernel"),
        (|header| header.initrd_size.set(bundle::ALIGN + 1), "initrd"),
        (|header| header.initrd_offset.set(u64::MAX - 99), "initrd"),
        (|header| header.command_line_size.set(2049), "command line"),
    ];
    for (change, part) in changes {
        let mut header = good();
        change(&mut header);
        let error = Config::from_bundle(&file(&header, 0)).err();
        check!(matches!(error, Some(ConfigError::CutOff { what }) if what == part), "{part}: {error:?}");
    }
    Ok(())
}

fn numbers_out_of_bounds_are_refused(_: Machine) -> Outcome {
    let changes: [Change; 19] = [
        |header| header.cpus.set(0),
        |header| header.cpus.set(65),
        |header| header.cpus.set(u32::MAX),
        |header| header.memory.set(0),
        |header| header.memory.set(MEMORY + 1),
        |header| header.pages.set(3),
        |header| {
            header.pages.set(bundle::pages::BLOCKS);
            header.memory.set(MEMORY + 4096);
        },
        |header| header.ipa_bits.set(31),
        |header| header.ipa_bits.set(49),
        |header| test(header, [0, PAGE as u64, 0]),
        |header| test(header, [0, 65 * PAGE as u64, 65]),
        |header| test(header, [0, 0, 1]),
        |header| test(header, [0, 3 * PAGE as u64, 2]),
        |header| test(header, [0, PAGE as u64 + 1, 1]),
        |header| test(header, [1, PAGE as u64, 1]),
        |header| {
            test(header, [0, PAGE as u64, 1]);
            header.test_leaf.set(4);
        },
        |header| {
            test(header, [0, 3 * PAGE as u64, 1]);
            header.test_leaf.set(3);
        },
        |header| header.policies.set(1 << 5),
        |header| test(header, [u64::MAX - PAGE as u64 + 1, PAGE as u64, 1]),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut header = good();
        change(&mut header);
        let error = Config::from_bundle(&file(&header, 0)).err();
        check!(matches!(error, Some(ConfigError::Number { .. })), "change {index}: {error:?}");
    }
    let mut header = good();
    header.command_line[0] = 0xff;
    check_eq!(Config::from_bundle(&file(&header, 0)).err(), Some(ConfigError::CommandLine), "not UTF-8");
    Ok(())
}

fn a_kernel_that_is_no_image_is_refused(_: Machine) -> Outcome {
    let mut bytes = file(&good(), 0);
    bytes[PAGE + 56] = b'a';
    check_eq!(Layout::new(&Config::from_bundle(&bytes)?).err(), Some(LoadError::NotAnImage), "wrong magic");
    let mut short = good();
    short.kernel_size.set(59);
    let bytes = file(&short, 0);
    check_eq!(Layout::new(&Config::from_bundle(&bytes)?).err(), Some(LoadError::NotAnImage), "cut off");
    Ok(())
}

fn what_does_not_fit_is_refused(_: Machine) -> Outcome {
    for image_size in [MEMORY + 1, MEMORY, u64::MAX] {
        let bytes = file(&good(), image_size);
        let error = Layout::new(&Config::from_bundle(&bytes)?).err();
        check!(matches!(error, Some(LoadError::DoesNotFit { .. })), "{image_size:#x}: {error:?}");
    }
    Ok(())
}

/// Headers with a few flipped bits, and headers of random bytes.
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
        let mut header = good();
        test(&mut header, [0xf_ffc0_0000, 4 << 20, 2]);
        let mut bytes = file(&header, random() >> (random() % 64));
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % if round % 2 == 0 { 72 } else { PAGE + 64 };
            bytes[at] ^= 1 << (random() % 8);
        }
        bytes.truncate(bytes.len() - random() as usize % (if round % 8 == 0 { bytes.len() } else { 1 }));
        taken += u32::from(Config::from_bundle(&bytes).is_ok_and(|config| Layout::new(&config).is_ok()));
    }
    check!(taken > 0 && taken < 20_000, "seed {SEED:#x}: {taken} of 20000 were accepted, so the test covered little");
    Ok(())
}
