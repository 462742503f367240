// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan on the machine: in each run each mode gets a new guest, with the run's seed. What was measured is recorded
//! here for all platforms.

use std::collections::BTreeMap;

use anyhow::Context;
use twofold_machine::tasks::Nanos;

use super::guest::{Did, Guest};
use super::plan::{Bm, NAME, Plan};
use crate::experiment::progress::Progress;
use crate::options::{BmGuest, FaultMode};
use crate::readable;
use crate::report::explained::AT;
use crate::results::{Kind, Measurement, Platform, Quantity, Results};
use crate::stop::Stop;

/// Measures the plan. If a signal ends it, the results have the complete runs.
///
/// # Errors
///
/// A guest does not fit or cannot go on, or its array differs from what was written.
pub fn results(plan: &Plan, progress: &Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results { notes: plan.notes(), ..Results::begin() };
    for run in 0..=plan.runs {
        // The modes of a run are complete or left out.
        let mut taken = Vec::new();
        for latency in &plan.latencies {
            for mode in &plan.modes {
                if stop.is_requested() {
                    results.interrupted = true;
                    return Ok(results);
                }
                let (name, runs) = (mode.name(), plan.runs);
                progress.doing(if run == 0 {
                    format!("{name}, checked run")
                } else {
                    format!("{name}, run {run} of {runs}")
                });
                // The checked run has the seed of the first counted one.
                let seed = plan.seed.wrapping_add(u64::from(run.saturating_sub(1)));
                let did = measure(&plan.bm, *mode, *latency, seed, run == 0);
                let did = did.with_context(|| format!("{name}, {latency}, seed {seed}"))?;
                taken.push((*mode, *latency, did));
                progress.done();
            }
        }
        if run == 0 && plan.verbose {
            results.notes.extend(taken.iter().map(|(mode, latency, did)| counted(*mode, *latency, did)));
        }
        for (mode, latency, did) in taken.iter().filter(|_| run > 0) {
            record(&mut results, &plan.bm, *mode, *latency, &Score::of(did));
        }
    }
    Ok(results)
}

/// Runs `bm` once in a new guest.
///
/// # Errors
///
/// As for [`results`].
pub fn measure(bm: &Bm, mode: FaultMode, latency: Nanos, seed: u64, is_checked: bool) -> anyhow::Result<Did> {
    Guest::new(bm)?.run(mode.mode(), latency, seed, is_checked)
}

/// What `bm` did in a run, and where.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// The platform.
    pub platform: Platform,
    /// How it was obtained.
    pub kind: Kind,
    /// What ran it, on the hypervisor.
    pub guest: Option<BmGuest>,
    /// The work of all workers.
    pub work: u64,
    /// The pages that the store brought; on the hypervisor, those that were written.
    pub pages: u64,
}

impl Score {
    /// A run on the machine.
    pub fn of(did: &Did) -> Self {
        let (work, pages) = (did.work(), did.counts.vcpus.pages);
        Self { platform: Platform::Machine, kind: Kind::Modelled, guest: None, work, pages }
    }
}

/// Adds what a run did to the results.
pub fn record(results: &mut Results, bm: &Bm, mode: FaultMode, latency: Nanos, score: &Score) {
    let settings = [
        ("async", mode.name().to_owned()),
        ("bytes", bm.bytes.to_string()),
        ("faulting", bm.faulting.to_string()),
        ("limit", bm.limit.to_string()),
        ("time", bm.time.to_string()),
        ("vcpus", bm.vcpus.to_string()),
        ("workers", bm.workers.to_string()),
    ];
    let configuration: BTreeMap<_, _> = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let pages = if score.guest.is_some() { (WRITES, Quantity::PagesWritten) } else { (PAGES, Quantity::PagesBrought) };
    let figures = [
        (phase(WORK, latency, score.guest), Quantity::Work, score.work),
        (phase(pages.0, latency, score.guest), pages.1, score.pages),
    ];
    for (phase, quantity, figure) in figures {
        let new = Measurement {
            experiment: NAME.to_owned(),
            platform: score.platform,
            configuration: configuration.clone(),
            phase,
            quantity,
            kind: score.kind,
            runs: Vec::new(),
        };
        results.measurement(new).runs.push(figure as f64);
    }
}

/// A phase's name: `work at 10 ms`, or `work at 10 ms, linux`.
pub fn phase(name: &str, latency: Nanos, guest: Option<BmGuest>) -> String {
    let guest = guest.map(|guest| format!(", {}", guest.name())).unwrap_or_default();
    format!("{name}{AT}{latency}{guest}")
}

/// The work of the workers.
pub const WORK: &str = "work";
/// The pages that the store brought.
pub const PAGES: &str = "pages";
/// The pages that the tasks wrote.
pub const WRITES: &str = "writes";

/// What one guest counted, in one line.
fn counted(mode: FaultMode, latency: Nanos, did: &Did) -> String {
    let Did { workers, counts } = did;
    let (vcpus, kernels) = (counts.vcpus, counts.kernels);
    let workers = workers.iter().map(|work| readable::count(*work as f64)).collect::<Vec<_>>().join(", ");
    let milliseconds = |time: Nanos| time.get() / 1_000_000;
    format!(
        "{} at {latency}, first seed: workers {workers}; {} faults, {} other exits, {} halts of {} ms together, {} ms \
         idle; {} announced, {} parked, {} declined, {} woken; {} switches",
        mode.name(),
        vcpus.faults,
        vcpus.exits,
        vcpus.halts,
        milliseconds(vcpus.halted),
        milliseconds(vcpus.idle),
        vcpus.announced,
        kernels.parked,
        kernels.declined,
        kernels.woken,
        counts.switches
    )
}
