// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `devices`: the interrupt controller, both timers, the UART and the clock of the virtual machine, used as a driver
//! would use them.
//!
//! Interrupts stay masked: the program waits for one in ISR_EL1, and takes it from the CPU interface. Each device has
//! to interrupt twice, so that an interrupt that is not deactivated fails. The last step is an access that no syndrome
//! describes (a pair of registers): it has to be an external abort, which ends the program with success.

use core::arch::asm;

use twofold_abi::virt::{
    GICD_BASE, GICR_BASE, PHYSICAL_TIMER_INTERRUPT, RTC_BASE, RTC_INTERRUPT, UART_BASE, UART_INTERRUPT,
    VIRTUAL_TIMER_INTERRUPT,
};

use crate::exceptions;
use crate::uart::println;

/// Why [`run`] returned.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the interrupt of {what} is {taken}, not {wanted}")]
    Wrong { what: &'static str, taken: u64, wanted: u32 },
    #[error("no interrupt of {what} in {SECONDS} s")]
    Missing { what: &'static str },
    #[error("interrupt {taken} after the end of {what}")]
    Again { what: &'static str, taken: u64 },
    #[error("{what} is {value:#x}")]
    Value { what: &'static str, value: u64 },
    #[error("a pair of registers was loaded from the UART: {0:#x}")]
    Pair(u64),
}

/// Reads a system register.
macro_rules! read {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: the registers that this program reads change nothing, or take an interrupt that it waits for.
        unsafe { asm!("isb", concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register of the interrupt controller or of a timer.
macro_rules! write {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: interrupts are masked, so the program sees one only where it waits for it.
        unsafe { asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// Uses each device; returns only if one fails.
pub fn run() -> Result<(), Failure> {
    counters()?;
    controller();
    for _ in 0..2 {
        write!("icc_sgi1r_el1", u64::from(SGI) << 24 | (read!("mpidr_el1") & 0xff00) << 8 | 1);
        expect("an SGI", SGI, || ())?;
        write!("cntv_tval_el0", 1000);
        write!("cntv_ctl_el0", 1);
        expect("the virtual timer", VIRTUAL_TIMER_INTERRUPT, || write!("cntv_ctl_el0", 0))?;
        write!("cntp_tval_el0", 1000);
        write!("cntp_ctl_el0", 1);
        expect("the physical timer", PHYSICAL_TIMER_INTERRUPT, || write!("cntp_ctl_el0", 0))?;
    }
    println!("devices: an SGI and both timers, twice");
    for ticks in 0..SHORTEST {
        write!("cntp_tval_el0", ticks);
        write!("cntp_ctl_el0", 1);
        expect("the physical timer", PHYSICAL_TIMER_INTERRUPT, || write!("cntp_ctl_el0", 0))?;
    }
    println!("devices: a timer of each time from 0 to {} ticks", SHORTEST - 1);
    for _ in 0..2 {
        store(UART_BASE + UART_MASK, UART_TRANSMIT);
        println!("devices: a byte that the UART has sent interrupts");
        expect("the UART", UART_INTERRUPT, || store(UART_BASE + UART_MASK, 0))?;
        store(UART_BASE + UART_CLEAR, UART_TRANSMIT);
    }
    clock()?;
    exceptions::expect_external_abort(UART_BASE);
    let value: u64;
    // SAFETY: the access is of device memory and changes none.
    unsafe { asm!("ldp {}, {}, [{}]", "dsb sy", out(reg) value, out(reg) _, in(reg) UART_BASE, options(nostack)) };
    Err(Failure::Pair(value))
}

/// Both counters began when the guest began, and are the same.
fn counters() -> Result<(), Failure> {
    let (first, physical, last) = (read!("cntvct_el0"), read!("cntpct_el0"), read!("cntvct_el0"));
    if first > 3600 * read!("cntfrq_el0") {
        return Err(Failure::Value { what: "the counter at the start", value: first });
    }
    if !(first..=last).contains(&physical) {
        return Err(Failure::Value { what: "the physical counter, which is not the virtual one,", value: physical });
    }
    Ok(())
}

/// Turns the controller on, with the interrupts of this program.
pub fn controller() {
    const CONTROL: u64 = 0x0;
    const GROUP: u64 = 0x80;
    const ENABLE: u64 = 0x100;
    const WAKER: u64 = 0x14;
    const SGI_BASE: u64 = 0x1_0000;
    const GROUP_1: u32 = 1 << 1;
    store(GICD_BASE + CONTROL, GROUP_1);
    store(GICR_BASE + WAKER, 0);
    let bit = |intid: u32| 1 << (intid % 32);
    let private = bit(SGI) | bit(VIRTUAL_TIMER_INTERRUPT) | bit(PHYSICAL_TIMER_INTERRUPT);
    let shared = bit(UART_INTERRUPT) | bit(RTC_INTERRUPT);
    for (base, mask) in [(GICR_BASE + SGI_BASE, private), (GICD_BASE + 4, shared)] {
        store(base + GROUP, mask);
        store(base + ENABLE, mask);
    }
    write!("icc_sre_el1", 1);
    write!("icc_pmr_el1", 0xff);
    write!("icc_igrpen1_el1", 1);
}

/// The clock shows a time, and interrupts when it has come.
fn clock() -> Result<(), Failure> {
    const TIME: u64 = RTC_BASE;
    const MATCH: u64 = RTC_BASE + 0x04;
    const MASK: u64 = RTC_BASE + 0x10;
    const CLEAR: u64 = RTC_BASE + 0x1c;
    /// The year 2020.
    const PAST: u32 = 1_577_836_800;
    let now = load(TIME);
    if now < PAST {
        return Err(Failure::Value { what: "the time", value: now.into() });
    }
    store(MATCH, now + 2);
    store(MASK, 1);
    expect("the clock", RTC_INTERRUPT, || store(CLEAR, 1))?;
    match load(TIME) - now {
        2..=10 => Ok(()),
        value => Err(Failure::Value { what: "the seconds until the clock's alarm", value: value.into() }),
    }
}

/// Waits for an interrupt, which has to be `intid`, silences it and ends it. No other may be pending after it.
fn expect(what: &'static str, intid: u32, silence: impl FnOnce()) -> Result<(), Failure> {
    const NONE: u64 = 1023;
    let (start, limit) = (read!("cntvct_el0"), SECONDS * read!("cntfrq_el0"));
    while read!("isr_el1") & PENDING == 0 {
        if read!("cntvct_el0") - start > limit {
            return Err(Failure::Missing { what });
        }
    }
    let taken = read!("icc_iar1_el1");
    if taken != intid.into() {
        return Err(Failure::Wrong { what, taken, wanted: intid });
    }
    silence();
    write!("icc_eoir1_el1", taken);
    match read!("icc_iar1_el1") {
        NONE => Ok(()),
        taken => Err(Failure::Again { what, taken }),
    }
}

const SGI: u32 = 3;
/// The times of the physical timer below this, in ticks of 16 ns, are all tried: some end while EL2 answers the access
/// that starts the timer.
const SHORTEST: u64 = 1000;
/// ISR_EL1.I.
const PENDING: u64 = 1 << 7;
/// The most that an interrupt may take, on a slow emulator.
const SECONDS: u64 = 60;
const UART_MASK: u64 = 0x38;
const UART_CLEAR: u64 = 0x44;
const UART_TRANSMIT: u32 = 1 << 5;

/// Reads a register of a device.
pub fn load(address: u64) -> u32 {
    let value: u32;
    // SAFETY: a device's register, mapped as device memory; the load reads no Rust object.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// Writes a register of a device.
pub fn store(address: u64, value: u32) {
    // SAFETY: as in `load`; the store writes no Rust object.
    unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}
