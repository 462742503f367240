// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `exits=COUNT`: what events cost that a hypervisor has a hand in, each `COUNT` times ([`twofold_abi::exits`]).
//!
//! Interrupts stay masked (PSTATE.I), and the program polls ISR_EL1 for them. So no exception of the guest is in a
//! figure, and an event is a straight line of instructions. Each event is counted once more than it is measured: the
//! first one pays for what is done once, a first touch for instance.
//!
//! Invariant: at the end of an event no interrupt is pending or active, so that events do not disturb each other.

pub mod interrupts;
mod one;
mod two;

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use twofold_abi::exits::{self, Event};

use crate::uart::println;
use crate::vcpus::{counter, frequency};
use interrupts::Interrupts;

/// Why the events cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the interrupt controller cannot be used: {0:?}")]
    Interrupts(arm_gic::gicv3::GicError),
    #[error("interrupt {found} was taken, and {wanted} was sent")]
    WrongInterrupt { found: u32, wanted: u32 },
    #[error("vCPU 1 cannot be started: PSCI CPU_ON returned {0}")]
    NotStarted(i64),
}

/// Measures each event that this machine has.
pub fn run(tree: Fdt<'static>, count: u64) -> Result<(), Failure> {
    let vcpus = tree.find_node("/cpus").map_or(1, |cpus| cpus.children().filter(is_cpu).count()).max(1);
    let mut interrupts = Interrupts::start(vcpus)?;
    one::run(tree, &mut interrupts, count)?;
    if vcpus > 1 {
        two::run(&mut interrupts, count)?;
    }
    println!("exits: done");
    Ok(())
}

/// Prints the line of an event that was measured `count` times.
fn report(event: &Event, count: u64, ticks: u64) {
    let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(frequency().max(1));
    println!("{} {} {count} {nanoseconds}", exits::LINE, event.name);
}

/// Measures `count` events, after one that is not counted, and reports them.
#[inline(always)]
fn measure(event: &Event, count: u64, mut what: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    what()?;
    let start = counter();
    for _ in 0..count {
        what()?;
    }
    report(event, count, counter() - start);
    Ok(())
}

fn is_cpu(node: &dtoolkit::fdt::FdtNode<'_>) -> bool {
    node.property("device_type").is_some_and(|kind| kind.value_as::<&str>() == Ok("cpu"))
}
