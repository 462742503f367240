// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's files that can run on the host: those that parse untrusted input (a device tree, a guest's
//! registers), and those that compute system registers, which are [`faked`].
//!
//! Invariant: these are the image's own files, not copies. This file adds only what they need from the machine.
//! [`done`] returns their effects on the machine, in order, for each thread separately.

extern crate alloc;

use std::cell::RefCell;

#[path = "../../../crates/hypervisor/src/board.rs"]
#[allow(dead_code, reason = "the image also reads parts of a board that cannot be read as a whole")]
pub mod board;
#[path = "../../../crates/hypervisor/src/context.rs"]
#[allow(dead_code, reason = "only the assembly of the image uses a part of it")]
pub mod context;
#[path = "../../../crates/hypervisor/src/count.rs"]
pub mod count;
#[path = "../../../crates/hypervisor/src/cpus.rs"]
#[allow(dead_code, reason = "no CPU's stacks are used here")]
pub mod cpus;
#[path = "../../../crates/hypervisor/src/guest_cpu/mod.rs"]
pub mod guest_cpu;
#[path = "../../../crates/hypervisor/src/handover.rs"]
pub mod handover;
pub mod host_devices;
#[path = "../../../crates/hypervisor/src/inject.rs"]
pub mod inject;
#[path = "../../../crates/hypervisor/src/masked.rs"]
pub mod masked;
#[path = "../../../crates/hypervisor/src/mmio.rs"]
pub mod mmio;
#[path = "../../../crates/hypervisor/src/registers/mod.rs"]
pub mod registers;
#[path = "../../../crates/hypervisor/src/serial_port/mod.rs"]
pub mod serial_port;
#[path = "../../../crates/hypervisor/src/gic/sources.rs"]
pub mod sources;
#[path = "../../../crates/hypervisor/src/stage1.rs"]
pub mod stage1;
#[path = "../../../crates/hypervisor/src/switch/mod.rs"]
pub mod switch;
#[path = "../../../crates/hypervisor/src/timer.rs"]
pub mod timer;
#[path = "../../../crates/hypervisor/src/translate.rs"]
pub mod translate;

pub mod faked;
pub mod omitted;

/// An effect on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A DSB ISHST.
    DsbIshst,
    /// A call of the firmware's CPU_ON for this affinity.
    CpuOn(u64),
}

thread_local! {
    static DONE: RefCell<Vec<Done>> = const { RefCell::new(Vec::new()) };
}

/// Returns the effects since the last call.
pub fn done() -> Vec<Done> {
    DONE.take()
}

fn did(done: Done) {
    DONE.with_borrow_mut(|all| all.push(done));
}

/// The items of this module that `switch` uses.
pub mod primitive {
    pub use crate::omitted::{Step, kept};
}

/// The entry point of a started CPU; no CPU starts here.
#[unsafe(no_mangle)]
extern "C" fn secondary_entry() {}

/// A jump to another stack; no CPU has one here.
#[unsafe(no_mangle)]
extern "C" fn enter_with_stack() {}

/// The items of this module that `board` and `cpus` use.
pub mod power {
    use smccc::psci::Error;

    /// An affinity that the firmware does not know.
    pub const UNKNOWN_CPU: u64 = 0xff;

    /// The instruction that calls the firmware.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Conduit {
        /// Secure monitor call.
        Smc,
        /// Hypervisor call.
        Hvc,
    }

    /// Starts a CPU.
    pub fn cpu_on(mpidr: u64, _entry: u64, _context: u64) -> Result<(), Error> {
        super::did(super::Done::CpuOn(mpidr));
        if mpidr == UNKNOWN_CPU { Err(Error::InvalidParameters) } else { Ok(()) }
    }

    /// Switches this CPU off.
    pub fn cpu_off() -> ! {
        unreachable!("no CPU is started here")
    }
}

/// The items of this module that `translate` uses: each instruction returns the `PAR_EL1` that a test has set.
pub mod at {
    /// `AT S1E1R`.
    pub fn s1e1r(_address: u64) -> u64 {
        crate::faked::read("AT S1E1R")
    }

    /// `AT S1E1A`.
    pub fn s1e1a(_address: u64) -> u64 {
        crate::faked::read("AT S1E1A")
    }
}

/// The items of this module that `inject`, `registers`, `translate` and `cpus` use.
pub mod sysreg {
    /// A DSB ISHST.
    pub fn dsb_ishst() {
        super::did(super::Done::DsbIshst);
    }

    /// Returns a field of an ID register: 4 bits from bit `low`.
    pub const fn id_field(register: u64, low: u32) -> u64 {
        (register >> low) & 0xf
    }

    /// An ISB, which stands among the writes.
    pub fn isb() {
        crate::faked::isb();
    }
}

/// Returns the guard pages of all CPUs.
pub fn guards() -> Vec<core::ops::Range<u64>> {
    cpus::guards().collect()
}

/// The affinity of the boot CPU.
pub const BOOT_CPU: u64 = 0;

macro_rules! read_sysreg {
    ($name:ident) => {
        $crate::faked::read(stringify!($name))
    };
}
pub(crate) use read_sysreg;

macro_rules! write_sysreg {
    ($name:ident, $value:expr) => {
        $crate::faked::write(stringify!($name), $value)
    };
}
pub(crate) use write_sysreg;

/// Stores faked vector register `n` as element `n` of an array.
macro_rules! store_vector {
    ($n:literal, $array:expr) => {{
        let array: *mut u128 = $array;
        array.add($n).write($crate::faked::vector($n));
    }};
}
pub(crate) use store_vector;

/// Loads faked vector register `n` from element `n` of an array.
macro_rules! load_vector {
    ($n:literal, $array:expr) => {{
        let array: *const u128 = $array;
        $crate::faked::set_vector($n, array.add($n).read());
    }};
}
pub(crate) use load_vector;
