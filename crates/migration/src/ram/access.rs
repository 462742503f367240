// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a migration asks of a guest's memory.

use twofold_memory::dirty::LogError;

use crate::stream::Slot;

/// The memory that is sent. Memslots have their index in [`slots`](Self::slots).
///
/// The order of a round is [`get`](Self::get), [`clear`](Self::clear), [`read`](Self::read): a page that was written
/// after its `clear` is in a later `get`.
pub trait SourceRam: Sync {
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

    /// Reads a page.
    ///
    /// # Errors
    ///
    /// There is no such page.
    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<(), RamError>;
}

/// The memory into which a guest is received.
pub trait TargetRam: Sync {
    /// Writes a page.
    ///
    /// # Errors
    ///
    /// There is no such page, or no memory is left for it.
    fn write(&self, slot: usize, page: u64, bytes: &[u8]) -> Result<(), RamError>;

    /// Makes `count` pages zero. Pages that are zero already take no memory.
    ///
    /// # Errors
    ///
    /// There are no such pages.
    fn zero(&self, slot: usize, page: u64, count: u64) -> Result<(), RamError>;
}

/// Why a guest's memory could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RamError {
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
