// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each step against each other step, at each point where one can begin: before each atomic access of the other, which
//! is where it takes a lock or counts. Where the second would wait for a lock that the first holds, the case does not
//! exist.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::Pages;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Completions as _, Located, Poked, Unasked};
use twofold_stage2::fault::AccessKind;

use crate::rig::{Plan, Rig, abandon, ignore, ipa, quiet};
use crate::store::BROKEN;

/// The page that all of this is about.
const PAGE: u64 = 1;

type Step = (&'static str, fn(&Rig));

fn write_out(rig: &Rig) {
    let _ = rig.write_out(PAGE);
}

fn start(rig: &Rig, tracker: Tracker) {
    let log = rig.memory.dirty_log(rig.slot).unwrap();
    let _ = log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) });
}

/// A log that reports, clears and stops, once.
fn log(rig: &Rig, tracker: Tracker) {
    start(rig, tracker);
    let log = rig.memory.dirty_log(rig.slot).unwrap();
    let mut dirty = DirtyPages::new();
    let _ = log.get(&mut dirty);
    if tracker != Tracker::WriteProtect {
        let _ = log.clear_these(&dirty);
    }
    let _ = log.stop();
}

/// A step with a store that transfers pages at once.
fn at_once(rig: &Rig, step: impl FnOnce(&Rig)) {
    rig.store.get().at_once = true;
    step(rig);
    rig.store.get().at_once = false;
}

/// What another CPU may do.
const STEPS: [Step; 29] = [
    ("guest reads", |rig| ignore(rig.try_read(PAGE))),
    ("guest writes", |rig| ignore(rig.try_write(PAGE))),
    ("guest executes", |rig| ignore(rig.access(PAGE, AccessKind::Execute))),
    ("guest reads a neighbour", |rig| ignore(rig.try_read(PAGE + 1))),
    ("guest reads at once", |rig| at_once(rig, |rig| ignore(rig.try_read(PAGE)))),
    ("guest writes at once", |rig| at_once(rig, |rig| ignore(rig.try_write(PAGE)))),
    ("device writes", |rig| ignore(rig.try_device_write(PAGE))),
    ("device reads", |rig| ignore(rig.try_device_read(PAGE))),
    ("write_out", write_out),
    ("write_out at once", |rig| at_once(rig, write_out)),
    ("a neighbour leaves", |rig| ignore(rig.write_out(PAGE + 1))),
    ("bring", |rig| rig.bring(PAGE, 1)),
    ("bring and complete", |rig| {
        rig.bring(PAGE, 1);
        rig.finish_all();
    }),
    ("complete", Rig::finish_all),
    ("complete with failures", |rig| {
        while !rig.store.get().writes.is_empty() {
            rig.store.finish_write(&*rig.memory, 0, Err(BROKEN));
        }
        while !rig.store.get().reads.is_empty() {
            rig.store.finish_read(&*rig.memory, 0, Err(BROKEN));
        }
    }),
    ("write_out and complete", |rig| {
        write_out(rig);
        rig.finish_all();
    }),
    ("leave and come back", |rig| {
        write_out(rig);
        rig.finish_all();
        rig.bring(PAGE, 1);
        rig.finish_all();
    }),
    ("peek", |rig| rig.peek_now(PAGE, |_| ())),
    ("peek and complete", |rig| rig.peek_now(PAGE, Rig::finish_all)),
    ("content comes", |rig| {
        // Only where there is none.
        if let Located::Absent(place) = rig.located(PAGE)
            && let Ok(request) = rig.memory.begin_read(ipa(PAGE), place, Unasked::Here)
        {
            rig.memory.copy_in(&request, &rig.bytes(PAGE));
            rig.memory.complete_read(request, Ok(()));
        }
    }),
    ("zeroes come", |rig| {
        if rig.expected(PAGE) == 0
            && let Located::Absent(place) = rig.located(PAGE)
        {
            let _ = rig.memory.make_zero(ipa(PAGE), place);
        }
    }),
    ("poke and complete", poke),
    ("unmap", |rig| rig.memory.unmap(rig.slot, ipa(0)..ipa(3)).unwrap()),
    ("write-protect log starts", |rig| start(rig, Tracker::WriteProtect)),
    ("hardware log starts", |rig| start(rig, Tracker::Hardware)),
    ("combined log starts", |rig| start(rig, Tracker::Combined)),
    ("manual log", |rig| log(rig, Tracker::Manual)),
    ("hardware log", |rig| log(rig, Tracker::Hardware)),
    ("adaptive log", |rig| log(rig, Tracker::Adaptive)),
];

/// A whole page is written, if it can be now or when the store has answered: with what it holds, so that what happens within
/// it finds that.
fn poke(rig: &Rig) {
    let mut page = ManuallyDrop::new(rig.memory.poke(ipa(PAGE)).unwrap());
    let (value, bytes) = (rig.expected(PAGE), rig.bytes(PAGE));
    let mut poked = page.look(Some(&bytes)).unwrap();
    if poked != Poked::Written {
        rig.finish_all();
        poked = page.look(Some(&bytes)).unwrap();
    }
    drop(ManuallyDrop::into_inner(page));
    if poked != Poked::Written {
        return;
    }
    // A write that came within it is before it or after it.
    let other = rig.expected(PAGE);
    if other != value {
        let mut found = [0; 8];
        rig.memory.read(ipa(PAGE), &mut found).unwrap();
        assert!([value, other].contains(&u64::from_le_bytes(found)), "{found:?}");
        rig.expect(PAGE, u64::from_le_bytes(found));
    }
}

const IN_A_BLOCK: &str = "in a block";
const UNREADY: &str = "with a frame that holds what another guest left";

/// How the page is before.
const BEGINNINGS: [Step; 10] = [
    (IN_A_BLOCK, |rig| rig.write(PAGE)),
    ("a page of its own", |rig| {
        rig.write(PAGE);
        rig.write(PAGE + 2);
        rig.leave(PAGE + 2);
    }),
    ("with a copy, mapped", |rig| {
        with_copy(rig);
        rig.read(PAGE);
    }),
    ("with a copy, not mapped", with_copy),
    ("zero", |rig| {
        rig.write(PAGE);
        rig.write_zero(PAGE);
    }),
    ("absent", |rig| {
        rig.write(PAGE);
        rig.leave(PAGE);
    }),
    ("leaving", |rig| {
        rig.write(PAGE);
        rig.store.get().waits = true;
        write_out(rig);
    }),
    ("arriving", |rig| {
        rig.write(PAGE);
        rig.leave(PAGE);
        rig.store.get().waits = true;
        rig.bring(PAGE, 9);
    }),
    ("with a copy, and a log", |rig| {
        with_copy(rig);
        rig.read(PAGE);
        start(rig, Tracker::Combined);
    }),
    (UNREADY, |rig| {
        rig.write(PAGE + 1);
        rig.write(PAGE + 2);
        rig.leave(PAGE + 2);
    }),
];

fn with_copy(rig: &Rig) {
    rig.write(PAGE);
    rig.leave(PAGE);
    rig.bring(PAGE, 9);
}

/// Does `second` before the atomic access `number` of `first`. Returns whether `first` came that far.
fn race(beginning: Step, first: Step, second: Step, number: usize, waits: bool) -> bool {
    let plan = match beginning.0 {
        UNREADY => Plan { pages: Pages::Small, count: 8, huge_pages: 1, singles: 24, ..Plan::default() },
        IN_A_BLOCK => Plan { pages: Pages::Largest, count: 512, huge_pages: 1, singles: 16, ..Plan::default() },
        // Without a huge page, the rig is a small one.
        _ => Plan { count: 8, huge_pages: 0, singles: 24, ..Plan::default() },
    };
    let rig = Rc::new(Rig::with(plan));
    (beginning.1)(&rig);
    rig.store.get().waits |= waits;
    let (begun, impossible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (other, other_begun, other_impossible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&impossible));
    rig.machine.before_atomic(number, move || {
        other_begun.set(true);
        let done = catch_unwind(AssertUnwindSafe(|| (second.1)(&other)));
        if let Err(error) = done {
            let waits = error.downcast_ref::<&str>().is_some_and(|error| error.contains("waits for another CPU"));
            assert!(waits, "{}, before atomic {number} of {}: {}", beginning.0, first.0, second.0);
            other_impossible.set(true);
        }
    });
    let what = format!("{}: {}, and before its atomic {number}: {}, waits {waits}", beginning.0, first.0, second.0);
    let done = catch_unwind(AssertUnwindSafe(|| {
        (first.1)(&rig);
        rig.machine.set_atomic_hook(|| ());
        if impossible.get() {
            return;
        }
        rig.check();
        rig.finish_all();
        rig.check();
        assert_eq!(rig.memory.frame_use().waiting, 0, "an entry is forgotten");
        // A write that is not seen would be lost now.
        rig.bring(PAGE, 2);
        rig.finish_all();
        rig.store.get().waits = false;
        rig.read(PAGE);
        let _ = rig.write_out(PAGE).unwrap();
        rig.bring(PAGE, 3);
        rig.read(PAGE);
        rig.write(PAGE);
        let _ = rig.write_out(PAGE).unwrap();
        rig.check();
    }));
    if impossible.get() {
        abandon(rig);
        return true;
    }
    assert!(done.is_ok(), "{what}");
    let begun = begun.get();
    let ended = catch_unwind(AssertUnwindSafe(|| Rc::try_unwrap(rig).ok().expect("the hook is gone").end()));
    assert!(ended.is_ok(), "{what}");
    begun
}

fn all_races(beginning: Step) {
    quiet();
    // A block is broken up once, so only what may do that is of interest.
    let is_block = beginning.0 == IN_A_BLOCK;
    let is_of_interest = |step: &Step| !is_block || ["guest writes", "device writes", "write_out"].contains(&step.0);
    let mut cases = 0;
    for first in STEPS.into_iter().filter(is_of_interest) {
        for second in STEPS {
            for waits in [false, true] {
                let last = (1..).find(|number| !race(beginning, first, second, *number, waits)).unwrap();
                cases += last;
            }
        }
    }
    assert!(cases > STEPS.len());
}

macro_rules! races {
    ($($name:ident $index:literal,)*) => {
        $(#[test]
        fn $name() {
            all_races(BEGINNINGS[$index]);
        })*
    };
}

races! {
    races_of_a_page_in_a_block 0,
    races_of_a_page_of_its_own 1,
    races_of_a_mapped_page_with_a_copy 2,
    races_of_a_page_with_a_copy 3,
    races_of_a_page_of_zeroes 4,
    races_of_an_absent_page 5,
    races_of_a_leaving_page 6,
    races_of_an_arriving_page 7,
    races_of_a_logged_page_with_a_copy 8,
    races_of_a_page_that_was_never_zeroed 9,
}
