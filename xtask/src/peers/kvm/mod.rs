// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask peers kvm`: counts what KVM itself costs, at EL2 in QEMU, with the kernel's own selftests.
//!
//! Debian's kernel boots at EL2 and runs the selftests in turn. Every figure is a number of instructions at EL2, of KVM
//! and of the kernel's memory management. The figures of `twofold bench dirty-log --on kvm` for the same experiment
//! stand beside them. Invariant: equal kernels and equal programs give equal figures on every host, because QEMU runs
//! in its deterministic mode. The peer is changed by its own options only.

mod agreement;
mod calls;
mod phases;
mod report;
mod selftests;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use twofold_launch::Qemu;

use crate::arguments::PeersKvmOptions;

use agreement::Compared;
use calls::{DirtyLog, PageTable};
use selftests::{DIRTY_LOG, PAGE_TABLE, PROGRAMS, Programs, Source};
use twofold_workspace::fetch::Fetched;
use twofold_workspace::kvm_host::{Host, Ran};
use twofold_workspace::static_program::Architecture;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, fetch, file, install, output, static_program};

pub use report::Figure;

/// `cargo xtask peers kvm`.
pub fn command(workspace: &Workspace, options: &PeersKvmOptions) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    let limit = (options.timeout > 0).then(|| Duration::from_secs(options.timeout));
    let steps = Steps::new(workspace.stop().clone());
    let peer = Peer::prepare(workspace, options.refresh, &steps)?;
    let measured = peer.measure(workspace, limit, &steps)?;
    output::line(&format!("\n{}", report::shown(&measured)))?;
    if let Some(path) = &options.json {
        file::write_json(path, &report::json(&peer, &measured))?;
    }
    measured.check_agreement().context("`--on kvm` and the kernel's own program do not agree")?;
    Ok(ExitCode::SUCCESS)
}

/// The largest difference between two figures that must agree, in percent.
pub const TOLERANCE: f64 = 10.0;

/// The kernel, its selftests, and a QEMU for them.
#[derive(Debug)]
pub struct Peer {
    qemu: Qemu,
    linux: Fetched,
    source: Source,
    programs: Programs,
    ours: Vec<u8>,
}

/// The counted figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Experiments with a dirty log.
    logs: Vec<Compared>,
    /// The experiment with a page table.
    table: PageTable,
    /// Local flushes of one page, for each write to a write-protected page.
    flushes_of_a_write_fault: f64,
}

/// The configuration of an experiment with a dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experiment {
    /// The host memory behind the guest's memory, by the selftests' name.
    backing: &'static str,
    /// Whether a separate call clears the log; else get clears it.
    is_manual: bool,
    /// The eager split's chunk in bytes; 0 to split nothing ahead of writes.
    chunk: u64,
    /// The pages that are written in each round.
    writes: Writes,
}

/// The pages that a guest writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// All pages, in order.
    All,
    /// A quarter of the accesses are writes, to pages chosen at random. Two vCPUs have half of the memory each, because
    /// in 6.12 only the second one chooses at random ([`SEED`]).
    Some,
}

impl Peer {
    /// Fetches and builds the kernel, the selftests and our program.
    pub fn prepare(workspace: &Workspace, refresh: bool, steps: &Steps) -> anyhow::Result<Self> {
        let qemu = steps.step("tools", || {
            let qemu = install::qemu()?;
            install::arm64_compiler()?;
            let words = format!("QEMU {}, {}", qemu.version(), install::ARM64_COMPILER);
            Ok((qemu, words))
        })?;
        let (linux, source) = steps.step("fetch", || {
            let linux = fetch::fetch(workspace, refresh)?;
            let source = selftests::fetch(workspace, refresh)?;
            let cached = if linux.cached && source.cached { ", cached" } else { "" };
            let words = format!("Linux {}, selftests of {}{cached}", linux.versions.kernel, source.version);
            Ok(((linux, source), words))
        })?;
        let programs = steps.step("build", || {
            let programs = selftests::build(workspace, &source)?;
            let words = format!("{} with {}", PROGRAMS.join(" and "), programs.compiler);
            Ok((programs, words))
        })?;
        let ours = steps.step("build", || {
            install::target(Architecture::Aarch64.target())?;
            let file = static_program::build(
                workspace,
                static_program::TWOFOLD,
                Architecture::Aarch64,
                static_program::Profile::Release,
            )?;
            let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok((bytes, format!("{}, static", static_program::TWOFOLD.name)))
        })?;
        Ok(Self { qemu, linux, source, programs, ours })
    }

    /// Runs and counts all experiments in one boot.
    pub fn measure(&self, workspace: &Workspace, limit: Option<Duration>, steps: &Steps) -> anyhow::Result<Measured> {
        let experiments = experiments();
        let mut commands = vec![
            // The kernel tests itself for some seconds after it has booted.
            "sleep 5".to_owned(),
            // The first program gets memory that was never allocated before, which costs more. Its figures are not
            // used.
            PLAIN.kernels(),
        ];
        for experiment in &experiments {
            commands.extend([experiment.kernels(), experiment.ours()]);
        }
        commands.push(format!("/bin/{PAGE_TABLE} -v 1 -b {SIZE} -m {MODE} -s {}", PLAIN.backing));
        commands.extend([probe(FLUSH), PLAIN.kernels(), format!("cat {TRACING}/kprobe_profile")]);
        let mut programs = BTreeMap::from([(format!("bin/{}", static_program::TWOFOLD.name), self.ours.clone())]);
        for name in PROGRAMS {
            programs.insert(format!("bin/{name}"), self.programs.read(name)?);
        }
        let host = Host {
            label: "peer-kvm",
            programs,
            commands,
            cpus: 1,
            memory: MEMORY,
            deterministic: true,
            timeout: limit,
        };
        steps.step("measure", || {
            let ran = host.run(workspace, &self.qemu, &self.linux)?;
            let words = format!("{} programs in Linux at EL2, in the deterministic mode", 2 * experiments.len() + 3);
            Ok((Measured::of(experiments, &ran)?, words))
        })
    }
}

impl Measured {
    /// Returns the figures that README and the targets use, beside those of this run.
    pub fn figures(&self) -> Vec<Figure> {
        report::figures(self)
    }

    /// Checks that our program and the kernel's agree on the dirty pages of each round, and within [`TOLERANCE`] on the
    /// costs of writes and clears.
    pub fn check_agreement(&self) -> anyhow::Result<()> {
        self.logs.iter().try_for_each(|compared| compared.check(TOLERANCE))
    }

    fn of(experiments: Vec<Experiment>, ran: &[Ran]) -> anyhow::Result<Self> {
        let mut ran = ran.iter();
        let mut next = || -> anyhow::Result<&[String]> { ran.next().context("a command is missing")?.ended_well() };
        let by_calls = |lines: &[String]| DirtyLog::of(&calls::calls(lines)?);
        // The wait, and the first program.
        next()?;
        next()?;
        let mut logs = Vec::new();
        for experiment in experiments {
            let checked = |log: anyhow::Result<DirtyLog>, command: String| {
                log.and_then(|log| experiment.check(&log).map(|()| log)).with_context(|| format!("`{command}`"))
            };
            let kernels = checked(by_calls(next()?), experiment.kernels())?;
            let ours = checked(phases::dirty_log(next()?), experiment.ours())?;
            logs.push(Compared { experiment, kernels, ours });
        }
        let table = PageTable::of(&calls::calls(next()?)?).context(PAGE_TABLE)?;
        next()?;
        let probed = by_calls(next()?).context("with the probe")?;
        let faults = PLAIN.protected_rounds(&probed) as u64 * probed.pages;
        let flushes_of_a_write_fault = hits(next()?, FLUSH)? as f64 / faults as f64;
        Ok(Self { logs, table, flushes_of_a_write_fault })
    }
}

/// The experiment whose figures README and the targets use.
const PLAIN: Experiment = Experiment { backing: "anonymous", is_manual: true, chunk: 0, writes: Writes::All };

/// Returns all experiments with a dirty log, [`PLAIN`] first.
fn experiments() -> Vec<Experiment> {
    let mut all = Vec::new();
    for backing in [PLAIN.backing, "anonymous_thp"] {
        for is_manual in [true, false] {
            all.extend([0, 2 << 20].map(|chunk| Experiment { backing, is_manual, chunk, ..PLAIN }));
        }
    }
    all.extend([true, false].map(|is_manual| Experiment { is_manual, writes: Writes::Some, ..PLAIN }));
    all
}

const SIZE: &str = "64M";
const HALF: &str = "32M";
/// The seed of our program's random numbers, which makes them those of the kernel's program. In 6.12 the guest of
/// dirty_log_perf_test ignores `-r`: its first vCPU starts with 0, the next one with 1, and so on. The generator yields
/// only 0 from 0, so the first vCPU always writes, with `-a` always to its first page.
const SEED: u32 = 0;
/// The guest mode PA 40, VA 48, 4K, by its number in 6.12.
const MODE: u32 = 6;
const ROUNDS: usize = 3;
/// The host's memory in bytes, of which the guest has 64 MiB.
const MEMORY: u64 = 1 << 30;

impl Experiment {
    /// Returns the command for the kernel's own program. `count.c` reads the chunk from the environment.
    fn kernels(&self) -> String {
        format!("TWOFOLD_CHUNK={} /bin/{DIRTY_LOG} {}", self.chunk, self.options())
    }

    /// Returns the command for our program.
    fn ours(&self) -> String {
        let seed = if self.writes == Writes::All { String::new() } else { format!(" -r {SEED}") };
        let program = format!("/bin/{} bench dirty-log --on kvm --tap", static_program::TWOFOLD.name);
        format!("{program} --chunk {} {}{seed}", self.chunk, self.options())
    }

    /// Returns the options that both programs have in common.
    fn options(&self) -> String {
        let get = if self.is_manual { "" } else { " -g" };
        let writes = match self.writes {
            Writes::All => format!("-v 1 -b {SIZE}"),
            Writes::Some => format!("-v 2 -b {HALF} -w 25 -a"),
        };
        format!("-i {ROUNDS} -m {MODE} -s {}{get} {writes}", self.backing)
    }

    /// Returns the number of rounds in which every write is to a write-protected page. With manual clearing all pages
    /// start dirty and unprotected, so the first round does not count.
    fn protected_rounds(&self, log: &DirtyLog) -> usize {
        log.rounds.len() - usize::from(self.is_manual)
    }

    /// Checks that the log has the calls of this experiment, and that all pages were dirty in the rounds that wrote all
    /// pages.
    fn check(&self, log: &DirtyLog) -> anyhow::Result<()> {
        ensure!(log.rounds.len() == ROUNDS, "{} rounds and not {ROUNDS}", log.rounds.len());
        for (number, round) in log.rounds.iter().enumerate() {
            let (dirty, pages) = (round.bitmap.dirty, log.pages);
            // With manual clearing all pages start dirty.
            let is_all = self.writes == Writes::All || number + self.protected_rounds(log) < log.rounds.len();
            ensure!(is_all == (dirty == pages), "round {number}: {dirty} of {pages} pages were dirty");
            ensure!(round.clear.is_some() == self.is_manual, "round {number}: the log is cleared by another call");
        }
        Ok(())
    }
}

const TRACING: &str = "/sys/kernel/tracing";
/// The function that KVM calls in a write fault that widens an entry's permissions.
const FLUSH: &str = "__kvm_tlb_flush_vmid_ipa_nsh";
/// The TLBIs of that function in the kernel's source (arch/arm64/kvm/hyp/vhe/tlb.c): IPAS2E1 and VMALLE1. Its DSBs are
/// NSHST, and NSH twice.
const TLBI_OF_A_FLUSH: f64 = 2.0;
const DSB_OF_A_FLUSH: f64 = 3.0;

/// Returns the command that makes the kernel count calls of `function`. Each call costs more from then on.
fn probe(function: &str) -> String {
    format!(
        "echo 'p:twofold/{function} {function}' > {TRACING}/kprobe_events && echo 1 > {TRACING}/events/twofold/enable"
    )
}

/// Returns the number of calls of `function` from the kernel's list of names, hits and misses.
fn hits(lines: &[String], function: &str) -> anyhow::Result<u64> {
    let line = lines
        .iter()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|line| line.first() == Some(&function));
    let [_, hits, missed] = line.with_context(|| format!("no {function}"))?[..] else {
        anyhow::bail!("the kernel's list of probes has another form:\n{}", lines.join("\n"));
    };
    ensure!(missed == "0", "{missed} calls of {function} were not counted");
    Ok(hits.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn probes_are_read() {
        let text = "  __kvm_tlb_flush_vmid_ipa      36    0\n  __kvm_tlb_flush_vmid_ipa_nsh    16384      0\n";
        assert_eq!(hits(&lines(text), FLUSH).unwrap(), 16384);
        assert!(hits(&lines(&text.replace("  0", "  1")), FLUSH).is_err());
        assert!(hits(&[], FLUSH).is_err());
    }

    #[test]
    fn experiments_are_all_and_different() {
        let all = experiments();
        assert_eq!((all.len(), all[0]), (10, PLAIN));
        for (number, experiment) in all.iter().enumerate() {
            assert!(!all[..number].contains(experiment));
        }
        let (last, some) = (all[7].kernels(), all[9].kernels());
        assert!(last.starts_with("TWOFOLD_CHUNK=2097152 ") && last.ends_with("anonymous_thp -g -v 1 -b 64M"), "{last}");
        assert!(some.ends_with("anonymous -g -v 2 -b 32M -w 25 -a"), "{some}");
    }

    #[test]
    fn our_command_has_the_same_options() {
        let ours = PLAIN.ours();
        assert_eq!(ours, "/bin/twofold bench dirty-log --on kvm --tap --chunk 0 -i 3 -m 6 -s anonymous -v 1 -b 64M");
        let some = experiments()[9].ours();
        assert!(some.contains(" --chunk 0 -i 3 ") && some.ends_with(" -g -v 2 -b 32M -w 25 -a -r 0"), "{some}");
    }
}
