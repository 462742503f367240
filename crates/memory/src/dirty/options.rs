// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How writes are tracked, and what a log may refuse.

use twofold_stage2::Ipa;

/// A way to find out which pages a guest writes. Each clears as its line says; whichever it is, a page may be read as of a
/// clear only after that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracker {
    /// Pages are write-protected, and the first write to one faults. [`get`](super::DirtyLog::get) clears what it tells.
    WriteProtect,
    /// The same, and only [`clear`](super::DirtyLog::clear) clears. So the pages of a slot can be sent, and cleared, in
    /// pieces, and what is written in between costs no fault.
    Manual,
    /// Hardware records writes (DBM): none faults. `get` looks through the tables of all that is armed, `clear` makes clean.
    Hardware,
    /// Both (source S3): a write that faults has hardware record writes to all of its section. `get` looks through such
    /// sections alone, and ends their records; `clear` write-protects.
    Combined,
    /// Both, section by section as past rounds suggest (module `adaptive`). `get` ends nothing, `clear` protects a page, or
    /// makes it clean for hardware to record.
    Adaptive,
}

impl Tracker {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::WriteProtect, Self::Manual, Self::Hardware, Self::Combined, Self::Adaptive];

    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteProtect => "write-protect",
            Self::Manual => "manual",
            Self::Hardware => "hardware",
            Self::Combined => "combined",
            Self::Adaptive => "adaptive",
        }
    }

    /// Whether it takes a CPU that records writes (FEAT_HAFDBS with dirty state).
    pub const fn needs_dirty_state(self) -> bool {
        matches!(self, Self::Hardware | Self::Combined | Self::Adaptive)
    }
}

/// What [`DirtyLog::start`](super::DirtyLog::start) is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The way.
    pub tracker: Tracker,
    /// Whether all pages are in the log at first. Then starting touches no table: what is cleared is protected by then. Of no
    /// use to who wants to know what is written from now on. Not for [`Tracker::WriteProtect`], as in KVM.
    pub all_dirty: bool,
    /// How much memory is split into pages at once, ahead of the guest's writes: a power of two of at least 4 KiB, or 0 for
    /// block by block as the guest writes to them. It is done at the start, or where `all_dirty`, as pages are cleared.
    pub chunk: u64,
    /// Pages of a section: a power of two from 8 to 512. For [`Tracker::Combined`]; the others have sections of 64.
    pub section: u64,
}

impl LogOptions {
    /// A tracker with all pages dirty at first, where it can have that; chunks of 2 MiB; sections of 64 pages.
    pub const fn new(tracker: Tracker) -> Self {
        let all_dirty = !matches!(tracker, Tracker::WriteProtect);
        Self { tracker, all_dirty, chunk: 2 << 20, section: SECTION }
    }

    /// Pages of a section, as this tracker has them.
    pub(super) fn section_pages(&self) -> u64 {
        if self.tracker == Tracker::Combined { self.section } else { SECTION }
    }

    pub(super) fn check(&self) -> Result<(), LogError> {
        if self.tracker == Tracker::WriteProtect && self.all_dirty {
            return Err(LogError::AllDirtyNeedsClear);
        }
        if self.chunk != 0 && (!self.chunk.is_power_of_two() || self.chunk < 4096) {
            return Err(LogError::Chunk { chunk: self.chunk });
        }
        if !self.section.is_power_of_two() || !(LEAST_SECTION..=512).contains(&self.section) {
            return Err(LogError::Section { pages: self.section });
        }
        Ok(())
    }
}

/// Pages of a section, unless it is set.
pub(super) const SECTION: u64 = 64;
/// The least that it may be set to.
pub(super) const LEAST_SECTION: u64 = 8;

/// Why a log did not do what it was asked for. It is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The slot was removed.
    #[error("the slot is gone")]
    SlotGone,
    /// It is no RAM, so nothing could be sent of it.
    #[error("the slot at {start} is no RAM: it has no log")]
    NotRam {
        /// Its first byte.
        start: Ipa,
    },
    /// The guest may not write to it, so there is nothing to log.
    #[error("the slot at {start} is read-only: it has no log")]
    ReadOnly {
        /// Its first byte.
        start: Ipa,
    },
    /// It is running.
    #[error("the log of the slot at {start} runs already: stop it first")]
    Running {
        /// The slot's first byte.
        start: Ipa,
    },
    /// It is not running.
    #[error("no log of the slot at {start} runs: start one first")]
    NotRunning {
        /// The slot's first byte.
        start: Ipa,
    },
    /// The tracker clears as it tells.
    #[error("this log is cleared by reading it (write-protect); take another tracker to clear it apart")]
    ClearedByGet,
    /// The tracker clears as it tells, so a page that is dirty from the start would never be protected before it is told.
    #[error("write-protect has no all-dirty start; take manual")]
    AllDirtyNeedsClear,
    /// The CPU does not record writes.
    #[error("this CPU records no writes (FEAT_HAFDBS with dirty state); take write-protect or manual")]
    NoDirtyState,
    /// Pages are cleared by words of 64.
    #[error("page {page} is not a multiple of 64; start from {}", page / 64 * 64)]
    Misaligned {
        /// The first page that was asked for.
        page: u64,
    },
    /// Not the end of the slot, and no multiple of 64.
    #[error("{pages} pages are no multiple of 64, and do not end with the slot, which has {slot}")]
    Length {
        /// How many pages were asked for.
        pages: u64,
        /// How many the slot has.
        slot: u64,
    },
    /// There are not so many pages.
    #[error("page {page} and {pages} more are beyond the slot, which has {slot}")]
    BeyondSlot {
        /// The first page that was asked for.
        page: u64,
        /// How many.
        pages: u64,
        /// How many the slot has.
        slot: u64,
    },
    /// The mask has not a bit for each page.
    #[error("a mask of {words} words for {pages} pages; it takes {}", pages.div_ceil(64))]
    Mask {
        /// Words of the mask.
        words: usize,
        /// How many pages were asked for.
        pages: u64,
    },
    /// No such chunk can be split.
    #[error("a chunk of {chunk} bytes; take 0, or a power of two of at least 4096")]
    Chunk {
        /// What was asked for.
        chunk: u64,
    },
    /// No such section can be armed.
    #[error("a section of {pages} pages; take a power of two from 8 to 512")]
    Section {
        /// What was asked for.
        pages: u64,
    },
    /// No memory is left for what the log tells.
    #[error("no memory for the list of dirty pages")]
    NoMemory,
    /// The tables could not be changed.
    #[error("the guest's tables: {0}")]
    Stage2(#[from] twofold_stage2::Error),
}
