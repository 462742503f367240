// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns: one CPU thread runs at a time, in an order that a seed decides.
//!
//! Each CPU of the strict machine is a thread of the operating system, and only the thread that holds the turn runs. At
//! a *point* (an access, an instruction), the seed's random numbers decide whether it loses the turn. When it *passes*,
//! because it waits for another CPU, it always gives the turn away. All random numbers of a run are one stream, which
//! only the holder of the turn draws from.
//!
//! Invariant: from the [`enter`](Turns::enter) of the last thread to a [`halt`](Turns::halt), one thread runs. So **the
//! same seed gives the same interleaving**, however the operating system schedules the threads. Time, and the way a
//! thread waits, affect only the speed.
//!
//! The turn is given with release and taken with acquire, so the writes of one holder happen before the reads of the
//! next. The holder's counters are therefore plain loads and stores, without read-modify-write.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::waits::Waits;

/// The maximum number of CPUs: each has one bit of a 64-bit word.
pub(crate) const MAX_CPUS: usize = 64;

/// The number of yields of a waiting thread before it parks. Waking a parked thread is slow if a core has to leave its
/// idle state for it. On two virtual cores, a switch between four threads took 13 µs if they parked immediately, and
/// 1 µs with these yields.
const YIELDS: u32 = 100;

/// A yield that takes this long has lost the core to a thread that does not yield: a busy holder, or another process.
/// Then each yield costs a time slice, and parking is faster.
const CROWDED_YIELD: Duration = Duration::from_micros(200);

/// After a slow yield, this number of waits park without yielding. So the next slow yield costs little per wait.
const CROWDED_WAITS: u32 = 1000;

/// The value of `turn` before all have entered, and after all have left.
const NO_THREAD: usize = usize::MAX;

/// The reason why a thread has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    /// A thread called [`Turns::halt`].
    #[error("the machine is halted")]
    Halted,
    /// Each thread waits for another.
    #[error("no progress: all CPUs wait for each other, {passes} passes in a row")]
    Stuck {
        /// The number of passes since the last progress.
        passes: u64,
    },
}

/// The CPU that runs, and the choice of the next.
pub(crate) struct Turns {
    /// The CPU that has the turn. Waiting threads read it continuously, so it is on another line than the holder's
    /// counters.
    turn: AtomicUsize,
    /// Set once the turns are over: all threads run on.
    halted: AtomicBool,
    /// The number of coming waits that park without yielding. Threads change it without synchronization; it affects only
    /// the speed.
    crowded: AtomicU32,
    /// The CPUs that have entered, a bit each.
    entered: AtomicU64,
    /// Each CPU's thread, from the time it enters.
    threads: Box<[OnceLock<Thread>]>,
    /// All CPUs, a bit each.
    all: u64,
    /// A point switches if its random number is at most this.
    switch_up_to: u64,
    holder: Holder,
}

/// The words that only the holder of the turn uses, on lines of their own.
#[repr(align(128))]
struct Holder {
    /// The CPUs that have not left, a bit each.
    running: AtomicU64,
    steps: AtomicU64,
    waits: Waits,
    /// The state of the random numbers.
    random: AtomicU64,
}

/// A CPU thread that has entered. When it is dropped, also while the thread unwinds, the CPU leaves.
#[must_use = "the CPU leaves when this is dropped"]
pub(crate) struct Entered<'a> {
    turns: &'a Turns,
    cpu: usize,
}

impl Turns {
    /// Turns of the CPUs `0..cpus`, in the order that `seed` decides. A turn lasts `mean` points on average (0 and 1:
    /// exactly one point). Each point decides independently, so any number is possible.
    ///
    /// # Panics
    ///
    /// If `cpus` is 0 or above [`MAX_CPUS`].
    pub(crate) fn new(cpus: usize, seed: u64, mean: u32) -> Self {
        assert!((1..=MAX_CPUS).contains(&cpus), "{cpus} CPUs cannot take turns: 1 to {MAX_CPUS} can");
        let all = u64::MAX >> (MAX_CPUS - cpus);
        Self {
            turn: AtomicUsize::new(NO_THREAD),
            halted: AtomicBool::new(false),
            crowded: AtomicU32::new(0),
            entered: AtomicU64::new(0),
            threads: (0..cpus).map(|_| OnceLock::new()).collect(),
            all,
            switch_up_to: u64::MAX / u64::from(mean.max(1)),
            holder: Holder {
                running: AtomicU64::new(all),
                steps: AtomicU64::new(0),
                waits: Waits::new(cpus),
                random: AtomicU64::new(seed),
            },
        }
    }

    /// Enters the calling thread as `cpu`. Returns when all CPUs have entered and this one has the turn, so the order
    /// in which the threads start does not matter. Returns also after a [`halt`](Self::halt), which frees the entered
    /// threads if another could not be started.
    ///
    /// # Panics
    ///
    /// If there is no such CPU, or it has entered before.
    pub(crate) fn enter(&self, cpu: usize) -> Entered<'_> {
        let new = self.threads[cpu].set(thread::current()).is_ok();
        assert!(new, "CPU {cpu} enters twice");
        let others = self.entered.fetch_or(1 << cpu, AcqRel);
        if others | 1 << cpu == self.all {
            self.give_to_one_of(self.all);
        }
        // If halted already, the first point reports it.
        let _ = self.wait(cpu);
        Entered { turns: self, cpu }
    }

    /// A point, at which another CPU may run; `cpu` holds the turn.
    #[inline]
    pub(crate) fn point(&self, cpu: usize) -> Result<(), Stop> {
        self.begin_step(cpu)?;
        self.holder.waits.point(cpu);
        if self.random() <= self.switch_up_to { self.switch(cpu) } else { Ok(()) }
    }

    /// A pass: `cpu`, which holds the turn, can do nothing before another CPU does. It gives the turn to another CPU,
    /// if one is left.
    ///
    /// Returns [`Stop::Stuck`] if all CPUs wait for each other ([`Waits`]), and at each further pass. A point is no
    /// progress: a CPU that polls a lock also executes points.
    pub(crate) fn pass(&self, cpu: usize) -> Result<(), Stop> {
        self.begin_step(cpu)?;
        match self.holder.waits.pass(cpu) {
            Some(passes) => Err(Stop::Stuck { passes }),
            None => self.switch(cpu),
        }
    }

    /// Notes progress: a step that can happen only a limited number of times in a run.
    #[inline]
    pub(crate) fn progress(&self) {
        self.holder.waits.progress();
    }

    /// A random number below `below` (0 if that is 0), for the holder of the turn.
    #[inline]
    pub(crate) fn draw(&self, below: u64) -> u64 {
        // The high half of the product: uniform except for `below` in 2^64, and without a division.
        ((u128::from(self.random()) * u128::from(below)) >> 64) as u64
    }

    /// The number of points and passes so far. With the seed, it identifies a moment of the run.
    #[cfg(test)]
    pub(crate) fn step(&self) -> u64 {
        self.holder.steps.load(Relaxed)
    }

    /// Ends the turns: all threads run on at the same time, and each ends with [`Stop::Halted`] at its next point or
    /// pass. Any thread may call it. If the holder calls it, the same seed halts at the same step.
    pub(crate) fn halt(&self) {
        self.halted.store(true, Release);
        // A read-modify-write, as in `enter`, so that the two are ordered: a CPU whose bit is not yet in `entered` sees
        // `halted` before it waits.
        let entered = self.entered.fetch_or(0, AcqRel);
        for thread in members(entered).filter_map(|cpu| self.threads[cpu].get()) {
            thread.unpark();
        }
    }

    /// Whether [`halt`](Self::halt) was called.
    #[inline]
    pub(crate) fn halted(&self) -> bool {
        self.halted.load(Acquire)
    }

    /// Counts a step, unless halted.
    #[inline]
    fn begin_step(&self, cpu: usize) -> Result<(), Stop> {
        if self.halted() {
            return Err(Stop::Halted);
        }
        debug_assert_eq!(self.turn.load(Relaxed), cpu, "CPU {cpu} runs without having the turn");
        self.holder.steps.store(self.holder.steps.load(Relaxed) + 1, Relaxed);
        Ok(())
    }

    /// Gives the turn to another CPU, if there is one, and waits until it comes back.
    #[cold]
    fn switch(&self, cpu: usize) -> Result<(), Stop> {
        let others = self.holder.running.load(Relaxed) & !(1 << cpu);
        if others == 0 {
            return Ok(());
        }
        self.give_to_one_of(others);
        self.wait(cpu)
    }

    /// Gives the turn to one of `cpus`, a non-empty set. After this call, the caller may not touch the holder's words.
    fn give_to_one_of(&self, cpus: u64) {
        let nth = self.draw(u64::from(cpus.count_ones()));
        let next = members(cpus).nth(nth as usize).expect("below the number of members");
        self.turn.store(next, Release);
        // All have entered. If the thread has not parked yet, its next park returns at once.
        self.threads[next].get().expect("entered").unpark();
    }

    /// Waits until `cpu` has the turn, or until a halt.
    fn wait(&self, cpu: usize) -> Result<(), Stop> {
        let waits = || self.turn.load(Acquire) != cpu && !self.halted();
        let crowded = self.crowded.load(Relaxed);
        if crowded > 0 {
            self.crowded.store(crowded - 1, Relaxed);
        } else {
            let mut yields = 0;
            while waits() && yields < YIELDS {
                let before = Instant::now();
                thread::yield_now();
                yields += 1;
                if before.elapsed() > CROWDED_YIELD {
                    self.crowded.store(CROWDED_WAITS, Relaxed);
                    break;
                }
            }
        }
        while waits() {
            thread::park();
        }
        if self.halted() { Err(Stop::Halted) } else { Ok(()) }
    }

    /// The next random number, by SplitMix64. Its state is a counter, so a draw does not depend on the arithmetic of
    /// the previous one.
    #[inline]
    fn random(&self) -> u64 {
        let state = self.holder.random.load(Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.holder.random.store(state, Relaxed);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

impl Drop for Entered<'_> {
    /// Gives the turn to another CPU for good.
    fn drop(&mut self) {
        let (turns, cpu) = (self.turns, self.cpu);
        if turns.halted() {
            return;
        }
        let others = turns.holder.running.load(Relaxed) & !(1 << cpu);
        turns.holder.running.store(others, Relaxed);
        if others == 0 {
            turns.turn.store(NO_THREAD, Release);
        } else {
            turns.give_to_one_of(others);
        }
    }
}

/// The numbers of the bits that are set, from the lowest.
fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    /// Runs `body` for each CPU, in a thread that has entered, and returns each result.
    fn run<T: Send>(turns: &Turns, body: impl Fn(usize) -> T + Sync) -> Vec<thread::Result<T>> {
        thread::scope(|scope| {
            let start = |cpu| {
                let body = &body;
                scope.spawn(move || {
                    let _entered = turns.enter(cpu);
                    body(cpu)
                })
            };
            let threads: Vec<_> = (0..turns.threads.len()).map(start).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        })
    }

    /// The CPU of each point, when each CPU executes `points`. `delay` decides when and in which order the threads
    /// start.
    fn order(cpus: usize, seed: u64, mean: u32, points: u64, delay: impl Fn(usize) -> Duration + Sync) -> Vec<usize> {
        let turns = Turns::new(cpus, seed, mean);
        let log = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for cpu in 0..cpus {
                let (turns, log, delay) = (&turns, &log, &delay);
                scope.spawn(move || {
                    thread::sleep(delay(cpu));
                    let _entered = turns.enter(cpu);
                    for point in 0..points {
                        log.lock().unwrap().push(cpu);
                        if point % 64 == 0 {
                            thread::sleep(delay(cpu) / 8);
                        }
                        turns.point(cpu).unwrap();
                    }
                });
            }
        });
        log.into_inner().unwrap()
    }

    fn at_once(_: usize) -> Duration {
        Duration::ZERO
    }

    #[test]
    fn the_same_seed_gives_the_same_order() {
        for mean in [1, 3, 50] {
            let first = order(4, 7, mean, 500, at_once);
            assert_eq!(first.len(), 2000);
            assert_eq!(first, order(4, 7, mean, 500, |cpu| Duration::from_millis(cpu as u64)));
            assert_eq!(first, order(4, 7, mean, 500, |cpu| Duration::from_millis(3 - cpu as u64)));
        }
    }

    #[test]
    fn another_seed_gives_another_order() {
        let orders: Vec<_> = (0..8).map(|seed| order(3, seed, 2, 100, at_once)).collect();
        for (at, one) in orders.iter().enumerate() {
            assert!(!orders[..at].contains(one), "seed {at} repeats an earlier one's order");
        }
    }

    #[test]
    fn a_turn_lasts_the_mean_on_average_and_one_point_where_that_is_one() {
        for mean in [1, 2, 10, 100] {
            // The end of the run is left out: the last CPU there keeps the turn.
            let order = &order(4, 11, mean, 20_000, at_once)[..40_000];
            let switches = order.windows(2).filter(|two| two[0] != two[1]).count();
            let expected = (order.len() - 1) / mean as usize;
            let off = switches.abs_diff(expected);
            assert!(off * 8 <= expected, "mean {mean}: {switches} switches instead of {expected}");
            assert!(mean > 1 || off == 0, "mean 1: {switches} switches instead of {expected}");
        }
    }

    #[test]
    fn one_runs_at_a_time_under_a_load_of_switches() {
        let turns = Turns::new(4, 5, 1);
        let count = AtomicU64::new(0);
        run(&turns, |cpu| {
            for _ in 0..20_000 {
                // Two steps: if another thread runs between them, an increment is lost.
                let before = count.load(Relaxed);
                std::hint::spin_loop();
                count.store(before + 1, Relaxed);
                turns.point(cpu).unwrap();
            }
        });
        assert_eq!(count.into_inner(), 80_000);
        assert_eq!(turns.step(), 80_000);
    }

    #[test]
    fn one_cpu_has_all_turns_and_64_share_them() {
        assert_eq!(order(1, 1, 1, 10, at_once), [0; 10]);
        let order = order(64, 1, 1, 50, at_once);
        for cpu in 0..64 {
            assert_eq!(order.iter().filter(|&&one| one == cpu).count(), 50, "points of CPU {cpu}");
        }
        assert_eq!(order, super::tests::order(64, 1, 1, 50, |cpu| Duration::from_micros(64 - cpu as u64)));
    }

    #[test]
    #[should_panic(expected = "65 CPUs cannot take turns")]
    fn more_than_64_cpus_are_refused() {
        Turns::new(65, 0, 1);
    }

    #[test]
    fn the_others_go_on_without_one_that_left() {
        let turns = Turns::new(3, 2, 1);
        let left = AtomicBool::new(false);
        let afterwards = AtomicU64::new(0);
        run(&turns, |cpu| {
            for _ in 0..[5, 1000, 1000][cpu] {
                afterwards.store(afterwards.load(Relaxed) + u64::from(left.load(Relaxed)), Relaxed);
                turns.point(cpu).unwrap();
            }
            left.store(true, Relaxed);
        });
        assert!(afterwards.into_inner() > 1900);
        assert_eq!(turns.step(), 2005);
    }

    #[test]
    fn a_lock_that_is_tried_and_passed_for_is_always_had_in_the_end() {
        for seed in 0..20 {
            let turns = Turns::new(4, seed, 2);
            let locked = AtomicBool::new(false);
            let inside = AtomicU64::new(0);
            run(&turns, |cpu| {
                for _ in 0..50 {
                    while locked.swap(true, Relaxed) {
                        turns.pass(cpu).unwrap();
                    }
                    assert_eq!(inside.fetch_add(1, Relaxed), 0, "two CPUs hold the lock, seed {seed}");
                    for _ in 0..turns.draw(5) {
                        turns.point(cpu).unwrap();
                    }
                    inside.fetch_sub(1, Relaxed);
                    locked.store(false, Relaxed);
                    turns.progress();
                    turns.point(cpu).unwrap();
                }
            })
            .into_iter()
            .for_each(|ended| ended.unwrap());
        }
    }

    #[test]
    fn a_lock_that_is_never_released_is_found_at_the_same_step_each_time() {
        let stuck_at = || {
            let turns = Turns::new(3, 9, 4);
            let ended = run(&turns, |cpu| {
                loop {
                    // Reading the lock is a point, and no progress.
                    let looked = turns.point(cpu).and_then(|()| turns.pass(cpu));
                    if let Err(stop) = looked {
                        let step = turns.step();
                        turns.halt();
                        return (stop, step);
                    }
                }
            });
            let ended: Vec<_> = ended.into_iter().map(|one| one.unwrap()).collect();
            let found: Vec<_> = ended.into_iter().filter(|(stop, _)| *stop != Stop::Halted).collect();
            let [(stop, step)] = found[..] else { panic!("{found:?}") };
            assert_eq!(stop, Stop::Stuck { passes: Waits::limit(3) + 1 });
            step
        };
        assert_eq!(stuck_at(), stuck_at());
    }

    #[test]
    fn a_thread_that_passes_alone_is_stuck_unless_there_is_progress() {
        let turns = Turns::new(1, 0, 1);
        let _entered = turns.enter(0);
        for _ in 0..2 {
            for _ in 0..Waits::limit(1) {
                assert_eq!(turns.pass(0), Ok(()));
            }
            turns.progress();
        }
        let mut passes = (0..).map(|_| turns.pass(0));
        assert_eq!(passes.position(|pass| pass.is_err()), Some(Waits::limit(1) as usize));
        assert_eq!(turns.pass(0), Err(Stop::Stuck { passes: Waits::limit(1) + 2 }));
    }

    #[test]
    fn a_halt_lets_all_go() {
        for halting in 0..4 {
            let turns = Turns::new(4, 3, 1);
            let ended = run(&turns, |cpu| {
                for point in 0.. {
                    // Long enough for the others to park.
                    if cpu == halting && point == 10 {
                        thread::sleep(Duration::from_millis(20));
                        turns.halt();
                    }
                    if let Err(stop) = if point % 2 == 0 { turns.point(cpu) } else { turns.pass(cpu) } {
                        return stop;
                    }
                }
                unreachable!()
            });
            assert!(ended.into_iter().all(|stop| stop.unwrap() == Stop::Halted));
            assert!(turns.halted());
        }
    }

    #[test]
    fn a_halt_releases_threads_that_wait_for_one_that_never_starts() {
        let turns = Turns::new(3, 3, 1);
        let (send, receive) = mpsc::channel();
        thread::scope(|scope| {
            for cpu in 0..2 {
                let (turns, send) = (&turns, send.clone());
                scope.spawn(move || {
                    let _entered = turns.enter(cpu);
                    send.send(turns.point(cpu)).unwrap();
                });
            }
            while turns.entered.load(Acquire) != 0b11 {
                thread::yield_now();
            }
            assert!(receive.try_recv().is_err(), "entered before all were there");
            turns.halt();
        });
        drop(send);
        assert_eq!(receive.iter().collect::<Vec<_>>(), [Err(Stop::Halted); 2]);
    }

    #[test]
    fn a_panic_in_one_thread_does_not_hold_the_others_up() {
        let turns = Turns::new(3, 4, 2);
        let ended = run(&turns, |cpu| {
            for point in 0..100 {
                // An intended panic, without a message or a backtrace.
                if cpu == 1 && point == 50 {
                    std::panic::resume_unwind(Box::new("meant"));
                }
                turns.point(cpu).unwrap();
            }
        });
        assert_eq!(ended.iter().map(|one| one.is_ok()).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(turns.step(), 250);
    }

    #[test]
    fn drawn_numbers_are_below_and_reach_all_there_are() {
        let turns = Turns::new(1, 12, 1);
        assert_eq!(turns.draw(0), 0);
        assert_eq!(turns.draw(1), 0);
        let mut times = [0; 7];
        for _ in 0..7000 {
            times[turns.draw(7) as usize] += 1;
        }
        assert!(times.iter().all(|times| (800..1200).contains(times)), "{times:?}");
    }
}
