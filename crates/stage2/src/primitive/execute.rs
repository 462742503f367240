// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The architecture's instructions, and reports to an observer, of which there is none here.

use super::Claim;
use crate::Pa;
use crate::instructions::{Dc, Domain, Ic, Tlbi};
use crate::platform::Platform;

/// `TLBI operation, operand`.
#[inline(always)]
pub(crate) fn tlbi<P: Platform>(platform: &P, operation: Tlbi, operand: u64) {
    platform.tlbi(operation, operand);
}

/// `DSB domain`.
#[inline(always)]
pub(crate) fn dsb<P: Platform>(platform: &P, domain: Domain) {
    platform.dsb(domain);
}

/// `ISB`.
#[inline(always)]
pub(crate) fn isb<P: Platform>(platform: &P) {
    platform.isb();
}

/// `DC operation` on each line of `line` bytes in the `size` bytes from `start`.
///
/// # Safety
///
/// As [`Platform::dc_lines`].
#[inline(always)]
pub(crate) unsafe fn dc_lines<P: Platform>(platform: &P, operation: Dc, start: usize, size: u64, line: u64) {
    // SAFETY: promised by the caller.
    unsafe { platform.dc_lines(operation, start, size, line) };
}

/// `IC operation, address`.
#[inline(always)]
pub(crate) fn ic<P: Platform>(platform: &P, operation: Ic, address: usize) {
    platform.ic(operation, address);
}

/// `MSR VTTBR_EL2`.
#[inline(always)]
pub(crate) fn load_vttbr<P: Platform>(platform: &P, value: u64) {
    platform.load_vttbr(value);
}

/// Reports that a page becomes a table.
#[inline(always)]
pub(crate) fn page_taken(_: Pa) {}

/// Reports that a page is no table any more. It may have any use from here on.
#[inline(always)]
pub(crate) fn page_freed(_: Pa) {}

/// Reports that the hypervisor wrote to memory that a guest has, or is going to have.
#[inline(always)]
pub(crate) fn data_written(_start: Pa, _size: u64) {}

/// Reports that the memory at `start` becomes a root with this number of entries, or (`None`) stops being one.
#[inline(always)]
pub(crate) fn root(_start: Pa, _entries: Option<usize>, _vttbr: u64, _vtcr: u64) {}

/// Reports that the engine relies on `claim` from here on.
#[inline(always)]
pub(crate) fn claim(_: Claim) {}
