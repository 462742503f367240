// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Vendor calls: calls that Twofold's own guests make to the hypervisor by HVC, beside PSCI.
//!
//! They are fast calls of SMCCC (Arm DEN0028) in the range of vendor-specific hypervisor services. Each returns
//! [`NOT_SUPPORTED`] unless the bundle allows it ([`flags::MEASURE`](crate::bundle::flags::MEASURE)): the calls exist
//! to measure, and reveal facts that an ordinary guest must not learn.
//!
//! A guest controls the dirty log of its [test memory](crate::bundle::Guest::test_start), and announces by [`PHASE`]
//! the phase that it starts. The work at EL2 until the next announcement counts for that phase, except the
//! announcements themselves. The figures go to the control channel when the guest has ended
//! ([`control`](crate::control), `phase`). All vCPUs of a guest share one log and one series of phases. Of the calls
//! that are refused, the control channel lists the first few; the others are counted.

/// Returns [`UID`] in w0 to w3, whether the bundle allows the other calls or not.
pub const CALL_UID: u32 = 0x8600_ff01;
/// Returns [`REVISION`] in w0 and w1, likewise.
pub const CALL_REVISION: u32 = 0x8600_ff03;
/// Identifies this hypervisor to its guests (Arm DEN0028, "Call UID").
pub const UID: [u32; 4] = [0x7477_6f66, 0x4b1d_a90c, 0x8e35_62f7, 0x19c4_d05b];
/// The major and the minor version of this range of calls. Each protocol in it has a version of its own.
pub const REVISION: [u32; 2] = [1, 0];

/// Starts the log. x1 is an index of [`TRACKERS`]. x2 is 1 if all pages are dirty at first, 0 if none is. x3 is the
/// number of bytes to split at once ahead of the guest's writes; 0 splits block by block.
pub const LOG_START: u32 = 0xc600_0010;
/// Collects the pages that are dirty; returns their number.
pub const LOG_GET: u32 = 0xc600_0011;
/// Clears the pages that the last get returned.
pub const LOG_CLEAR: u32 = 0xc600_0012;
/// Stops the log.
pub const LOG_STOP: u32 = 0xc600_0013;
/// Coalesces pages into blocks, after the log has stopped; returns the number of blocks.
pub const LOG_COALESCE: u32 = 0xc600_0014;
/// Starts the phase with this index in [`PHASES`] (x1), or none ([`NO_PHASE`]).
pub const PHASE: u32 = 0xc600_0015;
/// All pages of the guest's RAM leave to its store, which is one in the machine's memory, before this returns; returns how many
/// did. Then they are absent, as at the switch-over of a post-copy.
pub const SWAP_OUT: u32 = 0xc600_0016;

/// Done.
pub const SUCCESS: i64 = 0;
/// The call does not exist here, or this machine cannot do it.
pub const NOT_SUPPORTED: i64 = -1;
/// An argument is invalid, or not allowed in this state.
pub const INVALID_PARAMETER: i64 = -3;

/// The ways to track writes, by the names that figures use.
pub const TRACKERS: [&str; 5] = ["write_protect", "manual", "hardware", "combined", "adaptive"];
/// The index of the tracker whose log a get also clears.
pub const WRITE_PROTECT: usize = 0;

/// The phases of experiments, by the names that figures use: those of KVM's `dirty_log_perf_test` and
/// `kvm_page_table_test`.
pub const PHASES: [&str; 10] =
    ["populate", "create", "enable", "dirty", "get", "clear", "update", "disable", "coalesce", "adjust"];
/// What follows belongs to no phase.
pub const NO_PHASE: u64 = u64::MAX;
/// The most phases that one guest may start; a further one returns [`INVALID_PARAMETER`].
pub const PHASES_MAX: usize = 1024;
