// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two operations that meet, in tables that stay or are unlinked: each has its whole effect, exactly once.

use std::ops::ControlFlow;

use super::guest::{BLOCK, Guest, LARGE, PAGE, RAM, READ, TRACKED, home, range};
use super::machine::Pages;
use super::{Operation, meet};
use crate::sequence::SequenceCount;
use crate::walk::{Entry, Visitor};
use crate::{Access, Attributes, Error, Ipa, Level, Memory, Split};

const DEVICE: Attributes = Attributes { memory: Memory::Device, ..READ };
const NON_CACHEABLE: Attributes = Attributes { memory: Memory::NonCacheable, ..READ };

/// A guest with `levels` levels of tables, and these leaves.
fn guest(levels: u32, leaves: &[(u64, Level)]) -> (Guest, [Pages; 2]) {
    let guest = Guest::new(levels, 9);
    let (mut first, second) = (guest.pages(0..5), guest.pages(5..9));
    leaves.iter().for_each(|(at, level)| guest.map(*at, *level, &mut first));
    (guest, [first, second])
}

fn empty() -> (Guest, [Pages; 2]) {
    guest(2, &[])
}

fn page() -> (Guest, [Pages; 2]) {
    guest(2, &[(0, Level::L3)])
}

fn pages() -> (Guest, [Pages; 2]) {
    guest(2, &[(0, Level::L3), (PAGE, Level::L3)])
}

fn block() -> (Guest, [Pages; 2]) {
    guest(2, &[(0, Level::L2)])
}

/// A block in a table that is not the root.
fn small_block() -> (Guest, [Pages; 2]) {
    guest(3, &[(0, Level::L2)])
}

fn far_page() -> (Guest, [Pages; 2]) {
    guest(3, &[(0, Level::L3), (BLOCK, Level::L3)])
}

fn large() -> (Guest, [Pages; 2]) {
    guest(3, &[(0, Level::L1)])
}

/// In the end, each page that was mapped and not unmapped is there.
fn balanced(guest: fn() -> (Guest, [Pages; 2]), operations: [Operation; 2]) {
    meet(2, guest, operations, |guest, pools| drop(guest.check_balance(pools)));
}

/// In the end, each mapped page passes `check`.
fn all_are(
    guest: fn() -> (Guest, [Pages; 2]),
    operations: [Operation; 2],
    check: impl Fn(u64, Access) -> bool + Send + Sync + 'static,
) {
    meet(2, guest, operations, move |guest, pools| {
        for (at, entry) in guest.check(pools) {
            assert!(check(at, entry.access()), "{at:#x} is {entry:?}");
        }
    });
}

const UNMAP_PAGE: Operation = |guest, pages| guest.unmap(0, PAGE, pages);
const UNMAP_BLOCK: Operation = |guest, pages| guest.unmap(0, BLOCK, pages);
const WRITE_PROTECT: Operation = |guest, _| guest.write_protect(0, BLOCK);
const RELAX: Operation = |guest, _| {
    assert!(guest.relax(0, Access::ALL));
};
const SPLIT: Operation = |guest, pages| guest.split(0, BLOCK, pages);
const COALESCE: Operation = |guest, pages| guest.coalesce(0, Level::L2, &RAM, pages);
const FAULT: Operation = |guest, pages| guest.map(PAGE, Level::L3, pages);
const REPLACE: Operation = |guest, pages| guest.map_as(0, Level::L3, &DEVICE, pages);
const IS_FOUND: Operation = |guest, _| assert!(guest.is_mapped(0), "it is mapped all the time");

#[test]
fn two_faults_for_one_page() {
    let map: Operation = |guest, pages| guest.map(0, Level::L3, pages);
    balanced(empty, [map, map]);
    balanced(page, [FAULT, FAULT]);
}

#[test]
fn two_faults_in_one_table() {
    balanced(empty, [|guest, pages| guest.map(0, Level::L3, pages), FAULT]);
    balanced(|| guest(3, &[]), [|guest, pages| guest.map(0, Level::L3, pages), FAULT]);
}

#[test]
fn two_faults_where_something_was_unmapped() {
    let unmapped = || {
        let (guest, [mut first, second]) = pages();
        guest.unmap(PAGE, PAGE, &mut first);
        (guest, [first, second])
    };
    balanced(unmapped, [FAULT, FAULT]);
    let table_unmapped = || {
        let (guest, [mut first, second]) = page();
        guest.unmap(0, BLOCK, &mut first);
        (guest, [first, second])
    };
    balanced(table_unmapped, [FAULT, |guest, pages| guest.map(0, Level::L3, pages)]);
}

#[test]
fn two_replace_a_page() {
    let other: Operation = |guest, pages| guest.map_as(0, Level::L3, &NON_CACHEABLE, pages);
    balanced(page, [REPLACE, other]);
    balanced(page, [REPLACE, REPLACE]);
}

#[test]
fn a_page_is_replaced_and() {
    meet(2, page, [REPLACE, IS_FOUND], |guest, pools| drop(guest.check(pools)));
    meet(2, page, [REPLACE, RELAX], |guest, pools| drop(guest.check(pools)));
    balanced(page, [REPLACE, FAULT]);
    balanced(
        page,
        [REPLACE, |guest, pages| assert_eq!(guest.unmap_reported(0, PAGE, pages), 1, "it is there all the time")],
    );
    balanced(page, [REPLACE, UNMAP_BLOCK]);
    all_are(page, [REPLACE, WRITE_PROTECT], |_, access| !access.write);
    meet(2, pages, [REPLACE, COALESCE], |guest, pools| drop(guest.check(pools)));
}

#[test]
fn a_page_is_unmapped_and() {
    meet(2, page, [UNMAP_PAGE, FAULT], |guest, pools| {
        assert!(guest.check_balance(pools).contains_key(&PAGE), "no CPU unmapped the other page");
    });
    balanced(pages, [UNMAP_PAGE, |guest, pages| guest.unmap(PAGE, PAGE, pages)]);
    balanced(pages, [UNMAP_PAGE, |guest, pages| guest.map(0, Level::L3, pages)]);
    balanced(pages, [UNMAP_PAGE, UNMAP_PAGE]);
    balanced(pages, [UNMAP_PAGE, UNMAP_BLOCK]);
}

#[test]
fn a_table_is_unmapped_and() {
    balanced(page, [UNMAP_BLOCK, FAULT]);
    balanced(pages, [UNMAP_BLOCK, UNMAP_BLOCK]);
    balanced(pages, [UNMAP_BLOCK, |guest, pages| guest.map(0, Level::L3, pages)]);
}

/// Each unlink is counted, so a CPU that read the count between the two finds it changed.
#[test]
fn two_tables_are_taken_out() {
    let tables = || guest(2, &[(0, Level::L3), (BLOCK, Level::L3)]);
    let are_counted = |guest: &Guest| {
        let both = SequenceCount::default().now().next().next();
        assert!(guest.stage2.sequence.is_still(both), "two tables are counted as one");
    };
    meet(2, tables, [UNMAP_BLOCK, |guest, pages| guest.unmap(BLOCK, BLOCK, pages)], move |guest, pools| {
        guest.check_balance(pools);
        are_counted(guest);
    });
    let coalesce_next: Operation = |guest, pages| guest.coalesce(BLOCK, Level::L2, &RAM, pages);
    meet(2, tables, [COALESCE, coalesce_next], move |guest, pools| {
        guest.check(pools);
        are_counted(guest);
    });
}

#[test]
fn a_table_with_tables_is_unmapped_and() {
    let unmap: Operation = |guest, pages| guest.unmap(0, LARGE, pages);
    balanced(far_page, [unmap, FAULT]);
    balanced(far_page, [unmap, REPLACE]);
    balanced(far_page, [unmap, UNMAP_PAGE]);
    balanced(far_page, [unmap, UNMAP_BLOCK]);
}

#[test]
fn a_block_is_split_and() {
    meet(2, block, [SPLIT, IS_FOUND], |guest, pools| drop(guest.check(pools)));
    all_are(block, [SPLIT, RELAX], |at, access| access == if at == 0 { Access::ALL } else { access });
    all_are(block, [SPLIT, WRITE_PROTECT], |_, access| !access.write);
    // The table above is not skipped, although it has no leaf for a moment.
    all_are(small_block, [SPLIT, WRITE_PROTECT], |_, access| !access.write);
    balanced(block, [SPLIT, SPLIT]);
    balanced(block, [SPLIT, UNMAP_PAGE]);
    balanced(block, [SPLIT, UNMAP_BLOCK]);
    balanced(block, [SPLIT, FAULT]);
    balanced(block, [SPLIT, REPLACE]);
}

/// The busy entry is one block: the split waits for it, and counts it once.
#[test]
fn a_block_is_split_while_it_changes() {
    let split: Operation = |guest, pages| {
        let split = guest.stage2.split(range(0, BLOCK), BLOCK, pages, |_, _| ControlFlow::Continue(()));
        assert_eq!(split, Ok(Split { blocks: 1, done: Ipa::new(BLOCK), stopped: None }));
    };
    meet(2, small_block, [split, RELAX], |guest, pools| {
        guest.check(pools);
        assert_eq!(guest.look_up(0).map(|leaf| leaf.level), Some(Level::L3));
    });
}

#[test]
fn a_large_block_is_split_and() {
    let split: Operation = |guest, pages| guest.split(0, LARGE, pages);
    let done = |guest: &Guest, pools: &[Pages; 2]| drop(guest.check_balance(pools));
    meet(2, large, [split, IS_FOUND], done);
    meet(1, large, [split, |guest, _| guest.write_protect(0, LARGE)], |guest, pools| {
        assert!(guest.check_balance(pools).values().all(|entry| !entry.is_writable()));
    });
    meet(1, large, [split, UNMAP_PAGE], done);
    meet(1, large, [split, split], done);
}

#[test]
fn a_table_is_coalesced_and() {
    let is_mapped = |guest: &Guest, pools: &[Pages; 2]| assert_eq!(guest.check(pools).len(), 2);
    meet(2, pages, [COALESCE, IS_FOUND], is_mapped);
    meet(2, page, [COALESCE, FAULT], is_mapped);
    meet(2, pages, [COALESCE, RELAX], is_mapped);
    meet(2, pages, [COALESCE, COALESCE], is_mapped);
    meet(2, pages, [COALESCE, SPLIT], is_mapped);
    meet(2, block, [COALESCE, SPLIT], is_mapped);
    let to_read: Operation = |guest, pages| guest.coalesce(0, Level::L2, &READ, pages);
    all_are(pages, [to_read, WRITE_PROTECT], |_, access| !access.write);
    meet(2, pages, [COALESCE, UNMAP_BLOCK], |guest, pools| drop(guest.check(pools)));
    meet(2, pages, [COALESCE, UNMAP_PAGE], |guest, pools| {
        assert!(guest.check(pools).contains_key(&PAGE), "it was mapped, and no CPU unmapped it");
    });
}

#[test]
fn tables_with_tables_are_coalesced_and() {
    let coalesce: Operation = |guest, pages| guest.coalesce(0, Level::L1, &RAM, pages);
    let is_mapped = |guest: &Guest, pools: &[Pages; 2]| assert_eq!(guest.check(pools).len(), 4);
    meet(2, far_page, [coalesce, IS_FOUND], is_mapped);
    meet(2, far_page, [coalesce, FAULT], is_mapped);
    meet(2, far_page, [coalesce, RELAX], is_mapped);
    meet(2, far_page, [coalesce, REPLACE], |guest, pools| drop(guest.check(pools)));
}

/// The ends are split first: the rest of the block keeps its access even if another CPU coalesces it again.
#[test]
fn a_part_of_a_block_is_taken_and() {
    let protect: Operation = |guest, pages| {
        let _ = guest.stage2.protect(range(0, PAGE), Access::READ, pages).expect("protected").complete();
    };
    all_are(block, [protect, COALESCE], |at, access| at == 0 || access.write);
    meet(2, block, [UNMAP_PAGE, COALESCE], |guest, pools| assert!(guest.check(pools).contains_key(&PAGE)));
    all_are(block, [protect, SPLIT], |at, access| access.write == (at != 0));
}

#[test]
fn a_range_is_mapped_and() {
    let in_pages: Operation = |guest, pages| guest.map_range(0, BLOCK, Level::L3, pages);
    let in_a_block: Operation = |guest, pages| guest.map_range(0, BLOCK, Level::L2, pages);
    let is_mapped = |guest: &Guest, pools: &[Pages; 2]| assert_eq!(guest.check(pools).len(), 2);
    meet(2, empty, [in_pages, in_pages], is_mapped);
    meet(2, page, [in_pages, FAULT], is_mapped);
    meet(2, empty, [in_pages, FAULT], is_mapped);
    meet(2, empty, [in_pages, in_a_block], is_mapped);
    meet(2, empty, [in_a_block, FAULT], is_mapped);
    meet(2, page, [in_pages, UNMAP_BLOCK], |guest, pools| drop(guest.check(pools)));
}

#[test]
fn accesses_are_collected_and() {
    let age: Operation = |guest, _| guest.stage2.age(range(0, BLOCK), &mut |_| ()).expect("aged");
    meet(2, page, [age, RELAX], |guest, pools| assert_eq!(guest.check(pools)[&0].access(), Access::ALL));
    meet(2, page, [age, |guest, _| guest.write_protect(0, BLOCK)], |guest, pools| {
        let entry = guest.check(pools)[&0];
        assert!(!entry.is_accessed() && !entry.is_writable(), "{entry:?}");
    });
    let tracked = || {
        let (guest, [mut first, second]) = empty();
        guest.map_as(0, Level::L3, &TRACKED, &mut first);
        (guest, [first, second])
    };
    meet(2, tracked, [age, WRITE_PROTECT], |guest, pools| assert!(!guest.check(pools)[&0].is_accessed()));
    balanced(page, [age, FAULT]);
    balanced(page, [age, UNMAP_PAGE]);
}

#[test]
fn access_is_given_and() {
    let more: Operation = |guest, _| assert!(guest.relax(0, Access::READ_WRITE));
    let read = || {
        let (guest, [mut first, second]) = empty();
        guest.map_as(0, Level::L3, &READ, &mut first);
        (guest, [first, second])
    };
    all_are(read, [more, RELAX], |_, access| access == Access::ALL);
    meet(2, read, [more, WRITE_PROTECT], |guest, pools| drop(guest.check(pools)));
    let young: Operation = |guest, _| assert!(guest.make_young(0));
    all_are(read, [more, young], |_, access| access == Access::READ_WRITE);
    let may: Operation = |guest, _| {
        guest.relax(0, Access::ALL);
    };
    balanced(read, [may, UNMAP_PAGE]);
}

/// A leaf that was seen to be writable before a pass began, and that no other CPU changes, is not writable after the
/// pass.
#[test]
fn a_pass_follows_what_was_seen() {
    let read = || {
        let (guest, [mut first, second]) = empty();
        guest.map_as(0, Level::L3, &READ, &mut first);
        (guest, [first, second])
    };
    let relax: Operation = |guest, _| assert!(guest.relax(0, Access::READ_WRITE));
    let pass: Operation = |guest, _| {
        if guest.look_up(0).is_some_and(|leaf| leaf.descriptor.is_writable()) {
            guest.write_protect(0, BLOCK);
            assert!(guest.look_up(0).is_some_and(|leaf| !leaf.descriptor.is_writable()), "the pass skipped it");
        }
    };
    meet(2, read, [relax, pass], |guest, pools| drop(guest.check(pools)));
    meet(2, empty, [|guest, pages| guest.map(0, Level::L3, pages), pass], |guest, pools| {
        guest.check(pools);
    });
    meet(2, block, [SPLIT, pass], |guest, pools| drop(guest.check(pools)));
}

/// Sees each page of the first block once. A leaf that began before may be seen again as its parts.
struct Walk {
    next: [u64; 4],
    seen: [bool; 2],
}

impl Visitor for Walk {
    const TABLE_BEFORE: bool = true;
    type Error = Error;

    fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
        if entry.descriptor.is_leaf(entry.level) {
            assert_eq!(entry.descriptor.address(), home(entry.ipa));
            let next = &mut self.next[usize::from(entry.level.raw())];
            assert!(entry.ipa.raw() >= *next, "{entry:?} again");
            *next = entry.range().end.raw();
            (0..2).for_each(|page| self.seen[page] |= entry.range().contains(&Ipa::new(page as u64 * PAGE)));
        }
        Ok(())
    }
}

fn walk(guest: &Guest, _: &mut Pages) {
    let mut walk = Walk { next: [0; 4], seen: [false; 2] };
    guest.stage2.walk(range(0, BLOCK), &mut walk).expect("walked");
    assert!(walk.seen[1], "the second page is mapped all the time");
}

#[test]
fn a_walk_and() {
    let done = |guest: &Guest, pools: &[Pages; 2]| drop(guest.check(pools));
    meet(2, pages, [walk, UNMAP_PAGE], done);
    meet(2, pages, [walk, REPLACE], done);
    meet(2, block, [walk, SPLIT], done);
}

/// A block replaces a table between the visit of the table and its entries.
#[test]
fn a_walk_sees_what_takes_the_place_of_a_table() {
    meet(2, pages, [walk, COALESCE], |guest, pools| drop(guest.check(pools)));
}
