// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write fault that a log's stop has overtaken sets DBM for a moment (D5, D6), on pages around that may have come back
//! since, with a copy. What the guest writes in that moment, hardware records, and no fault sees it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::dirty::{LogOptions, Tracker};

use crate::rig::{Plan, Rig, abandon, ignore, ipa, quiet};

/// When the page leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// Right after the write, while its leaf has DBM.
    AtOnce,
    /// Right after the write, and after an unmap has taken its leaf.
    AfterAnUnmap,
    /// When the fault has ended, which took DBM away.
    Later,
}

/// Page 1 comes back before the atomic `first` of a write fault at page 2. The guest writes to it by DBM before the
/// atomic `second`. Returns whether the fault came that far, and whether there was such a write.
fn overtaken(first: usize, second: usize, leaves: Leaves) -> (bool, bool) {
    let rig = Rc::new(Rig::with(Plan { count: 8, huge_pages: 0, singles: 24, ..Plan::default() }));
    rig.write(1);
    rig.write(2);
    rig.leave(1);
    let options = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Combined) };
    rig.memory.dirty_log(rig.slot).unwrap().start(&options).unwrap();
    let (count, written, impossible) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (other, counter, wrote, cannot) =
        (Rc::clone(&rig), Rc::clone(&count), Rc::clone(&written), Rc::clone(&impossible));
    rig.machine.set_atomic_hook(move || {
        counter.set(counter.get() + 1);
        let done = catch_unwind(AssertUnwindSafe(|| {
            if counter.get() == first {
                other.memory.dirty_log(other.slot).unwrap().stop().unwrap();
                other.bring(1, 1);
                other.read(1);
            }
            if counter.get() == second && other.walk(1).is_some_and(|leaf| leaf.dirty_by_hardware()) {
                other.write(1);
                wrote.set(true);
                if leaves == Leaves::AfterAnUnmap {
                    other.memory.unmap(other.slot, ipa(1)..ipa(2)).unwrap();
                }
                if leaves != Leaves::Later {
                    ignore(other.write_out(1).unwrap());
                }
            }
        }));
        cannot.set(cannot.get() || done.is_err());
    });
    rig.write(2);
    rig.machine.set_atomic_hook(|| ());
    let reached = count.get() >= second;
    if impossible.get() {
        abandon(rig);
        return (reached, false);
    }
    if leaves == Leaves::Later {
        ignore(rig.write_out(1).unwrap());
    }
    rig.bring(1, 2);
    rig.read(1);
    let written = written.get();
    Rc::try_unwrap(rig).ok().expect("the hook is gone").end();
    (reached, written)
}

#[test]
fn what_hardware_records_for_an_overtaken_fault_is_not_lost() {
    quiet();
    for leaves in [Leaves::AtOnce, Leaves::AfterAnUnmap, Leaves::Later] {
        let mut writes = 0;
        for first in 1..30 {
            for second in first + 1.. {
                let (reached, written) = overtaken(first, second, leaves);
                writes += usize::from(written);
                if !reached {
                    break;
                }
            }
        }
        assert!(writes > 0, "{leaves:?}: DBM is never set");
    }
}
