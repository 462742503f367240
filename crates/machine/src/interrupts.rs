// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events that reach one vCPU from outside: interrupts, its timer, and kicks.
//!
//! Invariant: no event is lost. A raised line stays pending until it is taken. A wait returns for events that precede
//! it and for events during it, because lines change and waiters are notified under one lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interrupt lines of one vCPU.
#[derive(Debug)]
pub struct Interrupts {
    /// 0, or all bits set after a kick. Every guest access adds this mask to a check that it makes anyway.
    kick: AtomicU64,
    /// A bit for each line.
    pending: AtomicU64,
    /// The time when the timer fires; `NEVER` if it is off. An atomic beside the lock, so that a check needs no lock.
    deadline: AtomicU64,
    timer: Mutex<Line>,
    bell: Condvar,
    counter: Counter,
}

/// The virtual counter.
#[derive(Debug)]
enum Counter {
    /// Nanoseconds since this moment.
    Time(Instant),
    /// The number of reads so far.
    Reads(AtomicU64),
}

/// The number of an interrupt line, below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line(u8);

/// The reason why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Interrupts are pending.
    Pending,
    /// The vCPU was kicked.
    Kicked,
}

impl Line {
    /// The virtual timer's line, as on most boards.
    pub const TIMER: Self = Self(27);

    /// The line of this number; `None` from 64 on.
    pub const fn new(number: u8) -> Option<Self> {
        if number < 64 { Some(Self(number)) } else { None }
    }

    const fn bit(self) -> u64 {
        1 << self.0
    }
}

impl Interrupts {
    /// No line pending, the timer off, the counter at 0.
    pub fn new() -> Self {
        Self::with(Counter::Time(Instant::now()))
    }

    /// As [`new`](Self::new), but without time: the counter advances by one at each read. So runs of the strict mode with
    /// the same seed are equal.
    pub fn without_time() -> Self {
        Self::with(Counter::Reads(AtomicU64::new(0)))
    }

    fn with(counter: Counter) -> Self {
        Self {
            kick: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            deadline: AtomicU64::new(NEVER),
            timer: Mutex::new(Line(0)),
            bell: Condvar::new(),
            counter,
        }
    }

    /// Makes a line pending.
    pub fn raise(&self, line: Line) {
        let _timer = self.lock();
        self.pending.fetch_or(line.bit(), Ordering::Release);
        self.bell.notify_all();
    }

    /// Makes the vCPU leave its guest at its next instruction, or end its wait.
    pub fn kick(&self) {
        let _timer = self.lock();
        self.kick.store(!0, Ordering::Release);
        self.bell.notify_all();
    }

    /// Returns and clears whether the vCPU was kicked.
    pub fn take_kick(&self) -> bool {
        self.kick.swap(0, Ordering::Acquire) != 0
    }

    /// All bits set if the vCPU is kicked, else 0.
    #[inline(always)]
    pub(crate) fn kicked(&self) -> u64 {
        self.kick.load(Ordering::Relaxed)
    }

    /// The pending lines, a bit for each.
    pub fn pending(&self) -> u64 {
        self.fire();
        self.pending.load(Ordering::Acquire)
    }

    /// Takes the pending lines, a bit for each.
    pub fn take(&self) -> u64 {
        self.fire();
        self.pending.swap(0, Ordering::Acquire)
    }

    /// Blocks the thread until a line is pending or the vCPU is kicked. It takes the kick, and leaves the lines
    /// pending.
    pub fn wait(&self) -> Woken {
        let mut timer = self.lock();
        loop {
            self.fire_under(&timer);
            if self.take_kick() {
                return Woken::Kicked;
            }
            if self.pending.load(Ordering::Acquire) != 0 {
                return Woken::Pending;
            }
            timer = match self.deadline.load(Ordering::Relaxed) {
                NEVER => self.bell.wait(timer).unwrap_or_else(PoisonError::into_inner),
                deadline => {
                    let left = Duration::from_nanos(deadline.saturating_sub(self.counter()));
                    self.bell.wait_timeout(timer, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The virtual counter: in nanoseconds, or without time the number of reads.
    pub fn counter(&self) -> u64 {
        match &self.counter {
            // 2^64 ns are 584 years.
            Counter::Time(start) => start.elapsed().as_nanos() as u64,
            Counter::Reads(reads) => reads.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Raises `line` once, when the counter reaches `deadline`. It replaces an earlier setting of the timer.
    pub fn set_timer(&self, deadline: u64, line: Line) {
        let mut timer = self.lock();
        *timer = line;
        self.deadline.store(deadline.min(NEVER - 1), Ordering::Release);
        self.bell.notify_all();
    }

    /// Turns the timer off.
    pub fn clear_timer(&self) {
        let _timer = self.lock();
        self.deadline.store(NEVER, Ordering::Release);
    }

    /// Fires the timer if its deadline has passed. A check at each read of the lines is enough: the guest cannot observe
    /// an earlier one.
    fn fire(&self) {
        if self.deadline.load(Ordering::Acquire) != NEVER {
            self.fire_under(&self.lock());
        }
    }

    fn fire_under(&self, timer: &MutexGuard<'_, Line>) {
        let deadline = self.deadline.load(Ordering::Relaxed);
        if deadline != NEVER && self.counter() >= deadline {
            self.deadline.store(NEVER, Ordering::Release);
            self.pending.fetch_or(timer.bit(), Ordering::Release);
        }
    }

    /// Takes the lock. The data behind it is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.0)
    }
}

const NEVER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    const TIMER: Line = Line::TIMER;
    const DEVICE: Line = Line(63);

    #[test]
    fn what_is_raised_is_pending_until_it_is_taken() {
        let interrupts = Interrupts::new();
        interrupts.raise(DEVICE);
        interrupts.raise(TIMER);
        assert_eq!(interrupts.pending(), 1 << 63 | 1 << 27);
        assert_eq!(interrupts.take(), 1 << 63 | 1 << 27);
        assert_eq!(interrupts.take(), 0);
        assert_eq!(Line::new(64), None);
        assert_eq!(Line::new(63), Some(DEVICE));
    }

    #[test]
    fn a_wait_ends_for_what_came_before_it() {
        let interrupts = Interrupts::new();
        interrupts.raise(DEVICE);
        assert_eq!(interrupts.wait(), Woken::Pending);
        assert_eq!(interrupts.take(), 1 << 63, "the wait takes nothing");
        interrupts.kick();
        assert_eq!(interrupts.wait(), Woken::Kicked);
        assert!(!interrupts.take_kick(), "the wait takes the kick");
    }

    #[test]
    fn a_wait_ends_for_what_comes_during_it() {
        let interrupts = Interrupts::new();
        std::thread::scope(|scope| {
            for kick in [false, true] {
                let waiter = scope.spawn(|| interrupts.wait());
                if kick {
                    interrupts.kick()
                } else {
                    interrupts.raise(DEVICE)
                }
                let woken = waiter.join().unwrap();
                assert_eq!(woken, if kick { Woken::Kicked } else { Woken::Pending });
                interrupts.take();
            }
        });
    }

    #[test]
    fn the_timer_fires_once() {
        let interrupts = Interrupts::new();
        interrupts.set_timer(interrupts.counter(), TIMER);
        assert_eq!(interrupts.take(), 1 << 27);
        assert_eq!(interrupts.take(), 0);
        interrupts.set_timer(u64::MAX, TIMER);
        assert_eq!(interrupts.pending(), 0, "the deadline is in 584 years");
        interrupts.set_timer(interrupts.counter() + 1_000_000, TIMER);
        assert_eq!(interrupts.wait(), Woken::Pending);
        assert_eq!(interrupts.take(), 1 << 27);
    }

    #[test]
    fn without_time_the_timer_fires_after_a_count_of_looks() {
        let interrupts = Interrupts::without_time();
        interrupts.set_timer(interrupts.counter() + 3, TIMER);
        assert_eq!([(); 4].map(|()| interrupts.pending()), [0, 0, 1 << 27, 1 << 27]);
    }

    #[test]
    fn a_timer_that_is_off_does_not_fire() {
        let interrupts = Interrupts::new();
        interrupts.set_timer(interrupts.counter() + 1, TIMER);
        interrupts.clear_timer();
        interrupts.set_timer(0, DEVICE);
        assert_eq!(interrupts.take(), 1 << 63);
    }
}
