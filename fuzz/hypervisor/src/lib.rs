// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's files that read what others wrote (a bundle, a device tree), compiled for a host.
//!
//! Invariant: these are the image's own files, not copies; what is written here is only what they take from the machine
//! around them.

extern crate alloc;

#[path = "../../../crates/hypervisor/src/board.rs"]
#[allow(dead_code, reason = "the image asks for parts of a board that is not understood as a whole")]
pub mod board;
#[path = "../../../crates/hypervisor/src/config.rs"]
pub mod config;
#[path = "../../../crates/hypervisor/src/device_tree.rs"]
pub mod device_tree;
#[path = "../../../crates/hypervisor/src/load.rs"]
pub mod load;

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

/// The affinity of the CPU that boots.
pub const BOOT_CPU: u64 = 0;

macro_rules! read_sysreg {
    (MPIDR_EL1) => {
        $crate::BOOT_CPU
    };
}
pub(crate) use read_sysreg;
