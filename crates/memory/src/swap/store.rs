// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the embedder implements: a store of pages, and what it does when something has happened.
//!
//! Invariant: a request owns its frame. So nothing else uses the frame while I/O is in flight, and a request that was
//! completed cannot be completed again: completing takes it by value.
//!
//! ```compile_fail,E0382
//! # use twofold_memory::swap::{Completions, WriteRequest};
//! fn twice(memory: &dyn Completions, request: WriteRequest) {
//!     memory.complete_write(request, Ok(()));
//!     memory.complete_write(request, Ok(()));
//! }
//! ```
//!
//! Nothing can be written into a frame through a request to write it out:
//!
//! ```compile_fail,E0308
//! # use twofold_memory::swap::{Completions, WriteRequest};
//! fn reversed(memory: &dyn Completions, request: &WriteRequest) {
//!     memory.copy_in(request, &[0; 4096]);
//! }
//! ```

use alloc::sync::Arc;

use twofold_stage2::{Ipa, Run};

use super::store_error::StoreError;
use super::unasked::{NotBegun, Unasked};
use super::waiters::Waiter;
use crate::async_fault::Arrival;

/// Where a store keeps one page's content. The store chooses the number; for the peer of a post-copy migration, it may
/// be the page's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(u64);

impl Place {
    /// The place with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Where absent pages are.
///
/// Its calls come from any CPU, several at once, and with no lock of [`GuestMemory`](crate::GuestMemory) held, except
/// `reads_at_once` and `read_at_once`. None of them waits: `write` and `read` begin the I/O and return. The store completes a
/// request through `memory` before the call returns, or later by the guest's memory itself, from any thread and in any order.
/// A store in memory can transfer pages [at once](Self::read_at_once) instead, with no request.
///
/// A place holds a page from the completion of its write until it is [discarded](Self::discard). Reading a place does
/// not empty it, unless the store [says so](Self::keeps_what_is_read).
pub trait PageStore: Send + Sync {
    /// Room for a page that is about to be written. `None` if the store is full.
    fn place(&self, page: Ipa) -> Option<Place>;

    /// Writes the request's frame to its place.
    fn write(&self, memory: &dyn Completions, request: WriteRequest);

    /// Reads the request's frame from its place.
    fn read(&self, memory: &dyn Completions, request: ReadRequest);

    /// This place is not needed any more. No request for it is in flight.
    fn discard(&self, place: Place);

    /// Whether this place holds its page after it was read. If not, a page that was read stays in memory, and its place is
    /// [discarded](Self::discard) when it is there: the peer of a post-copy migration sends each page once.
    fn keeps_what_is_read(&self, place: Place) -> bool {
        let _ = place;
        true
    }

    /// Whether [`read_at_once`](Self::read_at_once) can read this place now, which [keeps](Self::keeps_what_is_read) its page then.
    /// It is called with a lock of the guest's memory held, for each access to an absent page.
    fn reads_at_once(&self, place: Place) -> bool {
        let _ = place;
        false
    }

    /// Fills a frame from a place before it returns: for a store in memory, whose pages then come within the access. It takes
    /// about as long as a copy of the page, since it is called with a lock of the guest's memory held, and it calls nothing of
    /// that memory. Returns whether the frame holds the page. If not, the page is asked for by [`read`](Self::read), which
    /// reports why it cannot be read.
    fn read_at_once(&self, place: Place, frame: &Run) -> bool {
        let _ = (place, frame);
        false
    }

    /// Writes a frame to a place before it returns. Returns whether the place holds the page. If not, the page is written by
    /// [`write`](Self::write).
    fn write_at_once(&self, place: Place, frame: &Run) -> bool {
        let _ = (place, frame);
        false
    }
}

impl<T: PageStore + ?Sized> PageStore for Arc<T> {
    fn place(&self, page: Ipa) -> Option<Place> {
        T::place(self, page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        T::write(self, memory, request);
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        T::read(self, memory, request);
    }

    fn discard(&self, place: Place) {
        T::discard(self, place);
    }

    fn keeps_what_is_read(&self, place: Place) -> bool {
        T::keeps_what_is_read(self, place)
    }

    fn reads_at_once(&self, place: Place) -> bool {
        T::reads_at_once(self, place)
    }

    fn read_at_once(&self, place: Place, frame: &Run) -> bool {
        T::read_at_once(self, place, frame)
    }

    fn write_at_once(&self, place: Place, frame: &Run) -> bool {
        T::write_at_once(self, place, frame)
    }
}

/// A guest's memory, as a store sees it: by this a store need not know the platform.
///
/// What implements this for a guest's memory and passes each call on sees each page on its way: before
/// [`complete_read`](Self::complete_read) no CPU can reach it.
pub trait Completions {
    /// Copies the frame that is to be written.
    fn copy_out(&self, request: &WriteRequest, bytes: &mut [u8; 4096]);

    /// Fills the frame that was to be read.
    fn copy_in(&self, request: &ReadRequest, bytes: &[u8; 4096]);

    /// [`GuestMemory::begin_read`](crate::GuestMemory::begin_read).
    ///
    /// # Errors
    ///
    /// The page's content is not taken.
    fn begin_read(&self, page: Ipa, place: Place, content: Unasked) -> Result<ReadRequest, NotBegun>;

    /// [`GuestMemory::make_zero`](crate::GuestMemory::make_zero).
    ///
    /// # Errors
    ///
    /// The page's content is not taken.
    fn make_zero(&self, page: Ipa, place: Place) -> Result<(), NotBegun>;

    /// [`GuestMemory::complete_write`](crate::GuestMemory::complete_write).
    fn complete_write(&self, request: WriteRequest, result: Result<(), StoreError>);

    /// [`GuestMemory::complete_read`](crate::GuestMemory::complete_read).
    fn complete_read(&self, request: ReadRequest, result: Result<(), StoreError>);
}

/// What the embedder does when something has happened. Its calls come from any CPU, and with no lock of
/// [`GuestMemory`](crate::GuestMemory) held. They do not call back into the guest's memory.
pub trait Notify: Send + Sync {
    /// The page that `waiter` waits for is in memory, or cannot be brought. For a vCPU:
    /// [`Arrivals::complete`](crate::async_fault::Arrivals::complete) with its ticket, then the kick that this asks for.
    fn arrived(&self, waiter: Waiter, arrival: Arrival);

    /// The store could not do a request. Nothing is lost: a page that could not be written is in memory, one that could
    /// not be read is still at its place.
    fn failed(&self, failure: &Failure);

    /// Pages wait for frames: the write-out task has work ([`wants_frames`](crate::GuestMemory::wants_frames)).
    fn frames_wanted(&self);
}

impl<T: Notify + ?Sized> Notify for Arc<T> {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        T::arrived(self, waiter, arrival);
    }

    fn failed(&self, failure: &Failure) {
        T::failed(self, failure);
    }

    fn frames_wanted(&self) {
        T::frames_wanted(self);
    }
}

/// A request that a store could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store could not {operation} the page at {page} ({place:?}): {cause}")]
pub struct Failure {
    /// The page.
    pub page: Ipa,
    /// Its place in the store.
    pub place: Place,
    /// What the store was asked for.
    pub operation: Operation,
    /// Why it could not.
    pub cause: StoreError,
}

/// What a store was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To write a page.
    Write,
    /// To read a page.
    Read,
}

impl core::fmt::Display for Operation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// What a request is about.
#[derive(Debug)]
struct Transfer {
    page: Ipa,
    place: Place,
    /// `VTTBR_EL2` of the guest, which names it.
    guest: u64,
    /// Empty once the request was completed. An `Option` is a word larger, and a request is moved often.
    frame: Run,
}

impl Transfer {
    fn complete(&mut self) -> Completed {
        let frame = core::mem::replace(&mut self.frame, Run::EMPTY);
        Completed { page: self.page, place: self.place, guest: self.guest, frame }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Self { page, place, .. } = *self;
        debug_assert!(self.frame.is_empty(), "a request for {page} at {place:?} is dropped: complete it");
    }
}

/// A request that was completed: what it was about, and its frame.
pub(crate) struct Completed {
    pub(crate) page: Ipa,
    pub(crate) place: Place,
    pub(crate) guest: u64,
    pub(crate) frame: Run,
}

/// A page to be written to a place. It owns the page's frame, which no CPU can map. Complete it by
/// [`Completions::complete_write`]: dropped, its frame is lost and its page never comes back, and debug builds panic.
#[must_use = "complete it: its frame and its page are lost if it is dropped"]
#[derive(Debug)]
pub struct WriteRequest(Transfer);

/// A page to be read from a place. It owns the frame to fill, which no CPU can map. Complete it by
/// [`Completions::complete_read`]: dropped, its frame is lost and the page never comes back, and debug builds panic.
#[must_use = "complete it: its frame is lost and its page never comes back if it is dropped"]
#[derive(Debug)]
pub struct ReadRequest(Transfer);

impl WriteRequest {
    pub(crate) fn new(page: Ipa, place: Place, guest: u64, frame: Run) -> Self {
        Self(Transfer { page, place, guest, frame })
    }

    pub(crate) fn complete(mut self) -> Completed {
        self.0.complete()
    }

    /// The page.
    pub fn page(&self) -> Ipa {
        self.0.page
    }

    /// Where to write it.
    pub fn place(&self) -> Place {
        self.0.place
    }

    /// The page's frame, to be read by the platform or by DMA.
    pub fn frame(&self) -> &Run {
        &self.0.frame
    }

    /// The frame, of a request whose guest was destroyed: give it back to that guest's
    /// [`Frames`](crate::Frames::give_run). While the guest lives, complete the request instead.
    pub fn into_frame(self) -> Run {
        self.complete().frame
    }
}

impl ReadRequest {
    pub(crate) fn new(page: Ipa, place: Place, guest: u64, frame: Run) -> Self {
        Self(Transfer { page, place, guest, frame })
    }

    pub(crate) fn complete(mut self) -> Completed {
        self.0.complete()
    }

    /// The page.
    pub fn page(&self) -> Ipa {
        self.0.page
    }

    /// Where to read it from.
    pub fn place(&self) -> Place {
        self.0.place
    }

    /// The frame to fill, by the platform or by DMA.
    pub fn frame(&self) -> &Run {
        &self.0.frame
    }

    /// The frame, of a request whose guest was destroyed: give it back to that guest's
    /// [`Frames`](crate::Frames::give_run). While the guest lives, complete the request instead.
    pub fn into_frame(self) -> Run {
        self.complete().frame
    }
}
