// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Twofold's EL2 image: a small hypervisor that runs guests, and maps their memory on first touch.
//!
//! An image is a binary that names its main function with [`entry!`]:
//!
//! ```ignore
//! twofold_hypervisor::entry!(main);
//! fn main(board: &'static Board) -> ! { ... }
//! ```
//!
//! The upper half is the virtual machine; the parts that need no CPU are in `twofold_vmm`:
//!
//! | module | purpose |
//! |---|---|
//! | [`start`] | from a bundle to running guests |
//! | [`survey`] | reads the features of each CPU that will run a vCPU |
//! | [`vm`] | the virtual machine: the state that its vCPUs share, and its end |
//! | [`life`] | whether a guest runs, as all CPUs see it; how its vCPUs are stopped and go on |
//! | [`schedule`] | which vCPU or task runs on which CPU: the scheduler's lock, and the loop of a CPU |
//! | [`vcpu`] | a vCPU's turn: enter, exit, answer, enter again |
//! | [`restart`], [`release`], [`tasks`] | a guest that begins anew after a reset; what an ended one had; the hypervisor's own tasks |
//! | [`swap`] | a guest whose pages leave memory and come back |
//! | [`commands`] | the launcher's commands, which the task of the control channel answers |
//! | [`consoles`] | the guests' consoles on the control channel |
//! | [`inject`] | exceptions that EL2 raises in the guest |
//! | [`abort`], [`translate`], [`stage1`] | aborts whose answer needs the guest's own stage 1 |
//! | [`emulation`], [`mmio`] | the guest's devices, and its accesses to them |
//! | [`virtio`] | the guest's virtio devices: their far ends, networks between guests |
//! | `guest_ram` | a guest's memory as its devices reach it |
//! | [`timer`], [`clock`] | the guest's time, and wall time |
//! | [`stats`] | counters, and the report |
//! | [`memory`], [`platform`], [`granule`] | RAM and instructions for the engine, and the granule of the guests' tables |
//! | [`experiment`] | what only experiments need: the observer of exits, and the calls by which a guest measures itself |
//!
//! The lower half is everything between the virtual machine and the hardware:
//!
//! | module | purpose |
//! |---|---|
//! | [`boot`], `efi`, [`handover`] | from the boot loader's jump, or EFI's, to `main` |
//! | [`el2_mmu`] | the image's own translation tables |
//! | [`board`] | the machine, as its device tree describes it |
//! | [`cpus`] | the other CPUs, and each CPU's stacks |
//! | [`gic`] | the machine's interrupt controller, and the virtual interface of a CPU |
//! | [`registers`] | the control registers, and the value of each |
//! | [`guest_cpu`] | the ID registers that a guest sees |
//! | [`world`], [`context`] | the switch into the guest and back, and the switched registers |
//! | [`switch`] | the switch from one vCPU to another |
//! | [`vectors`] | the exception vectors |
//! | [`exception_table`], [`at`] | instructions of EL2 that a guest can make abort |
//! | [`panic`](mod@panic) | the one report before the end |
//! | [`console`], [`control`], [`semihosting`] | the outputs |
//! | [`channel`], [`serial_port`] | the framed control channel, and the driver of its port, a virtio console's |
//! | [`host_devices`] | the machine's disks and network cards, behind those of the guests |
//! | [`serial`] | the machine's UART as the far end of the guest's |
//! | [`power`], `mitigation`, [`shutdown`] | calls to the firmware: PSCI, workarounds; the exit of the image |
//! | [`heap`] | `alloc` |
//! | [`pmu`], [`count`], [`masked`] | counts instructions at EL2, rejects impossible counts, and finds what keeps interrupts masked |
//! | [`sysreg`] | reads and writes system registers |
//!
//! EL2 runs with interrupts masked: one that comes meanwhile is an exit right after the next entry. Long work looks for
//! one between its pieces, and stops there ([`masked`]). EL2 uses no FP/SIMD register; those belong to the guest.
#![no_std]

extern crate alloc;

pub mod abort;
pub mod at;
mod balance;
pub mod board;
pub mod boot;
pub mod channel;
pub mod clock;
pub mod commands;
pub mod console;
pub mod consoles;
pub mod context;
pub mod control;
pub mod count;
pub mod cpus;
mod efi;
pub mod el2_mmu;
pub mod emulation;
pub mod exception_table;
pub mod experiment;
pub mod gic;
pub mod granule;
pub mod guest_cpu;
mod guest_ram;
pub mod handover;
pub mod heap;
pub mod host_devices;
pub mod inject;
pub mod life;
pub mod masked;
pub mod memory;
mod mitigation;
pub mod mmio;
pub mod panic;
mod physical_offset;
pub mod platform;
pub mod pmu;
pub mod power;
pub mod registers;
pub mod release;
pub mod restart;
pub mod schedule;
pub mod semihosting;
pub mod serial;
pub mod serial_port;
pub mod shutdown;
pub mod stage1;
pub mod start;
pub mod stats;
pub mod survey;
pub mod swap;
pub mod switch;
pub mod sysreg;
pub mod tasks;
mod tick;
pub mod timer;
pub mod translate;
pub mod vcpu;
pub mod vectors;
pub mod virtio;
pub mod vm;
pub mod world;

/// What a host test replaces: the steps of [`switch`] by steps that can be left out.
pub(crate) mod primitive {
    /// A step of a switch between vCPUs.
    #[derive(Clone, Copy)]
    pub enum Step {
        /// A register is saved.
        Save,
        /// A register is restored.
        Restore,
    }

    /// Whether the step of this register is executed: always.
    #[inline(always)]
    pub const fn kept(_step: Step, _name: &str) -> bool {
        true
    }
}
