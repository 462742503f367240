// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backing of guest RAM: huge pages (2 MiB), each a run of frames that is taken at its first touch.
//!
//! The frames of a huge page are contiguous, so it can be mapped by pages or as a block without moving anything. One
//! bit for each page says that it is ready. A page is zeroed once, just before it is first mapped, and again only after
//! [`clear`](crate::GuestMemory::clear).
//!
//! With a page store (module [`swap`](crate::swap)), single pages may leave. From then on their huge page is kept page by
//! page ([`Singles`]), and is not mapped as a block again.
//!
//! A huge page that is to be mapped as a block is zeroed piece by piece. Between two pieces the CPU looks whether an
//! interrupt is pending. If so, the fault ends without a mapping, and the guest repeats its access after the interrupt
//! (`Done::Interrupted`). The bits of the pages say where to go on, for this vCPU or another. A fault that finds
//! unready pages zeroes at least one piece, so the block is ready in the end, however often interrupts come.
//!
//! On a CPU without FEAT_S2FWB a block's memory is cleaned, too, piece by piece right after it is zeroed, and mapped as
//! cleaned ([`CleanedPieces`]). A write past the guest's tables forgets the piece. Memory that a device may write at any
//! time, without notice, is cleaned when it is mapped: so nothing is cleaned ahead while a page of the slot is pinned. If
//! devices write meanwhile, a piece is cleaned once more for each write; otherwise each fault cleans another one.
//!
//! Invariant: the pages of a piece that is noted as cleaned are ready, and nothing but the guest has written there since.
//!
//! Invariant: the backing is accessed only under the slot's lock, and a page's bit is set under the lock after the page
//! was zeroed. So a CPU that finds the bit set sees the zeroes, and may map the page with no lock held. Frames are
//! taken while the slot's lock is held; the frames' lock is never held first.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::marker::PhantomData;

use twofold_stage2::{
    CleanedPieces, Features, Grant, Granule, Ipa, IpaRange, Kib4, Lent, Level, Lock, Platform, Stage2, group_length,
};

use crate::frames::{FRAME, Frames, HUGE_PAGE, PAGES};
use crate::swap::pins::Pins;
use crate::swap::single::{Page, Singles};
use crate::swap::store::Place;

/// Huge pages whose state is allocated together, at the first touch of one of them. A slot may be far larger than what
/// its guest uses, and than the memory that exists.
const PART: usize = 64;

/// Pages of a huge page that are zeroed without a look at pending interrupts: 128 KiB, about 4,200 instructions where a
/// `DC ZVA` zeroes 64 bytes.
const PIECE: u64 = 32;
const _: () = assert!(PIECE * FRAME == CleanedPieces::PIECE && HUGE_PAGE == CleanedPieces::BLOCK);
const _: () = assert!(PIECE < 64 && 64 % PIECE == 0, "the bits of a piece are in one word");

/// The backing of one slot of RAM.
pub(crate) struct Ram<G: Granule> {
    /// The slot's addresses. Of the huge pages at its ends, only the part inside the slot is mapped.
    slot: IpaRange,
    /// The start of the first huge page, at or below the slot.
    start: Ipa,
    /// The huge pages, [`PART`] in each part; `None` before the first touch of a part.
    parts: Box<[Option<Part>]>,
    /// How many frames were zeroed.
    zeroed: u64,
    /// The pages that do not leave.
    pub(crate) pins: Pins,
    granule: PhantomData<G>,
}

type Part = Box<[HugePage; PART]>;

/// A huge page. The size of this type is a power of two, so that a fault finds one by a shift.
#[derive(Default)]
#[repr(align(128))]
struct HugePage {
    frames: Backing,
    /// The pages that are ready, if the huge page is whole.
    ready: [u64; PAGES as usize / 64],
}

const _: () = assert!(size_of::<HugePage>() == 128);

/// The frames of a huge page.
#[derive(Default)]
enum Backing {
    /// It was never touched.
    #[default]
    None,
    /// One run, and its pieces that were cleaned ahead of a mapping.
    Whole(Lent, CleanedPieces),
    /// A state for each page.
    Singles(Singles),
}

/// A page's content.
pub(crate) enum Content<'a> {
    /// In these frames, at this offset in bytes.
    At(&'a Lent, u64),
    /// Zeroes.
    Zero,
    /// Not in memory, or about to leave.
    Away,
}

/// A page whose huge page is whole, or not.
pub(crate) enum Kind<'a> {
    /// Its huge page was never touched.
    Untouched,
    /// Its huge page is whole: [`Ram::back`] finds it.
    Whole,
    /// It has a state of its own; and the count of frames that were zeroed.
    Single(&'a mut Page, &'a mut u64),
}

/// What [`Ram::forget`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// The pages read as zero.
    All,
    /// Nothing: the huge page is kept page by page.
    Singles,
}

/// A page of guest RAM that has frames, with the state of its huge page.
pub(crate) struct BackedPage<'a, G: Granule> {
    frames: &'a Lent,
    ready: &'a mut [u64; PAGES as usize / 64],
    cleaned: &'a mut CleanedPieces,
    zeroed: &'a mut u64,
    ipa: Ipa,
    granule: PhantomData<G>,
}

impl<G: Granule> Ram<G> {
    /// The level of the largest leaf that maps RAM: a huge page, where it is a block.
    pub(crate) const LARGEST: Level = if G::SIZE == Kib4::SIZE { Level::L2 } else { Level::L3 };
    /// Whether the pages of a huge page are a contiguous group: with 16 KiB and 64 KiB, in tables that have groups.
    pub(crate) const IS_GROUP: bool = group_length::<G>(Level::L3) as u64 * G::SIZE == HUGE_PAGE;
    /// Pages in a huge page.
    const PAGE_COUNT: u64 = HUGE_PAGE / G::SIZE;
    /// The bits of a huge page whose pages are all ready.
    const ALL_READY: [u64; PAGES as usize / 64] = {
        let mut all = [0; PAGES as usize / 64];
        let mut page = 0;
        while page < Self::PAGE_COUNT {
            all[page as usize / 64] |= 1 << (page % 64);
            page += 1;
        }
        all
    };

    /// Backing for `range`, without any frames yet.
    pub(crate) fn new(range: &IpaRange) -> Self {
        let start = range.start.align_down(HUGE_PAGE);
        let count = (range.end - start).div_ceil(PART as u64 * HUGE_PAGE);
        Self {
            slot: range.start..range.end,
            start,
            parts: (0..count).map(|_| None).collect(),
            zeroed: 0,
            pins: Pins::default(),
            granule: PhantomData,
        }
    }

    /// How many frames were zeroed.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zeroed
    }

    /// The page at `ipa`. If its huge page has no frames, they are taken. `None` if no frames are left, or no memory on
    /// the heap for their state; or if the huge page is kept page by page.
    #[inline(always)]
    pub(crate) fn back<P: Platform>(
        &mut self,
        ipa: Ipa,
        frames: &Lock<Frames>,
        stage2: &Stage2<P, G>,
    ) -> Option<BackedPage<'_, G>> {
        let offset = ipa - self.start;
        let index = (offset / HUGE_PAGE) as usize;
        let (part, place) = (&mut self.parts[index / PART], index % PART);
        let is_whole = part.as_ref().is_some_and(|part| matches!(part[place].frames, Backing::Whole(..)));
        let huge_page = if is_whole {
            &mut part.as_mut()?[place]
        } else {
            let lend = Lend { stage2, huge_page: ipa.align_down(HUGE_PAGE), slot: &self.slot };
            take(part, place, frames, lend)?
        };
        let Backing::Whole(frames, cleaned) = &mut huge_page.frames else { return None };
        Some(BackedPage {
            frames,
            ready: &mut huge_page.ready,
            cleaned,
            zeroed: &mut self.zeroed,
            ipa,
            granule: PhantomData,
        })
    }
}

impl<G: Granule> Ram<G> {
    /// [`back`](Self::back), and the page made ready to be mapped or written: whether it was zeroed, the frames that have it,
    /// and its offset there in bytes.
    pub(crate) fn back_ready<P: Platform>(
        &mut self,
        ipa: Ipa,
        frames: &Lock<Frames>,
        stage2: &Stage2<P, G>,
    ) -> Option<(bool, &Lent, u64)> {
        let mut backed = self.back(ipa, frames, stage2)?;
        let zeroed = backed.make_ready(stage2.platform(), stage2.features());
        backed.forget_cleaned();
        Some((zeroed, backed.frames, backed.offset()))
    }

    /// The frames of the huge page at `ipa`, if it is whole and all its pages are ready.
    pub(crate) fn ready_huge_page(&self, ipa: Ipa) -> Option<&Lent> {
        match self.huge_page(ipa)? {
            HugePage { frames: Backing::Whole(frames, _), ready } if *ready == Self::ALL_READY => Some(frames),
            _ => None,
        }
    }

    /// The pages of `range`, which is in one huge page and not mapped, lose their content: they are zeroed again before
    /// they are mapped or written.
    pub(crate) fn forget(&mut self, range: &IpaRange) -> Forgotten {
        let (first, count) = (self.offset_and_page(range.start).1, ((range.end - range.start) / G::SIZE) as usize);
        let Some(huge_page) = self.huge_page_mut(range.start) else { return Forgotten::All };
        match &mut huge_page.frames {
            Backing::None => {}
            Backing::Whole(_, cleaned) => {
                *cleaned = CleanedPieces::default();
                for page in first..first + count {
                    huge_page.ready[page / 64] &= !(1 << (page % 64));
                }
            }
            Backing::Singles(_) => return Forgotten::Singles,
        }
        Forgotten::All
    }

    /// Takes the frames of the huge page at `ipa` away, which reads as zero from now on. `None` if it is not whole.
    pub(crate) fn take_whole(&mut self, ipa: Ipa) -> Option<Lent> {
        let huge_page = self.huge_page_mut(ipa)?;
        match core::mem::take(huge_page) {
            HugePage { frames: Backing::Whole(lent, _), .. } => Some(lent),
            other => {
                *huge_page = other;
                None
            }
        }
    }

    /// Puts frames back that [`take_whole`](Self::take_whole) took. Their content is lost.
    pub(crate) fn put_whole(&mut self, ipa: Ipa, lent: Lent) {
        if let Some(huge_page) = self.huge_page_mut(ipa) {
            *huge_page = HugePage { frames: Backing::Whole(lent, CleanedPieces::default()), ..HugePage::default() };
        }
    }

    /// The content of the page at `ipa`.
    pub(crate) fn content(&self, ipa: Ipa) -> Content<'_> {
        let Some(huge_page) = self.huge_page(ipa) else { return Content::Zero };
        let (offset, page) = self.offset_and_page(ipa);
        match &huge_page.frames {
            Backing::None => Content::Zero,
            Backing::Whole(frames, _) if is_ready(&huge_page.ready, page) => Content::At(frames, offset),
            Backing::Whole(..) => Content::Zero,
            Backing::Singles(singles) => match singles.page(page) {
                Page::Zero | Page::Unready(_) => Content::Zero,
                Page::Present(present) => Content::At(&present.lent, 0),
                Page::Leaving { .. } | Page::Absent(_) | Page::Arriving(_) => Content::Away,
            },
        }
    }

    /// The page at `ipa`.
    pub(crate) fn page(&mut self, ipa: Ipa) -> Kind<'_> {
        let (_, page) = self.offset_and_page(ipa);
        let index = self.index(ipa);
        match self.parts[index / PART].as_mut().map(|part| &mut part[index % PART].frames) {
            None | Some(Backing::None) => Kind::Untouched,
            Some(Backing::Whole(..)) => Kind::Whole,
            Some(Backing::Singles(singles)) => Kind::Single(singles.page_mut(page), &mut self.zeroed),
        }
    }

    /// The state of the page at `ipa`, if it has one of its own.
    pub(crate) fn single(&self, ipa: Ipa) -> Option<&Page> {
        let (_, page) = self.offset_and_page(ipa);
        match &self.huge_page(ipa)?.frames {
            Backing::Singles(singles) => Some(singles.page(page)),
            Backing::None | Backing::Whole(..) => None,
        }
    }

    /// Keeps the huge page at `ipa` page by page from now on. `states` are of pages that read as zero. Returns them if
    /// the huge page is kept so already, or if no memory is left on the heap.
    pub(crate) fn keep_singles(&mut self, ipa: Ipa, mut states: Singles) -> Result<(), Singles> {
        let index = self.index(ipa);
        let part = &mut self.parts[index / PART];
        if allocate(part).is_none() {
            return Err(states);
        }
        let Some(part) = part else { return Err(states) };
        let huge_page = &mut part[index % PART];
        match core::mem::take(&mut huge_page.frames) {
            Backing::None => {}
            Backing::Whole(frames, _) => states.fill(frames, |page| is_ready(&huge_page.ready, page)),
            singles @ Backing::Singles(_) => {
                huge_page.frames = singles;
                return Err(states);
            }
        }
        huge_page.frames = Backing::Singles(states);
        Ok(())
    }

    /// The huge page at `ipa` was never touched, if all its pages are kept one by one and read as zero: returns their
    /// states.
    pub(crate) fn end_singles(&mut self, ipa: Ipa) -> Option<Singles> {
        let huge_page = self.huge_page_mut(ipa)?;
        match core::mem::take(huge_page) {
            HugePage { frames: Backing::Singles(singles), .. } if singles.are_zero() => Some(singles),
            other => {
                *huge_page = other;
                None
            }
        }
    }

    /// The first page from `ipa` on, inside the slot, that has a frame and no I/O in flight.
    pub(crate) fn next_with_frame(&self, ipa: Ipa) -> Option<Ipa> {
        let mut at = ipa.max(self.slot.start);
        while at < self.slot.end {
            let huge_page = at.align_down(HUGE_PAGE);
            let next = match self.huge_page(at).map(|huge_page| &huge_page.frames) {
                Some(Backing::Whole(..)) => return Some(at),
                Some(Backing::Singles(singles)) => {
                    let page = self.offset_and_page(at).1;
                    if let Some(gap) = singles.iter().skip(page).position(Page::has_frame) {
                        return at.checked_add(gap as u64 * G::SIZE).filter(|at| *at < self.slot.end);
                    }
                    huge_page.checked_add(HUGE_PAGE)
                }
                Some(Backing::None) => huge_page.checked_add(HUGE_PAGE),
                // The whole part has no huge pages.
                None => self.start.checked_add((self.index(at) / PART + 1) as u64 * PART as u64 * HUGE_PAGE),
            };
            at = next?;
        }
        None
    }

    /// Which pages of the huge page at `ipa` have a frame and no I/O in flight: a bit for each. `None` if it was never
    /// touched.
    pub(crate) fn with_frames(&self, ipa: Ipa) -> Option<[u64; PAGES as usize / 64]> {
        match &self.huge_page(ipa)?.frames {
            Backing::None => None,
            Backing::Whole(..) => Some([!0; _]),
            Backing::Singles(singles) => {
                let mut pages = [0; _];
                for (number, _) in singles.iter().enumerate().filter(|(_, page)| page.has_frame()) {
                    pages[number / 64] |= 1 << (number % 64);
                }
                Some(pages)
            }
        }
    }

    /// How many pages have I/O in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.singles().filter(|page| page.is_in_flight()).count()
    }

    /// The states of the pages that have one of their own.
    pub(crate) fn singles(&self) -> impl Iterator<Item = &Page> {
        let huge_pages = self.parts.iter().flatten().flat_map(|part| part.iter());
        let singles = huge_pages.filter_map(|huge_page| match &huge_page.frames {
            Backing::Singles(singles) => Some(singles),
            Backing::None | Backing::Whole(..) => None,
        });
        singles.flat_map(|singles| singles.iter())
    }

    /// The same, to be changed.
    pub(crate) fn singles_mut(&mut self) -> impl Iterator<Item = &mut Page> {
        let huge_pages = self.parts.iter_mut().flatten().flat_map(|part| part.iter_mut());
        let singles = huge_pages.filter_map(|huge_page| match &mut huge_page.frames {
            Backing::Singles(singles) => Some(singles),
            Backing::None | Backing::Whole(..) => None,
        });
        singles.flat_map(|singles| singles.iter_mut())
    }

    /// All frames, which do not belong to the slot any more. Calls `discard` with the places of its pages. The frames of
    /// requests in flight are not among them.
    pub(crate) fn into_frames(self, mut discard: impl FnMut(Place), mut frames: impl FnMut(Lent)) {
        let huge_pages = self.parts.into_iter().flatten().flat_map(|part| *part);
        for huge_page in huge_pages {
            match huge_page.frames {
                Backing::None => {}
                Backing::Whole(lent, _) => frames(lent),
                Backing::Singles(singles) => {
                    for page in singles.into_pages() {
                        page.end(&mut discard, &mut frames);
                    }
                }
            }
        }
    }

    #[inline]
    fn index(&self, ipa: Ipa) -> usize {
        ((ipa - self.start) / HUGE_PAGE) as usize
    }

    fn huge_page(&self, ipa: Ipa) -> Option<&HugePage> {
        let index = self.index(ipa);
        Some(&self.parts[index / PART].as_ref()?[index % PART])
    }

    fn huge_page_mut(&mut self, ipa: Ipa) -> Option<&mut HugePage> {
        let index = self.index(ipa);
        Some(&mut self.parts[index / PART].as_mut()?[index % PART])
    }

    /// The page's offset in its huge page in bytes, and its number there.
    fn offset_and_page(&self, ipa: Ipa) -> (u64, usize) {
        let offset = (ipa - self.start) % HUGE_PAGE;
        (offset, (offset / G::SIZE) as usize)
    }
}

fn is_ready(ready: &[u64; PAGES as usize / 64], page: usize) -> bool {
    ready[page / 64] >> (page % 64) & 1 == 1
}

/// The tables to which the frames of a huge page are lent, and the addresses for which they are lent.
struct Lend<'a, P: Platform, G: Granule> {
    stage2: &'a Stage2<P, G>,
    huge_page: Ipa,
    slot: &'a IpaRange,
}

/// Takes frames for a huge page that has none, and memory on the heap if the huge page is the first of its part.
#[cold]
fn take<'a, P: Platform, G: Granule>(
    part: &'a mut Option<Part>,
    place: usize,
    frames: &Lock<Frames>,
    lend: Lend<'_, P, G>,
) -> Option<&'a mut HugePage> {
    allocate(part)?;
    let huge_page = &mut part.as_mut()?[place];
    if matches!(huge_page.frames, Backing::Singles(_)) {
        return None;
    }
    let platform = lend.stage2.platform();
    let own = frames.lock(platform).take_data(platform, PAGES);
    let run = own.or_else(|| frames.lock(platform).take_shared(platform))?;
    let lent = lend.stage2.lend(run, lend.huge_page, lend.slot.clone());
    huge_page.frames = Backing::Whole(lent, CleanedPieces::default());
    Some(huge_page)
}

/// Allocates a part. `None` if the heap is full.
fn allocate(part: &mut Option<Part>) -> Option<()> {
    if part.is_none() {
        let mut huge_pages = Vec::new();
        huge_pages.try_reserve_exact(PART).ok()?;
        huge_pages.resize_with(PART, HugePage::default);
        *part = huge_pages.try_into().ok();
    }
    Some(())
}

impl<G: Granule> BackedPage<'_, G> {
    /// The right to map the page.
    #[inline(always)]
    pub(crate) fn grant<'a, P: Platform>(&self, stage2: &'a Stage2<P, G>) -> Option<Grant<'a, P, G>> {
        stage2.grant(self.frames, self.ipa, G::SIZE)
    }

    /// The right to map the whole huge page, which is inside the slot.
    pub(crate) fn huge_page_grant<'a, P: Platform>(&self, stage2: &'a Stage2<P, G>) -> Option<Grant<'a, P, G>> {
        stage2.grant(self.frames, self.ipa.align_down(HUGE_PAGE), HUGE_PAGE)
    }

    /// Zeroes the page unless it is ready. Returns whether it was zeroed.
    #[inline(always)]
    pub(crate) fn make_ready<P: Platform>(&mut self, platform: &P, features: &Features) -> bool {
        self.make_page_ready(self.offset() / G::SIZE, platform, features)
    }

    /// Zeroes the pages of the huge page that are not ready, piece by piece. With `cleans`, it also cleans the pieces that
    /// are not noted as cleaned. Returns whether there were pages to zero; or `None` if an interrupt came after a piece and
    /// there is work on another one. What was done then is noted, and the next call goes on after it.
    pub(crate) fn make_huge_page_ready<P: Platform>(
        &mut self,
        platform: &P,
        features: &Features,
        cleans: bool,
    ) -> Option<bool> {
        let (mut zeroed, mut worked) = (false, false);
        let pages = PIECE * FRAME / G::SIZE;
        for first in (0..Ram::<G>::PAGE_COUNT).step_by(pages as usize) {
            let (word, piece) = ((first / 64) as usize % 8, ((1 << pages) - 1) << (first % 64));
            let ready = self.ready[word] & piece;
            let is_clean = !cleans || self.cleaned.has(first * G::SIZE);
            if ready == piece && is_clean {
                continue;
            }
            if worked && platform.interrupt_is_pending() {
                return None;
            }
            worked = true;
            if ready != piece {
                self.make_piece_ready(first, ready, platform, features);
                zeroed = true;
            }
            if !is_clean {
                self.cleaned.clean(platform, features, self.frames.run(), first * G::SIZE);
            }
        }
        Some(zeroed)
    }

    /// Zeroes the pages of a piece that are not `ready`, from page `first` on.
    fn make_piece_ready<P: Platform>(&mut self, first: u64, ready: u64, platform: &P, features: &Features) {
        let pages = PIECE * FRAME / G::SIZE;
        if ready != 0 {
            for page in first..first + pages {
                self.make_page_ready(page, platform, features);
            }
            return;
        }
        self.frames.run().zero_pages(platform, features, first * G::SIZE, PIECE * FRAME);
        self.ready[(first / 64) as usize % 8] |= ((1 << pages) - 1) << (first % 64);
        *self.zeroed += PIECE;
    }

    /// The pieces of the huge page that were cleaned.
    pub(crate) fn cleaned(&self) -> CleanedPieces {
        *self.cleaned
    }

    /// The page is about to be written past the guest's tables.
    fn forget_cleaned(&mut self) {
        self.cleaned.forget(self.offset());
    }

    /// Writes into the page, which is ready.
    pub(crate) fn write<P: Platform>(&mut self, platform: &P, offset: u64, bytes: &[u8]) {
        self.forget_cleaned();
        self.frames.run().write(platform, self.offset() + offset, bytes);
    }

    /// The page's offset in the huge page, in bytes.
    #[inline]
    fn offset(&self) -> u64 {
        self.ipa.raw() % HUGE_PAGE
    }

    #[inline(always)]
    fn make_page_ready<P: Platform>(&mut self, page: u64, platform: &P, features: &Features) -> bool {
        let (word, bit) = (&mut self.ready[page as usize / 64 % 8], 1 << (page % 64));
        if *word & bit != 0 {
            return false;
        }
        if G::SIZE == FRAME {
            self.frames.run().zero_page(platform, features, page * FRAME);
        } else {
            self.frames.run().zero_pages(platform, features, page * G::SIZE, G::SIZE);
        }
        *word |= bit;
        *self.zeroed += G::SIZE / FRAME;
        true
    }
}
