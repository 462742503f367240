// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Busy entries: how many a table may have, and that a table with one is left to the CPU that owns the entry.

use std::sync::Arc;

use super::guest::{BLOCK, Guest};
use super::model;
use crate::counts::Counts;
use crate::platform::Platform;
use crate::{Ipa, Level};

/// A level 2 table that leads to two tables, with one page each.
fn guest() -> Arc<Guest> {
    let guest = Guest::new(3, 4);
    let mut pages = guest.pages(0..4);
    guest.map(0, Level::L3, &mut pages);
    guest.map(BLOCK, Level::L3, &mut pages);
    Arc::new(guest)
}

/// The count of busy entries has seven bits.
#[test]
fn one_more_than_is_counted_waits() {
    model(0, || {
        let guest = guest();
        let location = guest.stage2.lockless_walk(Ipa::new(0), Level::L3);
        let lock = || guest.stage2.lock(&location).expect("no table was unlinked");
        let mut locked = lock();
        locked.counts += Counts::BUSY.times(127);
        drop(locked);
        assert!(lock().make_busy(location.cell).is_err());
        assert_eq!(lock().counts.busy(), 127);
    });
}

/// A CPU that locks all tables below one finds an entry of the second table busy. It unlocks the first, which it has
/// locked. It never unlocks the second: the owner of the entry locks and changes that one meanwhile.
#[test]
fn a_table_with_a_busy_entry_is_not_held() {
    model(1, || {
        let guest = guest();
        let location = guest.stage2.lockless_walk(Ipa::new(BLOCK), Level::L3);
        let locked = guest.stage2.lock(&location).expect("no table was unlinked");
        let Ok(busy) = locked.make_busy(location.cell) else { panic!("nothing else is busy") };
        let there = guest.clone();
        let other = loom::thread::spawn(move || {
            let location = there.stage2.lockless_walk(Ipa::new(0), Level::L2);
            let above = there.stage2.lock(&location).expect("no table was unlinked");
            drop(there.stage2.hold_below(&above));
        });
        // Let the other thread go first.
        loom::thread::yield_now();
        let old = busy.old;
        busy.make(old);
        other.join().expect("no panic");
        assert_eq!(guest.machine().metadata(location.table.pa()).peek(), Some(Counts::of(old, Level::L3)));
    });
}
