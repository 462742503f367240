// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is behind guest RAM: sections of 2 MiB, each a run of frames that is taken at its first touch.
//!
//! A section's frames are contiguous, so that it can be mapped by pages or as a block without moving anything.
//! Which of its pages are ready is kept in one bit each: a page is zeroed once, just before it is first mapped,
//! and never again while the slot lives.
//!
//! Invariant: all of this is reached under the slot's lock alone, and a page's bit is set under it after the page was
//! zeroed. So who finds the bit set sees the zeroes, and may map the page with no lock held. Frames are taken while the
//! slot's lock is held, and not the other way round.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::{Features, Grant, Ipa, IpaRange, Lent, Lock, Platform, Stage2};

use crate::frames::{FRAME, Frames};

/// Bytes of a section, the unit in which guest RAM takes its frames: a level 2 block of the 4 KiB granule.
pub const SECTION: u64 = 2 << 20;
const PAGES: u64 = SECTION / FRAME;
/// Sections that are kept together, from the first touch of one of them: a slot may be far larger than what its guest
/// uses, and than what there is.
const PART: usize = 64;

/// The backing of one slot of RAM.
pub(crate) struct Ram {
    /// The slot's addresses: sections at its ends are mapped there only.
    slot: IpaRange,
    /// Where the first section starts, at or below the slot.
    start: Ipa,
    /// Its sections; `None` where nobody touched one.
    parts: Box<[Option<Part>]>,
    /// Frames that were zeroed.
    zeroed: u64,
}

type Part = Box<[Section; PART]>;

/// Its size is a power of two, so that a fault finds it by a shift.
#[derive(Default)]
#[repr(align(128))]
struct Section {
    frames: Option<Lent>,
    ready: [u64; PAGES as usize / 64],
}

/// A page of guest RAM that has frames behind it, seen with the section it is in.
pub(crate) struct BackedPage<'a> {
    frames: &'a Lent,
    ready: &'a mut [u64; PAGES as usize / 64],
    zeroed: &'a mut u64,
    ipa: Ipa,
}

impl Ram {
    /// Backing for `range`, none of it taken yet.
    pub(crate) fn new(range: &IpaRange) -> Self {
        let start = range.start.align_down(SECTION);
        let count = (range.end - start).div_ceil(PART as u64 * SECTION);
        Self { slot: range.start..range.end, start, parts: (0..count).map(|_| None).collect(), zeroed: 0 }
    }

    /// How many frames were zeroed.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zeroed
    }

    /// The page at `ipa`, for which frames are taken if its section has none. `None` when none are left, or no memory on
    /// the heap to keep them.
    #[inline]
    pub(crate) fn back<P: Platform>(
        &mut self,
        ipa: Ipa,
        frames: &Lock<Frames>,
        stage2: &Stage2<P>,
    ) -> Option<BackedPage<'_>> {
        let offset = ipa - self.start;
        let index = (offset / SECTION) as usize;
        let (part, place) = (&mut self.parts[index / PART], index % PART);
        let is_taken = part.as_ref().is_some_and(|part| part[place].frames.is_some());
        let section = if is_taken {
            &mut part.as_mut()?[place]
        } else {
            let lend = Lend { stage2, section: ipa.align_down(SECTION), slot: &self.slot };
            take(part, place, frames, lend)?
        };
        let (frames, ready) = (section.frames.as_ref()?, &mut section.ready);
        Some(BackedPage { frames, ready, zeroed: &mut self.zeroed, ipa })
    }
}

impl Ram {
    /// The frames of the section at `ipa`, if there are any and all their pages are ready.
    pub(crate) fn ready_section(&self, ipa: Ipa) -> Option<&Lent> {
        let index = ((ipa - self.start) / SECTION) as usize;
        let section = &self.parts[index / PART].as_ref()?[index % PART];
        let frames = section.frames.as_ref()?;
        (section.ready == [!0; 8]).then_some(frames)
    }

    /// Where a page is, if it was ever touched.
    pub(crate) fn ready_page(&self, ipa: Ipa) -> Option<(&Lent, u64)> {
        let offset = ipa - self.start;
        let index = (offset / SECTION) as usize;
        let section = &self.parts[index / PART].as_ref()?[index % PART];
        let page = (offset % SECTION / FRAME) as usize;
        let is_ready = section.ready[page / 64] >> (page % 64) & 1 == 1;
        section.frames.as_ref().filter(|_| is_ready).map(|frames| (frames, offset % SECTION))
    }

    /// All its frames, which are not the slot's any more.
    pub(crate) fn into_frames(self) -> impl Iterator<Item = Lent> {
        self.parts.into_iter().flatten().flat_map(|part| *part).filter_map(|section| section.frames)
    }
}

/// To which tables the frames of a section are lent, and for which addresses.
struct Lend<'a, P: Platform> {
    stage2: &'a Stage2<P>,
    section: Ipa,
    slot: &'a IpaRange,
}

/// Takes frames for a section that has none, and memory on the heap for its part if it is the first of it.
#[cold]
fn take<'a, P: Platform>(
    part: &'a mut Option<Part>,
    place: usize,
    frames: &Lock<Frames>,
    lend: Lend<'_, P>,
) -> Option<&'a mut Section> {
    if part.is_none() {
        let mut sections = Vec::new();
        sections.try_reserve_exact(PART).ok()?;
        sections.resize_with(PART, Section::default);
        *part = sections.try_into().ok();
    }
    let section = &mut part.as_mut()?[place];
    let run = frames.lock(lend.stage2.platform()).take(PAGES)?;
    section.frames = Some(lend.stage2.lend(run, lend.section, lend.slot.clone()));
    Some(section)
}

impl BackedPage<'_> {
    /// The right to map the page.
    #[inline(always)]
    pub(crate) fn grant<'a, P: Platform>(&self, stage2: &'a Stage2<P>) -> Option<Grant<'a, P>> {
        stage2.grant(self.frames, self.ipa, FRAME)
    }

    /// The right to map all of the section, which is inside the slot.
    pub(crate) fn section_grant<'a, P: Platform>(&self, stage2: &'a Stage2<P>) -> Option<Grant<'a, P>> {
        stage2.grant(self.frames, self.ipa.align_down(SECTION), SECTION)
    }

    /// Zeroes the page unless it is ready. Returns whether it had to.
    #[inline]
    pub(crate) fn make_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> bool {
        self.make_page_ready(self.offset() / FRAME, platform, features)
    }

    /// Zeroes the pages of the section that are not ready. Returns whether there were any.
    pub(crate) fn make_section_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> bool {
        if *self.ready == [0; 8] {
            self.frames.run().zero(platform, features);
            *self.ready = [!0; 8];
            *self.zeroed += PAGES;
            return true;
        }
        (0..PAGES).fold(false, |zeroed, page| self.make_page_ready(page, platform, features) | zeroed)
    }

    /// Writes into the page, which is ready and not mapped.
    pub(crate) fn write<P: Platform>(&self, platform: &P, offset: u64, bytes: &[u8]) {
        self.frames.run().write(platform, self.offset() + offset, bytes);
    }

    /// The page's place in the section, in bytes.
    #[inline]
    fn offset(&self) -> u64 {
        self.ipa.raw() % SECTION
    }

    #[inline]
    fn make_page_ready<P: Platform>(&mut self, page: u64, platform: &P, features: &Features) -> bool {
        let (word, bit) = (&mut self.ready[page as usize / 64 % 8], 1 << (page % 64));
        if *word & bit != 0 {
            return false;
        }
        self.frames.run().zero_page(platform, features, page * FRAME);
        *word |= bit;
        *self.zeroed += 1;
        true
    }
}
