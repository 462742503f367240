// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hostile guests, as tests of the suite `el2`: the hypervisor's own image runs the bare-metal guest.
//!
//! Invariant: such a test passes only if the guest completed all its steps, EL2 still answered at the end, and EL2's
//! own counts of exits confirm it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use libtest_mimic::{Failed, Trial};
use twofold_abi::bundle::flags;
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::{Devices, GuestSettings, Outcome, Pages, Qemu, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::{Workspace, build};

use super::harness::{self, Depth};

/// A test: its name, the depth at which it runs, and its function.
type Case = (&'static str, Depth, fn(&Hostile) -> anyhow::Result<()>);

const CASES: [Case; 7] = [
    ("hostile::hidden_features_are_undefined_and_announced_ones_work", Depth::Quick, |guest| {
        guest.features(machine::CPU_DEFAULT)
    }),
    ("hostile::hidden_features_on_lesser_cpus", Depth::Full, |guest| {
        ["neoverse-n1", "cortex-a57", "a64fx"].into_iter().try_for_each(|cpu| guest.features(cpu).context(cpu))
    }),
    ("hostile::a_sample_of_system_registers", Depth::Quick, |guest| {
        guest.system_registers(61, 1, machine::CPU_DEFAULT)
    }),
    ("hostile::a_sample_of_system_registers_on_lesser_cpus", Depth::Full, |guest| {
        ["neoverse-n1", "cortex-a57", "a64fx"]
            .into_iter()
            .try_for_each(|cpu| guest.system_registers(61, 1, cpu).context(cpu))
    }),
    ("hostile::a_sample_of_hypercalls", Depth::Quick, |guest| guest.hypercalls(2_000, 0)),
    ("hostile::hypercalls_at_random", Depth::Full, |guest| guest.hypercalls(40_000, 0)),
    ("hostile::hypercalls_of_a_guest_that_may_measure", Depth::Full, |guest| guest.hypercalls(40_000, flags::MEASURE)),
];

/// vCPUs: one watches, and four work.
const CPUS: u32 = 5;
const WORKERS: u64 = 4;

/// Returns the tests of this depth.
pub fn trials(workspace: &Workspace, qemu: &Qemu, depth: Depth) -> Vec<Trial> {
    let hostile = Arc::new(Hostile { workspace: workspace.clone(), qemu: qemu.clone() });
    let chosen = CASES.into_iter().filter(|(_, of, _)| depth == Depth::Full || *of == Depth::Quick);
    let mut trials: Vec<_> = chosen.map(|(name, _, run)| trial(&hostile, name, run)).collect();
    if depth == Depth::Full {
        // All in one test take minutes.
        trials.extend((1..=PARTS).map(|part| {
            let name = format!("hostile::every_system_register_{part:02}_of_{PARTS}");
            trial(&hostile, &name, move |guest| guest.system_registers(PARTS, part, machine::CPU_DEFAULT))
        }));
    }
    trials
}

fn trial(
    hostile: &Arc<Hostile>,
    name: &str,
    run: impl FnOnce(&Hostile) -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let hostile = Arc::clone(hostile);
    harness::trial(name, move || run(&hostile).map_err(|error| Failed::from(format!("{error:#}")))).with_kind("max")
}

/// The parts of the system-register space: a part has the encodings with the same op2 and the same lowest bit of CRm.
const PARTS: u64 = 16;

struct Hostile {
    workspace: Workspace,
    qemu: Qemu,
}

impl Hostile {
    fn boot(&self, command_line: String, flags: u32, cpu: &str) -> anyhow::Result<Outcome> {
        let guest = GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: self.workspace.image(build::GUEST.name),
            initrd: None,
            command_line,
            memory: 128 << 20,
            cpus: CPUS,
            pages: Pages::Auto,
            flags,
            devices: Devices::default(),
            swap: None,
            test: None,
            policies: Policies::default(),
        };
        let boot = Boot {
            label: "hostile",
            guests: vec![guest],
            cpu,
            host_cpus: None,
            deterministic: false,
            checked: false,
            // The limit against hangs. The guest itself limits the time that a vCPU may take without progress.
            timeout: Some(Duration::from_secs(1800)),
            terminal: false,
            image: Image::Plain,
        };
        boot.run(&self.workspace, &self.qemu)
    }

    /// Runs every `step`th encoding from the `part`th on, as a read and as a write with 15 values, on four vCPUs.
    fn system_registers(&self, step: u64, part: u64, cpu: &str) -> anyhow::Result<()> {
        let seed = seed();
        let outcome = self.boot(format!("sysregs={step} part={part} seed={seed}"), 0, cpu)?;
        let console = outcome.console.tail(1000).join("\n");
        let reports = console.lines().filter(|line| line.contains(" executed, ")).count() as u64;
        ensure!(reports == WORKERS, "seed {seed}: {reports} of {WORKERS} vCPUs reported:\n{console}");
        let restarts = console.lines().filter(|line| line.contains("killed by BRK, on purpose")).count() as u64;
        ensure!(restarts == WORKERS, "seed {seed}: {restarts} of {WORKERS} vCPUs were started again:\n{console}");
        // The LORegion registers trap: LORSA_EL1, LOREA_EL1, LORN_EL1 and LORC_EL1 are written with 15 values and read,
        // LORID_EL1 is read. Each is in a part of its own.
        let least = match (step, part) {
            (PARTS, 1..=4) => WORKERS * 16,
            (PARTS, 8) => WORKERS,
            _ => 0,
        };
        let registers = figure(&outcome, "exits.system_register")?;
        ensure!(registers >= least, "seed {seed}: {registers} accesses to registers came to EL2, not {least}");
        let calls = figure(&outcome, "exits.hvc")?;
        ensure!(calls >= 2 * WORKERS, "seed {seed}: {calls} calls came to EL2");
        self.flushed_on_each_cpu(&outcome)
    }

    /// Tries instructions of each feature.
    fn features(&self, cpu: &str) -> anyhow::Result<()> {
        let outcome = self.boot("features".to_owned(), 0, cpu)?;
        let console = outcome.console.tail(100).join("\n");
        ensure!(console.contains("; 0 wrong"), "{console}");
        Ok(())
    }

    /// Runs `count` calls of any kind on each of four vCPUs.
    fn hypercalls(&self, count: u64, flags: u32) -> anyhow::Result<()> {
        let seed = seed();
        let outcome = self.boot(format!("hypercalls={count} seed={seed}"), flags, machine::CPU_DEFAULT)?;
        let exits = figure(&outcome, "exits.hvc")? + figure(&outcome, "exits.smc")?;
        ensure!(exits >= WORKERS * count, "seed {seed}: {exits} of {} calls came to EL2", WORKERS * count);
        let console = outcome.console.tail(1000).join("\n");
        let starts = console
            .lines()
            .find_map(|line| line.strip_prefix("hypercalls: ")?.strip_suffix(" starts by the first vCPU"));
        let starts: u64 = starts.context("the guest does not report its number of starts")?.parse()?;
        ensure!(starts > WORKERS, "seed {seed}: no vCPU was started again");
        self.flushed_on_each_cpu(&outcome)?;
        // EL2 allocates a vCPU's state once, however often the vCPU starts.
        let grown = figure(&outcome, "heap.grown")?;
        ensure!(grown <= HEAP_MOST, "seed {seed}: EL2's heap grew by {grown} bytes in more than {starts} starts");
        Ok(())
    }

    /// Checks the flush on each CPU: one that was off missed all broadcast invalidations, so it flushes before it enters
    /// its first vCPU.
    fn flushed_on_each_cpu(&self, outcome: &Outcome) -> anyhow::Result<()> {
        let flushes = figure(outcome, "tlbi.vmalls12e1is")?;
        ensure!(flushes >= u64::from(CPUS), "{flushes} full invalidations on {CPUS} CPUs");
        Ok(())
    }
}

/// The most bytes of heap that EL2 may use for five vCPUs.
const HEAP_MOST: u64 = 64 << 10;

/// Returns a new seed for every run. A failure names it, and `TWOFOLD_SEED` repeats it.
pub fn seed() -> u64 {
    let given = std::env::var("TWOFOLD_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        1 + now.map_or(0, |now| u64::from(now.subsec_nanos()))
    })
}

fn figure(outcome: &Outcome, key: &str) -> anyhow::Result<u64> {
    outcome.control.report.get(key).with_context(|| format!("EL2 does not report {key}"))
}
