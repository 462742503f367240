// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Instructions and reports, as `primitive::execute` has them, each of them reported or left out.

#[cfg(any(mutants, all(feature = "checked", not(loom))))]
use core::panic::Location;

#[cfg(mutants)]
use super::mutants;
use super::word::{observed, step};
use crate::Pa;
use crate::instructions::{Dc, Domain, Ic, Tlbi};
use crate::platform::Platform;
use crate::primitive::Claim;

/// `TLBI operation, operand`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn tlbi<P: Platform>(platform: &P, operation: Tlbi, operand: u64) {
    step!(());
    #[cfg(mutants)]
    let (operation, operand) = mutants::invalidation(operation, operand, Location::caller());
    about_to();
    platform.tlbi(operation, operand);
}

/// `DSB domain`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn dsb<P: Platform>(platform: &P, domain: Domain) {
    step!(());
    #[cfg(mutants)]
    let domain = mutants::barrier(domain, Location::caller());
    about_to();
    platform.dsb(domain);
}

/// `ISB`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn isb<P: Platform>(platform: &P) {
    step!(());
    about_to();
    platform.isb();
}

/// `DC operation` on each line of `line` bytes in the `size` bytes from `start`.
///
/// # Safety
///
/// As [`Platform::dc_lines`].
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) unsafe fn dc_lines<P: Platform>(platform: &P, operation: Dc, start: usize, size: u64, line: u64) {
    step!(());
    about_to();
    // SAFETY: promised by the caller.
    unsafe { platform.dc_lines(operation, start, size, line) };
}

/// `IC operation, address`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn ic<P: Platform>(platform: &P, operation: Ic, address: usize) {
    step!(());
    about_to();
    platform.ic(operation, address);
}

/// `MSR VTTBR_EL2`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn load_vttbr<P: Platform>(platform: &P, value: u64) {
    step!(());
    #[cfg(mutants)]
    let value = mutants::vttbr(value, Location::caller());
    about_to();
    platform.load_vttbr(value);
}

/// Reports that a page becomes a table.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn page_taken(page: Pa) {
    let _ = page;
    observed!(observer => observer.page_taken(page, Location::caller()), ());
}

/// Reports that a page is no table any more. It may have any use from here on.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn page_freed(page: Pa) {
    let _ = page;
    observed!(observer => observer.page_freed(page, Location::caller()), ());
}

/// Reports that the hypervisor wrote to memory that a guest has, or is going to have.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn data_written(start: Pa, size: u64) {
    let _ = (start, size);
    observed!(observer => observer.data_written(start, size, Location::caller()), ());
}

/// Reports that the memory at `start` becomes a root with this number of entries, or (`None`) stops being one.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn root(start: Pa, entries: Option<usize>, vttbr: u64, vtcr: u64) {
    let _ = (start, entries, vttbr, vtcr);
    observed!(observer => observer.root(start, entries, vttbr, vtcr, Location::caller()), ());
}

/// Reports that the engine relies on `claim` from here on.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn claim(claim: Claim) {
    let _ = &claim;
    observed!(observer => observer.claims(claim, Location::caller()), ());
}

/// Reports the call site of the next instruction.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
fn about_to() {
    observed!(observer => observer.about_to(Location::caller()), ());
}
