// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of two vCPUs that share one physical CPU.
//!
//! The two play ping-pong. Each sleeps in WFI until the other one sends [`SGI`], and then answers.
//!
//! [`SLEPT`] has the time at which a vCPU was about to execute WFI. The vCPU that runs next takes it, and reads the time
//! again: the difference is one switch. A vCPU that finds no such time was not switched to from a WFI, and counts
//! nothing.
//!
//! For SGIs to a vCPU that is awake, the partner spins, until it is interrupted at the end of a slice at the latest. Then
//! the first vCPU runs, and sends it one SGI after the other.
//!
//! Invariant: the first vCPU changes the role only between two rounds, when the partner sleeps.

use core::sync::atomic::{AtomicU64, Ordering};

use twofold_abi::exits::{SGI_OTHER, SGI_WAKE, SWITCH};

use super::interrupts::{self, Interrupts, MORE_SGIS, SGI};
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
    ping_pong(count)?;
    sgi_other(count)?;
    ROLE.store(DONE, Ordering::Relaxed);
    interrupts::send(SGI, 1);
    Ok(())
}

/// The place of the second vCPU among the workers.
const PARTNER: usize = 0;

/// What the partner does when the SGI comes.
static ROLE: AtomicU64 = AtomicU64::new(ANSWER);
/// Sends one back.
const ANSWER: u64 = 0;
/// Sends one back, spins until [`BATCHES`] has changed, and takes [`MORE_SGIS`]; and so on, until the role is another.
const SPIN: u64 = 1;
/// Switches itself off.
const DONE: u64 = 2;

/// How many batches of SGIs the first vCPU has sent.
static BATCHES: AtomicU64 = AtomicU64::new(0);

/// When the vCPU that ran last was about to execute WFI, or 0.
static SLEPT: AtomicU64 = AtomicU64::new(0);
/// Switches that were measured, and their time.
static SWITCHES: AtomicU64 = AtomicU64::new(0);
static SWITCHING: AtomicU64 = AtomicU64::new(0);

/// [`SGI_WAKE`] and [`SWITCH`], which is a part of it.
fn ping_pong(count: u64) -> Result<(), Failure> {
    // The first round is not counted: it waits for the partner to get there.
    round()?;
    SWITCHES.store(0, Ordering::Relaxed);
    SWITCHING.store(0, Ordering::Relaxed);
    let start = counter();
    for _ in 0..count {
        round()?;
    }
    let ticks = counter() - start;
    report(&SGI_WAKE, 2 * count, ticks);
    report(&SWITCH, SWITCHES.load(Ordering::Relaxed), SWITCHING.load(Ordering::Relaxed));
    Ok(())
}

/// One SGI to the partner, and one back.
#[inline(always)]
fn round() -> Result<(), Failure> {
    interrupts::send(SGI, 1);
    sleep_until_pending();
    interrupts::take(SGI)
}

fn sgi_other(count: u64) -> Result<(), Failure> {
    let batches = count.div_ceil(MORE_SGIS.len() as u64);
    ROLE.store(SPIN, Ordering::Relaxed);
    interrupts::send(SGI, 1);
    let mut ticks = 0;
    // The first batch is not counted.
    for batch in 0..=batches {
        sleep_until_pending();
        interrupts::take(SGI)?;
        // The partner is awake, and has no CPU.
        let start = counter();
        for sgi in MORE_SGIS {
            interrupts::send(sgi, 1);
        }
        if batch != 0 {
            ticks += counter() - start;
        }
        if batch == batches {
            ROLE.store(ANSWER, Ordering::Relaxed);
        }
        BATCHES.fetch_add(1, Ordering::Release);
    }
    report(&SGI_OTHER, batches * MORE_SGIS.len() as u64, ticks);
    sleep_until_pending();
    interrupts::take(SGI)
}

/// The second vCPU. A wrong interrupt ends its work: the first vCPU then waits in vain, until the run's time is over.
extern "C" fn partner(_: usize) {
    interrupts::open();
    loop {
        sleep_until_pending();
        if interrupts::take(SGI).is_err() {
            return;
        }
        while ROLE.load(Ordering::Relaxed) == SPIN {
            let batches = BATCHES.load(Ordering::Acquire);
            interrupts::send(SGI, 0);
            while BATCHES.load(Ordering::Acquire) == batches {
                core::hint::spin_loop();
            }
            if interrupts::take_all(&MORE_SGIS).is_err() {
                return;
            }
        }
        if ROLE.load(Ordering::Relaxed) == DONE {
            return;
        }
        interrupts::send(SGI, 0);
    }
}

/// Sleeps until an interrupt is pending, and counts the switch that ended in this vCPU.
#[inline(always)]
fn sleep_until_pending() {
    while !interrupts::is_pending() {
        SLEPT.store(counter(), Ordering::Relaxed);
        psci::sleep();
    }
    let now = counter();
    // The two share one CPU, so neither loses the other's addition.
    let slept = SLEPT.load(Ordering::Relaxed);
    if slept != 0 {
        SLEPT.store(0, Ordering::Relaxed);
        SWITCHES.store(SWITCHES.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        SWITCHING.store(SWITCHING.load(Ordering::Relaxed) + now.saturating_sub(slept), Ordering::Relaxed);
    }
}
