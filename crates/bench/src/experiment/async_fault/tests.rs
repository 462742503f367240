// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole way, from a command line to a report, for a small guest.

use super::plan::{NAME, Plan};
use super::{judge, measure};
use crate::experiment::progress::Progress;
use crate::report::{Detail, section, text};
use crate::results::{Kind, Results, Verdict};
use crate::stop::Stop;

const SMALL: &str = "-m 1M -t 600ms --runs 4 --latency 10ms,100us";

fn results(line: &str) -> Results {
    let plan = Plan::of_line(line).unwrap();
    let mut results = measure::results(&plan, &Progress::new(plan.steps()).unwrap(), &Stop::never()).unwrap();
    results.notes.extend(judge::ratios(&plan, &results));
    results.headline = judge::rows(&plan, &results);
    results
}

/// The runs of a mode.
fn runs<'r>(results: &'r Results, mode: &str, phase: &str) -> &'r [f64] {
    let is = |one: &&crate::results::Measurement| one.configuration["async"] == mode && one.phase == phase;
    &results.measurements.iter().find(is).unwrap().runs
}

#[test]
fn pv_and_halt_reach_their_targets_and_are_marked_modelled() {
    let results = results(SMALL);
    let rows: Vec<_> =
        results.headline.iter().map(|row| (row.source.as_str(), row.what.as_str(), row.verdict)).collect();
    let wanted = [
        ("Natapov 2010", "halt: non-PV guest", Verdict::AsExpected),
        ("Natapov 2010", "PV guest", Verdict::AsExpected),
        ("target", "async faults, 10 ms: halt, for a page", Verdict::AsExpected),
        ("target", "async faults, 10 ms: pv", Verdict::AsExpected),
    ];
    assert_eq!(rows, wanted);
    assert!(
        results
            .headline
            .iter()
            .all(|row| row.kind == Kind::Modelled && row.note.contains("-f 2 -w 2 -m 1M -t 600ms --vcpus 2"))
    );
    assert_eq!(results.measurements.len(), 3 * 2 * 2);
    assert!(results.measurements.iter().all(|one| one.kind == Kind::Modelled && one.runs.len() == 4));
    let [off, pv] = ["off", "pv"].map(|mode| runs(&results, mode, "work at 100 us"));
    assert!(off.iter().zip(pv).all(|(off, pv)| pv > off), "{off:?} {pv:?}");
    let ratios: Vec<_> = results.notes.iter().filter(|note| note.starts_with("work beside off at ")).collect();
    assert!(ratios[0].contains("10 ms") && ratios[0].contains("(published 1.128), pv "), "{ratios:?}");
    assert!(ratios[0].ends_with("(published 1.909)") && !ratios[1].contains("published"), "{ratios:?}");
    assert!(results.notes[0].starts_with("modelled: ") && results.notes[0].contains("2557 ns"));
}

#[test]
fn equal_options_have_equal_figures_and_another_seed_has_others() {
    let line = "-m 1M -t 300ms --runs 1 --latency 100us";
    let [one, again, other] = ["", "", " --seed 9"].map(|seed| results(&format!("{line}{seed}")).measurements);
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[test]
fn a_file_shows_what_the_run_showed() {
    let results = results("-m 1M -t 100ms --runs 4 -v");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("async.json");
    results.write(&path).unwrap();
    let read = Results::read(&path).unwrap();
    for detail in [Detail::Summary, Detail::All] {
        assert_eq!(text(&read, detail), text(&results, detail));
    }
    let shown = text(&read, Detail::Summary);
    for wanted in
        ["work at 10 ms", "pages at 100 us", " off ", " halt ", " pv", "47.6 % less time", "modelled", "workers "]
    {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    crate::report::write_html(&directory.path().join("async.html"), &read).unwrap();
}

#[test]
fn another_guest_has_no_published_figures_beside_it() {
    let results = results("-f 3 -w 1 --vcpus 1 -m 1M -t 100ms --runs 4 --latency 1ms --mode off,pv");
    assert_eq!(results.headline, []);
    let shown = text(&results, Detail::Summary);
    assert!(shown.lines().last().unwrap().starts_with("pv: work at 1 ms is "), "{shown}");
}

#[test]
fn a_guest_at_its_least_limit_goes_on_and_a_moment_without_pages_is_no_error() {
    let results = results("-m 256K --limit 128K -t 100ms --runs 1 --latency 1ms");
    assert!(runs(&results, "pv", "pages at 1 ms")[0] > 100.0, "{:?}", results.measurements);
    // Nothing arrives in a millisecond.
    let results = self::results("-m 1M -t 1ms --runs 4 --latency 10ms");
    assert_eq!(runs(&results, "off", "pages at 10 ms"), [0.0; 4]);
    assert!(results.headline.iter().all(|row| row.gain.is_none_or(|gain| gain.median.is_finite())));
}

#[test]
fn a_limit_below_what_a_guest_needs_is_refused_with_the_figure() {
    let plan = Plan::of_line("-m 1M --limit 64K").unwrap();
    let error = measure::results(&plan, &Progress::new(1).unwrap(), &Stop::never()).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("--limit: a limit of 16 frames is too small: the guest needs 32"), "{error}");
}

#[test]
fn the_summary_is_beside_the_published_figures() {
    assert!(section::BESIDE_PUBLISHED.contains(&NAME));
}
