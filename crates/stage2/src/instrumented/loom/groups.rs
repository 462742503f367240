// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A contiguous group, of two pages here, whose hint one operation takes while another changes the group or a part of it.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::guest::{BLOCK, FWB, PAGE, RAM, READ, home, range};
use super::machine::{Machine, Watch};
use super::model;
use super::resized::LIVE;
use crate::withdraw::Sample;
use crate::{
    Access, Attributes, Contiguous, Descriptor, Features, Geometry, Ipa, Kib4, Level, Stage2, TablePage, TableSource,
    Unwatched, Vmid,
};

pub(super) type Grouped = Contiguous<Kib4>;
pub(super) type Tables = Stage2<Machine, Grouped>;
pub(super) type Operation = fn(&Tables, &mut Pool);

pub(super) struct Pool(Vec<TablePage<Grouped>>);

impl TableSource<Grouped> for Pool {
    fn take(&mut self) -> Option<TablePage<Grouped>> {
        self.0.pop()
    }

    fn give(&mut self, page: TablePage<Grouped>) {
        self.0.push(page);
    }
}

/// Tables with a group at address 0, which is read-only, and a pool for each of two CPUs.
pub(super) fn tables(features: Features) -> (Tables, [Pool; 2]) {
    let (stage2, mut pools) = empty(Machine::new(6, Watch::Nothing), features, 2);
    map_group(&stage2, &READ, &mut pools[0]);
    (stage2, pools)
}

/// Tables of this many levels that map nothing, and the pools. The machine has six frames.
pub(super) fn empty(machine: Machine, features: Features, levels: u32) -> (Tables, [Pool; 2]) {
    let geometry = Geometry::new(Contiguous(Kib4), Kib4.shift() + levels, &features).expect("a shape");
    let (root, rest) = machine.donated().into_run().split_at(PAGE).expect("the first frame");
    let mut rest = Some(rest);
    let mut page = || {
        let (page, others) = rest.take().expect("pages").split_at(PAGE).expect("a page");
        rest = Some(others);
        page.into_table(&features).expect("a page")
    };
    let pools = [Pool(vec![page(), page(), page()]), Pool(vec![page(), page()])];
    let root = root.into_root(&geometry).expect("a page");
    let stage2 = Stage2::new(machine, features, geometry, Vmid::new(1), root).expect("a guest");
    (stage2, pools)
}

fn map_group(stage2: &Tables, attributes: &Attributes, pages: &mut Pool) {
    map_group_at(stage2, 0, attributes, pages);
}

pub(super) fn map_group_at(stage2: &Tables, at: u64, attributes: &Attributes, pages: &mut Pool) {
    let to = (Ipa::new(at), home(Ipa::new(at)));
    let _ = stage2.map_group_to(to, Sample::NONE, Level::L3, attributes, pages, Some(&mut |_| ())).expect("mapped");
}

/// The two leaves.
fn leaves(stage2: &Tables) -> [Option<Descriptor<Grouped>>; 2] {
    [0, PAGE].map(|at| stage2.look_up(Ipa::new(at)).map(|leaf| leaf.descriptor))
}

/// Runs two operations in every order, with and without a break. The group is whole or none after each order, no entry is
/// busy, and `check` holds.
fn meet(operations: [Operation; 2], check: fn([Option<Descriptor<Grouped>>; 2])) {
    for features in [FWB, LIVE] {
        model(2, move || {
            let (stage2, [mut own, mut others]) = tables(features);
            let stage2 = Arc::new(stage2);
            let other = stage2.clone();
            let other = loom::thread::spawn(move || operations[1](&other, &mut others));
            operations[0](&stage2, &mut own);
            other.join().expect("no panic");
            let leaves = leaves(&stage2);
            let grouped = leaves.map(|leaf| leaf.is_some_and(Descriptor::is_contiguous));
            assert!(grouped[0] == grouped[1], "{leaves:?}");
            if let [Some(first), Some(second)] = leaves
                && grouped[0]
            {
                assert!(first.access() == second.access() && second.address() == first.address() + PAGE, "{leaves:?}");
            }
            check(leaves);
        });
    }
}

pub(super) const RELAX_FIRST: Operation = |stage2, _| {
    let _ = stage2.relax_page(Ipa::new(0), Access::READ_WRITE);
};
const RELAX_SECOND: Operation = |stage2, _| {
    let _ = stage2.relax_page(Ipa::new(PAGE), Access::READ_WRITE);
};
pub(super) const RELAX_GROUP: Operation = |stage2, _| {
    let _ = stage2.relax(Ipa::new(0), Access::READ_WRITE);
};
const WRITE_PROTECT: Operation = |stage2, _| {
    let _ = stage2.write_protect(range(0, BLOCK)).expect("protected").complete();
};
const PROTECT_FIRST: Operation = |stage2, pages| {
    let _ = stage2.protect(range(0, PAGE), Access::NONE, pages).expect("protected").complete();
};
const UNMAP_FIRST: Operation = |stage2, pages| {
    stage2.unmap(range(0, PAGE), pages, Unwatched).expect("unmapped").complete().free(pages);
};
const UNMAP: Operation = |stage2, pages| {
    stage2.unmap(range(0, BLOCK), pages, Unwatched).expect("unmapped").complete().free(pages);
};
pub(super) const SPLIT: Operation = |stage2, pages| {
    let split = stage2.split(range(0, BLOCK), BLOCK, pages, |_, _| ControlFlow::Continue(()));
    assert_eq!(split.expect("split").stopped, None);
};
const JOIN: Operation = |stage2, pages| map_group(stage2, &RAM, pages);
const AGE: Operation = |stage2, _| stage2.age(range(0, BLOCK), &mut |_| ()).expect("aged");

fn writable(leaf: Option<Descriptor<Grouped>>) -> bool {
    leaf.is_some_and(Descriptor::is_writable)
}

#[test]
fn both_pages_become_writable() {
    meet([RELAX_FIRST, RELAX_SECOND], |leaves| assert!(leaves.into_iter().all(writable), "{leaves:?}"));
    meet([RELAX_FIRST, RELAX_GROUP], |leaves| assert!(writable(leaves[0]), "{leaves:?}"));
    meet([RELAX_GROUP, RELAX_SECOND], |leaves| assert!(leaves.into_iter().all(writable), "{leaves:?}"));
    meet([RELAX_FIRST, SPLIT], |leaves| assert!(writable(leaves[0]) && !writable(leaves[1]), "{leaves:?}"));
    meet([RELAX_FIRST, AGE], |leaves| assert!(writable(leaves[0]), "{leaves:?}"));
}

#[test]
fn a_page_is_unmapped_while_the_hint_goes() {
    meet([UNMAP_FIRST, RELAX_SECOND], |leaves| assert!(leaves[0].is_none() && writable(leaves[1]), "{leaves:?}"));
    meet([UNMAP_FIRST, SPLIT], |leaves| assert!(leaves[0].is_none() && leaves[1].is_some(), "{leaves:?}"));
    meet([UNMAP_FIRST, RELAX_GROUP], |leaves| assert!(leaves[0].is_none() && leaves[1].is_some(), "{leaves:?}"));
    meet([UNMAP, RELAX_FIRST], |leaves| assert_eq!(leaves, [None; 2]));
    meet([UNMAP, UNMAP_FIRST], |leaves| assert_eq!(leaves, [None; 2]));
    meet([PROTECT_FIRST, SPLIT], |leaves| {
        assert!(leaves[0].is_some_and(|leaf| leaf.access() == Access::NONE), "{leaves:?}");
        assert!(leaves[1].is_some_and(|leaf| leaf.access() == Access::READ), "{leaves:?}");
    });
}

#[test]
fn leaves_are_joined_while_the_hint_goes() {
    meet([JOIN, SPLIT], |leaves| assert!(leaves.into_iter().all(writable), "{leaves:?}"));
    meet([JOIN, UNMAP], |_| ());
    meet([JOIN, UNMAP_FIRST], |leaves| assert!(leaves[1].is_some(), "{leaves:?}"));
    meet([JOIN, JOIN], |leaves| assert!(leaves.into_iter().all(|leaf| leaf.is_some_and(Descriptor::is_contiguous))));
    meet([JOIN, RELAX_FIRST], |leaves| assert!(leaves.into_iter().all(writable), "{leaves:?}"));
}

/// A write protection that begins after the other operation has ended leaves nothing writable. Beside it, each leaf is as one
/// of the two left it.
#[test]
fn a_group_is_write_protected_beside() {
    meet([WRITE_PROTECT, RELAX_FIRST], |leaves| assert!(!writable(leaves[1]), "{leaves:?}"));
    meet([WRITE_PROTECT, SPLIT], |leaves| assert!(!leaves.into_iter().any(writable), "{leaves:?}"));
    meet([WRITE_PROTECT, UNMAP_FIRST], |leaves| assert!(!leaves.into_iter().any(writable), "{leaves:?}"));
}

/// A split that begins while a group is broken finds the group.
#[test]
fn a_broken_group_is_split() {
    meet([RELAX_GROUP, SPLIT], |leaves| {
        assert!(!leaves.into_iter().flatten().any(Descriptor::is_contiguous), "{leaves:?}");
    });
}
