// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pinning: pages that a device reads or writes by DMA do not leave.

use twofold_stage2::{Granule, Ipa, IpaRange, Platform};

use crate::guest::{Error, GuestMemory};
use crate::ram::Ram;
use crate::slots::Content;

/// What pages are pinned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedFor {
    /// The device reads them.
    Reading,
    /// The device writes them. They are in a running dirty log when they are unpinned.
    Writing,
}

/// Pages that are pinned: in memory, until they are [unpinned](GuestMemory::unpin).
#[must_use = "unpin it: until then its pages cannot leave"]
#[derive(Debug)]
pub struct Pinned {
    range: IpaRange,
    reason: PinnedFor,
    /// `VTTBR_EL2` of the guest, which names it.
    guest: u64,
    is_over: bool,
}

impl Pinned {
    /// The pages.
    pub fn range(&self) -> IpaRange {
        self.range.clone()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        debug_assert!(self.is_over, "the pages {:?} are pinned for ever: unpin them", self.range);
    }
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Pins the pages of `range`. Each is in memory when this returns, and stays where it is until it is unpinned as
    /// often as it was pinned. Preallocated memory always is.
    ///
    /// # Errors
    ///
    /// Nothing is pinned: [`Error::Absent`] with the first page that is not in memory; [`Error::NoRam`] with the first
    /// page that is not RAM; [`Error::NoFrames`] if the heap is full, or without a store, if no frames are left.
    pub fn pin(&self, range: IpaRange, reason: PinnedFor) -> Result<Pinned, Error> {
        let mut page = range.start.align_down(G::SIZE);
        let start = page;
        while page < range.end {
            if let Err(error) = self.pin_page(page, reason) {
                self.unpin_pages(start..page);
                return Err(error);
            }
            page = page + G::SIZE;
        }
        Ok(Pinned { range: start..page, reason, guest: self.stage2.vttbr(), is_over: false })
    }

    /// Unpins pages.
    ///
    /// # Panics
    ///
    /// If they are another guest's.
    pub fn unpin(&self, mut pinned: Pinned) {
        pinned.is_over = true;
        assert_eq!(pinned.guest, self.stage2.vttbr(), "the pages {:?} are another guest's", pinned.range);
        if pinned.reason == PinnedFor::Writing {
            self.each_page(pinned.range(), |page| {
                if let Some(slot) = self.slots.find(page) {
                    self.note_writes(slot, page..page + G::SIZE);
                }
            });
        }
        self.unpin_pages(pinned.range());
    }

    fn pin_page(&self, page: Ipa, reason: PinnedFor) -> Result<(), Error> {
        let slot = self.slots.find(page).ok_or(Error::NoRam { ipa: page })?;
        let ram = match &slot.content {
            Content::Ram(ram) => ram,
            Content::Preallocated(_) => return Ok(()),
            Content::Device(_) => return Err(Error::NoRam { ipa: page }),
        };
        let mut ram = ram.lock(self.stage2.platform());
        let came_from = self.read_at_once(slot, &mut ram, page);
        let ended = self.ready_for(&mut ram, page, reason)?;
        let is_pinned = ram.pins.pin(page);
        drop(ram);
        self.discard(ended);
        self.replace_frame(came_from);
        if is_pinned { Ok(()) } else { Err(Error::NoFrames { ipa: page }) }
    }

    /// Makes the page ready. If it is to be written, its copy in the store ends: the place is returned.
    fn ready_for(&self, ram: &mut Ram<G>, page: Ipa, reason: PinnedFor) -> Result<Option<super::Place>, Error> {
        let found = self.find_or_make(ram, page).map_err(|missing| missing.at(page))?;
        Ok(if reason == PinnedFor::Writing { found.end_copy().0 } else { None })
    }

    fn unpin_pages(&self, range: IpaRange) {
        self.each_page(range, |page| {
            if let Some((_, ram)) = self.find_ram(page) {
                ram.lock(self.stage2.platform()).pins.unpin(page);
            }
        });
    }

    pub(super) fn each_page(&self, range: IpaRange, each: impl FnMut(Ipa)) {
        (range.start.raw()..range.end.raw()).step_by(G::SIZE as usize).map(Ipa::new).for_each(each);
    }
}
