// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is behind guest RAM: sections of 2 MiB, each a run of frames that is taken at its first touch.
//!
//! A section's frames are contiguous, so that it can be mapped by pages or as a block without moving anything.
//! Which of its pages are ready is kept in one bit each: a page is zeroed once, just before it is first mapped,
//! and never again while the slot lives.

use alloc::vec;
use alloc::vec::Vec;

use twofold_stage2::{Ipa, IpaRange, Pa, Platform};

use crate::frames::{FRAME, Frames};

/// Bytes of a section: a level 2 block of the 4 KiB granule.
pub(crate) const SECTION: u64 = 2 << 20;
const PAGES: u64 = SECTION / FRAME;

/// The backing of one slot of RAM.
pub(crate) struct Ram {
    /// Where the first section starts, at or below the slot.
    start: Ipa,
    sections: Vec<Section>,
}

#[derive(Clone)]
struct Section {
    frames: Option<Pa>,
    ready: [u64; PAGES as usize / 64],
}

impl Ram {
    /// Backing for `range`, none of it taken yet.
    pub(crate) fn new(range: &IpaRange) -> Self {
        let start = range.start.align_down(SECTION);
        let count = (range.end - start).div_ceil(SECTION);
        Self { start, sections: vec![Section { frames: None, ready: [0; 8] }; count as usize] }
    }

    /// The physical address behind `ipa`; takes the section's frames where it has none. `None` when none are left.
    pub(crate) fn back(&mut self, ipa: Ipa, frames: &mut Frames) -> Option<Pa> {
        let (section, offset) = self.section(ipa);
        let start = match section.frames {
            Some(start) => start,
            None => *section.frames.insert(frames.take(PAGES)?),
        };
        Some(start + offset)
    }

    /// Zeroes what is not ready of the `size` bytes from `ipa`, which are backed and lie in one section. Returns how
    /// many frames that were.
    pub(crate) fn make_ready<P: Platform>(&mut self, ipa: Ipa, size: u64, frames: &Frames, platform: &P) -> u64 {
        let (section, offset) = self.section(ipa);
        let Some(start) = section.frames else { return 0 };
        let (first, end) = (offset / FRAME, (offset + size) / FRAME);
        if end - first == PAGES && section.ready == [0; 8] {
            frames.zero(platform, start, SECTION);
            section.ready = [!0; 8];
            return PAGES;
        }
        let mut zeroed = 0;
        for page in first..end {
            let (word, bit) = (page as usize / 64, 1 << (page % 64));
            if section.ready[word] & bit == 0 {
                frames.zero(platform, start + page * FRAME, FRAME);
                section.ready[word] |= bit;
                zeroed += 1;
            }
        }
        zeroed
    }

    fn section(&mut self, ipa: Ipa) -> (&mut Section, u64) {
        let offset = ipa - self.start;
        (&mut self.sections[(offset / SECTION) as usize], offset % SECTION)
    }
}
