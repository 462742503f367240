// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bare-metal guest at EL1, started as Linux is: the image to run where no Linux can be had, and the one
//! whose every access to memory is known.
//!
//! The command line in the device tree chooses the program (see [`program`]). Each ends by itself: powered off
//! when all is well, reset after a line that says what is not. Only `hang` never ends.
//!
//! One vCPU, but for the programs that try what EL2 withstands; no interrupts, no allocator, no floating point.
#![no_std]
#![no_main]

mod boot;
mod check;
mod exceptions;
mod experiment;
mod hypercalls;
mod lifecycle;
mod memory;
mod mmu;
mod mode;
mod pmu;
mod program;
mod psci;
mod random;
mod sysregs;
mod touch;
mod uart;
mod vcpus;
mod vendor;
mod wild;

use dtoolkit::error::{FdtParseError, PropertyError};
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use memory::Memory;
use program::Program;
use uart::println;

/// Where `start.s` goes, with the MMU on and `tree` as the loader gave it.
extern "C" fn main(tree: *const u8) -> ! {
    uart::start();
    match run(tree) {
        Ok(()) => psci::power_off(),
        Err(failure) => {
            println!("guest {failure}");
            psci::reset()
        }
    }
}

/// Why the program failed, with its name.
#[derive(Debug, thiserror::Error)]
enum Failure<'a> {
    #[error("start: FAILED: no device tree at {0:?}")]
    NoTree(*const u8),
    #[error("start: FAILED: {0}")]
    Tree(#[from] FdtParseError),
    #[error("start: FAILED: {0}")]
    Memory(#[from] memory::Failure),
    #[error("start: FAILED: the command line cannot be read: {0}")]
    CommandLine(PropertyError),
    #[error("start: FAILED: {0}")]
    Program(program::Failure<'a>),
    #[error("check: FAILED: {0}")]
    Check(#[from] check::Failure),
    #[error("touch: FAILED: {0}")]
    Touch(#[from] touch::Failure),
    #[error("experiment: FAILED: {0}")]
    Experiment(#[from] experiment::Failure),
    #[error("sysregs: FAILED: {0}")]
    Sysregs(#[from] sysregs::Failure),
    #[error("hypercalls: FAILED: {0}")]
    Hypercalls(#[from] hypercalls::Failure),
    #[error("lifecycle: FAILED: {0}")]
    Lifecycle(#[from] lifecycle::Failure),
    #[error("wild: FAILED: {0}")]
    Wild(wild::Failure),
}

fn run(tree: *const u8) -> Result<(), Failure<'static>> {
    if (tree.addr() as u64) < twofold_abi::virt::RAM_BASE || !tree.addr().is_multiple_of(8) {
        return Err(Failure::NoTree(tree));
    }
    // SAFETY: by the boot protocol x0 is a device tree, which `start.s` has mapped; it is RAM that stays as it
    // is, because `memory` counts it as taken.
    let tree: Fdt<'static> = unsafe { Fdt::from_raw(tree) }?;
    let memory = Memory::find(tree)?;
    mmu::map(memory.banks());

    let arguments = match tree.chosen().and_then(|chosen| chosen.property("bootargs")) {
        Some(property) => property.value_as().map_err(Failure::CommandLine)?,
        None => "",
    };
    match Program::parse(arguments).map_err(Failure::Program)? {
        Program::Check => check::run(&memory)?,
        Program::Touch { bytes } => touch::run(&memory, bytes)?,
        Program::Pmu => pmu::run(&memory)?,
        Program::Sysregs { step, seed } => sysregs::run(tree, step, seed)?,
        Program::Hypercalls { count, seed } => hypercalls::run(tree, count, seed)?,
        Program::Experiment(settings) => experiment::run(&memory, &settings)?,
        Program::Hang => {
            println!("hanging");
            psci::wait_forever()
        }
        Program::Restart { rounds } => lifecycle::restart(rounds)?,
        Program::Nowhere => lifecycle::nowhere(&memory)?,
        Program::Together => lifecycle::together()?,
        Program::Refused { calls } => lifecycle::refused(calls)?,
        Program::Wild { address } => return Err(Failure::Wild(wild::run(address))),
    }
    Ok(())
}
