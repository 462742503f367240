// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A migration with tokens out, and halts that stay behind.

use std::rc::Rc;

use twofold_abi::async_fault::{ENABLE, INVALID_PARAMETER, NO_TOKEN, SUCCESS, WAKE_ALL, area, flags};
use twofold_memory::async_fault::{Mode, Next, Refused, Snapshot, VcpuFaults, Wait};
use twofold_stage2::Ipa;

use crate::rig::{AREA, AREA_PAGE, KERNEL, Ram, Rig};

const HALTED: Next = Next::Wait(Wait::PageOrInterrupt);

/// The vCPU at the target, with the source's RAM.
fn moved(source: &Rig) -> Rig {
    let snapshot = source.faults.snapshot();
    let faults = VcpuFaults::restore(Mode::Pv, &*source.host.ram, &snapshot).unwrap();
    let mut target = Rig::around(faults, source.host.ram.clone());
    assert_eq!(target.faults.snapshot(), snapshot, "a restore followed by a snapshot");
    target.context = source.context;
    target
}

#[test]
fn tokens_that_are_out_become_one_wake_all() {
    let mut source = Rig::enabled_with_kernel();
    let tokens = [1, 2].map(|page| source.announced(page));
    let mut target = moved(&source);
    assert!(target.host.started.is_empty());
    assert_eq!(target.before_entry(), Next::Enter);
    assert_eq!((target.ready(), target.host.raised), (WAKE_ALL, 1));
    for token in tokens {
        assert_eq!(target.acknowledge(token), INVALID_PARAMETER, "the target never gave it");
    }
    assert_eq!(target.take_ready(), WAKE_ALL);
    assert_eq!(target.before_entry(), Next::Enter);
    assert_eq!((target.ready(), target.host.raised), (NO_TOKEN, 1), "once");
    // The woken tasks fault again. The flags and the sequence number came along.
    assert_eq!(target.fault_in(1, KERNEL), Next::Enter);
    assert_eq!(target.host.ram.u64(area::SEQUENCE), 3);
}

#[test]
fn a_token_that_is_ready_is_acknowledged_before_wake_all() {
    let mut source = Rig::enabled();
    let tokens = [1, 2].map(|page| source.announced(page));
    assert!(source.arrive(1));
    assert_eq!(source.before_entry(), Next::Enter);
    let mut target = moved(&source);
    assert_eq!(target.before_entry(), Next::Enter);
    assert_eq!((target.ready(), target.host.raised), (tokens[0], 0), "the PPI is pending in the GIC that moved");
    assert_eq!(target.take_ready(), tokens[0]);
    assert_eq!(target.take_ready(), WAKE_ALL);
    // With that token alone, no task waits for another. A page without a token does not matter.
    let mut source = Rig::enabled();
    let token = source.announced(1);
    assert!(source.arrive(1));
    assert_eq!(source.before_entry(), Next::Enter);
    assert_eq!(source.fault_in(2, KERNEL), HALTED);
    let mut target = moved(&source);
    assert_eq!(target.take_ready(), token);
    assert_eq!(target.before_entry(), Next::Enter);
    assert_eq!(target.ready(), NO_TOKEN);
}

#[test]
fn wake_all_that_was_not_acknowledged_moves_on() {
    let mut first = Rig::enabled();
    first.announced(1);
    let mut second = moved(&first);
    let mut third = moved(&second);
    assert_eq!(third.before_entry(), Next::Enter);
    assert_eq!(third.ready(), WAKE_ALL, "the second target never ran");
    assert_eq!(second.before_entry(), Next::Enter);
    let mut third = moved(&second);
    assert_eq!(third.before_entry(), Next::Enter);
    assert_eq!(third.take_ready(), WAKE_ALL);
    assert_eq!((third.ready(), third.host.raised), (NO_TOKEN, 0), "it is in the area already");
}

#[test]
fn wake_all_that_was_not_delivered_ends_with_a_disable() {
    let mut source = Rig::enabled();
    source.announced(1);
    let mut target = moved(&source);
    target.disable();
    assert_eq!(target.call(ENABLE, AREA, 0), SUCCESS);
    assert_eq!(target.before_entry(), Next::Enter);
    assert_eq!(target.ready(), NO_TOKEN, "the guest has woken its tasks itself");
}

#[test]
fn a_halt_stays_behind() {
    let mut source = Rig::enabled();
    assert_eq!(source.fault_in(1, KERNEL), HALTED);
    assert!(!source.faults.snapshot().wake_all, "no task waits for a token");
    let mut target = moved(&source);
    assert_eq!(target.before_entry(), Next::Enter, "and the guest repeats the access");
    assert_eq!(target.fault_in(1, KERNEL), HALTED);
    assert_eq!(target.host.started.len(), 1);
}

#[test]
fn a_cancelled_migration_leaves_the_source_as_it_was() {
    let mut source = Rig::enabled();
    let token = source.announced(1);
    source.faults.snapshot();
    assert!(source.arrive(1));
    assert_eq!(source.before_entry(), Next::Enter);
    assert_eq!(source.take_ready(), token);
}

#[test]
fn a_target_refuses_what_it_cannot_do() {
    let ram = Rc::new(Ram::new());
    let restore = |mode, snapshot: &Snapshot| VcpuFaults::restore(mode, &*ram, snapshot).map(|_| ());
    let area = Ipa::new(AREA);
    let enabled = |area, flags| Snapshot { enabled: Some((area, flags)), ..Snapshot::default() };
    for mode in [Mode::Off, Mode::Halt] {
        assert_eq!(restore(mode, &enabled(area, 0)), Err(Refused::NotOffered { area }));
        assert_eq!(restore(mode, &Snapshot::default()), Ok(()), "a guest that does not use it may come");
    }
    assert_eq!(restore(Mode::Pv, &enabled(area, flags::KERNEL)), Ok(()));
    assert_eq!(restore(Mode::Pv, &enabled(area, 2)), Err(Refused::Flags { flags: 2 }));
    for area in [area + 32, AREA_PAGE + 4096] {
        assert_eq!(restore(Mode::Pv, &enabled(area, 0)), Err(Refused::Area { area }));
    }
}

#[test]
fn a_guest_that_is_not_enabled_takes_nothing_along() {
    // Its stream says otherwise; the next kernel enables anew.
    let forged = Snapshot { enabled: None, sequence: 3, unacknowledged: 7, wake_all: true };
    let ram = Rc::new(Ram::new());
    let mut rig = Rig::around(VcpuFaults::restore(Mode::Pv, &*ram, &forged).unwrap(), ram);
    assert_eq!(rig.call(ENABLE, AREA, 0), SUCCESS);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.ready(), NO_TOKEN);
    rig.announced(1);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.take_ready();
}
