// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pace=MILLISECONDS wait=KIND`: a guest that never ends. After each such time by its counter it says what its counter and
//! its clock show, and by how much the counter was ahead at most when such a time was over. All other vCPUs spin, or are off (`alone`).
//!
//! | kind | how it waits |
//! |---|---|
//! | `spin` | it looks at the counter |
//! | `interrupt` | WFI, for its virtual timer |
//! | `suspend` | CPU_SUSPEND, for its virtual timer |

use core::arch::asm;

use dtoolkit::fdt::Fdt;
use twofold_abi::virt::{GICD_BASE, GICR_BASE, RTC_BASE, VIRTUAL_TIMER_INTERRUPT};

use crate::uart::println;
use crate::{anew, psci, vcpus};

/// How the first vCPU waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Spin,
    Interrupt,
    Suspend,
}

impl Kind {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "spin" => Some(Self::Spin),
            "interrupt" => Some(Self::Interrupt),
            "suspend" => Some(Self::Suspend),
            _ => None,
        }
    }
}

/// Says what the time is, for ever.
pub fn run(tree: Fdt<'_>, milliseconds: u64, kind: Kind, is_alone: bool) -> Result<(), anew::Failure> {
    if !is_alone {
        anew::spin_all(tree)?;
    }
    enable_timer();
    let frequency = vcpus::frequency();
    let microseconds = |ticks: u64| u128::from(ticks) * 1_000_000 / u128::from(frequency);
    println!("pace: begins");
    let (mut round, mut late) = (0_u64, 0);
    loop {
        let moment = vcpus::counter() + milliseconds * frequency / 1000;
        while vcpus::counter() < moment {
            if kind != Kind::Spin {
                wait(kind, moment);
            }
        }
        late = late.max(vcpus::counter() - moment);
        round += 1;
        let (counter, clock) = both(frequency);
        let (counter, late) = (microseconds(counter), microseconds(late));
        println!("pace: {round}, counter {counter} us, clock {clock} s, late {late} us");
    }
}

/// The counter and the clock, of one moment: what lost the CPU between the two looks looks again.
fn both(frequency: u64) -> (u64, u64) {
    loop {
        let before = vcpus::counter();
        let clock = anew::load(RTC_BASE).into();
        if vcpus::counter() - before < frequency / 100 {
            return (before, clock);
        }
    }
}

/// Enables the virtual timer's interrupt, which stays masked by PSTATE.
fn enable_timer() {
    let enabled = 1 << VIRTUAL_TIMER_INTERRUPT;
    for (address, value) in
        [(GICR_BASE + 0x14, 0), (GICR_BASE + 0x1_0080, enabled), (GICR_BASE + 0x1_0100, enabled), (GICD_BASE, 0b10)]
    {
        anew::store(address, value);
    }
    // SAFETY: interrupts are masked, so none is taken by itself.
    unsafe {
        asm!("msr icc_sre_el1, {one}", "isb", "msr icc_pmr_el1, {all}", "msr icc_igrpen1_el1, {one}", "isb",
            one = in(reg) 1u64, all = in(reg) 0xf0u64, options(nostack, preserves_flags));
    }
}

/// Waits for the timer at this moment, or for nothing. Takes the interrupt, if there is one, and ends it.
fn wait(kind: Kind, moment: u64) {
    // SAFETY: the timer is the guest's own.
    unsafe {
        asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", "isb", in(reg) moment, in(reg) 1u64,
            options(nostack, preserves_flags));
    }
    if kind == Kind::Suspend {
        psci::suspend();
    } else {
        psci::sleep();
    }
    // SAFETY: interrupts are masked, so this is all that happens to one.
    unsafe {
        asm!("msr cntv_ctl_el0, xzr", "isb", "mrs {0}, icc_iar1_el1", "dsb sy", "msr icc_eoir1_el1, {0}", "isb",
            out(reg) _, options(nostack, preserves_flags));
    }
}
