// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a slot keeps for its log: the pages' bits, the sections' bits, and which log runs.
//!
//! Invariant: `running` is written only under the lock `own`, and read without it. Each start has a number of its own,
//! so a CPU that reads the same value twice (D1, D6) knows that there was no stop and start in between.
//!
//! The word is stored with release and read with acquire. A CPU that reads that a log runs sees the bits as its start
//! (D7) left them.

use alloc::boxed::Box;

use spin::Once;
use twofold_stage2::primitive::{Ordering, Word};
use twofold_stage2::{Lock, LockGuard, Platform};

use super::adaptive::{Cold, Heat};
use super::bits::Bits;
use super::options::{LEAST_SECTION, LogError, LogOptions, Tracker};

#[cfg(all(test, loom))]
mod loom;

/// What each slot has for its dirty log.
#[derive(Default)]
pub(crate) struct Tracking {
    /// A [`Running`], or 0.
    running: Word,
    /// How many hardware-tracked logs have run.
    hardware: Word,
    /// Made by the first start, and kept. If `running` is not 0, it exists.
    log: Once<Box<Log>>,
}

/// The log itself.
pub(crate) struct Log {
    /// The pages that are dirty.
    pub(super) pages: Bits,
    /// The sections that are hardware-tracked.
    pub(super) tracked: Bits,
    /// The sections between D15 and D17, under the log's lock. A get takes every bit that it sets, so that none is left
    /// for the next log.
    pub(super) dbm_cleared: Bits,
    /// Where writes fault.
    pub(super) heat: Heat,
    /// The log's lock: to start, stop, get, clear, unmap and coalesce.
    own: Lock<Own>,
}

/// What the log's lock protects.
pub(crate) struct Own {
    pub(super) options: LogOptions,
    /// How many times the log was started.
    starts: u64,
    pub(super) cold: Cold,
}

/// A log that runs. Bits 0 to 2: its tracker, from 1. Bit 3: whether a write fault sets DBM on other pages. Bits 4 to 7:
/// log2 of a section's pages. Above them: the number of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running(u64);

impl Tracking {
    /// The log, or `None` if none was ever started.
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.get().map(|log| &**log)
    }

    /// The log of a slot of `pages` pages, made if there is none.
    pub(super) fn log_or_new(&self, pages: u64) -> Result<&Log, LogError> {
        let new = || Log::new(pages).map(Box::new).ok_or(LogError::NoMemory);
        self.log.try_call_once(new).map(|log| &**log)
    }

    /// The log that runs now.
    #[inline(always)]
    pub(crate) fn running(&self) -> Option<Running> {
        let running = self.running.load(Ordering::Acquire);
        (running != 0).then_some(Running(running))
    }

    /// The log that runs now, with its bits.
    #[inline(always)]
    pub(crate) fn running_log(&self) -> Option<(Running, &Log)> {
        Some((self.running()?, self.log()?))
    }

    /// Publishes that the log runs (D8).
    pub(super) fn run(&self, own: &mut Own, options: &LogOptions) -> Running {
        own.starts += 1;
        own.options = *options;
        let tracker = Tracker::ALL.iter().position(|tracker| *tracker == options.tracker).unwrap_or(0) as u64 + 1;
        let around = match options.tracker {
            Tracker::WriteProtect | Tracker::Manual | Tracker::Hardware => 0,
            Tracker::Combined | Tracker::Adaptive => Running::SETS_DBM_AROUND,
        };
        let section = u64::from(options.section_pages().trailing_zeros());
        let running = tracker | around | section << 4 | own.starts << 8;
        self.running.store(running, Ordering::Release);
        // After the log: see `hardware_logs_if_none_runs`.
        if options.tracker.needs_dirty_state() {
            self.hardware.store(self.hardware.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        Running(running)
    }

    /// How many hardware-tracked logs have run or run now. A CPU that reads a number sees [`running`](Self::running) as
    /// it was when the last of them was published, or later.
    pub(crate) fn hardware_logs(&self) -> u64 {
        self.hardware.load(Ordering::Acquire)
    }

    /// [`hardware_logs`](Self::hardware_logs) if none of them runs now; otherwise `None`.
    ///
    /// The number is read before the running log, and a start publishes them the other way round. So a log that this
    /// misses changes the number, before it changes a leaf (D10).
    pub(crate) fn hardware_logs_if_none_runs(&self) -> Option<u64> {
        let logs = self.hardware_logs();
        let none_runs = self.running().is_none_or(|log| !log.tracker().needs_dirty_state());
        none_runs.then_some(logs)
    }

    /// Ends the log that runs.
    pub(super) fn end(&self) {
        // Relaxed: no CPU that reads 0 uses anything that was written before it.
        self.running.store(0, Ordering::Relaxed);
    }
}

impl Log {
    /// Takes the log's lock. While it is held, the log is neither read nor cleared.
    pub(crate) fn hold<P: Platform>(&self, platform: &P) -> LockGuard<'_, Own> {
        self.own.lock(platform)
    }

    fn new(pages: u64) -> Option<Self> {
        let sections = || Bits::new(pages.div_ceil(LEAST_SECTION));
        let options = LogOptions::new(Tracker::WriteProtect);
        Some(Self {
            pages: Bits::new(pages)?,
            tracked: sections()?,
            dbm_cleared: sections()?,
            heat: Heat::new(pages)?,
            own: Lock::new(Own { options, starts: 0, cold: Cold::new(pages)? }),
        })
    }
}

impl Running {
    /// A write fault sets DBM on other pages.
    const SETS_DBM_AROUND: u64 = 1 << 3;

    /// Its tracker.
    #[inline]
    pub(crate) fn tracker(self) -> Tracker {
        Tracker::ALL[(self.0 as usize & 7).saturating_sub(1) % Tracker::ALL.len()]
    }

    /// Whether a write fault sets DBM on other pages (D5).
    #[inline]
    pub(super) fn sets_dbm_around(self) -> bool {
        self.0 & Self::SETS_DBM_AROUND != 0
    }

    /// Pages in a section.
    #[inline]
    pub(super) fn section(self) -> u64 {
        1 << (self.0 >> 4 & 0xf)
    }

    /// Whether pages are mapped with DBM set.
    #[inline]
    pub(crate) fn maps_tracked(self) -> bool {
        self.tracker() == Tracker::Hardware
    }
}
