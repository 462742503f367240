// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watcher of an entry, and its protocol with the coalescing thread.
//!
//! Each round has a number, from 1 on, and four steps. Each step is a store of that number that the other thread waits
//! for:
//!
//! * W1: the coalescing thread asks for the round (`asked`).
//! * W2: the watcher starts to watch (`watched`).
//! * W3: the coalescing thread ends the round (`ended`).
//! * W4: the watcher reports the time (`reported`).
//!
//! Invariant: a time is reported only if the watcher kept its CPU from before W2 until it has seen the entry valid
//! again.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};

/// The state that the two threads share.
#[derive(Default)]
pub struct Watch {
    /// W1: the round to watch.
    asked: AtomicU32,
    /// W2: the round that is watched.
    watched: AtomicU32,
    /// W3: the last round that has ended.
    ended: AtomicU32,
    /// W4: the last round whose time is known.
    reported: AtomicU32,
    /// The time of that round in nanoseconds. 0: the watcher saw nothing.
    time: AtomicU64,
    /// Whether the watcher lost its CPU in that round.
    lost: AtomicBool,
    stopped: AtomicBool,
}

/// The watcher's report on a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The entry was valid at every look.
    Nothing,
    /// The entry was invalid for this many nanoseconds.
    For(NonZeroU64),
    /// Unknown: the watcher lost its CPU.
    Lost,
}

impl Watch {
    /// Runs the watcher until [`stop`](Self::stop). Returns the nanoseconds of one look.
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
            self.reported.store(round, Ordering::Release);
        }
        look
    }

    /// W1: asks for a round, and waits until the watcher watches (W2).
    pub fn expect(&self, round: u32) {
        self.asked.store(round, Ordering::Release);
        while self.watched.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        // The watcher stores W2 just before its first look, so wait a little longer.
        (0..LOOKS).for_each(|_| std::hint::spin_loop());
    }

    /// W3: ends the round. A window that was not seen by now was missed.
    pub fn end(&self, round: u32) {
        self.ended.store(round, Ordering::Release);
    }

    /// Waits for the watcher's report (W4), and returns it.
    pub fn seen(&self, round: u32) -> Seen {
        while self.reported.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        if self.lost.load(Ordering::Relaxed) {
            return Seen::Lost;
        }
        NonZeroU64::new(self.time.load(Ordering::Relaxed)).map_or(Seen::Nothing, Seen::For)
    }

    /// Ends the watcher: there are no more rounds.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

/// The number of times this thread has lost its CPU to another thread. CPU time that a host takes from a virtual
/// machine is not included.
pub fn switches() -> i64 {
    // getrusage cannot fail for the calling thread. If it did, no round would be left out.
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Nanoseconds for which the entry is invalid. 0 if it stays valid until the round has ended.
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

/// Nanoseconds from one look to the next, with the time to read the clock.
fn time_of_a_look(entry: &AtomicU64) -> f64 {
    let start = Instant::now();
    let valid = (0..LOOKS).filter(|_| is_valid(entry)).count();
    std::hint::black_box(valid);
    // Each window includes the time of one `Instant::now` call.
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

    /// The bounds follow from the monotonic clock, so no other load can break them.
    #[test]
    fn a_window_lasts_from_the_first_invalid_look_to_the_next_valid_one() {
        const PAUSE: Duration = Duration::from_millis(2);
        const INVALID: std::ops::Range<u32> = 4..10;
        let looks = Cell::new(0);
        let is_valid = || {
            let look = looks.replace(looks.get() + 1);
            // One pause before the window, which does not count, and one in it.
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
    fn each_round_is_reported_once() {
        const ROUNDS: u32 = 100;
        let (watch, entry) = (Watch::default(), AtomicU64::new(VALID));
        thread::scope(|scope| {
            let watcher = scope.spawn(|| watch.serve(&entry));
            for round in 1..=ROUNDS {
                watch.expect(round);
                if round % 2 == 0 {
                    // The watcher may miss this window. If it sees it, the time is not 0.
                    entry.store(0, Ordering::Release);
                    entry.store(VALID, Ordering::Release);
                }
                watch.end(round);
                let seen = watch.seen(round);
                assert!(round % 2 == 0 || !matches!(seen, Seen::For(_)), "{round}: {seen:?}, and the entry was valid");
                assert_eq!(watch.reported.load(Ordering::Relaxed), round);
            }
            watch.stop();
            assert!(watcher.join().unwrap() > 0.0);
        });
    }

    /// With one thread more than there are CPUs, each thread has to wait for a CPU in the end.
    #[test]
    fn a_thread_that_loses_its_cpu_notices() {
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
