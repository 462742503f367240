// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long EL2 keeps interrupts masked: what the counter of instructions said where EL2 would have taken one in the
//! middle of an exit.
//!
//! A stretch with interrupts masked begins at an exit from the guest. It ends at the entry into the guest, which takes a
//! pending interrupt at once, or where long work asks whether one is pending ([`interrupt_is_pending`]) and would stop
//! for it. `stats::Meter` finds the longest one of each kind of exit. The work before the guest's first
//! entry does not count: no guest waits for it.
//!
//! Invariant: each CPU has its own [`Looks`], and is the only one that uses it.
//!
//! [`interrupt_is_pending`]: twofold_stage2::Platform::interrupt_is_pending

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::Once;

/// What this CPU's counter said each time that EL2 looked for an interrupt during the present exit. All zero at first.
pub struct Looks {
    /// Reads the counter; and the bits that it has. Not set if this CPU does not count.
    read: Once<(extern "C" fn() -> u64, u64)>,
    first: AtomicU64,
    last: AtomicU64,
    /// The most instructions between two of them.
    longest: AtomicU64,
    /// Whether this CPU has looked during the present exit.
    has_looked: AtomicBool,
}

/// The looks of one exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The counter at the first.
    pub first: u64,
    /// The counter at the last.
    pub last: u64,
    /// The most instructions between two of them; 0 if there was only one.
    pub longest: u64,
}

impl Looks {
    /// For a CPU that does not count, and has not looked.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            read: Once::new(),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            has_looked: AtomicBool::new(false),
        }
    }

    /// The counter, which has the bits of `mask`, is read by this function from now on.
    pub fn count_by(&self, read: extern "C" fn() -> u64, mask: u64) {
        self.read.call_once(|| (read, mask));
    }

    /// The instructions that this CPU has retired at EL2 since it counts.
    #[must_use]
    pub fn now(&self) -> Option<u64> {
        self.read.get().map(|(read, _)| read())
    }

    /// EL2 looks for a pending interrupt here.
    #[inline]
    pub fn look(&self) {
        if let Some((read, mask)) = self.read.get() {
            self.note(read(), *mask);
        }
    }

    fn note(&self, now: u64, mask: u64) {
        if self.has_looked.load(Ordering::Relaxed) {
            let since = now.wrapping_sub(self.last.load(Ordering::Relaxed)) & mask;
            self.longest.store(self.longest.load(Ordering::Relaxed).max(since), Ordering::Relaxed);
        } else {
            self.first.store(now, Ordering::Relaxed);
            self.has_looked.store(true, Ordering::Relaxed);
        }
        self.last.store(now, Ordering::Relaxed);
    }

    /// The looks since the last call, if there were any.
    pub fn take(&self) -> Option<Seen> {
        if !self.has_looked.load(Ordering::Relaxed) {
            return None;
        }
        self.has_looked.store(false, Ordering::Relaxed);
        let longest = self.longest.load(Ordering::Relaxed);
        self.longest.store(0, Ordering::Relaxed);
        Some(Seen { first: self.first.load(Ordering::Relaxed), last: self.last.load(Ordering::Relaxed), longest })
    }
}
