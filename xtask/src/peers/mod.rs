// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask peers`: measures other projects' code for the same job beside ours, in one run.
//!
//! Invariant: a peer's code is fetched on demand, built unmodified, and runs as a separate process. None of it is
//! linked with ours, and none of it is in this repository.

mod bars;
pub mod kvm;
mod linux;
mod report;
mod source;
mod spread;
mod turns;

use std::process::ExitCode;

use anyhow::{Context, bail};
use twofold_launch::Stop;

use crate::arguments::{Peer, PeersLinuxOptions};

use bars::{ROWS, peer};
use linux::Programs;
use report::{Compared, Comparison};
use source::PACKAGE;
use spread::Spread;
use turns::Process;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, file, output};

/// `cargo xtask peers`.
pub fn command(workspace: &Workspace, peer: &Peer) -> anyhow::Result<ExitCode> {
    match peer {
        Peer::Linux(options) => beside_linux(workspace, options),
        Peer::Kvm(options) => kvm::command(workspace, options),
    }
}

/// `cargo xtask peers linux`.
fn beside_linux(workspace: &Workspace, options: &PeersLinuxOptions) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    let (names, size) = (names(&options.only)?, options.size.bytes());
    if !size.is_power_of_two() || !(1 << 30..=256 << 30).contains(&size) {
        bail!("--size must be a power of two from 1G to 256G");
    }
    let steps = Steps::new(workspace.stop().clone());
    let source = steps.step("fetch", || {
        let source = linux::fetch(workspace, options.refresh)?;
        let words = format!("{} {}{}", PACKAGE, source.version, if source.cached { ", cached" } else { "" });
        Ok((source, words))
    })?;
    let programs = steps.step("build", || {
        let programs = linux::build(workspace, &source)?;
        let words = programs.compiler.clone();
        Ok((programs, words))
    })?;
    let bench = steps.step("build", || Ok((turns::build_bench(workspace)?, "twofold bench".to_owned())))?;
    let comparison = steps.step("measure", || {
        let sides = Sides { programs: &programs, bench: &bench, size };
        let rows = compare(&sides, &names, options.runs, workspace.stop())?;
        let words = format!("{} operations, {} runs of each, in turn", rows.len(), options.runs);
        Ok((Comparison { rows, source: &source, programs: &programs, size, runs: options.runs }, words))
    })?;
    output::line(&format!("\n{}", comparison.shown()))?;
    if let Some(path) = &options.json {
        file::write_json(path, &comparison.json())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the requested rows: all, or those in `only`.
fn names(only: &[String]) -> anyhow::Result<Vec<&'static str>> {
    if let Some(unknown) = only.iter().find(|name| !ROWS.iter().any(|row| row.name == name.as_str())) {
        bail!("there is no operation `{unknown}`: {}", ROWS.map(|row| row.name).join(", "));
    }
    Ok(ROWS.iter().map(|row| row.name).filter(|name| only.is_empty() || only.iter().any(|only| only == name)).collect())
}

/// The programs of both sides, and the guest memory in bytes.
struct Sides<'a> {
    programs: &'a Programs,
    bench: &'a turns::Bench,
    size: u64,
}

impl Sides<'_> {
    fn theirs(&self, count: bool) -> anyhow::Result<Process> {
        let program = if count { &self.programs.counting } else { &self.programs.timing };
        Process::start(program, &[&self.size.to_string()])
    }

    fn ours(&self, count: bool) -> anyhow::Result<Process> {
        let what = if count { "count" } else { "time" };
        Process::start(&self.bench.program, &["bench", "engine", "--size", &self.size.to_string(), "--steps", what])
    }
}

/// Runs each operation of Linux's and of ours in turn, `runs` times.
fn compare(sides: &Sides<'_>, names: &[&'static str], runs: u32, stop: &Stop) -> anyhow::Result<Vec<Compared>> {
    let mut rows: Vec<_> = names
        .iter()
        .map(|name| Compared {
            name,
            theirs: peer(name).map(|_| report::Side::default()),
            ours: sides.bench.operations.iter().any(|ours| ours == name).then(report::Side::default),
            limit: None,
        })
        .collect();
    let (mut theirs, mut ours) = (sides.theirs(true)?, sides.ours(true)?);
    for row in &mut rows {
        for (side, process, name) in row.sides(&mut theirs, &mut ours) {
            stopped(stop)?;
            side.count(process.ask(name)?);
        }
        row.check_units()?;
    }
    theirs.end()?;
    ours.end()?;

    let (mut theirs, mut ours) = (sides.theirs(false)?, sides.ours(false)?);
    let mut limits = Vec::new();
    for _ in 0..runs {
        for row in &mut rows {
            for (side, process, name) in row.sides(&mut theirs, &mut ours) {
                stopped(stop)?;
                side.add(process.ask(name)?)?;
            }
        }
        limits.push(ours.ask(bars::READING)?.ns.context("a limit without a time")?);
    }
    theirs.end()?;
    ours.end()?;
    let limit = Spread::of(&limits);
    for row in &mut rows {
        row.limit = limit;
    }
    Ok(rows)
}

fn stopped(stop: &Stop) -> anyhow::Result<()> {
    if stop.is_requested() {
        bail!("stopped");
    }
    Ok(())
}
