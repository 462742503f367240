// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stolen time: the calls and the structure of Arm DEN0057A ("Paravirtualized Time for Arm-based Systems"), 3.2.
//!
//! A guest finds the calls by SMCCC_ARCH_FEATURES of [`FEATURES`], then asks [`FEATURES`] for [`STOLEN_TIME`]. The
//! structure is in the guest's RAM, one for each vCPU, little-endian. A guest's operating system must not use that RAM
//! for anything else; [`virt`](crate::virt::STOLEN_TIME_BASE) has its place.

/// PV_TIME_FEATURES. x1 is the function that the guest asks for. Returns [`SUCCESS`] or [`NOT_SUPPORTED`].
pub const FEATURES: u32 = 0xc500_0020;
/// PV_TIME_ST. Returns the IPA of the calling vCPU's structure, or [`NOT_SUPPORTED`].
pub const STOLEN_TIME: u32 = 0xc500_0021;

/// The function exists.
pub const SUCCESS: i64 = 0;
/// The function does not exist.
pub const NOT_SUPPORTED: i64 = -1;

/// The structure of a vCPU: [`SIZE`](structure::SIZE) bytes, aligned to their size.
pub mod structure {
    /// Bytes of a structure, and its alignment.
    pub const SIZE: u64 = 64;
    /// u32: the revision of the structure, 0.
    pub const REVISION: u64 = 0;
    /// u32: attributes, 0 in this revision.
    pub const ATTRIBUTES: u64 = 4;
    /// u64: nanoseconds. The rest of the structure is 0.
    pub const STOLEN: u64 = 8;
}
