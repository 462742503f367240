// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's files that can run on a host: those that read what others wrote (a bundle, a device tree, a guest's
//! registers), and those that decide what goes into system registers, which are [`faked`].
//!
//! Invariant: these are the image's own files, not copies; what is written here is only what they take from the machine
//! around them.

extern crate alloc;

#[path = "../../../crates/hypervisor/src/agreement.rs"]
pub mod agreement;
#[path = "../../../crates/hypervisor/src/board.rs"]
#[allow(dead_code, reason = "the image asks for parts of a board that is not understood as a whole")]
pub mod board;
#[path = "../../../crates/hypervisor/src/config.rs"]
pub mod config;
#[path = "../../../crates/hypervisor/src/context.rs"]
#[allow(dead_code, reason = "a part of it is for the assembly of the image alone")]
pub mod context;
#[path = "../../../crates/hypervisor/src/count.rs"]
pub mod count;
#[path = "../../../crates/hypervisor/src/device_tree.rs"]
pub mod device_tree;
#[path = "../../../crates/hypervisor/src/inject.rs"]
pub mod inject;
#[path = "../../../crates/hypervisor/src/load.rs"]
pub mod load;
#[path = "../../../crates/hypervisor/src/registers/mod.rs"]
pub mod registers;
#[path = "../../../crates/hypervisor/src/stage1.rs"]
pub mod stage1;
#[path = "../../../crates/hypervisor/src/translate.rs"]
pub mod translate;

pub mod faked;

/// What `board` takes from the module of this name.
pub mod power {
    /// The instruction that calls the firmware.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Conduit {
        /// Secure monitor call.
        Smc,
        /// Hypervisor call.
        Hvc,
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

/// What `inject`, `registers` and `translate` take from the module of this name.
pub mod sysreg {
    /// One field of an ID register: 4 bits from bit `low`.
    pub const fn id_field(register: u64, low: u32) -> u64 {
        (register >> low) & 0xf
    }

    /// Faked registers need no synchronization.
    pub fn isb() {}
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
