// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slot's dirty log, as its callers hold it: starting and stopping it (D7 to D10), and what the other calls share.

use core::ops::ControlFlow;

use twofold_stage2::primitive::full_fence;
use twofold_stage2::{Downgrade, Granule, Ipa, IpaRange, Kib4, Level, LockGuard, Marked, Pending, Platform};

use super::bits::WORD;
use super::log::{Log, Own, Running};
use super::options::{LogError, LogOptions, Tracker};
use crate::guest::GuestMemory;
use crate::slots::{Content, Memslot, SlotId};

/// The dirty log of one slot.
///
/// ```
/// # use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
/// # use twofold_memory::{GuestMemory, SlotId};
/// # use twofold_stage2::Platform;
/// fn copy<P: Platform>(memory: &GuestMemory<P>, slot: SlotId, mut send: impl FnMut(u64)) -> Result<(), LogError> {
///     let log = memory.dirty_log(slot)?;
///     log.start(&LogOptions::new(Tracker::Manual))?;
///     let mut dirty = DirtyPages::new();
///     for _round in 0..10 {
///         log.get(&mut dirty)?;
///         log.clear_these(&dirty)?;
///         // Only now: the pages hold what was written up to the clear.
///         dirty.pages().for_each(&mut send);
///     }
///     log.stop()
/// }
/// ```
pub struct DirtyLog<'a, P: Platform, G: Granule = Kib4> {
    pub(super) memory: &'a GuestMemory<P, G>,
    pub(super) slot: &'a Memslot<G>,
}

/// A log that runs, and its lock.
pub(super) struct Held<'a, P: Platform, G: Granule> {
    pub(super) memory: &'a GuestMemory<P, G>,
    pub(super) slot: &'a Memslot<G>,
    pub(super) log: &'a Log,
    pub(super) own: LockGuard<'a, Own>,
    pub(super) running: Running,
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// The log of a slot.
    ///
    /// # Errors
    ///
    /// [`LogError::SlotGone`] if the slot was removed. [`LogError::NotRam`] or [`LogError::ReadOnly`] if it cannot have
    /// a log.
    pub fn dirty_log(&self, slot: SlotId) -> Result<DirtyLog<'_, P, G>, LogError> {
        let slot = self.slots.get(slot).ok_or(LogError::SlotGone)?;
        let start = slot.range.start;
        match slot.content {
            Content::Device(_) => Err(LogError::NotRam { start }),
            _ if !slot.writable => Err(LogError::ReadOnly { start }),
            Content::Ram(_) | Content::Preallocated(_) => Ok(DirtyLog { memory: self, slot }),
        }
    }
}

impl<'a, P: Platform, G: Granule> DirtyLog<'a, P, G> {
    /// The number of pages in the slot: pages of the granule.
    pub fn pages(&self) -> u64 {
        (self.slot.range.end - self.slot.range.start) / G::SIZE
    }

    /// The tracker of the running log, or `None` if no log runs.
    pub fn tracker(&self) -> Option<Tracker> {
        self.slot.tracking.running().map(Running::tracker)
    }

    /// Starts the log. Pages that are written from now on will be in it.
    ///
    /// With [`all_dirty`](LogOptions::all_dirty) every page is in the log at first, and no table is touched. Otherwise
    /// the log starts empty. When this returns, the whole slot is write-protected (made clean, with
    /// [`Tracker::Hardware`]), and its blocks are split as far as there are table pages.
    ///
    /// # Errors
    ///
    /// The log already runs; the options are invalid; the CPU does not record writes; no memory is left for the
    /// bitmaps. Nothing has changed then. [`LogError::Stage2`] if the tables cannot be changed: the log does not run
    /// then.
    pub fn start(&self, options: &LogOptions) -> Result<(), LogError> {
        options.check::<G>()?;
        if options.tracker.needs_dirty_state() && !self.memory.stage2.features().hardware_dirty_state {
            return Err(LogError::NoDirtyState);
        }
        let (memory, slot) = (self.memory, self.slot);
        let log = slot.tracking.log_or_new(self.pages())?;
        let mut own = log.hold(memory.stage2.platform());
        if slot.tracking.running().is_some() {
            return Err(LogError::Running { start: slot.range.start });
        }
        log.tracked.clear();
        own.cold.forget();
        if options.all_dirty {
            log.pages.fill();
        } else {
            log.pages.clear();
        }
        let running = slot.tracking.run(&mut own, options);
        full_fence();
        let held = Held { memory, slot, log, own, running };
        if options.all_dirty { Ok(()) } else { held.protect_all().inspect_err(|_| slot.tracking.end()) }
    }

    /// Stops the log: no page is marked any more. Pages stay protected until the guest writes to them, or until they
    /// are coalesced ([`coalesce_range`](Self::coalesce_range)).
    ///
    /// # Errors
    ///
    /// The log does not run.
    pub fn stop(&self) -> Result<(), LogError> {
        let _held = self.held()?;
        self.slot.tracking.end();
        Ok(())
    }

    /// Puts the pages of `range` into the log, after a write that went past the guest's tables, such as a device's own
    /// access to memory. Call it after the write: a clear between the call and the write would miss it.
    ///
    /// The part of `range` outside the slot is ignored. If no log runs, the call does nothing.
    pub fn mark(&self, range: IpaRange) {
        self.memory.note_writes(self.slot, range);
    }

    pub(super) fn held(&self) -> Result<Held<'a, P, G>, LogError> {
        let not_running = LogError::NotRunning { start: self.slot.range.start };
        let log = self.slot.tracking.log().ok_or(not_running)?;
        let own = log.hold(self.memory.stage2.platform());
        let running = self.slot.tracking.running().ok_or(not_running)?;
        Ok(Held { memory: self.memory, slot: self.slot, log, own, running })
    }
}

impl<P: Platform, G: Granule> Held<'_, P, G> {
    /// Removes write access from the whole slot (D10).
    fn protect_all(&self) -> Result<(), LogError> {
        let (stage2, range, chunk) = (&self.memory.stage2, &self.slot.range, self.own.options.chunk);
        if self.running.maps_tracked() {
            // Blocks are never hardware-tracked (I2), so all are split first.
            self.split(range.clone(), chunk.max(least_chunk::<G>()))?;
            let _ = stage2.set_dbm_clean(range.clone())?.complete();
        } else {
            let _ = stage2.write_protect(range.clone())?.complete();
            if chunk != 0 {
                self.split(range.clone(), chunk)?;
            }
        }
        Ok(())
    }

    /// Splits blocks, as far as there are table pages. A block that is left is split when the guest writes to it.
    pub(super) fn split(&self, range: IpaRange, chunk: u64) -> Result<(), LogError> {
        #[cfg(feature = "baselines")]
        if self.memory.baselines.walks_to_split() {
            return Ok(self.memory.split_by_policies(range, chunk)?);
        }
        let on = |_: &mut _, _| ControlFlow::Continue(());
        let _ = self.memory.stage2.split(range, chunk, &mut self.memory.tables(), on)?;
        Ok(())
    }

    /// The address of a page of the slot.
    pub(super) fn ipa(&self, page: u64) -> Ipa {
        self.slot.range.start + page * G::SIZE
    }
}

impl Log {
    /// Puts the pages of `range` that are in the slot into the log.
    pub(crate) fn mark<G: Granule>(&self, slot: &Memslot<G>, range: &IpaRange) {
        let (start, end) = (range.start.max(slot.range.start), range.end.min(slot.range.end));
        if start < end {
            let first = (start - slot.range.start) / G::SIZE;
            self.pages.set_run(first, (end - slot.range.start).div_ceil(G::SIZE));
        }
    }

    /// Puts pages that hardware recorded into the log, up to 64 of them.
    pub(super) fn mark_found<G: Granule>(&self, slot: &Memslot<G>, marked: &Marked) {
        // A block is not hardware-tracked (I2), and all pages of a writable block are marked already (I1). Passes begin
        // at the start of the slot or of a table inside it, so `ipa` is never before the slot.
        if marked.level == Level::L3 {
            self.pages.set_from((marked.ipa - slot.range.start) / G::SIZE, marked.mask);
        }
    }
}

/// Joins pending flushes, so that one flush serves all.
pub(super) fn join<'a, P: Platform, G: Granule>(
    all: &mut Option<Pending<'a, P, Downgrade, G>>,
    pending: Pending<'a, P, Downgrade, G>,
) {
    match all {
        None => *all = Some(pending),
        Some(all) => all.join(pending),
    }
}

/// The smallest chunk to split where blocks are of no use: what one table of pages maps.
pub(super) fn least_chunk<G: Granule>() -> u64 {
    G::default().span(Level::L2)
}

const _: () = assert!(WORD == 64, "masks are words");
