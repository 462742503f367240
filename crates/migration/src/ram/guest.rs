// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of `twofold-memory`.
//!
//! Memslots to which the guest cannot write have no log, so they are sent in the first round alone. The embedder does
//! not write to them during a migration.

use alloc::vec::Vec;
use core::time::Duration;

use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Failure, FrameUse, Located, Peek, Peeked, Poke, Poked};
use twofold_memory::{Error, GuestMemory, SlotId};
use twofold_stage2::{Ipa, Platform};

use super::access::{Away, PageRead, PageWrite, Queued, RamError, SourceRam, TargetRam};
use crate::stream::Slot;

/// A guest's memory, with its memslots and a tracker.
pub struct GuestRam<'a, P: Platform> {
    memory: &'a GuestMemory<P>,
    ids: Vec<SlotId>,
    slots: Vec<Slot>,
    options: LogOptions,
    patience: Duration,
}

impl<'a, P: Platform> GuestRam<'a, P> {
    /// The memory of a guest with these memslots, in ascending order of addresses. Devices are not among them: they
    /// have no pages to send.
    ///
    /// # Errors
    ///
    /// A memslot that the guest can write to is not RAM, or has another number of pages.
    pub fn new(memory: &'a GuestMemory<P>, options: LogOptions, slots: &[(SlotId, Slot)]) -> Result<Self, RamError> {
        for &(id, Slot { number: slot, pages: wanted, .. }) in slots.iter().filter(|(_, slot)| !slot.read_only) {
            let here = memory.dirty_log(id).map_err(|error| RamError::Log { slot, error })?.pages();
            if here != wanted {
                return Err(RamError::Pages { slot, wanted, here });
            }
        }
        let (ids, slots) = slots.iter().copied().unzip();
        Ok(Self { memory, ids, slots, options, patience: PATIENCE })
    }

    /// Waits no longer than this for the guest's store: at a source while not one page comes, at a target until a page that
    /// came has a frame. While the guest is stopped, it stands still for so long at most because of its store. Unless this
    /// is called, 10 seconds.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The address of a page, if the memslot has it.
    fn page(&self, slot: usize, page: u64) -> Result<Ipa, RamError> {
        let found = self.slots.get(slot).filter(|found| page < found.pages);
        Ok(Ipa::new((found.ok_or(RamError::NoPage { slot, page })?.first + page) << SHIFT))
    }

    /// Calls the log of a memslot, if the memslot can have one.
    fn log(
        &self,
        slot: usize,
        call: impl FnOnce(twofold_memory::dirty::DirtyLog<'_, P>) -> Result<(), twofold_memory::dirty::LogError>,
    ) -> Result<(), RamError> {
        let (Some(&id), Some(kept)) = (self.ids.get(slot), self.slots.get(slot)) else {
            return Err(RamError::NoPage { slot, page: 0 });
        };
        if kept.read_only {
            return Ok(());
        }
        self.memory.dirty_log(id).and_then(call).map_err(|error| RamError::Log { slot: kept.number, error })
    }
}

impl<'a, P: Platform> SourceRam for GuestRam<'a, P>
where
    GuestMemory<P>: Sync,
{
    type Away = Peek<'a, P>;

    fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn page_shift(&self) -> u8 {
        SHIFT as u8
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        let options = LogOptions { all_dirty: self.options.all_dirty && all, ..self.options };
        for slot in 0..self.slots.len() {
            self.log(slot, |log| log.start(&options)).inspect_err(|_| {
                for slot in 0..slot {
                    let _ = self.log(slot, |log| log.stop());
                }
            })?;
        }
        Ok(())
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        self.log(slot, |log| {
            let mut pages = DirtyPages::new();
            log.get(&mut pages)?;
            for found in pages.words() {
                if let Some(word) = dirty.get_mut((found.first_page / 64) as usize) {
                    *word |= found.mask;
                }
            }
            Ok(())
        })
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        // Its `get` has cleared what it reported.
        if self.options.tracker == Tracker::WriteProtect {
            return Ok(());
        }
        self.log(slot, |log| {
            let first = first as u64 * 64;
            let count = (pages.len() as u64 * 64).min(log.pages().saturating_sub(first));
            log.clear(first, count, pages)
        })
    }

    fn stop(&self) {
        for slot in 0..self.slots.len() {
            // A log that does not run is stopped already.
            let _ = self.log(slot, |log| log.stop());
        }
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Peek<'a, P>>, RamError> {
        let ipa = self.page(slot, page)?;
        match self.memory.read(ipa, bytes) {
            Ok(()) => Ok(PageRead::Done),
            Err(Error::Absent { .. }) => {
                let mut peek = self.memory.peek(ipa)?;
                Ok(if Away::look(&mut peek, bytes) == Peeked::Read { PageRead::Done } else { PageRead::Later(peek) })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

impl<P: Platform> Away for Peek<'_, P> {
    fn look(&mut self, bytes: &mut [u8]) -> Peeked {
        match bytes.first_chunk_mut() {
            Some(bytes) => self.look(bytes),
            None => Peeked::Later,
        }
    }
}

/// A page that waits until it can be written.
pub struct QueuedPage<'a, P: Platform> {
    memory: &'a GuestMemory<P>,
    poke: Poke<'a, P>,
    slot: usize,
    page: u64,
}

impl<P: Platform> Queued for QueuedPage<'_, P> {
    fn look(&mut self, content: Option<&[u8]>) -> Result<bool, RamError> {
        let wrong = RamError::NoPage { slot: self.slot, page: self.page };
        let content = content.map(|bytes| bytes.try_into().map_err(|_| wrong)).transpose()?;
        match self.poke.look(content)? {
            Poked::Written => Ok(true),
            Poked::Later => Ok(false),
            Poked::Failed(failure) => Err(self.full(None, failure)),
        }
    }

    fn silent(&self, waited: Duration) -> RamError {
        self.full(Some(waited), None)
    }
}

impl<P: Platform> QueuedPage<'_, P> {
    fn full(&self, waited: Option<Duration>, failure: Option<Failure>) -> RamError {
        let FrameUse { data, limit, leaving, .. } = self.memory.frame_use();
        RamError::Full { slot: self.slot, page: self.page, data, limit, leaving, waited, failure }
    }
}

impl<'a, P: Platform> TargetRam for GuestRam<'a, P>
where
    GuestMemory<P>: Sync,
{
    type Queued = QueuedPage<'a, P>;

    fn write(&self, slot: usize, page: u64, content: Option<&[u8]>) -> Result<PageWrite<QueuedPage<'a, P>>, RamError> {
        let ipa = self.page(slot, page)?;
        let written = match content {
            Some(bytes) => self.memory.write(ipa, bytes),
            None => self.zero(ipa),
        };
        match written {
            Ok(()) => Ok(PageWrite::Done),
            Err(Error::Absent { .. }) => {
                let mut queued = QueuedPage { memory: self.memory, poke: self.memory.poke(ipa)?, slot, page };
                Ok(if queued.look(content)? { PageWrite::Done } else { PageWrite::Later(queued) })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

impl<P: Platform> GuestRam<'_, P> {
    /// Makes a page zero. A page that was never touched reads as zero, and stays without a frame.
    fn zero(&self, ipa: Ipa) -> Result<(), Error> {
        if self.memory.locate(ipa)? == Located::Zero {
            return Ok(());
        }
        let mut bytes = [0; 512];
        for part in (0..PAGE).step_by(bytes.len()) {
            self.memory.read(ipa + part as u64, &mut bytes)?;
            if bytes.iter().any(|&byte| byte != 0) {
                return self.memory.write(ipa, &ZEROES);
            }
        }
        Ok(())
    }
}

/// The pages of a dirty log have 4 KiB.
const SHIFT: u32 = 12;
const PAGE: usize = 1 << SHIFT;
const ZEROES: [u8; PAGE] = [0; PAGE];

/// How long nothing may come from a store, unless the embedder says so.
const PATIENCE: Duration = Duration::from_secs(10);
