// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two CPUs at work on one guest's tables: how much the second CPU gains.
//!
//! Each row is a ratio of two rates of one run, in wall-clock time. Each thread has a CPU and a pool of its own. A run
//! during which another process had one of the CPUs is discarded and repeated. Invariant: both sides of a ratio do the
//! same work from the same start, and the result is checked.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use twofold_stage2::{Access, Attributes, Granule, Level, Stage2};

use super::arena::{Arena, TABLES};
use super::guest::{
    Failure, GIB, Pool, block, grant, ipa, map_page, mapped_bytes, pool, scattered, table_pages, tables,
};
use super::platform::{FEATURES, Shared};
use super::row::sized;
use crate::clock::Moment;
use crate::statistics::Spread;

/// A row: its name, its target, and a function that measures it once.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The target of the ratio.
    pub target: f64,
    /// The least bytes of a guest that the row can work on.
    least: u64,
    run: fn(Arena, u64, [usize; 2]) -> Result<Once, Failure>,
}

/// Returns the rows for a guest of `size` bytes, in the order in which they are printed.
pub fn rows<G: Granule>(size: u64) -> impl Iterator<Item = &'static Row> {
    let rows: &'static [Row] = const {
        &[
            Row::of_map(sized!("disjoint_"), 1.9, |arena, size, cpus| map::<G>(arena, size, cpus, G::ENTRIES as u64)),
            Row::of_map("sections", 1.5, |arena, size, cpus| map::<G>(arena, size, cpus, 64)),
            Row::of_map("pages", 1.0, |arena, size, cpus| map::<G>(arena, size, cpus, 1)),
            Row {
                name: "faults_beside_maintenance",
                target: 0.7,
                least: piece::<G>(),
                run: faults_beside_maintenance::<G>,
            },
        ]
    };
    rows.iter().filter(move |row| row.least <= size)
}

/// One run of a row: with one thread, and with two.
#[derive(Clone, Copy, Debug)]
pub struct Once {
    one: Side,
    two: Side,
}

/// One side of a ratio.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Nanoseconds per page.
    ns: f64,
    /// The share of its wall-clock time during which a thread had its CPU; the smallest of the threads' shares.
    share: f64,
}

/// A row's figures.
#[derive(Debug, Serialize)]
pub struct Measured {
    name: &'static str,
    /// The median of the runs' ratios: the rate of two threads, or of one beside another, divided by the rate of one
    /// alone.
    ratio: f64,
    min: f64,
    max: f64,
    /// Nanoseconds per page of one thread.
    one: f64,
    /// Nanoseconds per page of two threads.
    two: f64,
    /// The target of the ratio.
    #[serde(skip)]
    target: f64,
    /// The smallest share of a CPU that a thread had.
    #[serde(skip)]
    share: f64,
}

impl Measured {
    /// Summarizes the runs of a row; `None` if there are none.
    pub fn of(row: &Row, runs: &[Once]) -> Option<Self> {
        let spread = |of: fn(&Once) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
        let Spread { median, min, max } = spread(|run| run.one.ns / run.two.ns)?;
        let (one, two) = (spread(|run| run.one.ns)?.median, spread(|run| run.two.ns)?.median);
        let share = spread(|run| run.one.share.min(run.two.share))?.min;
        Some(Self { name: row.name, ratio: median, min, max, one, two, target: row.target, share })
    }

    /// Returns its name; the ratio, its minimum and maximum, and the target; nanoseconds; the share.
    pub fn cells(&self) -> (&'static str, [f64; 4], [f64; 2], f64) {
        (self.name, [self.ratio, self.min, self.max, self.target], [self.one, self.two], self.share)
    }
}

impl Row {
    /// Makes a row that maps pages.
    const fn of_map(name: &'static str, target: f64, run: fn(Arena, u64, [usize; 2]) -> Result<Once, Failure>) -> Self {
        Self { name, target, least: 0, run }
    }

    /// Runs the row once.
    pub fn once(&self, arena: Arena, size: u64, cpus: [usize; 2]) -> Result<Once, Failure> {
        (self.run)(arena, size, cpus)
    }
}

/// Returns two CPUs that this process may run on, if there are two.
pub fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([cpus.next()?, cpus.next()?])
}

/// Returns the bytes of an arena with two pools, each large enough for all tables, because one thread may take all.
pub fn arena_bytes<G: Granule>(size: u64) -> Result<u64, Failure> {
    Ok(pool::<G>() - TABLES + 2 * pool_bytes::<G>(size)?)
}

fn pool_bytes<G: Granule>(size: u64) -> Result<u64, Failure> {
    Ok((table_pages::<G>(size)? + SPARE) * G::SIZE)
}

/// Pages that a thread takes and gives back because the other thread has installed its table first.
const SPARE: u64 = 16;

const WRITABLE: Attributes = Attributes::ram(Access::READ_WRITE);
const READABLE: Attributes = Attributes::ram(Access::READ);

/// Tables for two threads.
struct Slot<G: Granule> {
    stage2: Stage2<Shared, G>,
    pools: [Pool<G>; 2],
    size: u64,
}

impl<G: Granule> Slot<G> {
    fn new(arena: Arena, size: u64) -> Result<Self, Failure> {
        let bytes = pool_bytes::<G>(size)?;
        let pool = |number| Pool::new(FEATURES, pool::<G>() + number * bytes, bytes);
        Ok(Self { stage2: tables(Shared::new(arena), FEATURES)?, pools: [pool(0), pool(1)], size })
    }

    /// Checks that everything is mapped and, with `leaves`, that all leaves are such.
    fn check(&self, leaves: Option<(Level, Attributes)>) -> Result<(), Failure> {
        if mapped_bytes(&self.stage2, self.size, leaves)? == self.size {
            Ok(())
        } else {
            Err(Failure::Unexpected("threads lost each other's pages"))
        }
    }
}

/// Maps all pages, one a call: by one thread, and by two that alternate every `turn` pages.
fn map<G: Granule>(arena: Arena, size: u64, cpus: [usize; 2], turn: u64) -> Result<Once, Failure> {
    let run = |threads: u64| -> Result<Side, Failure> {
        let mut slot = Slot::<G>::new(arena, size)?;
        let (stage2, pages) = (&slot.stage2, size / G::SIZE);
        let share = |pool: &mut Pool<G>, thread: u64| {
            for first in (thread * turn..pages).step_by((threads * turn) as usize) {
                for page in first..first + turn {
                    map_page(stage2, pool, page, &WRITABLE)?;
                }
            }
            Ok(())
        };
        let jobs = slot.pools.iter_mut().zip(0..threads).map(|(pool, thread)| job(move || share(pool, thread)));
        let times = at_once(cpus, jobs.collect())?;
        slot.check(Some((Level::L3, WRITABLE)))?;
        Ok(Side { ns: times.whole() / pages as f64, share: times.share() })
    };
    Ok(Once { one: undisturbed(|| run(1))?, two: undisturbed(|| run(2))? })
}

/// One thread answers faults all over the slot: alone, and beside a thread that write-protects and splits the same slot
/// without pause, as dirty logging does.
fn faults_beside_maintenance<G: Granule>(arena: Arena, size: u64, cpus: [usize; 2]) -> Result<Once, Failure> {
    let run = |beside: bool| -> Result<Side, Failure> {
        let mut slot = Slot::<G>::new(arena, size)?;
        let [faults, maintenance] = &mut slot.pools;
        for (region, number) in (0..size / block::<G>()).map(|number| (Region::of(number), number)) {
            let (first, level) =
                (number * G::ENTRIES as u64, if region == Region::Block { Level::L2 } else { Level::L3 });
            if region != Region::Unmapped {
                grant(&slot.stage2, first, block::<G>()).map_range(level, &READABLE, maintenance)?;
            }
        }
        let (stage2, over) = (&slot.stage2, AtomicBool::new(false));
        let mut jobs = vec![job(|| {
            let answered = answer_faults(stage2, faults, size / G::SIZE);
            over.store(true, Ordering::Relaxed);
            answered
        })];
        if beside {
            jobs.push(job(|| maintain(stage2, maintenance, size, &over)));
        }
        let times = at_once(cpus, jobs)?;
        slot.check(None)?;
        Ok(Side { ns: times.first() / (size / G::SIZE) as f64, share: times.share() })
    };
    Ok(Once { one: undisturbed(|| run(false))?, two: undisturbed(|| run(true))? })
}

/// The first state of a block of level 2 of the slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Region {
    /// Not mapped: each page's first access is a translation fault.
    Unmapped,
    /// Write-protected pages: each page's first write is a permission fault.
    Protected,
    /// A write-protected block, which the maintenance splits and coalesces.
    Block,
}

impl Region {
    /// Half of the slot is not mapped, an eighth is blocks, and the rest is pages.
    fn of(number: u64) -> Self {
        match number % 8 {
            7 => Self::Block,
            number if number.is_multiple_of(2) => Self::Unmapped,
            _ => Self::Protected,
        }
    }
}

/// Answers one fault a page.
fn answer_faults<G: Granule>(stage2: &Stage2<Shared, G>, pool: &mut Pool<G>, pages: u64) -> Result<(), Failure> {
    for page in (0..pages).map(|page| scattered(page, pages)) {
        if Region::of(page / G::ENTRIES as u64) == Region::Unmapped {
            map_page(stage2, pool, page, &WRITABLE)?;
        } else {
            // An earlier fault may have made the block writable.
            let _ = stage2.relax(ipa::<G>(page), Access::READ_WRITE)?;
        }
    }
    Ok(())
}

/// Bytes that the maintenance works on at a time: 1 GiB, or as much as has one of the blocks that it splits.
const fn piece<G: Granule>() -> u64 {
    if 8 * block::<G>() > GIB { 8 * block::<G>() } else { GIB }
}

/// Write-protects and splits the slot, a piece at a time, and coalesces the blocks again, until it is `over`.
fn maintain<G: Granule>(
    stage2: &Stage2<Shared, G>,
    pool: &mut Pool<G>,
    size: u64,
    over: &AtomicBool,
) -> Result<(), Failure> {
    let pages = piece::<G>() / G::SIZE;
    for first in (0..size / G::SIZE).step_by(pages as usize).cycle() {
        let range = ipa::<G>(first)..ipa::<G>(first + pages);
        stage2.write_protect(range.clone())?.complete().free(pool);
        let split = stage2.split(range, GIB, pool, |_, _| ControlFlow::Continue(()))?;
        if split.blocks == 0 || split.stopped.is_some() {
            return Err(Failure::Unexpected("the maintenance ran out of blocks or of pages"));
        }
        for first in (first..first + pages).step_by(G::ENTRIES) {
            if Region::of(first / G::ENTRIES as u64) == Region::Block {
                let _ = grant(stage2, first, block::<G>()).coalesce(Level::L2, &READABLE, pool, &mut |_| ())?;
            }
        }
        if over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

/// The work of a thread.
type Job<'a> = Box<dyn FnOnce() -> Result<(), Failure> + Send + 'a>;

fn job<'a>(job: impl FnOnce() -> Result<(), Failure> + Send + 'a) -> Job<'a> {
    Box::new(job)
}

/// Repeats `run` until no other process had the CPUs meanwhile. After `MOST_ATTEMPTS` it returns the run with the
/// largest share.
fn undisturbed(run: impl Fn() -> Result<Side, Failure>) -> Result<Side, Failure> {
    let mut best = run()?;
    for _ in 1..MOST_ATTEMPTS {
        if best.share >= ALONE {
            break;
        }
        let next = run()?;
        if next.share > best.share {
            best = next;
        }
    }
    Ok(best)
}

const MOST_ATTEMPTS: u32 = 10;
/// The share of a CPU of a thread that has it alone; interrupts take the rest.
const ALONE: f64 = 0.99;

/// When a thread began and ended, and its CPU time in nanoseconds.
struct Time {
    start: Instant,
    end: Instant,
    cpu: f64,
}

/// The times of all threads.
struct Times(Vec<Time>);

impl Times {
    /// Returns the nanoseconds of the first thread.
    fn first(&self) -> f64 {
        self.0.first().map_or(0.0, |time| nanoseconds(time.start, time.end))
    }

    /// Returns the nanoseconds from the first thread's start to the last thread's end.
    fn whole(&self) -> f64 {
        let (start, end) = (self.0.iter().map(|time| time.start).min(), self.0.iter().map(|time| time.end).max());
        start.zip(end).map_or(0.0, |(start, end)| nanoseconds(start, end))
    }

    fn share(&self) -> f64 {
        self.0.iter().map(|time| time.cpu / nanoseconds(time.start, time.end)).fold(1.0, f64::min)
    }
}

fn nanoseconds(start: Instant, end: Instant) -> f64 {
    (end - start).as_nanos() as f64
}

/// Starts all jobs at the same moment, each on a CPU of its own if the system allows that.
fn at_once(cpus: [usize; 2], jobs: Vec<Job<'_>>) -> Result<Times, Failure> {
    let (waiting, all) = (AtomicUsize::new(0), jobs.len());
    let run = |job: Job<'_>, cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
        // A spin loop, not a lock that sleeps: a wake-up would take a noticeable part of the measured time.
        waiting.fetch_add(1, Ordering::AcqRel);
        while waiting.load(Ordering::Acquire) < all {
            std::hint::spin_loop();
        }
        let (start, moment) = (Instant::now(), Moment::now());
        job()?;
        Ok(Time { start, cpu: moment.elapsed(), end: Instant::now() })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().zip(cpus).map(|(job, cpu)| scope.spawn(move || run(job, cpu))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(PANICKED)));
        joined.collect::<Result<_, _>>().map(Times)
    })
}

const PANICKED: Failure = Failure::Unexpected("a thread panicked");

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_stage2::{Kib4, Kib16, Kib64};

    #[test]
    fn threads_lead_to_what_they_should() {
        fn run<G: Granule>() {
            // Not less than 1 GiB, which is the least of a user's guest.
            let size = piece::<G>();
            let arena = Arena::map(arena_bytes::<G>(size).unwrap()).unwrap();
            let rows: Vec<_> = rows::<G>(size).collect();
            assert_eq!(rows.len(), 4);
            for row in rows {
                let once = row.once(arena, size, two_cpus().unwrap_or([0, 0]));
                let once = once.unwrap_or_else(|error| panic!("{}: {error}", row.name));
                assert!(once.one.ns > 0.0 && once.two.ns > 0.0, "{}", row.name);
            }
        }
        run::<Kib4>();
        run::<Kib16>();
        run::<Kib64>();
    }

    #[test]
    fn a_row_has_the_keys_that_were_agreed() {
        let side = |ns| Side { ns, share: 1.0 };
        let runs = [(4.0, 2.0), (3.0, 3.0), (6.0, 4.0)].map(|(one, two)| Once { one: side(one), two: side(two) });
        let text = serde_json::to_string(&Measured::of(rows::<Kib4>(GIB).next().unwrap(), &runs).unwrap()).unwrap();
        assert_eq!(text, r#"{"name":"disjoint_2m","ratio":1.5,"min":1.0,"max":2.0,"one":4.0,"two":3.0}"#);
    }
}
