// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcomes of all mutants, as text and as JSON.
//!
//! Invariant: a mutant that is not caught is printed at once, with the command that reproduces it. So an interrupted
//! run still has results.

use serde_json::{Value, json};
use twofold_workspace::table;

use super::excused;
use super::peers::Defect;
use super::sites::{Kind, Mutant};
use super::verdicts::Outcome;

/// Returns the line of a mutant that was not caught and is not excused.
pub fn survivor(mutant: &Mutant, outcome: &Outcome) -> Option<String> {
    let is_named = !outcome.is_caught() && excused::reason(mutant).is_none();
    is_named.then(|| format!("{}: {}: cargo xtask mutants --only {mutant}", mutant.label(), described(outcome)))
}

/// All judged mutants.
#[derive(Debug, Default)]
pub struct Report {
    /// The mutants with their outcomes.
    pub rows: Vec<(Mutant, Outcome)>,
    /// Other projects' defects, each with the index of its row.
    pub defects: Vec<(&'static Defect, usize)>,
    /// The number of EL2 tests that ran with a step of the hypervisor left out, if requested.
    pub hypervisor: Option<u64>,
}

impl Report {
    /// Returns whether every mutant was caught or is excused.
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(|(mutant, outcome)| outcome.is_caught() || excused::reason(mutant).is_some())
    }

    /// Formats the report.
    pub fn shown(&self) -> String {
        let mut text = String::new();
        for (mutant, outcome) in &self.rows {
            match (outcome.is_caught(), excused::reason(mutant)) {
                (false, Some(reason)) => text += &format!("excused: {mutant} ({}): {reason}\n", mutant.label()),
                (true, Some(_)) => text += &format!("caught although excused: {mutant} ({})\n", mutant.label()),
                (_, None) => {}
            }
        }
        if !text.is_empty() {
            text += "\n";
        }
        text += &self.kinds();
        text += "\n\n";
        if !self.defects.is_empty() {
            text += &self.peers();
            text += "\n\n";
        }
        if let Some(tests) = self.hypervisor {
            text += &format!("hypervisor: {tests} tests at EL2, each with a step left out and without\n");
        }
        text
    }

    /// Returns the number of caught mutants.
    pub fn caught(&self) -> usize {
        self.rows.iter().filter(|(_, outcome)| outcome.is_caught()).count()
    }

    fn kinds(&self) -> String {
        let rows = Kind::ALL.into_iter().filter_map(|kind| {
            let of: Vec<_> = self.rows.iter().filter(|(mutant, _)| mutant.kind == kind).collect();
            let count = |word: &str| of.iter().filter(|(_, outcome)| outcome.word() == word).count().to_string();
            let excused =
                of.iter().filter(|(mutant, outcome)| !outcome.is_caught() && excused::reason(mutant).is_some());
            let cells = [of.len().to_string(), count("caught"), count("survived"), count("hung"), count("not reached")];
            let row = [kind.name().to_owned()].into_iter().chain(cells).chain([excused.count().to_string()]);
            (!of.is_empty()).then(|| row.collect())
        });
        table::with_numbers(
            &["kind", "mutants", "caught", "survived", "hung", "not reached", "of these excused"],
            rows,
            1..,
        )
    }

    fn peers(&self) -> String {
        let rows = self.defects.iter().map(|(defect, row)| {
            let (mutant, outcome) = &self.rows[*row];
            vec![defect.peer.to_owned(), defect.what.to_owned(), mutant.label(), described(outcome)]
        });
        table::of_words(&["peer", "defect", "mutant", "outcome"], rows)
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(mutant, outcome)| {
            json!({
                "mutant": mutant.to_string(),
                "label": mutant.label(),
                "kind": mutant.kind.name(),
                "result": outcome,
                "excused": excused::reason(mutant),
            })
        });
        let defects = self.defects.iter().map(|(defect, row)| {
            json!({ "peer": defect.peer, "defect": defect.what, "mutant": self.rows[*row].0.to_string() })
        });
        json!({
            "mutants": rows.collect::<Vec<_>>(),
            "peers": defects.collect::<Vec<_>>(),
            "caught": self.caught(),
            "hypervisor_tests": self.hypervisor,
        })
    }
}

/// Describes an outcome.
pub fn described(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Caught { by, test: Some(test) } => format!("caught by {by}: {test}"),
        Outcome::Caught { by, test: None } => format!("caught by {by}"),
        Outcome::Survived { judges } => format!("survived {}", judges.join(", ")),
        Outcome::Hung { judge } => format!("hung in {judge}"),
        Outcome::NotReached => "not reached".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::sites::Site;

    fn mutant(line: usize, kind: Kind) -> Mutant {
        let (file, function, call) = ("crates/x/src/a.rs".to_owned(), "A::f".to_owned(), "dsb".to_owned());
        Mutant { site: Site { file, line, column: 9, function, call, number: 2 }, kind }
    }

    fn caught() -> Outcome {
        Outcome::Caught { by: "machine strict".to_owned(), test: Some("judge_a".to_owned()) }
    }

    #[test]
    fn a_survivor_has_its_command_and_is_a_failure() {
        let survived = Outcome::Survived { judges: vec!["stage2 model".to_owned()] };
        let text = survivor(&mutant(2, Kind::Stores), &survived).unwrap();
        let command = "cargo xtask mutants --only crates/x/src/a.rs:2:9:stores";
        assert_eq!(text, format!("A::f/dsb#2/stores: survived stage2 model: {command}"));
        assert_eq!(survivor(&mutant(1, Kind::Omit), &caught()), None);
        let rows = vec![(mutant(1, Kind::Omit), caught()), (mutant(2, Kind::Stores), survived)];
        let report = Report { rows, ..Report::default() };
        assert_eq!(report.caught(), 1);
        assert!(!report.is_good());
    }

    #[test]
    fn hanging_and_not_being_reached_are_failures() {
        for outcome in [Outcome::Hung { judge: "j".to_owned() }, Outcome::NotReached] {
            let report = Report { rows: vec![(mutant(1, Kind::Omit), outcome)], ..Report::default() };
            assert!(!report.is_good());
            assert_eq!(report.caught(), 0);
        }
    }

    #[test]
    fn all_caught_is_good() {
        let report = Report { rows: vec![(mutant(1, Kind::Omit), caught())], ..Report::default() };
        assert!(report.is_good());
        assert_eq!(report.json()["mutants"][0]["result"]["outcome"], "caught");
        assert_eq!(report.caught(), 1);
    }
}
