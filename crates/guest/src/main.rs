// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bare-metal guest at EL1, started like Linux. It runs where no Linux image can be had, and its every memory access
//! is known.
//!
//! The command line in the device tree chooses the program (see [`program`]). Each program ends by itself: power-off
//! after success, or a reset after a line that reports the failure. Only `hang` never ends.
//!
//! There is one vCPU, except in the programs that stress EL2. Interrupts stay masked, except where tasks take turns. There
//! is no allocator and no floating point.
#![no_std]
#![no_main]

mod anew;
mod boot;
mod check;
mod devices;
mod echo;
mod exceptions;
mod exits;
mod experiment;
mod features;
mod fresh;
mod hostile;
mod hypercalls;
mod image;
mod lifecycle;
mod lock;
mod loops;
mod memory;
mod mmu;
mod mode;
mod number;
mod pace;
mod pmu;
mod program;
mod psci;
mod random;
mod replay;
mod secret;
mod semihosting;
mod stolen;
mod sysregs;
mod tasks;
mod touch;
mod uart;
mod vcpus;
mod vendor;
mod virtio;
mod watch;
mod wild;

use dtoolkit::error::{FdtParseError, PropertyError};
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use memory::Memory;
use program::Program;
use uart::println;

/// The entry from `start.s`, with the MMU on and the loader's `tree`.
extern "C" fn main(tree: *const u8) -> ! {
    uart::start();
    match run(tree) {
        Ok(()) => psci::power_off(),
        Err(failure) => {
            println!("guest {failure}");
            match failure {
                // A reset would start the program once more.
                Failure::Anew(_) => psci::power_off(),
                _ => psci::reset(),
            }
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
    #[error("check: FAILED: {0}")]
    Anew(#[from] anew::Failure),
    #[error("check: FAILED: {0}")]
    Watch(#[from] watch::Failure),
    #[error("check: FAILED: {0}")]
    Tasks(#[from] tasks::Failure),
    #[error("check: FAILED: {0}")]
    Lock(#[from] lock::Failure),
    #[error("check: FAILED: {0}")]
    Stolen(#[from] stolen::Failure),
    #[error("devices: FAILED: {0}")]
    Devices(#[from] devices::Failure),
    #[error("echo: FAILED: {0}")]
    Echo(#[from] echo::Failure),
    #[error("touch: FAILED: {0}")]
    Touch(#[from] touch::Failure),
    #[error("experiment: FAILED: {0}")]
    Experiment(#[from] experiment::Failure),
    #[error("features: FAILED: {0}")]
    Features(#[from] features::Failure),
    #[error("sysregs: FAILED: {0}")]
    Sysregs(#[from] sysregs::Failure),
    #[error("hypercalls: FAILED: {0}")]
    Hypercalls(#[from] hypercalls::Failure),
    #[error("check: FAILED: {0}")]
    Hostile(#[from] hostile::Failure),
    #[error("check: FAILED: {0}")]
    Fresh(#[from] fresh::Failure),
    #[error("lifecycle: FAILED: {0}")]
    Lifecycle(#[from] lifecycle::Failure),
    #[error("exits: FAILED: {0}")]
    Exits(#[from] exits::Failure),
    #[error("replay: FAILED: {0}")]
    Replay(#[from] replay::Failure),
    #[error("check: FAILED: {0}")]
    Virtio(#[from] virtio::Failure),
    #[error("semihosting: FAILED: {0}")]
    Semihosting(#[from] semihosting::Failure),
    #[error("wild: FAILED: {0}")]
    Wild(wild::Failure),
}

fn run(tree: *const u8) -> Result<(), Failure<'static>> {
    if (tree.addr() as u64) < twofold_abi::virt::RAM_BASE || !tree.addr().is_multiple_of(8) {
        return Err(Failure::NoTree(tree));
    }
    // SAFETY: by the boot protocol x0 is a device tree, and `start.s` has mapped it. Its RAM never changes, because
    // `memory` counts it as taken.
    let tree: Fdt<'static> = unsafe { Fdt::from_raw(tree) }?;
    let memory = Memory::find(tree)?;
    mmu::map(memory.banks());

    let arguments = match tree.chosen().and_then(|chosen| chosen.property("bootargs")) {
        Some(property) => property.value_as().map_err(Failure::CommandLine)?,
        None => "",
    };
    match Program::parse(arguments).map_err(Failure::Program)? {
        Program::Check => check::run(&memory)?,
        Program::Devices => devices::run()?,
        Program::Echo { bytes } => echo::run(bytes)?,
        Program::Emit { bytes } => echo::emit(bytes)?,
        Program::Touch { bytes } => touch::run(&memory, bytes)?,
        Program::Pmu => pmu::run(&memory)?,
        Program::Features => features::run()?,
        Program::Sysregs(settings) => sysregs::run(tree, settings)?,
        Program::Hostile { milliseconds, seed } => hostile::run(tree, &memory, milliseconds, seed)?,
        Program::Hypercalls { count, seed } => hypercalls::run(tree, count, seed)?,
        Program::Experiment(settings) => experiment::run(&memory, &settings)?,
        Program::Exits { count } => exits::run(tree, count)?,
        Program::Replay(settings) => replay::run(tree, settings)?,
        Program::Hang => {
            println!("hanging");
            psci::wait_forever()
        }
        Program::Restart { rounds } => lifecycle::restart(rounds)?,
        Program::Anew { milliseconds } => anew::run(tree, &memory, milliseconds)?,
        Program::Warm { count } => anew::warm(tree, &memory, count)?,
        Program::Cold { count } => anew::cold(count)?,
        Program::Watch { milliseconds, is_moved } => watch::run(tree, &memory, milliseconds, is_moved)?,
        Program::Secrets => fresh::fill(&memory),
        Program::Fresh { milliseconds } => fresh::run(&memory, milliseconds)?,
        Program::Pace { milliseconds, kind, is_alone } => pace::run(tree, milliseconds, kind, is_alone)?,
        Program::Loops { milliseconds } => loops::run(milliseconds),
        Program::Stolen { milliseconds } => stolen::run(tree, milliseconds)?,
        Program::Tasks(settings) => tasks::run(tree, &memory, &settings)?,
        Program::Lock { count, kind } => lock::run(tree, count, kind)?,
        Program::Nowhere => lifecycle::nowhere(&memory)?,
        Program::Together => lifecycle::together()?,
        Program::Refused { calls } => lifecycle::refused(calls)?,
        Program::Virtio { frames } => virtio::run(&memory, frames)?,
        Program::Buffers { bytes } => virtio::buffers::run(&memory, bytes)?,
        Program::Balloon { bytes } => virtio::balloon::run(&memory, bytes)?,
        Program::Busy { rounds } => virtio::busy::run(&memory, rounds)?,
        Program::Exchange => virtio::exchange::run(&memory)?,
        Program::Failing { rounds } => virtio::failing::run(&memory, rounds)?,
        Program::Shrinking => virtio::failing::shrinking(&memory)?,
        Program::Ranges => virtio::ranges::run(&memory)?,
        Program::Storm { rounds, seed } => {
            virtio::storm::run(&memory, rounds, seed)?;
            virtio::run(&memory, 0)?;
        }
        Program::Semihosting { path } => semihosting::run(path)?,
        Program::Wild { address } => return Err(Failure::Wild(wild::run(address))),
    }
    if Program::stays(arguments) {
        boot::clear_unused_stack();
        println!("the guest stays");
        loop {
            core::hint::spin_loop();
        }
    }
    Ok(())
}
