// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values that change nothing that a test could notice, and why.
//!
//! Invariant: an entry stands for exactly one mutant; one that has none any more is an error.

use anyhow::bail;

use super::super::excused::Excused;
use super::sites::Value;

/// All of them.
pub const EXCUSED: &[Excused] = &[
    excused(AGE, "Found::default: 0 => 1 #2", "each pass sets the shift before it adds anything"),
    excused(AGE, "age::age_row: young != 0 => true", "a row without an access flag is stored as it is"),
    excused(AGE, GLANCE, SAME_ROW),
    excused(AGE, "Clean::entries: 0 => 1", SAME_ROW),
    excused(AGE, "Clean::entries: writable == 0 => false", SAME_ROW),
    excused(AGE, "Clean::entries: 0 => 1 #2", SAME_ROW),
    excused(CACHE, "Upkeep::new: !features.instruction_cache_coherent => true", COHERENT),
    excused(CACHE, "cache::before_execute: features.instruction_cache_coherent => false", COHERENT),
    excused(DESCRIPTOR, "Descriptor::leaf: 0 => 1", VALID),
    excused(DESCRIPTOR, "descriptor::data_bits: 0 => 1", VALID),
    excused(DESCRIPTOR, "descriptor::data_bits: 0 => 1 #2", VALID),
    excused(DESCRIPTOR, "descriptor::encode: 0 => 1", VALID),
    excused(DESCRIPTOR, "descriptor::encode: 0 => 1 #2", VALID),
    excused(FEATURES, "Features::least: a < b => a <= b", "the smaller of two equal numbers is either of them"),
    excused(
        GEOMETRY,
        "Geometry::new: features.pa_bits < 48 => features.pa_bits <= 48",
        "the smaller of two equal numbers is either of them",
    ),
    excused(GEOMETRY, "Geometry::new: 1 => 2", "the smallest IPA space takes two levels"),
    excused(INJECT, "inject::external_abort: 0x3f => 0x3e", "the classes of aborts from a lower level are even"),
    excused(INJECT, "take::STACK_OF_EL1: 1 => a bit more", "PSTATE.M[1] is 0 at EL1"),
    excused(INJECT, "inject::AARCH32: 1 << 4 => a bit more", "bit 5 is 0 where bit 4 is"),
    excused(INJECT, "pstate_in_handler::DIT: 1 << 24 => a bit more", "bit 25 is TCO, which is set in any case"),
    excused(CONTEXT, "Context::new: 0 => 1", "x0 is written after that"),
    excused(CONTEXT, "Context::new: 0 => 1 #3", "the switch writes both words before it reads them"),
    excused(TLB, "Changed::anything_in: 0xf => 0xe", "it is more than one level either way"),
    excused(TLB, "Changed::anything_in: 0xf => 0x1f", "it is more than one level either way"),
    excused(TLB, "Changed::table: 0 => 1", "the level does not count where a table goes"),
    excused(TLB, "Tlb::hint: *level != Level::L0 => true", "there are no leaves at level 0"),
];

const SAME_ROW: &str = "the row is looked at entry by entry, and the same is found";
const COHERENT: &str = "both places ask, and either of them is enough";
const VALID: &str = "bit 0 is VALID, which the entry has in any case";

const CACHE: &str = "crates/stage2/src/cache.rs";
const CONTEXT: &str = "crates/hypervisor/src/context.rs";
const DESCRIPTOR: &str = "crates/stage2/src/descriptor.rs";
const FEATURES: &str = "crates/stage2/src/features.rs";
const GEOMETRY: &str = "crates/stage2/src/geometry.rs";
const INJECT: &str = "crates/hypervisor/src/inject.rs";
const TLB: &str = "crates/stage2/src/tlb.rs";
const AGE: &str = "crates/stage2/src/age.rs";
/// The look at a row at once.
const GLANCE: &str = "Clean::entries: cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) & Descriptor::WRITE \
                      => cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) | Descriptor::WRITE";

const fn excused(file: &'static str, label: &'static str, reason: &'static str) -> Excused {
    Excused { file, label, reason }
}

/// Why a mutant is excused, if it is.
pub fn reason(value: &Value) -> Option<&'static str> {
    EXCUSED.iter().find(|excused| stands_for(excused, value)).map(|excused| excused.reason)
}

/// Whether each entry stands for one of `values`, which are all there are.
pub fn check(values: &[Value]) -> anyhow::Result<()> {
    match EXCUSED.iter().find(|excused| values.iter().filter(|value| stands_for(excused, value)).count() != 1) {
        Some(Excused { file, label, .. }) => {
            bail!("mutants/values/excused.rs: {file} {label} is not one mutant; --list names all")
        }
        None => Ok(()),
    }
}

fn stands_for(excused: &Excused, value: &Value) -> bool {
    value.file == excused.file && value.label() == excused.label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_for_one_mutant() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        check(&super::super::copy::read(root).unwrap().0.values).unwrap();
    }
}
