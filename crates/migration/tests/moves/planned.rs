// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What pre-copy plans, and what then happens.

use std::time::Duration;

use twofold_memory::dirty::Tracker;
use twofold_migration::plan::{Outcome, Plan, Wanted};
use twofold_migration::precopy::{Cause, dry_run};

use crate::guest::places;
use crate::link::{Arbiter, Virtual};
use crate::moved::{Move, first};
use crate::sides::Source;

/// As many milliseconds of downtime, and state and commit take one of them.
fn wanted(downtime: u64) -> Wanted {
    let (downtime, fixed) = (Duration::from_millis(downtime), Duration::from_millis(1));
    Wanted { downtime, fixed, rounds: 30, throttle: 990, forced: false }
}

#[test]
fn the_guest_stands_still_no_longer_than_was_asked_for() {
    for tracker in Tracker::ALL {
        let [mut here, mut there] = places();
        let guest = here.boot(1, (40, 80));
        let all = Move { wanted: wanted(2), rates: vec![30_000], ..Move::new(tracker) };
        let arbiter = Arbiter::new(first());
        let moved = all.go(&guest, &mut there, &arbiter);
        let sent = moved.result.as_ref().unwrap().sent;
        assert!(sent.rounds > 1 && sent.stopped <= all.wanted.downtime, "{tracker:?}: {sent:?}");
        assert!(sent.last_pages > 0 && sent.pages > sent.last_pages + 395, "{tracker:?}: {sent:?}");
        assert!(matches!(moved.plans.last(), Some((_, _, Plan::Stop(_)))));
        assert!(moved.check(&guest, &mut there, &arbiter).is_some());
    }
}

/// Each of the three memslots takes 0.2 ms to report, once more while the guest stands still.
#[test]
fn the_last_get_is_a_part_of_the_downtime() {
    for tracker in Tracker::ALL {
        let [mut here, mut there] = places();
        let guest = here.boot(1, (300, 50));
        let wanted = Wanted { fixed: Duration::from_micros(100), rounds: 60, ..wanted(4) };
        let all = Move { wanted, get: 200_000, rates: vec![25_000], ..Move::new(tracker) };
        let arbiter = Arbiter::new(first());
        let moved = all.go(&guest, &mut there, &arbiter);
        let sent = moved.result.as_ref().unwrap().sent;
        assert!(sent.stopped <= wanted.downtime, "{tracker:?}: {sent:?}");
        assert!(matches!(moved.plans.last(), Some((_, _, Plan::Stop(_)))));
        // Not for want of pages: more of them would not fit.
        assert!(sent.stopped > wanted.downtime / 4, "{tracker:?}: {sent:?}");
        assert!(moved.check(&guest, &mut there, &arbiter).is_some());
    }
}

#[test]
fn the_vcpus_that_write_most_are_slowed_down_by_the_least_that_suffices() {
    for tells_apart in [true, false] {
        let [mut here, mut there] = places();
        let guest = here.boot(2, (390, 0));
        let rates = vec![200_000, 2_000];
        let all = Move { wanted: wanted(2), tells_apart, rates, ..Move::new(Tracker::Manual) };
        let arbiter = Arbiter::new(first());
        let moved = all.go(&guest, &mut there, &arbiter);
        let sent = moved.result.as_ref().unwrap().sent;
        assert!(sent.stopped <= all.wanted.downtime, "{sent:?}");
        let throttled: Vec<_> =
            moved.throttles.iter().filter(|slowed| slowed.iter().any(|&slowed| slowed > 0)).collect();
        assert!(!throttled.is_empty());
        for slowed in throttled {
            if tells_apart {
                assert!(slowed[0] > 0 && slowed[1] == 0, "{slowed:?}");
            } else {
                assert_eq!(slowed.len(), 1, "one number for all");
            }
        }
        assert!(moved.check(&guest, &mut there, &arbiter).is_some());
    }
}

/// Both vCPUs use the same pages, and one of them reads. The machine counts which vCPU's writes fault.
#[test]
fn of_two_vcpus_the_one_that_writes_is_slowed_down() {
    for tracker in [Tracker::WriteProtect, Tracker::Manual] {
        for writer in 0..2 {
            let [mut here, mut there] = places();
            let guest = here.boot(2, (390, 0));
            guest.vcpus.lock().unwrap()[1 - writer].program_mut().reads = true;
            let rates = vec![200_000; 2];
            let all = Move { wanted: wanted(2), tells_apart: true, rates, ..Move::new(tracker) };
            let arbiter = Arbiter::new(first());
            let moved = all.go(&guest, &mut there, &arbiter);
            let throttled: Vec<_> =
                moved.throttles.iter().filter(|slowed| slowed.iter().any(|&slowed| slowed > 0)).collect();
            assert!(!throttled.is_empty(), "{tracker:?}: {:?}", moved.plans);
            for slowed in throttled {
                assert!(slowed[writer] > 0 && slowed[1 - writer] == 0, "{tracker:?}: {slowed:?}");
            }
            assert!(moved.check(&guest, &mut there, &arbiter).is_some());
        }
    }
}

#[test]
fn a_guest_that_was_slowed_down_and_stays_is_at_full_speed_again() {
    let [mut here, mut there] = places();
    let guest = here.boot(2, (390, 0));
    let unsaved = Some("the timer is busy".into());
    let all = Move { wanted: wanted(2), rates: vec![200_000, 2_000], unsaved, ..Move::new(Tracker::Manual) };
    let arbiter = Arbiter::new(first());
    let moved = all.go(&guest, &mut there, &arbiter);
    assert!(moved.result.is_err() && moved.throttles.iter().flatten().any(|&slowed| slowed > 0));
    assert!(moved.check(&guest, &mut there, &arbiter).is_none());
}

#[test]
fn a_guest_that_writes_too_fast_stays_and_the_figures_are_named() {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (390, 0));
    let wanted = Wanted { throttle: 0, ..wanted(2) };
    let all = Move { wanted, rates: vec![200_000], ..Move::new(Tracker::Hardware) };
    let arbiter = Arbiter::new(first());
    let moved = all.go(&guest, &mut there, &arbiter);
    let failed = moved.result.as_ref().unwrap_err();
    let Cause::Never(forecast) = failed.cause else { panic!("{failed}") };
    assert!(matches!(forecast.outcome, Outcome::TooFast { .. }));
    assert!(failed.to_string().contains("pages a second are written and"), "{failed}");
    assert!(moved.check(&guest, &mut there, &arbiter).is_none());
    guest.work(0, 100);
}

#[test]
fn no_more_is_sent_in_a_second_than_the_limit_says() {
    for streams in [1, 3] {
        let [mut here, mut there] = places();
        let guest = here.boot(1, (40, 80));
        let limit = Some(10_000_000);
        let all = Move { limit, streams, wanted: wanted(30), ..Move::new(Tracker::Manual) };
        let arbiter = Arbiter::new(first());
        let moved = all.go(&guest, &mut there, &arbiter);
        let sent = moved.result.as_ref().unwrap().sent;
        let rate = sent.bytes as f64 / sent.time.as_secs_f64();
        // The streams run one after another here, each with its part.
        let limit = 10_000_000.0 / streams as f64;
        assert!(rate < limit * 1.3 && rate > limit * 0.5, "{rate} bytes a second: {sent:?}");
        assert!(moved.check(&guest, &mut there, &arbiter).is_some());
    }
}

#[test]
fn a_dry_run_says_beforehand_what_will_happen() {
    for (tracker, rate) in Tracker::ALL.into_iter().flat_map(|tracker| [(tracker, 10_000), (tracker, 200_000)]) {
        let [mut here, mut there] = places();
        let guest = here.boot(1, (390, 0));
        let wanted = Wanted { throttle: 0, ..wanted(3) };
        let arbiter = Arbiter::new(first());
        let clock = Virtual::new(&guest, 10, &[rate]);
        let mut source = Source::new(&clock, &arbiter);
        // About the pages that the link carries: a quarter of them has content.
        let ram = guest.ram(tracker);
        let dry = dry_run(&ram, (Duration::from_millis(2), &clock), (60_000, &wanted), 1, &mut source).unwrap();
        assert!(!guest.logs() && source.stopped.is_none() && source.throttles.is_empty());
        assert!(dry.written > 5 && dry.time >= Duration::from_millis(2), "{dry:?}");
        drop(ram);
        let all = Move { wanted, rates: vec![rate], ..Move::new(tracker) };
        let moved = all.go(&guest, &mut there, &arbiter);
        match (&dry.plan, &moved.result) {
            (Plan::Round(forecast), Ok(offered)) => {
                let (said, came) = (forecast.total.as_secs_f64(), offered.sent.time.as_secs_f64());
                assert!(came < said * 2.0 && said < came * 2.0, "{tracker:?}: {said} s were said, {came} came");
            }
            (Plan::Never(_), Err(failed)) => assert!(matches!(failed.cause, Cause::Never(_))),
            (said, came) => panic!("{tracker:?}, {rate} writes a second: {said:?}, and then {came:?}"),
        }
    }
}
