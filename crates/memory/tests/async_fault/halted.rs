// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a vCPU that waits for a page goes on: the page comes, early or late, twice or never; it fails; an interrupt can be
//! taken.

use twofold_abi::async_fault::NO_TOKEN;
use twofold_memory::async_fault::{Arrival, Mode, Next, Wait};

use crate::rig::{AREA_PAGE, KERNEL, MASKED, Rig, USER, ipa};

const HALTED: Next = Next::Wait(Wait::PageOrInterrupt);
const BLOCKED: Next = Next::Wait(Wait::Page);

#[test]
fn a_halt_ends_with_its_page_or_an_interrupt() {
    let mut rig = Rig::new(Mode::Halt);
    assert_eq!(rig.fault(1), HALTED);
    assert_eq!(rig.before_entry(), HALTED, "nothing has happened");
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.host.mapped, [ipa(1) + 8], "the access finds the page mapped");
    assert_eq!(rig.fault(2), HALTED);
    rig.host.interrupt = true;
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.host.interrupt = false;
    assert_eq!(rig.fault(2), HALTED, "the task repeats the access too early");
    assert_eq!(rig.host.started.len(), 2, "one request for each page");
    assert!(rig.arrive(2));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.host.raised, 0);
}

#[test]
fn an_interrupt_that_is_there_at_the_fault_is_taken_at_once() {
    let mut rig = Rig::new(Mode::Halt);
    rig.host.interrupt = true;
    assert_eq!(rig.fault(1), Next::Enter);
    assert_eq!(rig.host.started.len(), 1, "the page comes meanwhile");
}

#[test]
fn several_pages_come_while_a_guest_halts_in_turns() {
    let mut rig = Rig::new(Mode::Halt);
    for page in 1..=3 {
        assert_eq!(rig.fault(page), HALTED);
        rig.host.interrupt = true;
        assert_eq!(rig.before_entry(), Next::Enter);
        rig.host.interrupt = false;
    }
    assert_eq!(rig.fault(1), HALTED);
    assert!(rig.arrive(3));
    assert_eq!(rig.before_entry(), HALTED, "that was another page");
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.host.mapped, [ipa(3) + 8, ipa(1) + 8]);
    assert!(rig.host.cancelled.is_empty());
}

#[test]
fn off_waits_for_the_page_alone() {
    let mut rig = Rig::new(Mode::Off);
    rig.host.interrupt = true;
    assert_eq!(rig.fault(1), BLOCKED);
    assert_eq!(rig.before_entry(), BLOCKED);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.fault(2), BLOCKED);
    assert!(rig.arrive(2));
    assert_eq!(rig.before_entry(), Next::Enter);
}

#[test]
fn a_store_that_is_early_costs_nothing() {
    for mode in [Mode::Off, Mode::Halt, Mode::Pv] {
        let mut rig = if mode == Mode::Pv { Rig::enabled() } else { Rig::new(mode) };
        rig.host.at_once = Some(Arrival::Present);
        assert_eq!(rig.fault(1), Next::Enter, "{mode:?}");
        assert_eq!((rig.not_present(), rig.host.raised), (NO_TOKEN, 0), "{mode:?}: nothing to announce");
        assert_eq!(rig.host.mapped, [ipa(1) + 8], "{mode:?}");
    }
}

#[test]
fn a_store_that_answers_twice_is_heard_once() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    let ticket = rig.ticket(ipa(1));
    assert!(rig.complete(ticket, Arrival::Present));
    assert!(!rig.complete(ticket, Arrival::Failed));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert!(!rig.complete(ticket, Arrival::Present));
    assert_eq!(rig.take_ready(), token);
    let other = rig.announced(2);
    assert!(!rig.complete(ticket, Arrival::Present), "the slot is in its next use");
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.ready(), rig.host.mapped.len()), (NO_TOKEN, 1), "{other} is not ready");
}

#[test]
fn a_store_that_never_answers_leaves_the_guest_its_interrupts() {
    let mut rig = Rig::enabled();
    assert_eq!(rig.fault_in(1, KERNEL), HALTED);
    for _ in 0..100 {
        rig.host.interrupt = true;
        assert_eq!(rig.before_entry(), Next::Enter);
        rig.host.interrupt = false;
        assert_eq!(rig.fault_in(1, KERNEL), HALTED);
    }
    rig.announced(2);
    assert_eq!(rig.host.started.len(), 2);
}

#[test]
fn a_masked_guest_halts_until_its_page_comes() {
    let mut rig = Rig::enabled_with_kernel();
    let token = rig.announced(1);
    assert_eq!(rig.fault_in(2, MASKED), HALTED);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), HALTED, "the token is ready, and the PPI is masked");
    assert_eq!(rig.ready(), token);
    assert!(rig.arrive(2));
    assert_eq!(rig.before_entry(), Next::Enter);
}

#[test]
fn a_failed_page_stops_the_guest_that_needs_it() {
    for mode in [Mode::Off, Mode::Halt, Mode::Pv] {
        let mut rig = Rig::new(mode);
        rig.host.interrupt = mode == Mode::Off;
        assert!(matches!(rig.fault(1), Next::Wait(_)));
        assert!(rig.complete(rig.ticket(ipa(1)), Arrival::Failed));
        assert_eq!(rig.before_entry(), Next::Stop { page: ipa(1) }, "{mode:?}");
        assert_eq!(rig.before_entry(), Next::Stop { page: ipa(1) }, "{mode:?}: it stays stopped");
        rig.retry_failed();
        assert!(matches!(rig.before_entry(), Next::Wait(_)), "{mode:?}");
        assert!(rig.arrive(1));
        assert_eq!(rig.before_entry(), Next::Enter, "{mode:?}");
        assert_eq!(rig.host.mapped, [ipa(1) + 8]);
    }
}

#[test]
fn a_page_that_fails_at_once_stops_the_guest() {
    let mut rig = Rig::enabled();
    rig.host.at_once = Some(Arrival::Failed);
    assert_eq!(rig.fault(1), Next::Stop { page: ipa(1) });
    assert_eq!((rig.not_present(), rig.host.raised), (NO_TOKEN, 0));
}

#[test]
fn an_announced_page_that_fails_stops_the_guest_and_comes_later() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    assert!(rig.complete(rig.ticket(ipa(1)), Arrival::Failed));
    assert_eq!(rig.before_entry(), Next::Stop { page: ipa(1) });
    assert_eq!(rig.ready(), NO_TOKEN);
    rig.retry_failed();
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.fault(1), HALTED, "it is in flight again");
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.take_ready(), token);
}

#[test]
fn a_failed_page_that_nothing_waits_for_stops_nothing() {
    let mut rig = Rig::new(Mode::Halt);
    assert_eq!(rig.fault(1), HALTED);
    rig.host.interrupt = true;
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.host.interrupt = false;
    assert!(rig.complete(rig.ticket(ipa(1)), Arrival::Failed));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.fault(1), HALTED, "the guest needs it after all, and it is asked for again");
    assert_eq!(rig.host.started.len(), 2);
}

#[test]
fn an_area_that_fails_stops_the_guest_that_needs_it() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    rig.host.ram.absent.set(true);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert!(rig.complete(rig.ticket(AREA_PAGE), Arrival::Failed));
    assert_eq!(rig.before_entry(), Next::Stop { page: AREA_PAGE });
    rig.retry_failed();
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.host.ram.absent.set(false);
    assert!(rig.complete(rig.ticket(AREA_PAGE), Arrival::Present));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.take_ready(), token);
}

#[test]
fn a_stopped_guest_takes_no_interrupt() {
    let mut rig = Rig::new(Mode::Halt);
    assert_eq!(rig.fault_in(1, USER), HALTED);
    assert!(rig.complete(rig.ticket(ipa(1)), Arrival::Failed));
    rig.host.interrupt = true;
    assert_eq!(rig.before_entry(), Next::Stop { page: ipa(1) });
}
