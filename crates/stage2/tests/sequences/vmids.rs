// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VMIDs that trees share: what a gift, a generation and a flush execute.

use super::*;
use crate::platform::{Host, KIB_4, PLAIN, frame};
use twofold_stage2::{Error, Features, Stage2, Unwatched, VmidSlot, Vmids};

/// A guest on a machine with this number of VMIDs to share, and trees that share them.
fn sharing<const N: usize>(vmids: usize) -> (Guest, [Stage2<Host>; N]) {
    let mut guest = guest(PLAIN);
    let slots = Vec::leak((0..vmids).map(|_| VmidSlot::new()).collect());
    let vmids = Box::leak(Box::new(Vmids::new(slots, &PLAIN).unwrap()));
    assert!(guest.machine.vmids.set(vmids).is_ok());
    let geometry = *guest.stage2.geometry();
    let trees = std::array::from_fn(|_| {
        let root = guest.pool.run(geometry.root_size() / KIB_4).into_root(&geometry).unwrap();
        Stage2::sharing_vmids(guest.machine.platform(), PLAIN, geometry, root).unwrap()
    });
    guest.machine.load(0);
    guest.events();
    (guest, trees)
}

/// Everything is invalidated after the slots were freed, and before one is given. The tree's word is visible before its guest
/// walks.
fn generation() -> Vec<Event> {
    vec![
        Event::Dsb(Domain::IshSt),
        Event::Tlbi(Tlbi::Alle1Is, Reach::Vmid),
        Event::Dsb(Domain::Ish),
        Event::Isb,
        Event::Dsb(Domain::IshSt),
    ]
}

#[test]
fn a_generation_begins_when_no_vmid_is_left() {
    let (guest, trees) = sharing::<3>(2);
    let vmid = |tree: usize| {
        let in_use = trees[tree].use_vmid().unwrap();
        let vmid = in_use.vttbr() >> 48;
        trees[tree].release_vmid(in_use);
        (vmid, guest.events())
    };
    let generations = || guest.machine.vmids.get().unwrap().generations();
    assert_eq!(generations(), 0);
    assert_eq!(vmid(0), (1, generation()), "nothing is known of what TLBs held before");
    assert_eq!(vmid(1), (2, vec![Event::Dsb(Domain::IshSt)]));
    assert_eq!([vmid(0), vmid(1)], [(1, vec![]), (2, vec![])], "a tree keeps its VMID");
    assert_eq!(generations(), 1);
    assert_eq!(vmid(2), (1, generation()));
    assert_eq!(generations(), 2);
    assert_eq!(vmid(1), (2, vec![]), "and keeps it in the next generation if no tree needs it");
    assert_eq!(vmid(0), (1, generation()));
}

/// A change is visible before the VMID is looked up. Another CPU that gives the tree one only now walks the new entry.
#[test]
fn a_flush_takes_the_vmid_of_the_tree_or_none() {
    let (mut guest, [tree]) = sharing::<1>(2);
    let change = |guest: &mut Guest| {
        let _ = tree.map(BASE, frame(0), Level::L3, &RAM, &mut guest.pool).unwrap();
        guest.events();
        let pending = tree.write_protect(range(BASE, KIB_4)).unwrap();
        let _ = pending.complete();
        let events = guest.events();
        let _ = tree.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
        guest.events();
        events
    };
    assert_eq!(change(&mut guest), [Event::Dsb(Domain::IshSt)]);
    let in_use = tree.use_vmid().unwrap();
    let vttbr = in_use.vttbr();
    assert_eq!(vttbr, tree.vttbr() | 1 << 48);
    tree.release_vmid(in_use);
    guest.events();
    let mut expected = vec![Event::Dsb(Domain::IshSt), Event::LoadVttbr(vttbr), Event::Isb];
    expected.extend(by_leaf(BASE, None));
    expected.extend([Event::LoadVttbr(0), Event::Isb]);
    assert_eq!(change(&mut guest), expected);
    guest.machine.load(vttbr);
    let loaded = [vec![Event::Dsb(Domain::IshSt)], by_leaf(BASE, None)].concat();
    assert_eq!(change(&mut guest), loaded);
}

/// It has its VMID from the beginning, so TLBs may hold its entries at any time.
#[test]
fn a_tree_with_a_vmid_of_its_own_is_flushed_always() {
    let (mut guest, [tree]) = sharing::<1>(2);
    assert_eq!(tree.vttbr() >> 48, 0, "it has none yet");
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    let _ = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap().complete();
    let vttbr = guest.stage2.vttbr();
    let expected =
        [&[Event::LoadVttbr(vttbr), Event::Isb][..], &by_leaf(BASE, None), &[Event::LoadVttbr(0), Event::Isb]];
    assert_eq!(guest.events(), expected.concat());
}

#[test]
fn a_platform_without_vmids_shares_none() {
    let mut guest = guest(PLAIN);
    let geometry = *guest.stage2.geometry();
    let root = guest.pool.run(geometry.root_size() / KIB_4).into_root(&geometry).unwrap();
    let refused = Stage2::sharing_vmids(guest.machine.platform(), PLAIN, geometry, root).err();
    assert_eq!(refused, Some(Error::NoSharedVmids));
}

#[test]
fn vmids_that_are_all_in_use_are_an_error() {
    let (guest, [first, second]) = sharing::<2>(1);
    let in_use = first.use_vmid().unwrap();
    guest.machine.may_wait.set(true);
    assert_eq!(second.use_vmid().unwrap_err(), Error::NoVmid { slots: 1 });
    first.release_vmid(in_use);
    assert_eq!(second.use_vmid().unwrap().vttbr() >> 48, 1);
}

#[test]
fn a_tree_releases_no_vmid_of_another_tree() {
    let (guest, [first, second]) = sharing::<2>(1);
    guest.machine.may_wait.set(true);
    second.release_vmid(first.use_vmid().unwrap());
    assert_eq!(second.use_vmid().unwrap_err(), Error::NoVmid { slots: 1 });
}

/// 8 bits have 255 VMIDs without 0.
#[test]
fn no_more_vmids_than_the_cpu_has() {
    let slots: Vec<VmidSlot> = (0..300).map(|_| VmidSlot::new()).collect();
    let debug =
        |features: &Features| format!("{:?}", Vmids::new(&slots, features).unwrap()).matches("VmidSlot").count();
    assert_eq!(debug(&PLAIN.with_vmid_bits(8)), 255);
    assert_eq!(debug(&PLAIN.with_vmid_bits(16)), 300);
    assert_eq!(Vmids::new(&[], &PLAIN).unwrap_err(), Error::NoSharedVmids);
}
