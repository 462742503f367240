// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty logs of all of a guest's memslots, for a launcher that copies the guest's memory while the guest runs.
//!
//! The launcher gets which pages were written, clears some, and reads these (`twofold_memory::dirty` has why no write is lost
//! by that). Each call is a piece in the sense of [`sweep`](super::sweep): it takes the guest's lock for sweeps (P1), and looks at
//! the guest's life (P2).
//!
//! Invariant: either no memslot has a log, or the log of RAM runs. The others' logs start before it, and stop after it.
//!
//! A piece masks interrupts for longer than one of a sweep: to start logs touches no table, but makes bitmaps, and
//! [`Tracker::WriteProtect`] protects all memory then; to get the pages of a tracker that hardware helps looks at all pages
//! that hardware tracks; and to clear many pages protects each.

use alloc::vec::Vec;

use twofold_abi::channel::wire::WrittenWord;
use twofold_abi::channel::{PAGE_SIZE, Track};
use twofold_abi::virt::memslot;
use twofold_memory::SlotId;
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogError, LogOptions, Tracker};
use twofold_vmm::life::{NotNow, State};
use zerocopy::{FromBytes, IntoBytes};

use super::Vm;
use super::sweep::Unswept;
use crate::experiment::EnginePlatform;
use crate::granule::{GuestGranule, PAGE};

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untracked {
    /// The guest is not in a state for it, or a log fails.
    #[error(transparent)]
    Log(#[from] Unswept),
    /// No tracker has this number.
    #[error("there is no tracker {0}")]
    Tracker(u8),
    /// The CPU keeps no records that this tracker needs.
    #[error("this CPU keeps no dirty state, which the tracker {0} needs")]
    DirtyState(&'static str),
    /// The log counts other pages than the protocol.
    #[error("this image's tables have pages of {0} bytes, and the protocol tracks pages of 4096")]
    PageSize(u64),
    /// The guest has no such memslot.
    #[error("the guest has no memslot {0}")]
    Memslot(u8),
    /// The content is no list of pages.
    #[error("{0} bytes are no list of pages")]
    Content(usize),
}

impl Vm {
    /// Starts the logs of all memslots.
    pub(crate) fn track(&self, track: Track) -> Result<(), Untracked> {
        let tracker = *Tracker::ALL.get(usize::from(track.tracker)).ok_or(Untracked::Tracker(track.tracker))?;
        if tracker.needs_dirty_state() && !self.memory.stage2().features().hardware_dirty_state {
            return Err(Untracked::DirtyState(tracker.name()));
        }
        if PAGE != PAGE_SIZE as u64 {
            return Err(Untracked::PageSize(PAGE));
        }
        let options = LogOptions::new(tracker);
        let options = LogOptions { all_dirty: options.all_dirty && track.all, ..options };
        self.sweeps.begin_copy(|| {
            self.look()?;
            // A log of RAM that runs is another's, and so are those of the others.
            if self.memory.dirty_log(self.ram)?.tracker().is_some() {
                return Ok(self.memory.dirty_log(self.ram)?.start(&options)?);
            }
            for (started, (_, slot)) in self.memslots().enumerate() {
                if let Err(why) = self.memory.dirty_log(slot).and_then(|log| log.start(&options)) {
                    self.stop_logs(started)?;
                    return Err(why.into());
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Appends a [`WrittenWord`] for each 64 pages of the memslot that has pages in its log.
    pub(crate) fn written(&self, memslot: u8, to: &mut Vec<u8>) -> Result<(), Untracked> {
        self.with_log(memslot, |log| {
            let mut pages = DirtyPages::new();
            log.get(&mut pages)?;
            to.try_reserve(pages.words().len() * size_of::<WrittenWord>()).map_err(|_| LogError::NoMemory)?;
            for word in pages.words() {
                let word = WrittenWord { first_page: word.first_page.into(), mask: word.mask.into() };
                to.extend_from_slice(word.as_bytes());
            }
            Ok(())
        })
    }

    /// Takes these pages out of the memslot's log.
    pub(crate) fn clear(&self, memslot: u8, content: &[u8]) -> Result<(), Untracked> {
        let words = <[WrittenWord]>::ref_from_bytes(content).map_err(|_| Untracked::Content(content.len()))?;
        self.with_log(memslot, |log| {
            // The `get` of this tracker has cleared what it reported.
            if log.tracker() == Some(Tracker::WriteProtect) {
                return Ok(());
            }
            // Words in a row are one clear, so that they have one flush.
            for run in words.chunk_by(|one, next| one.first_page.get().checked_add(64) == Some(next.first_page.get())) {
                let first = run.first().map_or(0, |word| word.first_page.get());
                let count = (run.len() as u64 * 64).min(log.pages().saturating_sub(first));
                let masks: Vec<u64> = run.iter().map(|word| word.mask.get()).collect();
                log.clear(first, count, &masks)?;
            }
            Ok(())
        })
    }

    /// Stops the logs of the first `count` memslots.
    pub(super) fn stop_logs(&self, count: usize) -> Result<(), LogError> {
        let stop = |(_, slot)| self.memory.dirty_log(slot)?.stop();
        self.memslots().take(count).try_for_each(stop)
    }

    /// The guest's memslots with their numbers. RAM is the last.
    pub(super) fn memslots(&self) -> impl Iterator<Item = (u8, SlotId)> {
        let flash = self.flash.map(|slot| (memslot::FLASH, slot));
        flash.into_iter().chain([(memslot::STOLEN_TIME, self.stolen), (memslot::RAM, self.ram)])
    }

    /// Calls `act` with the log of a memslot, as a piece.
    fn with_log(
        &self,
        memslot: u8,
        act: impl FnOnce(DirtyLog<'_, EnginePlatform, GuestGranule>) -> Result<(), LogError>,
    ) -> Result<(), Untracked> {
        let (_, slot) = self.memslots().find(|(number, _)| *number == memslot).ok_or(Untracked::Memslot(memslot))?;
        Ok(self.sweeps.piece(|| -> Result<(), Unswept> {
            self.look()?;
            Ok(act(self.memory.dirty_log(slot)?)?)
        })?)
    }

    /// P2.
    pub(super) fn look(&self) -> Result<(), NotNow> {
        match self.life.change(|life, _| life.state()) {
            State::Running | State::Stopping | State::Stopped => Ok(()),
            other => Err(NotNow(other)),
        }
    }
}
