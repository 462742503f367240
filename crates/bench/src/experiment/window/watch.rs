// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who watches an entry, and what it is told and tells.
//!
//! Each round has a number, from 1 on, and goes through four steps, each of which is a store that the other thread waits for:
//! a round is *asked* for, is *watched*, has *ended*, is *told*. Invariant: a time is told only where the watcher had its CPU
//! from before it said that it watches until after it saw the entry valid again.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};

/// What the two threads tell each other.
#[derive(Default)]
pub struct Watch {
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
    /// Whether the watcher lost its CPU in it.
    lost: AtomicBool,
    stopped: AtomicBool,
}

/// What was seen of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The entry was valid whenever it was looked at.
    Nothing,
    /// It was invalid for so many nanoseconds.
    For(NonZeroU64),
    /// Nobody knows: somebody else had the watcher's CPU.
    Lost,
}

impl Watch {
    /// The watcher's work, until [`stop`](Self::stop); how many nanoseconds a look takes it.
    pub fn serve(&self, entry: &AtomicU64) -> f64 {
        let look = time_of_a_look(entry);
        let mut round = 0;
        while !self.stopped.load(Ordering::Acquire) {
            if self.asked.load(Ordering::Acquire) == round {
                std::hint::spin_loop();
                continue;
            }
            round += 1;
            let before = switches();
            self.watched.store(round, Ordering::Release);
            let time = watch(|| is_valid(entry), || self.ended.load(Ordering::Relaxed) == round);
            self.time.store(time, Ordering::Relaxed);
            self.lost.store(switches() != before, Ordering::Relaxed);
            self.told.store(round, Ordering::Release);
        }
        look
    }

    /// Has the watcher look, and waits until it does.
    pub fn expect(&self, round: u32) {
        self.asked.store(round, Ordering::Release);
        while self.watched.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        // It has told so one look before it looks.
        (0..LOOKS).for_each(|_| std::hint::spin_loop());
    }

    /// The round is over: what was not seen will not be.
    pub fn end(&self, round: u32) {
        self.ended.store(round, Ordering::Release);
    }

    /// What the watcher saw; waits until it tells.
    pub fn seen(&self, round: u32) -> Seen {
        while self.told.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        if self.lost.load(Ordering::Relaxed) {
            return Seen::Lost;
        }
        NonZeroU64::new(self.time.load(Ordering::Relaxed)).map_or(Seen::Nothing, Seen::For)
    }

    /// There are no more rounds.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

/// How often this thread has lost its CPU to somebody else so far. A host that takes the CPU from a virtual machine is not in it.
pub fn switches() -> i64 {
    // It is refused for no thread that asks about itself; if it were, no round would be left out.
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Nanoseconds for which the entry is invalid; 0 if it is valid until the round has ended.
#[inline(always)]
fn watch(is_valid: impl Fn() -> bool, has_ended: impl Fn() -> bool) -> u64 {
    while is_valid() {
        if has_ended() {
            return 0;
        }
    }
    let start = Instant::now();
    while !is_valid() {}
    (start.elapsed().as_nanos() as u64).max(1)
}

#[inline(always)]
fn is_valid(entry: &AtomicU64) -> bool {
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

const VALID: u64 = 1;
const LOOKS: u32 = 10_000;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The bounds are those of the monotonic clock: no other load can break them.
    #[test]
    fn a_window_lasts_from_the_first_invalid_look_to_the_next_valid_one() {
        const PAUSE: Duration = Duration::from_millis(2);
        const INVALID: std::ops::Range<u32> = 4..10;
        let looks = Cell::new(0);
        let is_valid = || {
            let look = looks.replace(looks.get() + 1);
            // Once before the window, which does not count, and once in it.
            if look == INVALID.start - 1 || look == INVALID.end - 1 {
                thread::sleep(PAUSE);
            }
            !INVALID.contains(&look)
        };
        let outside = Instant::now();
        let time = watch(is_valid, || false);
        let outside = outside.elapsed();
        assert_eq!(looks.get(), INVALID.end + 1, "the first valid look is the last");
        let time = Duration::from_nanos(time);
        assert!(time >= PAUSE && time <= outside - PAUSE, "{time:?} of {outside:?}");
    }

    #[test]
    fn an_entry_that_stays_valid_is_watched_until_the_round_has_ended() {
        let asked = Cell::new(0);
        let ended = || {
            asked.set(asked.get() + 1);
            asked.get() == 7
        };
        assert_eq!(watch(|| true, ended), 0);
        assert_eq!(asked.get(), 7);
    }

    #[test]
    fn each_round_is_told_once() {
        const ROUNDS: u32 = 100;
        let (watch, entry) = (Watch::default(), AtomicU64::new(VALID));
        thread::scope(|scope| {
            let watcher = scope.spawn(|| watch.serve(&entry));
            for round in 1..=ROUNDS {
                watch.expect(round);
                if round % 2 == 0 {
                    // May be missed; what is seen has a time.
                    entry.store(0, Ordering::Release);
                    entry.store(VALID, Ordering::Release);
                }
                watch.end(round);
                let seen = watch.seen(round);
                assert!(round % 2 == 0 || !matches!(seen, Seen::For(_)), "{round}: {seen:?}, and the entry was valid");
                assert_eq!(watch.told.load(Ordering::Relaxed), round);
            }
            watch.stop();
            assert!(watcher.join().unwrap() > 0.0);
        });
    }

    /// One thread more than there are CPUs: in the end each has to wait for one.
    #[test]
    fn who_loses_its_cpu_notices() {
        let (stop, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
        let others = thread::available_parallelism().unwrap().get();
        thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(|| {
                    ready.fetch_add(1, Ordering::Relaxed);
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while ready.load(Ordering::Relaxed) < others {
                thread::yield_now();
            }
            let before = switches();
            while switches() == before {
                thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
