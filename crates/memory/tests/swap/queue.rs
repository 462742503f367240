// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that wait for frames, and frames that become free, at each point of each other: no page waits while there is a
//! frame for it, and none is notified for another.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{Located, Unasked, Waiter};

use crate::rig::{Plan, Rig, abandon, ignore, ipa, quiet};
use crate::store::BROKEN;

type Step = (&'static str, fn(&Rig));

/// Pages 20 and 21, in two slots, are absent, 0 and 1 are zero and in memory, and no frame is free.
fn full(waits: bool) -> Rig {
    let rig = Rig::with(Plan { count: 21, second: 11, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    (20..22).for_each(|page| {
        rig.write(page);
        rig.leave(page);
    });
    (0..16).for_each(|page| rig.write(page));
    rig.write_zero(0);
    rig.write_zero(1);
    rig.store.get().waits = waits;
    rig
}

const STEPS: [Step; 11] = [
    ("bring an absent page", |rig| rig.bring(20, 1)),
    ("bring another", |rig| rig.bring(21, 2)),
    ("bring the page again", |rig| rig.bring(20, 4)),
    ("bring a page of zeroes", |rig| rig.bring(30, 3)),
    ("a page of zeroes leaves", |rig| ignore(rig.write_out(0))),
    ("another page of zeroes leaves", |rig| ignore(rig.write_out(1))),
    ("two pages of zeroes leave", |rig| {
        ignore(rig.write_out(0));
        ignore(rig.write_out(1));
    }),
    ("a page leaves", |rig| ignore(rig.write_out(5))),
    ("the limit rises", |rig| ignore(rig.memory.set_limit(18).unwrap())),
    ("writes complete", |rig| {
        while rig.store.writing() > 0 {
            rig.store.finish_write(&*rig.memory, 0, Ok(()));
        }
    }),
    ("reads fail", |rig| {
        // Not those that begin meanwhile.
        (0..rig.store.reading()).for_each(|_| rig.store.finish_read(&*rig.memory, 0, Err(BROKEN)));
    }),
];

/// What was before.
const BEGINNINGS: [Step; 7] = [
    ("nothing", |_| ()),
    ("one waits", |rig| rig.bring(20, 1)),
    ("one waits for zeroes", |rig| rig.bring(30, 3)),
    ("two frames are free", |rig| ignore(rig.memory.set_limit(18).unwrap())),
    ("one is on its way", |rig| {
        ignore(rig.write_out(0));
        rig.bring(20, 1);
    }),
    ("one is on its way, one waits", |rig| {
        ignore(rig.write_out(0));
        rig.bring(20, 1);
        rig.bring(21, 2);
    }),
    ("one leaves, two wait", |rig| {
        ignore(rig.write_out(5));
        rig.bring(20, 1);
        rig.bring(21, 2);
    }),
];

/// Does `second` before the atomic `number` of `first`. Returns whether `first` came that far.
fn met(before: Step, first: Step, second: Step, number: usize, waits: bool) -> bool {
    let rig = Rc::new(full(waits));
    (before.1)(&rig);
    let (begun, impossible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (other, other_begun, other_impossible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&impossible));
    rig.machine.before_atomic(number, move || {
        other_begun.set(true);
        let done = catch_unwind(AssertUnwindSafe(|| (second.1)(&other)));
        other_impossible.set(done.is_err());
    });
    (first.1)(&rig);
    rig.machine.set_atomic_hook(|| ());
    if impossible.get() {
        abandon(rig);
        return true;
    }
    let what = format!("{}; {}, and before its atomic {number}: {}, waits {waits}", before.0, first.0, second.0);
    let used = rig.memory.frame_use();
    assert!(used.data <= used.limit, "{what}: {used:?}");
    // Each page that waits is on its way, or no frame is free. Two may wait for page 20.
    let is_arriving = |page| matches!(rig.located(page), Located::Arriving(_));
    let on_their_way = 2 * u64::from(is_arriving(20)) + u64::from(is_arriving(21));
    assert!(used.waiting <= on_their_way || used.data == used.limit, "{what}: {used:?}");
    // A failure is not of a read that was asked for later: the entry would then not be there for that read's end.
    let failed = rig.reports.arrived().contains(&(Waiter::Other(4), Arrival::Failed));
    assert!(!failed || !is_arriving(20) || first.0 == second.0, "{what}");
    let begun = begun.get();
    rig.finish_all();
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.finish_all();
    assert_eq!(rig.memory.frame_use().waiting, 0, "{what}");
    Rc::try_unwrap(rig).ok().expect("the hook is gone").end();
    begun
}

#[test]
fn no_page_waits_beside_a_free_frame_if_the_store_is_prompt() {
    all_meet(false);
}

#[test]
fn no_page_waits_beside_a_free_frame_if_the_store_is_late() {
    all_meet(true);
}

/// Any two steps from any beginning, the second at each point of the first. With `waits`, the store completes later.
fn all_meet(waits: bool) {
    quiet();
    for before in BEGINNINGS {
        for first in STEPS {
            for second in STEPS {
                let _ = (1..).find(|number| !met(before, first, second, *number, waits)).unwrap();
            }
        }
    }
}

/// A fault that comes between a frame that was freed and the page that waits for it.
#[test]
fn no_fault_takes_the_frame_of_a_page_that_waits() {
    quiet();
    let mut faults = 0;
    for number in 1.. {
        let rig = Rc::new(full(false));
        rig.bring(20, 1);
        let (begun, possible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (other, other_begun, other_possible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&possible));
        rig.machine.before_atomic(number, move || {
            other_begun.set(true);
            other_possible.set(catch_unwind(AssertUnwindSafe(|| ignore(other.try_write(31)))).is_ok());
        });
        ignore(rig.write_out(0));
        rig.machine.set_atomic_hook(|| ());
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Arrival::Present)], "before atomic {number}");
        assert_eq!(rig.located(31), Located::Zero, "before atomic {number}");
        faults += usize::from(possible.get());
        if !begun.get() {
            break;
        }
    }
    assert!(faults > 3, "{faults}");
}

/// A page that is asked for comes between a frame that was freed and the page that waits for it.
#[test]
fn no_page_that_asks_later_takes_the_frame_of_one_that_waits() {
    quiet();
    let mut asked = 0;
    for number in 1.. {
        let rig = Rc::new(full(false));
        rig.bring(20, 1);
        let (begun, possible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (other, other_begun, other_possible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&possible));
        rig.machine.before_atomic(number, move || {
            other_begun.set(true);
            other_possible.set(catch_unwind(AssertUnwindSafe(|| other.bring(21, 2))).is_ok());
        });
        ignore(rig.write_out(0));
        rig.machine.set_atomic_hook(|| ());
        if begun.get() && !possible.get() {
            // A lock was held there, and the call has left others locked.
            abandon(rig);
            continue;
        }
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Arrival::Present)], "before atomic {number}");
        if !begun.get() {
            break;
        }
        asked += 1;
    }
    assert!(asked > 3, "{asked}");
}

/// A store that reads ahead comes between a frame that was freed and the page that waits for it.
#[test]
fn no_page_that_is_read_ahead_takes_the_frame_of_one_that_waits() {
    quiet();
    for number in 1.. {
        let rig = Rc::new(full(false));
        rig.bring(20, 1);
        let Located::Absent(place) = rig.located(21) else { panic!() };
        let begun = Rc::new(Cell::new(false));
        let (other, other_begun) = (Rc::clone(&rig), Rc::clone(&begun));
        rig.machine.before_atomic(number, move || {
            other_begun.set(true);
            let ahead = || other.memory.begin_read(ipa(21), place, Unasked::Ahead);
            if let Ok(Ok(request)) = catch_unwind(AssertUnwindSafe(ahead)) {
                other.store.get().reads.push(request);
            }
        });
        ignore(rig.write_out(0));
        rig.machine.set_atomic_hook(|| ());
        assert_eq!((rig.reports.arrived(), rig.store.reading()), (vec![(Waiter::Other(1), Arrival::Present)], 0));
        if !begun.get() {
            break;
        }
    }
}

/// Pages ask while the write-out task gives up: those that come later are not failed.
#[test]
fn giving_up_reaches_no_page_that_asks_later() {
    quiet();
    for number in 1.. {
        let rig = Rc::new(full(false));
        rig.bring(20, 1);
        let (begun, possible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (other, other_begun, other_possible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&possible));
        rig.machine.before_atomic(number, move || {
            other_begun.set(true);
            other_possible.set(catch_unwind(AssertUnwindSafe(|| other.bring(21, 2))).is_ok());
        });
        let failed = rig.memory.fail_waiting();
        rig.machine.set_atomic_hook(|| ());
        assert_eq!(failed, if number == 1 { 2 } else { 1 }, "before atomic {number}");
        if !begun.get() {
            assert!(number > 2);
            break;
        }
        assert!(possible.get(), "before atomic {number}");
    }
}

/// What frees its frame wakes no task, which may be about to free more.
#[test]
fn a_page_that_has_left_wakes_no_task() {
    let rig = full(true);
    rig.bring(20, 1);
    rig.bring(21, 2);
    ignore(rig.write_out(5));
    let before = rig.reports.get().wanted;
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    assert_eq!((rig.memory.wants_frames(), rig.reports.get().wanted), (1, before));
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// The task wrote out as many pages as were wanted, and sleeps. A page that is needed again, or could not be written,
/// frees no frame, so the task is woken.
#[test]
fn the_task_is_woken_if_a_page_that_left_frees_no_frame() {
    for fails in [false, true] {
        let rig = full(true);
        rig.bring(20, 1);
        assert_eq!(rig.memory.wants_frames(), 1);
        ignore(rig.write_out(5));
        assert_eq!(rig.memory.wants_frames(), 0, "the task may sleep");
        if !fails {
            rig.bring(5, 2);
        }
        let before = rig.reports.get().wanted;
        rig.store.finish_write(&*rig.memory, 0, if fails { Err(BROKEN) } else { Ok(()) });
        assert_eq!((rig.memory.wants_frames(), rig.reports.get().wanted), (1, before + 1), "failed: {fails}");
        ignore(rig.write_out(6));
        let before = rig.reports.get().wanted;
        rig.store.finish_write(&*rig.memory, 0, Ok(()));
        assert_eq!(rig.reports.get().wanted, before, "nothing is wanted any more");
        rig.memory.set_limit(u64::MAX).unwrap();
        rig.end();
    }
}

/// A store that answers within its call brings one page after another, and not one within another: the stack would grow
/// with the queue.
#[test]
fn pages_that_wait_are_brought_one_after_another() {
    let rig = Rig::with(Plan { count: 64, huge_pages: 0, singles: 80, ..Plan::default() });
    (0..40).for_each(|page| rig.write(page));
    (20..30).for_each(|page| rig.leave(page));
    assert_eq!(rig.memory.set_limit(30), Ok(0));
    (20..30).for_each(|page| rig.bring(page, page));
    assert_eq!(rig.reports.arrived(), []);
    rig.memory.set_limit(u64::MAX).unwrap();
    assert_eq!(rig.memory.wants_frames(), 0);
    assert_eq!((rig.reports.arrived().len(), rig.store.get().most_nested), (10, 1));
    rig.end();
}
