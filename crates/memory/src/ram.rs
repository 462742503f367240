// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is behind guest RAM: sections of 2 MiB, each a run of frames that is taken at its first touch.
//!
//! A section's frames are contiguous, so that it can be mapped by pages or as a block without moving anything.
//! Which of its pages are ready is kept in one bit each: a page is zeroed once, just before it is first mapped,
//! and never again while the slot lives.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use twofold_stage2::{Features, Ipa, IpaRange, Pa, Platform, Run};

use crate::frames::{FRAME, Frames};

/// Bytes of a section, the unit in which guest RAM takes its frames: a level 2 block of the 4 KiB granule.
pub const SECTION: u64 = 2 << 20;
const PAGES: u64 = SECTION / FRAME;
/// Bytes whose sections are kept together, from the first touch of one of them: a slot may be far larger than what its
/// guest uses, and than what the host has.
const PART: u64 = 8192 * SECTION;

/// The backing of one slot of RAM.
pub(crate) struct Ram {
    /// The sections of the part at hand, which is that of the last touch.
    sections: Box<[Section]>,
    /// Where it starts.
    start: Ipa,
    /// The slot, in whole sections.
    range: IpaRange,
    /// Those of the others that were touched.
    parts: Box<[Box<[Section]>]>,
}

#[derive(Default)]
struct Section {
    frames: Option<Run>,
    ready: [u64; PAGES as usize / 64],
}

/// A page of guest RAM that has frames behind it, seen with the section it is in.
pub(crate) struct BackedPage<'a> {
    frames: &'a Run,
    ready: &'a mut [u64; PAGES as usize / 64],
    /// The page's place in the section, in bytes.
    offset: u64,
}

impl Ram {
    /// Backing for `range`, none of it taken yet.
    pub(crate) fn new(range: &IpaRange) -> Self {
        let start = range.start.align_down(SECTION);
        let size = (range.end - start).next_multiple_of(SECTION);
        let parts = (0..size.div_ceil(PART)).map(|_| Box::default()).collect();
        Self { range: start..start + size, start, sections: Box::default(), parts }
    }

    /// The page at `ipa`, for which frames are taken if its section has none. `None` when none are left, or when the
    /// host has no memory to keep the section.
    #[inline]
    pub(crate) fn back(&mut self, ipa: Ipa, frames: &mut Frames) -> Option<BackedPage<'_>> {
        // An address below the part at hand wraps around, and is far behind its end.
        let mut offset = ipa.raw().wrapping_sub(self.start.raw());
        if offset / SECTION >= self.sections.len() as u64 {
            self.turn_to(ipa)?;
            offset = ipa - self.start;
        }
        let Section { frames: run, ready } = &mut self.sections[(offset / SECTION) as usize];
        if run.is_none() {
            *run = Some(frames.take(PAGES)?);
        }
        Some(BackedPage { frames: run.as_ref()?, ready, offset: offset % SECTION })
    }

    /// Takes the part with `ipa` at hand.
    #[cold]
    fn turn_to(&mut self, ipa: Ipa) -> Option<()> {
        let number = |at: Ipa| ((at - self.range.start) / PART) as usize;
        let (before, now) = (number(self.start), number(ipa));
        mem::swap(&mut self.sections, &mut self.parts[before]);
        mem::swap(&mut self.sections, &mut self.parts[now]);
        self.start = self.range.start + now as u64 * PART;
        if self.sections.is_empty() {
            let count = ((self.range.end - self.start).min(PART) / SECTION) as usize;
            let mut sections = Vec::new();
            sections.try_reserve_exact(count).ok()?;
            sections.resize_with(count, Section::default);
            self.sections = sections.into();
        }
        Some(())
    }
}

impl BackedPage<'_> {
    /// The page's physical address.
    pub(crate) fn pa(&self) -> Pa {
        self.section_pa() + self.offset
    }

    /// Where the section's frames start.
    pub(crate) fn section_pa(&self) -> Pa {
        self.frames.pa()
    }

    /// Zeroes the page unless it is ready. Returns how many frames were zeroed.
    #[inline]
    pub(crate) fn make_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> u64 {
        self.make_page_ready(self.offset / FRAME, platform, features)
    }

    /// Zeroes the pages of the section that are not ready. Returns how many frames were zeroed.
    pub(crate) fn make_section_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> u64 {
        if *self.ready == [0; 8] {
            self.frames.zero(platform, features);
            *self.ready = [!0; 8];
            return PAGES;
        }
        (0..PAGES).map(|page| self.make_page_ready(page, platform, features)).sum()
    }

    /// Writes into the page, which is ready and not mapped.
    pub(crate) fn write<P: Platform>(&self, platform: &P, offset: u64, bytes: &[u8]) {
        self.frames.write(platform, self.offset + offset, bytes);
    }

    #[inline]
    fn make_page_ready<P: Platform>(&mut self, page: u64, platform: &P, features: &Features) -> u64 {
        let (word, bit) = (&mut self.ready[page as usize / 64 % 8], 1 << (page % 64));
        if *word & bit != 0 {
            return 0;
        }
        self.frames.zero_page(platform, features, page * FRAME);
        *word |= bit;
        1
    }
}
