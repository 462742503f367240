// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The window (source S4, patch 2): for how long a block's entry is invalid while the block is put together again.
//!
//! It is seen from outside. One thread coalesces, another one, on a CPU of its own, reads the entry without pause, and takes
//! the time from its first look that finds no valid descriptor to the first that finds one again. So a window that is shorter
//! than a look may be missed: it counts as one look, which is measured and told.
//!
//! The block's memory is mapped by pages, all of it, on a CPU without FEAT_S2FWB. In the window is the flush, and where the old
//! tables go first, their freeing. A flush is free here while no vCPU is in the guest, as all TLB invalidations of the machine
//! are that nobody has to be waited for; with a vCPU in it a flush takes what the host's `membarrier` takes, which is more than
//! a broadcast TLBI does on hardware. Invariant: a round counts only where the block is there at its end, and all tables below
//! came back.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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
    Access, Attributes, Coalesced, Features, Geometry, Granule, Ipa, Level, Mapped, Pa, Platform, Stage2, Vmid,
};

use super::setup::Coalesce;
use crate::features::TODAY;
use crate::statistics::Quartiles;

/// A guest with one block, and somebody who watches its entry.
pub struct Window {
    stage2: Stage2<FastPlatform>,
    frames: Frames,
    level: Level,
    /// Where the block's entry is.
    entry: Pa,
    _inside: Option<FastVcpu>,
    arena: Arc<Arena>,
    cpus: [usize; 2],
}

/// Who is in the guest meanwhile, and has to be waited for by each flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Flushes are free.
    Nobody,
    /// They take what this host takes for a barrier on all CPUs.
    OneVcpu,
}

/// What a run of rounds came to: medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Nanoseconds for which the entry was invalid.
    pub invalid: f64,
    /// Nanoseconds of the whole rebuild.
    pub rebuild: f64,
    /// Nanoseconds from one look at the entry to the next.
    pub look: f64,
    /// Rounds in which the watcher saw nothing: the window was shorter than a look, or the watcher had no CPU.
    pub missed: u32,
}

impl Window {
    /// With a block of this level, 1 or 2.
    ///
    /// # Errors
    ///
    /// There is one CPU only, or no memory.
    pub fn new(level: Level, inside: Inside) -> anyhow::Result<Self> {
        let cpus = two_cpus().context("the window is watched from a second CPU, and there is only one here")?;
        ensure!((Level::L1..=Level::L2).contains(&level), "there are no blocks of level {level:?}");
        let options =
            ArenaOptions { sparse: 2 * GIB, tables: Some(TABLES), ..ArenaOptions::new(TABLES, Backing::Anonymous) };
        let arena = Arc::new(Arena::new(&options)?);
        let machine = FastMachine::new(Arc::clone(&arena), FEATURES, 1)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let geometry = Geometry::new(Granule::KIB_4, 40, &FEATURES)?;
        let mut frames = Frames::new(FEATURES);
        frames.add(arena.donate());
        let root = frames.take_root(&geometry).context("there is no memory for a root table")??;
        let stage2 = Stage2::new(platform, FEATURES, geometry, Vmid::new(1), root)?;
        stage2.platform().load_vttbr(stage2.vttbr());
        let mapped = stage2.map(IPA, MEMORY, level, &RAM, &mut frames)?;
        ensure!(mapped == Mapped::New, "the block was mapped already");
        let entry = entry(&arena, &stage2, level)?;
        let inside = match inside {
            Inside::Nobody => None,
            Inside::OneVcpu => Some(enter(&machine, &stage2)?),
        };
        Ok(Self { stage2, frames, level, entry, _inside: inside, arena, cpus })
    }

    /// So many rounds: the block is split, and put together again in this order.
    ///
    /// # Errors
    ///
    /// A round does not end as it should.
    pub fn run(&mut self, order: Coalesce, rounds: u32) -> anyhow::Result<Run> {
        let (arena, watch) = (Arc::clone(&self.arena), Watch::default());
        let (watch, entry) = (&watch, arena.word(self.entry).context("the entry is outside of the arena")?);
        let [here, there] = self.cpus;
        let before = sched_getaffinity(None)?;
        pin(here)?;
        let (mut invalid, mut rebuild, mut missed) = (Vec::new(), Vec::new(), 0);
        let run = thread::scope(|scope| {
            let watcher = scope.spawn(move || pin(there).map(|()| watch.serve(entry)));
            let run = (1..=rounds).try_for_each(|round| {
                self.split()?;
                watch.expect(round);
                let start = Instant::now();
                let done = self.coalesce(order);
                rebuild.push(start.elapsed().as_nanos() as f64);
                watch.end(round);
                done?;
                match watch.seen(round) {
                    0 => missed += 1,
                    seen => invalid.push(seen as f64),
                }
                anyhow::Ok(())
            });
            watch.stop();
            let look = watcher.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
            run.and(look)
        });
        sched_setaffinity(None, &before)?;
        let look = run?;
        // What was missed took no longer than a look.
        invalid.extend((0..missed).map(|_| look));
        let median = |ns: Vec<f64>| Quartiles::of(ns).median;
        Ok(Run { invalid: median(invalid), rebuild: median(rebuild), look, missed })
    }

    fn split(&mut self) -> anyhow::Result<()> {
        let range = IPA..IPA + self.span();
        let split = self.stage2.split(range, self.span(), &mut self.frames, |_, _| ControlFlow::Continue(()))?;
        ensure!(split.stopped.is_none(), "there are too few table pages to split the block");
        Ok(())
    }

    fn coalesce(&mut self, order: Coalesce) -> anyhow::Result<()> {
        let (stage2, level, tables) = (&self.stage2, self.level, &mut self.frames);
        let done = match order {
            Coalesce::InstallFirst => stage2.coalesce(IPA, MEMORY, level, &RAM, tables, &mut |_| ())?,
            Coalesce::FreeFirst => stage2.coalesce_freeing_first(IPA, MEMORY, level, &RAM, tables, &mut |_| ())?,
        };
        let below = if level == Level::L1 { 513 } else { 1 };
        ensure!(
            done == Coalesced::Done { tables: below },
            "the block did not take the place of {below} tables: {done:?}"
        );
        let leaf = stage2.look_up(IPA).context("the block is not there")?;
        ensure!(leaf.level == level, "the block is of level {:?}", leaf.level);
        Ok(())
    }

    fn span(&self) -> u64 {
        self.stage2.geometry().granule().span(self.level)
    }
}

/// What the two threads tell each other. Each round has a number, from 1 on.
#[derive(Default)]
struct Watch {
    /// The round that is to be watched.
    asked: AtomicU32,
    /// The one that is watched.
    watched: AtomicU32,
    /// The last one that is over.
    ended: AtomicU32,
    /// The last one whose time is known.
    told: AtomicU32,
    /// Its time in nanoseconds; 0: nothing was seen.
    time: AtomicU64,
    stopped: AtomicBool,
}

impl Watch {
    /// The watcher's work; how long a look takes it.
    fn serve(&self, entry: &AtomicU64) -> f64 {
        let look = time_of_a_look(entry);
        let mut round = 0;
        while !self.stopped.load(Ordering::Acquire) {
            if self.asked.load(Ordering::Acquire) == round {
                std::hint::spin_loop();
                continue;
            }
            round += 1;
            self.watched.store(round, Ordering::Release);
            self.time.store(self.watch(entry, round), Ordering::Relaxed);
            self.told.store(round, Ordering::Release);
        }
        look
    }

    /// Nanoseconds for which the entry is invalid; 0 if it is not until the round's end.
    fn watch(&self, entry: &AtomicU64, round: u32) -> u64 {
        while is_valid(entry) {
            if self.ended.load(Ordering::Relaxed) == round {
                return 0;
            }
        }
        let start = Instant::now();
        while !is_valid(entry) {}
        (start.elapsed().as_nanos() as u64).max(1)
    }

    /// Has the watcher look, and waits until it does.
    fn expect(&self, round: u32) {
        self.asked.store(round, Ordering::Release);
        while self.watched.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        // It has told so one look before it looks.
        (0..LOOKS).for_each(|_| std::hint::spin_loop());
    }

    fn end(&self, round: u32) {
        self.ended.store(round, Ordering::Release);
    }

    /// What it saw.
    fn seen(&self, round: u32) -> u64 {
        while self.told.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        self.time.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

#[inline(always)]
fn is_valid(entry: &AtomicU64) -> bool {
    const VALID: u64 = 1;
    entry.load(Ordering::Acquire) & VALID != 0
}

/// Nanoseconds from one look to the next, with what takes the time.
fn time_of_a_look(entry: &AtomicU64) -> f64 {
    let start = Instant::now();
    let valid = (0..LOOKS).filter(|_| is_valid(entry)).count();
    std::hint::black_box(valid);
    // What an `Instant` takes is in each window once.
    let looks = start.elapsed().as_nanos() as f64 / f64::from(LOOKS);
    let start = Instant::now();
    (0..LOOKS).for_each(|_| {
        std::hint::black_box(Instant::now());
    });
    looks + start.elapsed().as_nanos() as f64 / f64::from(LOOKS)
}

/// The word that holds the block's descriptor, or that of the table in its place.
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

/// A vCPU in the guest, with something in its TLB.
fn enter(machine: &Arc<FastMachine>, stage2: &Stage2<FastPlatform>) -> anyhow::Result<FastVcpu> {
    let mut vcpu = FastVcpu::new(machine, 0, (stage2.vttbr(), stage2.vtcr()), Arc::new(Interrupts::new()))?;
    match vcpu.run(&mut Touch) {
        Ok(Ended) => Ok(vcpu),
        Err(exit) => bail!("the guest was left: {exit:?}"),
    }
}

/// The guest's program: it reads a word, and has its TLB loaded by that.
struct Touch;

impl Program for Touch {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        cpu.load(IPA.raw()).map(|_| Ended)
    }
}

/// Two CPUs that this process may use, if it may use two.
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

/// As [`TODAY`], but caches have to be cleaned.
const FEATURES: Features = Features { forced_write_back: false, ..TODAY };
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
const GIB: u64 = 1 << 30;
/// Where the guest has the block.
const IPA: Ipa = Ipa::new(0x4000_0000);
/// Where its memory is: behind the tables, at the next multiple of its size.
const MEMORY: Pa = Pa::new(2 * GIB);
/// Bytes for tables: 513, the root, one of level 2.
const TABLES: u64 = 8 << 20;
const LOOKS: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// How long it is, is nobody's promise; that it is there, and inside of the rebuild, is.
    #[test]
    fn the_window_is_seen_and_shorter_than_the_rebuild() {
        if two_cpus().is_none() {
            println!("not run: this machine has one CPU");
            return;
        }
        for (level, inside) in [(Level::L1, Inside::OneVcpu), (Level::L2, Inside::Nobody)] {
            let mut window = Window::new(level, inside).unwrap();
            for order in [Coalesce::FreeFirst, Coalesce::InstallFirst] {
                let run = window.run(order, 20).unwrap();
                println!("{level:?} {order:?}: {run:?}");
                assert!(run.invalid > 0.0 && run.invalid <= run.rebuild + run.look, "{run:?}");
            }
        }
        // All of 1 GiB's tables are freed in the one window, and none in the other: on any machine it is shorter.
        let mut window = Window::new(Level::L1, Inside::Nobody).unwrap();
        let [free, install] = [Coalesce::FreeFirst, Coalesce::InstallFirst].map(|order| window.run(order, 20).unwrap());
        println!("{free:?} {install:?}");
        assert!(install.invalid < free.invalid, "{install:?} {free:?}");
    }
}
