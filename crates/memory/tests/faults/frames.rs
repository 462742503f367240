// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that frames come from the donated ranges alone, that they are whole, that each is handed out once, and that
//! the counts are right.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use proptest::prelude::*;
use twofold_memory::{Backing, Error, Frames, GuestFault};
use twofold_stage2::{Donated, Geometry, Kib4, Pa, Run, TablePage, TableSource};

use super::*;
use crate::machine::bank::LEFT_IN_CACHE;
use crate::machine::guest::IPA_BITS;
use crate::machine::{HUGE_PAGE, Machine, PAGE, RAM};

const SECOND: Pa = Pa::new(0x9_0000_0000);

/// Takes all single frames.
fn drain(frames: &mut Frames) -> Vec<TablePage> {
    let mut taken = Vec::new();
    while let Some(page) = TableSource::take(frames) {
        taken.push(page);
        assert!(taken.len() < 1 << 20, "frames do not end");
    }
    assert_eq!(frames.free(), 0);
    taken
}

fn addresses(pages: &[TablePage]) -> BTreeSet<u64> {
    let all: BTreeSet<_> = pages.iter().map(|page| page.pa().raw()).collect();
    assert_eq!(all.len(), pages.len(), "a frame was handed out twice");
    all
}

#[test]
fn each_whole_frame_of_the_ranges_is_handed_out_once() {
    let machine = Machine::new(PLAIN, &[(RAM, 16 * PAGE), (SECOND, 16 * PAGE)]);
    let mut frames = Frames::new(PLAIN);
    assert_eq!((frames.free(), TableSource::<Kib4>::take(&mut frames)), (0, None));
    // Neither end of the first range is aligned, nor is the end of the second.
    frames.add(machine.donate(RAM + 0x10, 5 * PAGE));
    assert_eq!(frames.free(), 4);
    frames.add(machine.donate(SECOND + PAGE, 3 * PAGE + 0xfff));
    assert_eq!(frames.free(), 7);
    let expected = [1, 2, 3, 4].map(|page| RAM + page * PAGE).into_iter();
    let expected = expected.chain([1, 2, 3].map(|page| SECOND + page * PAGE));
    let taken = drain(&mut frames);
    assert_eq!(addresses(&taken), expected.map(Pa::raw).collect());
    let count = taken.len() as u64;
    taken.into_iter().for_each(|page| frames.give(page));
    assert_eq!(frames.free(), count);
    assert_eq!(drain(&mut frames).len() as u64, count);
}

/// The search for the range of a frame passes a range that lies above it.
#[test]
fn frames_go_back_to_a_range_below_the_first() {
    let machine = Machine::new(PLAIN, &[(RAM, 2 * PAGE), (SECOND, 2 * PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(machine.donate(SECOND, 2 * PAGE));
    frames.add(machine.donate(RAM, 2 * PAGE));
    drain(&mut frames).into_iter().for_each(|page| frames.give(page));
    let expected = [RAM, RAM + PAGE, SECOND, SECOND + PAGE].map(Pa::raw);
    assert_eq!(addresses(&drain(&mut frames)), expected.into());
}

#[test]
fn a_range_without_a_whole_frame_gives_none() {
    let machine = Machine::new(PLAIN, &[(RAM, 4 * PAGE)]);
    let mut frames = Frames::new(PLAIN);
    for (start, size) in [(0, 0), (1, PAGE), (0x800, 2 * PAGE - 0x801), (0xfff, 0x1000), (PAGE, PAGE - 1)] {
        frames.add(machine.donate(RAM + start, size));
        assert_eq!((frames.free(), frames.take(1)), (0, None), "{size:#x} bytes from {start:#x}");
    }
}

#[test]
fn runs_are_aligned_to_their_size_and_inside_one_range() {
    let machine = Machine::new(PLAIN, &[(RAM, 3 * HUGE_PAGE), (SECOND, 3 * HUGE_PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(machine.donate(RAM + 7 * PAGE, 2 * HUGE_PAGE));
    frames.add(machine.donate(SECOND + 9, 2 * HUGE_PAGE));
    assert_eq!(frames.free(), 512 * 2 + 512 * 2 - 1);
    let taken = [frames.take(512), frames.take(512)].map(|run| run.unwrap());
    let starts: BTreeSet<_> = taken.iter().map(|run| run.pa().raw()).collect();
    assert_eq!(starts, BTreeSet::from([RAM + HUGE_PAGE, SECOND + HUGE_PAGE].map(Pa::raw)));
    assert!(taken.iter().all(|run| run.size() == HUGE_PAGE));
    assert_eq!(frames.take(512), None, "only fragments are left");
    assert_eq!(frames.free(), 1023);
    assert_eq!(drain(&mut frames).len(), 1023);
}

#[test]
fn ranges_that_adjoin_stay_apart() {
    // The first frame of a pair is in one range, the second in another: given back, they look like a run of two.
    let machine = Machine::new(PLAIN, &[(RAM, 4 * PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(machine.donate(RAM, PAGE));
    frames.add(machine.donate(RAM + PAGE, PAGE));
    for page in drain(&mut frames) {
        frames.give(page);
    }
    assert_eq!((frames.free(), frames.take(2)), (2, None));
    assert_eq!(drain(&mut frames).len(), 2);
}

#[test]
fn roots_of_every_shape_are_taken() {
    for (ipa_bits, tables) in [(32, 4), (33, 8), (34, 16), (35, 1), (39, 1), (40, 2), (43, 16), (44, 1), (48, 1)] {
        let machine = Machine::new(PLAIN, &[(RAM, 64 * PAGE)]);
        let mut frames = Frames::new(PLAIN);
        frames.add(machine.donate(RAM + PAGE, 63 * PAGE));
        let geometry = Geometry::new(Kib4, ipa_bits, &PLAIN).unwrap();
        let root = frames.take_root(&geometry).unwrap().unwrap();
        assert_eq!((root.size(), root.pa().raw() % root.size()), (tables * PAGE, 0), "{ipa_bits} bits");
        assert_eq!(frames.free(), 63 - tables);
        let guest = RunningGuest::on(machine, frames, Pages::Small, ipa_bits);
        assert_eq!(guest.memory.counts().tables_allocated, 2 * tables);
        assert_eq!(guest.memory.frames().free(), 63 - 2 * tables);
    }
}

#[test]
fn the_books_of_a_guest_are_right() {
    let machine = Machine::new(FORCED, &[(RAM, 5 * HUGE_PAGE), (SECOND, 5 * HUGE_PAGE)]);
    let mut frames = Frames::new(FORCED);
    // The ends lie in the middle of frames; both ranges are needed.
    frames.add(machine.donate(RAM + 0x123, 3 * HUGE_PAGE));
    frames.add(machine.donate(SECOND + (PAGE - 1), 4 * HUGE_PAGE));
    let donated = (3 + 4) * 512 - 2;
    assert_eq!(frames.free(), donated);
    let mut guest = RunningGuest::on(machine, frames, Pages::Small, IPA_BITS);
    assert_eq!(guest.memory.counts().tables_allocated, 2);
    assert_eq!(guest.memory.frames().free(), donated - 2);
    guest.add_ram(BASE, 5 * HUGE_PAGE);
    for huge_page in 0..5 {
        guest.reach(BASE + huge_page * HUGE_PAGE, Write);
        guest.reach(BASE + huge_page * HUGE_PAGE + 511 * PAGE, Execute);
        // The root, one table of level 2, and one of level 3 for each huge page.
        let counts = guest.memory.counts();
        assert_eq!((counts.tables_allocated, counts.tables_freed), (2 + 1 + huge_page + 1, 0));
        assert_eq!(guest.memory.frames().free(), donated - 512 * (huge_page + 1) - counts.tables_allocated);
        assert_eq!(guest.scan().links.len() as u64, counts.tables_allocated - 2);
    }
    // All leaves and tables lie in the donated ranges. The rest of memory is unchanged.
    let ranges = [(RAM + PAGE, 3 * HUGE_PAGE - PAGE), (SECOND + PAGE, 4 * HUGE_PAGE - PAGE)];
    let inside = |pa: Pa| ranges.iter().any(|(start, size)| pa >= *start && pa + PAGE <= *start + *size);
    let scan = guest.scan();
    assert!(scan.leaves.iter().all(|leaf| inside(leaf.pa())), "{scan:x?}");
    assert!(scan.links.iter().all(|link| inside(link.table)), "{scan:x?}");
    for (pa, size) in [(RAM, 0x123), (RAM + 3 * HUGE_PAGE + 0x123, PAGE), (SECOND, PAGE - 1)] {
        let bytes = guest.machine.bank(pa).load(pa, size);
        assert!(bytes.iter().all(|byte| *byte == LEFT_IN_CACHE), "{pa}");
    }
    // Nothing is shared with other guests.
    assert_eq!(guest.memory.frames().free_to_all(&guest.machine.platform()), 0);
    assert_eq!(guest.memory.frames().free_in_pool(), 0);
    assert_eq!(guest.memory.release_tables(), 0);
    let frames = guest.memory.destroy(|given| panic!("no slot was given {given:?}"));
    assert_eq!(frames.free(), donated, "the frames of RAM, tables and root are back");
}

/// Another guest can use the frames then.
#[test]
fn a_guest_that_is_destroyed_gives_all_back() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 8);
    let all = guest.memory.frames().free() + 2;
    let frames = guest.memory.frames().take(512).unwrap();
    let at = frames.pa();
    guest.add(BASE + 4 * HUGE_PAGE, HUGE_PAGE, Backing::Preallocated { frames, largest: Level::L3 }, true);
    guest.add_ram(BASE, 2 * HUGE_PAGE);
    for ipa in [BASE, BASE + 3 * PAGE, BASE + HUGE_PAGE, BASE + 4 * HUGE_PAGE + PAGE] {
        guest.reach(ipa, Write);
    }
    let mut given = Vec::new();
    let frames = guest.memory.destroy(|run| given.push(run));
    assert_eq!((frames.free(), given.len()), (all - 512, 1));
    assert_eq!((given[0].pa(), given[0].size()), (at, HUGE_PAGE));
    let mut next = RunningGuest::on(guest.machine, frames, Pages::Small, IPA_BITS);
    next.add_ram(BASE, HUGE_PAGE);
    next.reach(BASE, Write);
}

proptest! {
    /// Each run that is taken was free, is aligned, and lies in one range. If such a run exists, taking one succeeds.
    #[test]
    fn frames_are_kept_as_a_set_keeps_them(
        ranges in prop::collection::vec((0u64..512, 1u64..1600), 1..4),
        steps in prop::collection::vec((0u32..12, any::<prop::sample::Index>(), prop::bool::weighted(0.4)), 0..120),
    ) {
        const APART: u64 = 2048;
        let mut frames = Frames::new(PLAIN);
        let mut free: BTreeSet<u64> = BTreeSet::new();
        let base = |range: usize| RAM.raw() / PAGE + range as u64 * APART;
        for (range, (first, pages)) in ranges.iter().enumerate() {
            let start = base(range) + first;
            let pages = *pages.min(&(APART - first));
            free.extend(start..start + pages);
            // SAFETY: there is no memory, and the test accesses none.
            frames.add(unsafe { Donated::new(Pa::new(start * PAGE), pages * PAGE) });
        }
        let (all, mut out) = (free.len() as u64, Vec::new());
        for (order, which, gives) in steps {
            if gives && !out.is_empty() {
                let run: Run = out.swap_remove(which.index(out.len()));
                let first = run.pa().raw() / PAGE;
                free.extend(first..first + run.size() / PAGE);
                prop_assert_eq!(frames.give_run(run), Ok(()));
            } else {
                let count = 1 << order;
                let fits = |first: u64| (first..first + count).all(|frame| free.contains(&frame));
                let in_range = |range: usize| (base(range)..base(range + 1)).step_by(count as usize).any(fits);
                let is_there = (0..ranges.len()).any(in_range);
                let taken = frames.take(count);
                prop_assert_eq!(taken.is_some(), is_there, "{} frames", count);
                if let Some(run) = taken {
                    let first = run.pa().raw() / PAGE;
                    prop_assert_eq!((run.size(), first % count), (count * PAGE, 0));
                    (first..first + count).for_each(|frame| assert!(free.remove(&frame), "taken twice"));
                    out.push(run);
                }
            }
            prop_assert_eq!(frames.free(), free.len() as u64);
        }
        out.into_iter().for_each(|run| assert_eq!(frames.give_run(run), Ok(())));
        prop_assert_eq!(frames.free(), all);
    }
}

/// A range that starts inside the alignment of a larger run, and a range exactly as large as a run.
#[test]
fn runs_of_several_huge_pages_are_aligned_and_come_back_in_any_pieces() {
    let first = RAM + HUGE_PAGE;
    let machine = Machine::new(PLAIN, &[(first, 7 * HUGE_PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(machine.donate(first, 7 * HUGE_PAGE));
    assert_eq!(frames.huge_pages(), 7);
    let whole = 4 * HUGE_PAGE / PAGE;
    assert!(RAM.is_aligned(4 * HUGE_PAGE));
    let run = frames.take(whole).unwrap();
    assert_eq!((run.pa(), run.size()), (RAM + 4 * HUGE_PAGE, 4 * HUGE_PAGE));
    assert_eq!(frames.take(whole), None, "the rest is not aligned");
    // Half of the first 2 MiB, then a piece that reaches into the third.
    let (half, rest) = run.split_at(HUGE_PAGE / 2).unwrap();
    let (across, rest) = rest.split_at(2 * HUGE_PAGE).unwrap();
    for piece in [across, half, rest] {
        assert_eq!(frames.give_run(piece), Ok(()));
    }
    assert_eq!(frames.free(), 7 * HUGE_PAGE / PAGE);
    let again = frames.take(whole).unwrap();
    assert_eq!(again.pa(), RAM + 4 * HUGE_PAGE);

    let exact = Machine::new(PLAIN, &[(RAM, 4 * HUGE_PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(exact.donate(RAM, 4 * HUGE_PAGE));
    let run = frames.take(whole).unwrap();
    assert_eq!(frames.take(1), None);
    // A run from below the range does not belong to it.
    let mut others = Frames::new(PLAIN);
    others.add(machine.donate(first, HUGE_PAGE));
    assert_eq!(others.give_run(run).map_err(|run| run.pa()), Err(RAM));
}

/// A range that is not a whole number of 2 MiB runs: only runs that lie inside are counted.
#[test]
fn sections_are_counted_where_they_are_whole() {
    let machine = Machine::new(PLAIN, &[(RAM, 4 * HUGE_PAGE), (SECOND, HUGE_PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(machine.donate(RAM + PAGE, 4 * HUGE_PAGE - 2 * PAGE));
    assert_eq!(frames.huge_pages(), 2);
    frames.add(machine.donate(SECOND + PAGE, HUGE_PAGE - PAGE));
    assert_eq!(frames.huge_pages(), 2);
}

/// Another CPU reads how many frames there are, at each point of a fault for which there are none, also while that holds the
/// slot's lock.
#[test]
fn frames_are_counted_while_a_fault_finds_none() {
    for number in 1.. {
        let mut guest = RunningGuest::new(PLAIN, Pages::Small, 1);
        guest.add_ram(BASE, HUGE_PAGE);
        let (memory, begun) = (Rc::new(guest.memory), Rc::new(Cell::new(false)));
        let (other, other_begun) = (Rc::clone(&memory), Rc::clone(&begun));
        guest.machine.before_atomic(number, move || {
            other_begun.set(true);
            assert_eq!(other.frame_use().data, 0);
        });
        let fault = GuestFault { ipa: BASE, kind: Translation, access: Write };
        assert_eq!(memory.fault(&fault), Err(Error::NoFrames { ipa: BASE }));
        guest.machine.set_atomic_hook(|| ());
        if !begun.get() {
            assert!(number > 2, "{number}");
            break;
        }
    }
}
