// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the guest learns that pages are present: the order, the acknowledgements, and what comes in between.

use twofold_abi::async_fault::{INVALID_PARAMETER, NO_TOKEN, SUCCESS, WAKE_ALL, area};
use twofold_memory::async_fault::Next;

use crate::rig::{AREA_PAGE, Rig, ipa};

#[test]
fn a_page_is_mapped_before_its_token_is_ready() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.ready(), rig.host.raised), (NO_TOKEN, 1), "not before the page is there");
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.host.mapped, [ipa(1) + 8]);
    assert_eq!((rig.ready(), rig.host.raised), (token, 2));
    assert_eq!(rig.take_ready(), token);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.ready(), rig.host.raised), (NO_TOKEN, 2), "delivered once");
}

#[test]
fn the_next_token_waits_for_the_acknowledgement() {
    let mut rig = Rig::enabled();
    let tokens = [1, 2, 3].map(|page| rig.announced(page));
    for page in [3, 1, 2] {
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
    }
    assert_eq!((rig.ready(), rig.host.raised), (tokens[2], 4), "the first that came");
    // The guest has taken the token, and has not acknowledged it: the next one is not written yet.
    rig.host.ram.set_u32(area::READY, 0);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.ready(), NO_TOKEN);
    assert_eq!(rig.acknowledge(tokens[2]), SUCCESS);
    assert_eq!(rig.take_ready(), tokens[0], "then the oldest");
    assert_eq!(rig.take_ready(), tokens[1]);
    assert_eq!((rig.ready(), rig.host.raised), (NO_TOKEN, 4), "an acknowledgement raises no interrupt");
}

#[test]
fn ready_and_not_present_are_in_the_area_together() {
    // The page came before the guest took the PPI: another interrupt was first.
    let mut rig = Rig::enabled();
    assert_eq!(rig.fault(1), Next::Enter);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    let token = rig.not_present();
    assert_eq!(rig.ready(), token, "the guest reads the announcement first, so it finds the task that it wakes");
    rig.consume();
    assert_eq!(rig.take_ready(), token);
    assert_eq!((rig.not_present(), rig.ready()), (NO_TOKEN, NO_TOKEN));
}

#[test]
fn only_the_token_in_the_area_can_be_acknowledged() {
    let mut rig = Rig::enabled();
    let tokens = [1, 2].map(|page| rig.announced(page));
    for never_given in [NO_TOKEN, tokens[0], 99, WAKE_ALL] {
        assert_eq!(rig.acknowledge(never_given), INVALID_PARAMETER, "{never_given}");
    }
    for page in [1, 2] {
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
    }
    assert_eq!(rig.acknowledge(tokens[1]), INVALID_PARAMETER, "its page is there, but it was not delivered");
    let wide = u64::from(tokens[0]) | 1 << 32;
    assert_eq!(rig.call(twofold_abi::async_fault::ACKNOWLEDGE, wide, 0), INVALID_PARAMETER);
    assert_eq!(rig.acknowledge(tokens[0]), SUCCESS);
    assert_eq!(rig.acknowledge(tokens[0]), INVALID_PARAMETER, "twice");
    assert_eq!(rig.take_ready(), tokens[1]);
    assert_eq!(rig.acknowledge(NO_TOKEN), INVALID_PARAMETER);
}

#[test]
fn a_token_waits_for_an_absent_area() {
    let mut rig = Rig::enabled();
    let tokens = [1, 2].map(|page| rig.announced(page));
    rig.host.ram.absent.set(true);
    for page in [1, 2] {
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
    }
    assert_eq!(rig.host.started.last().unwrap().1, AREA_PAGE);
    assert_eq!((rig.host.started.len(), rig.host.raised), (3, 2), "the area was asked for once");
    rig.host.ram.absent.set(false);
    assert!(rig.complete(rig.ticket(AREA_PAGE), twofold_memory::async_fault::Arrival::Present));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.ready(), rig.host.raised), (tokens[0], 3));
    // It leaves again before the acknowledgement, which writes the next token.
    rig.host.ram.absent.set(true);
    assert_eq!(rig.acknowledge(tokens[0]), SUCCESS);
    assert_eq!(rig.host.started.len(), 4);
    rig.host.ram.absent.set(false);
    assert!(rig.complete(rig.ticket(AREA_PAGE), twofold_memory::async_fault::Arrival::Present));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.ready(), rig.host.raised), (tokens[1], 4), "with an interrupt: the guest had read 0");
}
