// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs Linux's operations and ours in turn.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use twofold_launch::Stop;
use twofold_launch::size::Size;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, file, output};

use super::program::{self, Programs};
use super::report::{Compared, Comparison, Side};
use super::spread::Spread;
use super::targets::{READING, ROWS, peer};
use super::turns::{self, Process};
use crate::source::PACKAGE;

/// Options of `peers linux`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Guest memory in bytes, or with K, M or G (powers of 1024): a power of two from 1G to 256G
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: Size,
    /// Runs of each operation on each side, at least 1; the medians are compared
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Measures only these operations
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Fetches the peer's source again, even if it is in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// The last lines of the command's help.
pub const HELP: &str = "\
Linux's page-table code is fetched, compiled unchanged for this machine, and runs as a separate program. One operation
of Linux's and one of ours take turns. The figures are nanoseconds per page table entry, or per block if the row names
one. Our time is given by how much less or more it is than Linux's in this run. A target of \"66.6 % less\" is met if our
time is at most a third of Linux's.

Examples:
  cargo xtask peers linux                              everything; about three minutes
  cargo xtask peers linux --only map_pages,protect --runs 21
  cargo xtask peers linux --json peers.json

Environment:
  TWOFOLD_APT_GET      the apt-get to fetch the source with, instead of the one from PATH";

/// `cargo xtask peers linux`.
pub fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    let (names, size) = (names(&options.only)?, options.size.bytes());
    if !size.is_power_of_two() || !(1 << 30..=256 << 30).contains(&size) {
        bail!("--size must be a power of two from 1G to 256G");
    }
    let steps = Steps::new(workspace.stop().clone());
    let source = steps.step("fetch", || {
        let source = program::fetch(workspace, options.refresh)?;
        let words = format!("{} {}{}", PACKAGE, source.version, if source.cached { ", cached" } else { "" });
        Ok((source, words))
    })?;
    let programs = steps.step("build", || {
        let programs = program::build(workspace, &source)?;
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
            theirs: peer(name).map(|_| Side::default()),
            ours: sides.bench.operations.iter().any(|ours| ours == name).then(Side::default),
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
        limits.push(ours.ask(READING)?.ns.context("a limit without a time")?);
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
