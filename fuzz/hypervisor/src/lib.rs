// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's files that can run on the host: those that parse untrusted input (a bundle, a device tree, a
//! guest's registers), those that compute system registers, which are [`faked`], and those that answer a guest's calls.
//!
//! Invariant: these are the image's own files, not copies. This file adds only what they need from the machine.
//! [`done`] returns their effects on the machine, in order, for each thread separately.

extern crate alloc;

use std::cell::RefCell;

#[path = "../../../crates/hypervisor/src/agreement.rs"]
pub mod agreement;
#[path = "../../../crates/hypervisor/src/board.rs"]
#[allow(dead_code, reason = "the image also reads parts of a board that cannot be read as a whole")]
pub mod board;
#[path = "../../../crates/hypervisor/src/claim.rs"]
pub mod claim;
#[path = "../../../crates/hypervisor/src/config.rs"]
pub mod config;
#[path = "../../../crates/hypervisor/src/context.rs"]
#[allow(dead_code, reason = "only the assembly of the image uses a part of it")]
pub mod context;
#[path = "../../../crates/hypervisor/src/count.rs"]
pub mod count;
#[path = "../../../crates/hypervisor/src/cpus.rs"]
#[allow(dead_code, reason = "no CPU's stacks are used here")]
pub mod cpus;
#[path = "../../../crates/hypervisor/src/device_tree.rs"]
pub mod device_tree;
#[path = "../../../crates/hypervisor/src/inject.rs"]
pub mod inject;
#[path = "../../../crates/hypervisor/src/load.rs"]
pub mod load;
#[path = "../../../crates/hypervisor/src/psci.rs"]
pub mod psci;
#[path = "../../../crates/hypervisor/src/refusals.rs"]
pub mod refusals;
#[path = "../../../crates/hypervisor/src/registers/mod.rs"]
pub mod registers;
#[path = "../../../crates/hypervisor/src/stage1.rs"]
pub mod stage1;
#[path = "../../../crates/hypervisor/src/translate.rs"]
pub mod translate;

pub mod faked;

/// An effect on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A DSB ISHST.
    DsbIshst,
    /// A call of the firmware's CPU_ON for this affinity.
    CpuOn(u64),
    /// A line on the control channel.
    Log(String),
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

/// The items of this module that `claim` uses.
pub mod primitive {
    use std::cell::RefCell;
    pub use std::sync::atomic::Ordering;

    /// An atomic that runs another CPU's planned actions after each operation.
    pub struct AtomicBool(std::sync::atomic::AtomicBool);

    type Meanwhile = Box<dyn FnOnce()>;

    thread_local! {
        static MEANWHILE: RefCell<Option<(u32, Meanwhile)>> = const { RefCell::new(None) };
    }

    /// Plans `what`, an action of another CPU, after `after` further operations on any [`AtomicBool`] of this thread.
    pub fn meanwhile(after: u32, what: impl FnOnce() + 'static) {
        MEANWHILE.set(Some((after, Box::new(what))));
    }

    impl AtomicBool {
        /// Creates an atomic with this value.
        pub fn new(value: bool) -> Self {
            Self(value.into())
        }

        /// Loads, as `std`'s atomic does.
        pub fn load(&self, order: Ordering) -> bool {
            others_after(self.0.load(order))
        }

        /// Stores, as `std`'s atomic does.
        pub fn store(&self, value: bool, order: Ordering) {
            self.0.store(value, order);
            others_after(());
        }

        /// Swaps, as `std`'s atomic does.
        pub fn swap(&self, value: bool, order: Ordering) -> bool {
            others_after(self.0.swap(value, order))
        }
    }

    fn others_after<T>(value: T) -> T {
        let due = MEANWHILE.with_borrow_mut(|planned| match planned {
            Some((after @ 1.., _)) => {
                *after -= 1;
                (*after == 0).then(|| planned.take()).flatten()
            }
            _ => None,
        });
        if let Some((_, what)) = due {
            what();
        }
        value
    }
}

/// The items of this module that `refusals` uses.
pub mod control {
    /// Writes a line for the launcher.
    pub fn log(text: core::fmt::Arguments) {
        super::did(super::Done::Log(text.to_string()));
    }
}

/// The entry point of a started CPU; no CPU starts here.
#[unsafe(no_mangle)]
extern "C" fn secondary_entry() {}

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

    /// An ISB, which faked registers do not need.
    pub fn isb() {}
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
