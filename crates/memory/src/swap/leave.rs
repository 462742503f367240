// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page leaves: steps L1 to L7 of the protocol in [`super`].

use core::cell::Cell;

use twofold_stage2::{Broken, Descriptor, Granule, Ipa, Lent, Lock, Platform, Run};

use super::arrive::kept_at;
use super::single::{Kept, Page, Present};
use super::state::Swap;
use super::store::{Completed, Failure, Operation, Place, WriteRequest};
use super::store_error::StoreError;
use crate::async_fault::Arrival;
use crate::guest::GuestMemory;
use crate::ram::{Kind, Ram};
use crate::slots::{Content, Memslot};

/// What [`GuestMemory::write_out`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WrittenOut {
    /// The page's frame is free: the page is zero, its copy in the store is good, or the store has written it at once.
    Freed,
    /// The store writes the page. Its frame is free when that is complete.
    Started,
    /// A CPU has needed the page meanwhile. It is in memory.
    Needed,
    /// The page has no frame, or I/O in flight.
    NotPresent,
    /// The page is pinned.
    Pinned,
    /// The page is in memory, and nearer to leaving: its huge page may be kept page by page now. An [interrupt is
    /// pending](twofold_stage2::Platform::interrupt_is_pending) on this CPU: the caller lets it take the interrupt, and
    /// calls again.
    Interrupted,
}

/// Why a page was not written out. It is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteOutError {
    /// There is no store.
    #[error("the guest has no page store: attach one")]
    NoStore,
    /// The guest has no RAM from frames at that address.
    #[error("the guest has no RAM at {page} that can leave")]
    NoRam {
        /// The page.
        page: Ipa,
    },
    /// The store has no room.
    #[error("the store is full: it has no place for the page at {page}")]
    StoreFull {
        /// The page.
        page: Ipa,
    },
    /// No memory on the heap for the state of the pages around.
    #[error("no memory is left for the state of the pages around {page}")]
    NoMemory {
        /// The page.
        page: Ipa,
    },
    /// The tables could not be changed.
    #[error("the guest's tables: {0}")]
    Stage2(#[from] twofold_stage2::Error),
}

/// A page on its way out, after L1.
pub(super) struct Leaving<'a, G: Granule> {
    page: Ipa,
    slot: &'a Memslot<G>,
    ram: &'a Lock<Ram<G>>,
    pub(super) kept: Option<Kept>,
    /// The page was never zeroed, so it reads as zero whatever its frame holds. It has no copy.
    is_unready: bool,
}

impl<G: Granule> Leaving<'_, G> {
    /// The state of the page if it stays. A page that was never zeroed still is not: it is not mapped before it is.
    fn back(&self, lent: Lent, kept: Option<Kept>) -> Page {
        if self.is_unready { Page::Unready(lent) } else { Page::Present(Present { lent, kept }) }
    }
}

/// A page's frame, and the leaf that mapped it last, if any.
type TakenAway<G> = (Run, Option<Descriptor<G>>);

/// What becomes of a page whose content is known (L4).
enum Fate {
    Zero,
    Clean(Kept),
    /// Its content is nowhere else. The old copy, if any, is out of date.
    Dirty(Option<Place>),
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Writes a page out, for a task that frees frames in the background. It waits for the flush of the page's mapping
    /// and for no I/O.
    ///
    /// If this is the first page of its huge page that leaves, the huge page is mapped by pages from now on.
    ///
    /// # Errors
    ///
    /// [`WriteOutError`]: the page is in memory then, with its content.
    pub fn write_out(&self, page: Ipa) -> Result<WrittenOut, WriteOutError> {
        let swap = self.swap.as_deref().ok_or(WriteOutError::NoStore)?;
        let page = page.align_down(G::SIZE);
        let slot = self.slots.find(page).ok_or(WriteOutError::NoRam { page })?;
        let Content::Ram(ram) = &slot.content else { return Err(WriteOutError::NoRam { page }) };
        let platform = self.stage2.platform();
        if swap.refill(platform) && platform.interrupt_is_pending() {
            // A page that waits may have waited for spare states only.
            self.serve(swap);
            return Ok(WrittenOut::Interrupted);
        }
        let written = match self.begin_leaving(swap, (page, slot, ram)) {
            Ok((leaving, lent)) => self.leave(swap, &leaving, lent),
            Err(refused) => refused,
        };
        self.serve(swap);
        written
    }

    /// L1: takes the page's frame out of its state.
    #[inline(always)]
    pub(super) fn begin_leaving<'a>(
        &self,
        swap: &Swap,
        (page, slot, ram): (Ipa, &'a Memslot<G>, &'a Lock<Ram<G>>),
    ) -> Result<(Leaving<'a, G>, Lent), Result<WrittenOut, WriteOutError>> {
        let platform = self.stage2.platform();
        let mut locked = ram.lock(platform);
        if locked.pins.has(page) {
            return Err(Ok(WrittenOut::Pinned));
        }
        if let Kind::Whole = locked.page(page) {
            let none = || Err(WriteOutError::NoMemory { page });
            let singles = swap.spare(platform).ok_or_else(none)?;
            if let Err(unused) = locked.keep_singles(page, singles) {
                swap.give_back(platform, unused);
                return Err(none());
            }
            // The new states were the long part, and a block is split next.
            if platform.interrupt_is_pending() {
                return Err(Ok(WrittenOut::Interrupted));
            }
        }
        let Kind::Single(state, _) = locked.page(page) else { return Err(Ok(WrittenOut::NotPresent)) };
        let Some((Present { lent, kept }, is_unready)) = state.leave() else { return Err(Ok(WrittenOut::NotPresent)) };
        swap.leaving.add();
        Ok((Leaving { page, slot, ram, kept, is_unready }, lent))
    }

    /// L2 to L6.
    fn leave(&self, swap: &Swap, leaving: &Leaving<'_, G>, lent: Lent) -> Result<WrittenOut, WriteOutError> {
        let &Leaving { page, slot, kept, .. } = leaving;
        let (run, was_tracked) = match self.take_away(slot, page, lent) {
            Ok((run, leaf)) => {
                if leaf.is_some_and(Descriptor::is_accessed) {
                    swap.accessed_and_left.add();
                }
                (run, leaf.is_some_and(Descriptor::is_hardware_tracked))
            }
            Err((error, lent)) => {
                self.stay(swap, leaving, lent, kept);
                return Err(error.into());
            }
        };
        match self.fate(leaving, &run, was_tracked) {
            Fate::Zero => {
                let written = self.gone(swap, leaving, run, None);
                self.discard(kept.map(|kept| kept.place));
                Ok(written)
            }
            Fate::Clean(kept) => Ok(self.gone(swap, leaving, run, Some(kept))),
            Fate::Dirty(old) => {
                self.discard(old);
                let Some(place) = swap.store.place(page) else {
                    self.stay(swap, leaving, self.lent(page, run), None);
                    return Err(WriteOutError::StoreFull { page });
                };
                if swap.store.write_at_once(place, &run) {
                    let is_needed = self.written(swap, (slot, leaving.ram), (page, place, run), true);
                    return Ok(if is_needed { WrittenOut::Needed } else { WrittenOut::Freed });
                }
                swap.store.write(self, WriteRequest::new(page, place, self.stage2.vttbr(), run));
                Ok(WrittenOut::Started)
            }
        }
    }

    /// L2: no CPU can reach the page any more. Returns its frame, and the leaf that mapped it last, if any. Writes that
    /// hardware had recorded there are in the running log.
    pub(super) fn take_away(
        &self,
        slot: &Memslot<G>,
        page: Ipa,
        mut lent: Lent,
    ) -> Result<TakenAway<G>, (twofold_stage2::Error, Lent)> {
        let (log, tables) = (slot.tracking.log(), &mut self.tables());
        let own = log.map(|log| log.hold(self.stage2.platform()));
        let mark = |leaf: &Broken<G>| {
            if let Some(log) = log.filter(|_| leaf.is_hardware_dirty()) {
                log.mark(slot, &(leaf.ipa()..leaf.ipa() + G::SIZE));
            }
        };
        let broken = Cell::new(None);
        loop {
            let watch = |leaf: Broken<G>| {
                mark(&leaf);
                broken.set(Some(leaf));
            };
            match self.stage2.withdraw(lent, tables, watch) {
                Ok(withdrawal) => {
                    let (run, freed) = withdrawal.reclaim(tables);
                    let leaf = broken.take().and_then(|leaf| leaf.open(&freed));
                    if own.is_none() {
                        // The slot's first log may have started meanwhile, and this call holds no lock of it.
                        self.note_writes(slot, page..page + G::SIZE);
                    }
                    return Ok((run, leaf.map(|leaf| leaf.descriptor)));
                }
                Err((error @ twofold_stage2::Error::NoTablePage { .. }, back)) => {
                    // A block is to be split, and no table page is left. It goes as a whole: that needs none. If another
                    // CPU has split it meanwhile, what is there goes.
                    let Some(leaf) = self.stage2.look_up(page) else { return Err((error, back)) };
                    let span = self.stage2.geometry().granule().span(leaf.level);
                    match self.stage2.unmap(leaf.ipa..leaf.ipa + span, tables, |leaf: Broken<G>| mark(&leaf)) {
                        Ok(pending) => drop(pending.complete().free(tables)),
                        Err(_) => return Err((error, back)),
                    }
                    lent = back;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// L4. The copy in the store is good if no CPU was allowed to write since (E1), and no hardware-tracked log has run.
    /// Then the content need not be looked at.
    fn fate(&self, leaving: &Leaving<'_, G>, run: &Run, was_tracked: bool) -> Fate {
        let platform = self.stage2.platform();
        if let Some(kept) = leaving.kept {
            let mut ram = leaving.ram.lock(platform);
            let written = matches!(ram.page(leaving.page), Kind::Single(Page::Leaving { written: true }, _));
            if !written && !was_tracked && kept.logs == leaving.slot.tracking.hardware_logs() {
                return Fate::Clean(kept);
            }
        }
        let is_zero = leaving.is_unready || run.is_zero(platform);
        if is_zero { Fate::Zero } else { Fate::Dirty(leaving.kept.map(|kept| kept.place)) }
    }

    /// L5: the page has left without I/O, unless a CPU waits for it. `kept` is its good copy; without one, it is zero.
    pub(super) fn gone(&self, swap: &Swap, leaving: &Leaving<'_, G>, run: Run, kept: Option<Kept>) -> WrittenOut {
        let page = (leaving.page, run);
        let is_needed = self.settle(swap, leaving.ram, page, |is_needed, run, memory| match (is_needed, kept) {
            (true, kept) => leaving.back(memory.lent(leaving.page, run), kept),
            (false, kept) => {
                memory.give_data(run);
                kept.map_or(Page::Zero, |kept| Page::Absent(kept.place))
            }
        });
        if is_needed { WrittenOut::Needed } else { WrittenOut::Freed }
    }

    /// The page stays in memory, with the content that it has.
    pub(super) fn stay(&self, swap: &Swap, leaving: &Leaving<'_, G>, lent: Lent, kept: Option<Kept>) {
        let (platform, page) = (self.stage2.platform(), leaving.page);
        let mut locked = leaving.ram.lock(platform);
        let until = swap.waiting.lock(platform).next();
        let (mut kept, mut ended) = (kept, None);
        if let Kind::Single(state, _) = locked.page(page) {
            if let Page::Leaving { written: true } = state {
                ended = kept.take();
            }
            *state = leaving.back(lent, kept);
        }
        drop(locked);
        swap.leaving.sub();
        self.discard(ended.map(|kept| kept.place));
        self.wake(swap, page, until, Arrival::Present);
    }

    /// L7: a write is complete. The store calls this when the content is at its place, or cannot get there: on any CPU,
    /// at any time, and possibly before [`PageStore::write`](super::PageStore::write) returns.
    ///
    /// After a failure the page is in memory, and its place is discarded.
    ///
    /// # Panics
    ///
    /// If the request is another guest's.
    pub fn complete_write(&self, request: WriteRequest, result: Result<(), StoreError>) {
        let Completed { page, place, guest, frame } = request.complete();
        assert_eq!(guest, self.stage2.vttbr(), "the request for {page} is another guest's");
        let (Some(swap), Some((slot, ram))) = (self.swap.as_deref(), self.find_ram(page)) else {
            return self.give_data(frame);
        };
        let is_needed = self.written(swap, (slot, ram), (page, place, frame), result.is_ok());
        if let Err(cause) = result {
            let failure = Failure { page, place, operation: Operation::Write, cause };
            swap.waiting.lock(self.stage2.platform()).failure = Some(failure);
            swap.notify.failed(&failure);
        }
        if !is_needed && result.is_ok() {
            return self.serve(swap);
        }
        // This serves, too. The task may sleep since the page left: it counted on the frame, which is not free now.
        if self.wants_frames() > 0 {
            swap.notify.frames_wanted();
        }
    }

    /// L7: whether its place holds the page is known. Returns whether a CPU waits for the page.
    fn written(
        &self,
        swap: &Swap,
        (slot, ram): (&Memslot<G>, &Lock<Ram<G>>),
        (page, place, frame): (Ipa, Place, Run),
        is_written: bool,
    ) -> bool {
        let kept = if is_written { kept_at(slot, place) } else { None };
        let is_needed = self.settle(swap, ram, (page, frame), |is_needed, run, memory| {
            if is_needed || !is_written {
                return Page::Present(Present { lent: memory.lent(page, run), kept });
            }
            memory.give_data(run);
            Page::Absent(place)
        });
        if !is_written || (is_needed && kept.is_none()) {
            swap.store.discard(place);
        }
        is_needed
    }

    /// Ends the state *leaving*: `state` says what follows, from whether a CPU waits for the page. Wakes what waits.
    pub(super) fn settle(
        &self,
        swap: &Swap,
        ram: &Lock<Ram<G>>,
        (page, run): (Ipa, Run),
        state: impl FnOnce(bool, Run, &Self) -> Page,
    ) -> bool {
        let platform = self.stage2.platform();
        let mut locked = ram.lock(platform);
        let (is_needed, until) = {
            let waiting = swap.waiting.lock(platform);
            (waiting.has(page), waiting.next())
        };
        let new = state(is_needed, run, self);
        let is_present = new.has_frame();
        if let Kind::Single(old, _) = locked.page(page) {
            *old = new;
        }
        drop(locked);
        swap.leaving.sub();
        if is_present {
            self.wake(swap, page, until, Arrival::Present);
        }
        is_needed
    }
}
