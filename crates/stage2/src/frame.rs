// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that the engine works on: donated ranges, and the table pages cut from them.
//!
//! The invariant that makes the rest safe: donated memory is behind no Rust reference but the engine's own to
//! entries, which are atomic; guest memory is reached by cache instructions or volatile stores only. Beyond that, a
//! frame has one owner: who cuts the same page from a range twice, once for a table and once for a guest, lets that
//! guest forge entries. Types do not prevent this yet; [`Donated`]'s functions say so each.

use crate::platform::{Dc, Platform};
use crate::primitive::{self, Ordering, Word};
use crate::{Error, Features, Geometry, Granule, Pa};

/// A range of physical memory that belongs to guests and tables alone.
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
    /// The range is RAM which no Rust object or reference covers, now or as long as the platform lives, and
    /// which [`Platform::pointer`] maps as that trait demands.
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

    /// Whether `size` bytes from `pa` are inside.
    pub fn contains(&self, pa: Pa, size: u64) -> bool {
        pa >= self.start && size <= self.size && pa - self.start <= self.size - size
    }

    /// A page for a table, which the caller gives to nobody else. `None` where it is not inside or not aligned.
    pub fn table_page(&self, pa: Pa, features: &Features) -> Option<TablePage> {
        let fits = self.contains(pa, TablePage::SIZE) && pa.is_aligned(TablePage::SIZE);
        fits.then_some(TablePage { pa, zero_block: features.zero_block })
    }

    /// Memory for a root table of this shape, which the caller gives to nobody else.
    pub fn root(&self, pa: Pa, geometry: &Geometry) -> Result<Root, Error> {
        let size = geometry.root_size();
        if self.contains(pa, size) && pa.is_aligned(size) {
            Ok(Root { pa, size })
        } else {
            Err(Error::Root { root: pa, size })
        }
    }

    /// Memory for guests, which the caller gives to nobody else. `None` where it is not inside, or not whole pages.
    pub fn run(&self, pa: Pa, size: u64) -> Option<Run> {
        let pages = pa.is_aligned(TablePage::SIZE) && size.is_multiple_of(TablePage::SIZE);
        (pages && self.contains(pa, size)).then_some(Run { pa, size })
    }
}

/// Whole pages of donated memory, one after the other, for guests. It has one owner.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pa: Pa,
    size: u64,
}

impl Run {
    /// Its first byte.
    pub const fn pa(&self) -> Pa {
        self.pa
    }

    /// Its size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Zeroes the page `offset` bytes in, a multiple of 4 KiB.
    ///
    /// # Panics
    ///
    /// Where there is no such page.
    #[inline]
    pub fn zero_page<P: Platform>(&self, platform: &P, features: &Features, offset: u64) {
        assert!(
            offset < self.size && offset.is_multiple_of(TablePage::SIZE),
            "no page {offset:#x} bytes into {self:?}"
        );
        zero(platform, features.zero_block, self.pa + offset, TablePage::SIZE);
        primitive::data_written(self.pa + offset, TablePage::SIZE);
    }

    /// Zeroes all of it.
    pub fn zero<P: Platform>(&self, platform: &P, features: &Features) {
        zero(platform, features.zero_block, self.pa, self.size);
        primitive::data_written(self.pa, self.size);
    }

    /// Writes `bytes` from `offset` on. The guest must not have it mapped: what the guest's caches hold is not cleaned.
    ///
    /// # Panics
    ///
    /// Where they do not fit.
    pub fn write<P: Platform>(&self, platform: &P, offset: u64, bytes: &[u8]) {
        let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size);
        assert!(fits, "{} bytes do not fit {offset:#x} bytes into {self:?}", bytes.len());
        let pa = self.pa + offset;
        let start = platform.pointer(pa);
        let words = if pa.is_aligned(8) { bytes.len() / 8 } else { 0 };
        let (whole, rest) = bytes.split_at(words * 8);
        for (index, word) in whole.as_chunks().0.iter().enumerate() {
            // SAFETY: inside donated memory, so mapped while the platform lives and behind no reference; frames are
            // aligned and `pa` is a multiple of 8.
            unsafe { start.cast::<u64>().add(index).write_volatile(u64::from_ne_bytes(*word)) };
        }
        for (index, byte) in rest.iter().enumerate() {
            // SAFETY: as above; bytes need no alignment.
            unsafe { start.add(words * 8 + index).write_volatile(*byte) };
        }
        primitive::data_written(pa, bytes.len() as u64);
    }

    /// Reads from `offset` on, word by word where it is a multiple of 8. The guest may be writing there.
    ///
    /// # Panics
    ///
    /// Where there are not so many bytes.
    pub fn read<P: Platform>(&self, platform: &P, offset: u64, bytes: &mut [u8]) {
        let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size);
        assert!(fits, "{} bytes at {offset:#x} are not in {self:?}", bytes.len());
        let pa = self.pa + offset;
        let start = platform.pointer(pa);
        let words = if pa.is_aligned(8) { bytes.len() / 8 } else { 0 };
        let (whole, rest) = bytes.split_at_mut(words * 8);
        for (index, word) in whole.as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: inside donated memory, so mapped while the platform lives and behind no reference; frames are
            // aligned and `pa` is a multiple of 8.
            *word = unsafe { start.cast::<u64>().add(index).read_volatile() }.to_ne_bytes();
        }
        for (index, byte) in rest.iter_mut().enumerate() {
            // SAFETY: as above; bytes need no alignment.
            *byte = unsafe { start.add(words * 8 + index).read_volatile() };
        }
    }
}

/// A page that holds, or is going to hold, a table. It has one owner: a table tree, or a [`TableSource`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a table page that is dropped is lost: give it back to its source"]
pub struct TablePage {
    pa: Pa,
    zero_block: u64,
}

impl TablePage {
    /// Bytes of a table page with the 4 KiB granule.
    pub const SIZE: u64 = 4096;

    /// Where it is.
    pub const fn pa(&self) -> Pa {
        self.pa
    }

    pub(crate) fn zero<P: Platform>(&self, platform: &P) {
        zero(platform, self.zero_block, self.pa, Self::SIZE);
    }

    /// Takes over a page that was in a tree of this engine's.
    pub(crate) const fn from_tree(pa: Pa, features: &Features) -> Self {
        Self { pa, zero_block: features.zero_block }
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

    pub(crate) fn zero<P: Platform>(&self, platform: &P, features: &Features) {
        zero(platform, features.zero_block, self.pa, self.size);
    }
}

/// Where table pages come from and go back to. Asked only at the moment one is needed (source S4), with no lock held.
///
/// Where CPUs share pages, whoever takes one has to see what whoever gave it did before, as with anything that is handed over
/// by a lock: so a descent that is late sees that the table it is in is none any more.
pub trait TableSource {
    /// A page, whatever it holds; `None` when dry.
    fn take(&mut self) -> Option<TablePage>;

    /// Takes a page back that no walk can reach any more.
    fn give(&mut self, page: TablePage);
}

/// A page to be filled. It may have been a table, and a descent that is late may still read it: what it reads of the new
/// content is ordered after the count of the table's removal (module `descent`), whoever removed it.
#[inline]
pub(crate) fn take(tables: &mut impl TableSource) -> Option<TablePage> {
    let page = tables.take();
    primitive::release_fence();
    if let Some(page) = &page {
        primitive::page_taken(page.pa);
    }
    page
}

/// A page that is no table any more, to where it came from.
#[inline]
pub(crate) fn give(tables: &mut impl TableSource, page: TablePage) {
    primitive::page_freed(page.pa);
    tables.give(page);
}

impl<T: TableSource + ?Sized> TableSource for &mut T {
    #[inline]
    fn take(&mut self) -> Option<TablePage> {
        T::take(self)
    }

    #[inline]
    fn give(&mut self, page: TablePage) {
        T::give(self, page);
    }
}

/// `size` is a multiple of 4 KiB, which is a multiple of every `DC ZVA` block there is (at most 2 KiB).
fn zero<P: Platform>(platform: &P, zero_block: u64, pa: Pa, size: u64) {
    let start = platform.pointer(pa);
    if zero_block != 0 {
        // SAFETY: the blocks are in a frame that was donated, and its owner wants it zeroed.
        unsafe { primitive::dc_lines(platform, Dc::Zva, start.addr().get(), size, zero_block) };
    } else {
        let granule = Granule::KIB_4;
        for index in 0..(size >> granule.shift()) as usize * granule.entries() {
            // SAFETY: the frame was donated, so it is mapped for as long as the platform lives and only atomic or
            // volatile accesses reach it; `index` stays inside, and frames are aligned.
            let word = unsafe { start.cast::<Word>().add(index).as_ref() };
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside() {
        // SAFETY: nothing is accessed through it here.
        let donated = unsafe { Donated::new(Pa::new(0x10_0000), 0x3000) };
        assert!(donated.contains(Pa::new(0x10_0000), 0x3000));
        assert!(donated.contains(Pa::new(0x10_2000), 0x1000));
        assert!(!donated.contains(Pa::new(0x10_2000), 0x1001));
        assert!(!donated.contains(Pa::new(0xf_f000), 0x1000));
        assert!(!donated.contains(Pa::new(u64::MAX), 1));
        assert!(donated.table_page(Pa::new(0x10_1000), &Features::NONE).is_some());
        assert!(donated.table_page(Pa::new(0x10_1008), &Features::NONE).is_none());
        assert!(donated.table_page(Pa::new(0x10_3000), &Features::NONE).is_none());
    }

    #[test]
    fn a_root_is_aligned_to_its_size() {
        // SAFETY: nothing is accessed through it here.
        let donated = unsafe { Donated::new(Pa::new(0x10_0000), 0x4000) };
        let geometry = Geometry::new(crate::Granule::KIB_4, 40, &Features::NONE).unwrap();
        assert!(donated.root(Pa::new(0x10_2000), &geometry).is_ok());
        let wrong = Pa::new(0x10_1000);
        assert_eq!(donated.root(wrong, &geometry), Err(Error::Root { root: wrong, size: 0x2000 }));
        assert!(donated.root(Pa::new(0x10_4000), &geometry).is_err());
    }
}
