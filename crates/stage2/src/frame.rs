// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that the engine works on: donated ranges, and the pieces that are cut from them.
//!
//! No Rust reference covers donated memory, except the engine's own references to table entries, which are atomic. The
//! engine accesses guest memory by cache instructions and volatile accesses only.
//!
//! A frame has one owner. [`Donated`], [`Run`], [`TablePage`], [`Root`] and [`Lent`](crate::Lent) (which a guest may
//! reach) are pieces of memory. They turn into each other by value, and none of them can be copied. So no frame is a
//! table and a guest's memory at once:
//!
//! ```
//! # use twofold_stage2::*;
//! fn table_and_rest(run: Run, features: &Features) -> Option<(TablePage, Run)> {
//!     let (page, rest) = run.split_at(TablePage::SIZE).ok()?;
//!     Some((page.into_table(features).ok()?, rest))
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use twofold_stage2::*;
//! fn twice(run: Run, features: &Features) -> (Result<TablePage, Run>, Run) {
//!     (run.into_table(features), run)
//! }
//! ```
//!
//! ```compile_fail,E0451
//! # use twofold_stage2::*;
//! fn forged(other: &Run) -> Run {
//!     Run { pa: other.pa(), size: other.size() }
//! }
//! ```

use core::marker::PhantomData;

use crate::granule::pa_bits;
use crate::platform::{Dc, Platform};
use crate::primitive::{self, Ordering, Word};
use crate::{Features, Geometry, Granule, Kib4, Pa};

/// A range of physical memory that only guests and tables use.
#[derive(Debug, PartialEq, Eq)]
pub struct Donated {
    start: Pa,
    size: u64,
}

impl Donated {
    /// Donates `size` bytes from `start`.
    ///
    /// # Safety
    ///
    /// * The range is RAM, and [`Platform::pointer`] maps it as that trait requires.
    /// * No Rust object or reference covers it, from now on and as long as the platform lives.
    /// * No part of it is donated again while this value, or a piece of it, is in use.
    pub const unsafe fn new(start: Pa, size: u64) -> Self {
        Self { start, size }
    }

    /// Its first byte.
    pub const fn start(&self) -> Pa {
        self.start
    }

    /// Its size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Its whole pages. Bytes before the first and after the last whole page are not used.
    pub fn into_run(self) -> Run {
        let start = self.start.raw().next_multiple_of(TablePage::SIZE);
        let end = (self.start.raw() + self.size) & !(TablePage::SIZE - 1);
        Run { pa: Pa::new(start), size: end.saturating_sub(start) }
    }
}

/// Contiguous whole pages of donated memory. A run has one owner.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pa: Pa,
    size: u64,
}

impl Run {
    /// No page, for the place of a run that was taken.
    pub const EMPTY: Self = Self { pa: Pa::new(0), size: 0 };

    /// Frames of a [`FrameMap`](crate::FrameMap), which has marked them as taken.
    pub(crate) const fn out_of_map(pa: Pa, size: u64) -> Self {
        Self { pa, size }
    }

    /// Its first byte.
    pub const fn pa(&self) -> Pa {
        self.pa
    }

    /// Its size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether it has no page.
    pub const fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Its first `size` bytes, and the rest. Returns the run itself if `size` is larger than the run, or not whole
    /// pages.
    pub fn split_at(self, size: u64) -> Result<(Self, Self), Self> {
        if size > self.size || !size.is_multiple_of(TablePage::SIZE) {
            return Err(self);
        }
        let rest = Self { pa: self.pa + size, size: self.size - size };
        Ok((Self { pa: self.pa, size }, rest))
    }

    /// Both as one run. Returns both unchanged if `next` does not begin where this one ends.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        if self.pa.checked_add(self.size) == Some(next.pa) {
            Ok(Self { pa: self.pa, size: self.size + next.size })
        } else {
            Err((self, next))
        }
    }

    /// Its pages of 4 KiB, one by one. For larger pages, cut them by [`split_at`](Self::split_at).
    pub fn into_pages(self) -> impl Iterator<Item = Self> {
        (0..self.size / TablePage::SIZE)
            .map(move |page| Self { pa: self.pa + page * TablePage::SIZE, size: TablePage::SIZE })
    }

    /// A page for a table. Returns the run itself if it is not exactly one page of the granule, aligned to its size, or
    /// if a descriptor cannot hold its address: one of 4 or 16 KiB without FEAT_LPA2 has 48 bits.
    // In line, the two conditions make the compiler build a loop over pages twice: 900 bytes more.
    #[inline(never)]
    pub fn into_table<G: Granule>(self, features: &Features) -> Result<TablePage<G>, Self> {
        // A run is aligned to 4 KiB.
        let is_page = self.size == G::SIZE && (G::SHIFT == Kib4::SHIFT || self.pa.is_aligned(G::SIZE));
        if is_page && self.pa.raw() >> pa_bits::<G>(features) == 0 {
            Ok(TablePage::from_tree(self.pa, features))
        } else {
            Err(self)
        }
    }

    /// Memory for a root table of this shape. Returns the run itself if it has another size, is not aligned to that
    /// size, or is outside the physical address space ([`Geometry::pa_bits`]).
    pub fn into_root<G: Granule>(self, geometry: &Geometry<G>) -> Result<Root, Self> {
        let size = geometry.root_size();
        let fits = self.size == size && self.pa.is_aligned(size) && self.pa.raw() >> geometry.pa_bits() == 0;
        if fits { Ok(Root { pa: self.pa, size }) } else { Err(self) }
    }

    /// Zeroes the page that begins `offset` bytes into the run. `offset` is a multiple of 4 KiB.
    ///
    /// # Panics
    ///
    /// If the run has no such page.
    #[inline(always)] // a call costs a first touch 6 %
    pub fn zero_page<P: Platform>(&self, platform: &P, features: &Features, offset: u64) {
        if offset >= self.size || !offset.is_multiple_of(TablePage::SIZE) {
            no_pages(self.pa, self.size, offset, TablePage::SIZE);
        }
        let pa = self.pa + offset;
        zero(platform, features.zero_block, pa, TablePage::SIZE);
        primitive::data_written(pa, TablePage::SIZE);
    }

    /// Zeroes the pages of `size` bytes that begin `offset` bytes into the run. Both are multiples of 4 KiB.
    ///
    /// # Panics
    ///
    /// If the run does not have all of them.
    pub fn zero_pages<P: Platform>(&self, platform: &P, features: &Features, offset: u64, size: u64) {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        if !fits || !(offset | size).is_multiple_of(TablePage::SIZE) {
            no_pages(self.pa, self.size, offset, size);
        }
        let pa = self.pa + offset;
        zero(platform, features.zero_block, pa, size);
        primitive::data_written(pa, size);
    }

    /// Zeroes all of it.
    pub fn zero<P: Platform>(&self, platform: &P, features: &Features) {
        zero(platform, features.zero_block, self.pa, self.size);
        primitive::data_written(self.pa, self.size);
    }
}

/// A page that holds a table, or is going to. It has one owner: a tree, or a [`TableSource`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a table page that is dropped is lost: give it back to its source"]
pub struct TablePage<G: Granule = Kib4> {
    pa: Pa,
    zero_block: u64,
    granule: PhantomData<G>,
}

impl TablePage {
    /// Bytes of a table page with the 4 KiB granule.
    pub const SIZE: u64 = Kib4::SIZE;
}

impl<G: Granule> TablePage<G> {
    /// Where it is.
    pub const fn pa(&self) -> Pa {
        self.pa
    }

    /// The page, as memory for any use.
    pub fn into_run(self) -> Run {
        Run { pa: self.pa, size: G::SIZE }
    }

    pub(crate) fn zero<P: Platform>(&self, platform: &P) {
        zero_tables(platform, self.zero_block, self.pa, G::SIZE);
    }

    /// A page that was a table in a tree of this engine.
    pub(crate) const fn from_tree(pa: Pa, features: &Features) -> Self {
        Self { pa, zero_block: features.zero_block, granule: PhantomData }
    }
}

/// The memory of a root table.
#[derive(Debug, PartialEq, Eq)]
pub struct Root {
    pub(crate) pa: Pa,
    pub(crate) size: u64,
}

impl Root {
    /// Where it is.
    pub const fn pa(&self) -> Pa {
        self.pa
    }

    /// Its size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The same memory, for any use.
    pub fn into_run(self) -> Run {
        Run { pa: self.pa, size: self.size }
    }

    pub(crate) fn zero<P: Platform>(&self, platform: &P, features: &Features) {
        zero_tables(platform, features.zero_block, self.pa, self.size);
    }
}

/// Where table pages come from and go back to.
///
/// The engine takes a page only when it needs one (Wang 2021: table pages when needed), and with no lock held.
///
/// If CPUs share a source, a hand-over must order memory as a lock does: the CPU that takes a page sees everything that
/// the CPU that gave it did before. Late lockless walks depend on it (module `lockless_walk`): they may still read a page
/// that is no table any more.
pub trait TableSource<G: Granule = Kib4> {
    /// A page with any content; `None` if the source is empty.
    fn take(&mut self) -> Option<TablePage<G>>;

    /// Takes back a page that no hardware walk can reach any more.
    fn give(&mut self, page: TablePage<G>);
}

/// Takes a page to be filled.
///
/// The page may have been a table, and a late lockless walk may still read it. The release fence orders the new content
/// after the sequence count of the old table's unlink (U3), on whichever CPU that was. So a walk that reads new content
/// finds the count changed (W3).
#[inline]
pub(crate) fn take<G: Granule>(tables: &mut impl TableSource<G>) -> Option<TablePage<G>> {
    let page = tables.take();
    primitive::release_fence();
    if let Some(page) = &page {
        primitive::page_taken(page.pa);
    }
    page
}

/// Gives a page back that is no table any more.
#[inline]
pub(crate) fn give<G: Granule>(tables: &mut impl TableSource<G>, page: TablePage<G>) {
    primitive::page_freed(page.pa);
    tables.give(page);
}

impl<G: Granule, T: TableSource<G> + ?Sized> TableSource<G> for &mut T {
    #[inline]
    fn take(&mut self) -> Option<TablePage<G>> {
        T::take(self)
    }

    #[inline]
    fn give(&mut self, page: TablePage<G>) {
        T::give(self, page);
    }
}

/// Out of line, and by value: formatting in place would force the arguments into memory at each first touch.
#[cold]
#[inline(never)]
fn no_pages(pa: Pa, run: u64, offset: u64, size: u64) -> ! {
    panic!("no pages of {size:#x} bytes {offset:#x} bytes into the run of {run:#x} bytes at {pa}")
}

/// [`zero`] for tables, which are zeroed seldom.
#[inline(never)]
fn zero_tables<P: Platform>(platform: &P, zero_block: u64, pa: Pa, size: u64) {
    zero(platform, zero_block, pa, size);
}

/// Zeroes `size` bytes, a multiple of 4 KiB. That is a multiple of every `DC ZVA` block (at most 2 KiB).
#[inline(always)]
fn zero<P: Platform>(platform: &P, zero_block: u64, pa: Pa, size: u64) {
    let start = platform.pointer(pa);
    if zero_block != 0 {
        // SAFETY: the blocks are in donated frames that the caller owns, as a run, a page or a root. So they are no
        // linked table. If they are a guest's memory, the run is lent, and its owner asks to zero it.
        unsafe { primitive::dc_lines(platform, Dc::Zva, start.addr().get(), size, zero_block) };
    } else {
        for index in 0..(size >> Kib4::SHIFT) as usize * Kib4::ENTRIES {
            // SAFETY: the frame was donated, so it is mapped while the platform lives, and only atomic or volatile
            // accesses reach it. `index` stays inside the frame, and frames are aligned.
            let word = unsafe { start.cast::<Word>().add(index).as_ref() };
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kib4Lpa2, Kib64};

    fn run(start: u64, size: u64) -> Run {
        // SAFETY: nothing is accessed through it here.
        unsafe { Donated::new(Pa::new(start), size) }.into_run()
    }

    #[test]
    fn whole_pages_of_what_is_donated() {
        let pages = |start, size| {
            let run = run(start, size);
            (run.pa().raw(), run.size())
        };
        assert_eq!(pages(0x10_0000, 0x3000), (0x10_0000, 0x3000));
        assert_eq!(pages(0x10_0010, 0x5000), (0x10_1000, 0x4000));
        assert_eq!(pages(0x10_0fff, 0x1000), (0x10_1000, 0));
        assert_eq!(pages(0x10_0001, 0x10), (0x10_1000, 0));
    }

    #[test]
    fn a_run_is_cut_and_put_together() {
        let (first, rest) = run(0x10_0000, 0x3000).split_at(0x1000).unwrap();
        assert_eq!(
            (first.pa().raw(), first.size(), rest.pa().raw(), rest.size()),
            (0x10_0000, 0x1000, 0x10_1000, 0x2000)
        );
        let (rest, first) = rest.join(first).unwrap_err();
        let whole = first.join(rest).unwrap();
        assert_eq!(whole, run(0x10_0000, 0x3000));
        let whole = whole.split_at(0x800).unwrap_err();
        let whole = whole.split_at(0x4000).unwrap_err();
        let pages: Vec<_> = whole.into_pages().map(|page| page.pa().raw()).collect();
        assert_eq!(pages, [0x10_0000, 0x10_1000, 0x10_2000]);
    }

    #[test]
    fn a_run_is_empty_where_it_has_no_page() {
        assert!(run(0x10_0001, 0x10).is_empty());
        assert!(!run(0x10_0000, 0x1000).is_empty());
    }

    #[test]
    fn a_table_is_one_page() {
        let table = run(0x10_0000, 0x1000).into_table::<Kib4>(&Features::NONE).unwrap();
        assert_eq!(table.into_run(), run(0x10_0000, 0x1000));
        assert!(run(0x10_0000, 0x2000).into_table::<Kib4>(&Features::NONE).is_err());
        assert!(run(0x10_0000, 0).into_table::<Kib4>(&Features::NONE).is_err());
        let table = run(0x10_0000, 0x1_0000).into_table::<Kib64>(&Features::NONE).unwrap();
        assert_eq!(table.into_run(), run(0x10_0000, 0x1_0000));
        assert!(run(0x10_0000, 0x1000).into_table::<Kib64>(&Features::NONE).is_err());
        assert!(run(0x10_8000, 0x1_0000).into_table::<Kib64>(&Features::NONE).is_err(), "not aligned");
    }

    /// Descriptors without FEAT_LPA2 hold 48 bits, whatever the CPU has: the engine would look for the table elsewhere.
    #[test]
    fn a_table_is_where_descriptors_can_point() {
        let wide = Features::NONE.with_pa_bits(52).with_lpa2_4k(true);
        let (last, above) = ((1 << 48) - 0x1000, 1 << 48);
        assert!(run(last, 0x1000).into_table::<Kib4>(&wide).is_ok());
        assert_eq!(run(above, 0x1000).into_table::<Kib4>(&wide), Err(run(above, 0x1000)));
        assert!(run(above, 0x1000).into_table::<Kib4Lpa2>(&wide).is_ok());
        assert!(run(above, 0x1_0000).into_table::<Kib64>(&wide).is_ok(), "FEAT_LPA");
        let narrow = Features::NONE.with_pa_bits(40);
        assert!(run((1 << 40) - 0x1000, 0x1000).into_table::<Kib4>(&narrow).is_ok());
        assert!(run(1 << 40, 0x1000).into_table::<Kib4>(&narrow).is_err());

        let geometry = Geometry::new(Kib4, 40, &wide).unwrap();
        assert!(run((1 << 48) - 0x2000, 0x2000).into_root(&geometry).is_ok());
        assert_eq!(run(above, 0x2000).into_root(&geometry), Err(run(above, 0x2000)));
        let geometry = Geometry::new(Kib4Lpa2, 40, &wide).unwrap();
        assert!(run(above, 0x2000).into_root(&geometry).is_ok());
    }

    #[test]
    fn a_root_is_aligned_to_its_size() {
        let geometry = Geometry::new(crate::Kib4, 40, &Features::NONE).unwrap();
        let root = run(0x10_2000, 0x2000).into_root(&geometry).unwrap();
        assert_eq!(root.into_run(), run(0x10_2000, 0x2000));
        assert!(run(0x10_1000, 0x2000).into_root(&geometry).is_err());
        assert!(run(0x10_0000, 0x4000).into_root(&geometry).is_err());
    }
}
