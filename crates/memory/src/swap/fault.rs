// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages with a state of their own, as faults and writes by devices find them: steps F1 to F4 and E1 of the protocol in
//! [`super`].

use twofold_stage2::fault::AccessKind;
use twofold_stage2::{Grant, Granule, Ipa, IpaRange, Lent, Level, LockGuard, Platform, Run};

use super::arrive::kept_at;
use super::single::{Kept, Page, Present};
use super::state::Swap;
use super::store::Place;
use crate::answer::Answer;
use crate::dirty::log::Running;
use crate::guest::{Error, GuestMemory};
use crate::guest_fault::GuestFault;
use crate::ram::{Kind, Ram};
use crate::slots::{Content, Memslot};

/// A page that is in memory and ready, as its lock's holder finds it.
pub(super) struct Found<'a> {
    pub(super) lent: &'a Lent,
    /// Where the page begins in the run, in bytes.
    pub(super) offset: u64,
    /// The store's copy. A page of a whole huge page has none.
    pub(super) kept: Option<&'a mut Option<Kept>>,
    pub(super) zeroed: bool,
}

/// Why a page is not in memory. It is smaller than [`Error`], which each absent page would copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is not in memory, or no frame is free for it, or others have waited for one for longer.
    Absent,
    /// The heap is full, or no frame is free and there is no store.
    NoFrames,
}

impl Missing {
    /// The error for this page.
    pub(super) fn at(self, page: Ipa) -> Error {
        match self {
            Self::Absent => Error::Absent { page, done: 0 },
            Self::NoFrames => Error::NoFrames { ipa: page },
        }
    }
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Maps a page of RAM whose huge page is not whole, or could not be had: F1 to F4.
    ///
    /// A page whose copy in the store is good is mapped read-only for a read, so that its first write is seen (E1).
    #[cold]
    #[inline(never)]
    pub(crate) fn map_single(
        &self,
        page: Ipa,
        slot: &Memslot<G>,
        mut ram: LockGuard<'_, Ram<G>>,
        fault: &GuestFault,
        running: Option<Running>,
    ) -> Result<Answer, Error> {
        let tracked = slot.writable && running.is_some_and(Running::maps_tracked);
        let came_from = self.read_at_once(slot, &mut ram, page);
        let written = slot.writable && fault.access == AccessKind::Write;
        let (grant, first_touch, has_copy, ended) = {
            let found = match self.find_or_make(&mut ram, page) {
                Ok(found) => found,
                Err(Missing::Absent) => return Ok(Answer::Absent),
                Err(Missing::NoFrames) => return Err(Error::NoFrames { ipa: page }),
            };
            let (ended, found) = if written { found.end_copy() } else { (None, found) };
            let grant = self.stage2.grant(found.lent, page, G::SIZE).ok_or(Error::NoRam { ipa: page })?;
            (grant, found.zeroed, found.kept.is_some_and(|kept| kept.is_some()), ended)
        };
        drop(ram);
        self.discard(ended);
        self.replace_frame(came_from);
        let write = slot.writable && (written || (running.is_none() && !has_copy));
        self.map_found(page, slot, (grant, write, tracked, first_touch), fault, running)
    }

    /// F4: maps the page, and notes writes as any fault does.
    fn map_found(
        &self,
        page: Ipa,
        slot: &Memslot<G>,
        (grant, write, tracked, first_touch): (Grant<'_, P, G>, bool, bool, bool),
        fault: &GuestFault,
        running: Option<Running>,
    ) -> Result<Answer, Error> {
        let attributes = self.ram_attributes(write, fault.access == AccessKind::Execute, tracked);
        let mapped = self.map_leaf(Level::L3, grant, &attributes)?;
        match running {
            Some(running) if tracked => {
                let _ = self.note_tracked(slot, page..page + G::SIZE, running);
            }
            _ if write => self.note_writes(slot, page..page + G::SIZE),
            _ => {}
        }
        self.mapped(mapped, Level::L3, first_touch, fault)
    }

    /// F1 to F3: the page, in memory and ready. Allocates nothing that a first touch does not allocate anyway.
    ///
    /// # Errors
    ///
    /// [`Missing`].
    pub(super) fn find_or_make<'a>(&self, ram: &'a mut Ram<G>, page: Ipa) -> Result<Found<'a>, Missing> {
        let (platform, features) = (self.stage2.platform(), self.stage2.features());
        let swap = self.swap.as_deref();
        let absent = if swap.is_some() { Missing::Absent } else { Missing::NoFrames };
        // The usual case of a page that was brought.
        if let Kind::Single(Page::Present(_), _) = ram.page(page) {
            return match ram.page(page) {
                Kind::Single(Page::Present(Present { lent, kept }), _) => {
                    Ok(Found { lent, offset: 0, kept: Some(kept), zeroed: false })
                }
                _ => Err(absent),
            };
        }
        // A huge page that was never touched becomes whole if there are 2 MiB.
        if let Kind::Untouched = ram.page(page) {
            let _ = ram.back(page, &self.frames, &self.stage2);
        }
        if let Kind::Whole = ram.page(page) {
            let ready = ram.back_ready(page, &self.frames, &self.stage2);
            let (zeroed, lent, offset) = ready.ok_or(Missing::NoFrames)?;
            return Ok(Found { lent, offset, kept: None, zeroed });
        }
        if let Kind::Untouched = ram.page(page) {
            let swap = swap.ok_or(absent)?;
            let singles = swap.spare(platform).ok_or(absent)?;
            if let Err(singles) = ram.keep_singles(page, singles) {
                swap.give_back(platform, singles);
                return Err(Missing::NoFrames);
            }
        }
        let Kind::Single(state @ (Page::Zero | Page::Unready(_)), zeroed) = ram.page(page) else { return Err(absent) };
        let lent = match core::mem::take(state) {
            Page::Unready(lent) => lent,
            _ => self.stage2.lend(self.take_frame(page).ok_or(absent)?, page, page..page + G::SIZE),
        };
        lent.run().zero_page(platform, features, 0);
        *zeroed += 1;
        *state = Page::Present(Present { lent, kept: None });
        match state {
            Page::Present(Present { lent, kept }) => Ok(Found { lent, offset: 0, kept: Some(kept), zeroed: true }),
            _ => Err(absent),
        }
    }

    /// F2 for an *absent* page, if the store answers at once: the page becomes *present*, with its copy. Returns the guest's store
    /// if it did; with no lock held, the caller then calls [`replace_frame`](Self::replace_frame). `None`: the access finds the
    /// page as it was.
    ///
    /// A page whose copy could not be kept takes the other way, which discards its place with no lock held.
    pub(super) fn read_at_once(&self, slot: &Memslot<G>, ram: &mut Ram<G>, page: Ipa) -> Option<&Swap> {
        let swap = self.swap.as_deref()?;
        let Kind::Single(state, _) = ram.page(page) else { return None };
        let Page::Absent(place) = *state else { return None };
        if !swap.store.reads_at_once(place) {
            return None;
        }
        let kept = kept_at(slot, place)?;
        let frame = self.take_frame(page)?;
        if !swap.store.read_at_once(place, &frame) {
            self.give_data(frame);
            return None;
        }
        *state = Page::Present(Present { lent: self.lent(page, frame), kept: Some(kept) });
        Some(swap)
    }

    /// A page has come into a free frame from this store: the write-out task frees another, if too few are left.
    pub(super) fn replace_frame(&self, came_from: Option<&Swap>) {
        if let Some(swap) = came_from
            && self.wants_frames() > 0
        {
            swap.notify.frames_wanted();
        }
    }

    /// A frame for a page, unless others have waited for one for longer.
    pub(super) fn take_frame(&self, page: Ipa) -> Option<Run> {
        let platform = self.stage2.platform();
        let is_next = self.swap.as_ref().is_none_or(|swap| swap.waiting.lock(platform).is_next(page));
        if is_next { self.frames.lock(platform).take_data(platform, 1) } else { None }
    }

    /// Writes bytes of one page that has a state of its own.
    #[cold]
    #[inline(never)]
    pub(crate) fn write_single(
        &self,
        slot: &Memslot<G>,
        mut ram: LockGuard<'_, Ram<G>>,
        at: Ipa,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let page = at.align_down(G::SIZE);
        let came_from = self.read_at_once(slot, &mut ram, page);
        let found = self.find_or_make(&mut ram, page).map_err(|missing| missing.at(page))?;
        let (ended, found) = found.end_copy();
        found.lent.run().write(self.stage2.platform(), found.offset + (at - page), bytes);
        drop(ram);
        self.discard(ended);
        self.replace_frame(came_from);
        Ok(())
    }

    /// E1: the guest is about to be allowed to write to the page at `ipa`. From here on its copy in the store, if any,
    /// is out of date.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_copy(&self, slot: &Memslot<G>, ipa: Ipa) {
        let Content::Ram(ram) = &slot.content else { return };
        let ended = match ram.lock(self.stage2.platform()).page(ipa.align_down(G::SIZE)) {
            Kind::Single(Page::Present(present), _) => present.kept.take(),
            Kind::Single(Page::Leaving { written }, _) => {
                *written = true;
                None
            }
            _ => None,
        };
        self.discard(ended.map(|kept| kept.place));
    }

    /// [`end_copy`](Self::end_copy) for all pages in `range`, which are in the slot.
    #[cold]
    pub(crate) fn end_copies(&self, slot: &Memslot<G>, range: IpaRange) {
        self.each_page(range, |page| self.end_copy(slot, page));
    }

    /// Discards a place, with no lock held.
    pub(super) fn discard(&self, place: Option<Place>) {
        if let (Some(swap), Some(place)) = (&self.swap, place) {
            swap.discard(place);
        }
    }
}

impl<'a> Found<'a> {
    /// Ends the store's copy: the page is about to be written. Returns its place, to be discarded with no lock held.
    pub(super) fn end_copy(mut self) -> (Option<Place>, Self) {
        let ended = self.kept.as_mut().and_then(|kept| kept.take());
        (ended.map(|kept| kept.place), self)
    }
}
