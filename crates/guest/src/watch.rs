// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `watch=MILLISECONDS`: a guest that changes nothing, and looks until that time whether anything changed by itself:
//! a canary in each word of a part of its RAM, its registers, its counter and its clock.

use core::arch::{asm, naked_asm};
use core::ops::Range;

use twofold_abi::virt::RTC_BASE;

use crate::memory::{self, Memory};
use crate::uart::println;
use crate::vcpus;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("no RAM is free")]
    NoMemory,
    #[error("round {round}: the word at {address:#x} became {found:#x}")]
    Word { round: u64, address: u64, found: u64 },
    #[error("round {round}: {wrong} general or vector registers changed")]
    Registers { round: u64, wrong: u64 },
    #[error("round {round}: {name} became {found:#x}, not {expected:#x}")]
    System { round: u64, name: &'static str, found: u64, expected: u64 },
    #[error("round {round}: the counter went back by {by}")]
    Counter { round: u64, by: u64 },
    #[error("round {round}: in {counter} s by the counter the clock went on by {clock} s")]
    Clock { round: u64, counter: u64, clock: u64 },
}

/// Writes and reads a system register of EL1 that nothing in this program uses.
macro_rules! register {
    ($name:literal) => {
        Register {
            name: $name,
            // SAFETY: nothing here uses the register.
            set: |value| unsafe {
                asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags));
            },
            get: || {
                let value: u64;
                // SAFETY: reading the register changes nothing.
                unsafe { asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
                value
            },
        }
    };
}

struct Register {
    name: &'static str,
    set: fn(u64),
    get: fn() -> u64,
}

static REGISTERS: [Register; 9] = [
    register!("tpidr_el0"),
    register!("tpidrro_el0"),
    register!("sp_el0"),
    register!("elr_el1"),
    register!("far_el1"),
    register!("contextidr_el1"),
    register!("cntv_cval_el0"),
    register!("cntp_cval_el0"),
    register!("mair_el1"),
];

/// MAIR_EL1 has attributes in use, the last register of the list: only its unused bytes get a canary.
const ATTRIBUTES: u64 = crate::mmu::MAIR & 0xffff;

/// Looks until the counter has reached this time.
pub fn run(memory: &Memory, milliseconds: u64) -> Result<(), Failure> {
    let free = memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?;
    let window = free.start..free.end.min(free.start + WINDOW);
    for address in words(&window) {
        // SAFETY: a word of free RAM.
        unsafe { memory::write(address, canary(address)) };
    }
    let values = set_registers();
    let frequency = vcpus::frequency();
    let (start, clock) = (vcpus::counter(), clock());
    let (mut before, mut round) = (start, 0);
    println!("watch: begins");
    while before < milliseconds * frequency / 1000 {
        round += 1;
        if let Some((address, found)) = changed(&window) {
            return Err(Failure::Word { round, address, found });
        }
        // SAFETY: FP and SIMD do not trap to EL1, and nothing else uses them.
        let wrong = unsafe {
            asm!("msr cpacr_el1, {}", "isb", in(reg) 3u64 << 20, options(nostack, preserves_flags));
            keep(SPINS, canary(round))
        };
        if wrong != 0 {
            return Err(Failure::Registers { round, wrong });
        }
        for (Register { name, get, .. }, expected) in REGISTERS.iter().zip(values) {
            let found = get();
            if found != expected {
                return Err(Failure::System { round, name, found, expected });
            }
        }
        before = check_time(round, start, clock, before)?;
    }
    println!("watch: {round} rounds, nothing changed");
    println!("guest check: ok");
    Ok(())
}

const WINDOW: u64 = 1 << 20;
/// Rounds of the loop in which the registers hold canaries.
const SPINS: u64 = 200_000;

fn canary(address: u64) -> u64 {
    (address ^ 0x7761_7463_6800).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn words(window: &Range<u64>) -> impl Iterator<Item = u64> {
    window.clone().step_by(8)
}

fn changed(window: &Range<u64>) -> Option<(u64, u64)> {
    // SAFETY: words of free RAM.
    let found = words(window).map(|address| (address, unsafe { memory::read(address) }));
    found.into_iter().find(|(address, found)| *found != canary(*address))
}

/// Gives each register a value of its own, and returns what it then is: some have fewer than 64 bits.
fn set_registers() -> [u64; REGISTERS.len()] {
    core::array::from_fn(|index| {
        let Register { set, get, name } = &REGISTERS[index];
        let value = canary(index as u64);
        set(if *name == "mair_el1" { value << 32 | ATTRIBUTES } else { value });
        get()
    })
}

/// Returns the counter.
fn check_time(round: u64, start: u64, clock_start: u64, before: u64) -> Result<u64, Failure> {
    let now = vcpus::counter();
    if now < before {
        return Err(Failure::Counter { round, by: before - now });
    }
    let (counter, clock) = ((now - start) / vcpus::frequency(), clock().wrapping_sub(clock_start));
    // Each of the two is cut to seconds, and the guest may lose the CPU between the two looks.
    if clock.abs_diff(counter) > 2 {
        return Err(Failure::Clock { round, counter, clock });
    }
    Ok(now)
}

/// Seconds by the PL031.
fn clock() -> u64 {
    let value: u64;
    // SAFETY: the clock's data register, mapped as device memory; the load reads no Rust object.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) RTC_BASE, options(nostack, preserves_flags)) };
    value
}

/// Fills x1 to x28 and v0 to v31 with values from `seed`, spins, and returns how many of them changed.
#[unsafe(naked)]
unsafe extern "C" fn keep(spins: u64, seed: u64) -> u64 {
    naked_asm!(
        ".arch_extension fp",
        ".arch_extension simd",
        "stp x19, x20, [sp, #-112]!",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "str x1, [sp, #96]",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "add x2, x1, #\\n",
        "dup v\\n\\().2d, x2",
        ".endr",
        ".irp n, 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
        "add x\\n, x1, #(\\n * 64)",
        ".endr",
        "1: subs x0, x0, #1",
        "b.ne 1b",
        // x0 is 0, and counts from here on. x1 is the seed, unless it changed.
        "ldr x29, [sp, #96]",
        "cmp x1, x29",
        "cinc x0, x0, ne",
        ".irp n, 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,30",
        "add x1, x29, #(\\n * 64)",
        "cmp x\\n, x1",
        "cinc x0, x0, ne",
        ".endr",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "add x1, x29, #\\n",
        "umov x2, v\\n\\().d[0]",
        "cmp x1, x2",
        "cinc x0, x0, ne",
        "umov x2, v\\n\\().d[1]",
        "cmp x1, x2",
        "cinc x0, x0, ne",
        ".endr",
        "ldp x29, x30, [sp, #80]",
        "ldp x27, x28, [sp, #64]",
        "ldp x25, x26, [sp, #48]",
        "ldp x23, x24, [sp, #32]",
        "ldp x21, x22, [sp, #16]",
        "ldp x19, x20, [sp], #112",
        "ret",
        ".arch_extension nosimd",
        ".arch_extension nofp",
    )
}
