// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench migrate` with its three processes: the bench, the target, and the program that compares the memory.

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the bench with a small guest.
fn migrate(arguments: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_twofold"));
    program.args("bench migrate --memory 4M --settle 20ms".split_whitespace());
    program.args(arguments.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const WAYS: [&str; 6] = ["write-protect", "manual", "hardware", "combined", "adaptive", "post-copy"];

#[test]
fn a_guest_moves_back_and_forth_in_every_way() {
    let directory = tempfile::tempdir().unwrap();
    let (json, page) = (directory.path().join("x.json"), directory.path().join("x.html"));
    let files = format!("--json {} --report {}", json.display(), page.display());
    let done = migrate(&format!("--moves 2 --postcopy --streams 2 --compression lz4 {files}"));
    let shown = text(&done.stdout);
    assert!(done.status.success(), "{shown}{}", text(&done.stderr));
    // 12 moves of 1,024 pages.
    assert!(shown.contains("note: 12 moves: a program of its own compared 12,288 pages"), "{shown}");

    let results: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let runs = |way: &str, phase: &str| -> Vec<f64> {
        let of = |one: &&Value| one["configuration"]["tracker"] == way && one["phase"] == phase;
        let found = results["measurements"].as_array().unwrap().iter().find(of).unwrap();
        found["runs"].as_array().unwrap().iter().map(|run| run.as_f64().unwrap()).collect()
    };
    let mut served = 0.0;
    for way in WAYS {
        let [migration, downtime, sent] = ["migration", "downtime", "pages sent"].map(|phase| runs(way, phase));
        assert_eq!(migration.len(), 2, "{way}");
        assert!(downtime.iter().zip(&migration).all(|(downtime, migration)| 0.0 < *downtime && downtime <= migration));
        assert!(
            sent.iter().all(|sent| if way == "post-copy" { *sent == 1024.0 } else { *sent >= 1024.0 }),
            "{way}: {sent:?}"
        );
        served += runs(way, "requests during").iter().sum::<f64>();
    }
    assert!(served > 0.0, "it serves while it moves");
    let series = results["series"].as_array().unwrap();
    let names: Vec<_> = series.iter().map(|one| one["configuration"]["tracker"].as_str().unwrap()).collect();
    assert_eq!(names, WAYS);
    // On a busy machine a move may begin before the first point.
    let mut steady = 0;
    for one in series {
        assert_eq!(one["events"][1][1], "switch");
        let points = one["points"].as_array().unwrap();
        assert!(points.len() >= 4, "{one}");
        steady += usize::from(points[0][0].as_f64() < one["events"][0][0].as_f64());
    }
    let page = std::fs::read_to_string(page).unwrap();
    let count = |what: &str| page.matches(what).count();
    assert_eq!((count("<td>switch</td>"), count("requests per second, steady")), (6, steady));
}

/// The link carries too little for pre-copy: each page is compared all the same, before the switch or as it comes.
#[test]
fn a_guest_that_writes_too_fast_moves_by_postcopy_if_needed() {
    let options = "--moves 2 --tracker manual --bandwidth 10M --sets 100 --postcopy-if-needed";
    let done = migrate(options);
    let shown = text(&done.stdout);
    assert!(done.status.success(), "{shown}{}", text(&done.stderr));
    for note in ["compared 2,048 pages", "note: 2 of 2 moves by pre-copy were ended by post-copy"] {
        assert!(shown.contains(note), "{shown}");
    }
    assert!(!shown.contains("slowed down"), "{shown}");
    let done = migrate("--control withheld --tracker manual --bandwidth 10M --sets 100 --postcopy-if-needed");
    let shown = text(&done.stdout);
    assert!(done.status.success() && shown.contains("noticed: manual: 1 of "), "{shown}");
}

/// The negative control of the comparison: one page is withheld, and each way is found out.
#[test]
fn a_page_that_was_withheld_is_found() {
    let done = migrate("--control withheld --postcopy");
    let shown = text(&done.stdout);
    assert!(done.status.success(), "{shown}{}", text(&done.stderr));
    for way in WAYS {
        let wanted =
            format!("noticed: {way}: 1 of 1024 pages differ between the stopped source and the target: 0x40003000");
        assert!(shown.contains(&wanted), "{way}: {shown}");
    }
}

/// The target's process ends in the middle of the first round.
#[test]
fn a_guest_goes_on_at_the_source_if_the_target_dies() {
    let done = migrate("--control dead --streams 2 --tracker write-protect,adaptive");
    let shown = text(&done.stdout);
    assert!(done.status.success(), "{shown}{}", text(&done.stderr));
    for way in ["write-protect", "adaptive"] {
        let line = shown.lines().find(|line| line.starts_with(&format!("noticed: {way}: "))).unwrap();
        assert!(line.contains("the target's process has ended: signal: 6"), "{line}");
        assert!(line.contains("the guest stays: ") && line.contains("the guest goes on here: it served "), "{line}");
    }
}

#[test]
fn a_dry_run_forecasts_and_sends_nothing() {
    let done = migrate("--dry-run --bandwidth 100M");
    let shown = text(&done.stdout);
    assert!(done.status.success(), "{shown}{}", text(&done.stderr));
    assert!(
        shown.starts_with("A forecast: nothing was sent. 4 MiB of memory, a link of 104857600 bytes a second."),
        "{shown}"
    );
    for way in &WAYS[..5] {
        let line = shown.lines().find(|line| line.trim_start().starts_with(way)).unwrap();
        assert!(line.contains("downtime") || line.contains("pages"), "{line}");
    }
}

#[test]
fn the_help_has_units_and_examples_and_hides_what_is_not_for_people() {
    let help = |arguments: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_twofold")).args(arguments).output().unwrap();
        text(&done.stdout).to_owned()
    };
    let shown = help(&["bench", "migrate", "--help"]);
    for wanted in
        ["--downtime <TIME>", "--bandwidth <SIZE>", "ms, s or m", "powers of 1024", "Examples:", "--moves 100"]
    {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let all = help(&["bench", "--help"]);
    assert!(all.contains("migrate ") && !all.contains("migrate-target") && !all.contains("migrate-compare"), "{all}");
}
