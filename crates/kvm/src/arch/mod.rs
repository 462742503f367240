// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The differences between the two architectures: the guest's code, its registers, and KVM's capabilities.
//!
//! Each architecture has the same functions, and a `.s` file that does the passes.

use std::slice;

#[cfg(target_arch = "aarch64")]
mod arm64;
#[cfg(target_arch = "aarch64")]
mod bare;
#[cfg(target_arch = "aarch64")]
mod gic;
#[cfg(target_arch = "x86_64")]
mod tables;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use arm64::*;
#[cfg(target_arch = "aarch64")]
pub(crate) use bare::BareMachine;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!("twofold-kvm has guests for arm64 and x86-64");

/// The state in which a vCPU starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// The code's address, guest-physical and virtual.
    pub(crate) code: u64,
    /// The mailbox's address, guest-physical and virtual.
    pub(crate) mailbox: u64,
    /// The root of its tables.
    pub(crate) root: Root,
}

/// What the guest reports by an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It has done its passes.
    Done,
    /// Its dirty ring is nearly full.
    RingFull,
    /// Anything else, which is not expected.
    Other(String),
}

/// Returns the guest's code.
pub(crate) fn code() -> &'static [u8] {
    let (start, end) = (&raw const twofold_kvm_guest, &raw const twofold_kvm_guest_end);
    // SAFETY: the assembly places the second symbol after the first, in one section of read-only data.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

unsafe extern "C" {
    static twofold_kvm_guest: u8;
    static twofold_kvm_guest_end: u8;
}
