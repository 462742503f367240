// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asynchronous page faults: the calls, and the area that each vCPU shares with the hypervisor.
//!
//! `docs/async-page-fault.md` is the specification. All numbers in the area are little-endian. Offsets are bytes from
//! the start of the area.

/// The version of the protocol: the major version in bits 31:16, the minor one in bits 15:0. A guest refuses a major
/// version that it does not know. A minor version adds features, and changes nothing else.
pub const VERSION: u32 = 1 << 16;

/// `compatible` of the device tree node that announces the protocol. Its `interrupts` has the PPI, edge-triggered.
pub const COMPATIBLE: &str = "twofold,async-page-fault";
/// The INTID of the PPI on the machine of [`virt`](crate::virt). A guest takes it from the device tree or from
/// [`query::INTID`].
pub const INTID: u32 = 22;

/// Returns one fact in x0. x1 is one of [`query`].
pub const QUERY: u32 = 0xc600_0020;
/// Enables the protocol for the calling vCPU. x1 is the guest-physical address of its area, and x2 is made of
/// [`flags`].
pub const ENABLE: u32 = 0xc600_0021;
/// Disables the protocol for the calling vCPU.
pub const DISABLE: u32 = 0xc600_0022;
/// Acknowledges the token that the guest took from [`area::READY`]. x1 is that token.
pub const ACKNOWLEDGE: u32 = 0xc600_0023;

/// The argument of [`QUERY`].
pub mod query {
    /// [`VERSION`](super::VERSION).
    pub const VERSION: u64 = 0;
    /// Which of [`flags`](super::flags) [`ENABLE`](super::ENABLE) accepts.
    pub const FLAGS: u64 = 1;
    /// The INTID of the PPI.
    pub const INTID: u64 = 2;
    /// [`TOKENS_MAX`](super::TOKENS_MAX).
    pub const TOKENS_MAX: u64 = 3;
}

/// Bits of the second argument of [`ENABLE`].
pub mod flags {
    /// Announce absent pages also when EL1 has accessed them.
    pub const KERNEL: u64 = 1 << 0;
    /// All flags of this version. A call with another bit is refused.
    pub const ALL: u64 = KERNEL;
}

/// The area of a vCPU: [`SIZE`](area::SIZE) bytes, aligned to their size, so that they lie in one page.
pub mod area {
    /// Bytes of an area, and its alignment.
    pub const SIZE: u64 = 64;
    /// u32: the token of the announcement. The hypervisor writes it where it reads 0; the guest writes 0 to consume the
    /// announcement.
    pub const NOT_PRESENT: usize = 0x00;
    /// u32: the exception level that made the access, 0 or 1.
    pub const LEVEL: usize = 0x04;
    /// u64: the address of the instruction that made the access.
    pub const PC: usize = 0x08;
    /// u64: how many announcements this vCPU has had since it was made. Each announcement adds one.
    pub const SEQUENCE: usize = 0x10;
    /// u32: a token whose page is present, or [`WAKE_ALL`](super::WAKE_ALL). The guest reads it, writes 0, and
    /// acknowledges.
    pub const READY: usize = 0x18;
    /// The first of the bytes that are reserved, up to [`SIZE`]. Neither side writes them after the guest's zeroes.
    pub const RESERVED: usize = 0x1c;
    /// Bytes of an announcement, from [`NOT_PRESENT`] on.
    pub const ANNOUNCEMENT_SIZE: usize = 0x18;
}

/// No token.
pub const NO_TOKEN: u32 = 0;
/// In [`area::READY`]: every task of this vCPU that waits for a token runs again.
pub const WAKE_ALL: u32 = u32::MAX;
/// The most tokens that a vCPU may have outstanding. A token is outstanding from its announcement until it is
/// acknowledged.
pub const TOKENS_MAX: usize = 64;

/// Done.
pub const SUCCESS: i64 = crate::vendor::SUCCESS;
/// The call does not exist here.
pub const NOT_SUPPORTED: i64 = crate::vendor::NOT_SUPPORTED;
/// An argument is invalid, or not allowed in this state. Nothing changed.
pub const INVALID_PARAMETER: i64 = crate::vendor::INVALID_PARAMETER;

const _: () = assert!(area::RESERVED as u64 <= area::SIZE && area::SIZE.is_power_of_two());
