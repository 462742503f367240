// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the kernel, runs both programs, and reads what they count.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_launch::Qemu;
use twofold_workspace::commands::Ran;
use twofold_workspace::fetch::{self, Fetched};
use twofold_workspace::kvm_host::Host;
use twofold_workspace::static_program::{self, Architecture};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, build, install};

use super::agreement::Compared;
use super::calls::{self, DirtyLog, PageTable};
use super::exits::{self, Exits};
use super::experiment::{self, Experiment, MODE, PLAIN, SIZE};
use super::phases;
use super::selftests::{self, PAGE_TABLE, PROGRAMS, Programs};
use crate::source::Source;

/// The largest difference between two figures that must agree, in percent.
pub const TOLERANCE: f64 = 10.0;

/// The kernel, its selftests, and a QEMU for them.
#[derive(Debug)]
pub struct Peer {
    pub(super) qemu: Qemu,
    pub(super) linux: Fetched,
    pub(super) source: Source,
    pub(super) programs: Programs,
    ours: Vec<u8>,
    /// The bare-metal guest, which measures exits.
    guest: Vec<u8>,
}

/// The counted figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Experiments with a dirty log.
    pub(super) logs: Vec<Compared>,
    /// The experiment with a page table.
    pub(super) table: PageTable,
    /// Local flushes of one page, for each write to a write-protected page.
    pub(super) flushes_of_a_write_fault: f64,
    /// What exits cost.
    pub(super) exits: Exits,
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
        let guest = steps.step("build", || {
            install::target(install::TARGET)?;
            build::images(workspace, &[build::GUEST])?;
            let file = build::GUEST.image(workspace);
            let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok((bytes, "the bare-metal guest".to_owned()))
        })?;
        Ok(Self { qemu, linux, source, programs, ours, guest })
    }

    /// Runs and counts all experiments in one boot.
    pub fn measure(&self, workspace: &Workspace, limit: Option<Duration>, steps: &Steps) -> anyhow::Result<Measured> {
        let experiments = experiment::all();
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
        commands.push(exits::command());
        commands.extend([probe(FLUSH), PLAIN.kernels(), format!("cat {TRACING}/kprobe_profile")]);
        let mut programs = BTreeMap::from([(format!("bin/{}", static_program::TWOFOLD.name), self.ours.clone())]);
        programs.insert(exits::GUEST.to_owned(), self.guest.clone());
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
            let words = format!("{} programs in Linux at EL2, in the deterministic mode", 2 * experiments.len() + 4);
            Ok((Measured::of(experiments, &ran)?, words))
        })
    }
}

impl Measured {
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
        let exits = Exits::of(next()?).context("bench exits")?;
        next()?;
        let probed = by_calls(next()?).context("with the probe")?;
        let faults = PLAIN.protected_rounds(&probed) as u64 * probed.pages;
        let flushes_of_a_write_fault = hits(next()?, FLUSH)? as f64 / faults as f64;
        Ok(Self { logs, table, flushes_of_a_write_fault, exits })
    }
}

const TRACING: &str = "/sys/kernel/tracing";
/// The function that KVM calls in a write fault that widens an entry's permissions.
const FLUSH: &str = "__kvm_tlb_flush_vmid_ipa_nsh";
/// The TLBIs of that function in the kernel's source (arch/arm64/kvm/hyp/vhe/tlb.c): IPAS2E1 and VMALLE1. Its DSBs are
/// NSHST, and NSH twice.
pub const TLBI_OF_A_FLUSH: f64 = 2.0;
pub const DSB_OF_A_FLUSH: f64 = 3.0;

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

/// The host's memory in bytes, of which the guest has 64 MiB.
const MEMORY: u64 = 1 << 30;

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
}
