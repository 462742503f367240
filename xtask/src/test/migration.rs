// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `migration`: Debian's Linux with Redis moves between two hypervisors, by `twofold bench migrate --on hypervisor`.
//!
//! The bench judges: it fails if a page or a section differs before the guest's first entry, a key is lost, or a connection is
//! dropped. These tests check that it moved the guest as often as it was to, and that it notices a page that differs.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, ensure};
use serde_json::Value;
use twofold_memory::dirty::Tracker;
use twofold_workspace::{Workspace, build, output};

use super::harness::{Depth, Tally, harness};
use super::vm::command::Twofold;
use super::vm::machines::Machines;
use super::vm::{self, Test};
use crate::arguments::TestOptions;
use crate::redis_guest;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    let machines = vm::prepare(workspace, options)?;
    // Both machines have two CPUs.
    harness(vm::trials(&machines, depth, TESTS), 1, options)
}

const TESTS: &[Test] = &[
    ("redis::moves_once", Depth::Quick, |machines| moves(machines, &[Tracker::Adaptive], 1, 4_000)),
    ("redis::moves_20_times", Depth::Full, |machines| moves(machines, &[Tracker::Adaptive], 20, 8_000)),
    ("redis::moves_5_times_with_each_tracker", Depth::Full, |machines| moves(machines, &Tracker::ALL, 5, 8_000)),
    ("redis::moves_5_times_before_its_memory", Depth::Full, postcopy),
    ("redis::moves_with_900_clients", Depth::Full, clients),
    ("redis::a_page_that_differs_is_noticed", Depth::Full, |machines| control(machines, "withheld")),
    ("redis::pages_that_the_log_leaves_out_are_noticed", Depth::Full, |machines| control(machines, "unlogged")),
];

/// The guest moves `moves` times with each of the trackers. It serves `requests` during each move.
fn moves(machines: &Machines, trackers: &[Tracker], moves: u64, requests: u64) -> anyhow::Result<()> {
    let names: Vec<_> = trackers.iter().map(|tracker| tracker.name()).collect();
    let counted = bench(machines, &["--tracker", &names.join(",")], moves, requests)?;
    let wanted: BTreeMap<_, _> = names.iter().map(|name| ((*name).to_owned(), moves)).collect();
    ensure!(counted == wanted, "moves with each tracker: {counted:?}, not {wanted:?}");
    Ok(())
}

/// By post-copy, with a move by pre-copy between two of them.
fn postcopy(machines: &Machines) -> anyhow::Result<()> {
    let counted = bench(machines, &["--tracker", "adaptive", "--postcopy"], 5, 8_000)?;
    ensure!(counted.len() == 2 && counted.get("post-copy") == Some(&5), "{counted:?}");
    Ok(())
}

/// As many clients in the guest as the source had.
fn clients(machines: &Machines) -> anyhow::Result<()> {
    let counted = bench(machines, &["--tracker", "adaptive", "--clients", "900"], 1, 8_000)?;
    ensure!(counted.values().eq(&[1]), "{counted:?}");
    Ok(())
}

/// A page is changed at the target, or the source's dirty log never has the first page of 64: before the guest's first entry at the
/// target, the comparison finds it.
fn control(machines: &Machines, broken: &str) -> anyhow::Result<()> {
    let runs = tempfile::tempdir()?;
    prepare(machines)?;
    let words = ["bench", "migrate", "--on", "hypervisor", "--control", broken, "--tracker", "adaptive"];
    let (is_done, said) = Twofold::new(machines, &runs)?.said(words)?;
    output::remark(said.trim_end());
    ensure!(is_done && said.contains("noticed: adaptive: ") && said.contains(" pages differ"), "{said}");
    Ok(())
}

/// Runs the bench; returns how many moves it has figures of, for each tracker.
fn bench(machines: &Machines, options: &[&str], moves: u64, requests: u64) -> anyhow::Result<BTreeMap<String, u64>> {
    let runs = tempfile::tempdir()?;
    prepare(machines)?;
    let json = runs.path().join("results.json");
    let mut command = Twofold::new(machines, &runs)?.command(["bench", "migrate", "--on", "hypervisor"]);
    command
        .args(options)
        .args(["--moves", &moves.to_string(), "--requests", &requests.to_string(), "--json"])
        .arg(&json);
    let done = command.output()?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let results: Value = serde_json::from_slice(&fs::read(&json)?).context("the results are no JSON")?;
    let notes = results["notes"].as_array().context("no notes")?;
    notes.iter().filter_map(Value::as_str).skip(1).for_each(output::remark);
    let mut counted = BTreeMap::new();
    for measurement in results["measurements"].as_array().context("no figures")? {
        if measurement["phase"] == "downtime" {
            let tracker = measurement["configuration"]["tracker"].as_str().context("no tracker")?;
            let runs = measurement["runs"].as_array().context("no runs")?;
            counted.insert(tracker.to_owned(), runs.len() as u64);
        }
    }
    Ok(counted)
}

/// Makes the guest, which the bench would make itself by another `cargo xtask`.
fn prepare(machines: &Machines) -> anyhow::Result<()> {
    let workspace = machines.workspace();
    if !workspace.images().join("redis.cpio").is_file() {
        redis_guest::build(workspace)?;
    }
    ensure!(workspace.image(build::HYPERVISOR.name).is_file(), "the hypervisor's image is missing");
    Ok(())
}
