// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How writes are tracked, and why a call to a log may fail.

use twofold_stage2::{Granule, Ipa};

/// A way to find out which pages a guest writes. With each of them, a page may be read only after the call that cleared
/// it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracker {
    /// Pages are write-protected, and the first write to one faults. [`get`](super::DirtyLog::get) clears the pages
    /// that it reports.
    WriteProtect,
    /// The same, but only [`clear`](super::DirtyLog::clear) clears. So a slot can be sent and cleared in pieces, and a
    /// page that is written again before its piece is cleared costs no fault.
    Manual,
    /// Hardware records writes (DBM), and none faults. `get` reads the descriptors of the whole slot; `clear` makes
    /// pages clean.
    Hardware,
    /// Both (Kolothum 2023): a write fault sets DBM on all of its section. `get` reads the descriptors of such sections
    /// alone, and clears DBM there; `clear` write-protects.
    Combined,
    /// Both, for each section as past rounds suggest (module `adaptive`). `get` clears DBM only in sections that were
    /// clean for long. `clear` write-protects a page, or makes it clean if its section is hardware-tracked.
    Adaptive,
}

impl Tracker {
    /// All trackers.
    pub const ALL: [Self; 5] = [Self::WriteProtect, Self::Manual, Self::Hardware, Self::Combined, Self::Adaptive];

    /// The tracker's name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteProtect => "write-protect",
            Self::Manual => "manual",
            Self::Hardware => "hardware",
            Self::Combined => "combined",
            Self::Adaptive => "adaptive",
        }
    }

    /// Whether the tracker needs a CPU that records writes (FEAT_HAFDBS with dirty state).
    pub const fn needs_dirty_state(self) -> bool {
        matches!(self, Self::Hardware | Self::Combined | Self::Adaptive)
    }
}

/// Options of [`DirtyLog::start`](super::DirtyLog::start).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// How writes are tracked.
    pub tracker: Tracker,
    /// Whether all pages are in the log at first. Then a start touches no table, and each page is protected when it is
    /// cleared. If you need only the pages that are written from now on, set it to `false`. Not for
    /// [`Tracker::WriteProtect`], as in KVM.
    pub all_dirty: bool,
    /// Bytes that are split into pages at once, ahead of the guest's writes: a power of two of at least a page, or 0 to
    /// split each block when the guest first writes to it. The split is done at the start, or with `all_dirty`, as
    /// pages are cleared.
    pub chunk: u64,
    /// Pages in a section: a power of two from 8 to 512. For [`Tracker::Combined`]; the others have sections of 64.
    pub section: u64,
}

impl LogOptions {
    /// `tracker` with chunks of 2 MiB and sections of 64 pages. All pages are dirty at first, except with
    /// [`Tracker::WriteProtect`].
    pub const fn new(tracker: Tracker) -> Self {
        let all_dirty = !matches!(tracker, Tracker::WriteProtect);
        Self { tracker, all_dirty, chunk: 2 << 20, section: WORD_PAGES }
    }

    /// Pages in a section with this tracker.
    pub(super) fn section_pages(&self) -> u64 {
        if self.tracker == Tracker::Combined { self.section } else { WORD_PAGES }
    }

    pub(super) fn check<G: Granule>(&self) -> Result<(), LogError> {
        if self.tracker == Tracker::WriteProtect && self.all_dirty {
            return Err(LogError::AllDirtyNeedsClear);
        }
        if self.chunk != 0 && (!self.chunk.is_power_of_two() || self.chunk < G::SIZE) {
            return Err(LogError::Chunk { chunk: self.chunk, page: G::SIZE });
        }
        if !self.section.is_power_of_two() || !(LEAST_SECTION..=512).contains(&self.section) {
            return Err(LogError::Section { pages: self.section });
        }
        Ok(())
    }
}

/// Pages in a section by default: those of one word of the bitmap.
pub(super) const WORD_PAGES: u64 = 64;
/// The smallest number of pages in a section.
pub(super) const LEAST_SECTION: u64 = 8;

/// Why a call to a log failed. Unless the call says otherwise, the log is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The slot was removed.
    #[error("the slot is gone")]
    SlotGone,
    /// The slot is not RAM: it has no pages to send.
    #[error("the slot at {start} is not RAM: it has no dirty log")]
    NotRam {
        /// The slot's first byte.
        start: Ipa,
    },
    /// The guest may not write to the slot, so there is nothing to log.
    #[error("the slot at {start} is read-only: it has no dirty log")]
    ReadOnly {
        /// The slot's first byte.
        start: Ipa,
    },
    /// The log runs.
    #[error("the dirty log of the slot at {start} already runs: stop it first")]
    Running {
        /// The slot's first byte.
        start: Ipa,
    },
    /// The log does not run.
    #[error("the dirty log of the slot at {start} does not run: start it first")]
    NotRunning {
        /// The slot's first byte.
        start: Ipa,
    },
    /// With [`Tracker::WriteProtect`], only `get` clears.
    #[error("a write-protect log is cleared by get: use another tracker to clear pages separately")]
    ClearedByGet,
    /// With [`Tracker::WriteProtect`], `get` clears, so a page that is dirty from the start could not be protected
    /// before it is reported.
    #[error("write-protect cannot start with all pages dirty: use manual")]
    AllDirtyNeedsClear,
    /// The CPU does not record writes.
    #[error("this CPU records no writes (no FEAT_HAFDBS with dirty state): use write-protect or manual")]
    NoDirtyState,
    /// The first page is not a multiple of 64: pages are cleared by words of 64.
    #[error("page {page} is not a multiple of 64: start from {}", page / 64 * 64)]
    Misaligned {
        /// The first page that was asked for.
        page: u64,
    },
    /// The number of pages is not a multiple of 64, and the pages do not end with the slot.
    #[error("{pages} pages are not a multiple of 64, and do not end with the slot, which has {slot}")]
    Length {
        /// How many pages were asked for.
        pages: u64,
        /// How many pages the slot has.
        slot: u64,
    },
    /// The pages reach beyond the slot.
    #[error("{pages} pages from page {page} on reach beyond the slot, which has {slot}")]
    BeyondSlot {
        /// The first page that was asked for.
        page: u64,
        /// How many pages were asked for.
        pages: u64,
        /// How many pages the slot has.
        slot: u64,
    },
    /// The mask does not have one bit for each page.
    #[error("the mask has {words} words for {pages} pages: it needs {}", pages.div_ceil(64))]
    Mask {
        /// Words in the mask.
        words: usize,
        /// How many pages were asked for.
        pages: u64,
    },
    /// The chunk is not 0 and not a power of two of at least a page.
    #[error("a chunk of {chunk} bytes: use 0, or a power of two of at least {page}")]
    Chunk {
        /// Bytes that were asked for.
        chunk: u64,
        /// Bytes in a page.
        page: u64,
    },
    /// The section is not a power of two from 8 to 512.
    #[error("a section of {pages} pages: use a power of two from 8 to 512")]
    Section {
        /// Pages that were asked for.
        pages: u64,
    },
    /// The heap has no memory left for the list of dirty pages, or at the first start, for the bitmaps.
    #[error("no memory is left for the bitmap or the list of dirty pages")]
    NoMemory,
    /// The tables could not be changed.
    #[error("the guest's tables: {0}")]
    Stage2(#[from] twofold_stage2::Error),
}
