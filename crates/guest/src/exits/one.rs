// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of one vCPU.

use core::arch::asm;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use twofold_abi::exits::{CLOCK, DISTRIBUTOR, HVC, SGI_SELF, TICK, UART, WAKE};
use twofold_abi::virt::{GICD_BASE, RTC_BASE, UART_BASE};

use super::interrupts::{self, Interrupts, SGI, TIMER};
use super::{Failure, counter, measure, report};
use crate::psci;

/// Measures them. `interrupts` shows that the controller is on.
pub fn run(tree: Fdt<'_>, _interrupts: &mut Interrupts, count: u64) -> Result<(), Failure> {
    const TYPER: u64 = 0x4;
    measure(&HVC, count, || {
        psci::version();
        Ok(())
    })?;
    measure(&DISTRIBUTOR, count, || {
        load(GICD_BASE + TYPER);
        Ok(())
    })?;
    if has_clock(tree) {
        measure(&CLOCK, count, || {
            load(RTC_BASE);
            Ok(())
        })?;
    }
    // Enough for a figure, and not too long a line on a console.
    let bytes = count.min(1000);
    measure(&UART, bytes, || {
        store(UART_BASE, b'.'.into());
        Ok(())
    })?;
    measure(&SGI_SELF, count, || {
        interrupts::send(SGI, 0);
        interrupts::take(SGI)
    })?;
    measure(&TICK, count, || {
        interrupts::set_timer(0);
        interrupts::take(TIMER)
    })?;
    wake(count)
}

/// WFI until the timer's moment. Most of the time the vCPU sleeps, so each event counts only from that moment.
fn wake(count: u64) -> Result<(), Failure> {
    /// Ticks until the moment: long enough for any hypervisor to have put the vCPU to sleep.
    const SLEEP: u64 = 50_000;
    let mut late = 0;
    for _ in 0..count {
        let moment = counter() + SLEEP;
        interrupts::set_timer(moment);
        while counter() < moment {
            psci::sleep();
        }
        late += counter() - moment;
        interrupts::take(TIMER)?;
    }
    report(&WAKE, count, late);
    Ok(())
}

fn has_clock(tree: Fdt<'_>) -> bool {
    let is_clock = |node: &FdtNode<'_>| {
        let text = |name| node.property(name).and_then(|property| property.value_as::<&str>().ok());
        node.name().starts_with("pl031") && text("status").is_none_or(|status| status == "okay")
    };
    tree.root().children().any(|node| is_clock(&node))
}

// In assembly, because a hypervisor cannot emulate every form of load and store that the compiler may choose.

#[inline(always)]
fn load(address: u64) {
    // SAFETY: a register of a device, mapped as device memory, whose read changes nothing.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) _, in(reg) address, options(nostack, preserves_flags)) };
}

#[inline(always)]
fn store(address: u64, value: u64) {
    // SAFETY: the UART's data register, mapped as device memory; the store writes no Rust object.
    unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}
