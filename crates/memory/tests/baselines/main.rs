// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that each baseline differs from the default by its one rule, and in nothing that a guest or a reader of a log
//! sees.

#[path = "../machine/mod.rs"]
mod machine;
#[path = "../dirty/world.rs"]
#[allow(dead_code, reason = "the dirty log's tests use all of it")]
mod world;

use machine::guest::RunningGuest;
use machine::platform::{Event, PLAIN};
use machine::{GIB, HUGE_PAGE, PAGE};
use twofold_memory::baselines::{Cmo, Coalesce, Policies, Split, Tables};
use twofold_memory::dirty::{CoalescedRange, LogOptions, Tracker};
use twofold_memory::{Answer, Backing, Done, Pages, Slot};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::platform::Tlbi;
use twofold_stage2::{Ipa, Level};
use world::{BASE, FEATURES, World};

const BLOCKS: u64 = 4;
const PAGES: u64 = BLOCKS * 512;
const SPLITS: [Split; 4] = [Split::Records, Split::EveryLevel, Split::SkipChildren, Split::SkipLeaves];

/// Four blocks, in tables below a root of level 1.
fn blocks(policies: Policies) -> World {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, PAGES, 16);
    world.guest.memory.set_policies(policies, || 0);
    world.write_all((0..BLOCKS).map(|block| block * 512));
    assert_eq!(levels(&world), [Some(2); 4]);
    world
}

fn levels(world: &World) -> [Option<u8>; 4] {
    [0, 1, 2, 3].map(|block| world.level(block * 512 + 9))
}

/// Does `action`. Returns the entries that it visits, and the entries that it breaks or protects.
fn visits(world: &mut World, action: impl FnOnce(&mut World)) -> (u64, usize) {
    let before = world.guest.memory.split_visits();
    world.guest.machine.events();
    action(world);
    let broken = |event: &Event| matches!(event, Event::Tlbi(Tlbi::Ipas2Le1Is | Tlbi::Ipas2E1Is, _));
    let breaks = world.guest.machine.events().into_iter().filter(broken).count();
    (world.guest.memory.split_visits() - before, breaks)
}

/// In each chunk, the root's entry and the block's are visited. A range that is split already costs a walk the same
/// visits.
#[test]
fn a_start_visits_what_the_policy_says() {
    let leaves = 512;
    for (split, blocks_split, split_already) in [
        (Split::Records, 0, 0),
        (Split::EveryLevel, BLOCKS * (2 + leaves), BLOCKS * (2 + leaves)),
        (Split::SkipChildren, BLOCKS * 2, BLOCKS * (2 + leaves)),
        (Split::SkipLeaves, BLOCKS * 2, BLOCKS * 2),
    ] {
        let mut world = blocks(Policies { split, ..Policies::default() });
        let options = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::WriteProtect) };
        let start = |world: &mut World| world.log().start(&options).unwrap();
        // The blocks are split one after the other, after all were protected at once.
        assert_eq!(visits(&mut world, start).0, blocks_split, "{split:?}");
        assert_eq!(levels(&world), [Some(3); 4], "{split:?}");
        world.copy_pages(0..PAGES);
        world.write_all([0, 700, 2047]);
        world.check_reported([0, 700, 2047]);
        world.log().stop().unwrap();
        assert_eq!(visits(&mut world, start).0, split_already, "{split:?}");
    }
    // If one chunk has all blocks, the root's entry is visited once.
    let mut world = blocks(Policies { split: Split::EveryLevel, ..Policies::default() });
    let options = LogOptions { all_dirty: false, chunk: GIB, ..LogOptions::new(Tracker::Manual) };
    assert_eq!(visits(&mut world, |world| world.log().start(&options).unwrap()).0, 1 + BLOCKS * (1 + leaves));
}

/// Word by word: the first word of a block splits it, and the walks of the others find it split.
#[test]
fn a_clear_visits_what_the_policy_says() {
    let (words, leaves) = (8, 64);
    for (split, first, later) in [
        (Split::Records, 0, 0),
        (Split::EveryLevel, words * (2 + leaves), words * (2 + leaves)),
        (Split::SkipChildren, 2 + (words - 1) * (2 + leaves), words * (2 + leaves)),
        (Split::SkipLeaves, words * 2, words * 2),
    ] {
        let mut world = blocks(Policies { split, ..Policies::default() });
        world.log().start(&LogOptions::new(Tracker::Manual)).unwrap();
        assert_eq!(levels(&world), [Some(2); 4]);
        world.get();
        let (visited, breaks) = visits(&mut world, |world| world.clear_and_copy(0..PAGES));
        assert_eq!((visited, levels(&world)), (BLOCKS * first, [Some(3); 4]), "{split:?}");
        // One break for each block, and the flushes of protected entries.
        assert!(breaks >= BLOCKS as usize, "{split:?}: {breaks}");
        world.write_all(0..PAGES);
        world.check_reported(0..PAGES);
        assert_eq!(visits(&mut world, |world| world.clear_and_copy(0..PAGES)).0, BLOCKS * later, "{split:?}");
        // Each 16th page, as a guest with pages of 64 KiB writes them. A walk goes from the first to the last of them
        // in a word.
        let sparse: Vec<_> = (0..PAGES).step_by(16).collect();
        world.write_all(sparse.iter().copied());
        world.check_reported(sparse.iter().copied());
        let per_word = if later > words * 2 { 2 + 49 } else { later / words };
        let (visited, _) = visits(&mut world, |world| world.clear_and_copy(sparse));
        assert_eq!(visited, BLOCKS * words * per_word, "{split:?}");
        world.check_reported([]);
        // No page is dirty, so none is split.
        assert_eq!(visits(&mut world, |world| world.clear(0..PAGES)).0, 0);
    }
}

/// With chunk 0, no policy splits ahead.
#[test]
fn no_policy_splits_without_a_chunk() {
    for split in SPLITS {
        for all_dirty in [false, true] {
            let world = blocks(Policies { split, ..Policies::default() });
            let options = LogOptions { all_dirty, chunk: 0, ..LogOptions::new(Tracker::Manual) };
            world.log().start(&options).unwrap();
            world.clear(0..PAGES);
            assert_eq!((levels(&world), world.guest.memory.split_visits()), ([Some(2); 4], 0), "{split:?}");
        }
    }
}

/// A chunk has as many table pages as KVM has for it, so a block of 1 GiB is split level by level, or at once.
#[test]
fn a_chunk_bounds_how_much_is_split() {
    let all = 513;
    for (split, chunk, first) in [
        (Split::EveryLevel, HUGE_PAGE, 3),
        (Split::SkipLeaves, HUGE_PAGE, 3),
        // This walk passes over the tables that it has made, including the chunk's own.
        (Split::SkipChildren, HUGE_PAGE, 2),
        (Split::SkipChildren, GIB, 3),
        (Split::EveryLevel, GIB, 3),
    ] {
        let mut world = World::preallocated(FEATURES, Pages::Largest, BASE, GIB / PAGE, Level::L1, 1 + all);
        world.guest.memory.set_policies(Policies { split, ..Policies::default() }, || 0);
        world.write(0);
        assert_eq!(world.level(0), Some(1));
        let options = LogOptions { all_dirty: false, chunk, ..LogOptions::new(Tracker::Manual) };
        world.log().start(&options).unwrap();
        assert_eq!([0, 512, 262_143].map(|page| world.level(page)), [Some(first), Some(3), Some(3)], "{split:?}");
        world.copy_pages([0]);
        // A write splits a block that was left.
        world.write_all([5, 600]);
        world.check_reported([5, 600]);
    }
    // A clear of one word splits no more than its chunk, too.
    for (chunk, beside) in [(HUGE_PAGE, 2), (GIB, 3)] {
        let mut world = World::preallocated(FEATURES, Pages::Largest, BASE, GIB / PAGE, Level::L1, 1 + all);
        world.guest.memory.set_policies(Policies { split: Split::SkipLeaves, ..Policies::default() }, || 0);
        world.write(0);
        world.log().start(&LogOptions { chunk, ..LogOptions::new(Tracker::Manual) }).unwrap();
        world.log().clear(0, 64, &[1]).unwrap();
        assert_eq!([0, 512].map(|page| world.level(page)), [Some(3), Some(beside)], "{chunk:#x}");
    }
}

/// A walk that runs out of table pages ends without an error.
#[test]
fn a_walk_without_table_pages_is_no_error() {
    for split in SPLITS {
        let mut world = World::with(FEATURES, Pages::Largest, BASE, PAGES, 1 + 2);
        world.guest.memory.set_policies(Policies { split, ..Policies::default() }, || 0);
        world.write_all((0..BLOCKS).map(|block| block * 512));
        let options = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) };
        world.log().start(&options).unwrap();
        assert_eq!(levels(&world), [Some(3), Some(3), Some(2), Some(2)], "{split:?}");
    }
}

/// A huge page of RAM with these policies, on a CPU whose caches have to be cleaned.
fn huge_page(policies: Policies) -> (RunningGuest, twofold_memory::SlotId) {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 4);
    guest.memory.set_policies(policies, || 0);
    let slot = Slot { range: BASE..BASE + HUGE_PAGE, backing: Backing::Ram, writable: true };
    let slot = guest.memory.add_slot(slot).unwrap();
    (guest, slot)
}

/// The number of bytes that a translation fault cleans, and its answer.
fn cleaned(guest: &mut RunningGuest, ipa: Ipa) -> (u64, Answer) {
    guest.machine.events();
    let answer = guest.fault(ipa, FaultKind::Translation, AccessKind::Write).unwrap();
    let bytes = |event: Event| if let Event::Clean(_, size) = event { size } else { 0 };
    (guest.machine.events().into_iter().map(bytes).sum(), answer)
}

const STALE: Answer = Answer::Retry(Done::Stale);

fn mapped(level: Level, first_touch: bool) -> Answer {
    Answer::Retry(Done::Mapped { level, first_touch })
}

/// Each vCPU that faults cleans, or only the one that maps.
#[test]
fn cleaning_on_abort_is_done_by_each_that_faults() {
    // The default cleans the page that the table did not map, and nothing for a late fault. The baseline cleans the
    // fault's whole block each time.
    for (cmo, missing, late) in [(Cmo::OnMap, PAGE, 0), (Cmo::OnAbort, HUGE_PAGE, HUGE_PAGE)] {
        let (mut guest, slot) = huge_page(Policies { cmo, ..Policies::default() });
        assert_eq!(cleaned(&mut guest, BASE), (HUGE_PAGE, mapped(Level::L2, true)));
        assert_eq!(cleaned(&mut guest, BASE + PAGE), (late, STALE));
        // A block in the place of a table is cleaned once by either rule.
        guest.memory.unmap(slot, BASE..BASE + PAGE).unwrap();
        assert_eq!(cleaned(&mut guest, BASE), (missing, mapped(Level::L2, false)), "{cmo:?}");
        assert_eq!(cleaned(&mut guest, BASE), (late, STALE));
        let pa = guest.reach(BASE + 7 * PAGE, AccessKind::Read);
        guest.machine.check_page(pa, &[0; PAGE as usize]);
    }
}

/// Freeing first frees the table before the block is made. The page goes back under the frames' lock, which counts as
/// an atomic.
#[test]
fn freeing_first_frees_while_nothing_is_mapped() {
    let between = |policies: Policies, by_fault: bool| {
        let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(policies.cmo == Cmo::OnMap), Pages::Largest, 4);
        guest.memory.set_policies(policies, || 0);
        let slot = Slot { range: BASE..BASE + HUGE_PAGE, backing: Backing::Ram, writable: true };
        let slot = guest.memory.add_slot(slot).unwrap();
        guest.reach(BASE, AccessKind::Write);
        let log = guest.memory.dirty_log(slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) }).unwrap();
        log.stop().unwrap();
        if by_fault {
            guest.memory.unmap(slot, BASE + PAGE..BASE + 2 * PAGE).unwrap();
        }
        let freed = guest.memory.counts().tables_freed;
        guest.machine.watch(BASE, None);
        guest.machine.atomics_at_sights();
        if by_fault {
            assert_eq!(cleaned(&mut guest, BASE + PAGE).1, mapped(Level::L2, false));
        } else {
            assert_eq!(log_of(&guest, slot).coalesce_range(0, 1), Ok(CoalescedRange { blocks: 1, next: None }));
        }
        assert_eq!((guest.level(BASE), guest.memory.counts().tables_freed), (Some(2), freed + 1));
        guest.machine.events();
        let [broken, made] = guest.machine.atomics_at_sights()[..] else { panic!("one break and one make expected") };
        made - broken
    };
    for cmo in [Cmo::OnMap, Cmo::OnAbort] {
        for by_fault in [false, true] {
            let count = |coalesce| between(Policies { coalesce, cmo, ..Policies::default() }, by_fault);
            assert_eq!(count(Coalesce::FreeFirst), count(Coalesce::InstallFirst) + 1, "{cmo:?} {by_fault}");
        }
    }
}

fn log_of(guest: &RunningGuest, slot: twofold_memory::SlotId) -> twofold_memory::dirty::DirtyLog<'_, machine::Host> {
    guest.memory.dirty_log(slot).unwrap()
}

/// The baseline takes a page for each level below the root at each fault, although only the first fault needs any.
#[test]
fn pages_are_at_hand_for_each_fault() {
    for (tables, taken) in [(Tables::WhenNeeded, [2, 2]), (Tables::Always, [2, 4])] {
        let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 4);
        guest.memory.set_policies(Policies { tables, ..Policies::default() }, || 0);
        guest.add_ram(BASE, HUGE_PAGE);
        let root = guest.memory.counts().tables_allocated;
        for (page, taken) in taken.into_iter().enumerate() {
            guest.reach(BASE + page as u64 * PAGE, AccessKind::Read);
            assert_eq!(guest.memory.counts().tables_allocated - root, taken, "{tables:?}");
        }
        // Later faults take no more, since no table is missing.
        guest.reach(BASE + 9 * PAGE, AccessKind::Read);
        assert_eq!(guest.memory.counts().tables_allocated - root, taken[1], "{tables:?}");
        assert_eq!(guest.scan().links.len(), 2);
    }
}

/// With every policy, written pages are reported, and pages that are not reported are unchanged.
#[test]
fn a_log_tells_the_same_by_all_policies() {
    for tracker in Tracker::ALL {
        for split in SPLITS {
            for (coalesce, tables) in
                [(Coalesce::InstallFirst, Tables::Always), (Coalesce::FreeFirst, Tables::WhenNeeded)]
            {
                let policies = Policies { split, cmo: Cmo::OnAbort, coalesce, tables };
                let mut world = blocks(policies);
                assert_eq!(world.guest.memory.policies(), policies);
                for round in 0..2 {
                    world.start(LogOptions::new(tracker));
                    let written = [0, 5, 63, 64, 512 + round, 2047];
                    world.write_all(written);
                    world.check_reported(written);
                    world.clear_and_copy(written);
                    world.check_reported([]);
                    world.log().stop().unwrap();
                    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: BLOCKS, next: None }));
                    assert_eq!(levels(&world), [Some(2); 4]);
                }
            }
        }
    }
}
