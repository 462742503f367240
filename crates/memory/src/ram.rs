// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backing of guest RAM: huge pages (2 MiB), each a run of frames that is taken at its first touch.
//!
//! The frames of a huge page are contiguous, so it can be mapped by pages or as a block without moving anything. One
//! bit for each page says that it is ready. A page is zeroed once, just before it is first mapped, and never again
//! while the slot lives.
//!
//! Invariant: the backing is accessed only under the slot's lock, and a page's bit is set under the lock after the page
//! was zeroed. So a CPU that finds the bit set sees the zeroes, and may map the page with no lock held. Frames are
//! taken while the slot's lock is held; the frames' lock is never held first.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::{Features, Grant, Ipa, IpaRange, Lent, Lock, Platform, Stage2};

use crate::frames::{FRAME, Frames, HUGE_PAGE};

/// Pages in a huge page.
const PAGES: u64 = HUGE_PAGE / FRAME;
/// Huge pages whose state is allocated together, at the first touch of one of them. A slot may be far larger than what
/// its guest uses, and than the memory that exists.
const PART: usize = 64;

/// The backing of one slot of RAM.
pub(crate) struct Ram {
    /// The slot's addresses. Of the huge pages at its ends, only the part inside the slot is mapped.
    slot: IpaRange,
    /// The start of the first huge page, at or below the slot.
    start: Ipa,
    /// The huge pages, [`PART`] in each part; `None` before the first touch of a part.
    parts: Box<[Option<Part>]>,
    /// How many frames were zeroed.
    zeroed: u64,
}

type Part = Box<[HugePage; PART]>;

/// A huge page. The size of this type is a power of two, so that a fault finds one by a shift.
#[derive(Default)]
#[repr(align(128))]
struct HugePage {
    frames: Option<Lent>,
    ready: [u64; PAGES as usize / 64],
}

/// A page of guest RAM that has frames, with the state of its huge page.
pub(crate) struct BackedPage<'a> {
    frames: &'a Lent,
    ready: &'a mut [u64; PAGES as usize / 64],
    zeroed: &'a mut u64,
    ipa: Ipa,
}

impl Ram {
    /// Backing for `range`, without any frames yet.
    pub(crate) fn new(range: &IpaRange) -> Self {
        let start = range.start.align_down(HUGE_PAGE);
        let count = (range.end - start).div_ceil(PART as u64 * HUGE_PAGE);
        Self { slot: range.start..range.end, start, parts: (0..count).map(|_| None).collect(), zeroed: 0 }
    }

    /// How many frames were zeroed.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zeroed
    }

    /// The page at `ipa`. If its huge page has no frames, they are taken. `None` if no frames are left, or no memory on
    /// the heap for their state.
    #[inline]
    pub(crate) fn back<P: Platform>(
        &mut self,
        ipa: Ipa,
        frames: &Lock<Frames>,
        stage2: &Stage2<P>,
    ) -> Option<BackedPage<'_>> {
        let offset = ipa - self.start;
        let index = (offset / HUGE_PAGE) as usize;
        let (part, place) = (&mut self.parts[index / PART], index % PART);
        let is_taken = part.as_ref().is_some_and(|part| part[place].frames.is_some());
        let huge_page = if is_taken {
            &mut part.as_mut()?[place]
        } else {
            let lend = Lend { stage2, huge_page: ipa.align_down(HUGE_PAGE), slot: &self.slot };
            take(part, place, frames, lend)?
        };
        let (frames, ready) = (huge_page.frames.as_ref()?, &mut huge_page.ready);
        Some(BackedPage { frames, ready, zeroed: &mut self.zeroed, ipa })
    }
}

impl Ram {
    /// The frames of the huge page at `ipa`, if it has frames and all its pages are ready.
    pub(crate) fn ready_huge_page(&self, ipa: Ipa) -> Option<&Lent> {
        let index = ((ipa - self.start) / HUGE_PAGE) as usize;
        let huge_page = &self.parts[index / PART].as_ref()?[index % PART];
        let frames = huge_page.frames.as_ref()?;
        (huge_page.ready == [!0; 8]).then_some(frames)
    }

    /// The frames that have the page at `ipa`, and its offset there in bytes, if the page is ready.
    pub(crate) fn ready_page(&self, ipa: Ipa) -> Option<(&Lent, u64)> {
        let offset = ipa - self.start;
        let index = (offset / HUGE_PAGE) as usize;
        let huge_page = &self.parts[index / PART].as_ref()?[index % PART];
        let page = (offset % HUGE_PAGE / FRAME) as usize;
        let is_ready = huge_page.ready[page / 64] >> (page % 64) & 1 == 1;
        huge_page.frames.as_ref().filter(|_| is_ready).map(|frames| (frames, offset % HUGE_PAGE))
    }

    /// All frames, which do not belong to the slot any more.
    pub(crate) fn into_frames(self) -> impl Iterator<Item = Lent> {
        self.parts.into_iter().flatten().flat_map(|part| *part).filter_map(|huge_page| huge_page.frames)
    }
}

/// The tables to which the frames of a huge page are lent, and the addresses for which they are lent.
struct Lend<'a, P: Platform> {
    stage2: &'a Stage2<P>,
    huge_page: Ipa,
    slot: &'a IpaRange,
}

/// Takes frames for a huge page that has none, and memory on the heap if the huge page is the first of its part.
#[cold]
fn take<'a, P: Platform>(
    part: &'a mut Option<Part>,
    place: usize,
    frames: &Lock<Frames>,
    lend: Lend<'_, P>,
) -> Option<&'a mut HugePage> {
    if part.is_none() {
        let mut huge_pages = Vec::new();
        huge_pages.try_reserve_exact(PART).ok()?;
        huge_pages.resize_with(PART, HugePage::default);
        *part = huge_pages.try_into().ok();
    }
    let huge_page = &mut part.as_mut()?[place];
    let run = frames.lock(lend.stage2.platform()).take(PAGES)?;
    huge_page.frames = Some(lend.stage2.lend(run, lend.huge_page, lend.slot.clone()));
    Some(huge_page)
}

impl BackedPage<'_> {
    /// The right to map the page.
    #[inline(always)]
    pub(crate) fn grant<'a, P: Platform>(&self, stage2: &'a Stage2<P>) -> Option<Grant<'a, P>> {
        stage2.grant(self.frames, self.ipa, FRAME)
    }

    /// The right to map the whole huge page, which is inside the slot.
    pub(crate) fn huge_page_grant<'a, P: Platform>(&self, stage2: &'a Stage2<P>) -> Option<Grant<'a, P>> {
        stage2.grant(self.frames, self.ipa.align_down(HUGE_PAGE), HUGE_PAGE)
    }

    /// Zeroes the page unless it is ready. Returns whether it was zeroed.
    #[inline]
    pub(crate) fn make_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> bool {
        self.make_page_ready(self.offset() / FRAME, platform, features)
    }

    /// Zeroes the pages of the huge page that are not ready. Returns whether there were any.
    pub(crate) fn make_huge_page_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> bool {
        if *self.ready == [0; 8] {
            self.frames.run().zero(platform, features);
            *self.ready = [!0; 8];
            *self.zeroed += PAGES;
            return true;
        }
        (0..PAGES).fold(false, |zeroed, page| self.make_page_ready(page, platform, features) | zeroed)
    }

    /// Writes into the page, which is ready.
    pub(crate) fn write<P: Platform>(&self, platform: &P, offset: u64, bytes: &[u8]) {
        self.frames.run().write(platform, self.offset() + offset, bytes);
    }

    /// The page's offset in the huge page, in bytes.
    #[inline]
    fn offset(&self) -> u64 {
        self.ipa.raw() % HUGE_PAGE
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
