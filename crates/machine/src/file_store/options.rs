// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a file store is made with, why it could not do something, and what it did.

use std::time::Duration;

use twofold_memory::swap::Place;
use twofold_stage2::Ipa;

/// Options of a [`FileStore`](super::FileStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStoreOptions {
    /// How many pages there is room for, as they are. Compressed, there may be room for more.
    pub pages: u64,
    /// The most pages that are written, or read, by one call.
    pub cluster: usize,
    /// The most pages that one read brings, itself included. 1: nothing is read ahead.
    pub read_ahead: usize,
    /// How long a write waits for others to be written with it.
    pub gather: Duration,
    /// Whether pages are compressed (lz4), if that makes them smaller.
    pub compress: bool,
}

impl FileStoreOptions {
    /// The sizes that were measured to be best (`docs/results.md`), without compression.
    pub const fn new(pages: u64) -> Self {
        Self { pages, cluster: 16, read_ahead: 16, gather: Duration::from_micros(100), compress: false }
    }
}

/// Why a file store was not made, or could not do a request. What becomes of the request is in
/// [`Failure`](twofold_memory::swap::Failure); this says more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileStoreError {
    /// No room at all, or clusters of no page.
    #[error(
        "a store with room for {pages} pages in clusters of {cluster}, of which {read_ahead} are read: none may be 0"
    )]
    Empty {
        /// Pages.
        pages: u64,
        /// Pages of a cluster.
        cluster: usize,
        /// Pages that are read at once.
        read_ahead: usize,
    },
    /// The file has less room than it should.
    #[error("the file has room for {found} pages and not for {promised}: error {code} of the system")]
    Smaller {
        /// Pages that were promised.
        promised: u64,
        /// Pages that have room.
        found: u64,
        /// The system's number.
        code: i32,
    },
    /// Every place is in use.
    #[error("the store is full: {used} of {pages} pages are in use, and the page at {page} has no place")]
    Full {
        /// The page that has no place.
        page: Ipa,
        /// Room in use, in pages.
        used: u64,
        /// All room, in pages.
        pages: u64,
    },
    /// The file ends before the page does: someone has cut it.
    #[error("the file ends at byte {end}, and {place:?} needs it up to byte {wanted}")]
    Short {
        /// The place.
        place: Place,
        /// The byte behind what was to be read.
        wanted: u64,
        /// The file's size.
        end: u64,
    },
    /// What the file holds is not what was written.
    #[error("the content of the file at byte {offset} is not what was written to {place:?}")]
    Damaged {
        /// The place.
        place: Place,
        /// Where it is in the file.
        offset: u64,
    },
    /// The system could not write.
    #[error("writing {place:?} at byte {offset}: error {code} of the system")]
    Write {
        /// The place.
        place: Place,
        /// Where in the file.
        offset: u64,
        /// The system's number.
        code: i32,
    },
    /// The system could not read.
    #[error("reading {place:?} at byte {offset}: error {code} of the system")]
    Read {
        /// The place.
        place: Place,
        /// Where in the file.
        offset: u64,
        /// The system's number.
        code: i32,
    },
}

/// What a file store did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStoreCounts {
    /// Pages that were written.
    pub pages_written: u64,
    /// Calls that wrote them.
    pub writes: u64,
    /// Bytes that they wrote.
    pub bytes_written: u64,
    /// Pages that were read because they were asked for.
    pub pages_read: u64,
    /// Pages that were read ahead.
    pub pages_ahead: u64,
    /// Calls that read them.
    pub reads: u64,
    /// Places in use.
    pub places: u64,
    /// Room in use, in bytes.
    pub bytes_used: u64,
    /// Errors, those that are not kept included.
    pub errors: u64,
}
