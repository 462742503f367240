// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A log starts while a page arrives with a copy in the store, in every order that the memory model allows (E2 and L4 of
//! module `swap`).
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p twofold-memory --lib dirty::log::loom` runs the tests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::thread;
use twofold_stage2::primitive::full_fence;

use super::super::adaptive::Cold;
use super::super::options::{LogOptions, Tracker};
use super::{Own, Tracking};

/// What a page that leaves finds (L2, L4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    /// The guest may have written to it since it arrived, and nothing has faulted.
    is_written: bool,
    /// Its copy counts as good.
    is_good: bool,
}

/// A log starts, and from then on the guest may write. Meanwhile a page arrives, and leaves. Returns all that it may
/// find.
fn found(tracker: Tracker) -> BTreeSet<Found> {
    let all = Arc::new(Mutex::new(BTreeSet::new()));
    let found = Arc::clone(&all);
    loom::model(move || {
        // The lock of the leaf's table, and whether the leaf lets the guest write.
        let shared = loom::sync::Arc::new((Tracking::default(), loom::sync::Mutex::new(false)));
        let other = loom::sync::Arc::clone(&shared);
        let starts = thread::spawn(move || {
            let (tracking, leaf) = &*other;
            let cold = Cold::new(64).expect("the heap has room");
            let mut own = Own { options: LogOptions::new(tracker), starts: 0, cold };
            let _ = tracking.run(&mut own, &LogOptions::new(tracker)); // D8
            full_fence(); // D9
            *leaf.lock().unwrap() = true; // D10
        });
        let (tracking, leaf) = &*shared;
        let kept = tracking.hardware_logs_if_none_runs(); // B5
        let is_written = *leaf.lock().unwrap(); // L2
        let is_good = kept.is_some_and(|logs| logs == tracking.hardware_logs()); // L4
        found.lock().unwrap().insert(Found { is_written, is_good });
        starts.join().unwrap();
    });
    let found = all.lock().unwrap();
    found.clone()
}

const NOT_WRITTEN: [Found; 2] =
    [Found { is_written: false, is_good: false }, Found { is_written: false, is_good: true }];

/// The running log is published before the number of hardware-tracked logs. In the other order, a page that arrives
/// between the two keeps a copy with the new number, and the log then lets the guest write to it.
#[test]
fn no_copy_is_good_of_a_page_that_a_hardware_tracked_log_lets_the_guest_write() {
    for tracker in [Tracker::Hardware, Tracker::Combined, Tracker::Adaptive] {
        let expected = NOT_WRITTEN.into_iter().chain([Found { is_written: true, is_good: false }]);
        assert_eq!(found(tracker), expected.collect(), "{tracker:?}");
    }
}

/// With any other log the first write faults, and that ends the copy (E1).
#[test]
fn a_log_of_write_faults_leaves_copies_good() {
    for tracker in [Tracker::WriteProtect, Tracker::Manual] {
        let expected = [false, true].map(|is_written| Found { is_written, is_good: true });
        assert_eq!(found(tracker), expected.into(), "{tracker:?}");
    }
}
