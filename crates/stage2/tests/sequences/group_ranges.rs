// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations on ranges: which contiguous groups [`Grant::map_range`](twofold_stage2::Grant::map_range) makes, and which
//! entries a maintenance pass visits, in groups and in tables of a larger granule.

use twofold_stage2::{Contiguous, Kib16, Marked, Unwatched};

use super::groups::{Grouping, SIZE, guest, hints, map_at, map_page};
use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame};

const KIB_16: u64 = 16 << 10;

/// The address of a page of the 4 KiB granule.
fn page(number: u64) -> Ipa {
    BASE + number * KIB_4
}

/// Maps pages to the frames that are `shift` bytes after theirs.
fn map_range(guest: &mut Guest<Grouping>, pages: std::ops::Range<u64>, shift: u64, attributes: &Attributes) {
    let Guest { stage2, pool, .. } = guest;
    let to = frame(pages.start * KIB_4 + shift);
    stage2.map_range(page(pages.start)..page(pages.end), to, Level::L3, attributes, pool).unwrap();
}

fn unmap(guest: &mut Guest<Grouping>, range: IpaRange) {
    guest.stage2.unmap(range, &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
}

/// In a table that is linked already, and in two that are linked when they are full.
#[test]
fn a_range_makes_the_groups_that_lie_in_it() {
    let tracked = Attributes { dirty_by_hardware: true, ..RAM };
    let cases = [
        (3..45, 0, RAM, 16..32),
        (3..48, 0, RAM, 16..48),
        (16..31, 0, RAM, 0..0),
        (19..48, 3 * KIB_4, RAM, 0..0),
        (16..48, KIB_4, RAM, 0..0),
        (16..48, 0, tracked, 0..0),
        (512..1536, 0, RAM, 512..1536),
        (512..1536, KIB_4, RAM, 0..0),
        (512..1536, 0, tracked, 0..0),
    ];
    for (pages, shift, attributes, grouped) in cases {
        let mut guest = guest(HINTS.with_hardware_dirty_state(true));
        map_page(&mut guest, 200 * KIB_4, &RAM);
        map_range(&mut guest, pages.clone(), shift, &attributes);
        assert_eq!(hints(&guest, 2048), grouped.collect::<Vec<_>>(), "{pages:?} + {shift:#x}");
        for number in (0..2048).filter(|number| *number != 200) {
            let expected = pages.contains(&number).then(|| frame(number * KIB_4 + shift));
            assert_eq!(guest.stage2.look_up(page(number)).map(|leaf| leaf.pa()), expected, "{pages:?}: page {number}");
        }
    }
}

/// Tables of another type have no contiguous bit, wherever a group would fit.
#[test]
fn a_range_makes_no_groups_in_tables_of_another_type() {
    const CONTIGUOUS: u64 = 1 << 52;
    let mut guest = super::guest(HINTS);
    map(&mut guest, page(200), frame(0), Level::L3, &RAM);
    for pages in [0..32, 512..1024] {
        let pages = page(pages.start)..page(pages.end);
        guest.stage2.map_range(pages.clone(), frame(pages.start - BASE), Level::L3, &RAM, &mut guest.pool).unwrap();
    }
    let leaves = guest.scan().leaves;
    assert_eq!(leaves.len(), 1 + 32 + 512);
    assert!(leaves.iter().all(|leaf| leaf.raw & CONTIGUOUS == 0));
}

#[test]
fn a_range_of_blocks_makes_groups() {
    for (blocks, grouped) in [(15, 0), (16, 16), (33, 32)] {
        let mut guest = guest(HINTS);
        let size = blocks * MIB_2;
        guest.stage2.map_range(range(BASE, size), frame(0), Level::L2, &RAM, &mut guest.pool).unwrap();
        let leaf = |block: u64| guest.stage2.look_up(BASE + block * MIB_2).unwrap();
        assert!((0..blocks).all(|block| leaf(block).level == Level::L2 && leaf(block).pa() == frame(block * MIB_2)));
        let hinted = (0..blocks).filter(|block| leaf(*block).descriptor.is_contiguous());
        assert_eq!(hinted.collect::<Vec<_>>(), (0..grouped).collect::<Vec<_>>());
    }
}

/// A group is made at a stale entry only if it lies in the range, and is of no level above the largest.
#[test]
fn a_range_makes_no_group_beyond_its_bounds() {
    let mut guest = guest(HINTS);
    map_range(&mut guest, 0..17, 0, &RAM);
    unmap(&mut guest, range(BASE, SIZE));
    map_range(&mut guest, 0..8, 0, &RAM);
    assert_eq!(hints(&guest, 16), []);
    let mapped = (0..17).filter(|number| guest.stage2.look_up(page(*number)).is_some());
    assert_eq!(mapped.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 16]);

    let mut guest = super::groups::guest(HINTS);
    map_at(&mut guest, 0, Level::L2, &RAM);
    map_at(&mut guest, 16 * MIB_2, Level::L2, &RAM);
    unmap(&mut guest, range(BASE, MIB_2));
    map_range(&mut guest, 0..16 * 512, 0, &RAM);
    assert!((0..16).all(|block| guest.stage2.look_up(BASE + block * MIB_2).unwrap().level == Level::L3));
}

/// `map_group` would join the pages.
#[test]
fn a_range_leaves_pages_that_are_mapped_as_they_are() {
    let mut guest = guest(HINTS);
    (0..16).for_each(|number| map_page(&mut guest, number * KIB_4, &RAM));
    map_range(&mut guest, 0..16, 0, &RAM);
    assert_eq!(hints(&guest, 16), []);
    assert_eq!(guest.events(), [Event::Dsb(Domain::IshSt)]);
}

/// The others keep their frames, and lose the hint.
#[test]
fn a_page_of_a_group_gets_another_frame_alone() {
    let mut guest = guest(HINTS);
    map_range(&mut guest, 0..16, 0, &RAM);
    let replaced = guest.stage2.map(page(5), frame(MIB_2), Level::L3, &RAM, &mut guest.pool);
    assert!(matches!(replaced, Ok(Mapped::Replaced(old)) if old.address() == frame(5 * KIB_4)), "{replaced:?}");
    assert_eq!(hints(&guest, 16), []);
    for number in 0..16 {
        let expected = frame(if number == 5 { MIB_2 } else { number * KIB_4 });
        assert_eq!(guest.stage2.look_up(page(number)).map(|leaf| leaf.pa()), Some(expected));
    }
}

/// A guest of the 16 KiB granule with two tables of pages at [`BASE`].
fn large<G: Granule>(granule: G) -> Guest<G> {
    let mut guest = Guest { check: counts_agree, ..Guest::of(granule, HINTS.with_granule_16k(true), IPA_BITS, 4) };
    let Guest { stage2, pool, .. } = &mut guest;
    stage2.map_range(range(BASE, 4096 * KIB_16), frame(0), Level::L3, &RAM, pool).unwrap();
    guest.events();
    guest.machine.visits();
    guest
}

/// The 16 KiB pages that `is_one` selects, of the two tables.
fn pages_of<G: Granule>(guest: &Guest<G>, is_one: impl Fn(twofold_stage2::Descriptor<G>) -> bool) -> Vec<u64> {
    (guest.check)(&guest.stage2);
    let leaf = |number: &u64| guest.stage2.look_up(BASE + number * KIB_16).unwrap();
    (0..4096).filter(|number| is_one(leaf(number).descriptor)).collect()
}

/// No visit has more entries than a table of the 4 KiB granule, for whose time a lock is held.
#[test]
fn a_large_table_takes_several_visits() {
    let guest = large(Kib16);
    let cases: [(u64, u64, &[usize]); 3] =
        [(65, 2048 + 10, &[512, 512, 512, 447, 10]), (100, 800, &[512, 188]), (3000, 4096, &[512, 512, 72])];
    for (start, end, visits) in cases {
        let pages = BASE + start * KIB_16..BASE + end * KIB_16;
        let mut young = Vec::new();
        let mut note = |marked: Marked| young.extend(marked.leaves(KIB_16).map(|ipa| (ipa - BASE) / KIB_16));
        guest.stage2.age(pages.clone(), &mut note).unwrap();
        assert_eq!(guest.machine.visits(), visits);
        assert_eq!(pages_of(&guest, |leaf| !leaf.is_accessed()), (start..end).collect::<Vec<_>>());
        assert_eq!(young, (start..end).collect::<Vec<_>>());
        (start..end).for_each(|number| assert_eq!(guest.stage2.make_young(BASE + number * KIB_16), Ok(true)));
    }
}

/// A group is visited once, and as a whole: no group reaches across the end of a visit.
#[test]
fn a_pass_visits_whole_groups() {
    let guest = large(Contiguous(Kib16));
    assert_eq!(pages_of(&guest, |leaf| leaf.is_contiguous()).len(), 4096);
    for (start, end, visits, visited) in
        [(65, 1600, &[512, 512, 512, 128][..], 0..1664), (2048 + 513, 2048 + 514, &[128], 2048 + 512..2048 + 640)]
    {
        let mut young = Vec::new();
        let mut note = |marked: Marked| young.extend(marked.leaves(KIB_16).map(|ipa| (ipa - BASE) / KIB_16));
        guest.stage2.age(BASE + start * KIB_16..BASE + end * KIB_16, &mut note).unwrap();
        assert_eq!(guest.machine.visits(), visits);
        assert_eq!(young, visited.clone().collect::<Vec<_>>());
        assert_eq!(pages_of(&guest, |leaf| !leaf.is_accessed()), visited.clone().collect::<Vec<_>>());
        let mut groups = visited.step_by(128);
        assert!(groups.all(|number| guest.stage2.make_young(BASE + number * KIB_16) == Ok(true)));
    }
}

/// The groups of the selected pages are visited and flushed as a whole, and no others: also those that begin before the
/// mask's first page, end after its last, or are in two tables.
#[test]
fn a_mask_selects_whole_groups() {
    // The page of the mask's first bit, the mask, and the groups, in visits.
    let cases: [(u64, u64, &[std::ops::Range<u64>]); 4] = [
        (8, 1 | 1 << 63, &[0..16, 64..80]),
        (0, 1 << 17 | 1 << 40, &[16..32, 32..48]),
        (500, 1 | 1 << 63, &[496..512, 560..576]),
        (510, 1 | 1 << 20 | 1 << 40, &[496..512, 528..544, 544..560]),
    ];
    for (first, mask, groups) in cases {
        let mut guest = guest(RANGES);
        map_range(&mut guest, 0..1024, 0, &RAM);
        guest.events();
        guest.machine.visits();
        let _ = guest.stage2.write_protect_mask(page(first), mask).unwrap().complete();
        assert_eq!(guest.machine.visits(), groups.iter().map(|group| group.clone().count()).collect::<Vec<_>>());
        let writable = |number: &u64| guest.stage2.look_up(page(*number)).unwrap().descriptor.access().write;
        let protected = (0..1024).filter(|number| !writable(number)).collect::<Vec<_>>();
        assert_eq!(protected, groups.iter().flat_map(Clone::clone).collect::<Vec<_>>());
        let mut flushed = Vec::new();
        for event in guest.events() {
            if let Event::Tlbi(Tlbi::Ripas2Le1Is, Reach::Range(start, end, Some(3))) = event {
                flushed.extend((start - BASE) / KIB_4..(end - BASE) / KIB_4);
            }
        }
        assert_eq!(flushed, (groups[0].start..groups[groups.len() - 1].end).collect::<Vec<_>>());
    }
}
