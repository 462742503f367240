// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another CPU takes the locks of the waiting entries and of the frames at each point of an operation, also while that holds
//! an outer lock. With `twofold-machine/strict`, each lock then has to show its next owner what the other CPU did there.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::swap::Peeked;

use crate::rig::{Plan, Rig, ignore, ipa, quiet};

/// Page 1 is absent, and requests wait.
fn absent() -> Rig {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    rig.store.get().waits = true;
    rig
}

/// Page 20 is absent, and no frame is free below the limit.
fn full() -> Rig {
    let rig = Rig::with(Plan { count: 21, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    rig.write(20);
    rig.leave(20);
    (0..16).for_each(|page| rig.write(page));
    rig.store.get().waits = true;
    rig
}

/// Does `action` on a new rig for each point at which another CPU asks for the use of frames.
fn is_asked_meanwhile(rig: fn() -> Rig, action: fn(&Rig)) {
    quiet();
    let mut answers = 0;
    for number in 1.. {
        let rig = Rc::new(rig());
        let (begun, answered) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (other, other_begun, other_answered) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&answered));
        rig.machine.before_atomic(number, move || {
            other_begun.set(true);
            // It would wait, if the operation has the lock.
            let asked = catch_unwind(AssertUnwindSafe(|| ignore(other.memory.frame_use())));
            other_answered.set(asked.is_ok());
        });
        action(&rig);
        rig.machine.set_atomic_hook(|| ());
        Rc::try_unwrap(rig).ok().expect("the hook is gone").end();
        answers += usize::from(answered.get());
        if !begun.get() {
            break;
        }
    }
    assert!(answers > 4, "{answers}");
}

#[test]
fn while_a_page_is_brought() {
    is_asked_meanwhile(absent, |rig| {
        rig.bring(1, 7);
        rig.finish_all();
    });
}

#[test]
fn while_a_page_is_read_where_it_is() {
    is_asked_meanwhile(absent, |rig| {
        let mut peek = rig.memory.peek(ipa(1)).unwrap();
        assert_eq!(peek.look(&mut [0; 4096]), Peeked::Later);
        rig.finish_all();
        assert_eq!(peek.look(&mut [0; 4096]), Peeked::Read);
    });
}

#[test]
fn while_a_page_waits_for_a_frame() {
    is_asked_meanwhile(full, |rig| {
        rig.bring(20, 7);
        assert_eq!(rig.store.reading(), 0, "it waits");
        rig.memory.set_limit(17).unwrap();
        rig.finish_all();
    });
}
