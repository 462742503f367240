// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends everything of a vCPU: disable, switching it off, and a reset.

use std::collections::BTreeSet;

use twofold_abi::async_fault::{ENABLE, INVALID_PARAMETER, NO_TOKEN, SUCCESS, area};
use twofold_memory::async_fault::{Arrival, Next, Ticket, Wait};

use crate::rig::{AREA, AREA_PAGE, KERNEL, Rig};

const HALTED: Next = Next::Wait(Wait::PageOrInterrupt);

/// A vCPU with a token that is ready and not acknowledged, one that waits for it, one in flight, one page without a
/// token, and the area's page in flight. Returns the tickets of the last three.
fn busy() -> (Rig, Vec<Ticket>) {
    let mut rig = Rig::enabled();
    for page in [1, 2, 3] {
        rig.announced(page);
    }
    for page in [1, 2] {
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
    }
    assert_eq!(rig.fault_in(4, KERNEL), HALTED);
    rig.host.ram.absent.set(true);
    rig.host.interrupt = true;
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.host.interrupt = false;
    assert_eq!(rig.fault(5), HALTED);
    rig.host.ram.absent.set(false);
    assert!(rig.arrive(5));
    assert_eq!(rig.before_entry(), Next::Enter);
    let tickets = [crate::rig::ipa(3), crate::rig::ipa(4), AREA_PAGE].map(|page| rig.ticket(page));
    (rig, tickets.to_vec())
}

/// Everything is cancelled, the store's late answers mean nothing, and nothing is left for the next use.
fn nothing_is_left(mut rig: Rig, tickets: Vec<Ticket>) {
    let cancelled: BTreeSet<Ticket> = rig.host.cancelled.iter().copied().collect();
    assert_eq!(cancelled, tickets.iter().copied().collect());
    assert_eq!(rig.host.lowered, 1);
    let (writes, mapped) = (rig.host.ram.writes.borrow().len(), rig.host.mapped.len());
    for ticket in &tickets {
        assert!(!rig.complete(*ticket, Arrival::Present));
    }
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.host.ram.writes.borrow().len(), rig.host.mapped.len()), (writes, mapped));
    assert_eq!(rig.fault(3), HALTED, "nothing is announced any more");
    assert!(rig.arrive(3));
    assert_eq!(rig.before_entry(), Next::Enter);
    // Enabled again, after the guest has zeroed its area.
    let stale = rig.ready();
    rig.host.ram.set_u32(area::READY, 0);
    assert_eq!(rig.call(ENABLE, AREA, 0), SUCCESS);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.ready(), NO_TOKEN, "no token of before");
    assert_eq!(rig.acknowledge(stale), INVALID_PARAMETER);
    let token = rig.announced(3);
    for ticket in &tickets {
        assert!(!rig.complete(*ticket, Arrival::Present), "the slots are in their next use");
    }
    assert!(rig.arrive(3));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.take_ready(), token);
}

#[test]
fn disable_cancels_everything() {
    let (mut rig, tickets) = busy();
    rig.disable();
    nothing_is_left(rig, tickets);
}

#[test]
fn a_vcpu_that_is_switched_off_leaves_nothing() {
    let (mut rig, tickets) = busy();
    rig.off();
    nothing_is_left(rig, tickets);
}

#[test]
fn a_reset_ends_a_halt() {
    let (mut rig, mut tickets) = busy();
    assert_eq!(rig.fault_in(6, KERNEL), HALTED);
    tickets.push(rig.ticket(crate::rig::ipa(6)));
    rig.off();
    nothing_is_left(rig, tickets);
}

#[test]
fn a_page_that_arrived_before_the_cancellation_is_dropped() {
    let mut rig = Rig::enabled();
    rig.announced(1);
    assert!(rig.arrive(1), "and the vCPU has not taken it");
    rig.disable();
    assert!(rig.host.cancelled.is_empty(), "the store has nothing to cancel");
    assert_eq!(rig.call(ENABLE, AREA, 0), SUCCESS);
    let token = rig.announced(2);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!((rig.ready(), rig.host.mapped.len()), (NO_TOKEN, 0), "the old hint does not make {token} ready");
}

#[test]
fn a_failed_page_is_forgotten() {
    let mut rig = Rig::enabled();
    rig.announced(1);
    assert!(rig.complete(rig.ticket(crate::rig::ipa(1)), Arrival::Failed));
    assert!(matches!(rig.before_entry(), Next::Stop { .. }));
    rig.off();
    assert_eq!(rig.before_entry(), Next::Enter);
}
