// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Defects that were found in others who do this job, each as a mutant of ours.
//!
//! Invariant: an entry stands for exactly one mutant of the list.

use anyhow::{Context, bail};

use super::sites::Mutant;

/// A defect.
#[derive(Debug)]
pub struct Defect {
    /// Who had it.
    pub peer: &'static str,
    /// What it was.
    pub what: &'static str,
    /// The file of the mutant that is the same.
    pub file: &'static str,
    /// Its function, call and kind, as [`Mutant::label`] has them.
    pub label: &'static str,
}

/// Those that a mutant can be.
pub const DEFECTS: &[Defect] = &[
    Defect { peer: "hvisor", what: "the flush does nothing", file: FLUSH, label: "Pending::flush/invalidate/omit" },
    Defect {
        peer: "aarch64-paging, Bao",
        what: "no VMALLE1IS after the invalidation by IPA",
        file: TLB,
        label: "Tlb::by_ipa/tlbi/omit",
    },
    Defect { peer: "axvm", what: "no DSB before the invalidation", file: TLB, label: "Tlb::by_ipa/dsb/omit" },
    Defect {
        peer: "Zephyr, page_table_multiarch",
        what: "the operand is shifted by something else",
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
        what: "invalidations that leave the guest's stage-2 entries",
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
        label: "Stage2::new/check/omit",
    },
    Defect {
        peer: "Genode",
        what: "what is detached stays reachable",
        file: "crates/stage2/src/unmap.rs",
        label: "Unmap::unlink/take_unrecorded/omit",
    },
    Defect { peer: "Genode", what: "walk entries of what is detached stay", file: TLB, label: "Tlb::single/tlbi/leaf" },
    Defect {
        peer: "the combined dirty log",
        what: "a plain store against hardware's update",
        file: "crates/stage2/src/age.rs",
        label: "Disarm::entries/clear/apart",
    },
    Defect {
        peer: "the combined dirty log",
        what: "a stale value is stored again",
        file: "crates/stage2/src/descent.rs",
        label: "Locked::replace_in/replace/force",
    },
    Defect {
        peer: "the combined dirty log",
        what: "the dirty state is read before the break",
        file: "crates/stage2/src/unmap.rs",
        label: "Unmap::take_told/take/apart",
    },
    Defect {
        peer: "casemate accepts it",
        what: "another output address on a live leaf, without a break",
        file: "crates/stage2/src/map.rs",
        label: "Stage2::fill_entry/make_busy/omit",
    },
];

const FLUSH: &str = "crates/stage2/src/flush.rs";
const TLB: &str = "crates/stage2/src/tlb.rs";

/// The mutant that is a defect, as its number among `mutants`, which are all there are.
pub fn number(defect: &Defect, mutants: &[Mutant]) -> anyhow::Result<usize> {
    let is_it = |mutant: &Mutant| mutant.site.file == defect.file && mutant.label() == defect.label;
    let mut found = mutants.iter().enumerate().filter(|(_, mutant)| is_it(mutant)).map(|(number, _)| number);
    let Defect { file, label, .. } = defect;
    let number =
        found.next().with_context(|| format!("mutants/peers.rs: there is no {file} {label}; --list names all"))?;
    if found.next().is_some() {
        bail!("mutants/peers.rs: there are several {file} {label}");
    }
    Ok(number)
}
