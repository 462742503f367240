// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest with a store costs and waits for: the figures `swap.*` and `pages.*` of [`twofold_abi::control`].
//!
//! Invariant: a figure decides nothing. Each count of a vCPU has one writer at a time, the CPU that has the vCPU.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use crate::granule::Memory;
use crate::{read_sysreg, timer};

/// What is counted.
pub(crate) struct Counts {
    /// Pages that left. The task counts them.
    out: AtomicU64,
    /// Pages by which its limit was raised. The task that moves limits counts them.
    granted: AtomicU64,
    waits: Vec<Waits>,
    window: Mutex<Window>,
}

/// How a vCPU waited for pages.
#[derive(Default)]
pub(crate) struct Waits {
    /// When the wait that is under way began; 0 if there is none.
    since: AtomicU64,
    /// How long all others were, in ticks.
    ticks: AtomicU64,
    count: AtomicU64,
    /// Pages that were announced to it instead.
    announced: AtomicU64,
}

/// The time for which the working set is counted: from one statistics command to the next.
#[derive(Default)]
struct Window {
    is_counted: bool,
    /// When it began, and how many accessed pages had left then.
    began: Option<(u64, u64)>,
    working_set: Option<u64>,
}

/// Figures of one guest, or of several together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    counts: [u64; COUNTS.len()],
    now: [u64; NOW.len()],
}

/// Those that count up.
const COUNTS: [&str; 9] = [
    "pages_out",
    "pages_written",
    "pages_read",
    "pages_ahead",
    "written_by_faults",
    "waits",
    "waited",
    "announced",
    "granted",
];
/// Those that are so now.
const NOW: [&str; 6] = ["resident", "limit", "share", "stored", "awaited", "absent"];
/// A window is at least this part of a second.
const SHORTEST: u64 = 10;

impl Counts {
    pub(super) fn new(vcpus: u32) -> Self {
        let waits = (0..vcpus).map(|_| Waits::default()).collect();
        Self { out: AtomicU64::new(0), granted: AtomicU64::new(0), waits, window: Mutex::default() }
    }

    /// The task has begun to write these pages out, or they are away.
    pub(super) fn left(&self, pages: u64) {
        add(&self.out, pages);
    }

    /// The guest may have this many pages more.
    pub(super) fn granted(&self, pages: u64) {
        add(&self.granted, pages);
    }

    pub(super) fn waits(&self, vcpu: usize) -> &Waits {
        &self.waits[vcpu]
    }

    /// Those now. `share` is the limit that the guest began with. `stored`, `absent`, and what was written and read, are the store's.
    pub(super) fn figures(
        &self,
        memory: &Memory,
        share: u64,
        stored: u64,
        absent: u64,
        [written, read, ahead, by_faults]: [u64; 4],
    ) -> Figures {
        let sum = |of: &dyn Fn(&Waits) -> u64| self.waits.iter().map(of).sum::<u64>();
        let (time, usage) = (timer::machine_time(), memory.frame_use());
        let (waits, announced) = (sum(&|one| get(&one.count)), sum(&|one| get(&one.announced)));
        Figures {
            counts: [
                get(&self.out),
                written,
                read,
                ahead,
                by_faults,
                waits,
                sum(&|one| one.ticks(time)),
                announced,
                get(&self.granted),
            ],
            now: [usage.data, usage.limit, share, stored, usage.waiting, absent],
        }
    }

    /// Begins to count accesses, unless that is under way or was done just before: then the last working set is still right.
    pub(crate) fn begin_window(&self) -> bool {
        let (now, shortest) = (timer::machine_time(), read_sysreg!(CNTFRQ_EL0) / SHORTEST);
        let mut window = self.window.lock();
        let is_due = window.began.is_none_or(|(began, _)| now.saturating_sub(began) >= shortest);
        let begins = is_due && !window.is_counted;
        window.is_counted |= begins;
        begins
    }

    /// Ends the count. `accessed` is the number of pages in memory that were accessed; `None`: the guest was not in a state for
    /// it. `left` is the number of accessed pages that have left up to now.
    pub(crate) fn end_window(&self, accessed: Option<u64>, left: u64) {
        let mut window = self.window.lock();
        window.is_counted = false;
        window.working_set = match (accessed, window.began) {
            (Some(accessed), Some((_, before))) => Some(accessed + left.saturating_sub(before)),
            // Nothing was cleared before.
            _ => None,
        };
        window.began = accessed.map(|_| (timer::machine_time(), left));
    }

    pub(crate) fn working_set(&self) -> Option<u64> {
        self.window.lock().working_set
    }
}

impl Waits {
    /// The vCPU waits.
    pub(crate) fn begin(&self) {
        if get(&self.since) == 0 {
            self.since.store(timer::machine_time(), Ordering::Relaxed);
            add(&self.count, 1);
        }
    }

    /// It does not, or not any more.
    #[inline(always)]
    pub(crate) fn end(&self) {
        let since = get(&self.since);
        if since != 0 {
            add(&self.ticks, timer::machine_time().saturating_sub(since));
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the number of pages that were announced to the vCPU up to now.
    pub(crate) fn announced(&self, pages: u64) {
        self.announced.store(pages, Ordering::Relaxed);
    }

    fn ticks(&self, now: u64) -> u64 {
        let since = get(&self.since);
        get(&self.ticks) + if since == 0 { 0 } else { now.saturating_sub(since) }
    }
}

impl Figures {
    /// Calls `each` with group, name and value, always in this order.
    pub fn for_each(&self, mut each: impl FnMut(&str, &str, u64)) {
        self.for_each_count(&mut each);
        NOW.iter().zip(self.now).for_each(|(name, value)| each("pages", name, value));
    }

    /// The same of those that count up.
    pub fn for_each_count(&self, mut each: impl FnMut(&str, &str, u64)) {
        COUNTS.iter().zip(self.counts).for_each(|(name, value)| each("swap", name, value));
    }

    /// Those of both guests together.
    pub fn and(mut self, other: &Self) -> Self {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, value)| *sum += value);
        self.now.iter_mut().zip(other.now).for_each(|(sum, value)| *sum += value);
        self
    }
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// There is one writer.
fn add(count: &AtomicU64, more: u64) {
    count.store(get(count) + more, Ordering::Relaxed);
}
