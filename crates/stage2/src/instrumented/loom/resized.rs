// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block and a table replace each other without a break, on a CPU with FEAT_BBM level 2 that raises no conflict abort,
//! while another operation, or hardware, changes the same entries.

use super::guest::{BLOCK, FWB, Guest, LARGE, PAGE, RAM, READ, range};
use super::hardware::{self, is_not_lost_on};
use super::machine::{Machine, Pages, WILD, Watch};
use super::{Operation, meet};
use crate::sequence::SequenceCount;
use crate::{Access, Descriptor, Features, Level};

pub(super) const LIVE: Features = Features { bbm: 2, no_conflict_abort: true, ..FWB };

fn guest(levels: u32, leaves: &[(u64, Level)]) -> (Guest, [Pages; 2]) {
    let guest = Guest::on(Machine::new(10, Watch::Nothing), LIVE, levels);
    let (mut first, second) = (guest.pages(0..5), guest.pages(5..9));
    leaves.iter().for_each(|(at, level)| guest.map(*at, *level, &mut first));
    (guest, [first, second])
}

fn block() -> (Guest, [Pages; 2]) {
    guest(2, &[(0, Level::L2)])
}

fn pages() -> (Guest, [Pages; 2]) {
    guest(2, &[(0, Level::L3), (PAGE, Level::L3)])
}

const SPLIT: Operation = |guest, pages| guest.split(0, BLOCK, pages);
const COALESCE: Operation = |guest, pages| guest.coalesce(0, Level::L2, &RAM, pages);
const UNMAP_PAGE: Operation = |guest, pages| guest.unmap(0, PAGE, pages);
const UNMAP_BLOCK: Operation = |guest, pages| guest.unmap(0, BLOCK, pages);
const WRITE_PROTECT: Operation = |guest, _| guest.write_protect(0, BLOCK);
const RELAX: Operation = |guest, _| assert!(guest.relax(0, Access::ALL));
const IS_FOUND: Operation = |guest, _| assert!(guest.is_mapped(0), "it is mapped all the time");

#[test]
fn a_block_is_split_and() {
    let balanced = |operation: Operation| {
        meet(2, block, [SPLIT, operation], |guest, pools| drop(guest.check_balance(pools)));
    };
    balanced(IS_FOUND);
    balanced(SPLIT);
    balanced(UNMAP_PAGE);
    balanced(UNMAP_BLOCK);
    balanced(RELAX);
    meet(2, block, [SPLIT, WRITE_PROTECT], |guest, pools| {
        assert!(guest.check(pools).values().all(|entry| !entry.is_writable()));
    });
}

#[test]
fn a_table_is_coalesced_and() {
    let is_mapped = |guest: &Guest, pools: &[Pages; 2]| assert_eq!(guest.check(pools).len(), 2);
    meet(2, pages, [COALESCE, IS_FOUND], is_mapped);
    meet(2, pages, [COALESCE, RELAX], is_mapped);
    meet(2, pages, [COALESCE, COALESCE], is_mapped);
    meet(2, pages, [COALESCE, SPLIT], is_mapped);
    meet(2, block, [COALESCE, SPLIT], is_mapped);
    meet(2, pages, [COALESCE, UNMAP_BLOCK], |guest, pools| drop(guest.check(pools)));
    meet(2, pages, [COALESCE, UNMAP_PAGE], |guest, pools| {
        assert!(guest.check(pools).contains_key(&PAGE), "it was mapped, and no CPU unmapped it");
    });
    let to_read: Operation = |guest, pages| guest.coalesce(0, Level::L2, &READ, pages);
    meet(2, pages, [to_read, WRITE_PROTECT], |guest, pools| {
        assert!(guest.check(pools).values().all(|entry| !entry.is_writable()));
    });
}

/// Each unlink is counted, so a CPU that read the count between the two finds it changed.
#[test]
fn two_tables_are_coalesced() {
    // Under two tables: no lock that both CPUs take lies between their counts.
    let two = || guest(3, &[0, PAGE, LARGE, LARGE + PAGE].map(|at| (at, Level::L3)));
    let next: Operation = |guest, pages| guest.coalesce(LARGE, Level::L2, &RAM, pages);
    meet(2, two, [COALESCE, next], |guest, pools| {
        guest.check(pools);
        let both = SequenceCount::default().now().next().next();
        assert!(guest.stage2.sequence.is_still(both), "two tables are counted as one");
    });
}

/// A block replaces the table of the first page, and the table's page is reused at once, for a page of the upper half. A
/// late operation changes nothing there, and finds the first page, which is always mapped.
#[test]
fn an_operation_comes_late() {
    fn full(junk: Option<Descriptor>) -> (Guest, [Pages; 2]) {
        let guest = Guest::on(Machine::new(14, Watch::Nothing), LIVE, 2);
        let (own, mut takers) = (guest.spoiled_pages(7..13, junk), guest.spoiled_pages(0..7, junk));
        guest.map(0, Level::L3, &mut takers);
        guest.map(PAGE, Level::L3, &mut takers);
        (guest, [own, takers])
    }
    let reuse: Operation = |guest, pages| {
        COALESCE(guest, pages);
        guest.map(BLOCK, Level::L3, pages);
    };
    for operation in [IS_FOUND, RELAX, WRITE_PROTECT, UNMAP_PAGE, SPLIT, COALESCE] {
        for guest in [|| full(None), || full(Some(WILD))] {
            meet(1, guest, [operation, reuse], |guest, pools| {
                let other = guest.check(pools)[&BLOCK];
                assert_eq!(other.access(), Access::READ_WRITE, "a late operation changed another page");
            });
        }
    }
}

#[test]
fn hardware_records_a_write() {
    is_not_lost_on(LIVE, 2, &[(0, Level::L2)], |guest, pages| {
        guest.split(0, BLOCK, pages);
        false
    });
    is_not_lost_on(LIVE, 2, &[(0, Level::L3), (PAGE, Level::L3)], |guest, pages| {
        hardware::coalesce(guest, Level::L2, pages)
    });
    is_not_lost_on(LIVE, 2, &[(0, Level::L2)], |guest, pages| {
        guest.split(0, BLOCK, pages);
        let mut reported = false;
        let mut each = |marked: crate::Marked| reported |= marked.mask & 1 != 0;
        let _ = guest.stage2.clean(range(0, BLOCK), &mut each).expect("cleaned").complete();
        reported
    });
}
