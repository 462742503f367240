// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Negative controls: each step of the protocol left out or weakened, and what the search then finds.

use twofold_migration::commit::{Action, Event, Owner, Ownership, Request, State, step};

use crate::world::{Commit, KEPT, ONE};
use crate::{breaks, stuck};

type Step = fn(Owner, State, Event) -> (State, Vec<Action>);

fn with(step: Step) -> Commit {
    Commit { step, ..Commit::default() }
}

/// The same, for what needs no long way to be found.
fn one_move(step: Step) -> Commit {
    Commit { moves: 1, ..with(step) }
}

#[track_caller]
fn two_run(commit: Commit) {
    assert!(breaks(&commit, ONE), "no state has two runners");
}

#[track_caller]
fn none_runs(commit: Commit) {
    assert!(stuck(&commit).1.is_some(), "from each state, one side runs in the end");
}

#[test]
fn c3_a_target_that_runs_before_the_swap() {
    two_run(with(|me, state, event| match (state, event) {
        (State::Idle { seen }, Event::Received(from)) if from.epoch >= seen => {
            let now = from.taken_by(me);
            (State::Running { owned: now }, vec![Action::Ask(Request::Take { from, by: me }), Action::Run])
        }
        _ => step(me, state, event),
    }));
}

#[test]
fn c2_a_source_that_runs_on_after_its_offer() {
    two_run(with(|me, state, event| match (state, event) {
        (State::Stopped { owned }, Event::Offer) => (State::Running { owned }, vec![]),
        _ => step(me, state, event),
    }));
}

#[test]
fn c2_a_stream_that_ends_before_the_offer() {
    two_run(Commit { ends_early: true, ..Commit::default() });
}

#[test]
fn c4_any_answer_taken_for_the_one_that_was_hoped_for() {
    two_run(with(|me, state, event| match (state, event) {
        (State::InDoubt { .. }, Event::Record(now)) => (State::Running { owned: now }, vec![Action::Run]),
        _ => step(me, state, event),
    }));
}

#[test]
fn r1_a_source_that_resumes_after_a_while_without_asking() {
    two_run(with(|me, state, event| match (state, event) {
        (State::InDoubt { from, .. }, Event::Tick) if from.owner == me => {
            (State::Running { owned: from }, vec![Action::Run])
        }
        _ => step(me, state, event),
    }));
}

#[test]
fn r1_a_source_that_reads_the_record_and_does_not_swap() {
    two_run(with(|me, state, event| match (state, event) {
        (State::InDoubt { from, .. }, Event::Tick | Event::Cancel) if from.owner == me => {
            (state, vec![Action::Ask(Request::Read)])
        }
        (State::InDoubt { from, .. }, Event::Record(now)) if now == from && now.owner == me => {
            (State::Running { owned: now }, vec![Action::Run])
        }
        _ => step(me, state, event),
    }));
}

#[test]
fn r3_a_side_that_starts_again_and_reads_the_record_but_does_not_swap() {
    two_run(with(|me, state, event| match (state, event) {
        (State::Idle { .. }, Event::Record(now)) if now.owner.host == me.host => {
            (State::Running { owned: now }, vec![Action::Boot])
        }
        _ => step(me, state, event),
    }));
}

#[test]
fn r3_a_side_that_starts_again_as_the_same_owner() {
    let commit = Commit { moves: 1, incarnations: false, ..Commit::default() };
    none_runs(commit);
}

#[test]
fn s1_an_arbiter_that_does_not_compare() {
    fn arbitrate(record: &mut Ownership, request: Request) -> Ownership {
        if let Request::Take { from, by } = request {
            *record = from.taken_by(by);
        }
        *record
    }
    two_run(Commit { arbitrate, ..Commit::default() });
}

#[test]
fn s1_an_arbiter_that_compares_owners_without_epochs() {
    fn arbitrate(record: &mut Ownership, request: Request) -> Ownership {
        if let Request::Take { from, by } = request
            && from.owner == record.owner
        {
            *record = record.taken_by(by);
        }
        *record
    }
    two_run(Commit { arbitrate, ..Commit::default() });
}

#[test]
fn r5_a_side_that_forgets_which_epochs_have_passed() {
    two_run(with(|me, state, event| match step(me, state, event) {
        (State::Idle { .. }, actions) => (State::START, actions),
        other => other,
    }));
}

#[test]
fn r2_a_side_in_doubt_that_asks_only_once() {
    let commit = one_move(|me, state, event| match (state, event) {
        (State::InDoubt { .. }, Event::Tick | Event::Cancel) => (state, vec![]),
        _ => step(me, state, event),
    });
    none_runs(commit);
}

#[test]
fn r2_a_side_in_doubt_that_gives_up() {
    let commit = one_move(|me, state, event| match (state, event) {
        (State::InDoubt { from, .. }, Event::Tick) => (State::Idle { seen: from.epoch }, vec![Action::Release]),
        _ => step(me, state, event),
    });
    none_runs(commit);
}

#[test]
fn r3_an_idle_side_that_never_reads_the_record() {
    let commit = one_move(|me, state, event| match (state, event) {
        (State::Idle { .. }, Event::Tick) => (state, vec![]),
        _ => step(me, state, event),
    });
    none_runs(commit);
}

#[test]
fn r3_a_side_that_boots_a_guest_whose_memory_it_could_have() {
    let commit = one_move(|me, state, event| match step(me, state, event) {
        (State::InDoubt { from, .. }, actions) => (State::InDoubt { from, boot: true }, actions),
        other => other,
    });
    assert!(breaks(&commit, KEPT));
}
