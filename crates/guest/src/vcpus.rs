// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other vCPUs: how they are started, and what they may use.
//!
//! A vCPU runs a function on its own stack, with the MMU on and the first vCPU's map. It ends by switching itself off,
//! and may be started again. It clears its stack first, where times that it read may be left: two restores of a guest are
//! to end with the same memory. Invariant: a [`Seat`] belongs to the one vCPU that runs on it.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::Node;
use dtoolkit::fdt::Fdt;

use crate::{mmu, psci};

/// The most vCPUs that work for a program.
pub const WORKERS: usize = 4;

/// Why the workers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the program needs {wanted} vCPUs, and the device tree has {found}", wanted = WORKERS + 1)]
    TooFew { found: usize },
    #[error("vCPU {vcpu} cannot be started: PSCI CPU_ON returned {answer}")]
    NotStarted { vcpu: usize, answer: i64 },
}

/// The affinities of vCPUs 1 to [`WORKERS`], from the device tree.
pub fn workers(tree: Fdt<'_>) -> Result<[u64; WORKERS], Failure> {
    match others(tree) {
        (workers, WORKERS) => Ok(workers),
        (_, found) => Err(Failure::TooFew { found: found + 1 }),
    }
}

/// The affinities of the vCPUs beside the first one, from the device tree, and how many these are: [`WORKERS`] at most.
pub fn others(tree: Fdt<'_>) -> ([u64; WORKERS], usize) {
    let mut found = 0;
    let mut workers = [0; WORKERS];
    for cpu in tree.find_node("/cpus").iter().flat_map(|cpus| cpus.children()) {
        let Some(affinity) = cpu.reg().ok().flatten().and_then(|mut reg| reg.next()?.address::<u64>().ok()) else {
            continue;
        };
        // The first vCPU runs this function.
        if (1..=WORKERS).contains(&found) {
            workers[found - 1] = affinity;
        }
        found += 1;
    }
    (workers, found.saturating_sub(1).min(WORKERS))
}

/// Sets what worker `index` runs when it is started: `function(index)`, after which it switches itself off.
pub fn prepare(index: usize, function: extern "C" fn(usize)) {
    let seat = &SEATS[index];
    seat.start.stack.store(seat.stack.0.get() as u64 + STACK as u64, Ordering::Relaxed);
    seat.start.function.store(function as *const () as u64, Ordering::Relaxed);
    seat.start.argument.store(index as u64, Ordering::Relaxed);
    let [_, argument] = entry(index);
    // SAFETY: cleans a line, because the vCPU reads it with its MMU off; no data change.
    unsafe { asm!("dsb ish", "dc civac, {}", "dsb sy", in(reg) argument, options(nostack, preserves_flags)) };
}

/// Starts worker `index`, which must be prepared; returns the result of PSCI.
pub fn start(index: usize, affinity: u64) -> i64 {
    let [entry, argument] = entry(index);
    psci::cpu_on(affinity, entry, argument)
}

/// The entry address of a worker, and its argument in x0, for a program that calls PSCI directly.
pub fn entry(index: usize) -> [u64; 2] {
    [worker_entry as *const () as u64, &raw const SEATS[index].start as u64]
}

/// How often the first vCPU checks on the others.
pub const LOOKS_A_SECOND: u64 = 200;

/// Waits until the next check is due.
pub fn pause() {
    let (start, frequency) = (counter(), frequency());
    while counter().wrapping_sub(start) < frequency / LOOKS_A_SECOND {
        core::hint::spin_loop();
    }
}

/// The virtual counter.
pub fn counter() -> u64 {
    let count: u64;
    // SAFETY: reading the counter changes nothing.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack, preserves_flags)) };
    count
}

/// Its ticks per second.
pub fn frequency() -> u64 {
    let frequency: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, preserves_flags)) };
    frequency
}

/// What a vCPU reads before its MMU is on: the top of its stack, its function, and the function's argument.
#[repr(C, align(64))]
struct Start {
    stack: AtomicU64,
    function: AtomicU64,
    argument: AtomicU64,
}

const STACK: usize = 16 << 10;

struct Seat {
    start: Start,
    stack: Stack,
}

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK]>);

// SAFETY: Rust code only takes its address; only the vCPU that runs on it uses it.
unsafe impl Sync for Stack {}

static SEATS: [Seat; WORKERS] = [const {
    Seat {
        start: Start { stack: AtomicU64::new(0), function: AtomicU64::new(0), argument: AtomicU64::new(0) },
        stack: Stack(UnsafeCell::new([0; STACK])),
    }
}; WORKERS];

unsafe extern "C" {
    fn worker_entry();
}

// Like `start.s`, without the steps that are needed only once.
global_asm!(
    ".pushsection .text.worker, \"ax\"",
    ".global worker_entry",
    "worker_entry:",
    "    msr daifset, #0xf",
    "    msr spsel, #1",
    "    adrp x1, vectors",
    "    add x1, x1, :lo12:vectors",
    "    msr vbar_el1, x1",
    "    msr tpidr_el1, xzr",
    "    ldp x2, x3, [x0]",
    "    ldr x4, [x0, #16]",
    "    mov sp, x2",
    "    ldr x5, ={mair}",
    "    msr mair_el1, x5",
    "    mrs x5, id_aa64mmfr0_el1",
    "    and x5, x5, #0xf",
    "    mov x6, #5",
    "    cmp x5, x6",
    "    csel x5, x5, x6, lo",
    "    ldr x6, ={tcr}",
    "    orr x6, x6, x5, lsl #32",
    "    msr tcr_el1, x6",
    "    adrp x5, {table}",
    "    add x5, x5, :lo12:{table}",
    "    msr ttbr0_el1, x5",
    "    isb",
    "    tlbi vmalle1",
    "    dsb nsh",
    "    isb",
    "    ldr x5, ={sctlr}",
    "    msr sctlr_el1, x5",
    "    isb",
    "    mov x29, xzr",
    "    mov x30, xzr",
    "    mov x0, x4",
    "    blr x3",
    "    mov x0, sp",
    "    mov x1, {stack_size}",
    "    sub x1, x0, x1",
    "1:  stp xzr, xzr, [x1], #16",
    "    cmp x1, x0",
    "    b.lo 1b",
    "    ldr w0, ={cpu_off}",
    "    hvc #0",
    "2:  wfi",
    "    b 2b",
    "    .ltorg",
    ".popsection",
    table = sym mmu::TABLE,
    mair = const mmu::MAIR,
    tcr = const mmu::TCR,
    sctlr = const mmu::SCTLR,
    stack_size = const STACK,
    cpu_off = const psci::CPU_OFF,
);
