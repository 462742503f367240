// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcomes of all mutants of calls, as text and as JSON.

use serde_json::{Value, json};
use twofold_workspace::table;

use super::defects::Defect;
use super::sites::Mutant;
use crate::judged::Judged;
use crate::mutation::Mutation;
use crate::outcome::Outcome;

/// Returns the line of a mutant that was not caught and is not excused, with the command that reproduces it.
pub fn survivor(mutant: &Mutant, outcome: &Outcome) -> Option<String> {
    let is_named = !outcome.is_caught() && mutant.excuse().is_none();
    is_named.then(|| format!("{}: {}: cargo xtask mutants --only {mutant}", mutant.label(), outcome.described()))
}

/// All judged mutants of calls.
#[derive(Debug)]
pub struct Report {
    /// The mutants with their outcomes.
    pub judged: Judged<Mutant>,
    /// Other projects' defects, each with the index of its row.
    pub defects: Vec<(&'static Defect, usize)>,
    /// The number of EL2 tests that ran with a step of the hypervisor left out, if requested.
    pub hypervisor: Option<u64>,
}

impl Report {
    /// Formats the report.
    pub fn shown(&self) -> String {
        let mut text = self.judged.excuses(|mutant| format!("{mutant} ({})", mutant.label()));
        if !text.is_empty() {
            text += "\n";
        }
        text += &self.judged.kinds();
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

    fn peers(&self) -> String {
        let rows = self.defects.iter().map(|(defect, row)| {
            let (mutant, outcome) = &self.judged.rows[*row];
            vec![defect.peer.to_owned(), defect.what.to_owned(), mutant.label(), outcome.described()]
        });
        table::of_words(&["peer", "defect", "mutant", "outcome"], rows)
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let defects = self.defects.iter().map(|(defect, row)| {
            json!({ "peer": defect.peer, "defect": defect.what, "mutant": self.judged.rows[*row].0.to_string() })
        });
        json!({
            "mutants": self.judged.json(),
            "peers": defects.collect::<Vec<_>>(),
            "caught": self.judged.caught(),
            "hypervisor_tests": self.hypervisor,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::sites::{Kind, Site};

    fn mutant(line: usize, kind: Kind) -> Mutant {
        let (file, function, call) = ("crates/x/src/a.rs".to_owned(), "A::f".to_owned(), "dsb".to_owned());
        Mutant { site: Site { file, line, column: 9, function, call, number: 2 }, kind }
    }

    fn report(rows: Vec<(Mutant, Outcome)>) -> Report {
        Report { judged: Judged { rows }, defects: Vec::new(), hypervisor: None }
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
        let report = report(rows);
        assert_eq!(report.judged.caught(), 1);
        assert!(!report.judged.is_good());
    }

    #[test]
    fn hanging_and_not_being_reached_are_failures() {
        for outcome in [Outcome::Hung { judge: "j".to_owned() }, Outcome::NotReached] {
            let report = report(vec![(mutant(1, Kind::Omit), outcome)]);
            assert!(!report.judged.is_good());
            assert_eq!(report.judged.caught(), 0);
        }
    }

    #[test]
    fn all_caught_is_good() {
        let report = report(vec![(mutant(1, Kind::Omit), caught())]);
        assert!(report.judged.is_good());
        assert_eq!(report.json()["mutants"][0]["result"]["outcome"], "caught");
        assert_eq!(report.judged.caught(), 1);
    }
}
