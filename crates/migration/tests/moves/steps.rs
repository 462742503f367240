// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of pre-copy around its rounds: what is refused, measured, planned and left for a post-copy.

use std::time::Duration;

use twofold_migration::commit::{Embedder, Ownership, Request};
use twofold_migration::plan::{Outcome, Plan, Throttle, Wanted};
use twofold_migration::precopy::{Cause, Failed, Host, Postcopy, dry_run};
use twofold_migration::{Cancel, Section};

use crate::guest::name;
use crate::noted::{ALL, Memory, Plain, Ram, SECOND, Sends, lines};

#[test]
fn a_migration_has_1_to_64_streams() {
    let memory = Memory::new(&[64]);
    for (streams, good) in [(0, false), (1, true), (64, true), (65, false)] {
        let (sent, _) = Sends::new(&memory, streams).go();
        let refused = Failed { cause: Cause::Streams(streams), stream: None };
        assert_eq!(sent.map(|sent| sent.rounds), if good { Ok(1) } else { Err(refused) });
    }
}

#[test]
fn a_hello_with_another_page_size_than_the_memorys_is_refused() {
    let memory = Memory::new(&[64]);
    for (page_shift, size) in [(14, 1 << 14), (63, 1 << 63), (64, 0)] {
        let sends = Sends { page_shift, ..Sends::new(&memory, 1) };
        let cause = Cause::PageSize { hello: size, ram: 4096 };
        assert_eq!(sends.go(), (Err(Failed { cause: cause.clone(), stream: None }), vec![vec![]]));
        assert_eq!(sends.save(), Err(cause));
    }
}

/// A log of which each page is cleared and read once, and one of which that is not so.
#[test]
fn a_log_is_started_for_all_pages_only_to_send_them() {
    let memory = Memory::new(&[64, 64]);
    Sends::new(&memory, 1).go().0.unwrap();
    dry_run(&Ram(&memory), (SECOND, &memory.clock), (100, &ALL), 2, &mut Plain::default()).unwrap();
    Sends { postcopy: Postcopy::AtOnce, ..Sends::new(&memory, 1) }.go().0.unwrap();
    assert_eq!(*memory.starts.lock().unwrap(), [true, false]);
}

#[test]
fn what_was_cancelled_before_sends_nothing_and_stops_no_guest() {
    let (memory, cancel) = (Memory::new(&[64]), Cancel::new());
    cancel.cancel();
    let sends = Sends { cancel: &cancel, ..Sends::new(&memory, 2) };
    let withdrawn = sends.go();
    assert_eq!(withdrawn.0, Err(Failed { cause: Cause::Cancelled, stream: None }));
    assert!(withdrawn.1[0].len() < 100 && memory.starts.lock().unwrap().is_empty() && sends.host.borrow().stops == 0);
}

/// A link that is cut anywhere, and a state that cannot be saved.
#[test]
fn the_stream_that_fails_is_named() {
    let mut memory = Memory::new(&[64, 64]);
    memory.precedes = vec![1];
    let state = vec![Section { name: name("vcpu"), instance: 0, version: 1, bytes: vec![7; 100] }];
    let (mut room, mut failed) = (0, 0);
    loop {
        let host = Plain { state: state.clone(), ..Plain::default() }.into();
        let sends = Sends { postcopy: Postcopy::AtOnce, room, host, ..Sends::new(&memory, 1) };
        let (sent, _) = sends.go();
        match sent {
            Err(failed) => assert_eq!((failed.stream, failed.to_string().contains("ConnectionReset")), (Some(0), true)),
            Ok(_) => break,
        }
        (room, failed) = (room + 16, failed + 1);
    }
    assert!(failed > 30, "{failed}");
    let host = Plain { unsaved: Some("a timer".into()), ..Plain::default() }.into();
    let (sent, _) = Sends { host, ..Sends::new(&memory, 1) }.go();
    assert_eq!(sent, Err(Failed { cause: Cause::State("a timer".into()), stream: Some(0) }));
}

/// All pages of the other memslots are absent.
#[test]
fn pages_that_precede_are_sent_by_a_post_copy_too() {
    for (precedes, lines_there) in [
        (0, ["round 1", "7: 0+64", "8: 0 absent [7]", "9: 0 absent [1]"]),
        (1, ["round 1", "8: 0+3", "7: 0 absent [18446744073709551615]", "9: 0 absent [1]"]),
    ] {
        let mut memory = Memory::new(&[64, 3, 1]);
        memory.precedes = vec![precedes];
        let (sent, bytes) = Sends { postcopy: Postcopy::AtOnce, ..Sends::new(&memory, 1) }.go();
        let count = memory.slots[precedes].pages;
        assert_eq!(sent.map(|sent| (sent.rounds, sent.pages, sent.last_pages)), Ok((0, count, count)));
        assert_eq!(lines(&bytes[0]), lines_there);
    }
}

/// A get takes as long again as the last one, and as long for the pages that are written meanwhile; half of the time is
/// left to pages.
#[test]
fn the_last_get_is_twice_as_long_as_the_one_before_or_half_of_what_pages_have() {
    for (get, fixed) in [(10, 20), (40, 50), (100, 50)] {
        let mut memory = Memory::new(&[100]);
        memory.full = (0..100).map(|page| (0, page)).collect();
        // 1,000 pages a second, and one is left.
        (memory.read, memory.get) = (1_000_000, get * 1_000_000);
        memory.written = vec![vec![], vec![(0, 9)]];
        let wanted = Wanted { downtime: SECOND / 10, fixed: Duration::ZERO, ..ALL };
        let sends = Sends { wanted, ..Sends::new(&memory, 1) };
        sends.go().0.unwrap();
        let host = sends.host.borrow();
        let [(100, _, Plan::Stop(forecast))] = &host.rounds[..] else { panic!("{:?}", host.rounds) };
        assert_eq!(forecast.downtime, Duration::from_millis(fixed + 1), "a get of {get} ms");
    }
}

/// 100 pages fit the second that pages have. After a round 78 would be left: more than three quarters of that.
#[test]
fn rounds_aim_at_three_quarters_of_the_time_for_pages() {
    let mut memory = Memory::new(&[512]);
    memory.full = (0..512).map(|page| (0, page)).collect();
    memory.read = 10_000_000;
    memory.written = vec![vec![], (0..200).map(|page| (0, page)).collect()];
    let wanted = Wanted { downtime: 2 * SECOND, ..ALL };
    let sends = Sends { wanted, ..Sends::new(&memory, 1) };
    sends.go().0.unwrap();
    let host = sends.host.borrow();
    let (512, _, Plan::Round(forecast)) = &host.rounds[0] else { panic!("{:?}", host.rounds) };
    assert_eq!((forecast.outcome, forecast.rounds, forecast.pages), (Outcome::Converges, 2, 200 + 78 + 30));
}

#[test]
fn an_embedder_that_counts_no_writes_slows_all_vcpus_down_by_one_number() {
    let mut memory = Memory::new(&[64 * 10]);
    memory.full = (0..64 * 10).map(|page| (0, page)).collect();
    memory.clock.byte = 10;
    memory.written = vec![vec![], (0..64 * 10).map(|page| (0, page)).collect(), vec![]];
    let sends =
        Sends { wanted: Wanted { throttle: 999, downtime: SECOND + SECOND / 1000, ..ALL }, ..Sends::new(&memory, 1) };
    sends.go().0.unwrap();
    let host = sends.host.borrow();
    assert!(
        matches!(&host.rounds[0], (640, _, Plan::Throttle(throttle, _)) if throttle.slowed.len() == 1),
        "{:?}",
        host.rounds
    );
    assert!(host.throttles.iter().all(|slowed| slowed.len() == 1), "{:?}", host.throttles);
}

/// A guest's embedder that counts what each vCPU writes: the second writes nothing while it is watched.
struct Counts {
    plain: Plain,
    calls: u64,
}

impl Embedder for Counts {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        self.plain.ask(request)
    }

    fn run(&mut self) {}

    fn boot(&mut self) {}

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl Host for Counts {
    fn stop(&mut self) {
        panic!("a dry run stops no guest");
    }

    fn throttle(&mut self, throttle: &Throttle) {
        self.plain.throttle(throttle);
    }

    fn state(&mut self) -> Result<Vec<Section>, String> {
        self.plain.state()
    }

    fn written(&mut self, by_vcpu: &mut [u64]) -> bool {
        by_vcpu[0] += 1;
        by_vcpu[1] += if self.calls == 0 { 1000 } else { 0 };
        self.calls += 1;
        true
    }
}

/// What vCPUs wrote before, and in which memslot they write.
#[test]
fn a_dry_run_counts_what_is_written_in_its_time() {
    let mut memory = Memory::new(&[64 * 10, 64]);
    memory.written = vec![(0..300).map(|page| (0, page)).chain([(1, 1)]).collect()];
    let mut host = Counts { plain: Plain::default(), calls: 0 };
    // What is written in a second takes three seconds to send.
    let wanted = Wanted { throttle: 999, downtime: 2 * SECOND, ..ALL };
    let dry = dry_run(&Ram(&memory), (SECOND, &memory.clock), (100, &wanted), 2, &mut host).unwrap();
    assert_eq!((dry.written, dry.time, host.calls), (301, SECOND, 2));
    let Plan::Throttle(throttle, _) = dry.plan else { panic!("{:?}", dry.plan) };
    assert!(throttle.slowed[0] > 0 && throttle.slowed[1] == 0, "{throttle:?}");
}
