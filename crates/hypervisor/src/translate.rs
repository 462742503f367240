// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a guest's virtual address to the page behind it, by the guest's stage 1 alone.
//!
//! T1. `AT S1E1R`, which works for nearly every address.
//! T2. T1 reports a permission fault if EL1 may not read the page. That can happen although the guest's own access
//!     passed stage 1: a page can be execute-only, or a Guarded Control Stack (FEAT_S1PIE, FEAT_GCS). `AT S1E1A` does
//!     not check permissions; without FEAT_ATS1A the walk is done in software.

use twofold_stage2::Ipa;
use twofold_stage2::fault::ipa_from_par;

use crate::stage1::{Stage1, Stop};
use crate::sysreg::id_field;
use crate::{at, read_sysreg};

/// The result of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The address translates to this page.
    Page(Ipa),
    /// A table of this level cannot be read.
    Aborted(i8),
    /// The guest's tables do not translate the address, or no longer.
    Unmapped,
}

/// Translates `va`; `read` returns words of the guest's memory, as for [`Stage1::walk`].
#[inline(always)]
pub fn translate(va: u64, read: impl FnMut(u64) -> Option<u64>) -> Translation {
    let par = at::s1e1r(va);
    match ipa_from_par(par) {
        Some(ipa) => Translation::Page(ipa),
        None => failed(par, va, read),
    }
}

/// The guest's stage 1 on this CPU.
pub fn stage1() -> Stage1 {
    Stage1 {
        sctlr: read_sysreg!(SCTLR_EL1),
        tcr: read_sysreg!(TCR_EL1),
        ttbr: [read_sysreg!(TTBR0_EL1), read_sysreg!(TTBR1_EL1)],
    }
}

/// Handles the fault of `AT S1E1R` in `par`.
#[cold]
#[inline(never)]
fn failed(par: u64, va: u64, read: impl FnMut(u64) -> Option<u64>) -> Translation {
    if !is_permission_fault(par) {
        return fault(par);
    }
    let isar2 = read_sysreg!(S3_0_C0_C6_2); // ID_AA64ISAR2_EL1
    if id_field(isar2, 60) != 0 {
        let par = at::s1e1a(va);
        return ipa_from_par(par).map_or_else(|| fault(par), Translation::Page);
    }
    match stage1().walk(va, read) {
        Ok(ipa) => Translation::Page(Ipa::new(ipa & PAGE)),
        Err(Stop::Unreadable(level)) => Translation::Aborted(level),
        Err(Stop::Unmapped(_)) => Translation::Unmapped,
    }
}

/// The meaning of a fault in `PAR_EL1` (Arm ARM DDI 0487K.a, D23.2, `PAR_EL1`).
fn fault(par: u64) -> Translation {
    let status = status(par) as i8;
    match status {
        // On the walk: an external abort, a parity error, or a granule protection fault, from level -1 to 3.
        0x13..=0x17 => Translation::Aborted(status - 0x14),
        0x1b..=0x1f => Translation::Aborted(status - 0x1c),
        0x23..=0x27 => Translation::Aborted(status - 0x24),
        _ => Translation::Unmapped,
    }
}

/// Whether the fault is a permission fault of stage 1.
fn is_permission_fault(par: u64) -> bool {
    const STAGE_2: u64 = 1 << 9;
    par & STAGE_2 == 0 && matches!(status(par), 0x0c..=0x0f)
}

/// PAR_EL1.FST.
fn status(par: u64) -> u64 {
    par >> 1 & 0x3f
}

/// An address without its offset in a 4 KiB page, the page size of stage 2.
const PAGE: u64 = 0x000f_ffff_ffff_f000;
