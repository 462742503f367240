// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another CPU acts at one certain moment: while an operation asks for a table page, or at one of its instructions.
//!
//! The model checker tries all moments, on tables of two entries. Here the moment is known, and the tables have their
//! full size.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::{groups, *};
use crate::platform::mmu::{Leaf, Scan};
use crate::platform::window::{ByAddress as _, window};
use crate::platform::{KIB_4, MIB_2, Machine, Pool, frame, frames, table};
use twofold_stage2::{Broken, Coalesced, Error, Grant, Grouped, Relaxed, Split, TablePage, TableSource, Unwatched};

const ALL: Attributes = Attributes::ram(Access::ALL);

/// The pool, and what another CPU does before the first page is taken from it.
struct Asked<'a, F> {
    pool: &'a mut Pool,
    act: Option<F>,
}

impl<F: FnOnce(&mut Pool)> TableSource for Asked<'_, F> {
    fn take(&mut self) -> Option<TablePage> {
        if let Some(act) = self.act.take() {
            act(self.pool);
        }
        self.pool.take()
    }

    fn give(&mut self, page: TablePage) {
        self.pool.give(page);
    }
}

impl<F> Drop for Asked<'_, F> {
    fn drop(&mut self) {
        assert!(self.act.is_none() || std::thread::panicking(), "no page was asked for");
    }
}

fn asked<F: FnOnce(&mut Pool)>(pool: &mut Pool, act: F) -> Asked<'_, F> {
    Asked { pool, act: Some(act) }
}

/// The other CPU's own pages. It may take the pages that it frees.
#[derive(Default)]
struct Own(Vec<TablePage>);

impl TableSource for Own {
    fn take(&mut self) -> Option<TablePage> {
        self.0.pop()
    }

    fn give(&mut self, page: TablePage) {
        self.0.push(page);
    }
}

/// Another CPU acts once, at the first event that `is_then`. The result says whether it has acted.
fn at_event(
    machine: &Machine,
    stage2: &Rc<Stage2<Host>>,
    is_then: impl Fn(&Event) -> bool + 'static,
    act: impl FnOnce(&Stage2<Host>) + 'static,
) -> Rc<Cell<bool>> {
    let (stage2, mut act, acted) = (stage2.clone(), Some(act), Rc::new(Cell::new(false)));
    let noted = acted.clone();
    machine.set_hook(move |event, _| {
        if is_then(event)
            && let Some(act) = act.take()
        {
            act(&stage2);
            noted.set(true);
        }
    });
    acted
}

fn unmap(stage2: &Stage2<Host>, range: IpaRange, tables: &mut impl TableSource) {
    stage2.unmap(range, tables, Unwatched).unwrap().complete().free(tables);
}

/// There is no page left, but the table is there.
#[test]
fn a_fault_uses_the_table_that_another_one_has_linked() {
    let mut guest = guest(HINTS);
    let stage2 = &guest.stage2;
    let tables = asked(&mut guest.pool, |pool| {
        assert_eq!(stage2.map(BASE + KIB_4, frame(KIB_4), Level::L3, &RAM, pool), Ok(Mapped::New));
        pool.limit = 0;
    });
    assert_eq!(stage2.map(BASE, frame(0), Level::L3, &RAM, &mut { tables }), Ok(Mapped::New));
    assert_eq!((guest.scan().leaves.len(), guest.pool.out.len()), (2, 2));
}

/// The parent that the full table was made for is unlinked. The full table must not be linked further up, where its
/// pages would be read as tables.
#[test]
fn a_full_table_is_linked_at_its_own_level_alone() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 1);
    let stage2 = &guest.stage2;
    let tables = asked(&mut guest.pool, |pool| unmap(stage2, range(BASE, GIB), pool));
    let mapped = range(BASE + MIB_2, MIB_2);
    stage2.map_range(mapped.clone(), frame(MIB_2), Level::L3, &RAM, &mut { tables }).unwrap();
    let leaves = guest.scan().leaves;
    assert_eq!((leaves.len(), guest.pool.out.len()), (512, 2));
    assert!(leaves.iter().all(|leaf| leaf.level == 3 && leaf.pa() == frame(leaf.ipa - BASE)));
}

/// A table goes elsewhere, so the walk is made again. The full table is linked as it is, not given back and filled again.
#[test]
fn a_full_table_is_linked_though_another_one_goes() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 1);
    map_pages(&mut guest, BASE + GIB, frame(GIB), 1);
    let stage2 = &guest.stage2;
    let tables = asked(&mut guest.pool, |_| unmap(stage2, range(BASE + GIB, GIB), &mut Own::default()));
    stage2.map_range(range(BASE + MIB_2, MIB_2), frame(MIB_2), Level::L3, &RAM, &mut { tables }).unwrap();
    let pages = guest.events().into_iter().filter(|event| matches!(event, Event::Take(_) | Event::Give(_)));
    assert_eq!(pages.collect::<Vec<_>>(), [Event::Take(table(4))]);
    assert_eq!(guest.scan().leaves.len(), 1 + 512);
}

/// While the lines of a run are cleaned, its table is unlinked, and the parent is replaced by another table. The run
/// must not be filled in there.
#[test]
fn a_run_is_filled_into_a_table_of_pages_alone() {
    let Guest { machine, stage2, mut pool, .. } = {
        let mut guest = guest(HINTS);
        map_pages(&mut guest, BASE + KIB_4, frame(0), 1);
        guest
    };
    let (stage2, mmu) = (Rc::new(stage2), machine.mmu());
    let other = BASE + 3 * MIB_2;
    let acted = at_event(
        &machine,
        &stage2,
        |event| matches!(event, Event::Clean(..)),
        move |stage2| {
            let mut own = Own::default();
            unmap(stage2, range(BASE, GIB), &mut own);
            assert_eq!(stage2.map(other, frame(GIB), Level::L3, &RAM, &mut own), Ok(Mapped::New));
        },
    );
    let attributes = Attributes { memory: twofold_stage2::Memory::NonCacheable, ..RAM };
    stage2.map_range(range(BASE, KIB_4), frame(KIB_4), Level::L3, &attributes, &mut pool).unwrap();
    assert!(acted.get());
    let leaves = mmu.scan(&|pa| machine.read(pa)).leaves;
    let seen: Vec<_> = leaves.iter().map(|leaf| (leaf.ipa, leaf.level, leaf.pa())).collect();
    assert_eq!(seen, [(BASE, 3, frame(KIB_4)), (other, 3, frame(GIB))]);
}

/// Cleaning a block takes time. Other faults in its table do not wait for it.
#[test]
fn no_lock_is_held_while_the_lines_of_a_block_are_maintained() {
    let young = Attributes { accessed: false, ..RAM };
    let is_maintained = |event: &Event| matches!(event, Event::Clean(..) | Event::InvalidateCode(..));
    // If a lock is held, this call waits, which panics here.
    let neighbour = |stage2: &Stage2<Host>| assert_eq!(stage2.make_young(BASE + MIB_2), Ok(true));
    let with_neighbour = |features| {
        let mut guest = guest(features);
        map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L2, &young);
        guest
    };
    let is_young = |stage2: &Stage2<Host>| stage2.make_young(BASE + MIB_2) == Ok(false);

    let Guest { machine, stage2, mut pool, .. } = with_neighbour(PLAIN);
    let stage2 = Rc::new(stage2);
    let acted = at_event(&machine, &stage2, is_maintained, neighbour);
    assert_eq!(stage2.map(BASE, frame(0), Level::L2, &RAM, &mut pool), Ok(Mapped::New));
    assert!(acted.get() && is_young(&stage2));

    let mut guest = with_neighbour(HINTS.with_instruction_cache_pipt(true));
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let Guest { machine, stage2, pool: _pool, .. } = guest;
    let stage2 = Rc::new(stage2);
    let acted = at_event(&machine, &stage2, is_maintained, neighbour);
    assert_eq!(stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
    assert!(acted.get() && is_young(&stage2));
}

/// Memory is withdrawn while this CPU cleans for a block, so the block is refused. The next coalesce need not wait for the
/// claim that this one had.
#[test]
fn a_coalesce_that_is_refused_gives_up_its_claim() {
    let Guest { machine, stage2, mut pool, .. } = guest(PLAIN);
    let stage2 = Rc::new(stage2);
    let lent = stage2.lend(frames(0, MIB_2), BASE, range(BASE, MIB_2));
    let other = stage2.lend(frames(GIB, KIB_4), BASE + GIB, range(BASE + GIB, KIB_4));
    let grant = stage2.grant(&lent, BASE, MIB_2).unwrap();
    assert_eq!(grant.map(Level::L3, &RAM, &mut pool), Ok(Mapped::New));
    let acted = at_event(
        &machine,
        &stage2,
        |event| matches!(event, Event::Clean(..)),
        |stage2| drop(stage2.withdraw(other, &mut Own::default(), Unwatched).unwrap()),
    );
    let mut coalesce =
        |grant: Grant<'_, Host>| grant.coalesce(Level::L2, &RAM, &mut pool, &mut |leaf| panic!("{leaf:?}"));
    assert_eq!(coalesce(grant), Err(Error::Withdrawn { ipa: BASE }));
    assert!(acted.get());
    let grant = stage2.grant(&lent, BASE, MIB_2).unwrap();
    assert_eq!(coalesce(grant), Ok(Coalesced::Done { tables: 1 }));
}

/// Runs `act` on a range while another CPU coalesces a block across one of its ends, after the ends were split. Returns
/// the final tables.
fn split_again(range: &IpaRange, block: Ipa, act: impl FnOnce(&Stage2<Host>, &mut Pool)) -> Scan {
    let mut guest = guest(HINTS);
    (0..3).for_each(|at| map(&mut guest, BASE + at * MIB_2, frame(at * MIB_2), Level::L2, &RAM));
    let Guest { machine, stage2, mut pool, .. } = guest;
    let (stage2, mmu) = (Rc::new(stage2), machine.mmu());
    let blocks = (0..3).map(|at| BASE + at * MIB_2);
    let cut: Vec<_> = blocks
        .filter(|at| range.start < *at + MIB_2 && range.end > *at && (range.start > *at || range.end < *at + MIB_2))
        .collect();
    assert!(cut.contains(&block));
    let (memory, other, acted) = (machine.clone(), stage2.clone(), Rc::new(Cell::new(false)));
    let noted = acted.clone();
    // The first atomic access after the last split is the lock of the first table of the pass.
    machine.set_atomic_hook(move || {
        let is_page = |at: &Ipa| mmu.translate(&|pa| memory.read(pa), *at).is_ok_and(|leaf| leaf.level == 3);
        if !noted.get() && cut.iter().all(is_page) {
            let (mut own, pa) = (Own::default(), frame(block - BASE));
            let outcome = other.coalesce(block, pa, Level::L2, &RAM, &mut own, &mut |leaf| panic!("{leaf:?}"));
            assert_eq!(outcome, Ok(Coalesced::Done { tables: 1 }));
            noted.set(true);
        }
    });
    act(&stage2, &mut pool);
    assert!(acted.get());
    mmu.scan(&|pa| machine.read(pa))
}

/// The block is split again: the whole range is changed, and nothing else.
#[test]
fn a_block_that_is_put_together_meanwhile_is_split_again() {
    for (part, block) in [(range(BASE + KIB_4, 2 * MIB_2), BASE), (range(BASE, MIB_2 + KIB_4), BASE + MIB_2)] {
        let inside = |leaf: &Leaf| part.contains(&leaf.ipa) && leaf.end() <= part.end;
        let outside = |leaf: &Leaf| leaf.end() <= part.start || leaf.ipa >= part.end;
        let is_all = |scan: &Scan, size: u64| scan.leaves.iter().map(Leaf::span).sum::<u64>() == size;
        let size = part.end - part.start;

        let scan = split_again(&part, block, |stage2, pool| {
            let _ = stage2.protect(part.clone(), Access::READ, pool).unwrap().complete();
        });
        assert!(is_all(&scan, 3 * MIB_2));
        for leaf in &scan.leaves {
            assert!(if leaf.access().write { outside(leaf) } else { inside(leaf) }, "{leaf:x?}, {part:x?}");
        }

        let scan = split_again(&part, block, |stage2, pool| unmap(stage2, part.clone(), pool));
        assert!(is_all(&scan, 3 * MIB_2 - size) && scan.leaves.iter().all(outside), "{part:x?}");

        let mut reported = 0;
        let scan = split_again(&part, block, |stage2, pool| {
            let each = |leaf: Broken| reported += platform::mmu::span(leaf.level().raw());
            stage2.unmap(part.clone(), pool, each).unwrap().complete().free(pool);
        });
        assert!(is_all(&scan, 3 * MIB_2 - size) && scan.leaves.iter().all(outside), "{part:x?}");
        assert_eq!(reported, size);
    }
}

fn split(stage2: &Stage2<Host>, range: IpaRange, tables: &mut impl TableSource) -> Split {
    stage2.split(range, GIB, tables, |_, _| ControlFlow::Continue(())).unwrap()
}

/// There is no page left, but no block either.
#[test]
fn a_block_that_another_one_splits_meanwhile_is_not_missed() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let (stage2, block) = (&guest.stage2, range(BASE, MIB_2));
    let tables = asked(&mut guest.pool, |pool| {
        assert_eq!(split(stage2, block.clone(), pool), Split { blocks: 1, done: block.end, stopped: None });
        pool.limit = 0;
    });
    let outcome = split(stage2, block.clone(), &mut { tables });
    assert_eq!(outcome, Split { blocks: 0, done: block.end, stopped: None }, "the other one did it");
    assert_eq!((guest.scan().leaves.len(), guest.pool.out.len()), (512, 2));
}

/// The block's entry looks like that of the large block that replaced it, which begins at the same address. The large
/// block must not be broken for a table of pages.
#[test]
fn a_block_that_is_part_of_a_larger_one_by_now_is_not_split_as_it_was() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &ALL);
    let stage2 = &guest.stage2;
    let tables = asked(&mut guest.pool, |pool| {
        let outcome = stage2.coalesce(BASE, frame(0), Level::L1, &ALL, pool, &mut |leaf| panic!("{leaf:?}"));
        assert_eq!(outcome, Ok(Coalesced::Done { tables: 1 }));
        pool.limit = 2;
    });
    // The page taken goes back, and the large block is split around the small one.
    let outcome = split(stage2, range(BASE, MIB_2), &mut { tables });
    assert_eq!(outcome, Split { blocks: 2, done: BASE + MIB_2, stopped: None });
    let leaves = guest.scan().leaves;
    assert_eq!(leaves.len(), 512 + 511);
    assert!(leaves.iter().all(|leaf| leaf.pa() == frame(leaf.ipa - BASE)));
    assert!(leaves.iter().all(|leaf| (leaf.level == 3) == (leaf.ipa < BASE + MIB_2)));
}

/// A CPU without table pages: all tables are there.
struct NoPages;

impl TableSource<groups::Grouping> for NoPages {
    fn take(&mut self) -> Option<TablePage<groups::Grouping>> {
        None
    }

    fn give(&mut self, _: TablePage<groups::Grouping>) {
        unreachable!("no table is unlinked");
    }
}

/// What sets DBM on all 16 pages.
type SetsDbm = fn(&Stage2<Host, groups::Grouping>);

/// Another CPU joins the pages again when their hint has gone. DBM is set on no leaf of a group.
#[test]
fn dbm_is_set_beside_a_cpu_that_joins_the_pages_again() {
    let operations: [SetsDbm; 3] = [
        |stage2| stage2.set_dbm(range(BASE, groups::SIZE)).unwrap(),
        |stage2| drop(stage2.set_dbm_clean(range(BASE, groups::SIZE)).unwrap().complete()),
        |stage2| drop(stage2.set_dbm_clean_mask(BASE, 0xffff).unwrap().complete()),
    ];
    for operation in operations {
        let Guest { machine, stage2, pool, .. } = groups::grouped(HINTS.with_hardware_dirty_state(true), &RAM);
        let stage2 = Rc::new(stage2);
        let barriers = Rc::new(Cell::new(0));
        let (there, counted, mut has_joined) = (stage2.clone(), barriers.clone(), false);
        machine.set_hook(move |event, _| counted.set(counted.get() + u32::from(*event == Event::Dsb(Domain::IshSt))));
        machine.set_atomic_hook(move || {
            // The first barrier is of the flush. At the second the leaves are valid again, and no group is found any more: the
            // next lock is that of the pass.
            if barriers.get() == 2 && !has_joined {
                has_joined = true;
                let grant = there.open(window(frame(0), groups::SIZE), BASE);
                let mapped = grant.map_group(Level::L3, &RAM, &mut NoPages, &mut |_| ());
                assert_eq!(mapped, Ok(Grouped::Joined));
            }
        });
        operation(&stage2);
        let breaks = machine.events().into_iter().filter(|event| *event == sees_nothing(BASE)).count();
        assert_eq!(breaks, 3, "the hint goes, the other CPU joins the pages, and the hint goes again");
        for page in 0..16 {
            let leaf = stage2.look_up(BASE + page * KIB_4).unwrap().descriptor;
            assert!(leaf.is_hardware_tracked() && !leaf.is_contiguous(), "{leaf:?}");
        }
        drop(pool);
    }
}

/// The first pages of the group are passed over: they are not mapped yet. At the lock for the others, it is a group.
#[test]
fn a_group_that_another_cpu_makes_behind_the_walk_goes_as_a_whole() {
    let mut guest = groups::guest(HINTS);
    (8..16).for_each(|page| groups::map_page(&mut guest, page * KIB_4, &RAM));
    // It keeps the table.
    groups::map_page(&mut guest, 4 * groups::SIZE, &RAM);
    groups::watch(&guest);
    let Guest { machine, stage2, mut pool, .. } = guest;
    let stage2 = Rc::new(stage2);
    let (there, mut has_joined) = (stage2.clone(), false);
    machine.set_atomic_hook(move || {
        if !std::mem::replace(&mut has_joined, true) {
            let grant = there.open(window(frame(0), groups::SIZE), BASE);
            assert_eq!(grant.map_group(Level::L3, &RAM, &mut NoPages, &mut |_| ()), Ok(Grouped::Joined));
        }
    });
    stage2.unmap(range(BASE, 4 * groups::SIZE), &mut pool, Unwatched).unwrap().complete().free(&mut pool);
    let joined = [&[sees_nothing(BASE + groups::LAST)][..], &groups::flush(16), &groups::made(RAM.access)].concat();
    assert_eq!(machine.events(), [&joined[..], &groups::broken(), &groups::flush(16)].concat());
}
