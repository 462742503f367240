// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants with their outcomes, as text and as JSON.

use serde_json::{Value, json};
use twofold_workspace::table;

use crate::mutation::Mutation;
use crate::outcome::Outcome;

/// Judged mutants.
#[derive(Debug)]
pub struct Judged<M> {
    /// Each mutant with its outcome.
    pub rows: Vec<(M, Outcome)>,
}

impl<M: Mutation> Judged<M> {
    /// Returns the number of mutants.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of caught mutants.
    pub fn caught(&self) -> usize {
        self.rows.iter().filter(|(_, outcome)| outcome.is_caught()).count()
    }

    /// Returns whether every mutant was caught or is excused.
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(|(mutant, outcome)| outcome.is_caught() || mutant.excuse().is_some())
    }

    /// Returns a line for each excused mutant, as `shown` formats it.
    pub fn excuses(&self, shown: impl Fn(&M) -> String) -> String {
        let lines = self.rows.iter().filter_map(|(mutant, outcome)| match (outcome.is_caught(), mutant.excuse()?) {
            (false, reason) => Some(format!("excused: {}: {reason}\n", shown(mutant))),
            (true, _) => Some(format!("caught although excused: {}\n", shown(mutant))),
        });
        lines.collect()
    }

    /// Returns the table of the kinds that occur.
    pub fn kinds(&self) -> String {
        let rows = M::kinds().into_iter().filter_map(|kind| {
            let of: Vec<_> = self.rows.iter().filter(|(mutant, _)| mutant.kind() == kind).collect();
            let count = |word: &str| of.iter().filter(|(_, outcome)| outcome.word() == word).count().to_string();
            let excused = of.iter().filter(|(mutant, outcome)| !outcome.is_caught() && mutant.excuse().is_some());
            let cells = [of.len().to_string(), count("caught"), count("survived"), count("hung"), count("not reached")];
            let row = [kind.to_owned()].into_iter().chain(cells).chain([excused.count().to_string()]);
            (!of.is_empty()).then(|| row.collect())
        });
        let header = ["kind", "mutants", "caught", "survived", "timed out", "not reached", "of these excused"];
        table::with_numbers(&header, rows, 1..)
    }

    /// Returns the mutants as JSON.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(mutant, outcome)| {
            json!({
                "mutant": mutant.to_string(),
                "label": mutant.label(),
                "kind": mutant.kind(),
                "result": outcome,
                "excused": mutant.excuse(),
            })
        });
        rows.collect()
    }
}
