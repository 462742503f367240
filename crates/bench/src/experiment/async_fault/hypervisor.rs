// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan on the hypervisor: in each run each mode boots each guest once.
//!
//! Invariant: the modes of a guest at a latency are in the results together or not at all, so runs of the same index were
//! taken in the same turn.

use std::time::Duration;

use anyhow::Context;
use twofold_launch::async_fault::Bm as Launched;
use twofold_launch::swap::Mode;
use twofold_machine::tasks::Nanos;

use super::measure::{Score, record};
use super::plan::{Bm, Plan};
use crate::experiment::hypervisor::{Hypervisor, LinuxImages};
use crate::experiment::progress::Progress;
use crate::options::{BmGuest, FaultMode};
use crate::results::{Kind, Platform, Results};
use crate::stop::Stop;

/// What runs a guest on the hypervisor.
pub struct Guests {
    hypervisor: Hypervisor,
    /// If a Linux runs.
    linux: Option<LinuxImages>,
}

impl Guests {
    /// Finds QEMU and the images.
    ///
    /// # Errors
    ///
    /// There is no QEMU, or an image is missing and cannot be built.
    pub fn find(
        directory: Option<&std::path::Path>,
        guests: &[BmGuest],
        stop: &Stop,
        doing: impl Fn(&str),
    ) -> anyhow::Result<Self> {
        let hypervisor = Hypervisor::find(directory, stop, &doing)?;
        let has_linux = guests.contains(&BmGuest::Linux);
        let linux = if has_linux { Some(LinuxImages::find(directory, doing)?) } else { None };
        Ok(Self { hypervisor, linux })
    }

    /// Runs `bm` once.
    ///
    /// # Errors
    ///
    /// The hypervisor or the guest failed.
    pub fn run(&self, bm: &Bm, guest: BmGuest, mode: FaultMode, latency: Nanos) -> anyhow::Result<Score> {
        let launched = Launched {
            vcpus: u32::try_from(bm.vcpus)?,
            faulting: bm.faulting,
            workers: bm.workers,
            bytes: bm.bytes,
            memory: bm.memory(),
            resident: bm.limit,
            time: Duration::from_nanos(bm.time.get()),
        };
        let linux = match guest {
            BmGuest::Bare => None,
            BmGuest::Linux => Some(self.linux.as_ref().context("there is no Linux")?),
        };
        let delay = Duration::from_nanos(latency.get());
        let done = self.hypervisor.bm(&launched, linux, launch_mode(mode), delay)?;
        let kind = if bm.vcpus == 1 { Kind::Counted } else { Kind::Emulated };
        Ok(Score { platform: Platform::Hypervisor, kind, guest: Some(guest), work: done.work, pages: done.writes })
    }

    /// Adds what a reader of the figures needs to know.
    pub fn describe(&self, results: &mut Results) {
        self.hypervisor.describe_machine(results);
    }
}

/// Measures the plan. If a signal ends it, the results have the complete turns.
///
/// # Errors
///
/// A platform or an image is missing, or a guest failed.
pub fn results(plan: &Plan, progress: &Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results { notes: plan.notes(), ..Results::begin() };
    let guests = Guests::find(plan.images.as_deref(), &plan.guests, stop, |what| progress.doing(what))?;
    guests.describe(&mut results);
    for run in 1..=plan.runs {
        for guest in &plan.guests {
            for latency in &plan.latencies {
                let mut taken = Vec::new();
                for mode in &plan.modes {
                    let (name, runs) = (format!("{}, {}, {latency}", guest.name(), mode.name()), plan.runs);
                    progress.doing(format!("{name}, run {run} of {runs}"));
                    let score = guests.run(&plan.bm, *guest, *mode, *latency);
                    if stop.is_requested() {
                        results.interrupted = true;
                        return Ok(results);
                    }
                    taken.push((*mode, score.context(name)?));
                    progress.done();
                }
                for (mode, score) in &taken {
                    record(&mut results, &plan.bm, *mode, *latency, score);
                }
            }
        }
    }
    Ok(results)
}

const fn launch_mode(mode: FaultMode) -> Mode {
    match mode {
        FaultMode::Off => Mode::Off,
        FaultMode::Halt => Mode::Halt,
        FaultMode::Pv => Mode::Pv,
    }
}
