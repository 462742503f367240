// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A migration that is cancelled, at any step, and one that fails by itself: the guest goes on, without a log and at
//! full speed.

use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::precopy::Cause;
use twofold_migration::receive::ReceiveError;

use crate::guest::places;
use crate::link::Arbiter;
use crate::moved::{Move, first};

#[test]
fn a_migration_is_cancelled_at_each_step() {
    for (tracker, streams) in [(Tracker::WriteProtect, 1), (Tracker::Adaptive, 2), (Tracker::Manual, 1)] {
        let [mut here, mut there] = places();
        let all = Move { streams, ..Move::new(tracker) };
        let calls = {
            let guest = here.boot(1, (40, 80));
            let arbiter = Arbiter::new(first());
            let moved = all.go(&guest, &mut there, &arbiter);
            let calls = moved.calls;
            let came = moved.check(&guest, &mut there, &arbiter).unwrap();
            there.end(came);
            here.end(guest);
            calls
        };
        let guest = here.boot(1, (40, 80));
        let mut cancelled = 0;
        // All steps at the start and at the end, and some between. The last call writes the end.
        for step in (0..calls).filter(|&step| step < 12 || step % 97 == 0 || step + 12 > calls) {
            let (cancel, arbiter) = (Cancel::new(), Arbiter::new(first()));
            let hook = |call| {
                if call == step {
                    cancel.cancel();
                }
            };
            let from = &guest;
            // The hook lives as long as the guest's borrow here.
            let moved = all.go_with(from, &mut there, &arbiter, |ram| ram, &cancel, Some(&hook));
            let result = moved.result.as_ref().map_err(|failed| failed.cause.clone()).map(|_| ());
            if moved.received == Ok(()) {
                assert_eq!(result, Ok(()));
            } else {
                assert_eq!(result, Err(Cause::Cancelled));
                assert!(matches!(moved.received, Err(ReceiveError::Withdrawn(_))), "{:?}", moved.received);
                assert_eq!(*arbiter.record.lock().unwrap(), first());
                cancelled += 1;
            }
            match moved.check(from, &mut there, &arbiter) {
                // The guest there is a copy of a guest that goes on here: for this test alone.
                Some(came) => {
                    there.end(came);
                    from.running.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                None => assert!(from.running.load(std::sync::atomic::Ordering::Relaxed)),
            }
            from.work(0, 100);
        }
        assert!(cancelled > 20, "{tracker:?}: {cancelled} of {calls}");
    }
}

#[test]
fn a_guest_whose_state_cannot_be_saved_goes_on() {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (40, 80));
    let all = Move { unsaved: Some("the timer is busy".into()), ..Move::new(Tracker::Combined) };
    let arbiter = Arbiter::new(first());
    let moved = all.go(&guest, &mut there, &arbiter);
    assert_eq!(moved.result.as_ref().unwrap_err().to_string(), "the guest stays: the timer is busy");
    assert_eq!(moved.received, Err(ReceiveError::Withdrawn("the timer is busy".into())));
    assert!(moved.check(&guest, &mut there, &arbiter).is_none());
    guest.work(0, 100);
}

#[test]
fn a_migration_that_is_cancelled_before_it_starts_sends_nothing() {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (40, 80));
    let (cancel, arbiter) = (Cancel::new(), Arbiter::new(first()));
    cancel.cancel();
    let moved = Move::new(Tracker::Manual).go_with(&guest, &mut there, &arbiter, |ram| ram, &cancel, None);
    assert_eq!(moved.result.as_ref().unwrap_err().cause, Cause::Cancelled);
    assert!(moved.throttles.iter().flatten().all(|&slowed| slowed == 0));
    assert!(moved.check(&guest, &mut there, &arbiter).is_none());
}
