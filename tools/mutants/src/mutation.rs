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
        let mut excuses = Self::EXCUSES.all();
        let found = excuses.find(|&(file, excused, _)| file == self.file() && excused == label);
        found.map(|(_, _, reason)| reason)
    }
}

/// The mutants of one file that need not be caught.
#[derive(Debug)]
pub struct Excused {
    /// The file, relative to the top of the checkout.
    pub file: &'static str,
    /// Each mutant as [`Mutation::label`] formats it, since line numbers would change too often, and the reason why no
    /// test can catch it.
    pub mutants: &'static [(&'static str, &'static str)],
}

/// The excused mutants of one kind, and where they are listed.
#[derive(Debug)]
pub struct Excuses {
    /// The file or directory, for the error about an entry that matches no mutant.
    pub listed_in: &'static str,
    /// The lists.
    pub lists: &'static [&'static [Excused]],
}

impl Excuses {
    /// Checks that each entry stands for exactly one of `mutants`, the complete list. The error names all that do not.
    pub fn check<M: Mutation>(&self, mutants: &[M]) -> anyhow::Result<()> {
        let matches =
            |file, label| mutants.iter().filter(|mutant| mutant.file() == file && mutant.label() == label).count();
        let wrong = self.all().filter(|&(file, label, _)| matches(file, label) != 1);
        let wrong: Vec<_> = wrong.map(|(file, label, _)| format!("{file} {label}")).collect();
        if !wrong.is_empty() {
            let (listed_in, wrong) = (self.listed_in, wrong.join("\n"));
            bail!("{listed_in}: not exactly one mutant matches each of these; --list names all:\n{wrong}");
        }
        Ok(())
    }

    /// Returns the file, label and reason of each entry.
    fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let files = self.lists.iter().copied().flatten();
        files.flat_map(|excused| excused.mutants.iter().map(|&(label, reason)| (excused.file, label, reason)))
    }
}
