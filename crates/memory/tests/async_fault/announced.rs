// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a fault is announced, with which content, and when the vCPU halts instead.

use twofold_abi::async_fault::{NO_TOKEN, TOKENS_MAX, WAKE_ALL, area};
use twofold_memory::async_fault::{Arrival, Mode, Next, Snapshot, VcpuFaults, Wait};
use twofold_stage2::Ipa;

use crate::rig::{AREA, AREA_PAGE, KERNEL, MASKED, Rig, USER, ipa, pc};

const HALTED: Next = Next::Wait(Wait::PageOrInterrupt);

#[test]
fn a_user_fault_is_announced_with_pc_and_sequence() {
    let mut rig = Rig::enabled();
    for (page, sequence) in [(3, 1_u64), (9, 2)] {
        assert_eq!(rig.fault(page), Next::Enter);
        let ram = &rig.host.ram;
        assert_ne!(ram.u32(area::NOT_PRESENT), NO_TOKEN);
        assert_eq!(ram.u32(area::LEVEL), 0);
        assert_eq!(ram.u64(area::PC), pc(page));
        assert_eq!(ram.u64(area::SEQUENCE), sequence);
        assert_eq!(rig.host.raised, sequence as usize);
        rig.consume();
    }
    assert_eq!(rig.host.started.iter().map(|(_, page)| *page).collect::<Vec<_>>(), [ipa(3), ipa(9)]);
}

#[test]
fn the_kernels_faults_are_announced_only_if_it_asks_for_them() {
    let mut users_only = Rig::enabled();
    assert_eq!(users_only.fault_in(1, KERNEL), HALTED);
    assert_eq!((users_only.not_present(), users_only.host.raised), (NO_TOKEN, 0));
    let mut both = Rig::enabled_with_kernel();
    assert_eq!(both.fault_in(1, KERNEL), Next::Enter);
    assert_eq!(both.host.ram.u32(area::LEVEL), 1);
    both.consume();
    assert_eq!(both.fault_in(2, USER), Next::Enter);
    assert_eq!(both.host.ram.u32(area::LEVEL), 0);
}

#[test]
fn a_guest_that_cannot_take_the_ppi_now_halts() {
    let masks: [fn(&mut Rig) -> u64; 6] = [
        |_| MASKED,
        |rig| {
            rig.context.interface.mask = 0xa0;
            USER
        },
        |rig| {
            rig.context.interface.running = 0xa0;
            USER
        },
        |rig| {
            rig.context.interface.enabled[1] = false;
            USER
        },
        |rig| {
            rig.context.ppi.enabled = false;
            USER
        },
        |rig| {
            rig.context.ppi.active = true;
            USER
        },
    ];
    for mask in masks {
        let mut rig = Rig::enabled_with_kernel();
        let pstate = mask(&mut rig);
        assert_eq!(rig.fault_in(1, pstate), HALTED);
        assert_eq!((rig.not_present(), rig.host.raised), (NO_TOKEN, 0));
    }
}

#[test]
fn a_guest_that_enabled_nothing_halts() {
    let mut rig = Rig::new(Mode::Pv);
    assert_eq!(rig.fault(1), HALTED);
    assert!(rig.host.ram.writes.borrow().is_empty());
}

#[test]
fn a_second_fault_on_a_page_in_flight_halts() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    assert_eq!(rig.fault(1), HALTED);
    assert_eq!((rig.not_present(), rig.host.started.len()), (NO_TOKEN, 1), "neither a token nor a request more");
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.ready(), token, "the first token is still announced");
}

#[test]
fn a_page_that_has_just_arrived_is_not_asked_for_again() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    assert!(rig.arrive(1), "and the vCPU has not been before its entry since");
    assert_eq!(rig.fault(1), Next::Enter);
    assert_eq!((rig.host.started.len(), rig.host.mapped.len()), (1, 1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.ready(), token);
}

#[test]
fn a_page_that_left_again_is_not_in_flight() {
    let mut rig = Rig::enabled();
    let first = rig.announced(1);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    let second = rig.announced(1);
    assert_ne!(first, second, "the first token is not acknowledged yet");
    assert_eq!(rig.host.started.len(), 2);
    assert_eq!(rig.take_ready(), first);
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.ready(), NO_TOKEN, "the second is still on its way");
}

#[test]
fn an_announcement_that_was_not_consumed_is_not_overwritten() {
    // Another interrupt was taken first, and its handler's task faults, with interrupts unmasked.
    let mut rig = Rig::enabled();
    assert_eq!(rig.fault(1), Next::Enter);
    let token = rig.not_present();
    assert_eq!(rig.fault(2), HALTED);
    assert_eq!((rig.not_present(), rig.host.ram.u64(area::PC)), (token, pc(1)));
    assert_eq!((rig.host.ram.u64(area::SEQUENCE), rig.host.raised), (1, 1));
}

#[test]
fn sixty_four_tokens_are_out_and_the_next_fault_halts() {
    let mut rig = Rig::enabled();
    let mut tokens: Vec<u32> = (0..TOKENS_MAX as u64).map(|page| rig.announced(page)).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), TOKENS_MAX);
    assert_eq!(rig.fault(100), HALTED);
    assert_eq!((rig.not_present(), rig.host.started.len()), (NO_TOKEN, TOKENS_MAX + 1));
    // An interrupt is taken meanwhile, and another task needs one page more.
    rig.host.interrupt = true;
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.host.interrupt = false;
    assert_eq!(rig.fault(101), HALTED);
    assert_eq!(rig.host.cancelled, [rig.ticket(ipa(100))], "the spare slot has one page");
    assert!(rig.arrive(101));
    assert_eq!(rig.before_entry(), Next::Enter);
    // A token is out until it is acknowledged.
    assert!(rig.arrive(7));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.fault(102), HALTED);
    assert!(rig.arrive(102));
    assert_eq!(rig.before_entry(), Next::Enter);
    rig.take_ready();
    rig.announced(103);
}

#[test]
fn an_absent_area_is_asked_for_while_the_spare_slot_is_in_use() {
    let mut rig = Rig::enabled();
    for page in 0..TOKENS_MAX as u64 {
        rig.announced(page);
    }
    assert_eq!(rig.fault(100), HALTED);
    rig.host.ram.absent.set(true);
    assert!(rig.arrive(0));
    assert_eq!(rig.before_entry(), HALTED, "token 0 is ready, and the area has left");
    let area = rig.ticket(AREA_PAGE);
    rig.host.ram.absent.set(false);
    assert!(rig.complete(area, Arrival::Present));
    assert_eq!(rig.before_entry(), HALTED);
    assert_ne!(rig.ready(), NO_TOKEN, "the token waits for the area alone");
    assert!(rig.arrive(100));
    assert_eq!(rig.before_entry(), Next::Enter);
}

#[test]
fn a_guest_that_never_acknowledges_harms_only_itself() {
    let mut rig = Rig::enabled();
    for page in 0..TOKENS_MAX as u64 {
        rig.announced(page);
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
    }
    assert_eq!(rig.host.raised, TOKENS_MAX + 1, "one token is ready, and no other follows");
    for page in 100..200 {
        assert_eq!(rig.fault(page), HALTED, "it works on, without tokens");
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
    }
    assert_eq!(rig.host.ram.writes.borrow().len(), TOKENS_MAX + 1);
}

#[test]
fn tokens_skip_the_values_that_mean_something() {
    let start =
        Snapshot { enabled: Some((Ipa::new(AREA), 0)), sequence: u64::from(u32::MAX) - 2, ..Snapshot::default() };
    let mut rig = restored(&start);
    let tokens = [1, 2, 3, 4].map(|page| rig.announced(page));
    assert_eq!(tokens, [u32::MAX - 1, 1, 2, 3], "neither {WAKE_ALL:#x} nor 0");
    assert_eq!(rig.host.ram.u64(area::SEQUENCE), u64::from(u32::MAX) + 2, "the sequence number has no gap");
}

#[test]
fn a_token_in_the_area_is_not_given_again() {
    // It was delivered on another machine, and the guest has not acknowledged it.
    let enabled = Some((Ipa::new(AREA), 0));
    let mut rig = restored(&Snapshot { enabled, sequence: 4, unacknowledged: 5, wake_all: false });
    assert_eq!(rig.announced(1), 6);
}

#[test]
fn an_absent_area_halts_and_is_asked_for() {
    let mut rig = Rig::enabled();
    rig.host.ram.absent.set(true);
    assert_eq!(rig.fault(1), HALTED);
    assert_eq!(rig.host.started.iter().map(|(_, page)| *page).collect::<Vec<_>>(), [ipa(1), AREA_PAGE]);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.fault(2), HALTED);
    assert_eq!(rig.host.started.len(), 3, "the area was asked for once");
    rig.host.ram.absent.set(false);
    assert!(rig.complete(rig.ticket(AREA_PAGE), Arrival::Present));
    assert!(rig.arrive(2));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.host.mapped, [ipa(1) + 8, ipa(2) + 8, Ipa::new(AREA)], "the guest will read the area soon");
    rig.announced(3);
}

fn restored(snapshot: &Snapshot) -> Rig {
    let ram = std::rc::Rc::new(crate::rig::Ram::new());
    let faults = VcpuFaults::restore(Mode::Pv, &*ram, snapshot).unwrap();
    Rig::around(faults, ram)
}
