// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of two vCPUs, on one physical CPU or on two.
//!
//! The second vCPU, the partner, does what [`ROLE`] says, until the first one gives it another role. Each takes one of
//! two turns in [`TURN`]: even numbers are the first vCPU's. Invariant: the first vCPU changes the role only when it
//! has the turn, so the partner is between two events.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use twofold_abi::exits::{SGI_OTHER, SGI_WAKE, SWITCH};

use super::interrupts::{self, Interrupts, SGI};
use super::{Failure, counter, report};
use crate::{psci, vcpus};

/// Measures them.
pub fn run(interrupts: &mut Interrupts, count: u64) -> Result<(), Failure> {
    interrupts.wake(1)?;
    vcpus::prepare(PARTNER, partner);
    let answer = vcpus::start(PARTNER, 1);
    if answer != 0 {
        return Err(Failure::NotStarted(answer));
    }
    switch(count);
    sleep_and_wake(count)?;
    sgi_other(count);
    ROLE.store(DONE, Ordering::Relaxed);
    give_turn();
    Ok(())
}

/// The place of the second vCPU among the workers.
const PARTNER: usize = 0;

/// What the partner does at its turn.
static ROLE: AtomicU64 = AtomicU64::new(PASS);
/// Gives the turn back.
const PASS: u64 = 0;
/// Sleeps in WFI until the SGI comes, and sends one back.
const ANSWER: u64 = 1;
/// Takes the SGIs that came, and gives the turn back.
const DRAIN: u64 = 2;
/// Switches itself off.
const DONE: u64 = 3;

static TURN: AtomicU64 = AtomicU64::new(0);

fn switch(count: u64) {
    ROLE.store(PASS, Ordering::Relaxed);
    give_turn();
    wait_for_turn(0);
    let start = counter();
    for _ in 0..count {
        give_turn();
        wait_for_turn(0);
    }
    report(&SWITCH, 2 * count, counter() - start);
}

fn sleep_and_wake(count: u64) -> Result<(), Failure> {
    ROLE.store(ANSWER, Ordering::Relaxed);
    give_turn();
    let mut start = counter();
    for event in 0..=count {
        // The first one is not counted: it waits for the partner to get there.
        if event == 1 {
            start = counter();
        }
        if event == count {
            ROLE.store(PASS, Ordering::Relaxed);
        }
        interrupts::send(1);
        sleep_until_pending();
        interrupts::take(SGI)?;
    }
    report(&SGI_WAKE, 2 * count, counter() - start);
    wait_for_turn(0);
    Ok(())
}

fn sgi_other(count: u64) {
    ROLE.store(DRAIN, Ordering::Relaxed);
    let mut ticks = 0;
    for _ in 0..count {
        let start = counter();
        interrupts::send(1);
        ticks += counter() - start;
        give_turn();
        wait_for_turn(0);
    }
    report(&SGI_OTHER, count, ticks);
}

/// The second vCPU.
extern "C" fn partner(_: usize) {
    interrupts::open();
    loop {
        wait_for_turn(1);
        match ROLE.load(Ordering::Relaxed) {
            ANSWER => answer(),
            DRAIN => {
                // Sent before the turn was given, so it is here, or on its way.
                let _ = interrupts::take(SGI);
            }
            DONE => return,
            _ => {}
        }
        give_turn();
    }
}

/// Answers each SGI by one, as long as this is the role.
fn answer() {
    loop {
        sleep_until_pending();
        // A wrong interrupt would end the first vCPU's run with an error: it gets no answer to its SGI.
        let _ = interrupts::take(SGI);
        let is_last = ROLE.load(Ordering::Relaxed) != ANSWER;
        interrupts::send(0);
        if is_last {
            return;
        }
    }
}

fn sleep_until_pending() {
    while !interrupts::is_pending() {
        psci::sleep();
    }
}

/// Gives the turn to the other vCPU, and wakes it from WFE.
fn give_turn() {
    TURN.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the event register is no memory.
    unsafe { asm!("dsb ishst", "sev", options(nostack, preserves_flags)) };
}

/// Waits in WFE until the turn's number has this parity.
fn wait_for_turn(parity: u64) {
    while TURN.load(Ordering::Acquire) & 1 != parity {
        // SAFETY: waiting changes nothing.
        unsafe { asm!("wfe", options(nostack, preserves_flags)) };
    }
}
