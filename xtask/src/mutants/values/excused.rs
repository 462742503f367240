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
    excused(AGE, GLANCE, "the row is looked at entry by entry, and the same is found"),
    excused(AGE, "Clean::entries: 0 => 1", "the row is looked at entry by entry, and the same is found"),
    excused(
        AGE,
        "Clean::entries: writable == 0 => false",
        "the row is looked at entry by entry, and the same is found",
    ),
    excused(AGE, "Clean::entries: 0 => 1 #2", "the row is looked at entry by entry, and the same is found"),
];

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
