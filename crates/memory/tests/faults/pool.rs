// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests whose frames for data come from one pool: what one gives back another one takes, and tables stay with the guest.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use twofold_memory::{Backing, Error, FramePool, Frames, SlotId};

use super::*;
use crate::machine::guest::IPA_BITS;
use crate::machine::{HUGE_PAGE, Machine, RAM};

/// Frames of each guest's own, for tables.
const OWN: u64 = HUGE_PAGE;

/// A guest at this place among guests, with two huge pages of RAM.
fn guest(machine: &Rc<Machine>, pool: &Arc<FramePool>, number: u64) -> (RunningGuest, SlotId) {
    let mut frames = Frames::new(machine.features).with_pool(Arc::clone(pool));
    frames.add(machine.donate(RAM + number * OWN, OWN));
    let mut guest = RunningGuest::on(Rc::clone(machine), frames, Pages::Small, IPA_BITS);
    let slot = guest.add(BASE, 2 * HUGE_PAGE, Backing::Ram, true);
    (guest, slot)
}

fn on_cpu(guest: &mut RunningGuest) -> &mut RunningGuest {
    guest.machine.enter(guest.memory.stage2().vttbr(), guest.memory.stage2().vtcr());
    guest
}

#[test]
fn what_a_guest_gives_back_another_takes() {
    let machine = Machine::new(PLAIN, &[(RAM, 2 * OWN + 3 * HUGE_PAGE)]);
    let mut frames = Frames::new(PLAIN);
    frames.add(machine.donate(RAM + 2 * OWN, 3 * HUGE_PAGE));
    let pool = Arc::new(FramePool::new(frames));
    let ((mut one, slot), (mut two, _)) = (guest(&machine, &pool, 0), guest(&machine, &pool, 1));
    let second = BASE + HUGE_PAGE;
    on_cpu(&mut one).reach(BASE, Write);
    on_cpu(&mut one).reach(second, Write);
    on_cpu(&mut two).reach(BASE, Write);
    assert_eq!((pool.free(), pool.count()), (0, 3 * 512));
    // Its own frames are for its tables.
    assert!(two.memory.frames().free() > 0);
    assert_eq!(two.fault(second, Translation, Write), Err(Error::NoFrames { ipa: second }));
    assert_eq!(one.memory.release(slot, BASE..second), Ok(1));
    assert_eq!((pool.free(), one.memory.frame_use().data), (512, 512));
    two.reach(second, Write);
    assert_eq!((pool.free(), two.memory.frame_use().data), (0, 1024));
    // A limit holds whatever is free.
    one.memory.set_limit(512).unwrap();
    assert_eq!(on_cpu(&mut one).fault(BASE, Translation, Write), Err(Error::NoFrames { ipa: BASE }));
}

/// Another guest takes frames on another CPU, at each point of a release, also while that holds the locks of its own guest.
#[test]
fn a_guest_takes_while_another_gives_back() {
    for number in 1.. {
        let machine = Machine::new(PLAIN, &[(RAM, 2 * OWN + 2 * HUGE_PAGE)]);
        let mut frames = Frames::new(PLAIN);
        frames.add(machine.donate(RAM + 2 * OWN, 2 * HUGE_PAGE));
        let pool = Arc::new(FramePool::new(frames));
        let ((mut one, slot), (mut two, _)) = (guest(&machine, &pool, 0), guest(&machine, &pool, 1));
        on_cpu(&mut one).reach(BASE, Write);
        let begun = Rc::new(Cell::new(false));
        let other_begun = Rc::clone(&begun);
        machine.before_atomic(number, move || {
            other_begun.set(true);
            assert_eq!(two.fault(BASE, Translation, Write), Ok(mapped(Level::L3, true)));
        });
        assert_eq!(one.memory.release(slot, BASE..BASE + HUGE_PAGE), Ok(1));
        machine.set_atomic_hook(|| ());
        assert_eq!(pool.free(), if begun.get() { 512 } else { 1024 }, "before atomic {number}");
        if !begun.get() {
            assert!(number > 4, "{number}");
            break;
        }
    }
}
