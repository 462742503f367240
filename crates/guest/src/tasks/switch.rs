// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch between tasks of EL1: an interrupt puts the registers of the current one on its stack, and returns to
//! another one from there.
//!
//! Invariant: while a task is not the current one of its vCPU, its [`Frame`] is whole, and its stack pointer is the frame's
//! address. Exceptions other than IRQs end the program, as everywhere in this guest.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;

use super::scheduler::MOST;
use super::{VCPUS, kernel};

/// A task's registers.
#[repr(C)]
pub struct Frame {
    /// x0 to x30.
    x: [u64; 31],
    /// Where it goes on.
    pub pc: u64,
    /// Its PSTATE.
    pub pstate: u64,
    unused: u64,
}

const SIZE: usize = size_of::<Frame>();
/// EL1 with SP_EL1, and IRQs open.
const OPEN: u64 = 0x345;
const STACK: usize = 8 << 10;

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK]>);

// SAFETY: Rust code only takes its address; one task runs on it.
unsafe impl Sync for Stack {}

static STACKS: [Stack; VCPUS * MOST] = [const { Stack(UnsafeCell::new([0; STACK])) }; VCPUS * MOST];

/// Makes the registers of a task that begins with `kernel::begin(vcpu, number)`. Returns where they are.
pub fn prepare(vcpu: usize, number: usize) -> u64 {
    let top = STACKS[vcpu * MOST + number].0.get() as u64 + STACK as u64;
    let at = top - SIZE as u64;
    let mut x = [0; 31];
    (x[0], x[1]) = (vcpu as u64, number as u64);
    let frame = Frame { x, pc: kernel::begin as *const () as u64, pstate: OPEN, unused: 0 };
    // SAFETY: inside the task's stack, which nothing uses yet, and aligned to 16.
    unsafe { core::ptr::with_exposed_provenance_mut::<Frame>(at as usize).write(frame) };
    at
}

/// From here on this vCPU's interrupts switch tasks.
pub fn install() {
    // SAFETY: the table has an entry for each vector.
    unsafe { asm!("msr vbar_el1, {}", "isb", in(reg) &raw const task_vectors, options(nostack, preserves_flags)) };
}

/// Opens or masks IRQs for this vCPU.
pub fn set_open(is_open: bool) {
    // SAFETY: interrupts are handled by the vectors that `install` has set.
    unsafe {
        match is_open {
            true => asm!("msr daifclr, #2", options(nostack, preserves_flags)),
            false => asm!("msr daifset, #2", options(nostack, preserves_flags)),
        }
    }
}

/// Waits for an interrupt.
pub fn wait() {
    // SAFETY: waiting changes nothing.
    unsafe { asm!("wfi", options(nostack, preserves_flags)) };
}

unsafe extern "C" {
    static task_vectors: u8;
}

global_asm!(
    ".pushsection .text.task_vectors, \"ax\"",
    ".balign 2048",
    "task_vectors:",
    ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    ".balign 128",
    ".if \\index == 5",
    "    b task_interrupted",
    ".else",
    "    mov x0, #\\index",
    "    b taken",
    ".endif",
    ".endr",
    ".balign 128",
    "task_interrupted:",
    "    sub sp, sp, #{size}",
    "    stp x0, x1, [sp]",
    "    stp x2, x3, [sp, #16]",
    "    stp x4, x5, [sp, #32]",
    "    stp x6, x7, [sp, #48]",
    "    stp x8, x9, [sp, #64]",
    "    stp x10, x11, [sp, #80]",
    "    stp x12, x13, [sp, #96]",
    "    stp x14, x15, [sp, #112]",
    "    stp x16, x17, [sp, #128]",
    "    stp x18, x19, [sp, #144]",
    "    stp x20, x21, [sp, #160]",
    "    stp x22, x23, [sp, #176]",
    "    stp x24, x25, [sp, #192]",
    "    stp x26, x27, [sp, #208]",
    "    stp x28, x29, [sp, #224]",
    "    mrs x0, elr_el1",
    "    mrs x1, spsr_el1",
    "    stp x30, x0, [sp, #240]",
    "    str x1, [sp, #256]",
    "    mov x0, sp",
    "    bl {interrupted}",
    "    mov sp, x0",
    "    ldp x30, x0, [sp, #240]",
    "    ldr x1, [sp, #256]",
    "    msr elr_el1, x0",
    "    msr spsr_el1, x1",
    "    ldp x28, x29, [sp, #224]",
    "    ldp x26, x27, [sp, #208]",
    "    ldp x24, x25, [sp, #192]",
    "    ldp x22, x23, [sp, #176]",
    "    ldp x20, x21, [sp, #160]",
    "    ldp x18, x19, [sp, #144]",
    "    ldp x16, x17, [sp, #128]",
    "    ldp x14, x15, [sp, #112]",
    "    ldp x12, x13, [sp, #96]",
    "    ldp x10, x11, [sp, #80]",
    "    ldp x8, x9, [sp, #64]",
    "    ldp x6, x7, [sp, #48]",
    "    ldp x4, x5, [sp, #32]",
    "    ldp x2, x3, [sp, #16]",
    "    ldp x0, x1, [sp]",
    "    add sp, sp, #{size}",
    "    eret",
    ".popsection",
    size = const SIZE,
    interrupted = sym kernel::interrupted,
);
