// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages a guest has written: one interface over several ways to find out ([`Tracker`]).
//!
//! # What holds
//!
//! * **P1: a page that was written is in the log, or about to be.** The CPU that answers the write fault, or that
//!   writes past the guest's tables, puts it there before its call returns. Hardware's records are put there by the
//!   next [`get`](DirtyLog::get).
//! * **P2: a page that is not in the log is as it was last read**, from the return of a [`clear`](DirtyLog::clear) (or
//!   of the `get` of [`Tracker::WriteProtect`]) until the page is in the log again.
//!
//! So a copy of memory is made by get, clear and read, in this order. If every vCPU is out of the guest, a page that a
//! last `get` does not report is as it was last read.
//!
//! # The protocol
//!
//! **Data.** Each slot has one word that says which log runs: its tracker and the number of its start, or 0. Its log
//! has a bit for each page (*the page's bit*: dirty), and a bit for each section of pages (*the section's bit*: the
//! next `get` reads these pages' descriptors). All are atomic. A log's lock is held to start, stop, get, clear,
//! coalesce and unmap. Faults do not take it.
//!
//! **Invariants**, while a log runs:
//!
//! * I1: a page that may be written without a record of hardware's (S2AP\[1\] set, DBM clear) has its bit set, or a CPU
//!   is about to set it (D4, D17).
//! * I2: no block is hardware-tracked.
//! * I3: a hardware-tracked page has its bit set, or the next `get` looks at it, or a CPU is about to set its section's
//!   bit (D5) or to clear its DBM (D6, D15).
//!
//! **A write fault** (`fault.rs`), without a lock:
//!
//! * D1: read which log runs. This decides what to map: a page or a block, with DBM or without.
//! * D2: make the page or block writable. [`Tracker::Hardware`] maps a page with DBM, and goes on at D6: its `get`
//!   looks at all pages.
//! * D3: execute a full fence.
//! * D4: read again which log runs. If one runs, set the bit of each page that D2 may have made writable.
//!
//! With [`Tracker::Combined`] and [`Tracker::Adaptive`], the fault goes on:
//!
//! * D5: set DBM on the pages around, then set their sections' bits.
//! * D6: execute a full fence, and read again which log runs. If it is not the log of D1, clear DBM, set the bits of
//!   the pages that hardware recorded, and flush.
//!
//! **A start**, with the log's lock:
//!
//! * D7: clear all sections' bits. Clear all pages' bits; with [`all_dirty`](LogOptions::all_dirty), set them.
//! * D8: publish the log as running, with release.
//! * D9: execute a full fence.
//! * D10: unless `all_dirty`, remove the write access of the whole slot ([`Tracker::Hardware`]: set DBM and make the
//!   pages clean), and flush.
//!
//! **A clear**, with the log's lock, as KVM orders it:
//!
//! * D11: take the bits of the pages, with acquire.
//! * D12: remove the write access of these pages. If hardware tracks them from here on, make them clean instead.
//! * D13: flush. The clear returns when the flush is complete.
//!
//! **A `get` that ends hardware's records** (`get.rs`; Kolothum 2023), with the log's lock:
//!
//! * D14: take the section's bit.
//! * D15: clear DBM in the section. A written page stays writable, a clean one becomes read-only.
//! * D16: flush.
//! * D17: set the bits of the section's pages that are writable.
//!
//! Any other `get` of hardware's records reads the descriptors and sets the pages' bits. A page's record stays until
//! D12 makes the page clean.
//!
//! # Why no write is lost
//!
//! * *Fault and start.* D3 lies between the store of D2 and the load of D4, D9 between the store of D8 and the loads of
//!   D10. So at least one side sees the other: D4 sets the bit, or D10 removes the access that D2 gave. A D4 that sees
//!   D8 also comes after D7 (release, acquire), so D7 does not clear its bit. With `all_dirty`, D7 has set all bits,
//!   and the page's first D12 takes the place of D10. A fault that races with a complete start may set bits of pages
//!   that were not written.
//! * *Fault and clear.* If D11 takes the bit that D4 set, D12 comes after D2 and removes that access. If D4 comes after
//!   D11, the bit is set again, and the next `get` reports the page. So D2 comes before D4, and D11 before D12.
//! * *A fault that sets DBM, and a `get` that ends records.* If D14 takes the bit that D5 set, D15 sees the DBM of D5.
//!   If D5 sets the bit after D14, the next `get` looks there. So D5 sets DBM before the bit, and D14 comes before D15.
//! * *Recorded late.* Until D16 is complete, a CPU may set S2AP\[1\] by a cached entry. So D17 comes after D16.
//! * *Stop and start during a fault.* The second log may not look at what the fault sets DBM on. D6 finds the other
//!   number, and takes DBM back. A start with the same tracker has another number too.
//! * *Writes past the guest's tables*, by devices and the hypervisor, go through
//!   [`GuestMemory::write`](crate::GuestMemory::write), or are reported by [`mark`](DirtyLog::mark). D3 and D4 follow
//!   the write: a clear between the bit and the write would miss it.
//! * *Unmapping*, by [`GuestMemory::unmap`](crate::GuestMemory::unmap), holds the log's lock until its flush is
//!   complete. Otherwise a clear would find the page gone, flush nothing, and return while a TLB still allows writes.
//! * *A block takes the place of a table* after a log has stopped: by [`coalesce_range`](DirtyLog::coalesce_range), with the log's
//!   lock, or by a fault that finds the table in its way, without it, so that no fault waits for a `get`. To a log that
//!   is started meanwhile, such a fault is a D2 that maps a block, and its D4 sets the bit of each page. If D4 sees the
//!   log, all pages are marked. That includes what hardware had recorded in the table, which no `get` could find any
//!   more. If D4 does not see it, D10 finds the block: a pass waits for a busy entry, and sees the entry that follows.
//!
//! # Locking
//!
//! A log's lock is taken before a slot's backing and before the frames, and is held while the engine works on the
//! tables.
//!
//! # Room for more
//!
//! Any other source of writes (a ring for each vCPU, or buffers that hardware fills: FEAT_HDBSS) sets pages' bits as a
//! fault does, and does so at the latest when a `get` asks for it.

mod adaptive;
mod bits;
mod blocks;
mod clear;
mod fault;
mod get;
mod log;
mod options;
mod pages;

use core::ops::ControlFlow;

use twofold_stage2::primitive::full_fence;
use twofold_stage2::{Downgrade, Ipa, IpaRange, Level, LockGuard, Marked, Pending, Platform};

use crate::frames::FRAME;
use crate::guest::GuestMemory;
use crate::slots::{Content, Memslot, SlotId};
use bits::WORD;
pub use blocks::CoalescedRange;
use log::Own;
pub(crate) use log::{Log, Running, Tracking};
pub use options::{LogError, LogOptions, Tracker};
pub use pages::{DirtyPages, DirtyWord};

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
pub struct DirtyLog<'a, P: Platform> {
    memory: &'a GuestMemory<P>,
    slot: &'a Memslot,
}

/// A log that runs, and its lock.
struct Held<'a, P: Platform> {
    memory: &'a GuestMemory<P>,
    slot: &'a Memslot,
    log: &'a Log,
    own: LockGuard<'a, Own>,
    running: Running,
}

impl<P: Platform> GuestMemory<P> {
    /// The log of a slot.
    ///
    /// # Errors
    ///
    /// [`LogError::SlotGone`] if the slot was removed. [`LogError::NotRam`] or [`LogError::ReadOnly`] if it cannot have
    /// a log.
    pub fn dirty_log(&self, slot: SlotId) -> Result<DirtyLog<'_, P>, LogError> {
        let slot = self.slots.get(slot).ok_or(LogError::SlotGone)?;
        let start = slot.range.start;
        match slot.content {
            Content::Device(_) => Err(LogError::NotRam { start }),
            _ if !slot.writable => Err(LogError::ReadOnly { start }),
            Content::Ram(_) | Content::Preallocated(_) => Ok(DirtyLog { memory: self, slot }),
        }
    }
}

impl<'a, P: Platform> DirtyLog<'a, P> {
    /// The number of 4 KiB pages in the slot.
    pub fn pages(&self) -> u64 {
        (self.slot.range.end - self.slot.range.start) / FRAME
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
        options.check()?;
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

    fn held(&self) -> Result<Held<'a, P>, LogError> {
        let not_running = LogError::NotRunning { start: self.slot.range.start };
        let log = self.slot.tracking.log().ok_or(not_running)?;
        let own = log.hold(self.memory.stage2.platform());
        let running = self.slot.tracking.running().ok_or(not_running)?;
        Ok(Held { memory: self.memory, slot: self.slot, log, own, running })
    }
}

impl<P: Platform> Held<'_, P> {
    /// Removes write access from the whole slot (D10).
    fn protect_all(&self) -> Result<(), LogError> {
        let (stage2, range, chunk) = (&self.memory.stage2, &self.slot.range, self.own.options.chunk);
        if self.running.maps_tracked() {
            // Blocks are never hardware-tracked (I2), so all are split first.
            self.split(range.clone(), chunk.max(LEAST_CHUNK))?;
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
    fn split(&self, range: IpaRange, chunk: u64) -> Result<(), LogError> {
        #[cfg(feature = "baselines")]
        if self.memory.before.walks_to_split() {
            return Ok(self.memory.split_as_before(range, chunk)?);
        }
        let on = |_: &mut _, _| ControlFlow::Continue(());
        let _ = self.memory.stage2.split(range, chunk, &mut self.memory.tables(), on)?;
        Ok(())
    }

    /// The address of a page of the slot.
    fn ipa(&self, page: u64) -> Ipa {
        self.slot.range.start + page * FRAME
    }
}

impl Log {
    /// Puts the pages of `range` that are in the slot into the log.
    pub(super) fn mark(&self, slot: &Memslot, range: &IpaRange) {
        let (start, end) = (range.start.max(slot.range.start), range.end.min(slot.range.end));
        if start < end {
            let first = (start - slot.range.start) / FRAME;
            self.pages.set_run(first, (end - slot.range.start).div_ceil(FRAME));
        }
    }

    /// Puts pages that hardware recorded into the log, up to 64 of them.
    fn mark_found(&self, slot: &Memslot, marked: &Marked) {
        // A block is not hardware-tracked (I2), and all pages of a writable block are marked already (I1). Passes begin
        // at the start of the slot or of a table inside it, so `ipa` is never before the slot.
        if marked.level == Level::L3 {
            self.pages.set_from((marked.ipa - slot.range.start) / FRAME, marked.mask);
        }
    }
}

/// Joins pending flushes, so that one flush serves all.
fn join<'a, P: Platform>(all: &mut Option<Pending<'a, P, Downgrade>>, pending: Pending<'a, P, Downgrade>) {
    match all {
        None => *all = Some(pending),
        Some(all) => all.join(pending),
    }
}

/// The smallest chunk to split where blocks are of no use.
const LEAST_CHUNK: u64 = 2 << 20;

const _: () = assert!(WORD == 64, "masks are words");
