// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log from outside, in the phases of KVM's `dirty_log_perf_test`: populate; enable; dirty, get and clear
//! repeatedly; disable.
//!
//! Invariant: a checked run fails if a log reports another set of pages than the guest has written. Checked runs are
//! not timed.

mod command;
mod counted;
mod digest;
mod plan;

use anyhow::{Context, bail, ensure};
use twofold_workload::pass::Pass;

use super::record::{Variant, Who, mean, sum};
use super::setup::Setup;
use super::target::{REGION, Taken, Target};
use crate::results::{Quantity, Results};
use crate::stop::Stop;
pub use command::command;
pub use digest::Digest;

/// What the guest does, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Rounds of dirty, get and clear: at least 2.
    pub iterations: u32,
    /// Percentage of accesses that write; the others read. The first pass writes everything.
    pub write_percent: u64,
    /// Whether places are random. The first pass is in order.
    pub random_order: bool,
    /// Seed of the first vCPU's generator; each next vCPU has the next seed. The largest is at most 2^31 - 2. From 0 a
    /// generator stays at 0: each access is a write, and a random place is the first one.
    pub seed: u64,
    /// Whether the guest runs while logging is disabled.
    pub run_while_disabling: bool,
}

/// The costs of one run, by phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The first pass over all memory.
    pub populate: Taken,
    /// Enabling the logs.
    pub enable: Taken,
    /// The rounds.
    pub iterations: Vec<Iteration>,
    /// Disabling the logs.
    pub disable: Taken,
}

/// The costs of one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iteration {
    /// The guest's passes, with its faults.
    pub dirty: Taken,
    /// Getting the logs, and the number of dirty pages.
    pub get: Taken,
    /// Clearing the logs. `None` if getting them has cleared them.
    pub clear: Option<Taken>,
    /// A digest of the reported pages, if the run is checked.
    pub reported: Option<Digest>,
}

/// Whether a run is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The run is timed and not checked.
    No,
    /// The reported pages are compared with the guest's writes, page by page.
    Exactly,
}

impl Load {
    /// The defaults of `dirty_log_perf_test`: two rounds, every access a write, in order.
    pub const DEFAULT: Self =
        Self { iterations: 2, write_percent: 100, random_order: false, seed: 1, run_while_disabling: false };

    /// The first passes of each vCPU, which populate the memory.
    pub(super) fn passes(&self, setup: &Setup) -> anyhow::Result<Vec<Vec<Pass>>> {
        ensure!(self.write_percent <= 100, "{} of 100 pages written", self.write_percent);
        ensure!(self.iterations >= 2, "{} iterations: at least 2 are needed", self.iterations);
        let last = self.seed.checked_add(setup.vcpus as u64);
        ensure!(
            last.is_some_and(|last| last <= LAST_SEED + 1),
            "seed {}: the seeds of all vCPUs must be in 0 to {LAST_SEED}",
            self.seed
        );
        let page = setup.mode.granule.size();
        let pass = |vcpu| {
            let pass = Pass::writes(REGION + setup.region_of(vcpu), setup.region / page, page);
            // The guest's generator cannot be at 0. For the seed 0, `rounds` makes a pass that needs no generator.
            vec![Pass { random: (self.seed + vcpu as u64).max(1), value: VALUE, ..pass }]
        };
        Ok((0..setup.vcpus).map(pass).collect())
    }

    /// Changes the passes into those of a round; the generators continue.
    pub(super) fn rounds(&self, passes: &mut [Vec<Pass>]) {
        for (vcpu, passes) in passes.iter_mut().enumerate() {
            let stands_still = self.seed == 0 && vcpu == 0;
            for pass in passes {
                if !stands_still {
                    (pass.write_percent, pass.random_order) = (self.write_percent, self.random_order.into());
                    continue;
                }
                pass.write_percent = if self.write_percent > 0 { 100 } else { 0 };
                if self.random_order {
                    pass.inner_stride = 0;
                }
            }
        }
    }
}

impl Run {
    /// Measures one run of a guest that has touched no memory yet. `None` if a signal asks the program to end.
    ///
    /// # Errors
    ///
    /// The platform fails, or a log is wrong.
    pub fn measure(
        target: &mut dyn Target,
        setup: &Setup,
        load: &Load,
        check: Check,
        stop: &Stop,
    ) -> anyhow::Result<Option<Self>> {
        let mut passes = load.passes(setup)?;
        let mut run = Self { populate: run_checked(target, &mut passes, check)?, ..Self::default() };
        load.rounds(&mut passes);
        if stop.is_requested() {
            return Ok(None);
        }
        run.enable = target.enable_log()?;
        let (mut all_dirty, page) = (target.starts_dirty(), target.page());
        for number in 1..=load.iterations {
            let expected = (check == Check::Exactly).then(|| Expected::of(setup, &passes, all_dirty, page));
            let dirty = run_checked(target, &mut passes, check)?;
            let get = target.get_log()?;
            let reported = expected.map(|expected| {
                let pages = target.dirty();
                expected.check(&pages).with_context(|| format!("iteration {number}"))?;
                anyhow::Ok(Digest::of(setup.memory() / page, &pages))
            });
            let reported = reported.transpose()?;
            let clear = target.clear_log()?;
            run.iterations.push(Iteration { dirty, get, clear, reported });
            all_dirty = false;
            if stop.is_requested() {
                return Ok(None);
            }
        }
        if load.run_while_disabling {
            target.start(&passes)?;
        }
        let disable = target.disable_log();
        if load.run_while_disabling {
            target.stop()?;
        }
        run.disable = disable?;
        Ok(Some(run))
    }

    /// Adds the run to the results: dirty, get and clear as means over the rounds, as in `dirty_log_perf_test`, and
    /// their sum. With `each`, adds each round too.
    pub fn record(&self, variant: &Variant, results: &mut Results, each: bool) {
        let rounds = &self.iterations;
        variant.add(results, "populate", Who::Guest, &self.populate);
        variant.add(results, "enable", Who::Collector, &self.enable);
        variant.add(results, "dirty", Who::Guest, &mean(rounds.iter().map(|round| &round.dirty).collect::<Vec<_>>()));
        variant.add(results, "get", Who::Collector, &mean(rounds.iter().map(|round| &round.get).collect::<Vec<_>>()));
        let clears: Vec<_> = rounds.iter().filter_map(|round| round.clear.as_ref()).collect();
        if !clears.is_empty() {
            variant.add(results, "clear", Who::Collector, &mean(clears));
        }
        variant.add(results, "iteration", Who::Guest, &mean(&rounds.iter().map(Iteration::whole).collect::<Vec<_>>()));
        variant.add(results, "disable", Who::Collector, &self.disable);
        for (number, round) in rounds.iter().enumerate().filter(|_| each) {
            let number = number + 1;
            variant.add(results, &format!("dirty {number}"), Who::Guest, &round.dirty);
            variant.add(results, &format!("get {number}"), Who::Collector, &round.get);
            if let Some(clear) = &round.clear {
                variant.add(results, &format!("clear {number}"), Who::Collector, clear);
            }
        }
    }
}

impl Iteration {
    /// The sum of guest and collector: a cost that moves between them stays in it.
    fn whole(&self) -> Taken {
        let mut whole = sum([Some(&self.dirty), Some(&self.get), self.clear.as_ref()].into_iter().flatten());
        whole.retain(|quantity, _| matches!(quantity, Quantity::Time | Quantity::CpuTime | Quantity::Instructions));
        whole
    }
}

/// Runs the guest's passes. If checked, the generators must end where the passes lead.
fn run_checked(target: &mut dyn Target, passes: &mut [Vec<Pass>], check: Check) -> anyhow::Result<Taken> {
    let before = (check == Check::Exactly).then(|| passes.to_vec());
    let taken = target.run(passes)?;
    for (vcpu, (before, after)) in before.iter().flatten().zip(&*passes).enumerate() {
        for (before, after) in before.iter().zip(after) {
            let mut accesses = before.accesses();
            accesses.by_ref().for_each(drop);
            ensure!(
                after.random == accesses.random(),
                "vCPU {vcpu} has not completed its passes: its generator is at {}, and should be at {}",
                after.random,
                accesses.random()
            );
        }
    }
    Ok(taken)
}

/// The pages that a log must report.
struct Expected(Vec<bool>);

impl Expected {
    fn of(setup: &Setup, passes: &[Vec<Pass>], all: bool, page: u64) -> Self {
        let mut pages = vec![all; (setup.memory() / page) as usize];
        let writes = passes.iter().flatten().flat_map(Pass::accesses).filter(|access| access.write && !all);
        writes.for_each(|access| pages[((access.va - REGION) / page) as usize] = true);
        Self(pages)
    }

    fn count(&self) -> u64 {
        self.0.iter().filter(|is| **is).count() as u64
    }

    fn check(&self, reported: &[u64]) -> anyhow::Result<()> {
        let mut seen = vec![false; self.0.len()];
        for page in reported {
            let Some(seen) = seen.get_mut(*page as usize) else {
                bail!("the log reports page {page}, which does not exist")
            };
            *seen = true;
        }
        let differ =
            |is: bool| self.0.iter().zip(&seen).filter(|(expected, seen)| **expected == is && **seen != is).count();
        let first = self.0.iter().zip(&seen).position(|(expected, seen)| expected != seen);
        let Some(first) = first else { return Ok(()) };
        bail!(
            "the log is wrong: {} pages were written and are not reported, {} were not written and are; the first is \
             page {first}",
            differ(true),
            differ(false)
        )
    }
}

/// The value that the guest writes.
const VALUE: u64 = 0x5457_4f46_4f4c_4421;
/// The largest seed: the generator's last state.
const LAST_SEED: u64 = (1 << 31) - 2;

#[cfg(test)]
mod tests;
