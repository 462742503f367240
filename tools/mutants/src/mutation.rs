// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all kinds of mutant have: a name, a kind, and perhaps an excuse.

use std::fmt;

use anyhow::bail;

/// A mutant. Its `Display` form selects it (`--only`).
pub trait Mutation: fmt::Display {
    /// The mutants that need not be caught.
    const EXCUSES: Excuses;

    /// Returns the names of all kinds, in the order of reports.
    fn kinds() -> Vec<&'static str>;

    /// The file, relative to the top of the checkout.
    fn file(&self) -> &str;

    /// Returns a name that does not depend on line numbers.
    fn label(&self) -> String;

    /// The name of the mutant's kind.
    fn kind(&self) -> &'static str;

    /// Returns the reason why the mutant is excused, if it is.
    fn excuse(&self) -> Option<&'static str> {
        let label = self.label();
        let excused = Self::EXCUSES.all.iter().find(|excused| excused.file == self.file() && excused.label == label);
        excused.map(|excused| excused.reason)
    }
}

/// A mutant that need not be caught.
#[derive(Debug)]
pub struct Excused {
    /// The mutant's file, relative to the top of the checkout.
    pub file: &'static str,
    /// The mutant, as [`Mutation::label`] formats it. Line numbers would change too often.
    pub label: &'static str,
    /// The reason why no test can catch it.
    pub reason: &'static str,
}

/// A list of excused mutants, and the file that has it.
#[derive(Debug)]
pub struct Excuses {
    /// The file's name, for the error about an entry that matches no mutant.
    pub listed_in: &'static str,
    /// The entries.
    pub all: &'static [Excused],
}

impl Excuses {
    /// Checks that each entry stands for exactly one of `mutants`, the complete list. The error names all that do not.
    pub fn check<M: Mutation>(&self, mutants: &[M]) -> anyhow::Result<()> {
        let matches = |entry: &Excused| {
            mutants.iter().filter(|mutant| mutant.file() == entry.file && mutant.label() == entry.label).count()
        };
        let wrong = self.all.iter().filter(|entry| matches(entry) != 1);
        let wrong: Vec<_> = wrong.map(|Excused { file, label, .. }| format!("{file} {label}")).collect();
        if !wrong.is_empty() {
            let (listed_in, wrong) = (self.listed_in, wrong.join("\n"));
            bail!("{listed_in}: not exactly one mutant matches each of these; --list names all:\n{wrong}");
        }
        Ok(())
    }
}
