// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The window (Wang 2021, patch 2): how long a block's entry is invalid while the block is coalesced.
//!
//! One thread coalesces. A watcher thread, on another CPU, reads the entry without pause, and measures the time from
//! its first read of an invalid descriptor to its next read of a valid one. A window shorter than one look may be
//! missed. A missed window counts as one look, whose time is measured and reported. If either thread loses its CPU in a
//! round, the round is left out and counted, because a watcher that does not run sees no window at all.
//!
//! All of the block's memory is mapped by pages, on a CPU without FEAT_S2FWB. The window contains the flush and, in the
//! baseline, the freeing of the old tables. A flush is free while no vCPU is in the guest, because the machine's TLB
//! invalidations wait only for running vCPUs. With a vCPU in the guest, a flush costs the host's `membarrier`, which is
//! more than a broadcast TLBI costs on hardware.
//!
//! Invariant: a round counts only if the block is mapped at its end, and all tables below it were returned.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform, FastVcpu};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_memory::Frames;
use twofold_stage2::{
    Access, Attributes, Coalesced, Features, Geometry, Ipa, Kib4, Level, Mapped, Pa, Platform, Stage2, Vmid,
};

use self::watch::{Seen, Watch, switches};
use crate::features::TODAY;
use crate::statistics::Quartiles;
use twofold_workload::policies::Coalesce;

mod watch;

/// A guest with one block, and a watcher of the block's entry.
pub struct Window {
    stage2: Stage2<FastPlatform>,
    frames: Frames,
    level: Level,
    /// The address of the block's entry.
    entry: Pa,
    _inside: Option<FastVcpu>,
    arena: Arc<Arena>,
    cpus: [usize; 2],
}

/// Whether a vCPU is in the guest, which each flush must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// No vCPU: flushes are free.
    NoVcpu,
    /// One vCPU: a flush costs the host's barrier on all CPUs.
    OneVcpu,
}

/// The result of a run: medians of the undisturbed rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The medians. `None` if every round was disturbed.
    pub times: Option<Times>,
    /// Nanoseconds from one look at the entry to the next.
    pub look: f64,
    /// Counted rounds in which the watcher saw nothing: the window was shorter than a look.
    pub missed: u32,
    /// Rounds that are left out because one of the two threads lost its CPU.
    pub disturbed: u32,
}

/// Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Time in which the entry was invalid.
    pub invalid: f64,
    /// Time of the whole rebuild.
    pub rebuild: f64,
}

impl Window {
    /// A window with a block of this level, 1 or 2.
    ///
    /// # Errors
    ///
    /// There is only one CPU, or too little memory.
    pub fn new(level: Level, inside: Inside) -> anyhow::Result<Self> {
        let cpus = two_cpus().context("the window is watched from a second CPU, and there is only one here")?;
        ensure!((Level::L1..=Level::L2).contains(&level), "there are no blocks of level {level:?}");
        let options =
            ArenaOptions { sparse: 2 * GIB, tables: Some(TABLES), ..ArenaOptions::new(TABLES, Backing::Anonymous) };
        let arena = Arc::new(Arena::new(&options)?);
        let machine = FastMachine::new(Arc::clone(&arena), FEATURES, 1)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let geometry = Geometry::new(Kib4, 40, &FEATURES)?;
        let mut frames = Frames::new(FEATURES);
        frames.add(arena.donate());
        let root = frames.take_root(&geometry).context("there is no memory for a root table")??;
        let stage2 = Stage2::new(platform, FEATURES, geometry, Vmid::new(1), root)?;
        stage2.platform().load_vttbr(stage2.vttbr());
        let mapped = stage2.open(memory(level), IPA).map(level, &RAM, &mut frames)?;
        ensure!(mapped == Mapped::New, "the block was mapped already");
        let entry = entry(&arena, &stage2, level)?;
        let inside = match inside {
            Inside::NoVcpu => None,
            Inside::OneVcpu => Some(enter(&machine, &stage2)?),
        };
        Ok(Self { stage2, frames, level, entry, _inside: inside, arena, cpus })
    }

    /// Runs `rounds` rounds. Each splits the block, and coalesces it again in this order.
    ///
    /// # Errors
    ///
    /// A round ends in a wrong state.
    pub fn run(&mut self, order: Coalesce, rounds: u32) -> anyhow::Result<Run> {
        let (arena, watch) = (Arc::clone(&self.arena), Watch::default());
        let (watch, entry) = (&watch, arena.word(self.entry).context("the entry is outside of the arena")?);
        let [here, there] = self.cpus;
        let before = sched_getaffinity(None)?;
        pin(here)?;
        let (mut invalid, mut rebuild, mut missed, mut disturbed) = (Vec::new(), Vec::new(), 0, 0);
        let run = thread::scope(|scope| {
            let watcher = scope.spawn(move || pin(there).map(|()| watch.serve(entry)));
            let run = (1..=rounds).try_for_each(|round| {
                self.split()?;
                let switched = switches();
                watch.expect(round);
                let start = Instant::now();
                let done = self.coalesce(order);
                let took = start.elapsed().as_nanos() as f64;
                watch.end(round);
                done?;
                match (watch.seen(round), switches() == switched) {
                    (Seen::Lost, _) | (_, false) => {
                        disturbed += 1;
                        return Ok(());
                    }
                    (Seen::Nothing, true) => missed += 1,
                    (Seen::For(ns), true) => invalid.push(ns.get() as f64),
                }
                rebuild.push(took);
                anyhow::Ok(())
            });
            watch.stop();
            let look = watcher.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
            run.and(look)
        });
        sched_setaffinity(None, &before)?;
        let look = run?;
        // A missed window was no longer than a look.
        invalid.extend((0..missed).map(|_| look));
        let median = |ns: Vec<f64>| Quartiles::of(ns).median;
        let times = (!rebuild.is_empty()).then(|| Times { invalid: median(invalid), rebuild: median(rebuild) });
        Ok(Run { times, look, missed, disturbed })
    }

    fn split(&mut self) -> anyhow::Result<()> {
        let range = IPA..IPA + self.span();
        let split = self.stage2.split(range, self.span(), &mut self.frames, |_, _| ControlFlow::Continue(()))?;
        ensure!(split.stopped.is_none(), "there are too few table pages to split the block");
        Ok(())
    }

    fn coalesce(&mut self, order: Coalesce) -> anyhow::Result<()> {
        let (stage2, level, tables) = (&self.stage2, self.level, &mut self.frames);
        let grant = stage2.open(memory(level), IPA);
        let done = match order {
            Coalesce::InstallFirst => grant.coalesce(level, &RAM, tables, &mut |_| ())?,
            Coalesce::FreeFirst => grant.coalesce_freeing_first(level, &RAM, tables, &mut |_| ())?,
        };
        let below = if level == Level::L1 { 513 } else { 1 };
        ensure!(done == Coalesced::Done { tables: below }, "the block did not replace {below} tables: {done:?}");
        let leaf = stage2.look_up(IPA).context("the block is not mapped")?;
        ensure!(leaf.level == level, "the block is of level {:?}", leaf.level);
        Ok(())
    }

    fn span(&self) -> u64 {
        self.stage2.geometry().granule().span(self.level)
    }
}

/// The address of the block's descriptor, or of the table descriptor in its place.
fn entry(arena: &Arena, stage2: &Stage2<FastPlatform>, level: Level) -> anyhow::Result<Pa> {
    const TABLE: u64 = 0xffff_ffff_f000;
    let geometry = stage2.geometry();
    let mut table = Pa::new(stage2.vttbr() & TABLE & !1);
    let mut at = geometry.root_level();
    loop {
        let entry = table + geometry.index(IPA, at) as u64 * 8;
        if at == level {
            return Ok(entry);
        }
        let word = arena.load(entry).context("a table is outside of the arena")?;
        table = Pa::new(word & TABLE);
        at = at.below().context("the block has no entry")?;
    }
}

/// A vCPU in the guest, with an entry in its TLB.
fn enter(machine: &Arc<FastMachine>, stage2: &Stage2<FastPlatform>) -> anyhow::Result<FastVcpu> {
    let mut vcpu = FastVcpu::new(machine, 0, (stage2.vttbr(), stage2.vtcr()), Arc::new(Interrupts::new()))?;
    match vcpu.run(&mut Touch) {
        Ok(Ended) => Ok(vcpu),
        Err(exit) => bail!("the guest exited: {exit:?}"),
    }
}

/// The guest's program: it reads a word, which fills its TLB.
struct Touch;

impl Program for Touch {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        cpu.load(IPA.raw()).map(|_| Ended)
    }
}

/// Two CPUs that this process may use. `None` if there is only one.
fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([cpus.next()?, cpus.next()?])
}

fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// As [`TODAY`], without forced write-back.
const FEATURES: Features = TODAY.with_forced_write_back(false);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
const GIB: u64 = 1 << 30;
/// The block's memory.
fn memory(level: Level) -> twofold_stage2::Window {
    // SAFETY: this part of the arena was not donated, and only the vCPU uses it.
    unsafe { twofold_stage2::Window::new(MEMORY, Kib4.span(level)) }
}

/// The IPA of the block.
const IPA: Ipa = Ipa::new(0x4000_0000);
/// The address of the block's memory: after the tables, at the next multiple of its size.
const MEMORY: Pa = Pa::new(2 * GIB);
/// Bytes for tables: 513 below the block, the root, one of level 2.
const TABLES: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// No test checks the length of the window, because other work on the machine can change it. `run` checks the
    /// outcome of each round. Tests of the engine check that install-first frees nothing while the entry is invalid.
    #[test]
    fn each_round_puts_the_block_together_again() {
        const ROUNDS: u32 = 5;
        if two_cpus().is_none() {
            println!("not run: this machine has one CPU");
            return;
        }
        for (level, inside) in [(Level::L1, Inside::NoVcpu), (Level::L1, Inside::OneVcpu), (Level::L2, Inside::NoVcpu)]
        {
            let mut window = Window::new(level, inside).unwrap();
            for order in [Coalesce::FreeFirst, Coalesce::InstallFirst] {
                let run = window.run(order, ROUNDS).unwrap();
                assert!(run.missed + run.disturbed <= ROUNDS, "{run:?}");
                assert_eq!(run.times.is_none(), run.disturbed == ROUNDS, "{level:?} {order:?}: {run:?}");
                let leaf = window.stage2.look_up(IPA).unwrap();
                assert_eq!(leaf.level, level);
            }
        }
    }
}
