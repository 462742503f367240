// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two operations that meet at every moment. The first is interrupted at each of its steps in turn. There the second
//! runs until it has to wait, or up to each of its own steps in turn, and then stops until the first has ended.
//!
//! The first reuses at once the pages that it freed. So an operation that continues in a freed page does visible harm.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};

use super::shared::{Step, set_hook};
use super::*;
use crate::window::ByAddress as _;
use twofold_stage2::walk::{Entry, Visitor};
use twofold_stage2::{Error, Unwatched};

type Operation = fn(&Guest);

#[derive(Default)]
struct Duel {
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Phase {
    /// The second operation may begin.
    begun: bool,
    /// The second operation waits, or has ended.
    stopped: bool,
    /// The second operation may continue.
    released: bool,
    /// Whether each operation reached the step at which it was to stop.
    first_was_there: bool,
    second_was_there: bool,
}

impl Duel {
    fn set(&self, change: impl Fn(&mut Phase)) {
        change(&mut self.phase.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&Phase) -> bool) {
        drop(self.changed.wait_while(self.phase.lock().unwrap(), |phase| !until(phase)).unwrap());
    }
}

/// How long a waiting thread sleeps, which leaves the CPU to the other.
const MOMENT: std::time::Duration = std::time::Duration::from_micros(20);

impl Duel {
    /// Waits for a moment, or until the first operation has ended.
    fn rest(&self) {
        let phase = self.phase.lock().unwrap();
        drop(self.changed.wait_timeout_while(phase, MOMENT, |phase| !phase.released).unwrap());
    }
}

/// Releases the other operation, however this one ends.
struct Ends<'a>(&'a Duel);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set(|phase| (phase.begun, phase.stopped, phase.released) = (true, true, true));
    }
}

/// Runs both operations: the second begins at step `k` of the first, and stops at its own step `j`.
fn meet(guest: &Guest, (first, k): (Operation, usize), (second, j): (Operation, usize)) -> Phase {
    let (duel, crew) = (Arc::new(Duel::default()), Crew::new(2));
    std::thread::scope(|scope| {
        let (at_second, crew) = (duel.clone(), &crew);
        scope.spawn(move || {
            let _member = crew.join();
            at_second.wait(|phase| phase.begun);
            let ends = Ends(&at_second);
            let (duel, mut steps, mut waits) = (at_second.clone(), 0, false);
            set_hook(move |step| {
                if step == Step::Pause {
                    if !std::mem::replace(&mut waits, true) {
                        duel.set(|phase| phase.stopped = true);
                    }
                    // Leave the CPU to the first operation.
                    return duel.rest();
                }
                if steps == j {
                    duel.set(|phase| (phase.stopped, phase.second_was_there) = (true, true));
                    duel.wait(|phase| phase.released);
                }
                steps += 1;
            });
            second(guest);
            drop(ends);
        });
        let _member = crew.join();
        let ends = Ends(&duel);
        let (at_first, mut steps, mut waits) = (duel.clone(), 0, false);
        set_hook(move |step| {
            if step == Step::Pause {
                if !std::mem::replace(&mut waits, true) {
                    at_first.set(|phase| phase.released = true);
                }
                return std::thread::sleep(MOMENT);
            }
            if steps == k {
                at_first.set(|phase| (phase.begun, phase.first_was_there) = (true, true));
                at_first.wait(|phase| phase.stopped);
            }
            steps += 1;
        });
        first(guest);
        drop(ends);
    });
    *duel.phase.lock().unwrap()
}

/// Lets the operations meet at their steps, each time on a new guest: at each step of the first, and at every fifth of
/// the second, with another offset each time. If `TWOFOLD_EVERY_STEP` is set, at each step of both, which takes five
/// times as long.
fn at_every_step(guest: fn() -> Guest, first: Operation, second: Operation, check: fn(&Guest)) {
    let stride = if std::env::var_os("TWOFOLD_EVERY_STEP").is_some() { 1 } else { 5 };
    let (mut k, mut meetings) = (0, 0);
    loop {
        let mut j = k % stride;
        let phase = loop {
            let guest = guest();
            let phase = meet(&guest, (first, k), (second, j));
            meetings += 1;
            check(&guest);
            guest.check_and_destroy();
            if !phase.first_was_there || !phase.second_was_there || j >= 20 {
                break phase;
            }
            j += stride;
        };
        if !phase.first_was_there {
            break;
        }
        k += 1;
    }
    assert!(meetings > 4, "the operations hardly met");
}

/// Four pages in the first 2 MiB, and one in the second: tables on three levels.
fn pages() -> Guest {
    let guest = Guest::new(FWB, 36, 10);
    [0, 1, 2, 511, 512].iter().for_each(|page| map(&guest, page * KIB_4, Level::L3, &RAM));
    guest
}

/// A block of 2 MiB, and a page after it.
fn block() -> Guest {
    let guest = Guest::new(FWB, 36, 10);
    map(&guest, 0, Level::L2, &RAM);
    map(&guest, MIB_2, Level::L3, &RAM);
    guest
}

/// [`block`], split into pages.
fn parts() -> Guest {
    let guest = block();
    split(&guest);
    guest
}

fn map(guest: &Guest, offset: u64, level: Level, attributes: &Attributes) {
    let ipa = BASE + offset;
    let outcome = guest.stage2.map(ipa, home(ipa), level, attributes, &mut &guest.pool);
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Maps pages elsewhere, which takes the table pages that were freed last.
fn recycle(guest: &Guest) {
    for offset in [8 * GIB, 8 * GIB + MIB_2, 9 * GIB] {
        map(guest, offset, Level::L3, &RAM);
    }
}

fn unmap(guest: &Guest, offset: u64, size: u64) {
    let pending = guest.stage2.unmap(range(BASE + offset, size), &mut &guest.pool, Unwatched).unwrap();
    pending.complete().free(&mut &guest.pool);
}

/// [`unmap`] that counts the bytes reported.
fn unmap_reported(guest: &Guest, offset: u64, size: u64) {
    let reported = |leaf: twofold_stage2::Broken| {
        assert!(range(BASE + offset, size).contains(&leaf.ipa()), "{leaf:?} is outside");
        guest.reported.fetch_add(mmu::span(leaf.level().raw()), Ordering::Relaxed);
    };
    let pending = guest.stage2.unmap(range(BASE + offset, size), &mut &guest.pool, reported).unwrap();
    pending.complete().free(&mut &guest.pool);
}

fn coalesce(guest: &Guest, offset: u64, level: Level, attributes: &Attributes) {
    let ipa = BASE + offset;
    let outcome = guest.stage2.coalesce(ipa, home(ipa), level, attributes, &mut &guest.pool, &mut |_| ());
    assert!(outcome.is_ok());
}

fn split(guest: &Guest) {
    let go_on = |_: &mut _, _| std::ops::ControlFlow::Continue(());
    assert_eq!(guest.stage2.split(range(BASE, GIB), GIB, &mut &guest.pool, go_on).unwrap().stopped, None);
}

fn write_protect(guest: &Guest) {
    let _ = guest.stage2.write_protect(range(BASE, GIB)).unwrap().complete();
}

fn is_mapped(guest: &Guest, offset: u64) -> bool {
    guest.stage2.look_up(BASE + offset).is_some()
}

fn nothing_is_writable(guest: &Guest) {
    let scan = guest.scan();
    let there = scan.leaves.iter().filter(|leaf| leaf.ipa >= BASE && leaf.ipa < BASE + GIB);
    assert!(there.clone().count() > 0);
    there.for_each(|leaf| assert!(!leaf.access().write, "{leaf:x?}"));
}

const FREE_PAGE: u64 = 9 * KIB_4;

#[test]
fn mapping_meets_a_table_that_is_unmapped() {
    fn with_recycling<const WHICH: usize>(guest: &Guest) {
        match WHICH {
            0 => unmap(guest, 0, MIB_2),
            1 => unmap(guest, 0, GIB),
            _ => [0, 1, 2, 511, 512].iter().for_each(|page| unmap(guest, page * KIB_4, KIB_4)),
        }
        recycle(guest);
    }
    for first in [with_recycling::<0>, with_recycling::<1>, with_recycling::<2>] {
        at_every_step(pages, first, |guest| map(guest, FREE_PAGE, Level::L3, &RAM), |_| ());
        at_every_step(pages, |guest| map(guest, FREE_PAGE, Level::L3, &RAM), first, |_| ());
    }
}

#[test]
fn mapping_meets_a_table_that_is_coalesced() {
    let small: Operation = |guest| {
        coalesce(guest, 0, Level::L2, &RAM);
        recycle(guest);
    };
    let large: Operation = |guest| {
        coalesce(guest, 0, Level::L1, &RAM);
        recycle(guest);
    };
    let page: Operation = |guest| map(guest, FREE_PAGE, Level::L3, &RAM);
    for first in [small, large] {
        at_every_step(pages, first, page, |guest| assert!(is_mapped(guest, FREE_PAGE) && is_mapped(guest, 0)));
        at_every_step(pages, page, first, |guest| assert!(is_mapped(guest, FREE_PAGE) && is_mapped(guest, 0)));
    }
}

#[test]
fn relaxing_meets_a_table_that_goes() {
    let relax: Operation = |guest| {
        let outcome = guest.stage2.relax(BASE + KIB_4, Access::READ_WRITE);
        assert!(matches!(outcome, Ok(_) | Err(Error::NotMapped { .. })));
        let found = guest.stage2.look_up(BASE + 2 * KIB_4);
        assert!(found.is_none_or(|leaf| leaf.descriptor.address() == home(leaf.ipa)));
    };
    let unmap_all: Operation = |guest| {
        unmap(guest, 0, GIB);
        recycle(guest);
    };
    let coalesce_all: Operation = |guest| {
        coalesce(guest, 0, Level::L1, &READ);
        recycle(guest);
    };
    for first in [unmap_all, coalesce_all] {
        at_every_step(pages, first, relax, |_| ());
        at_every_step(pages, relax, first, |_| ());
    }
}

/// Write protection holds when it has ended, wherever the split was.
#[test]
fn write_protection_meets_a_split() {
    at_every_step(block, split, write_protect, nothing_is_writable);
    at_every_step(block, write_protect, split, nothing_is_writable);
}

/// Write protection waits for a busy entry: the new block is read-only, and the old pages were protected.
#[test]
fn write_protection_meets_coalescing() {
    let merge: Operation = |guest| {
        coalesce(guest, 0, Level::L2, &READ);
        recycle(guest);
    };
    at_every_step(pages, merge, write_protect, nothing_is_writable);
    at_every_step(pages, write_protect, merge, nothing_is_writable);
    let replace: Operation = |guest| {
        let ipa = BASE;
        let attributes = Attributes { memory: twofold_stage2::Memory::NonCacheable, ..READ };
        assert!(guest.stage2.map(ipa, home(ipa), Level::L3, &attributes, &mut &guest.pool).is_ok());
    };
    at_every_step(pages, replace, write_protect, nothing_is_writable);
}

#[test]
fn relaxing_meets_a_split() {
    let relax: Operation = |guest| assert!(guest.stage2.relax(BASE + KIB_4, Access::ALL).is_ok());
    let executable: fn(&Guest) = |guest| {
        let access = guest.stage2.look_up(BASE + KIB_4).unwrap().descriptor.access();
        assert_eq!(access, Access::ALL, "the granted access is lost");
    };
    at_every_step(block, split, relax, executable);
    at_every_step(block, relax, split, executable);
}

#[test]
fn splitting_meets_coalescing_and_splitting() {
    let merge: Operation = |guest| {
        coalesce(guest, 0, Level::L2, &RAM);
        recycle(guest);
    };
    at_every_step(block, split, merge, |guest| assert!(is_mapped(guest, FREE_PAGE)));
    at_every_step(block, merge, split, |guest| assert!(is_mapped(guest, FREE_PAGE)));
    at_every_step(block, split, split, |guest| assert_eq!(guest.scan().leaves.len(), 513));
}

#[test]
fn two_that_need_the_same_tables_add_them_once() {
    let empty: fn() -> Guest = || Guest::new(FWB, 48, 10);
    at_every_step(
        empty,
        |guest| map(guest, 0, Level::L3, &RAM),
        |guest| map(guest, KIB_4, Level::L3, &RAM),
        |guest| {
            assert!(is_mapped(guest, 0) && is_mapped(guest, KIB_4));
            assert_eq!(guest.pool.out().len(), 3);
        },
    );
}

#[test]
fn each_page_is_reported_to_one_of_two_unmaps() {
    let all: Operation = |guest| unmap_reported(guest, 0, GIB);
    let some: Operation = |guest| {
        unmap_reported(guest, KIB_4, KIB_4);
        unmap_reported(guest, 2 * KIB_4, MIB_2);
        recycle(guest);
    };
    let check: fn(&Guest) = |guest| assert_eq!(guest.reported.load(Ordering::Relaxed), 5 * KIB_4);
    at_every_step(pages, all, some, check);
    at_every_step(pages, some, all, check);
    at_every_step(pages, all, all, check);
}

/// The ends of the range were split, and then the block was coalesced again.
#[test]
fn unmapping_a_part_of_a_block_that_is_put_together_again_takes_no_more() {
    let part: Operation = |guest| unmap_reported(guest, KIB_4, 2 * KIB_4);
    let merge: Operation = |guest| coalesce(guest, 0, Level::L2, &RAM);
    let check: fn(&Guest) = |guest| assert!(is_mapped(guest, 0) && is_mapped(guest, 3 * KIB_4));
    at_every_step(block, part, merge, check);
    at_every_step(parts, merge, part, check);
}

#[test]
fn protecting_a_part_of_a_block_that_is_put_together_again_takes_no_more() {
    let part: Operation = |guest| {
        let part = range(BASE + KIB_4, 2 * KIB_4);
        let _ = guest.stage2.protect(part, Access::READ, &mut &guest.pool).unwrap().complete();
    };
    let merge: Operation = |guest| coalesce(guest, 0, Level::L2, &RAM);
    let check: fn(&Guest) = |guest| {
        let write = |offset| guest.stage2.look_up(BASE + offset).unwrap().descriptor.is_writable();
        assert!(write(0) && write(3 * KIB_4), "pages outside of the range were protected");
    };
    at_every_step(block, part, merge, check);
}

#[test]
fn mapping_a_range_meets_smaller_and_larger_mappings() {
    fn range_of<const LARGEST: u8>(guest: &Guest) {
        let largest = Level::new(LARGEST).unwrap();
        let part = range(BASE + MIB_2, 2 * MIB_2);
        assert_eq!(guest.stage2.map_range(part, home(BASE + MIB_2), largest, &RAM, &mut &guest.pool), Ok(()));
    }
    let page: Operation = |guest| map(guest, 2 * MIB_2 + FREE_PAGE, Level::L3, &RAM);
    let check: fn(&Guest) = |guest| {
        (0..2 * MIB_2).step_by(KIB_4 as usize).for_each(|at| assert!(is_mapped(guest, MIB_2 + at)));
    };
    at_every_step(block, range_of::<2>, page, check);
    at_every_step(block, range_of::<3>, page, check);
    at_every_step(block, range_of::<2>, range_of::<3>, check);
}

/// A leaf that is always there is seen once. No leaf is seen twice, but the parts of a block may follow it.
#[test]
fn a_walk_meets_what_changes_under_it() {
    /// The guest, and the lowest address of the next leaf at each level.
    struct Leaves<'a>(&'a Guest, [Ipa; 4]);
    impl Visitor for Leaves<'_> {
        const TABLE_BEFORE: bool = true;
        type Error = Error;
        fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
            // A step, at which the other operation may run.
            twofold_stage2::Platform::on_atomic(self.0.stage2.platform());
            if entry.descriptor.is_leaf(entry.level) {
                let next = &mut self.1[usize::from(entry.level.raw())];
                assert!(entry.ipa >= *next, "{entry:?} again");
                *next = entry.ipa + entry.span;
                assert_eq!(entry.descriptor.address(), home(entry.ipa));
                self.0.reported.fetch_add(u64::from(entry.ipa == BASE + MIB_2), Ordering::Relaxed);
            }
            Ok(())
        }
        fn table_before(&mut self, _: &Entry) -> Result<(), Error> {
            twofold_stage2::Platform::on_atomic(self.0.stage2.platform());
            Ok(())
        }
    }
    let walk: Operation = |guest| {
        assert_eq!(guest.stage2.walk(range(BASE, 2 * MIB_2), &mut Leaves(guest, [BASE; 4])), Ok(()));
    };
    let check: fn(&Guest) = |guest| assert_eq!(guest.reported.load(Ordering::Relaxed), 1);
    let unmap_first: Operation = |guest| {
        unmap(guest, 0, MIB_2);
        recycle(guest);
    };
    at_every_step(block, unmap_first, walk, check);
    at_every_step(pages, unmap_first, walk, check);
    at_every_step(block, split, walk, check);
}
