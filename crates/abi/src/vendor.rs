// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Vendor calls: what a guest of ours asks of the hypervisor by HVC, beside PSCI.
//!
//! They are fast calls of SMCCC (Arm DEN0028) in the range of vendor-specific hypervisor services. All are answered with
//! [`NOT_SUPPORTED`] unless the bundle allows them ([`flags::MEASURE`](crate::bundle::flags::MEASURE)): they are there to
//! measure, and tell a guest what is no business of a guest's.
//!
//! A guest drives the dirty log of its [test memory](crate::bundle::Header::test_start), and says by [`PHASE`] what it is about to
//! do. What is done at EL2 until it says so again is counted as that phase's, these words excepted, and goes to the control
//! channel when the guest is over ([`control`](crate::control), `phase`). All vCPUs of a guest share one log and one series of
//! phases. Of the calls that are refused, the first few are listed on the control channel, and the others counted.

/// Starts the log: x1 is an index of [`TRACKERS`], x2 is 1 where all pages are to be dirty at first and 0 where none is, x3
/// says how many bytes are split at once ahead of the guest's writes, 0 for block by block.
pub const LOG_START: u32 = 0xc600_0010;
/// Has the log tell which pages are dirty; answers how many.
pub const LOG_GET: u32 = 0xc600_0011;
/// Clears what the last get told.
pub const LOG_CLEAR: u32 = 0xc600_0012;
/// Stops the log.
pub const LOG_STOP: u32 = 0xc600_0013;
/// Puts pages together to blocks again, after the log has stopped; answers how many blocks.
pub const LOG_REJOIN: u32 = 0xc600_0014;
/// From now on it is the phase of this index in [`PHASES`] (x1), or none ([`NO_PHASE`]).
pub const PHASE: u32 = 0xc600_0015;

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

/// The phases of experiments, as figures name them; those of KVM's `dirty_log_perf_test` and `kvm_page_table_test`.
pub const PHASES: [&str; 10] =
    ["populate", "create", "enable", "dirty", "get", "clear", "update", "disable", "rejoin", "adjust"];
/// What is counted as no phase's.
pub const NO_PHASE: u64 = u64::MAX;
/// The most phases that one guest may go through; further ones are [`INVALID_PARAMETER`].
pub const PHASES_MAX: usize = 1024;
