// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values that change nothing that a test could notice, and why.
//!
//! Invariant: an entry stands for exactly one mutant; one that has none any more is an error.

use anyhow::bail;

use super::super::excused::Excused;
use super::sites::Value;

/// All of them.
pub const EXCUSED: &[Excused] = &[];

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
