// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs that fault for the same memory at once: one of them installs the mapping, and only that one does the work of
//! installing.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::window::ByAddress as _;
use twofold_stage2::{Coalesced, Mapped, Unwatched};

#[test]
fn each_page_is_new_for_exactly_one() {
    let (pages, threads, seed) = (volume(3 * 512, 24), 3, seed());
    for ipa_bits in [40, 48] {
        let guest = Guest::new(FWB, ipa_bits, 16);
        let new = AtomicU64::new(0);
        in_threads(threads, seed, |_, random, crew| {
            crew.meet();
            let first = random.below(8);
            for page in 0..pages {
                // Nearly the same order in each thread, so that they meet.
                let ipa = BASE + (page ^ first) * KIB_4;
                match guest.stage2.map(ipa, home(ipa), Level::L3, &RAM, &mut &guest.pool).unwrap() {
                    Mapped::New => _ = new.fetch_add(1, Ordering::Relaxed),
                    Mapped::Already(leaf) => assert_eq!(leaf.address(), home(ipa)),
                    Mapped::Replaced(old) => panic!("{old:?} was replaced"),
                }
            }
        });
        assert_eq!(new.into_inner(), pages);
        assert_eq!(guest.scan().leaves.len() as u64, pages);
        guest.check_and_destroy();
    }
}

#[test]
fn ranges_that_are_mapped_by_several_are_mapped_once() {
    let seed = seed();
    let guest = Guest::new(FWB, 40, 16);
    in_threads(3, seed, |number, random, _| {
        let size = volume(6 * MIB_2, 2 * MIB_2);
        for _ in 0..volume(20, 2) {
            let (start, largest) = (random.below(4) * KIB_4, Level::new(2 + (number as u8 & 1)).unwrap());
            let part = BASE + start..BASE + size;
            guest.stage2.map_range(part.clone(), home(part.start), largest, &RAM, &mut &guest.pool).unwrap();
            let gone = range(BASE + random.below(size / KIB_4) * KIB_4, KIB_4);
            guest.stage2.unmap(gone, &mut &guest.pool, Unwatched).unwrap().complete().free(&mut &guest.pool);
        }
    });
    guest.check_and_destroy();
}

/// Cleaning is what makes a fault on a block slow. Four vCPUs must clean no more than one.
#[test]
fn a_block_is_cleaned_by_one_vcpu_only() {
    let (blocks, threads, seed) = (volume(16, 1), 3, seed());
    let features = LINES.with_data_line(volume(2048, MIB_2 / 4));
    let guest = Guest::new(features, 40, 4);
    in_threads(threads, seed, |_, _, crew| {
        for block in 0..blocks {
            let ipa = BASE + block * MIB_2;
            crew.meet();
            let outcome = guest.stage2.map(ipa, home(ipa), Level::L2, &RAM, &mut &guest.pool).unwrap();
            assert!(!matches!(outcome, Mapped::Replaced(_)));
        }
    });
    assert_eq!(guest.world.cleaned.load(Ordering::Relaxed), blocks * MIB_2 / features.data_line);
    guest.check_and_destroy();
}

#[test]
fn a_page_is_cleaned_by_one_vcpu_only() {
    let (pages, threads, seed) = (volume(1024, 8), 3, seed());
    // Three tables. Each vCPU may also hold a page for a moment at two levels, where another one's table is linked.
    let guest = Guest::new(LINES, 40, 3 + 2 * threads);
    in_threads(threads, seed, |_, _, _| {
        for ipa in (0..pages).map(|page| BASE + page * KIB_4) {
            let _ = guest.stage2.map(ipa, home(ipa), Level::L3, &RAM, &mut &guest.pool).unwrap();
        }
    });
    assert_eq!(guest.world.cleaned.load(Ordering::Relaxed), pages * KIB_4 / LINES.data_line);
    guest.check_and_destroy();
}

#[test]
fn a_table_is_coalesced_and_cleaned_by_one_vcpu_only() {
    let (blocks, threads, seed) = (volume(16, 1), 3, seed());
    let features = LINES.with_data_line(volume(2048, MIB_2 / 4));
    let guest = Guest::new(features, 40, 20);
    // One page of each block is mapped; the rest needs cleaning.
    let hole = MIB_2 - KIB_4;
    for ipa in (0..blocks).map(|block| BASE + block * MIB_2) {
        let _ = guest.stage2.map(ipa, home(ipa), Level::L3, &RAM, &mut &guest.pool).unwrap();
    }
    guest.world.cleaned.store(0, Ordering::Relaxed);
    let done = AtomicU64::new(0);
    in_threads(threads, seed, |_, _, crew| {
        for ipa in (0..blocks).map(|block| BASE + block * MIB_2) {
            crew.meet();
            let outcome =
                guest.stage2.coalesce(ipa, home(ipa), Level::L2, &RAM, &mut &guest.pool, &mut |_| ()).unwrap();
            match outcome {
                Coalesced::Done { tables } => _ = done.fetch_add(tables, Ordering::Relaxed),
                Coalesced::Mapped(outcome) => assert!(matches!(outcome, Mapped::Already(_))),
            }
        }
    });
    assert_eq!(done.into_inner(), blocks);
    assert_eq!(guest.world.cleaned.load(Ordering::Relaxed), blocks * (hole / features.data_line));
    guest.check_and_destroy();
}
