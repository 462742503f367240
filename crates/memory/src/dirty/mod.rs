// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages a guest has written: one interface over several ways to find out ([`Tracker`]).
//!
//! # What holds
//!
//! **A page that was written is in the log, or is going to be**: by who answers the fault, or does the write, before that
//! returns. **A page in no log is as it was last read**: after a [`clear`](DirtyLog::clear) (or the
//! [`get`](DirtyLog::get) of [`Tracker::WriteProtect`]) has returned, and until it is in the log again. So who copies memory
//! gets, clears, and reads; with every vCPU out of the guest, a page that another `get` does not tell of is as it was read.
//!
//! # How
//!
//! While a log runs, a page that may be written without a record of hardware's (S2AP\[1\] set, DBM clear) is in the log, or
//! somebody is about to put it there; no block is armed; a page that is armed is in what the next `get` looks through.
//!
//! *A fault* lets the guest write first, and marks the page then: who clears in between has cleared a mark that was there
//! before, and protects after that, so it protects again what was just allowed, or finds no mark, which is yet to come. Then
//! it executes a full fence and looks whether a log runs, and which. *A start* says that the log runs, executes a full fence,
//! and protects after: one of the two sees the other. Who finds another log than the one it acted for undoes what it armed.
//!
//! *A clear* takes the bits, then takes the write access of these pages, then flushes; only then does it return. A `get` that
//! ends hardware's records clears the section's bit first, then DBM, flushes, and looks at what was recorded after that
//! (source S3): who arms the section again in between sets the bit again.
//!
//! *Writes past the guest's tables* (devices, the hypervisor) go through [`GuestMemory::write`](crate::GuestMemory::write), or
//! are told of by [`mark`](DirtyLog::mark): after the write, or a clear in between would miss it.
//!
//! *A block takes the place of a table* after a log has stopped: ahead of faults ([`rejoin`](DirtyLog::rejoin), with the log's
//! lock), or by a fault that finds the table in its way, without it: a fault waits for nobody who reads a log. To a log that is
//! started meanwhile such a fault is one that maps a block where nothing was: it makes the block writable, then executes the
//! full fence, then looks, and marks each of its pages. So either it finds the log and all is marked, what hardware had
//! recorded in the table included, which nobody else finds any more; or the start's pass, which comes after, finds the block:
//! a pass waits for an entry that is broken, and sees what it becomes. What is marked for nothing is the price of a fault that
//! was overtaken by a whole start.
//!
//! *Pages that are unmapped* while a log runs go by [`GuestMemory::unmap`](crate::GuestMemory::unmap), with the log's lock: a
//! clear that found them gone would have nothing to flush, while a TLB still lets them be written.
//!
//! # Locking
//!
//! Each log has a lock, for who starts, stops, gets, clears, unmaps, or puts blocks together. It is the first one to be taken,
//! before a slot's backing and the frames, and held while the engine works on the tables. Faults do not take it.
//!
//! # Room for more
//!
//! Whatever else finds writes (a ring for each vCPU, buffers that hardware fills: FEAT_HDBSS) marks pages as a fault does, at
//! the latest when a `get` asks for it.

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
use twofold_stage2::{Ipa, IpaRange, Level, LockGuard, Marked, Narrowed, Pending, Platform};

use crate::frames::FRAME;
use crate::guest::GuestMemory;
use crate::slots::{Content, Kept, SlotId};
use bits::WORD;
pub use blocks::Rejoined;
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
///         // Not before: what is read is what was written up to here.
///         dirty.pages().for_each(&mut send);
///     }
///     log.stop()
/// }
/// ```
pub struct DirtyLog<'a, P: Platform> {
    memory: &'a GuestMemory<P>,
    slot: &'a Kept,
}

/// A log that runs, and its lock.
struct Held<'a, P: Platform> {
    memory: &'a GuestMemory<P>,
    slot: &'a Kept,
    log: &'a Log,
    own: LockGuard<'a, Own>,
    running: Running,
}

impl<P: Platform> GuestMemory<P> {
    /// The log of a slot.
    ///
    /// # Errors
    ///
    /// There is no such slot any more, or it has no log: it is no RAM, or the guest may not write to it.
    pub fn dirty_log(&self, slot: SlotId) -> Result<DirtyLog<'_, P>, LogError> {
        let slot = self.slots.get(slot).ok_or(LogError::SlotGone)?;
        let start = slot.range.start;
        match slot.content {
            Content::Device(_) => Err(LogError::NotRam { start }),
            _ if !slot.writable => Err(LogError::ReadOnly { start }),
            Content::Ram(_) | Content::Given(_) => Ok(DirtyLog { memory: self, slot }),
        }
    }
}

impl<'a, P: Platform> DirtyLog<'a, P> {
    /// How many pages the slot has, of 4 KiB.
    pub fn pages(&self) -> u64 {
        (self.slot.range.end - self.slot.range.start) / FRAME
    }

    /// The tracker that runs, if one does.
    pub fn tracker(&self) -> Option<Tracker> {
        self.slot.tracking.running().map(Running::tracker)
    }

    /// Starts it. What is written from now on will be in the log; with [`all_dirty`](LogOptions::all_dirty) everything is, and
    /// no table is touched. Otherwise all of the slot is write-protected (made clean, with [`Tracker::Hardware`]) when this
    /// returns, and split as far as there are table pages.
    ///
    /// # Errors
    ///
    /// It runs already; the options make no sense; the CPU does not record writes. Nothing has changed then.
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
        log.armed.clear();
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

    /// Stops it: nothing is marked any more. What is protected stays so until the guest writes there, or until blocks are
    /// put together ([`rejoin`](Self::rejoin)).
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn stop(&self) -> Result<(), LogError> {
        let _held = self.held()?;
        self.slot.tracking.end();
        Ok(())
    }

    /// Puts pages into the log, for who wrote to them past the guest's tables, and has done so: with a device's own access to
    /// memory, say. Whatever is outside the slot is of no importance, as is all of it while no log runs.
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
    /// Takes the write access of the whole slot.
    fn protect_all(&self) -> Result<(), LogError> {
        let (stage2, range, chunk) = (&self.memory.stage2, &self.slot.range, self.own.options.chunk);
        if self.running.maps_armed() {
            // Blocks are not armed, so there should be none.
            self.split(range.clone(), chunk.max(LEAST_CHUNK))?;
            let _ = stage2.arm_clean(range.clone())?.complete();
        } else {
            let _ = stage2.write_protect(range.clone())?.complete();
            if chunk != 0 {
                self.split(range.clone(), chunk)?;
            }
        }
        Ok(())
    }

    /// Splits what blocks there are, as far as there are table pages: what is left is split when the guest writes there.
    fn split(&self, range: IpaRange, chunk: u64) -> Result<(), LogError> {
        #[cfg(feature = "baselines")]
        if self.memory.before.walks_to_split() {
            return Ok(self.memory.split_as_before(range, chunk)?);
        }
        let on = |_: &mut _, _| ControlFlow::Continue(());
        let _ = self.memory.stage2.split(range, chunk, &mut self.memory.tables(), on)?;
        Ok(())
    }

    /// Where a page of the slot is.
    fn ipa(&self, page: u64) -> Ipa {
        self.slot.range.start + page * FRAME
    }
}

impl Log {
    /// Puts the pages of `range` that are in the slot into the log.
    pub(super) fn mark(&self, slot: &Kept, range: &IpaRange) {
        let (start, end) = (range.start.max(slot.range.start), range.end.min(slot.range.end));
        if start < end {
            let first = (start - slot.range.start) / FRAME;
            self.pages.set_run(first, (end - slot.range.start).div_ceil(FRAME));
        }
    }

    /// Puts pages into the log that hardware recorded, up to 64 of them.
    fn mark_found(&self, slot: &Kept, marked: &Marked) {
        // What may be written of blocks, which are not armed, is marked. Pages are looked for from the start of the slot, or of
        // a table: never before it.
        if marked.level == Level::L3 {
            self.pages.set_from((marked.ipa - slot.range.start) / FRAME, marked.mask);
        }
    }
}

/// One flush for all.
fn join<'a, P: Platform>(all: &mut Option<Pending<'a, P, Narrowed>>, pending: Pending<'a, P, Narrowed>) {
    match all {
        None => *all = Some(pending),
        Some(all) => all.join(pending),
    }
}

/// What is split at least where blocks are of no use.
const LEAST_CHUNK: u64 = 2 << 20;

const _: () = assert!(WORD == 64, "masks are words");
