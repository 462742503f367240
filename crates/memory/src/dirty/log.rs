// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a slot keeps for its log: which pages, which sections, and what is running.
//!
//! Invariant: `running` is written by who holds `own`, and read by everybody. No start has the number of another one, so
//! who decided something by one and finds the same after is not fooled by a stop and a start in between.
//!
//! Who finds that one runs, by acquire, finds its bits as the start left them.

use alloc::boxed::Box;

use spin::Once;
use twofold_stage2::primitive::{Ordering, Word};
use twofold_stage2::{Lock, LockGuard, Platform};

use super::adaptive::{Cold, Heat};
use super::bits::Bits;
use super::options::{LEAST_SECTION, LogError, LogOptions, Tracker};

/// A slot's part of dirty logging.
#[derive(Default)]
pub(crate) struct Tracking {
    /// A [`Running`], or 0.
    running: Word,
    /// Made when it is first started, and kept: who finds that one runs finds it.
    log: Once<Box<Log>>,
}

/// The log itself.
pub(crate) struct Log {
    /// The pages that are dirty.
    pub(super) pages: Bits,
    /// The sections that are armed.
    pub(super) armed: Bits,
    /// Those that are being looked through, by who owns the log: a get takes all that it sets, so that none are left for the
    /// next log.
    pub(super) sealed: Bits,
    /// Where writes fault.
    pub(super) heat: Heat,
    /// For who starts, stops, gets, clears, unmaps, or puts blocks together.
    own: Lock<Own>,
}

/// What the owner of the log keeps.
pub(crate) struct Own {
    pub(super) options: LogOptions,
    /// How many times it was started.
    starts: u64,
    pub(super) cold: Cold,
}

/// A log that runs: its tracker in bits 0 to 2 (1 and up), log2 of a section's pages in bits 3 to 6, above them the number
/// of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running(u64);

impl Tracking {
    /// The log, where one was ever started.
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.get().map(|log| &**log)
    }

    /// The log of a slot of so many pages.
    pub(super) fn log_or_new(&self, pages: u64) -> Result<&Log, LogError> {
        let new = || Log::new(pages).map(Box::new).ok_or(LogError::NoMemory);
        self.log.try_call_once(new).map(|log| &**log)
    }

    /// What runs now.
    #[inline(always)]
    pub(crate) fn running(&self) -> Option<Running> {
        let running = self.running.load(Ordering::Acquire);
        (running != 0).then_some(Running(running))
    }

    /// What runs now, and its log: there is one where something runs.
    #[inline(always)]
    pub(crate) fn running_log(&self) -> Option<(Running, &Log)> {
        Some((self.running()?, self.log()?))
    }

    /// It runs from now on.
    pub(super) fn run(&self, own: &mut Own, options: &LogOptions) -> Running {
        own.starts += 1;
        own.options = *options;
        let tracker = Tracker::ALL.iter().position(|tracker| *tracker == options.tracker).unwrap_or(0) as u64 + 1;
        let running = tracker | u64::from(options.section_pages().trailing_zeros()) << 3 | own.starts << 7;
        self.running.store(running, Ordering::Release);
        Running(running)
    }

    /// Nothing runs any more.
    pub(super) fn end(&self) {
        // Nothing is handed over by it.
        self.running.store(0, Ordering::Relaxed);
    }
}

impl Log {
    /// Waits until nobody owns it, and does: meanwhile nothing is told, or cleared.
    pub(crate) fn hold<P: Platform>(&self, platform: &P) -> LockGuard<'_, Own> {
        self.own.lock(platform)
    }

    fn new(pages: u64) -> Option<Self> {
        let sections = || Bits::new(pages.div_ceil(LEAST_SECTION));
        let options = LogOptions::new(Tracker::WriteProtect);
        Some(Self {
            pages: Bits::new(pages)?,
            armed: sections()?,
            sealed: sections()?,
            heat: Heat::new(pages)?,
            own: Lock::new(Own { options, starts: 0, cold: Cold::new(pages)? }),
        })
    }
}

impl Running {
    /// The way.
    #[inline]
    pub(crate) fn tracker(self) -> Tracker {
        Tracker::ALL[(self.0 as usize & 7).saturating_sub(1) % Tracker::ALL.len()]
    }

    /// Whether a write that faults has hardware record others: the trackers from [`Tracker::Combined`] on.
    #[inline]
    pub(super) fn arms_around(self) -> bool {
        self.0 & 4 != 0
    }

    /// Pages of a section.
    #[inline]
    pub(super) fn section(self) -> u64 {
        1 << (self.0 >> 3 & 0xf)
    }

    /// Whether pages are armed as they are mapped.
    #[inline]
    pub(crate) fn maps_armed(self) -> bool {
        self.tracker() == Tracker::Hardware
    }
}
