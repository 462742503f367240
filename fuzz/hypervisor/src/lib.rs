// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's files that can run on a host: those that read what others wrote (a bundle, a device tree, a guest's
//! registers), and those that decide what goes into system registers, which are [`faked`], or what a guest's call leads to.
//!
//! Invariant: these are the image's own files, not copies; what is written here is only what they take from the machine
//! around them. What they do to that machine is in [`done`], in order, for each thread by itself.

extern crate alloc;

use std::cell::RefCell;

#[path = "../../../crates/hypervisor/src/agreement.rs"]
pub mod agreement;
#[path = "../../../crates/hypervisor/src/board.rs"]
#[allow(dead_code, reason = "the image asks for parts of a board that is not understood as a whole")]
pub mod board;
#[path = "../../../crates/hypervisor/src/claim.rs"]
pub mod claim;
#[path = "../../../crates/hypervisor/src/config.rs"]
pub mod config;
#[path = "../../../crates/hypervisor/src/context.rs"]
#[allow(dead_code, reason = "a part of it is for the assembly of the image alone")]
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

/// Something that was done to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A barrier: DSB ISHST.
    DsbIshst,
    /// A call of the firmware: CPU_ON for this affinity.
    CpuOn(u64),
    /// A line on the control channel.
    Log(String),
}

thread_local! {
    static DONE: RefCell<Vec<Done>> = const { RefCell::new(Vec::new()) };
}

/// What was done since the last call.
pub fn done() -> Vec<Done> {
    DONE.take()
}

fn did(done: Done) {
    DONE.with_borrow_mut(|all| all.push(done));
}

/// What `claim` takes from the module of this name.
pub mod primitive {
    use std::cell::RefCell;
    pub use std::sync::atomic::Ordering;

    /// An atomic whose every operation is followed by what another CPU does meanwhile.
    pub struct AtomicBool(std::sync::atomic::AtomicBool);

    type Meanwhile = Box<dyn FnOnce()>;

    thread_local! {
        static MEANWHILE: RefCell<Option<(u32, Meanwhile)>> = const { RefCell::new(None) };
    }

    /// Does `what` after so many operations more on any [`AtomicBool`] of this thread's, as another CPU would.
    pub fn meanwhile(after: u32, what: impl FnOnce() + 'static) {
        MEANWHILE.set(Some((after, Box::new(what))));
    }

    impl AtomicBool {
        /// One of this value.
        pub fn new(value: bool) -> Self {
            Self(value.into())
        }

        /// As the atomic's.
        pub fn load(&self, order: Ordering) -> bool {
            others_after(self.0.load(order))
        }

        /// As the atomic's.
        pub fn store(&self, value: bool, order: Ordering) {
            self.0.store(value, order);
            others_after(());
        }

        /// As the atomic's.
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

/// What `refusals` takes from the module of this name.
pub mod control {
    /// A line for the launcher.
    pub fn log(text: core::fmt::Arguments) {
        super::did(super::Done::Log(text.to_string()));
    }
}

/// Where a CPU would start, which none does here.
#[unsafe(no_mangle)]
extern "C" fn secondary_entry() {}

/// What `board` and `cpus` take from the module of this name.
pub mod power {
    use smccc::psci::Error;

    /// The affinity that the firmware does not know.
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

/// What `translate` takes from the module of this name: what each instruction leaves in `PAR_EL1`, as a test has set it.
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

/// What `inject`, `registers`, `translate` and `cpus` take from the module of this name.
pub mod sysreg {
    /// A barrier.
    pub fn dsb_ishst() {
        super::did(super::Done::DsbIshst);
    }

    /// One field of an ID register: 4 bits from bit `low`.
    pub const fn id_field(register: u64, low: u32) -> u64 {
        (register >> low) & 0xf
    }

    /// Faked registers need no synchronization.
    pub fn isb() {}
}

/// The guard pages of all CPUs.
pub fn guards() -> Vec<core::ops::Range<u64>> {
    cpus::guards().collect()
}

/// The affinity of the CPU that boots.
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
