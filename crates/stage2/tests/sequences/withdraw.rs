// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent memory leaves while grants of it are still out. It comes back when nothing of it is mapped and the flush is
//! complete, and the old grants map nothing.

use twofold_stage2::{Broken, Error, Grant, Lent, Run, Unwatched};

use super::*;
use crate::platform::window::window;
use crate::platform::{KIB_4, MIB_2, VMID, frame};

/// A guest with enough pages for a block of its own memory.
fn guest() -> Guest {
    let guest = Guest { check: counts_agree, ..Guest::with_pages(HINTS, IPA_BITS, 1100) };
    guest.events();
    guest
}

/// A guest, and pages of its pool that are lent to it from [`BASE`] on.
fn lent(pages: u64) -> (Guest, Lent, Pa) {
    let mut guest = guest();
    let run = guest.pool.run(pages);
    let pa = run.pa();
    let lent = guest.stage2.lend(run, BASE, range(BASE, pages * KIB_4));
    (guest, lent, pa)
}

fn withdraw(guest: &mut Guest, lent: Lent) -> Run {
    guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap().reclaim(&mut guest.pool).0
}

fn map(grant: Grant<'_, Host>, pool: &mut platform::Pool) -> Result<Mapped, Error> {
    grant.map(Level::L3, &RAM, pool)
}

fn mapped(guest: &Guest) -> Vec<(Ipa, Pa)> {
    guest.scan().leaves.iter().map(|leaf| (leaf.ipa, leaf.pa())).collect()
}

#[test]
fn a_page_is_broken_then_flushed_then_returned() {
    for neighbour in [true, false] {
        let (mut guest, lent, pa) = lent(1);
        if neighbour {
            super::map(&mut guest, BASE + KIB_4, frame(0), Level::L3, &RAM);
        }
        assert_eq!(map(guest.stage2.grant(&lent, BASE, KIB_4).unwrap(), &mut guest.pool), Ok(Mapped::New));
        guest.watch(BASE);
        let withdrawal = guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap();
        assert_eq!(guest.machine.events(), [sees_nothing(BASE)]);
        let (run, freed) = withdrawal.reclaim(&mut guest.pool);
        let events = guest.machine.events();
        assert_eq!((run.pa(), run.size()), (pa, KIB_4));
        if neighbour {
            assert_eq!((events, freed.tables()), (by_leaf(BASE, Some(3)), 0));
        } else {
            // The tables go with their last entry. They are given back after the flush.
            assert_eq!(freed.tables(), 2);
            let given = events.iter().position(|event| matches!(event, Event::Give(_))).unwrap();
            assert_eq!(events[given - 1], Event::Isb);
            assert_eq!(events.len(), given + 2);
        }
    }
}

/// Each kind of mapping, by a grant that was made before: where a table is, and where none is.
#[test]
fn an_old_grant_maps_nothing() {
    for has_table in [true, false] {
        let (mut guest, lent, _) = lent(2);
        let run = guest.pool.run(1024);
        let skipped = run.pa().raw().next_multiple_of(MIB_2) - run.pa().raw();
        let (_, block) = run.split_at(skipped).unwrap();
        let other = guest.stage2.lend(block, BASE + GIB, range(BASE + GIB, MIB_2));
        if has_table {
            super::map(&mut guest, BASE + 2 * KIB_4, frame(0), Level::L3, &RAM);
        }
        let before = mapped(&guest);
        let grant = guest.stage2.grant(&lent, BASE, 2 * KIB_4).unwrap();
        let large = guest.stage2.grant(&other, BASE + GIB, MIB_2).unwrap();
        let withdrawal = guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap();
        let (run, _) = withdrawal.reclaim(&mut guest.pool);
        let taken = guest.pool.out.len();
        let pool = &mut guest.pool;
        let refused = Error::Withdrawn { ipa: BASE };
        let device = Attributes { access: Access::READ_WRITE, ..Attributes::device() };
        assert_eq!(grant.map(Level::L3, &RAM, pool), Err(refused));
        assert_eq!(grant.map(Level::L3, &device, pool), Err(refused));
        assert_eq!(grant.map_range(Level::L3, &RAM, pool), Err(refused));
        let refused = Error::Withdrawn { ipa: BASE + GIB };
        assert_eq!(large.map_range(Level::L2, &RAM, pool), Err(refused));
        assert_eq!(large.map(Level::L2, &RAM, pool), Err(refused));
        assert_eq!(large.coalesce(Level::L2, &RAM, pool, &mut |_| ()), Err(refused));
        assert_eq!(guest.pool.out.len(), taken, "a page was taken for nothing");
        assert_eq!(mapped(&guest), before);

        // The grants are made again.
        let lent = guest.stage2.lend(run, BASE, range(BASE, 2 * KIB_4));
        let grant = guest.stage2.grant(&lent, BASE, KIB_4).unwrap();
        assert_eq!(map(grant, &mut guest.pool), Ok(Mapped::New));
        let large = guest.stage2.grant(&other, BASE + GIB, MIB_2).unwrap();
        large.map_range(Level::L2, &RAM, &mut guest.pool).unwrap();
    }
}

#[test]
fn a_window_is_never_withdrawn() {
    let (mut guest, lent, _) = lent(1);
    let grant = guest.stage2.open(window(frame(0), MIB_2), BASE + GIB);
    let run = guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap();
    let _ = run.reclaim(&mut guest.pool);
    let pool = &mut guest.pool;
    assert_eq!(grant.map(Level::L3, &RAM, pool), Ok(Mapped::New));
    assert!(grant.coalesce(Level::L2, &RAM, pool, &mut |_| ()).is_ok());
    assert_eq!(grant.map_range(Level::L2, &RAM, pool), Ok(()));
}

/// A table that was unlinked since the sample is no withdrawal.
#[test]
fn an_unlinked_table_leaves_grants_as_they_are() {
    let (mut guest, lent, pa) = lent(1);
    super::map(&mut guest, BASE + KIB_4, frame(0), Level::L3, &RAM);
    let grant = guest.stage2.grant(&lent, BASE, KIB_4).unwrap();
    guest.stage2.unmap(range(BASE, GIB), &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    assert_eq!(map(grant, &mut guest.pool), Ok(Mapped::New));
    assert_eq!(mapped(&guest), [(BASE, pa)]);
}

#[test]
fn what_was_never_mapped_comes_back() {
    let (mut guest, lent, pa) = lent(3);
    assert_eq!(withdraw(&mut guest, lent).pa(), pa);
    assert_eq!(guest.events(), [], "there was nothing to flush");
    // No page can be mapped.
    let run = guest.pool.run(1);
    let lent = guest.stage2.lend(run, BASE, Ipa::new(0)..BASE);
    assert!(lent.range().is_empty());
    assert_eq!(withdraw(&mut guest, lent).size(), KIB_4);
}

/// A run without addresses is no removal that others wait for: a page that was flushed is mapped again without a flush.
#[test]
fn what_cannot_be_mapped_comes_back_with_a_report() {
    let mut guest = guest();
    (0..2).for_each(|page| super::map(&mut guest, BASE + page * KIB_4, frame(0), Level::L3, &RAM));
    let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, |_: Broken| ()).unwrap();
    pending.complete().free(&mut guest.pool);
    let run = guest.pool.run(1);
    let lent = guest.stage2.lend(run, BASE, Ipa::new(0)..BASE);
    let withdrawal = guest.stage2.withdraw(lent, &mut guest.pool, |_: Broken| ()).unwrap();
    assert_eq!(withdrawal.reclaim(&mut guest.pool).0.size(), KIB_4);
    guest.machine.events();
    assert_eq!(guest.stage2.map(BASE, frame(0), Level::L3, &RAM, &mut guest.pool), Ok(Mapped::New));
    assert_eq!(guest.machine.events(), [Event::Dsb(Domain::IshSt)]);
}

#[test]
fn what_is_half_mapped_comes_back() {
    let (mut guest, lent, _) = lent(4);
    for page in [1, 3] {
        let grant = guest.stage2.grant(&lent, BASE + page * KIB_4, KIB_4).unwrap();
        assert_eq!(map(grant, &mut guest.pool), Ok(Mapped::New));
    }
    super::map(&mut guest, BASE + 4 * KIB_4, frame(0), Level::L3, &RAM);
    withdraw(&mut guest, lent);
    assert_eq!(mapped(&guest), [(BASE + 4 * KIB_4, frame(0))]);
}

/// A whole table goes, with all that it maps.
#[test]
fn what_a_whole_table_maps_comes_back() {
    let mut guest = guest();
    let run = guest.pool.run(513);
    let lent = guest.stage2.lend(run, BASE, range(BASE, 513 * KIB_4));
    let grant = guest.stage2.grant(&lent, BASE, 513 * KIB_4).unwrap();
    grant.map_range(Level::L3, &RAM, &mut guest.pool).unwrap();
    assert_eq!(withdraw(&mut guest, lent).size(), 513 * KIB_4);
    assert_eq!((mapped(&guest), guest.pool.out.len()), (vec![], 0));
}

/// A block of other memory reaches beyond the lent addresses: it is split first. Without a page for that, the memory
/// stays lent.
#[test]
fn what_is_under_a_block_comes_back() {
    let (mut guest, lent, pa) = lent(1);
    super::map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    guest.pool.limit = 0;
    let (error, lent) = guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap_err();
    assert_eq!(error, Error::NoTablePage { ipa: BASE, level: Level::L3 });
    assert_eq!(mapped(&guest), [(BASE, frame(0))]);
    guest.pool.limit = usize::MAX;
    assert_eq!(withdraw(&mut guest, lent).pa(), pa);
    let left = mapped(&guest);
    assert_eq!((left.len(), left[0]), (511, (BASE + KIB_4, frame(KIB_4))));
}

#[test]
fn what_is_lent_to_other_tables_stays_lent() {
    let (mut guest, lent, _) = lent(2);
    let mut other = Guest::new(HINTS, 40);
    let geometry = *other.stage2.geometry();
    let root = other.pool.run(2).into_root(&geometry).unwrap();
    let (platform, vmid) = (other.stage2.platform().clone(), twofold_stage2::Vmid::new(VMID));
    let second = Stage2::new(platform, HINTS, geometry, vmid, root).unwrap();
    assert_eq!(map(guest.stage2.grant(&lent, BASE, KIB_4).unwrap(), &mut guest.pool), Ok(Mapped::New));
    let (error, lent) = second.withdraw(lent, &mut other.pool, Unwatched).unwrap_err();
    assert_eq!(error, Error::NotGranted { ipa: BASE, size: 2 * KIB_4 });
    withdraw(&mut guest, lent);
    assert_eq!(mapped(&guest), []);
    let _ = second.destroy(&mut other.pool, Unwatched);
}

/// Another CPU has unmapped the page, and has not flushed yet.
#[test]
fn what_another_cpu_unmapped_is_flushed_too() {
    let (mut guest, lent, _) = lent(1);
    super::map(&mut guest, BASE + KIB_4, frame(0), Level::L3, &RAM);
    assert_eq!(map(guest.stage2.grant(&lent, BASE, KIB_4).unwrap(), &mut guest.pool), Ok(Mapped::New));
    guest.events();
    let other = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap();
    let withdrawal = guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap();
    let _ = withdrawal.reclaim(&mut guest.pool);
    assert_eq!(guest.machine.events(), by_leaf(BASE, Some(3)));
    let _ = other.complete();
}

#[test]
fn a_withdrawal_that_is_dropped_flushes() {
    let (mut guest, lent, _) = lent(1);
    super::map(&mut guest, BASE + KIB_4, frame(0), Level::L3, &RAM);
    assert_eq!(map(guest.stage2.grant(&lent, BASE, KIB_4).unwrap(), &mut guest.pool), Ok(Mapped::New));
    guest.events();
    drop(guest.stage2.withdraw(lent, &mut guest.pool, Unwatched).unwrap());
    assert_eq!(guest.events(), by_leaf(BASE, Some(3)));
}

#[test]
fn each_leaf_is_reported() {
    let (mut guest, lent, pa) = lent(2);
    let grant = guest.stage2.grant(&lent, BASE, 2 * KIB_4).unwrap();
    grant.map_range(Level::L3, &RAM, &mut guest.pool).unwrap();
    let removed = std::cell::RefCell::new(Vec::new());
    let watcher = |leaf: Broken| removed.borrow_mut().push(leaf);
    let (_, freed) = guest.stage2.withdraw(lent, &mut guest.pool, watcher).unwrap().reclaim(&mut guest.pool);
    let leaves: Vec<_> = removed.borrow().iter().filter_map(|leaf| leaf.open(&freed)).collect();
    let leaves: Vec<_> = leaves.iter().map(|leaf| (leaf.ipa, leaf.descriptor.address())).collect();
    assert_eq!(leaves, [(BASE, pa), (BASE + KIB_4, pa + KIB_4)]);
}

/// The mapper has seen the sample, and another CPU withdraws the memory before the mapper takes the lock of the table.
#[test]
fn a_withdrawal_before_the_lock_is_seen_under_it() {
    for device in [false, true] {
        let (mut guest, lent, _) = lent(1);
        super::map(&mut guest, BASE + KIB_4, frame(0), Level::L3, &RAM);
        let Guest { machine, stage2, mut pool, .. } = guest;
        let stage2 = std::rc::Rc::new(stage2);
        let grant = stage2.grant(&lent, BASE, KIB_4).unwrap();
        let other = stage2.clone();
        let mut own = Vec::new();
        machine.before_atomic(0, move || {
            let mut own = Own(std::mem::take(&mut own));
            let _ = other.withdraw(lent, &mut own, Unwatched).unwrap().reclaim(&mut own);
        });
        let attributes = if device { Attributes::device() } else { RAM };
        assert_eq!(grant.map(Level::L3, &attributes, &mut pool), Err(Error::Withdrawn { ipa: BASE }));
        assert!(stage2.look_up(BASE).is_none());
    }
}

/// The other CPU's pages. It needs none.
struct Own(Vec<twofold_stage2::TablePage>);

impl twofold_stage2::TableSource for Own {
    fn take(&mut self) -> Option<twofold_stage2::TablePage> {
        self.0.pop()
    }

    fn give(&mut self, page: twofold_stage2::TablePage) {
        self.0.push(page);
    }
}
