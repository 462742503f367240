// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page arrives: steps B1 to B5 of the protocol in [`super`], and the queue for frames.

use twofold_stage2::{Granule, Ipa, Lent, Lock, Platform, Run};

use super::fault::Missing;
use super::single::{Kept, Page, Present};
use super::state::Swap;
use super::store::{Completed, Failure, Operation, Place, ReadRequest};
use super::store_error::StoreError;
use super::waiters::Waiter;
use crate::async_fault::Arrival;
use crate::guest::GuestMemory;
use crate::ram::{Kind, Ram};
use crate::slots::{Content, Memslot};

/// The guest has no page store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest has no page store: attach one")]
pub struct NotAttached;

/// What a page that is wanted needs next (B2).
enum Next {
    /// It is in memory.
    Arrived,
    /// It cannot be brought.
    Failed,
    /// It is on its way in or out.
    Wait,
    /// No frame is free for it.
    Frame,
    /// The store reads it.
    Read(ReadRequest),
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Brings the page at `page` into memory. When it is there, or cannot come, `waiter` is
    /// [notified](super::Notify::arrived), possibly before this returns. The same waiter again replaces the one before;
    /// so does a vCPU's next ticket of the same slot.
    ///
    /// A page that leaves is waited for. If no frame is free, the page waits its turn.
    ///
    /// # Errors
    ///
    /// [`NotAttached`]: nothing waits then.
    pub fn bring(&self, page: Ipa, waiter: Waiter) -> Result<(), NotAttached> {
        let swap = self.swap.as_deref().ok_or(NotAttached)?;
        let page = page.align_down(G::SIZE);
        if let Some(request) = self.begin_at_once(swap, page, waiter) {
            swap.arriving.add();
            swap.store.read(self, request);
        } else {
            self.bring_in_turn(swap, page, waiter);
        }
        // The frame that the page took, or one that it waits for.
        if self.wants_frames() > 0 {
            swap.notify.frames_wanted();
        }
        Ok(())
    }

    /// B1 to B3 in the usual case: the page is *absent*, nothing waits for a frame, and one is free. The entry is added under
    /// the backing's lock, after the look at the state, and has its frame from the beginning.
    fn begin_at_once(&self, swap: &Swap, page: Ipa, waiter: Waiter) -> Option<ReadRequest> {
        let platform = self.stage2.platform();
        let (_, ram) = self.find_ram(page)?;
        let mut ram = ram.lock(platform);
        let Kind::Single(state, _) = ram.page(page) else { return None };
        let Page::Absent(place) = *state else { return None };
        if !swap.waiting.lock(platform).add_at_once(page, waiter) {
            return None;
        }
        let Some(frame) = self.frames.lock(platform).take_data(platform, 1) else {
            swap.waiting.lock(platform).remove(waiter);
            return None;
        };
        *state = Page::Arriving(place);
        Some(ReadRequest::new(page, place, self.stage2.vttbr(), frame))
    }

    /// B1 to B4.
    #[cold]
    #[inline(never)]
    fn bring_in_turn(&self, swap: &Swap, page: Ipa, waiter: Waiter) {
        let platform = self.stage2.platform();
        if !swap.waiting.lock(platform).add(page, waiter) {
            return swap.notify.arrived(waiter, Arrival::Failed);
        }
        // `wants_frames` follows, and serves: an entry that was added meanwhile may have stood back for this one (B6).
        self.start(swap, page);
    }

    /// Forgets a waiter: it need not be notified any more. The page may come all the same.
    pub fn forget(&self, waiter: Waiter) {
        if let Some(swap) = &self.swap {
            swap.waiting.lock(self.stage2.platform()).remove(waiter);
        }
    }

    /// Ends the waiting for frames: for a write-out task that cannot free any, since the store is full or fails. Each of
    /// these waiters is notified of a failure; their vCPUs stop with the page as the reason, and ask again after
    /// [`retry_failed`](crate::async_fault::VcpuFaults::retry_failed). Returns how many there were.
    pub fn fail_waiting(&self) -> usize {
        let Some(swap) = &self.swap else { return 0 };
        let platform = self.stage2.platform();
        let until = swap.waiting.lock(platform).next();
        let take = || swap.waiting.lock(platform).take_wanting(until);
        let waiters = core::iter::from_fn(take).map(|waiter| swap.notify.arrived(waiter, Arrival::Failed)).count();
        waiters + swap.waiting.lock(platform).pokes.fail(until)
    }

    /// B5: a read is complete. The store calls this when the frame holds the content, or cannot: on any CPU, at any
    /// time, and possibly before [`PageStore::read`](super::PageStore::read) returns.
    ///
    /// After a failure the page is still at its place.
    ///
    /// # Panics
    ///
    /// If the request is another guest's.
    pub fn complete_read(&self, request: ReadRequest, result: Result<(), StoreError>) {
        let Completed { page, place, guest, frame } = request.complete();
        assert_eq!(guest, self.stage2.vttbr(), "the request for {page} is another guest's");
        let platform = self.stage2.platform();
        let (Some(swap), Some((slot, ram))) = (self.swap.as_deref(), self.find_ram(page)) else {
            return self.give_data(frame);
        };
        let keeps = swap.store.keeps_what_is_read(place);
        let kept = kept_at(slot, place).filter(|_| keeps);
        let mut ram = ram.lock(platform);
        if result.is_ok()
            && let Some(waiter) = swap.waiting.lock(platform).take_alone(page)
        {
            if let Kind::Single(state, _) = ram.page(page) {
                *state = Page::Present(Present { lent: self.lent(page, frame), kept });
            }
            drop(ram);
            swap.arriving.sub();
            self.discard(if kept.is_none() { Some(place) } else { None });
            return swap.notify.arrived(waiter, Arrival::Present);
        }
        let (until, stays) = {
            let (until, is_peeked) = {
                let waiting = swap.waiting.lock(platform);
                (waiting.next(), waiting.peeks.read(page) && !waiting.has(page))
            };
            // Read for peeks alone, the page stays where it is.
            let stays = result.is_err() || (keeps && is_peeked);
            self.end_peeks(swap, page, &frame, result);
            if let Kind::Single(state, _) = ram.page(page) {
                *state = if stays {
                    self.give_data(frame);
                    Page::Absent(place)
                } else {
                    Page::Present(Present { lent: self.lent(page, frame), kept })
                };
            }
            (until, stays)
        };
        drop(ram);
        swap.arriving.sub();
        match result {
            Ok(()) if stays => {}
            Ok(()) => {
                self.discard(if kept.is_none() { Some(place) } else { None });
                self.wake(swap, page, until, Arrival::Present);
            }
            Err(cause) => {
                swap.notify.failed(&Failure { page, place, operation: Operation::Read, cause });
                self.wake(swap, page, until, Arrival::Failed);
            }
        }
        self.serve(swap);
    }

    /// Serves the pages that wait for frames, in their order, as long as there are frames. One CPU does it at a time;
    /// another has it look again.
    pub(super) fn serve(&self, swap: &Swap) {
        let waiting = || swap.waiting.lock(self.stage2.platform());
        {
            let mut waiting = waiting();
            if waiting.serving {
                waiting.again = true;
                return;
            }
            // The usual case. What comes after this look does B2 itself.
            if waiting.oldest_wanting().is_none() {
                return;
            }
            waiting.serving = true;
        }
        loop {
            let page = waiting().oldest_wanting();
            if page.is_some_and(|page| self.start(swap, page)) {
                continue;
            }
            let mut waiting = waiting();
            if !core::mem::take(&mut waiting.again) {
                waiting.serving = false;
                return;
            }
        }
    }

    /// B2 to B4: does what the page needs next. Returns `false` if it needs a frame, and none is free for it or it is left
    /// to a poke.
    pub(super) fn start(&self, swap: &Swap, page: Ipa) -> bool {
        let platform = self.stage2.platform();
        let (next, until) = match self.find_ram(page) {
            None => (Next::Failed, swap.waiting.lock(platform).next()),
            Some((_, ram)) => {
                let mut ram = ram.lock(platform);
                let (is_needed, is_peeked, is_poked) = {
                    let waiting = swap.waiting.lock(platform);
                    (waiting.has(page), waiting.peeks.want(page), waiting.pokes.want(page))
                };
                if !is_needed && !is_peeked {
                    // A poke takes its frame itself (O4). Otherwise the entry was notified, replaced or forgotten since.
                    return !is_poked;
                }
                let next = match ram.page(page) {
                    // A peek finds by itself where the page is.
                    Kind::Single(Page::Absent(_), _) => self.next_step(&mut ram, page),
                    _ if !is_needed => Next::Wait,
                    _ => self.next_step(&mut ram, page),
                };
                let mut waiting = swap.waiting.lock(platform);
                if !matches!(next, Next::Frame) {
                    waiting.has_frame(page);
                }
                (next, waiting.next())
            }
        };
        match next {
            Next::Arrived => self.wake(swap, page, until, Arrival::Present),
            Next::Failed => self.wake(swap, page, until, Arrival::Failed),
            Next::Wait => {}
            Next::Frame => return false,
            Next::Read(request) => {
                swap.arriving.add();
                swap.store.read(self, request);
            }
        }
        true
    }

    /// B2 and B3, with the lock of the slot's backing.
    fn next_step(&self, ram: &mut Ram<G>, page: Ipa) -> Next {
        if let Kind::Single(state, _) = ram.page(page) {
            match state {
                Page::Leaving { .. } | Page::Arriving(_) => return Next::Wait,
                Page::Absent(place) => {
                    let place = *place;
                    let Some(frame) = self.take_frame(page) else { return Next::Frame };
                    *state = Page::Arriving(place);
                    return Next::Read(ReadRequest::new(page, place, self.stage2.vttbr(), frame));
                }
                Page::Zero | Page::Unready(_) | Page::Present(_) => {}
            }
        }
        match self.find_or_make(ram, page) {
            Ok(_) => Next::Arrived,
            Err(Missing::Absent) => Next::Frame,
            // The heap has no memory for the state of the pages around.
            Err(Missing::NoFrames) => Next::Failed,
        }
    }

    /// Notifies what waits for the page and has an entry below `until`.
    pub(super) fn wake(&self, swap: &Swap, page: Ipa, until: u64, arrival: Arrival) {
        let take = || swap.waiting.lock(self.stage2.platform()).take(page, until);
        core::iter::from_fn(take).for_each(|waiter| swap.notify.arrived(waiter, arrival));
    }

    /// The slot of RAM that has the page, and its backing.
    pub(super) fn find_ram(&self, page: Ipa) -> Option<(&Memslot<G>, &Lock<Ram<G>>)> {
        let slot = self.slots.find(page)?;
        match &slot.content {
            Content::Ram(ram) => Some((slot, ram)),
            Content::Preallocated(_) | Content::Device(_) => None,
        }
    }

    /// Lends one frame for one page.
    pub(super) fn lent(&self, page: Ipa, frame: Run) -> Lent {
        self.stage2.lend(frame, page, page..page + G::SIZE)
    }
}

/// The store's copy of a page that is equal to it now, if writes to the page will be seen: no hardware-tracked log runs.
/// A log that starts from here on changes the number of them.
pub(super) fn kept_at<G: Granule>(slot: &Memslot<G>, place: Place) -> Option<Kept> {
    let logs = slot.tracking.hardware_logs_if_none_runs()?;
    Some(Kept { place, logs })
}
