// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Late lockless walks: a walk reaches a table that was unlinked meanwhile, and whose page is another table or a
//! guest's page by then. It changes nothing there, and uses nothing that it reads there.
//!
//! There is no grace period: only the sequence count ensures this (module `lockless_walk`, W3 and W4).

use super::guest::{BLOCK, FWB, Guest, LARGE, PAGE, RAM, READ, TRACKED, home, range};
use super::machine::{BUSY, Machine, Pages, WILD, Watch};
use super::{Operation, meet};
use crate::walk::{Entry, Visitor};
use crate::{Access, Attributes, Descriptor, Error, Features, Ipa, Level, Memory};

/// A guest with `levels` levels, and the first page mapped in a level 3 table. Freed pages are filled with `junk`.
fn page(levels: u32, junk: Option<Descriptor>) -> (Guest, [Pages; 2]) {
    page_in(Guest::new(levels, 13), junk)
}

fn page_in(guest: Guest, junk: Option<Descriptor>) -> (Guest, [Pages; 2]) {
    let (own, mut takers) = (guest.spoiled_pages(7..13, junk), guest.spoiled_pages(0..7, junk));
    guest.map_as(0, Level::L3, &TRACKED, &mut takers);
    (guest, [own, takers])
}

fn small() -> (Guest, [Pages; 2]) {
    page(2, None)
}

fn small_wild() -> (Guest, [Pages; 2]) {
    page(2, Some(WILD))
}

fn small_busy() -> (Guest, [Pages; 2]) {
    page(2, Some(BUSY))
}

fn large() -> (Guest, [Pages; 2]) {
    page(3, None)
}

fn large_wild() -> (Guest, [Pages; 2]) {
    page(3, Some(WILD))
}

fn huge_wild() -> (Guest, [Pages; 2]) {
    page(4, Some(WILD))
}

/// Maps a page of the upper half, with tables from `pages`.
fn reuse(guest: &Guest, pages: &mut Pages) {
    let end = guest.stage2.geometry().end().raw();
    guest.map(end / 2, Level::L3, pages);
}

const UNMAP_LARGE: Operation = |guest, pages| {
    guest.unmap_quietly(0, LARGE, pages);
    reuse(guest, pages);
};

/// Operations that unlink the first page's table, and reuse its page at once.
const UNMAPS: [(fn() -> (Guest, [Pages; 2]), Operation); 8] = [
    (small, |guest, pages| {
        guest.unmap_quietly(0, BLOCK, pages);
        reuse(guest, pages);
    }),
    (small, |guest, pages| {
        guest.unmap_quietly(0, PAGE, pages);
        reuse(guest, pages);
    }),
    (small, |guest, pages| {
        guest.unmap_quietly(0, BLOCK, pages);
        reuse(guest, pages);
        guest.map(BLOCK + PAGE, Level::L3, pages);
    }),
    (small_wild, |guest, pages| {
        guest.unmap_quietly(0, BLOCK, pages);
        reuse(guest, pages);
    }),
    (large, UNMAP_LARGE),
    (large, |guest, pages| {
        guest.unmap_quietly(0, BLOCK, pages);
        reuse(guest, pages);
    }),
    (large_wild, |guest, pages| {
        reuse(guest, pages);
        guest.unmap_quietly(0, LARGE, pages);
    }),
    (huge_wild, |guest, pages| {
        reuse(guest, pages);
        guest.unmap_quietly(0, 2 * LARGE, pages);
    }),
];

/// Operations that put a block in the table's place, so the first page is always mapped.
const COALESCES: [(fn() -> (Guest, [Pages; 2]), Operation); 5] = [
    (small, |guest, pages| {
        guest.coalesce(0, Level::L2, &RAM, pages);
        reuse(guest, pages);
    }),
    (small_wild, |guest, pages| {
        guest.coalesce(0, Level::L2, &RAM, pages);
        reuse(guest, pages);
    }),
    (small_busy, |guest, pages| {
        reuse(guest, pages);
        guest.coalesce(0, Level::L2, &RAM, pages);
    }),
    (large, |guest, pages| {
        guest.coalesce(0, Level::L1, &RAM, pages);
        reuse(guest, pages);
    }),
    (large_wild, |guest, pages| {
        reuse(guest, pages);
        guest.coalesce(0, Level::L1, &RAM, pages);
    }),
];

/// A late `operation` on the first pages changes no other page.
fn comes_late(operation: Operation) {
    for (guest, taker) in UNMAPS.into_iter().chain(COALESCES) {
        meet(1, guest, [operation, taker], |guest, pools| {
            let mapped = guest.check(pools);
            let other = mapped[&(guest.stage2.geometry().end().raw() / 2)];
            assert_eq!(
                (other.access(), other.is_accessed()),
                (Access::READ_WRITE, true),
                "a late operation changed another page"
            );
        });
    }
}

/// A late `operation` finds a page that is always mapped.
fn finds(operation: Operation) {
    for (guest, taker) in COALESCES {
        meet(1, guest, [operation, taker], |guest, pools| {
            guest.check(pools);
        });
    }
}

#[test]
fn a_look() {
    comes_late(|guest, _| {
        guest.look_up(0);
    });
    finds(|guest, _| assert!(guest.look_up(0).is_some()));
}

#[test]
fn going_through_leaves() {
    fn leaves(guest: &Guest, size: u64) -> usize {
        let leaves = guest.stage2.leaves(range(0, size)).expect("a range");
        leaves.map(|leaf| assert_eq!(leaf.descriptor.address(), home(leaf.ipa), "{leaf:?}")).count()
    }
    comes_late(|guest, _| assert!(leaves(guest, BLOCK) <= 2));
    finds(|guest, _| assert_eq!(leaves(guest, PAGE), 1, "the first page is mapped all the time"));
}

/// Counts the leaves around the first page, which is alone there, or in a block. While the block is made, there is none.
#[test]
fn counting() {
    comes_late(|guest, _| {
        let leaves = guest.stage2.count_leaves(range(0, BLOCK)).expect("a range");
        assert!(leaves.iter().sum::<u64>() <= 1, "{leaves:?}");
    });
}

#[test]
fn a_fault() {
    comes_late(|guest, pages| {
        guest.map(PAGE, Level::L3, pages);
    });
}

#[test]
fn a_fault_that_takes_a_table() {
    comes_late(|guest, pages| guest.map(BLOCK + PAGE, Level::L3, pages));
}

#[test]
fn a_fault_for_other_memory() {
    comes_late(|guest, pages| {
        let device = Attributes { memory: Memory::Device, ..READ };
        guest.map_as(0, Level::L3, &device, pages);
    });
}

#[test]
fn a_permission_fault() {
    comes_late(|guest, _| {
        guest.relax(0, Access::ALL);
    });
    finds(|guest, _| assert!(guest.relax(0, Access::ALL)));
}

#[test]
fn an_access_flag_fault() {
    comes_late(|guest, _| {
        guest.make_young(0);
    });
}

#[test]
fn unmapping_a_page() {
    comes_late(|guest, pages| guest.unmap(0, PAGE, pages));
}

#[test]
fn unmapping_a_table() {
    comes_late(|guest, pages| guest.unmap(0, BLOCK, pages));
}

/// The parent of the page's table is unlinked too, and filled with what looks like tables.
#[test]
fn unmapping_a_page_under_a_table_that_goes() {
    let unmap: Operation = |guest, pages| guest.unmap(0, PAGE, pages);
    let unmap_large: Operation = |guest, pages| guest.unmap_quietly(0, LARGE, pages);
    meet(1, large_wild, [unmap, unmap_large], |guest, pools| {
        guest.check(pools);
    });
}

/// The table beside is unlinked between this operation's W4 and U3, and its page is filled with what looks like tables.
#[test]
fn unmapping_goes_on_beside_a_table_that_goes() {
    let guest = || {
        let guest = Guest::new(3, 4);
        let (own, mut takers) = (guest.spoiled_pages(4..4, Some(WILD)), guest.spoiled_pages(0..4, Some(WILD)));
        guest.map(0, Level::L2, &mut takers);
        guest.map(BLOCK, Level::L3, &mut takers);
        guest.map(LARGE, Level::L3, &mut takers);
        (guest, [own, takers])
    };
    let unmap: Operation = |guest, pages| guest.unmap_quietly(BLOCK, BLOCK + PAGE, pages);
    let take: Operation = |guest, pages| guest.unmap_quietly(LARGE, LARGE, pages);
    meet(1, guest, [unmap, take], |guest, pools| {
        guest.check(pools);
    });
}

/// Another CPU counts (U3) between this operation's W4 and its own U3. Its own count does not show which table the
/// other unlinked further up, so it walks again.
#[test]
fn unmapping_goes_on_after_a_table() {
    let guest = || {
        let guest = Guest::new(4, 8);
        // One page to spare: the first operation may take the second one's tables.
        let (own, mut takers) = (guest.pages(8..8), guest.pages(0..8));
        guest.map(0, Level::L2, &mut takers);
        guest.map(BLOCK, Level::L3, &mut takers);
        guest.map(LARGE, Level::L3, &mut takers);
        guest.map(2 * LARGE + BLOCK, Level::L2, &mut takers);
        (guest, [own, takers])
    };
    let unmap: Operation = |guest, pages| guest.unmap_quietly(BLOCK, BLOCK + PAGE, pages);
    let take_and_reuse: Operation = |guest, pages| {
        guest.unmap_quietly(LARGE, LARGE, pages);
        guest.map(2 * LARGE, Level::L3, pages);
    };
    meet(1, guest, [unmap, take_and_reuse], |guest, pools| {
        assert!(guest.check(pools).contains_key(&(2 * LARGE)), "a late operation unmapped another page");
    });
}

#[test]
fn write_protecting() {
    comes_late(|guest, _| guest.write_protect(0, BLOCK));
}

#[test]
fn protecting_a_page() {
    comes_late(|guest, pages| {
        let _ = guest.stage2.protect(range(0, PAGE), Access::NONE, pages).expect("protected").complete();
    });
}

#[test]
fn collecting_accesses() {
    comes_late(|guest, _| guest.stage2.age(range(0, BLOCK), &mut |_| ()).expect("aged"));
}

#[test]
fn collecting_writes() {
    comes_late(|guest, _| {
        let _ = guest.stage2.clean(range(0, BLOCK), &mut |_| ()).expect("cleaned").complete();
    });
}

#[test]
fn ending_records() {
    comes_late(|guest, _| {
        let _ = guest.stage2.clear_dbm_and_write(range(0, BLOCK), &mut |_| ()).expect("cleared").complete();
    });
}

#[test]
fn splitting() {
    comes_late(|guest, pages| guest.split(0, BLOCK, pages));
}

#[test]
fn coalescing() {
    comes_late(|guest, pages| guest.coalesce(0, Level::L2, &RAM, pages));
}

/// A CPU prepares code before the coalesce. The mark that it did is in the metadata of the table that it found.
#[test]
fn coalescing_what_is_executed() {
    let guest = || {
        let features = Features { instruction_cache_coherent: false, ..FWB };
        page_in(Guest::on(Machine::new(14, Watch::Nothing), features, 3), Some(WILD))
    };
    let coalesce: Operation = |guest, pages| guest.coalesce(0, Level::L2, &Attributes::ram(Access::ALL), pages);
    meet(1, guest, [coalesce, UNMAP_LARGE], |guest, pools| {
        guest.check(pools);
    });
}

#[test]
fn mapping_a_range() {
    comes_late(|guest, pages| guest.map_range(PAGE, PAGE, Level::L3, pages));
}

/// Sees each mapped address once.
struct Walk(u64);

impl Visitor for Walk {
    type Error = Error;

    fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
        if entry.descriptor.is_leaf(entry.level) {
            assert_eq!(entry.descriptor.address(), home(entry.ipa));
            assert!(entry.range().end.raw() > self.0, "{entry:?} again");
            self.0 = entry.range().end.raw();
        }
        Ok(())
    }
}

#[test]
fn a_walk() {
    comes_late(|guest, _| guest.stage2.walk(range(0, BLOCK), &mut Walk(0)).expect("walked"));
    finds(|guest, _| {
        let mut walk = Walk(0);
        guest.stage2.walk(range(0, PAGE), &mut walk).expect("walked");
        assert!(walk.0 > 0, "the first page is mapped all the time");
    });
}

/// The walk waits for a busy entry, whose table is unlinked when the walk reads it again.
#[test]
fn a_walk_that_waits() {
    let replace_and_coalesce: Operation = |guest, pages| {
        guest.map_as(0, Level::L3, &Attributes { memory: Memory::Device, ..READ }, pages);
        guest.coalesce(0, Level::L2, &RAM, pages);
        reuse(guest, pages);
    };
    let walk: Operation = |guest, _| guest.stage2.walk(range(0, BLOCK), &mut Walk(0)).expect("walked");
    meet(1, small, [replace_and_coalesce, walk], |guest, pools| drop(guest.check(pools)));
}

#[test]
fn asking_for_what_a_fault_takes() {
    comes_late(|guest, _| assert!(guest.stage2.tables_needed(Ipa::new(PAGE), Level::L3) <= 3));
}

/// A table that was unlinked is not in the way of a block.
#[test]
fn a_fault_does_not_find_another_table() {
    let second_block = || {
        let guest = Guest::new(3, 9);
        let (own, mut takers) = (guest.pages(4..9), guest.pages(0..4));
        guest.map(0, Level::L2, &mut takers);
        guest.map(BLOCK, Level::L2, &mut takers);
        guest.unmap(0, BLOCK, &mut takers);
        (guest, [own, takers])
    };
    meet(1, second_block, [|guest, pages| guest.map(0, Level::L2, pages), UNMAP_LARGE], |guest, pools| {
        guest.check(pools);
    });
}

/// A CPU that has locked a table, and then finds it unlinked, unlocks it. It keeps what another CPU has written into
/// the metadata.
#[test]
fn a_lock_that_is_late() {
    let [_, (guest, coalesce), ..] = COALESCES;
    meet(3, guest, [|guest, _| assert!(guest.relax(0, Access::ALL)), coalesce], |guest, pools| {
        guest.check(pools);
    });
}
