// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `restart=ROUNDS`, `nowhere`, `together` and `refused=CALLS`: operations on the second vCPU that a guest may try, and
//! calls that are refused.
//!
//! The second vCPU runs with its MMU off, and neither loads nor stores: it uses only its registers.

use core::arch::{asm, naked_asm};

use twofold_abi::vendor::LOG_GET;
use twofold_abi::virt::{GICD_BASE, UART_BASE};

use crate::memory::Memory;
use crate::psci::{self, CPU_OFF, SYSTEM_OFF};
use crate::uart::println;
use crate::vendor::{self, Refused};

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("CPU_ON at {entry:#x} returned {answer}, not {expected}")]
    CpuOn { entry: u64, expected: i64, answer: i64 },
    #[error("call {0} succeeded, although no log runs")]
    NotRefused(u64),
}

/// Switches the second vCPU on and off again, `rounds` times. Each time it makes a measuring call.
pub fn restart(rounds: u64) -> Result<(), Failure> {
    const MANUAL: usize = 1;
    vendor::start_log(MANUAL, false, 0)?;
    for _ in 0..rounds {
        start(measure as *const () as u64, 0)?;
        wait_until_off();
    }
    vendor::stop_log()?;
    println!("restarted {rounds} times");
    Ok(())
}

/// Starts the second vCPU at addresses without RAM, which PSCI refuses; then at one with RAM.
pub fn nowhere(memory: &Memory) -> Result<(), Failure> {
    let end = memory.banks().iter().map(|bank| bank.end).max().unwrap_or(0);
    for entry in [0, GICD_BASE, UART_BASE, end, 1 << 47, !3] {
        let answer = psci::cpu_on(SECOND, entry, 0);
        if answer != INVALID_ADDRESS {
            return Err(Failure::CpuOn { entry, expected: INVALID_ADDRESS, answer });
        }
    }
    start(go_off as *const () as u64, 0)?;
    wait_until_off();
    println!("nowhere: refused");
    Ok(())
}

/// Both vCPUs call SYSTEM_OFF at the same time. Does not return.
pub fn together() -> Result<(), Failure> {
    let (now, frequency): (u64, u64);
    // SAFETY: reading the counter and its frequency changes nothing.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) now, out(reg) frequency,
            options(nostack, preserves_flags));
    }
    // The delay is long enough for the second vCPU to arrive. If it is not, the vCPUs just do not meet.
    let moment = now + frequency / 10;
    start(end_at as *const () as u64, moment)?;
    end_at(moment)
}

/// Makes `calls` calls that are refused, because no log runs.
pub fn refused(calls: u64) -> Result<(), Failure> {
    for call in 0..calls {
        if vendor::get_log().is_ok() {
            return Err(Failure::NotRefused(call));
        }
    }
    println!("refused {calls} calls");
    Ok(())
}

const SUCCESS: i64 = 0;
const ALREADY_ON: i64 = -4;
const ON_PENDING: i64 = -5;
const INVALID_ADDRESS: i64 = -9;

/// The affinity of the second vCPU: QEMU's machine `virt` counts from 0 on.
const SECOND: u64 = 1;

/// Starts the second vCPU as soon as it is off.
fn start(entry: u64, argument: u64) -> Result<(), Failure> {
    loop {
        match psci::cpu_on(SECOND, entry, argument) {
            SUCCESS => return Ok(()),
            ALREADY_ON | ON_PENDING => {}
            answer => return Err(Failure::CpuOn { entry, expected: SUCCESS, answer }),
        }
    }
}

fn wait_until_off() {
    while !psci::is_off(SECOND) {
        core::hint::spin_loop();
    }
}

/// Makes a measuring call, and switches itself off.
#[unsafe(naked)]
extern "C" fn measure() -> ! {
    naked_asm!(
        "movz w0, #{low}",
        "movk w0, #{high}, lsl #16",
        "hvc #0",
        "b {go_off}",
        low = const LOG_GET & 0xffff,
        high = const LOG_GET >> 16,
        go_off = sym go_off,
    )
}

#[unsafe(naked)]
extern "C" fn go_off() -> ! {
    naked_asm!(
        "movz w0, #{low}",
        "movk w0, #{high}, lsl #16",
        "hvc #0",
        "1: wfi",
        "b 1b",
        low = const CPU_OFF & 0xffff,
        high = const CPU_OFF >> 16,
    )
}

/// Waits until the counter reaches `moment`, then calls SYSTEM_OFF.
#[unsafe(naked)]
extern "C" fn end_at(moment: u64) -> ! {
    naked_asm!(
        "1: isb",
        "mrs x1, cntvct_el0",
        "cmp x1, x0",
        "b.lo 1b",
        "movz w0, #{low}",
        "movk w0, #{high}, lsl #16",
        "hvc #0",
        "2: wfi",
        "b 2b",
        low = const SYSTEM_OFF & 0xffff,
        high = const SYSTEM_OFF >> 16,
    )
}
