// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `lock=COUNT by=KIND`: all vCPUs take one lock, `COUNT` times each, and count the instructions that they spend.
//!
//! | kind | a vCPU that waits |
//! |---|---|
//! | `ticket` | executes WFE until its ticket is called: the lock goes round in order |
//! | `swap` | executes WFE until it finds the lock free, whichever comes first |
//! | `interrupt` | has a ticket, and executes WFI; the vCPU that gives the lock back sends it an SGI |
//!
//! The program counts the rounds of each loop, and multiplies them by the instructions of one round. A hand-over is a
//! taking by another vCPU than the one before. Invariant: the number under the lock is the sum of all takings.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;
use twofold_abi::virt::GICR_BASE;

use crate::uart::println;
use crate::{psci, vcpus};

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("the lock was taken {expected} times, and {found} were counted under it")]
    Lost { expected: u64, found: u64 },
}

/// How a vCPU waits for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ticket,
    Swap,
    Interrupt,
}

impl Kind {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ticket" => Some(Self::Ticket),
            "swap" => Some(Self::Swap),
            "interrupt" => Some(Self::Interrupt),
            _ => None,
        }
    }
}

/// Lets all vCPUs take the lock.
pub fn run(tree: Fdt<'_>, count: u64, kind: Kind) -> Result<(), Failure> {
    COUNT.store(count, Ordering::Relaxed);
    KIND.store(kind as u64, Ordering::Relaxed);
    let (affinities, others) = vcpus::others(tree);
    VCPUS.store(others as u64 + 1, Ordering::Relaxed);
    READY.store(others as u64 + 1, Ordering::Release);
    for (index, affinity) in affinities[..others].iter().enumerate() {
        vcpus::prepare(index, worker);
        let answer = vcpus::start(index, *affinity);
        if answer != 0 {
            return Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into());
        }
    }
    work(0);
    while affinities[..others].iter().any(|affinity| !psci::is_off(*affinity)) {
        core::hint::spin_loop();
    }
    let taken = count * (others as u64 + 1);
    let found = TAKEN.load(Ordering::Acquire);
    if found != taken {
        return Err(Failure::Lost { expected: taken, found });
    }
    let handed = HANDED.load(Ordering::Relaxed);
    let instructions = taken * (HELD + APART) * LOOP + WAITED.load(Ordering::Relaxed) * ROUND;
    println!("lock: {handed} hand-overs, {instructions} instructions");
    println!("guest check: ok");
    Ok(())
}

/// Rounds of the empty loop while a vCPU holds the lock, and between two takings.
const HELD: u64 = 50;
const APART: u64 = 50;
/// Instructions in a round of the empty loop, and in one of a loop that waits.
const LOOP: u64 = 2;
const ROUND: u64 = 5;

static COUNT: AtomicU64 = AtomicU64::new(0);
static KIND: AtomicU64 = AtomicU64::new(0);
static VCPUS: AtomicU64 = AtomicU64::new(0);
/// vCPUs that have not arrived.
static READY: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);
static CALLED: AtomicU64 = AtomicU64::new(0);
static HELD_BY: AtomicU64 = AtomicU64::new(0);
/// Written by the vCPU that has the lock.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static HANDED: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);
static WAITED: AtomicU64 = AtomicU64::new(0);
/// The vCPU of each ticket, for the SGI.
static WAITING: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

extern "C" fn worker(index: usize) {
    work(index as u64 + 1);
}

fn work(vcpu: u64) {
    let kind = KIND.load(Ordering::Relaxed);
    if kind == Kind::Interrupt as u64 {
        enable_interrupts(vcpu);
    }
    READY.fetch_sub(1, Ordering::AcqRel);
    while READY.load(Ordering::Acquire) != 0 {
        core::hint::spin_loop();
    }
    let mut waited = 0;
    for _ in 0..COUNT.load(Ordering::Relaxed) {
        match kind {
            kind if kind == Kind::Swap as u64 => {
                while HELD_BY.compare_exchange(0, vcpu + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                    waited += wait_while(&HELD_BY, |holder| holder == 0, wait_for_event);
                }
                held(vcpu);
                HELD_BY.store(0, Ordering::Release);
                send_event();
            }
            kind if kind == Kind::Ticket as u64 => {
                let ticket = NEXT.fetch_add(1, Ordering::Relaxed);
                waited += wait_while(&CALLED, |called| called == ticket, wait_for_event);
                all_wait(ticket);
                held(vcpu);
                CALLED.store(ticket + 1, Ordering::Release);
                send_event();
            }
            _ => {
                let ticket = NEXT.fetch_add(1, Ordering::Relaxed);
                WAITING[ticket as usize % WAITING.len()].store(ticket << 8 | vcpu, Ordering::SeqCst);
                emulated_order();
                waited += wait_while(&CALLED, |called| called == ticket, wait_for_interrupt);
                all_wait(ticket);
                held(vcpu);
                CALLED.store(ticket + 1, Ordering::SeqCst);
                emulated_order();
                let next = WAITING[(ticket + 1) as usize % WAITING.len()].load(Ordering::SeqCst);
                if next >> 8 == ticket + 1 {
                    send_interrupt(next & 0xff);
                }
            }
        }
        empty_loop(APART);
    }
    WAITED.fetch_add(waited, Ordering::AcqRel);
}

/// Orders a store before a later load of another word. A vCPU that waits writes its ticket, and then reads the one that is
/// called; the vCPU that calls writes the one that is called, and then reads the other's ticket. If both read the old word, no
/// SGI is sent, and the guest waits for ever.
///
/// STLR and LDAR order the two (Arm ARM DDI 0487K.a, B2.3, barrier-ordered-before). QEMU does not on an x86 host: it has a
/// barrier before its STLR and one behind its LDAR, and none between them. A guest without this fence stood still after
/// 180,000 takings.
fn emulated_order() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// The first vCPU that has the lock keeps it until each one has a ticket. From then on all of them contend.
fn all_wait(ticket: u64) {
    while ticket == 0 && NEXT.load(Ordering::Relaxed) < VCPUS.load(Ordering::Relaxed) {
        core::hint::spin_loop();
    }
}

/// What a vCPU does while it has the lock.
fn held(vcpu: u64) {
    TAKEN.store(TAKEN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let last = LAST.load(Ordering::Relaxed);
    if last != vcpu {
        LAST.store(vcpu, Ordering::Relaxed);
        HANDED.store(HANDED.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    empty_loop(HELD);
}

fn empty_loop(rounds: u64) {
    // SAFETY: counts a register down.
    unsafe { asm!("1:", "subs {0}, {0}, #1", "b.ne 1b", inout(reg) rounds => _, options(nomem, nostack)) };
}

/// Waits until the value is the right one; returns the rounds.
#[inline(always)]
fn wait_while(word: &AtomicU64, is_right: impl Fn(u64) -> bool, mut wait: impl FnMut()) -> u64 {
    let mut rounds = 0;
    while !is_right(word.load(Ordering::SeqCst)) {
        wait();
        rounds += 1;
    }
    rounds
}

#[inline(always)]
fn wait_for_event() {
    // SAFETY: waiting changes nothing.
    unsafe { asm!("wfe", options(nostack, preserves_flags)) };
}

fn send_event() {
    // SAFETY: the store before is visible to the vCPUs that wake.
    unsafe { asm!("dsb ishst", "sev", options(nostack, preserves_flags)) };
}

const SGI: u64 = 5;

fn enable_interrupts(vcpu: u64) {
    let base = GICR_BASE + 0x2_0000 * vcpu;
    for (address, value) in [(base + 0x14, 0u32), (base + 0x1_0080, 1 << SGI), (base + 0x1_0100, 1 << SGI)] {
        // SAFETY: a device's register, mapped as device memory; the store writes no Rust object.
        unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    }
    let control = twofold_abi::virt::GICD_BASE;
    // SAFETY: as above. Each vCPU writes the same value.
    unsafe { asm!("str {:w}, [{}]", in(reg) 0b10u32, in(reg) control, options(nostack, preserves_flags)) };
    // SAFETY: interrupts are masked, so none is taken by itself.
    unsafe {
        asm!("msr icc_sre_el1, {one}", "isb", "msr icc_pmr_el1, {all}", "msr icc_igrpen1_el1, {one}", "isb",
            one = in(reg) 1u64, all = in(reg) 0xf0u64, options(nostack, preserves_flags));
    }
}

/// Waits for an interrupt, takes it and ends it. It may be of an earlier hand-over.
fn wait_for_interrupt() {
    // SAFETY: interrupts are masked, so this is all that happens to one.
    unsafe {
        asm!("wfi", "mrs {0}, icc_iar1_el1", "dsb sy", "msr icc_eoir1_el1, {0}", "isb", out(reg) _,
            options(nostack, preserves_flags));
    }
}

fn send_interrupt(vcpu: u64) {
    // SAFETY: sends an SGI to a vCPU of the first cluster; the stores before are visible to it.
    unsafe {
        asm!("dsb ish", "msr icc_sgi1r_el1, {}", "isb", in(reg) SGI << 24 | 1 << vcpu,
            options(nostack, preserves_flags));
    }
}
