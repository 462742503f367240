// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Vendor calls: what a guest of ours asks of the hypervisor by HVC, beside PSCI.
//!
//! They are fast calls of SMCCC (Arm DEN0028) in the range of vendor-specific hypervisor services. All are answered with
//! [`NOT_SUPPORTED`] unless the bundle allows them ([`flags::DIRTY_LOG`](crate::bundle::flags::DIRTY_LOG)): they are there to
//! measure, and tell a guest what is no business of a guest's.
//!
//! A guest that measures its own dirty log starts it, and from then on writes, gets and clears, again and again. What all
//! that took goes to the control channel when it stops ([`control`](crate::control), `dirty_log`).

/// Starts the dirty log of the guest's RAM: x1 is an index of [`TRACKERS`], x2 is 1 where all pages are to be dirty at first
/// and 0 where none is, x3 says how many bytes are split at once ahead of the guest's writes, 0 for block by block.
pub const LOG_START: u32 = 0xc600_0010;
/// Has the log tell which pages are dirty; answers how many.
pub const LOG_GET: u32 = 0xc600_0011;
/// Clears what the last get told.
pub const LOG_CLEAR: u32 = 0xc600_0012;
/// Stops the log, and has what it took reported.
pub const LOG_STOP: u32 = 0xc600_0013;

/// Done.
pub const SUCCESS: i64 = 0;
/// There is no such call here, or this machine cannot do what it asks for.
pub const NOT_SUPPORTED: i64 = -1;
/// An argument makes no sense, or not now.
pub const INVALID_PARAMETER: i64 = -3;

/// The ways to track writes, as figures name them.
pub const TRACKERS: [&str; 5] = ["write_protect", "manual", "hardware", "combined", "adaptive"];
/// The index of the one that is cleared by reading it.
pub const WRITE_PROTECT: usize = 0;
