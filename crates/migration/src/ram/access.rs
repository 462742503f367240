// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a migration asks of a guest's memory.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use twofold_memory::dirty::LogError;
use twofold_memory::swap::{Failure, PeekError, Peeked, StoreError};

use crate::stream::Slot;

/// The memory that is sent. Memslots have their index in [`slots`](Self::slots).
///
/// The order of a round is [`get`](Self::get), [`clear`](Self::clear), [`read`](Self::read): a page that was written
/// after its `clear` is in a later `get`.
pub trait SourceRam: Sync {
    /// A page that is on its way from the guest's store.
    type Away: Away;

    /// The memslots, in ascending order of addresses.
    fn slots(&self) -> &[Slot];

    /// The page size as a power of two.
    fn page_shift(&self) -> u8;

    /// Starts the dirty logs of the memslots to which the guest can write. With `all`, each page is going to be cleared
    /// and read once, so the log need not have anything protected before. Otherwise a later `get` reports what was
    /// written since this call, and no more.
    ///
    /// # Errors
    ///
    /// A log does not start. None runs then.
    fn start(&self, all: bool) -> Result<(), RamError>;

    /// Adds the memslot's dirty pages to the set: a bit for each page.
    ///
    /// # Errors
    ///
    /// The log does not run, or the tables cannot be changed. No dirty page is lost.
    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError>;

    /// Clears pages of the memslot, from word `first` of its bits on. When this returns, they may be read.
    ///
    /// # Errors
    ///
    /// The log does not run, or the tables cannot be changed.
    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError>;

    /// Stops the dirty logs.
    fn stop(&self);

    /// These pages of the memslot are read next, in their order, from word `first` of its bits on. For memory that is far
    /// away, and is best asked for several pages at a time; other memory ignores it.
    fn expect(&self, slot: usize, first: usize, pages: &[u64]) {
        let _ = (slot, first, pages);
    }

    /// Whether all pages of the memslot are sent before the guest changes hands, also by a post-copy: for memory that the
    /// target writes to by itself, or that cannot be absent there.
    fn precedes(&self, slot: usize) -> bool {
        let _ = slot;
        false
    }

    /// Reads a page, or begins to: a page in the guest's store is read there, and need not become resident.
    ///
    /// # Errors
    ///
    /// There is no such page, or no memory for it.
    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Self::Away>, RamError>;

    /// How long a migration waits for the store, while not one of the pages that it has asked for comes.
    fn patience(&self) -> Duration;
}

/// What [`SourceRam::read`] did.
#[derive(Debug)]
#[must_use]
pub enum PageRead<A> {
    /// The page was read.
    Done,
    /// The page is in a store, or on its way to or from one: look at it later.
    Later(A),
}

/// A page that is on its way. Dropped, it is forgotten.
pub trait Away {
    /// Looks at the page, and reads it if it has come. What is read was there after [`SourceRam::read`] was called.
    fn look(&mut self, bytes: &mut [u8]) -> Peeked;
}

/// The memory into which a guest is received.
pub trait TargetRam: Sync {
    /// A page that waits until it can be written.
    type Queued: Queued;

    /// Writes a page, or begins to; `None` for zeroes. A page that is zero already takes no memory.
    ///
    /// # Errors
    ///
    /// There is no such page, or no memory is left for it.
    fn write(&self, slot: usize, page: u64, content: Option<&[u8]>) -> Result<PageWrite<Self::Queued>, RamError>;

    /// How long a page waits for a frame before the migration ends.
    fn patience(&self) -> Duration;
}

/// What [`TargetRam::write`] did.
#[derive(Debug)]
#[must_use]
pub enum PageWrite<Q> {
    /// The page was written.
    Done,
    /// The page is in the target's own store, or on its way to or from one, or no frame is free for it: look at it later.
    Later(Q),
}

/// A page that waits until it can be written. Dropped, it is forgotten.
pub trait Queued {
    /// Looks at the page, and writes it if it can. Returns whether it did.
    ///
    /// # Errors
    ///
    /// The target's own store frees no frame, because it is full or fails.
    fn look(&mut self, content: Option<&[u8]>) -> Result<bool, RamError>;

    /// Why the page was not written in this time.
    fn silent(&self, waited: Duration) -> RamError;
}

/// Why a guest's memory could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RamError {
    /// Memory that is not of this crate fails.
    #[error("{0}")]
    Embedder(String),
    /// A dirty log failed.
    #[error("memslot {slot}: {error}")]
    Log {
        /// The memslot's number.
        slot: u16,
        /// Why.
        error: LogError,
    },
    /// The memory failed.
    #[error(transparent)]
    Memory(#[from] twofold_memory::Error),
    /// A page in the guest's store cannot be asked for.
    #[error(transparent)]
    Peek(#[from] PeekError),
    /// The guest's store could not read a page. It is asked again.
    #[error("page {page:#x} of the memslot at index {slot} cannot be read from its store: {error}")]
    Store {
        /// The memslot's index.
        slot: usize,
        /// The page.
        page: u64,
        /// Why.
        error: StoreError,
    },
    /// Nothing has come from the guest's store for too long.
    #[error(
        "page {page:#x} of the memslot at index {slot}, and {others} others, have not come from their store in {waited:?}"
    )]
    Silent {
        /// The memslot's index.
        slot: usize,
        /// The page that was asked for first.
        page: u64,
        /// How many others were asked for.
        others: usize,
        /// How long nothing has come.
        waited: Duration,
    },
    /// No frame is free for a page that came.
    #[error("no frame is free for page {page:#x} of the memslot at index {slot}")]
    NoFrame {
        /// The memslot's index.
        slot: usize,
        /// The page.
        page: u64,
    },
    /// The target's own store frees no frame for a page that came.
    #[error(
        "page {page:#x} of the memslot at index {slot} gets no frame: {data} of {limit} frames hold data, {leaving} pages \
         are on their way to the store, and {}",
        frees_none(*.waited, .failure.as_ref())
    )]
    Full {
        /// The memslot's index.
        slot: usize,
        /// The page.
        page: u64,
        /// Frames that hold data.
        data: u64,
        /// The most frames that may.
        limit: u64,
        /// Pages on their way to the store.
        leaving: u64,
        /// How long the page has waited, if that is why it waits no longer.
        waited: Option<Duration>,
        /// The last write that the store could not do.
        failure: Option<Failure>,
    },
    /// The memslot in the stream is not the guest's.
    #[error("memslot {slot} has {wanted} pages in the stream, and {here} here")]
    Pages {
        /// The memslot's number.
        slot: u16,
        /// Those of the stream.
        wanted: u64,
        /// Those of the guest.
        here: u64,
    },
    /// There is no such page.
    #[error("no page {page:#x} in the memslot at index {slot}")]
    NoPage {
        /// The memslot's index.
        slot: usize,
        /// The page.
        page: u64,
    },
}

fn frees_none(waited: Option<Duration>, failure: Option<&Failure>) -> String {
    match (waited, failure) {
        (Some(waited), _) => format!("none has become free in {waited:?}"),
        (None, Some(failure)) => format!("none becomes free: {failure}"),
        (None, None) => "none becomes free: the store is full".into(),
    }
}
