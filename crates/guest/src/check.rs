// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check`: the guest checks the machine it runs in.
//!
//! Memory that the guest has not touched reads zero, keeps every word written to it, and executes code written to it.
//! Time passes. Each step is announced before it starts, so a console that ends early shows the step.

use core::arch::{asm, naked_asm};
use core::ops::Range;

use crate::memory::{self, Memory, PAGE};
use crate::uart::println;

/// Why [`run`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("no two pages of RAM are free in one piece")]
    NoMemory,
    #[error("fresh memory at {address:#x} holds {found:#x}")]
    NotZero { address: u64, found: u64 },
    #[error("memory at {address:#x} holds {found:#x} instead of {written:#x}")]
    NotKept { address: u64, written: u64, found: u64 },
    #[error("code at {address:#x} gave {found} instead of {expected}")]
    WrongCode { address: u64, expected: u64, found: u64 },
    #[error("the counter stands still at {0}")]
    NoTime(u64),
}

/// Runs the check.
pub fn run(memory: &Memory) -> Result<(), Failure> {
    let ram: u64 = memory.banks().iter().map(|bank| bank.end - bank.start).sum();
    println!("guest: RAM of {} KiB, {} KiB free", ram >> 10, memory.free_bytes() >> 10);

    // The page after the window is for code.
    let free = memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?;
    let size = WINDOW_MAX.min(free.end - free.start - PAGE);
    if size == 0 {
        return Err(Failure::NoMemory);
    }
    let window = free.start..free.start + size;

    println!("check: {} KiB at {:#x}: zero when fresh, then every word written", size >> 10, window.start);
    fill(&window)?;
    println!("check: every word read back, twice");
    read_back(&window)?;
    read_back(&window)?;
    println!("check: code at {:#x}, written and run, twice", window.end);
    run_code(window.end)?;
    println!("check: the counter moves");
    see_time_pass()?;
    println!("guest check: ok");
    Ok(())
}

const WINDOW_MAX: u64 = 64 << 20;

/// Any value works; a constant makes two runs execute the same instructions.
const SEED: u64 = 0x7477_6f66_6f6c_6421;

/// The value of the word at `address`. Every step can be undone, so no two addresses share a value, and a page mapped
/// at a wrong address is found.
fn pattern(address: u64) -> u64 {
    let mixed = (address ^ SEED).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Writes the pattern, each page after a check that it is zero.
fn fill(window: &Range<u64>) -> Result<(), Failure> {
    for page in pages(window) {
        expect_zero(page)?;
        for address in words(page..page + PAGE) {
            // SAFETY: a word of the window, which is free RAM.
            unsafe { memory::write(address, pattern(address)) };
        }
    }
    Ok(())
}

fn expect_zero(page: u64) -> Result<(), Failure> {
    for address in words(page..page + PAGE) {
        // SAFETY: a word of a page of free RAM.
        let found = unsafe { memory::read(address) };
        if found != 0 {
            return Err(Failure::NotZero { address, found });
        }
    }
    Ok(())
}

fn read_back(window: &Range<u64>) -> Result<(), Failure> {
    for address in words(window.clone()) {
        let written = pattern(address);
        // SAFETY: a word of the window, which is free RAM.
        let found = unsafe { memory::read(address) };
        if found != written {
            return Err(Failure::NotKept { address, written, found });
        }
    }
    Ok(())
}

fn pages(range: &Range<u64>) -> impl Iterator<Item = u64> {
    range.clone().step_by(PAGE as usize)
}

fn words(range: Range<u64>) -> impl Iterator<Item = u64> {
    range.step_by(8)
}

type Code = extern "C" fn(u64) -> u64;

/// Instructions in each of the two functions below.
const CODE_WORDS: usize = 2;

#[unsafe(naked)]
extern "C" fn triple(_: u64) -> u64 {
    naked_asm!("add x0, x0, x0, lsl #1", "ret")
}

#[unsafe(naked)]
extern "C" fn quintuple(_: u64) -> u64 {
    naked_asm!("add x0, x0, x0, lsl #2", "ret")
}

/// Copies one function to the fresh `page`, then another over it, and runs both there. The second run fails if
/// instructions of the first were kept.
fn run_code(page: u64) -> Result<(), Failure> {
    expect_zero(page)?;
    for (code, expected) in [(triple as Code, 21), (quintuple as Code, 35)] {
        let copy = copy_code(code, page);
        let found = copy(7);
        if found != expected {
            return Err(Failure::WrongCode { address: page, expected, found });
        }
    }
    Ok(())
}

fn copy_code(code: Code, page: u64) -> Code {
    let from = code as *const u32;
    let to = core::ptr::with_exposed_provenance_mut::<u32>(page as usize);
    for index in 0..CODE_WORDS {
        // SAFETY: `code` has `CODE_WORDS` instructions, and the page is free RAM. The line of each instruction is
        // cleaned, so the size of a line does not matter.
        unsafe {
            let instruction = to.add(index);
            instruction.write_volatile(from.add(index).read_volatile());
            asm!("dc cvau, {}", in(reg) instruction, options(nostack, preserves_flags));
        }
    }
    // SAFETY: barriers, and an invalidation that discards only copies.
    unsafe {
        asm!("dsb ish", options(nostack, preserves_flags));
        for index in 0..CODE_WORDS {
            asm!("ic ivau, {}", in(reg) to.add(index), options(nostack, preserves_flags));
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
    // SAFETY: `to` now holds a whole function of this type, position-independent, and RAM is executable.
    unsafe { core::mem::transmute::<*mut u32, Code>(to) }
}

/// Enough for a slow counter on a fast machine: at 1 MHz a tick takes a few thousand instructions.
const COUNTER_READS: u32 = 1_000_000;

fn see_time_pass() -> Result<(), Failure> {
    let start = counter();
    let mut now = start;
    for _ in 0..COUNTER_READS {
        now = counter();
        if now != start {
            break;
        }
    }
    if now > start { Ok(()) } else { Err(Failure::NoTime(start)) }
}

fn counter() -> u64 {
    let count: u64;
    // SAFETY: reading the counter changes nothing. `nomem` is omitted to keep the reads in order.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack, preserves_flags)) };
    count
}
