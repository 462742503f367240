// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong is refused by name, with the figures, and the source's guest goes on.

use twofold_memory::Frames;
use twofold_memory::dirty::Tracker;
use twofold_migration::AnswerError;
use twofold_migration::commit::{Side, State};
use twofold_migration::precopy::Cause;
use twofold_migration::receive::{Receive, ReceiveError};
use twofold_migration::stream::Capabilities;

use crate::guest::{capabilities, places};
use crate::link::Arbiter;
use crate::moved::{Move, Still, first};
use crate::sides::Target;
use crate::streams::{refusal, stream};

/// Returns what the source learns.
fn refused(change: impl FnOnce(&mut Move)) -> String {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (40, 80));
    let mut all = Move::new(Tracker::Manual);
    change(&mut all);
    let arbiter = Arbiter::new(first());
    let moved = all.go(&guest, &mut there, &arbiter);
    let failed = moved.result.as_ref().unwrap_err();
    let Cause::Answer(AnswerError::Refused(why)) = failed.cause.clone() else { panic!("{failed}") };
    assert!(moved.received.is_err() && moved.check(&guest, &mut there, &arbiter).is_none());
    guest.work(0, 100);
    why
}

#[test]
fn a_target_that_lacks_something_says_what() {
    let here = |here: Capabilities| move |all: &mut Move| all.here = here;
    let without = Capabilities { features: vec![], ..capabilities() };
    let start = "stream 0: record 0, which starts at byte 0: the guest";
    assert_eq!(refused(here(without)), format!("{start} was given sve with value 1, and this target does not have it"));
    let small = Capabilities { memory: 1 << 20, vcpus: 0, ..capabilities() };
    let why = refused(here(small));
    assert_eq!(
        why,
        format!(
            "{start} has 1 vCPUs, and this target at most 0; \
             the guest has 1617920 bytes of memory, and this target at most 1048576"
        )
    );
    let model = refused(|all| all.change = |hello| hello.model = crate::guest::name("virt-9"));
    assert_eq!(model, format!("{start}'s machine is virt-9, and this target builds virt-1"));
    let section = refused_late(|_| (), |all| all.change = |hello| hello.vcpus = 3);
    assert_eq!(section, "the state of 1 vCPUs came, and the guest has 3");
}

/// Returns what a target says to a guest whose hello it has accepted.
fn refused_late(place: impl FnOnce(&mut crate::guest::Place), change: impl FnOnce(&mut Move)) -> String {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (40, 80));
    let mut all = Move::new(Tracker::Manual);
    change(&mut all);
    place(&mut there);
    let arbiter = Arbiter::new(first());
    let moved = all.go(&guest, &mut there, &arbiter);
    let why = moved.refused.concat();
    assert!(moved.received.is_err() && moved.check(&guest, &mut there, &arbiter).is_none());
    guest.work(0, 100);
    why
}

#[test]
fn a_target_that_runs_out_of_memory_says_where() {
    let why = refused_late(
        |place| {
            // One huge page, and some frames for tables.
            let mut frames = Frames::new(place.frames.as_ref().unwrap().features());
            frames.add(place.machine.arena().donate_part(10 << 20, 4 << 20).unwrap());
            place.frames = Some(frames);
        },
        |_| (),
    );
    assert_eq!(why, "no memory is left to back the guest at 0x40003000");
}

#[test]
fn a_side_that_has_a_guest_takes_no_other() {
    let [_, mut there] = places();
    let arbiter = Arbiter::new(first());
    let mut target = Target::new(&mut there, None, &arbiter);
    let side = Side::new(first().owner, State::Running { owned: first() });
    let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &Still };
    let bytes = stream(0, 1, |_| ());
    let refused = receive.run(vec![&bytes[..]], &side, &mut target).unwrap_err();
    assert_eq!(refused, ReceiveError::Busy(side.state()));
    assert!(target.guest.is_none());
}

#[test]
fn a_stream_of_another_version_is_named() {
    let mut bytes = stream(0, 1, |_| ());
    bytes[8] = 99;
    let why = refusal(&[&bytes]).to_string();
    assert!(why.ends_with("a stream of version 99, and this target reads 1 to 2"), "{why}");
}

#[test]
fn a_stream_that_is_cut_repeated_or_changed_is_no_guest() {
    let bytes = stream(0, 1, |_| ());
    for end in (0..bytes.len()).filter(|end| end % 211 == 0 || end + 60 > bytes.len()) {
        let why = refusal(&[&bytes[..end]]).to_string();
        assert!(why.contains("the stream is cut"), "{why}");
        let mut changed = bytes.clone();
        changed[end] ^= 1;
        refusal(&[&changed]);
        // From here on, all comes again.
        let twice = [&bytes[..end], &bytes[end.saturating_sub(100)..]].concat();
        if end > 0 {
            refusal(&[&twice]);
        }
    }
}

#[test]
fn sections_larger_than_is_allowed_are_refused_before_they_come() {
    let bytes = stream(0, 1, |writer| {
        writer.section(crate::guest::name("vcpu"), 9, 1, &vec![1; 3 << 20]).unwrap();
    });
    let why = refusal(&[&bytes]).to_string();
    assert_eq!(why, "section vcpu, instance 9, has 3145728 bytes, and 1048576 are left of those allowed");
}
