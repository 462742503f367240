// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `el2`: the tests in the image `el2-tests`, each in a QEMU of its own, the program of
//! `tools/embedded`, and the guests of `guests.rs` and `replay.rs`.
//!
//! The image lists its tests if its command line is `list`, and runs one test for `run=NAME`. Invariant: a test passes
//! only if both QEMU's exit status and the image's own output report it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use libtest_mimic::Failed;
use twofold_abi::channel::wire::DELIMITER;
use twofold_abi::channel::{Command, FrameWriter, ToHypervisor};
use twofold_abi::exit;
use twofold_launch::{Launch, Loaded, Machine, Outcome, Qemu, Test, Verdict, machine};
use twofold_workspace::{Workspace, build, install, output};

use super::harness::{Depth, Tally, harness, trial};
use super::{embedded, guests, replay};
use crate::arguments::TestOptions;

/// Runs the suite on the CPU with all features; in full, on each of [`CPUS`].
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    install::target(install::TARGET)?;
    let qemu = install::qemu()?;
    let image = Arc::new(Image { workspace: workspace.clone(), qemu: qemu.clone() });
    build::images(workspace, &[build::EL2_TESTS, build::HYPERVISOR, build::GUEST])?;
    let tests = image.run("list", machine::CPU_DEFAULT, ended_well)?.control.tests;
    if tests.is_empty() {
        bail!("the test image lists no test");
    }
    let mut trials = Vec::new();
    for cpu in if depth == Depth::Full { &CPUS[..] } else { &CPUS[..1] } {
        for test in tests.iter().filter(|test| depth == Depth::Full || !FULL.contains(&&*test.name)).cloned() {
            let image = Arc::clone(&image);
            let name = test.name.clone();
            let judge = move || image.test(&test, cpu).map_err(|error| Failed::from(format!("{error:#}")));
            trials.push(trial(&name, judge).with_kind(cpu.split(',').next().unwrap_or(cpu)));
        }
    }
    let cpus = if depth == Depth::Full { &CPUS[..] } else { &CPUS[..1] };
    trials.extend(cpus.iter().map(|cpu| embedded::runs(workspace, qemu.program().to_owned(), cpu)));
    trials.extend(guests::trials(workspace, &qemu, depth));
    trials.extend(replay::trials(workspace, &qemu, depth));
    harness(trials, PARALLEL, options)
}

/// CPU models whose missing features lead to other code paths in the engine. `max` has all features. `neoverse-n1` has
/// no forced write-back, no invalidation by range and no level hints. `cortex-a57` and `a64fx` also have no hardware
/// updates of entries.
const CPUS: [&str; 4] = [machine::CPU_DEFAULT, "neoverse-n1", "cortex-a57", "a64fx"];
/// Tests that run in full only.
const FULL: [&str; 1] = ["world_switch::a_hundred_thousand_switches_keep_every_register"];
/// Tests on a machine of one CPU that counts instructions.
const COUNTED: [&str; 1] = ["world_switch::a_switch_takes_at_most_700_instructions"];
/// The number of QEMUs at a time; each emulates two CPUs.
const PARALLEL: usize = 2;
/// A limit against hangs; a test takes about a second, and one of [`FULL`] a minute.
const LIMIT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

/// The test that needs a launcher that asks.
const ASKED: &str = "control::a_launcher_that_asks_is_answered";

/// A hello, a malformed frame, and commands.
fn commands() -> anyhow::Result<Vec<u8>> {
    let mut writer = FrameWriter::new();
    let mut bytes = vec![DELIMITER];
    bytes.extend(ToHypervisor::Hello { lowest: 1, highest: 1, session: 42 }.write(None, &mut writer)?);
    bytes.extend([b'x', DELIMITER]);
    for (request, guest, command) in
        [(1, Some(0), Command::Statistics), (2, Some(1), Command::Stop), (3, None, Command::Quit)]
    {
        bytes.extend(ToHypervisor::Command { request, command }.write(guest, &mut writer)?);
    }
    Ok(bytes)
}

fn answered(directory: &Path) -> anyhow::Result<()> {
    let log = fs::read_to_string(directory.join(twofold_launch::run::CONTROL_LOG))?;
    let answers: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("control channel: ")).collect();
    let expected = [
        "Welcome",
        "State",
        "Refused { request: None, reason: Malformed",
        "Statistic { request: 1",
        "Done(1)",
        "Refused { request: Some(2), reason: Guest",
        "Done(3)",
    ];
    let fits =
        answers.len() == expected.len() && answers.iter().zip(expected).all(|(line, start)| line.starts_with(start));
    anyhow::ensure!(fits, "the answers are {answers:#?}, not {expected:#?}");
    Ok(())
}

struct Image {
    workspace: Workspace,
    qemu: Qemu,
}

impl Image {
    fn test(&self, test: &Test, cpu: &str) -> anyhow::Result<()> {
        let append = format!("run={}", test.name);
        match test.expect {
            exit::POWER_OFF => self.run(&append, cpu, |outcome| passed(outcome, &test.name)),
            exit::PANIC => self.run(&append, cpu, panicked),
            status => bail!("the image announces the unknown exit status {status}"),
        }
        .map(drop)
    }

    /// Boots the image. If `judge` refuses the outcome, the error includes the logs.
    fn run(
        &self,
        append: &str,
        cpu: &str,
        judge: impl FnOnce(&Outcome) -> anyhow::Result<()>,
    ) -> anyhow::Result<Outcome> {
        let directory = tempfile::Builder::new().prefix("el2-").tempdir_in(self.workspace.runs()?)?;
        let machine = Machine {
            image: self.workspace.image(build::EL2_TESTS.name),
            loaded: Loaded::Nothing,
            spare_memory: 0,
            append: Some(append.to_owned()),
            cpu: cpu.to_owned(),
            cpus: 2,
            memory_file: None,
            deterministic: COUNTED.iter().any(|name| append.ends_with(name)),
        };
        let limit = if FULL.iter().any(|name| append.ends_with(name)) { LONG } else { LIMIT };
        let launch = Launch {
            qemu: &self.qemu,
            machine: &machine,
            directory: directory.path(),
            trace: None,
            timeout: Some(limit),
            stop: self.workspace.stop().clone(),
        };
        let asks = append.ends_with(ASKED);
        let asked = if asks { commands()? } else { Vec::new() };
        let outcome = launch.run_asking(&asked, |_| ()).map_err(anyhow::Error::from);
        let judged = outcome.and_then(|outcome| judge(&outcome).map(|()| outcome));
        let judged =
            judged.and_then(|outcome| if asks { answered(directory.path()).map(|()| outcome) } else { Ok(outcome) });
        if let Ok(outcome) = &judged {
            // What a test counted is worth a line.
            let counted = outcome.control.log.iter().filter(|line| line.contains(" instructions, "));
            counted.for_each(|line| _ = output::line(&format!("{cpu}: {line}")));
        }
        judged.map_err(|error| anyhow!("{error:#}{}", logs(directory.path())))
    }
}

fn ended_well(outcome: &Outcome) -> anyhow::Result<()> {
    match Verdict::new(outcome, false) {
        Verdict::Ok => Ok(()),
        verdict => Err(anyhow!("{verdict}")),
    }
}

fn passed(outcome: &Outcome, name: &str) -> anyhow::Result<()> {
    ended_well(outcome)?;
    if !outcome.control.passed.iter().any(|passed| passed == name) {
        bail!("the image ended well, but did not report that {name} passed");
    }
    Ok(())
}

/// Checks that there is exactly one panic report, with the text that the test announced.
fn panicked(outcome: &Outcome) -> anyhow::Result<()> {
    if outcome.status != Some(exit::PANIC) || outcome.control.end.as_deref() != Some("panic") {
        bail!("the image should end with a panic; QEMU's exit status is {:?}", outcome.status);
    }
    let is_announced = |line: &&String| line.starts_with(ANNOUNCED);
    let report: Vec<_> = outcome.control.log.iter().filter(|line| !is_announced(line)).collect();
    let mut announced = outcome.control.log.iter().filter_map(|line| line.strip_prefix(ANNOUNCED)).peekable();
    if announced.peek().is_none() {
        bail!("the test does not announce the content of its report");
    }
    if let Some(missing) = announced.find(|text| !report.iter().any(|line| line.contains(text))) {
        bail!("the report lacks `{missing}`");
    }
    match report.iter().filter(|line| line.contains("backtrace:")).count() {
        1 => Ok(()),
        count => bail!("there are {count} reports, not 1"),
    }
}

const ANNOUNCED: &str = "expect: ";

fn logs(directory: &Path) -> String {
    use twofold_launch::run::{CONSOLE_LOG, CONTROL_LOG};
    let mut text = String::new();
    for name in [CONTROL_LOG, CONSOLE_LOG] {
        let log = fs::read(directory.join(name)).unwrap_or_default();
        if !log.is_empty() {
            text.push_str(&format!("\n--- {name}\n{}", String::from_utf8_lossy(&log).trim_end()));
        }
    }
    text
}
