// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As modules `reused`, `same_frame` and `hardware`, for contiguous groups: their entries are stored one by one after a
//! fence, by other code than a leaf alone.

use std::sync::Arc;

use super::groups::{Grouped, Operation, Pool, RELAX_FIRST, RELAX_GROUP, SPLIT, Tables, empty, map_group_at, tables};
use super::guest::{BLOCK, FWB, LARGE, PAGE, RAM, READ, TRACKED, home, range};
use super::machine::{Machine, Watch};
use super::model;
use super::resized::LIVE;
use crate::withdraw::Sample;
use crate::{Access, Attributes, Coalesced, Descriptor, Features, Ipa, Level, Unwatched};

/// A block replaces the table of the first page, and the table's page is reused for the group in the upper half. Then
/// another CPU does `change` there. A late walk for the first page, which is always mapped, takes no entry of that group.
fn is_not_seen(change: Operation) {
    for features in [FWB, LIVE] {
        model(2, move || {
            let (stage2, [mut own, mut others]) = tables(features);
            let stage2 = Arc::new(stage2);
            let there = stage2.clone();
            let reuse = loom::thread::spawn(move || {
                let to = (Ipa::new(0), home(Ipa::new(0)));
                let block =
                    there.coalesce_to::<false, false>(to, Sample::NONE, Level::L2, &READ, &mut own, &mut |_| ());
                assert!(matches!(block, Ok(Coalesced::Done { tables: 1 })), "{block:?}");
                map_group_at(&there, BLOCK, &READ, &mut own);
                let then = loom::thread::spawn(move || change(&there, &mut others));
                then.join().expect("no panic");
            });
            let leaf = stage2.look_up(Ipa::new(0)).expect("the first page is mapped all the time");
            assert_eq!(leaf.descriptor.address(), home(Ipa::new(0)), "{leaf:?}");
            reuse.join().expect("no panic");
        });
    }
}

#[test]
fn what_changes_a_group_is_not_seen_late() {
    is_not_seen(|stage2, _| {
        let _ = stage2.relax_page(Ipa::new(BLOCK), Access::READ_WRITE);
    });
    is_not_seen(|stage2, _| {
        let _ = stage2.relax(Ipa::new(BLOCK), Access::READ_WRITE);
    });
    is_not_seen(|stage2, _| {
        let _ = stage2.relax(Ipa::new(BLOCK), Access::ALL);
    });
    is_not_seen(|stage2, pages| map_group_at(stage2, BLOCK, &RAM, pages));
}

/// The first group's table is unlinked, and reused for a group of the same frames in the upper half. A late operation on
/// the first group leaves that one as it is, and its table's counts.
fn leaves_twin(late: Operation) {
    for features in [FWB, LIVE] {
        model(2, move || {
            let (stage2, [mut own, mut others]) = tables(features);
            let stage2 = Arc::new(stage2);
            let there = stage2.clone();
            let taker = loom::thread::spawn(move || {
                there.unmap(range(0, BLOCK), &mut own, Unwatched).expect("unmapped").complete().free(&mut own);
                let twin = (Ipa::new(BLOCK), home(Ipa::new(0)));
                let _ = there.map_group_to(twin, Sample::NONE, Level::L3, &READ, &mut own, None).expect("mapped");
                own
            });
            late(&stage2, &mut others);
            let mut own = taker.join().expect("no panic");
            for at in [BLOCK, BLOCK + PAGE] {
                let leaf = stage2.look_up(Ipa::new(at)).expect("mapped").descriptor;
                assert!(leaf.is_contiguous() && leaf.access() == Access::READ, "a late operation changed {leaf:?}");
            }
            let unmapped = stage2.unmap(range(BLOCK, BLOCK), &mut own, Unwatched).expect("unmapped");
            assert_eq!(unmapped.complete().free(&mut own).tables(), 1, "the table goes with its last entry");
        });
    }
}

#[test]
fn what_comes_late_leaves_another_group() {
    leaves_twin(SPLIT);
    leaves_twin(RELAX_FIRST);
    leaves_twin(RELAX_GROUP);
}

/// The table of a block is unlinked, and reused for a writable block of the same frames in the upper half. A CPU that maps a
/// group inside the first block does not take the other block for it.
#[test]
fn a_block_that_has_gone_maps_no_group() {
    model(1, move || {
        let (stage2, [mut own, mut others]) = empty(Machine::new(6, Watch::Nothing), FWB, 3);
        let map_block = |stage2: &Tables, at: u64, attributes: &Attributes, pages: &mut Pool| {
            let (ipa, pa) = (Ipa::new(at), home(Ipa::new(0)));
            let _ = stage2.map_to(ipa, pa, Sample::NONE, Level::L2, attributes, pages).expect("mapped");
        };
        map_block(&stage2, 0, &READ, &mut own);
        let stage2 = Arc::new(stage2);
        let there = stage2.clone();
        let taker = loom::thread::spawn(move || {
            there.unmap(range(0, LARGE), &mut own, Unwatched).expect("unmapped").complete().free(&mut own);
            map_block(&there, LARGE, &RAM, &mut own);
        });
        let to = (Ipa::new(0), home(Ipa::new(0)));
        let mapped = stage2.map_group_to(to, Sample::NONE, Level::L3, &READ, &mut others, None).expect("mapped");
        if let crate::Grouped::Already(leaf) = mapped {
            assert_eq!(leaf.access(), Access::READ, "another block was taken for the one that had gone");
        }
        taker.join().expect("no panic");
    });
}

/// Hardware records a write in a leaf while it is joined to a group. The join reports it, or hardware finds no leaf.
#[test]
fn a_write_is_recorded_while_leaves_are_joined() {
    let features = Features { hardware_dirty_state: true, ..FWB };
    model(3, move || {
        let (stage2, [mut own, _]) = empty(Machine::new(6, Watch::Hardware), features, 2);
        for at in [0, PAGE].map(Ipa::new) {
            let _ = stage2.map_to(at, home(at), Sample::NONE, Level::L3, &TRACKED, &mut own).expect("mapped");
        }
        let machine = stage2.platform().clone();
        let link = <Descriptor<Grouped>>::from_raw(machine.read(machine.donated().start(), 0).raw());
        let table = link.address();
        let hardware = loom::thread::spawn(move || machine.hardware_writes(table, 0));
        let (to, mut reported) = ((Ipa::new(0), home(Ipa::new(0))), false);
        let mut note = |at: Ipa| reported |= at == Ipa::new(0);
        let joined = stage2.map_group_to(to, Sample::NONE, Level::L3, &RAM, &mut own, Some(&mut note));
        assert_eq!(joined, Ok(crate::Grouped::Joined));
        assert!(!hardware.join().expect("no panic") || reported, "a recorded write was lost");
    });
}
