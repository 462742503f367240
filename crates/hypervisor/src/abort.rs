// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Aborts of the guest whose answer needs its own stage 1, and aborts that its memory has no answer to.
//!
//! Every answer makes progress, so no guest takes one abort for ever:
//! * If EL2's own walk of the guest's tables meets an external abort, EL2 injects one. The guest could have met it at
//!   the same moment, because it walks the same tables. A retry instead could repeat for ever: the guest's access may
//!   hit a TLB entry that no longer agrees with the tables.
//! * If the tables no longer translate the address, EL2 invalidates this CPU's stage-1 and combined TLB entries before
//!   the guest tries again. So the next walk reads the present tables, and ends with a fault of their own or with
//!   another page.

use twofold_memory::{Error, GuestMemory};
use twofold_stage2::fault::ipa_from_hpfar;
use twofold_stage2::{Granule, Ipa, Platform};

use crate::context::Context;
use crate::translate::{self, Translation};
use crate::{inject, read_sysreg};

/// The result of locating the page of a fault whose address is not in `HPFAR_EL2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// The page is this one.
    Page(Ipa),
    /// The guest must try again.
    Retry,
    /// The guest has got an external abort.
    Aborted,
}

/// Finds the page of the fault that `esr` and `far` describe, whose address is not in `HPFAR_EL2`.
#[inline(always)]
pub fn locate<P: Platform, G: Granule>(
    memory: &GuestMemory<P, G>,
    context: &mut Context,
    esr: u64,
    far: u64,
) -> Located {
    let mut is_absent = false;
    let read = |ipa| word(memory, ipa).inspect_err(|error| is_absent |= matches!(error, Error::Absent { .. })).ok();
    match translate::translate(far, read) {
        Translation::Page(ipa) => Located::Page(ipa),
        Translation::Aborted(level) if !is_absent => {
            inject::external_abort(context, esr, far, Some(level));
            Located::Aborted
        }
        // If a table of the guest's is absent, its own walk ends with a fault that names the table's page.
        Translation::Aborted(_) | Translation::Unmapped => {
            memory.stage2().invalidate_for_other_vcpu();
            Located::Retry
        }
    }
}

/// Raises an external abort for the fault that `esr` and `far` describe: nothing is at `ipa`.
#[cold]
pub fn refuse<P: Platform, G: Granule>(
    memory: &GuestMemory<P, G>,
    context: &mut Context,
    esr: u64,
    far: u64,
    ipa: Ipa,
) {
    const STAGE_1_WALK: u64 = 1 << 7;
    let level = (esr & STAGE_1_WALK != 0).then(|| walk_level(memory, far, ipa));
    inject::external_abort(context, esr, far, level);
}

/// Handles an abort whose cause is not the content of the tables. Returns whether the guest got an external abort.
#[cold]
pub fn odd<P: Platform, G: Granule>(memory: &GuestMemory<P, G>, context: &mut Context, esr: u64) -> bool {
    const TLB_CONFLICT: u64 = 0b11_0000;
    if esr & 0x3f == TLB_CONFLICT {
        memory.stage2().invalidate_all();
        return false;
    }
    // The bus refused, or the address is too wide: the guest gets the abort as its own.
    refuse(memory, context, esr, read_sysreg!(FAR_EL2), ipa_from_hpfar(read_sysreg!(HPFAR_EL2)));
    true
}

/// The level at which the guest's walk for `va` reads from the page at `page`. If its tables have changed meanwhile,
/// the level at which a walk ends now.
fn walk_level<P: Platform, G: Granule>(memory: &GuestMemory<P, G>, va: u64, page: Ipa) -> i8 {
    const PAGE_SIZE: u64 = 4 << 10;
    let read = |ipa| if Ipa::new(ipa).align_down(PAGE_SIZE) == page { None } else { word(memory, ipa).ok() };
    match translate::stage1().walk(va, read) {
        Ok(_) => 3,
        Err(stop) => stop.level(),
    }
}

/// A word of the guest's RAM, through this CPU's caches. If a guest walks its tables without the caches, the word can
/// be stale; the error then affects only that guest.
fn word<P: Platform, G: Granule>(memory: &GuestMemory<P, G>, ipa: u64) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    memory.read(Ipa::new(ipa), &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
