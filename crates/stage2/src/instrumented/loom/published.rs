// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU that finds a new entry also finds what it leads to: the complete table, without the page's old content; the
//! frame as it was filled; the metadata's counts.

use std::sync::Arc;

use super::guest::{BLOCK, Guest, LARGE, PAGE, RAM, READ, TRACKED, range};
use super::machine::{Pages, WILD};
use super::{Operation, meet, model};
use crate::primitive::{Ordering, Word};
use crate::{Access, Attributes, Level, Memory};

fn guest(levels: u32, block: Option<Level>) -> (Guest, [Pages; 2]) {
    let guest = Guest::new(levels, 4);
    let mut pages = guest.spoiled_pages(0..4, Some(WILD));
    if let Some(level) = block {
        guest.map(0, level, &mut pages);
    }
    let none = guest.spoiled_pages(0..0, Some(WILD));
    (guest, [pages, none])
}

const LOOK: Operation = |guest, _| {
    guest.look_up(PAGE);
};
const COUNT: Operation = |guest, _| {
    let leaves = guest.stage2.count_leaves(range(0, BLOCK)).expect("a range");
    assert!(leaves.iter().sum::<u64>() <= 1, "{leaves:?}");
};
const IS_FOUND: Operation = |guest, _| assert!(guest.is_mapped(PAGE));

fn done(guest: &Guest, pools: &[Pages; 2]) {
    guest.check(pools);
}

#[test]
fn a_new_table_is_empty() {
    meet(3, || guest(2, None), [|guest, pages| guest.map(0, Level::L3, pages), LOOK], done);
    meet(3, || guest(2, None), [|guest, pages| guest.map(PAGE, Level::L3, pages), LOOK], done);
    meet(3, || guest(3, None), [|guest, pages| guest.map(0, Level::L3, pages), LOOK], done);
    meet(3, || guest(4, None), [|guest, pages| guest.map(0, Level::L3, pages), LOOK], done);
    meet(3, || guest(3, None), [|guest, pages| guest.map(0, Level::L3, pages), COUNT], done);
}

#[test]
fn a_full_table_is_full() {
    meet(3, || guest(2, None), [|guest, pages| guest.map_range(0, BLOCK, Level::L3, pages), LOOK], done);
    meet(3, || guest(3, None), [|guest, pages| guest.map_range(0, LARGE, Level::L2, pages), LOOK], done);
    meet(3, || guest(2, Some(Level::L2)), [|guest, pages| guest.split(0, BLOCK, pages), IS_FOUND], done);
    meet(3, || guest(3, Some(Level::L1)), [|guest, pages| guest.split(0, LARGE, pages), IS_FOUND], done);
}

/// A CPU that finds the first page mapped reads in its frame what was written before it was mapped.
fn fills(levels: u32, before: fn(&Guest, &mut Pages), map: Operation) {
    model(3, move || {
        let (guest, [mut pages, _]) = guest(levels, None);
        before(&guest, &mut pages);
        let (guest, frame) = (Arc::new(guest), Arc::new(Word::default()));
        let (at_other, to_fill) = (guest.clone(), frame.clone());
        let other = loom::thread::spawn(move || {
            to_fill.store(1, Ordering::Relaxed);
            map(&at_other, &mut pages);
        });
        if guest.look_up(0).is_some_and(|leaf| leaf.descriptor.access() == Access::READ_WRITE) {
            assert_eq!(frame.load(Ordering::Relaxed), 1, "the frame was not filled yet");
        }
        other.join().expect("no panic");
    });
}

#[test]
fn a_frame_is_filled_before() {
    let map: Operation = |guest, pages| guest.map(0, Level::L3, pages);
    let range: Operation = |guest, pages| guest.map_range(0, BLOCK, Level::L3, pages);
    let nothing: Operation = |_, _| ();
    let table: Operation = |guest, pages| guest.map(PAGE, Level::L3, pages);
    let other: Operation = |guest, pages| {
        guest.map_as(0, Level::L3, &Attributes { memory: Memory::Device, ..READ }, pages);
    };
    let removed: Operation = |guest, pages| {
        guest.map(0, Level::L3, pages);
        guest.map(PAGE, Level::L3, pages);
        guest.unmap(0, PAGE, pages);
    };
    for before in [nothing, table, other, removed] {
        fills(2, before, map);
    }
    for before in [nothing, table] {
        fills(2, before, range);
    }
    fills(2, nothing, |guest, pages| guest.map_range(0, BLOCK, Level::L2, pages));
    fills(2, table, |guest, pages| guest.coalesce(0, Level::L2, &RAM, pages));
    fills(2, nothing, |guest, pages| {
        guest.map_as(0, Level::L3, &READ, pages);
        assert!(guest.relax(0, Access::READ_WRITE));
    });
    // The frame is filled while it is mapped to be read only, with DBM and without.
    let relaxed: Operation = |guest, _| assert!(guest.relax(0, Access::READ_WRITE));
    fills(2, |guest, pages| guest.map_as(0, Level::L3, &READ, pages), relaxed);
    fills(2, |guest, pages| guest.map_as(0, Level::L3, &TRACKED, pages), relaxed);
}
