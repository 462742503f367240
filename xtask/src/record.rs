// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask record-redis`: records which pages Linux writes in each round while `redis-benchmark -t set` runs in
//! it. The hypervisor's own dirty log reports them. `twofold bench dirty-table --recorded` replays the file on the
//! hosted machine.
//!
//! A round lasts from one context switch to the next. The benchmark has no end of its own: the guest powers off while
//! it runs, and the last rounds before that are kept. Invariant: the file is written only if the guest's console shows
//! the running benchmark and all rounds arrived.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::{Control, Devices, GuestSettings, Pages, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, build, install, output};

use crate::arguments::RecordOptions;
use crate::redis;

/// `cargo xtask record-redis`.
pub fn command(workspace: &Workspace, options: &RecordOptions) -> anyhow::Result<ExitCode> {
    let steps = Steps::new(workspace.stop().clone());
    let qemu = install::tools(&steps)?;
    steps.step("build", || {
        build::images(workspace, &[build::RECORDING_HYPERVISOR])?;
        Ok(((), "the hypervisor, with the recorder".to_owned()))
    })?;
    let guest = steps.step("guest", || {
        let (linux, redis, initrd) = redis::guest(workspace, options.refresh)?;
        let words = format!("Linux {}, Redis {} in {} files", linux.versions.kernel, redis.version, redis.files.len());
        Ok((guest(linux.kernel, initrd), words))
    })?;
    let boot = Boot {
        label: "redis",
        guests: vec![guest],
        cpu: machine::CPU_DEFAULT,
        host_cpus: None,
        deterministic: true,
        checked: false,
        timeout: (options.timeout > 0).then(|| Duration::from_secs(options.timeout)),
        terminal: false,
        image: Image::Recording(options.rounds),
    };
    let recorded = steps.step("record", || {
        let outcome = boot.run(workspace, &qemu)?;
        ensure!(
            outcome.console.tail(usize::MAX).iter().any(|line| line.contains(AT_WORK)),
            "the console does not show the running benchmark; its last lines:\n{}",
            outcome.console.tail(10).join("\n")
        );
        Ok((Recorded::of(&outcome.control, options.rounds)?, "while `redis-benchmark -t set` runs".to_owned()))
    })?;
    let path = options.out.clone().unwrap_or_else(|| workspace.recording());
    fs::write(&path, recorded.file()).with_context(|| format!("cannot write {}", path.display()))?;
    output::line(&recorded.summary())?;
    output::line(&format!("written to {}", workspace.shown(&path).display()))?;
    Ok(ExitCode::SUCCESS)
}

/// A part of the benchmark's progress lines.
const AT_WORK: &str = "SET: rps=";
/// Guest memory in bytes: small enough for the file, large enough for the keys.
const MEMORY: u64 = 256 << 20;

fn guest(kernel: PathBuf, initrd: PathBuf) -> GuestSettings {
    GuestSettings {
        name: NAME_DEFAULT.to_owned(),
        weight: WEIGHT_DEFAULT,
        firmware: None,
        kernel,
        initrd: Some(initrd),
        // `nokaslr` makes equal runs equal, like every other setting here.
        command_line: "console=ttyAMA0 panic=-1 loglevel=4 nokaslr twofold.redis".to_owned(),
        memory: MEMORY,
        cpus: 1,
        pages: Pages::Auto,
        flags: 0,
        devices: Devices::default(),
        swap: None,
        test: None,
        policies: Policies::default(),
    }
}

/// The rounds that the hypervisor reported.
struct Recorded {
    /// Pages of the guest's RAM.
    pages: u64,
    microseconds: u64,
    rounds: Vec<String>,
}

impl Recorded {
    fn of(control: &Control, rounds: u32) -> anyhow::Result<Self> {
        let figure = |key| control.report.get(key).with_context(|| format!("the hypervisor does not report {key}"));
        let arrived = control.rounds.len();
        ensure!(
            arrived == rounds as usize && figure("record.rounds")? == u64::from(rounds),
            "{arrived} of {rounds} rounds arrived"
        );
        let (pages, microseconds) = (figure("record.pages")?, figure("record.microseconds")?);
        Ok(Self { pages, microseconds, rounds: control.rounds.clone() })
    }

    /// Returns the file's text, in the format that the bench reads (`crates/bench/src/dirty/recorded.rs`).
    fn file(&self) -> String {
        let alone = |run: &str| run.strip_suffix("+1").unwrap_or(run).to_owned();
        let line = |round: &String| round.split_ascii_whitespace().map(alone).collect::<Vec<_>>().join(" ");
        let lines = self.rounds.iter().map(|round| line(round) + "\n");
        std::iter::once(format!("twofold-rounds 1 {}\n", self.pages)).chain(lines).collect()
    }

    fn summary(&self) -> String {
        let mut sizes: Vec<_> = self.rounds.iter().map(|round| pages(round).count()).collect();
        sizes.sort_unstable();
        let (least, most) = (sizes.first().unwrap_or(&0), sizes.last().unwrap_or(&0));
        let all: BTreeSet<_> = self.rounds.iter().flat_map(|round| pages(round)).collect();
        format!(
            "{} rounds in {} us of virtual time; {least} to {most} pages written in one, median {}; {} of {} pages in all",
            sizes.len(),
            self.microseconds,
            sizes.get(sizes.len() / 2).unwrap_or(&0),
            all.len(),
            self.pages
        )
    }
}

/// Returns the pages of a round's runs.
fn pages(round: &str) -> impl Iterator<Item = u64> {
    round.split_ascii_whitespace().filter_map(|run| run.split_once('+')).flat_map(|(first, count)| {
        let first = first.parse::<u64>().unwrap_or(0);
        first..first + count.parse::<u64>().unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "twofold:round 0 0+3 9+1\ntwofold:round 0 17+1\ntwofold:round 1\ntwofold:round 2 5+2\n\
                        twofold:stat record.rounds 3\ntwofold:stat record.pages 100\ntwofold:stat record.microseconds 7\n";

    #[test]
    fn control_lines_become_the_file() {
        let recorded = Recorded::of(&Control::parse(LINES), 3).unwrap();
        assert_eq!(recorded.file(), "twofold-rounds 1 100\n0+3 9 17\n\n5+2\n");
        assert_eq!(
            recorded.summary(),
            "3 rounds in 7 us of virtual time; 0 to 5 pages written in one, median 2; 7 of 100 pages in all"
        );
    }

    #[test]
    fn rounds_that_are_missing_make_no_file() {
        assert!(Recorded::of(&Control::parse(LINES), 4).is_err());
        assert!(Recorded::of(&Control::parse(&LINES.replace("round 1\n", "rund 1\n")), 3).is_err());
        assert!(Recorded::of(&Control::parse(&LINES.replace("record.pages", "record.sides")), 3).is_err());
    }
}
