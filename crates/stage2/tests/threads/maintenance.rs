// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty logging and memory management without a pause, beside vCPUs that always fault.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::window::ByAddress as _;
use twofold_stage2::{Broken, Error, Leaf, Unwatched};

const PAGES: u64 = 2 * 512;

fn any_page(random: &mut Random) -> Ipa {
    // Few pages, so that the threads meet, at both ends of two blocks.
    let page = [random.below(8), 508 + random.below(8), PAGES - 1 - random.below(4)][random.below(3) as usize];
    BASE + page * KIB_4
}

fn split(guest: &Guest, range: IpaRange) {
    let go_on = |_: &mut _, _| std::ops::ControlFlow::Continue(());
    let _ = guest.stage2.split(range, MIB_2, &mut &guest.pool, go_on).unwrap();
}

fn fault(guest: &Guest, random: &mut Random) {
    let ipa = any_page(random);
    match guest.stage2.look_up(ipa) {
        Some(Leaf { ipa, descriptor, .. }) => {
            assert_eq!(descriptor.address(), home(ipa));
            let outcome = guest.stage2.relax(ipa, Access::READ_WRITE);
            assert!(matches!(outcome, Ok(_) | Err(Error::NotMapped { .. })));
        }
        None => {
            let level = if random.below(4) == 0 { Level::L2 } else { Level::L3 };
            let start = ipa.align_down(mmu::span(level.raw()));
            let outcome = guest.stage2.map(start, home(start), level, &RAM, &mut &guest.pool);
            assert!(matches!(outcome, Ok(_) | Err(Error::TableInTheWay { .. })), "{outcome:?}");
        }
    }
}

fn maintain(guest: &Guest, random: &mut Random) {
    let (stage2, pool) = (&guest.stage2, &mut &guest.pool);
    let first = any_page(random);
    let part = first..(any_page(random) + KIB_4).max(first + KIB_4);
    let block = first.align_down(MIB_2);
    match random.below(8) {
        0 => drop(stage2.write_protect(part).unwrap().complete()),
        1 => drop(stage2.write_protect_mask(first, random.below(u64::from(u32::MAX))).unwrap().complete()),
        2 => drop(stage2.clean(part, &mut |_| ()).unwrap().complete()),
        3 => stage2.age(part, &mut |_| ()).unwrap(),
        4 => split(guest, part),
        5 => {
            let reported = &mut |_| ();
            let (start, level) = if random.below(4) == 0 { (BASE, Level::L1) } else { (block, Level::L2) };
            assert!(stage2.coalesce(start, home(start), level, &RAM, pool, reported).is_ok());
        }
        6 => {
            let reported = |leaf: Broken| assert!(part.contains(&leaf.ipa()));
            stage2.unmap(part.clone(), pool, reported).unwrap().complete().free(pool);
        }
        _ => {
            let whole = [range(block, MIB_2), range(BASE, GIB)][random.below(2) as usize].clone();
            stage2.unmap(whole, pool, Unwatched).unwrap().complete().free(pool);
        }
    }
}

#[test]
fn faults_and_maintenance_go_on_side_by_side() {
    let seed = seed();
    for ipa_bits in [40, 44] {
        // Enough for a table under each block of 1 GiB, if all were split.
        let guest = Guest::new(FWB, ipa_bits, volume(600, 40));
        in_threads(4, seed, |number, random, _| {
            for _ in 0..volume(1500, 15) {
                if number < 2 { fault(&guest, random) } else { maintain(&guest, random) }
            }
        });
        guest.check_and_destroy();
    }
}

/// What a dirty log must ensure: a page that is not in it was not written since the last read. A vCPU allows the write,
/// then sets the bit. The collector takes bits, protects, and flushes. If no vCPU is between its two steps, each
/// writable page has its bit set.
#[test]
fn no_page_stays_writable_without_a_bit_in_the_log() {
    let seed = seed();
    let guest = Guest::new(FWB, 40, 32);
    let log: Vec<AtomicU64> = (0..PAGES / 64).map(|_| AtomicU64::new(0)).collect();
    let (rounds, writers) = (volume(60, 2), 2);
    let done = AtomicU64::new(0);
    in_threads(writers + 2, seed, |number, random, crew| {
        for _ in 0..rounds {
            crew.meet();
            while number == 0 && done.load(Ordering::Relaxed) < writers {
                crew.check();
                let word = random.below(PAGES / 64);
                let first = BASE + word * 64 * KIB_4;
                let bits = log[word as usize].swap(0, Ordering::SeqCst);
                let protect_all = random.below(2) == 0;
                let pending = if protect_all {
                    log.iter().for_each(|word| word.store(0, Ordering::SeqCst));
                    guest.stage2.write_protect(range(BASE, GIB))
                } else {
                    guest.stage2.write_protect_mask(first, bits)
                };
                let _ = pending.unwrap().complete();
            }
            while number == 1 && done.load(Ordering::Relaxed) < writers {
                crew.check();
                let block = any_page(random).align_down(MIB_2);
                match random.below(4) {
                    0 => split(&guest, range(BASE, GIB)),
                    1 => guest.stage2.age(range(BASE, GIB), &mut |_| ()).unwrap(),
                    2 => {
                        let pending = guest.stage2.unmap(range(block, MIB_2), &mut &guest.pool, Unwatched).unwrap();
                        pending.complete().free(&mut &guest.pool);
                    }
                    _ => {
                        let _ = guest.stage2.map(block, home(block), Level::L2, &READ, &mut &guest.pool);
                    }
                }
            }
            for _ in 0..if number > 1 { volume(100, 5) } else { 0 } {
                let ipa = any_page(random);
                match guest.stage2.look_up(ipa) {
                    None => {
                        let _ = guest.stage2.map(ipa, home(ipa), Level::L3, &READ, &mut &guest.pool).unwrap();
                    }
                    Some(leaf) if leaf.level < Level::L3 => split(&guest, range(BASE, GIB)),
                    Some(_) => write(&guest, &log, ipa),
                }
            }
            if number > 1 {
                done.fetch_add(1, Ordering::Relaxed);
            }
            crew.meet();
            if number == 0 {
                done.store(0, Ordering::Relaxed);
                for leaf in guest.scan().leaves.iter().filter(|leaf| leaf.access().write) {
                    let logged = (leaf.ipa - BASE..leaf.end() - BASE).step_by(KIB_4 as usize).all(|at| {
                        let page = at / KIB_4;
                        log[(page / 64) as usize].load(Ordering::SeqCst) >> (page % 64) & 1 == 1
                    });
                    assert!(logged, "{leaf:x?} is writable and not in the log");
                }
            }
            crew.meet();
        }
    });
    guest.check_and_destroy();
}

/// A fault that allows a write and logs it. The leaf may have become a block meanwhile, so the fault logs all pages of
/// the block.
fn write(guest: &Guest, log: &[AtomicU64], ipa: Ipa) {
    if guest.stage2.relax(ipa, Access::READ_WRITE).is_ok() {
        let first = ((ipa.align_down(MIB_2) - BASE) / KIB_4 / 64) as usize;
        log[first..first + 8].iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
    }
}

/// Each write that hardware records is reported once. It is not lost to a plain store, nor to a stale value.
#[test]
fn each_write_that_hardware_records_is_reported_once() {
    let seed = seed();
    let guest = Guest::new(FWB, 40, 8);
    let pages = volume(64, 8);
    let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    for ipa in (0..pages).map(|page| BASE + page * KIB_4) {
        let _ = guest.stage2.map(ipa, home(ipa), Level::L3, &tracked, &mut &guest.pool).unwrap();
    }
    let entries: Vec<_> = guest.scan().leaves.iter().map(|leaf| leaf.entry).collect();
    let (recorded, reported) = (AtomicU64::new(0), AtomicU64::new(0));
    let clean = || {
        let tell = &mut |marked: twofold_stage2::Marked| {
            reported.fetch_add(u64::from(marked.mask.count_ones()), Ordering::Relaxed);
        };
        let _ = guest.stage2.clean(range(BASE, MIB_2), tell).unwrap().complete();
    };
    in_threads(4, seed, |number, random, _| {
        for _ in 0..volume(4000, 40) {
            let page = random.below(pages);
            let ipa = BASE + page * KIB_4;
            match number {
                0 | 1 => {
                    let written = guest.world.hardware_writes(entries[page as usize]);
                    recorded.fetch_add(u64::from(written), Ordering::Relaxed);
                }
                2 => clean(),
                _ => match random.below(4) {
                    0 => guest.stage2.age(range(BASE, MIB_2), &mut |_| ()).unwrap(),
                    1 => assert!(guest.stage2.make_young(ipa).is_ok()),
                    2 => assert!(guest.stage2.relax(ipa, Access { write: false, ..Access::ALL }).is_ok()),
                    _ => {
                        let keep = Access::READ_WRITE;
                        let pending = guest.stage2.protect(range(BASE, MIB_2), keep, &mut &guest.pool).unwrap();
                        let _ = pending.complete();
                    }
                },
            }
        }
    });
    clean();
    assert_eq!(reported.load(Ordering::Relaxed), recorded.load(Ordering::Relaxed));
    guest.check_and_destroy();
}
