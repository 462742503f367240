// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Defects that were found in other projects for the same job, each as a mutant of ours.
//!
//! Invariant: an entry stands for exactly one mutant of the list.

use anyhow::{Context, bail};

use super::sites::Mutant;
use crate::mutation::Mutation;

/// A defect.
#[derive(Debug)]
pub struct Defect {
    /// The project that had the defect.
    pub peer: &'static str,
    /// The defect.
    pub what: &'static str,
    /// The file of the equivalent mutant.
    pub file: &'static str,
    /// The mutant's function, call and kind, as [`Mutation::label`] formats them.
    pub label: &'static str,
}

/// The defects that a mutant can express.
pub const DEFECTS: &[Defect] = &[
    Defect {
        peer: "hvisor",
        what: "the flush does nothing",
        file: FLUSH,
        label: "Stage2::flush_changed/invalidate/omit",
    },
    Defect {
        peer: "aarch64-paging, Bao",
        what: "no VMALLE1IS after the invalidation by IPA",
        file: TLB,
        label: "Tlb::by_ipa/tlbi/omit",
    },
    Defect { peer: "axvm", what: "no DSB before the invalidation", file: TLB, label: "Tlb::by_ipa/dsb/omit" },
    Defect {
        peer: "Zephyr, page_table_multiarch",
        what: "the operand is shifted by a wrong amount",
        file: TLB,
        label: "Tlb::single/tlbi/shift",
    },
    Defect { peer: "axvm", what: "the operand is not shifted", file: TLB, label: "Tlb::single/tlbi/unshifted" },
    Defect {
        peer: "Hafnium, OP-TEE",
        what: "the other IPA space is invalidated",
        file: TLB,
        label: "Tlb::single/tlbi/other-space",
    },
    Defect {
        peer: "axvm",
        what: "invalidations that do not remove the guest's stage-2 entries",
        file: TLB,
        label: "Tlb::single/tlbi/omit",
    },
    Defect {
        peer: "Bao",
        what: "the VMID is written back, not the register",
        file: TLB,
        label: "Tlb::as_current_vmid/load_vttbr#2/vmid-only",
    },
    Defect {
        peer: "FreeBSD",
        what: "two guests with one VMID",
        file: "crates/stage2/src/stage2.rs",
        label: "Stage2::under/check/omit",
    },
    Defect {
        peer: "Genode",
        what: "detached tables stay reachable",
        file: "crates/stage2/src/unmap.rs",
        label: "Unmap::unlink/take_unrecorded_in/omit",
    },
    Defect { peer: "Genode", what: "walk entries of detached tables stay", file: TLB, label: "Tlb::single/tlbi/leaf" },
    Defect {
        peer: "Kolothum 2023",
        what: "a plain store races with a hardware update",
        file: "crates/stage2/src/age.rs",
        label: "ClearDbmAndWrite::entries/clear/apart",
    },
    Defect {
        peer: "Kolothum 2023",
        what: "a stale value is stored again",
        file: "crates/stage2/src/lockless_walk.rs",
        label: "Locked::replace_in/replace/force",
    },
    Defect {
        peer: "Kolothum 2023",
        what: "the dirty state is read before the break",
        file: "crates/stage2/src/unmap.rs",
        label: "Unmap::take_reported/take/apart",
    },
    Defect {
        peer: "accepted by casemate",
        what: "another output address on a live leaf, without a break",
        file: "crates/stage2/src/map.rs",
        label: "Stage2::fill_entry/make_busy/omit",
    },
];

const FLUSH: &str = "crates/stage2/src/flush.rs";
const TLB: &str = "crates/stage2/src/tlb.rs";

/// Returns the index of a defect's mutant in `mutants`, the complete list.
pub fn number(defect: &Defect, mutants: &[Mutant]) -> anyhow::Result<usize> {
    let is_it = |mutant: &Mutant| mutant.site.file == defect.file && mutant.label() == defect.label;
    let mut found = mutants.iter().enumerate().filter(|(_, mutant)| is_it(mutant)).map(|(number, _)| number);
    let Defect { file, label, .. } = defect;
    let number = found
        .next()
        .with_context(|| format!("tools/mutants/src/calls/defects.rs: there is no {file} {label}; --list names all"))?;
    if found.next().is_some() {
        bail!("tools/mutants/src/calls/defects.rs: there are several {file} {label}");
    }
    Ok(number)
}
