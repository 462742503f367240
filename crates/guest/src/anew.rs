// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `anew=MILLISECONDS`, `warm=COUNT` and `cold=COUNT`: a guest that resets itself, and checks what the reset left.
//!
//! The guest's counter goes on across a reset, and RAM keeps its content across a warm one. So the program learns from
//! the two which boot this is:
//!
//! | boot | counter | canaries | what it checks | how it ends |
//! |---|---|---|---|---|
//! | 1 | below the set time | none | the devices | fills RAM with canaries, warm reset at the set time |
//! | 2 | above | in all free RAM | the canaries, the other vCPUs, the devices | cold reset |
//! | 3 | above | none | that free RAM is zero, the other vCPUs, the devices | power-off |
//!
//! The area of stolen time is RAM too, and has a canary of its own. In each boot what was stolen begins at 0.
//!
//! Before each reset all other vCPUs spin, and the program has changed each device that it checks.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;
use twofold_abi::pv_time::{self, structure};
use twofold_abi::virt::{GICD_BASE, GICR_BASE, RTC_BASE, STOLEN_TIME_BASE, STOLEN_TIME_SIZE, UART_BASE};

use crate::memory::{self, Memory};
use crate::uart::println;
use crate::{psci, stolen, vcpus};

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("boot {boot}: the word at {address:#x} is {found:#x}, not {expected:#x}")]
    Word { boot: u32, address: u64, found: u64, expected: u64 },
    #[error("boot {boot}: {name} is {found:#x}, not {expected:#x} as after a reset")]
    Register { boot: u32, name: &'static str, found: u64, expected: u64 },
    #[error("boot {boot}: the vCPU of affinity {affinity:#x} is not off")]
    NotOff { boot: u32, affinity: u64 },
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("a vCPU that was started does not run")]
    NotRunning,
    #[error("no RAM is free")]
    NoMemory,
    #[error("boot {boot}: {stolen} ns were stolen since the first call, {elapsed} ns ago")]
    Stolen { boot: u32, stolen: u64, elapsed: u64 },
    #[error("boot {boot}: PV_TIME_ST returned {answer}")]
    NoStolenTime { boot: u32, answer: i64 },
    #[error("SYSTEM_RESET2 returned {0}")]
    Refused(i64),
}

/// Resets itself twice, and checks all that is left.
pub fn run(tree: Fdt<'_>, memory: &Memory, milliseconds: u64) -> Result<(), Failure> {
    let moment = milliseconds * vcpus::frequency() / 1000;
    let probe = memory.free().last().ok_or(Failure::NoMemory)?.end - 8;
    // SAFETY: the last word of free RAM.
    let is_kept = unsafe { memory::read(probe) } == canary(probe);
    match (vcpus::counter() < moment, is_kept) {
        (true, _) => first(tree, memory, moment),
        (false, true) => second(tree, memory, probe),
        (false, false) => third(tree, memory),
    }
}

fn first(tree: Fdt<'_>, memory: &Memory, moment: u64) -> Result<(), Failure> {
    println!("anew: boot 1");
    check_devices(1)?;
    check_stolen_time(1, 0)?;
    for address in words(memory) {
        // SAFETY: a word of free RAM.
        unsafe { memory::write(address, canary(address)) };
    }
    change_devices();
    spin_all(tree)?;
    while vcpus::counter() < moment {
        core::hint::spin_loop();
    }
    Err(Failure::Refused(psci::warm_reset()))
}

fn second(tree: Fdt<'_>, memory: &Memory, probe: u64) -> Result<(), Failure> {
    println!("anew: boot 2");
    check_vcpus(2, tree)?;
    check_devices(2)?;
    check_words(2, memory, canary)?;
    check_stolen_time(2, canary(AREA_WORD))?;
    // If RAM is kept once more, boot 3 has to find that.
    // SAFETY: a word of free RAM.
    unsafe { memory::write(probe, !canary(probe)) };
    change_devices();
    spin_all(tree)?;
    psci::reset()
}

fn third(tree: Fdt<'_>, memory: &Memory) -> Result<(), Failure> {
    println!("anew: boot 3");
    check_vcpus(3, tree)?;
    check_devices(3)?;
    check_words(3, memory, |_| 0)?;
    check_stolen_time(3, 0)?;
    spin_all(tree)?;
    println!("guest check: ok");
    Ok(())
}

/// Makes `count` warm resets. The canary of each page of free RAM, and a count of the resets, are kept.
pub fn warm(tree: Fdt<'_>, memory: &Memory, count: u64) -> Result<(), Failure> {
    let free = memory.free().last().ok_or(Failure::NoMemory)?;
    let place = free.end - 8;
    // Fresh memory is zero.
    // SAFETY: the last word of free RAM.
    let done = unsafe { memory::read(place) };
    for address in (free.start..free.end).step_by(PAGE_STEP) {
        // SAFETY: a word of free RAM.
        let found = unsafe { memory::read(address) };
        let expected = if done == 0 { 0 } else { canary(address) };
        if found != expected {
            return Err(Failure::Word { boot: done as u32, address, found, expected });
        }
        // SAFETY: as above.
        unsafe { memory::write(address, canary(address)) };
    }
    check_vcpus(done as u32, tree)?;
    // Every second time the reset comes while the other vCPUs are on their way to a CPU.
    if done % 2 == 0 {
        spin_all(tree)?;
    } else {
        start_all(tree, spin_quietly)?;
    }
    if done == count {
        println!("warm: {done} resets");
        println!("guest check: ok");
        return Ok(());
    }
    // SAFETY: the last word of free RAM.
    unsafe { memory::write(place, done + 1) };
    Err(Failure::Refused(psci::warm_reset()))
}

/// Makes `count` cold resets, one each [`COLD`] milliseconds by the counter, which alone is kept.
pub fn cold(count: u64) -> Result<(), Failure> {
    let period = COLD * vcpus::frequency() / 1000;
    let done = vcpus::counter() / period;
    if done >= count {
        println!("guest check: ok");
        return Ok(());
    }
    while vcpus::counter() / period == done {
        core::hint::spin_loop();
    }
    psci::reset()
}

const COLD: u64 = 20;
const PAGE_STEP: usize = memory::PAGE as usize;

/// The canary at an address; no two addresses have the same.
fn canary(address: u64) -> u64 {
    (address ^ 0x616e_6577).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn words(memory: &Memory) -> impl Iterator<Item = u64> {
    memory.free().flat_map(|Range { start, end }| (start..end).step_by(8))
}

fn check_words(boot: u32, memory: &Memory, expected: impl Fn(u64) -> u64) -> Result<(), Failure> {
    for address in words(memory) {
        // SAFETY: a word of free RAM.
        let found = unsafe { memory::read(address) };
        let expected = expected(address);
        if found != expected {
            return Err(Failure::Word { boot, address, found, expected });
        }
    }
    Ok(())
}

/// A word of the area of stolen time in which no structure is.
const AREA_WORD: u64 = STOLEN_TIME_BASE + STOLEN_TIME_SIZE - 8;

/// Checks the area of stolen time, whose spare word has this value, and that what was stolen begins at 0 with the first
/// call.
fn check_stolen_time(boot: u32, expected: u64) -> Result<(), Failure> {
    let found = stolen::read(AREA_WORD - STOLEN_TIME_BASE);
    if found != expected {
        return Err(Failure::Word { boot, address: AREA_WORD, found, expected });
    }
    let begin = vcpus::counter();
    let answer = psci::call_with(pv_time::STOLEN_TIME, [0; 3]);
    if answer != STOLEN_TIME_BASE as i64 {
        return Err(Failure::NoStolenTime { boot, answer });
    }
    let stolen = stolen::read(structure::STOLEN);
    let elapsed = (vcpus::counter() + 1 - begin) * 1_000_000_000 / vcpus::frequency();
    if stolen > elapsed {
        return Err(Failure::Stolen { boot, stolen, elapsed });
    }
    stolen::write(AREA_WORD - STOLEN_TIME_BASE, canary(AREA_WORD));
    Ok(())
}

fn check_vcpus(boot: u32, tree: Fdt<'_>) -> Result<(), Failure> {
    let (affinities, count) = vcpus::others(tree);
    match affinities[..count].iter().find(|affinity| !psci::is_off(**affinity)) {
        Some(affinity) => Err(Failure::NotOff { boot, affinity: *affinity }),
        None => Ok(()),
    }
}

/// Starts all other vCPUs, and waits until they spin. They have changed their own part of the devices before.
/// Starts all other vCPUs, and returns when they spin.
pub fn spin_all(tree: Fdt<'_>) -> Result<(), Failure> {
    let count = start_all(tree, spin)?;
    let start = vcpus::counter();
    while SPINNING.load(Ordering::Relaxed) < count as u64 {
        if vcpus::counter() - start > 60 * vcpus::frequency() {
            return Err(Failure::NotRunning);
        }
    }
    Ok(())
}

/// Starts all other vCPUs with this function, and returns how many these are.
fn start_all(tree: Fdt<'_>, function: extern "C" fn(usize)) -> Result<usize, Failure> {
    let (affinities, count) = vcpus::others(tree);
    for (index, affinity) in affinities[..count].iter().enumerate() {
        vcpus::prepare(index, function);
        let answer = vcpus::start(index, *affinity);
        if answer != 0 {
            return Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into());
        }
    }
    Ok(count)
}

/// How many vCPUs spin. It is in the image, which each reset loads anew.
static SPINNING: AtomicU64 = AtomicU64::new(0);

extern "C" fn spin(_: usize) {
    change_interface();
    SPINNING.fetch_add(1, Ordering::Relaxed);
    loop {
        core::hint::spin_loop();
    }
}

/// Spins, and gives the hypervisor no reason to look at this vCPU.
extern "C" fn spin_quietly(_: usize) {
    loop {
        core::hint::spin_loop();
    }
}

/// A device's register: its name, its address, the bits that are compared, their value after a reset, and what the
/// program writes so that it has another value.
struct Register {
    name: &'static str,
    address: u64,
    mask: u32,
    reset: u32,
    change: u32,
}

const fn register(name: &'static str, address: u64, mask: u32, reset: u32, change: u32) -> Register {
    Register { name, address, mask, reset, change }
}

const SGI_BASE: u64 = GICR_BASE + 0x1_0000;
/// The UART's and the clock's interrupts are 33 and 34: bits 1 and 2 of the second register.
const SHARED: u32 = 0b110;

const REGISTERS: [Register; 20] = [
    register("GICD_CTLR", GICD_BASE, 0b111, 0, 0b10),
    register("GICD_IGROUPR1", GICD_BASE + 0x84, SHARED, 0, SHARED),
    register("GICD_ISENABLER1", GICD_BASE + 0x104, !0, 0, SHARED),
    register("GICD_ISPENDR1", GICD_BASE + 0x204, !0, 0, 0b100),
    register("GICD_ISACTIVER1", GICD_BASE + 0x304, !0, 0, 0b10),
    register("GICD_IPRIORITYR8", GICD_BASE + 0x420, !0, 0, 0x4848_4848),
    register("GICD_ICFGR2", GICD_BASE + 0xc08, !0, 0, 0xaaaa_aaaa),
    register("GICD_IROUTER33", GICD_BASE + 0x6108, !0, 0, 1),
    register("GICR_WAKER", GICR_BASE + 0x14, 0b110, 0b110, 0),
    register("GICR_IGROUPR0", SGI_BASE + 0x80, !0, 0, !0),
    register("GICR_ISENABLER0", SGI_BASE + 0x100, 0xffff_0000, 0, 0x4800_0000),
    register("GICR_ISPENDR0", SGI_BASE + 0x200, !0, 0, 0b1000),
    register("GICR_ISACTIVER0", SGI_BASE + 0x300, !0, 0, 0b10000),
    register("GICR_IPRIORITYR0", SGI_BASE + 0x400, !0, 0, 0x4848_4848),
    register("UARTIBRD", UART_BASE + 0x24, 0xffff, 0, 13),
    register("UARTFBRD", UART_BASE + 0x28, 0x3f, 0, 1),
    register("UARTIFLS", UART_BASE + 0x34, 0x3f, 0x12, 0b100),
    register("UARTIMSC", UART_BASE + 0x38, 0x7ff, 0, 1 << 6),
    register("RTCMR", RTC_BASE + 0x04, !0, 0, 77),
    register("RTCIMSC", RTC_BASE + 0x10, 1, 0, 1),
];

/// Checks the devices, and this vCPU's own registers that the image's start does not set.
fn check_devices(boot: u32) -> Result<(), Failure> {
    for Register { name, address, mask, reset, .. } in REGISTERS {
        let found = load(address) & mask;
        if found != reset {
            return Err(Failure::Register { boot, name, found: found.into(), expected: reset.into() });
        }
    }
    for (name, found, expected) in own_registers() {
        if found != expected {
            return Err(Failure::Register { boot, name, found, expected });
        }
    }
    Ok(())
}

/// Registers of this vCPU, what they are, and what they are after a reset of this hypervisor's.
fn own_registers() -> [(&'static str, u64, u64); 6] {
    macro_rules! read {
        ($name:literal) => {{
            let value: u64;
            // SAFETY: reading the register changes nothing.
            unsafe { asm!(concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }};
    }
    [
        ("CNTV_CTL_EL0.ENABLE", read!("cntv_ctl_el0") & 1, 0),
        ("CNTP_CTL_EL0.ENABLE", read!("cntp_ctl_el0") & 1, 0),
        ("ICC_IGRPEN1_EL1", read!("icc_igrpen1_el1"), 0),
        ("ICC_PMR_EL1", read!("icc_pmr_el1"), 0),
        ("ICC_BPR0_EL1", read!("icc_bpr0_el1") & !3, 0),
        ("ISR_EL1", read!("isr_el1"), 0),
    ]
}

fn change_devices() {
    for Register { address, change, .. } in REGISTERS {
        store(address, change);
    }
    change_interface();
}

/// Changes this vCPU's interface to the interrupt controller, and starts its timers, which are due at once. Interrupts
/// stay masked.
fn change_interface() {
    // SAFETY: interrupts are masked, so none is taken.
    unsafe {
        asm!(
            "msr icc_sre_el1, {one}", "isb",
            "msr icc_pmr_el1, {all}",
            "msr icc_igrpen1_el1, {one}",
            "msr cntv_tval_el0, xzr",
            "msr cntv_ctl_el0, {one}",
            "msr cntp_tval_el0, xzr",
            "msr cntp_ctl_el0, {one}",
            "isb",
            one = in(reg) 1u64, all = in(reg) 0xf0u64, options(nostack, preserves_flags)
        );
    }
}

/// Reads a device's register.
pub fn load(address: u64) -> u32 {
    let value: u32;
    // SAFETY: a device's register, mapped as device memory; the load reads no Rust object.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// Writes a device's register.
pub fn store(address: u64, value: u32) {
    // SAFETY: as in `load`; the store writes no Rust object.
    unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}
