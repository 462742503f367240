// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `kvm`: our programs on Debian's kernel at EL2, where they use arm64's KVM. In full, also the costs of the
//! kernel's own selftests there.
//!
//! All programs run in turn in one boot. Invariant: no test needs KVM on the host.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use libtest_mimic::{Failed, Trial};
use twofold_peers::kvm::{Measured, Peer, TOLERANCE, figures};
use twofold_workspace::commands::Ran;
use twofold_workspace::kvm_host::Host;
use twofold_workspace::static_program::{Architecture, Profile, Program};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, fetch, install, static_program};

use super::harness::{self, Depth, Tally, harness};
use super::tap;
use crate::arguments::TestOptions;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    if !options.list {
        install::target(Architecture::Aarch64.target())?;
        install::qemu()?;
    }
    let suite = Arc::new(Suite {
        workspace: workspace.clone(),
        // The checks measure no times, so the quick tier uses the profile that builds faster.
        profile: if depth == Depth::Quick { Profile::Quick } else { Profile::Release },
        ran: OnceLock::new(),
        measured: OnceLock::new(),
    });
    let mut trials = Vec::new();
    for (number, check) in CHECKS.iter().enumerate() {
        trials.push(trial(&suite, check.name, move |suite| (check.judge)(&suite.ran()?[number])));
    }
    if depth == Depth::Full {
        trials.push(trial(&suite, "figures_of_kvm_are_as_recorded", figures_are_as_recorded));
        trials.push(trial(&suite, "twofold_agrees_with_the_kernels_own_test", agrees));
        trials.push(trial(&suite, "figures_of_kvm_repeat", figures_repeat));
    }
    // One at a time: the first test boots for all of them.
    harness(trials, 1, options)
}

/// A program to run, and the function that judges its result.
struct Check {
    name: &'static str,
    program: Program,
    arguments: &'static str,
    judge: fn(&Ran) -> anyhow::Result<()>,
}

const CHECKS: &[Check] = &[
    Check {
        name: "twofold_runs_from_an_initramfs",
        program: static_program::TWOFOLD,
        arguments: "--version",
        judge: |ran| {
            let expected = format!("twofold {}", env!("CARGO_PKG_VERSION"));
            let lines = ran.ended_well()?;
            ensure!(lines == [expected.as_str()], "it printed `{}`, not `{expected}`", lines.join("\n"));
            Ok(())
        },
    },
    checked("the_experiments_guest_under_kvm", static_program::KVM_CHECKS, ""),
    checked("dirty_log_on_kvm", static_program::TWOFOLD, "bench dirty-log --on kvm --tap -b 4M -v 2 -i 3 -w 25 -a"),
    Check {
        name: "dirty_log_on_kvm_tells_what_was_dirty",
        program: static_program::TWOFOLD,
        arguments: "bench dirty-log --on kvm --tap -b 4M -v 2 -m p40v48-4k -w 25 -a -r 0",
        judge: |ran| {
            tap::judge(ran)?;
            let gets: Vec<_> = ran.lines.iter().filter(|line| line.starts_with("# get ")).collect();
            let [first, second] = gets[..] else { bail!("it printed {gets:?}") };
            ensure!(first.contains(" pages=2048 dirty=2048 "), "`{first}`: all pages should start dirty");
            ensure!(!second.contains(" dirty=2048 "), "`{second}`: only written pages should be dirty");
            Ok(())
        },
    },
    checked(
        "dirty_log_on_kvm_that_get_clears",
        static_program::TWOFOLD,
        "bench dirty-log --on kvm --tap -b 8M -v 2 -m p40v48-4k -s anonymous_thp -g --chunk 2M",
    ),
    checked(
        "dirty_log_on_kvm_by_ring",
        static_program::TWOFOLD,
        "bench dirty-log --on kvm --tap -b 4M -v 2 -m p40v48-4k -w 50 --ring 1024",
    ),
];

/// Returns a check of a program that reports its own checks in TAP.
const fn checked(name: &'static str, program: Program, arguments: &'static str) -> Check {
    Check { name, program, arguments, judge: |ran| tap::judge(ran).map(drop) }
}

/// The limit against hangs.
const LIMIT: Duration = Duration::from_secs(1800);
/// Two CPUs, so that vCPUs run at the same time.
const CPUS: u32 = 2;
const MEMORY: u64 = 1 << 30;

struct Suite {
    workspace: Workspace,
    profile: Profile,
    ran: OnceLock<Result<Vec<Ran>, String>>,
    measured: OnceLock<Result<(Peer, Measured), String>>,
}

impl Suite {
    /// Returns the results of [`CHECKS`]. The first call boots.
    fn ran(&self) -> anyhow::Result<&[Ran]> {
        let ran = self.ran.get_or_init(|| self.boot().map_err(|error| format!("{error:#}")));
        ran.as_deref().map_err(|error| anyhow!("{error}"))
    }

    fn boot(&self) -> anyhow::Result<Vec<Ran>> {
        let linux = fetch::fetch(&self.workspace, false)?;
        let mut programs = BTreeMap::new();
        for Check { program, .. } in CHECKS {
            let file = static_program::build(&self.workspace, *program, Architecture::Aarch64, self.profile)?;
            let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            programs.insert(format!("bin/{}", program.name), bytes);
        }
        let host = Host {
            label: "kvm",
            programs,
            commands: CHECKS.iter().map(|check| format!("/bin/{} {}", check.program.name, check.arguments)).collect(),
            cpus: CPUS,
            memory: MEMORY,
            deterministic: false,
            timeout: Some(LIMIT),
        };
        host.run(&self.workspace, &install::qemu()?, &linux)
    }

    fn measured(&self) -> anyhow::Result<&(Peer, Measured)> {
        let measure = || {
            let peer = Peer::prepare(&self.workspace, false, &self.steps())?;
            let measured = peer.measure(&self.workspace, Some(LIMIT), &self.steps())?;
            Ok((peer, measured))
        };
        let measured = self.measured.get_or_init(|| measure().map_err(|error: anyhow::Error| format!("{error:#}")));
        measured.as_ref().map_err(|error| anyhow!("{error}"))
    }

    fn steps(&self) -> Steps {
        Steps::new(self.workspace.stop().clone())
    }
}

fn trial(
    suite: &Arc<Suite>,
    name: &'static str,
    test: impl FnOnce(&Suite) -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let suite = Arc::clone(suite);
    harness::trial(name, move || test(&suite).map_err(|error| Failed::from(format!("{error:#}"))))
}

/// Checks that the figures in README and in the targets are those of this kernel.
fn figures_are_as_recorded(suite: &Suite) -> anyhow::Result<()> {
    let (_, measured) = suite.measured()?;
    for figure in figures(measured) {
        if let Some(difference) = figure.difference() {
            ensure!(difference.is_within(TOLERANCE), "{}: {difference} than recorded ({figure:?})", figure.name);
        }
    }
    Ok(())
}

/// Checks that both programs agree on the dirty pages of each round and on the costs of writes and clear.
fn agrees(suite: &Suite) -> anyhow::Result<()> {
    let (_, measured) = suite.measured()?;
    measured.check_agreement()
}

fn figures_repeat(suite: &Suite) -> anyhow::Result<()> {
    let (peer, first) = suite.measured()?;
    let second = peer.measure(&suite.workspace, Some(LIMIT), &suite.steps())?;
    ensure!(*first == second, "two runs differ:\n{first:#?}\n{second:#?}");
    Ok(())
}
