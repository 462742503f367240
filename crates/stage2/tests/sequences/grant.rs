// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A grant is for lent memory, at the addresses that it was lent for. The memory comes back when the flush is complete.

use twofold_stage2::{Error, Lent};

use super::*;
use crate::platform::{KIB_4, VMID};

/// Features that need no cleaning: the memory lent here is in the arena.
const FORCED: Features = PLAIN.with_forced_write_back(true);

const BASE: Ipa = Ipa::new(GIB);

/// A guest, and pages of its pool that are lent to it from [`BASE`] on. All but the last one may be mapped.
fn lent(pages: u64) -> (Guest, Lent, Pa) {
    let mut guest = Guest::new(FORCED, 40);
    let run = guest.pool.run(pages);
    let pa = run.pa();
    let lent = guest.stage2.lend(run, BASE, Ipa::new(0)..BASE + (pages - 1) * KIB_4);
    (guest, lent, pa)
}

#[test]
fn a_grant_is_inside_what_is_lent() {
    let (guest, lent, pa) = lent(4);
    assert_eq!((lent.range(), lent.run().size()), (BASE..BASE + 3 * KIB_4, 4 * KIB_4));
    let grant = |ipa, size| guest.stage2.grant(&lent, ipa, size).map(|grant| (grant.ipa(), grant.pa(), grant.size()));
    assert_eq!(grant(BASE, KIB_4), Some((BASE, pa, KIB_4)));
    assert_eq!(grant(BASE + KIB_4, 2 * KIB_4), Some((BASE + KIB_4, pa + KIB_4, 2 * KIB_4)));
    assert_eq!(grant(Ipa::new(GIB - KIB_4), KIB_4), None, "before it");
    assert_eq!(grant(BASE + 3 * KIB_4, KIB_4), None, "in the run, but after the lent addresses");
    assert_eq!(grant(BASE + 2 * KIB_4, 2 * KIB_4), None, "half of it");
    assert_eq!(grant(BASE, u64::MAX), None, "more than there is");
}

#[test]
fn what_is_lent_is_whole_pages_of_the_run_in_the_range() {
    let mut guest = Guest::new(FORCED, 40);
    for (start, end, granted) in [
        (BASE + 1, BASE + (2 * KIB_4 - 1), None),
        (BASE + 1, BASE + 2 * KIB_4, Some(BASE + KIB_4..BASE + 2 * KIB_4)),
        (Ipa::new(0), BASE, None),
        (BASE + 2 * KIB_4, BASE + 4 * KIB_4, None),
        (Ipa::new(u64::MAX), Ipa::new(0), None),
        (Ipa::new(0), Ipa::new(u64::MAX), Some(BASE..BASE + 2 * KIB_4)),
    ] {
        let run = guest.pool.run(2);
        let lent = guest.stage2.lend(run, BASE, start..end);
        assert_eq!(Some(lent.range()).filter(|range| !range.is_empty()), granted, "{start} to {end}");
    }
}

/// The run begins two pages before the addresses that it is lent for, and ends one page after them.
#[test]
fn each_half_of_what_is_lent_keeps_its_addresses() {
    let mut guest = Guest::with_pages(FORCED, 40, 64);
    for pages in 0..=6 {
        let run = guest.pool.run(6);
        let pa = run.pa();
        let lent = guest.stage2.lend(run, BASE, BASE + 2 * KIB_4..BASE + 5 * KIB_4);
        let (first, rest) = lent.split_at(pages * KIB_4).unwrap();
        assert_eq!((first.run().pa(), first.run().size()), (pa, pages * KIB_4));
        assert_eq!((rest.run().pa(), rest.run().size()), (pa + pages * KIB_4, (6 - pages) * KIB_4));
        for page in 0..6 {
            let (ipa, pa) = (BASE + page * KIB_4, pa + page * KIB_4);
            let granted = |lent| guest.stage2.grant(lent, ipa, KIB_4).map(|grant| grant.pa());
            let expected = |is_here: bool| ((2..5).contains(&page) && is_here).then_some(pa);
            assert_eq!(granted(&first), expected(page < pages), "page {page} of the first {pages}");
            assert_eq!(granted(&rest), expected(page >= pages), "page {page} after the first {pages}");
        }
    }
}

/// The middle page of three is cut out twice, and then leaves while the others stay mapped.
#[test]
fn one_page_of_what_is_lent_comes_back() {
    let (mut guest, lent, pa) = lent(4);
    let Guest { stage2, pool, .. } = &mut guest;
    stage2.grant(&lent, BASE, 3 * KIB_4).unwrap().map_range(Level::L3, &RAM, pool).unwrap();
    let (first, rest) = lent.split_at(KIB_4).unwrap();
    let (page, last) = rest.split_at(KIB_4).unwrap();
    assert_eq!(first.range(), BASE..BASE + KIB_4);
    assert_eq!(last.range(), BASE + 2 * KIB_4..BASE + 3 * KIB_4);
    let run = stage2.vacate(page.range(), pool).unwrap().reclaim(page).unwrap();
    assert_eq!((run.pa(), run.size()), (pa + KIB_4, KIB_4));
    let last = stage2.vacate(BASE..BASE + KIB_4, pool).unwrap().reclaim(last).unwrap_err();
    assert_eq!(last.run().size(), 2 * KIB_4);
    let mapped: Vec<_> = guest.scan().leaves.iter().map(|leaf| (leaf.ipa, leaf.pa())).collect();
    assert_eq!(mapped, [(BASE + 2 * KIB_4, pa + 2 * KIB_4)]);
}

#[test]
fn what_is_lent_is_cut_between_pages_only() {
    let (_guest, lent, pa) = lent(3);
    let lent = lent.split_at(0x800).unwrap_err();
    let lent = lent.split_at(4 * KIB_4).unwrap_err();
    let lent = lent.split_at(!0xfff).unwrap_err();
    assert_eq!((lent.range(), lent.run().pa(), lent.run().size()), (BASE..BASE + 2 * KIB_4, pa, 3 * KIB_4));
}

/// A grant may begin inside a page. No leaf can be made of it.
#[test]
fn a_grant_that_is_not_whole_pages_maps_nothing() {
    let (mut guest, lent, pa) = lent(2);
    let Guest { stage2, pool, .. } = &mut guest;
    let odd = stage2.grant(&lent, BASE + 0x800, KIB_4).unwrap();
    assert_eq!(odd.pa(), pa + 0x800);
    assert!(odd.map(Level::L3, &RAM, pool).is_err());
    assert!(odd.map_range(Level::L3, &RAM, pool).is_err());
    assert_eq!(guest.scan().leaves.len(), 0);
}

#[test]
fn a_leaf_is_not_larger_than_its_grant() {
    let (mut guest, lent, _) = lent(2);
    let Guest { stage2, pool, .. } = &mut guest;
    let page = stage2.grant(&lent, BASE, KIB_4).unwrap();
    let refused = Error::NotGranted { ipa: BASE, size: 2 << 20 };
    assert_eq!(page.map(Level::L2, &RAM, pool), Err(refused));
    assert_eq!(page.coalesce(Level::L2, &RAM, pool, &mut |_| ()), Err(refused));
    assert_eq!(page.map(Level::L3, &RAM, pool), Ok(Mapped::New));
}

#[test]
fn what_is_lent_to_one_tree_is_granted_in_no_other() {
    let (guest, lent, _) = lent(2);
    let mut other = Guest::new(FORCED, 40);
    let geometry = *other.stage2.geometry();
    let root = other.pool.run(2).into_root(&geometry).unwrap();
    let platform = other.stage2.platform().clone();
    let second =
        twofold_stage2::Stage2::new(platform, FORCED, geometry, twofold_stage2::Vmid::new(VMID), root).unwrap();
    assert!(guest.stage2.grant(&lent, BASE, KIB_4).is_some());
    assert!(second.grant(&lent, BASE, KIB_4).is_none());
    let (root, _) = second.destroy(&mut other.pool, twofold_stage2::Unwatched);
    assert!(root.reclaim(lent).is_err());
}

#[test]
fn what_is_lent_comes_back_when_its_addresses_are_vacated() {
    let (mut guest, lent, pa) = lent(3);
    let Guest { stage2, pool, .. } = &mut guest;
    let grant = stage2.grant(&lent, BASE, 2 * KIB_4).unwrap();
    grant.map_range(Level::L3, &RAM, pool).unwrap();
    let half = stage2.vacate(BASE..BASE + KIB_4, pool).unwrap();
    let lent = half.reclaim(lent).unwrap_err();
    guest.machine.events();
    let Guest { stage2, pool, .. } = &mut guest;
    let all = stage2.vacate(lent.range(), pool).unwrap();
    let run = all.reclaim(lent).unwrap();
    assert_eq!((run.pa(), run.size()), (pa, 3 * KIB_4));
    let is_flush = |event: &Event| matches!(event, Event::Tlbi(..));
    assert!(guest.events().iter().any(is_flush), "it came back before a flush");
    assert_eq!(guest.scan().leaves.len(), 0);
}

/// The last page of the lent memory is vacated; the first is still mapped.
#[test]
fn what_is_vacated_from_the_middle_on_does_not_come_back() {
    let (mut guest, lent, _) = lent(3);
    let Guest { stage2, pool, .. } = &mut guest;
    stage2.grant(&lent, BASE, 2 * KIB_4).unwrap().map_range(Level::L3, &RAM, pool).unwrap();
    let rest = stage2.vacate(BASE + KIB_4..BASE + 3 * KIB_4, pool).unwrap();
    assert!(rest.reclaim(lent).is_err());
    assert_eq!(guest.scan().leaves.len(), 1);
}

/// The same addresses in another tree: the tree that the run was lent to still maps it.
#[test]
fn what_another_tree_vacates_does_not_come_back() {
    let (mut guest, lent, _) = lent(2);
    let mut other = Guest::new(FORCED, 40);
    let geometry = *other.stage2.geometry();
    let root = other.pool.run(2).into_root(&geometry).unwrap();
    let (platform, vmid) = (other.stage2.platform().clone(), twofold_stage2::Vmid::new(VMID));
    let mut second = twofold_stage2::Stage2::new(platform, FORCED, geometry, vmid, root).unwrap();
    let _ = guest.stage2.grant(&lent, BASE, KIB_4).unwrap().map(Level::L3, &RAM, &mut guest.pool).unwrap();
    let lent = second.vacate(lent.range(), &mut other.pool).unwrap().reclaim(lent).unwrap_err();
    assert!(guest.stage2.vacate(lent.range(), &mut guest.pool).unwrap().reclaim(lent).is_ok());
    let _ = second.destroy(&mut other.pool, twofold_stage2::Unwatched);
}

/// A run of which no page may be mapped comes back with any addresses.
#[test]
fn what_is_lent_for_no_page_comes_back() {
    let mut guest = Guest::new(FORCED, 40);
    let Guest { stage2, pool, .. } = &mut guest;
    let lent = stage2.lend(pool.run(1), BASE, Ipa::new(0)..BASE);
    assert!(lent.range().is_empty());
    let elsewhere = stage2.vacate(BASE + KIB_4..BASE + 2 * KIB_4, pool).unwrap();
    assert_eq!(elsewhere.reclaim(lent).map(|run| run.size()), Ok(KIB_4));
}

#[test]
fn what_is_lent_comes_back_when_the_tables_are_destroyed() {
    let (guest, lent, pa) = lent(2);
    let Guest { stage2, mut pool, .. } = guest;
    let _ = stage2.grant(&lent, BASE, KIB_4).unwrap().map(Level::L3, &RAM, &mut pool).unwrap();
    let (root, _) = stage2.destroy(&mut pool, twofold_stage2::Unwatched);
    assert_eq!(root.reclaim(lent).unwrap().pa(), pa);
}

#[test]
fn a_part_of_a_window_is_inside_it() {
    let window = crate::platform::window::window(Pa::new(0x1000), 0x3000);
    let part = |offset, size| window.part(offset, size).map(|part| (part.pa().raw(), part.size()));
    assert_eq!(part(0x1000, 0x2000), Some((0x2000, 0x2000)));
    assert_eq!(part(0x1000, 0x2001), None);
    assert_eq!(part(u64::MAX, 1), None);
}
