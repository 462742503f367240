// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log from outside, phase by phase as KVM's `dirty_log_perf_test` has them: populate, enable, then dirty, get and
//! clear over and over, disable.
//!
//! Invariant: a run that is checked ends with an error where a log told of another set of pages than the guest has written. It
//! is not one of those that are timed.

mod command;
mod counted;
mod gains;
mod plan;
mod told;

use anyhow::{Context, bail, ensure};
use twofold_pattern::pass::Pass;

use super::record::{Variant, Who, mean, sum};
use super::setup::Setup;
use super::target::{REGION, Taken, Target};
use crate::results::{Quantity, Results};
use crate::stop::Stop;
pub use command::command;
pub use told::Digest;

/// What the guest does, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Rounds of dirty, get and clear: at least 2.
    pub iterations: u32,
    /// How many of 100 places are written; the others are read. The first time all are.
    pub write_percent: u64,
    /// Whether places are drawn. The first time they are in order.
    pub random_order: bool,
    /// Of the generator of the first vCPU; the next one has the next. Up to 2^31 - 2, for all of them. From 0 a generator gives
    /// nothing but 0: each access is a write, and of places that are drawn it is the first.
    pub seed: u64,
    /// Whether the guest runs on while logging is disabled.
    pub run_while_disabling: bool,
}

/// What a run took, phase by phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The first touch of all memory.
    pub populate: Taken,
    /// The logs' start.
    pub enable: Taken,
    /// Each round.
    pub iterations: Vec<Iteration>,
    /// The logs' end.
    pub disable: Taken,
}

/// What a round took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iteration {
    /// The guest's passes, with its faults.
    pub dirty: Taken,
    /// What the logs took to tell, and how much it was.
    pub get: Taken,
    /// What they took to be cleared; `None` where telling had cleared them.
    pub clear: Option<Taken>,
    /// What the logs told; where the run is checked.
    pub told: Option<Digest>,
}

/// Whether a run is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It is timed alone.
    No,
    /// What the logs told is compared with what the guest wrote, page by page.
    Exactly,
}

impl Load {
    /// As that test has it: two rounds, everything written, in order.
    pub const DEFAULT: Self =
        Self { iterations: 2, write_percent: 100, random_order: false, seed: 1, run_while_disabling: false };

    /// The passes of each vCPU, for the first touch.
    pub(super) fn passes(&self, setup: &Setup) -> anyhow::Result<Vec<Vec<Pass>>> {
        ensure!(self.write_percent <= 100, "{} of 100 pages written", self.write_percent);
        ensure!(self.iterations >= 2, "{} iterations: take 2 at least", self.iterations);
        let last = self.seed.checked_add(setup.vcpus as u64);
        ensure!(
            last.is_some_and(|last| last <= LAST_SEED + 1),
            "a seed of {}: take 0 to {LAST_SEED}, less a vCPU each",
            self.seed
        );
        let page = setup.mode.granule.size();
        let pass = |vcpu| {
            let pass = Pass::writes(REGION + setup.region_of(vcpu), setup.region / page, page);
            // A guest has no generator that stands still; `rounds` has a pass that needs none.
            vec![Pass { random: (self.seed + vcpu as u64).max(1), value: VALUE, ..pass }]
        };
        Ok((0..setup.vcpus).map(pass).collect())
    }

    /// The same for a round; the generators go on.
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
    /// One more, of a guest that has touched nothing. `None`: somebody wants the program to end.
    ///
    /// # Errors
    ///
    /// What the platform says; a log that is not as it should be.
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
            let told = expected.map(|expected| {
                let pages = target.dirty();
                expected.check(&pages).with_context(|| format!("iteration {number}"))?;
                anyhow::Ok(Digest::of(setup.memory() / page, &pages))
            });
            let told = told.transpose()?;
            let clear = target.clear_log()?;
            run.iterations.push(Iteration { dirty, get, clear, told });
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

    /// Adds it to results: of dirty, get and clear the mean over the rounds, as that test has it, and all three together;
    /// with `each` each round's too.
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
    /// Guest and collector together: what is moved from one to the other stays in it.
    fn whole(&self) -> Taken {
        let mut whole = sum([Some(&self.dirty), Some(&self.get), self.clear.as_ref()].into_iter().flatten());
        whole.retain(|quantity, _| matches!(quantity, Quantity::Time | Quantity::CpuTime | Quantity::Instructions));
        whole
    }
}

/// Has the guest do its passes; checked, its generators must be where they belong after that.
fn run_checked(target: &mut dyn Target, passes: &mut [Vec<Pass>], check: Check) -> anyhow::Result<Taken> {
    let before = (check == Check::Exactly).then(|| passes.to_vec());
    let taken = target.run(passes)?;
    for (vcpu, (before, after)) in before.iter().flatten().zip(&*passes).enumerate() {
        for (before, after) in before.iter().zip(after) {
            let mut accesses = before.accesses();
            accesses.by_ref().for_each(drop);
            ensure!(
                after.random == accesses.random(),
                "vCPU {vcpu} has not done what it was told: its generator is at {}, and belongs at {}",
                after.random,
                accesses.random()
            );
        }
    }
    Ok(taken)
}

/// The pages that a log has to tell.
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

    fn check(&self, told: &[u64]) -> anyhow::Result<()> {
        let mut seen = vec![false; self.0.len()];
        for page in told {
            let Some(seen) = seen.get_mut(*page as usize) else {
                bail!("the log tells of page {page}, which is not there")
            };
            *seen = true;
        }
        let differ =
            |is: bool| self.0.iter().zip(&seen).filter(|(expected, seen)| **expected == is && **seen != is).count();
        let first = self.0.iter().zip(&seen).position(|(expected, seen)| expected != seen);
        let Some(first) = first else { return Ok(()) };
        bail!(
            "the log is wrong: {} pages were written and it does not tell of them, {} were not and it does; the first is \
             page {first}",
            differ(true),
            differ(false)
        )
    }
}

/// What is written.
const VALUE: u64 = 0x5457_4f46_4f4c_4421;
/// The last state of the generator.
const LAST_SEED: u64 = (1 << 31) - 2;

#[cfg(test)]
mod tests;
