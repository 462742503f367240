// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench compare`: compares two result files.
//!
//! Invariant: only figures with equal experiment, platform, configuration, phase, quantity and kind are compared. A
//! figure that only one file has is listed. Other differences between the two runs are reported as warnings.

mod change;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::ensure;
use serde::Serialize;

use crate::host;
use crate::options::CompareOptions;
use crate::output;
use crate::results::{Measurement, Results};
use crate::statistics::ENOUGH;
use change::Change;

/// `twofold bench compare`. Fails if `--fail-on-slower` is given and a figure became slower.
///
/// # Errors
///
/// A file cannot be read or written, or is not a result file of this program. The two files have no figure in common.
/// With `--fail-on-slower`, no common figure has enough runs: a gate must not pass because it judged nothing.
pub fn command(options: &CompareOptions) -> anyhow::Result<ExitCode> {
    let (before, after) = (Results::read(&options.before)?, Results::read(&options.after)?);
    let comparison = Comparison::of(&before, &after, [&options.before, &options.after], options.threshold);
    output::line(&shown::text(&comparison))?;
    if let Some(path) = &options.json {
        output::json(path, &comparison)?;
    }
    if let Some(path) = &options.report {
        output::file(path, &shown::html(&comparison)?)?;
    }
    comparison.check(options.fail_on_slower)?;
    let is_slower = comparison.changes.iter().any(|change| change.is_slower(options.threshold));
    Ok(if options.fail_on_slower && is_slower { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The comparison of two result files.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Comparison {
    /// The file before: its name, command and program.
    pub before: Side,
    /// The file after.
    pub after: Side,
    /// The smallest change of a time that counts.
    pub threshold: f64,
    /// Other differences between the two runs, which may explain a change.
    pub warnings: Vec<String>,
    /// Figures that both files have: differences first, the largest first.
    pub changes: Vec<Change>,
    /// Figures that only the file before has.
    pub only_before: Vec<String>,
    /// Figures that only the file after has.
    pub only_after: Vec<String>,
}

/// One of the files.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Side {
    /// The file's path.
    pub path: String,
    /// The command that made it.
    pub command: String,
    /// The program that wrote it.
    pub program: String,
}

impl Comparison {
    /// Fails if nothing was compared, or, for a gate, if nothing could be judged.
    fn check(&self, is_gate: bool) -> anyhow::Result<()> {
        let Self { before, after, changes, .. } = self;
        ensure!(
            !changes.is_empty(),
            "{} and {} have no figure in common: nothing was compared",
            before.path,
            after.path
        );
        let is_judged = changes.iter().any(|change| change.verdict != change::Verdict::TooFewRuns);
        ensure!(
            is_judged || !is_gate,
            "--fail-on-slower: no figure has the {ENOUGH} runs in both files that a judgement needs"
        );
        Ok(())
    }

    fn of(before: &Results, after: &Results, paths: [&Path; 2], threshold: f64) -> Self {
        let is_same = |one: &Measurement, other: &Measurement| one.is_same(other) && one.kind == other.kind;
        let pairs: Vec<_> = before
            .measurements
            .iter()
            .filter_map(|one| Some((one, after.measurements.iter().find(|other| is_same(one, other))?)))
            .collect();
        let mut changes: Vec<_> = pairs.iter().map(|(one, other)| Change::of(one, other, threshold)).collect();
        changes.sort_by(|one, other| {
            let key = |change: &Change| (change.verdict.is_difference(), change.size());
            let ((shown, size), (other_shown, other_size)) = (key(one), key(other));
            other_shown.cmp(&shown).then(other_size.total_cmp(&size))
        });
        let side = |path: &Path, results: &Results| Side {
            path: path.display().to_string(),
            command: results.command.clone(),
            program: results.program.clone(),
        };
        Self {
            before: side(paths[0], before),
            after: side(paths[1], after),
            threshold,
            warnings: warnings(before, after),
            changes,
            only_before: alone(before, after),
            only_after: alone(after, before),
        }
    }
}

/// The figures that `of` has and `other` does not have.
fn alone(of: &Results, other: &Results) -> Vec<String> {
    let has = |one: &Measurement| other.measurements.iter().any(|other| other.is_same(one) && other.kind == one.kind);
    of.measurements.iter().filter(|one| !has(one)).map(change::full_name).collect()
}

/// Other differences between the two runs, which may explain a change.
fn warnings(before: &Results, after: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differ = |name: &str, one: &str, other: &str| {
        if one != other {
            warnings.push(format!("{name} differs: {one} before, {other} after"));
        }
    };
    differ("the program", &before.program, &after.program);
    let map = |results: &Results| results.host.iter().cloned().collect::<BTreeMap<_, _>>();
    let (hosts, other_hosts) = (map(before), map(after));
    for name in hosts.keys().chain(other_hosts.keys()).collect::<BTreeSet<_>>() {
        let value = |of: &BTreeMap<String, String>| of.get(name).cloned().unwrap_or_else(|| "not recorded".to_owned());
        if name != host::FREE_MEMORY {
            differ(name, &value(&hosts), &value(&other_hosts));
        }
    }
    let (settings, other_settings) = (settings(before), settings(after));
    for (key, values) in &settings {
        // Settings that share a value have something to compare.
        if let Some(others) = other_settings.get(key).filter(|others| values.is_disjoint(others)) {
            let list = |values: &BTreeSet<&str>| values.iter().copied().collect::<Vec<_>>().join(", ");
            differ(&format!("the setting {key}"), &list(values), &list(others));
        }
    }
    let interrupted = [(before, "before"), (after, "after")].into_iter().filter(|(results, _)| results.interrupted);
    warnings.extend(interrupted.map(|(_, which)| format!("the run {which} was interrupted")));
    warnings
}

/// All settings and their values.
fn settings(results: &Results) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut settings: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in results.measurements.iter().flat_map(|one| &one.configuration) {
        settings.entry(key).or_default().insert(value);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::change::Verdict;
    use super::*;
    use crate::report::example;
    use crate::results::{Kind, Quantity};

    fn compared(before: &Results, after: &Results) -> Comparison {
        Comparison::of(before, after, ["A.json", "B.json"].map(Path::new), 0.05)
    }

    fn scaled(results: &Results, factor: f64) -> Results {
        let mut results = results.clone();
        for one in results.measurements.iter_mut().filter(|one| one.kind != Kind::Counted) {
            one.runs.iter_mut().for_each(|run| *run *= factor);
        }
        results
    }

    #[test]
    fn the_same_file_twice_shows_no_difference() {
        let results = example::results();
        let comparison = compared(&results, &results);
        assert_eq!(comparison.changes.len(), results.measurements.len());
        assert!(comparison.changes.iter().all(|change| !change.verdict.is_difference()));
        assert_eq!((comparison.warnings.len(), comparison.only_before.len(), comparison.only_after.len()), (0, 0, 0));
    }

    #[test]
    fn twice_the_time_is_slower_and_half_of_it_faster() {
        let results = example::results();
        for (factor, wanted) in [(2.0, Verdict::Slower), (0.5, Verdict::Faster)] {
            let comparison = compared(&results, &scaled(&results, factor));
            for change in &comparison.changes {
                let is_counted = change.kind == Kind::Counted;
                assert_eq!(change.verdict, if is_counted { Verdict::Same } else { wanted }, "{change:?}");
                assert_eq!(change.is_slower(0.05), change.verdict == Verdict::Slower);
            }
        }
        // The change is certain, and too small to be reported.
        let comparison = compared(&results, &scaled(&results, 1.02));
        assert!(comparison.changes.iter().all(|change| !change.verdict.is_difference()));
    }

    #[test]
    fn largest_differences_come_first() {
        let before = example::results();
        let mut after = before.clone();
        for (at, factor) in [(0, 1.5), (1, 4.0), (2, 0.5)] {
            after.measurements[at].runs.iter_mut().for_each(|run| *run *= factor);
        }
        let comparison = compared(&before, &after);
        let ratios: Vec<f64> = comparison.changes[..3].iter().map(|change| change.ratio.unwrap().median).collect();
        assert_eq!(ratios.iter().map(|ratio| (ratio * 10.0).round()).collect::<Vec<_>>(), [40.0, 5.0, 15.0]);
        assert!(comparison.changes[3..].iter().all(|change| !change.verdict.is_difference()));
    }

    #[test]
    fn what_is_in_one_file_is_listed_and_what_differs_besides_is_said() {
        let before = example::results();
        let mut after = before.clone();
        after.program = "twofold 0.2.0, release build".to_owned();
        after.host[0].1 = "another".to_owned();
        after.host.retain(|(name, _)| name != "/dev/kvm");
        after.host.iter_mut().filter(|(name, _)| name == host::FREE_MEMORY).for_each(|(_, value)| value.push('9'));
        after.measurements.iter_mut().for_each(|one| {
            one.configuration.insert("vcpus".to_owned(), "3".to_owned());
        });
        after.interrupted = true;
        let comparison = compared(&before, &after);
        assert!(comparison.changes.is_empty());
        assert_eq!(comparison.only_before.len(), before.measurements.len());
        let warnings = comparison.warnings.join("\n");
        for wanted in [
            "the program differs: twofold 0.1.0, release build before, twofold 0.2.0, release build after",
            "CPU differs: AMD <EPYC>",
            "/dev/kvm differs: not there before, not recorded after",
            "the setting vcpus differs: 1, 8 before, 3 after",
            "the run after was interrupted",
        ] {
            assert!(warnings.contains(wanted), "{wanted}: {warnings}");
        }
        assert_eq!(comparison.warnings.len(), 5, "{warnings}");
    }

    #[test]
    fn any_difference_of_a_count_is_real() {
        let before = example::results();
        let mut after = before.clone();
        let is_count = |one: &Measurement| one.kind == Kind::Counted && one.quantity == Quantity::Instructions;
        let at = after.measurements.iter().position(is_count).unwrap();
        after.measurements[at].runs[0] += 1.0;
        let comparison = compared(&before, &after);
        assert_eq!(comparison.changes[0].verdict, Verdict::More);
        assert!(!comparison.changes[0].is_slower(0.05) && comparison.changes[0].is_slower(0.0));
        assert!(comparison.changes[1..].iter().all(|change| !change.verdict.is_difference()));
    }

    #[test]
    fn the_exit_status_tells_of_what_is_slower_where_that_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let before = example::results();
        before.write(&path("a.json")).unwrap();
        scaled(&before, 2.0).write(&path("b.json")).unwrap();
        let status = |before: &str, after: &str, fail_on_slower: bool| {
            let options = CompareOptions {
                before: path(before),
                after: path(after),
                threshold: 0.05,
                fail_on_slower,
                json: Some(path("changes.json")),
                report: Some(path("changes.html")),
            };
            command(&options).unwrap()
        };
        assert_eq!(status("a.json", "b.json", false), ExitCode::SUCCESS);
        assert_eq!(status("a.json", "b.json", true), ExitCode::FAILURE);
        assert_eq!(status("b.json", "a.json", true), ExitCode::SUCCESS);
        let written = std::fs::read_to_string(path("changes.json")).unwrap();
        let page = std::fs::read_to_string(path("changes.html")).unwrap();
        let comparison: Comparison = serde_json::from_str(&written).unwrap();
        assert_eq!(comparison, crate::report::page::data(&page));
    }

    #[test]
    fn a_gate_that_judges_nothing_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let before = example::results();
        before.write(&path("a.json")).unwrap();
        let mut other = before.clone();
        other.measurements.iter_mut().for_each(|one| one.phase.push('?'));
        other.write(&path("other.json")).unwrap();
        let mut few = before.clone();
        few.measurements.retain(|one| one.kind != Kind::Counted);
        few.measurements.iter_mut().for_each(|one| one.runs.truncate(3));
        let (json, report) = (None, None);
        let (of_before, of_other) = (path("a.json"), path("other.json"));
        let options =
            CompareOptions { before: of_before, after: of_other, threshold: 0.05, fail_on_slower: true, json, report };
        let error = command(&options).map_err(|error| error.to_string());
        assert!(error.clone().is_err_and(|error| error.contains("no figure in common")), "{error:?}");
        assert!(compared(&before, &other).check(false).is_err(), "whether it is a gate or not");
        assert!(compared(&before, &few).check(false).is_ok());
        let error = compared(&before, &few).check(true).unwrap_err().to_string();
        assert!(error.contains("the 4 runs"), "{error}");
    }

    #[test]
    fn a_comparison_is_shown_and_embedded() {
        let before = example::results();
        let comparison = compared(&before, &scaled(&before, 1.3));
        let text = shown::text(&comparison);
        assert!(text.contains("slower") && text.contains("30.0 % more CPU time") && text.contains("clear"), "{text}");
        let page = shown::html(&comparison).unwrap();
        assert_eq!(crate::report::page::data::<Comparison>(&page), comparison);
        assert!(page.contains("slower") && !page.contains("http"));
        let none = compared(&before, &Results { measurements: vec![], ..before.clone() });
        assert!(shown::text(&none).contains("nothing in common"));
        assert!(shown::html(&none).unwrap().contains("nothing in common"));
    }
}
