// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Grants: the right to map physical memory at guest addresses.
//!
//! Only a [`Grant`] maps. There are two ways to get one:
//!
//! * Donated memory is lent to a tree by value ([`Stage2::lend`]). A [`Lent`] run grants the memory inside it
//!   ([`Stage2::grant`]). While it is lent, it can become no table, and no other tree can map it. It becomes a [`Run`]
//!   again when nothing of it is mapped and the flush is complete. [`Withdrawal::reclaim`](crate::Withdrawal::reclaim)
//!   does that while vCPUs run, [`Vacated::reclaim`] for a range of a tree that is borrowed alone, and [`Root::reclaim`]
//!   for a destroyed tree.
//! * For any other memory, the caller vouches once, by the unsafe [`Window::new`] ([`Stage2::open`]).
//!
//! A physical address alone does not map:
//!
//! ```compile_fail,E0599
//! # use twofold_stage2::*;
//! fn bare<P: Platform>(stage2: &Stage2<P>, ipa: Ipa, pa: Pa, ram: &Attributes, tables: &mut impl TableSource) {
//!     let _ = stage2.map(ipa, pa, Level::L3, ram, tables);
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use twofold_stage2::*;
//! fn bare<P: Platform>(stage2: &Stage2<P>, ipa: Ipa, pa: Pa) -> Grant<'_, P> {
//!     stage2.open(pa, ipa)
//! }
//! ```
//!
//! A grant cannot be used after the memory was reclaimed:
//!
//! ```compile_fail,E0502
//! # use twofold_stage2::*;
//! fn late<P: Platform>(
//!     stage2: &mut Stage2<P>, lent: Lent, ipa: Ipa, ram: &Attributes, tables: &mut impl TableSource,
//! ) -> Result<(), Error> {
//!     let Some(grant) = stage2.grant(&lent, ipa, 4096) else { return Ok(()) };
//!     let run = stage2.vacate(lent.range(), tables)?.reclaim(lent);
//!     let _ = grant.map(Level::L3, ram, tables)?;
//!     Ok(())
//! }
//! ```
//!
//! The same compiles if the grant is used before:
//!
//! ```
//! # use twofold_stage2::*;
//! fn in_time<P: Platform>(
//!     stage2: &mut Stage2<P>, lent: Lent, ipa: Ipa, ram: &Attributes, tables: &mut impl TableSource,
//! ) -> Result<(), Error> {
//!     let Some(grant) = stage2.grant(&lent, ipa, 4096) else { return Ok(()) };
//!     let _ = grant.map(Level::L3, ram, tables)?;
//!     let run = stage2.vacate(lent.range(), tables)?.reclaim(lent);
//!     Ok(())
//! }
//! ```
//!
//! A lent run cannot become a table page:
//!
//! ```compile_fail,E0382
//! # use twofold_stage2::*;
//! fn both<P: Platform>(stage2: &Stage2<P>, run: Run, range: IpaRange, features: &Features) -> Result<TablePage, Run> {
//!     let lent = stage2.lend(run, range.start, range);
//!     run.into_table(features)
//! }
//! ```

use core::fmt;

use crate::platform::Platform;
use crate::withdraw::Sample;
use crate::{Error, Granule, Ipa, IpaRange, Kib4, Pa, Root, Run, Stage2, TablePage, TableSource, Unwatched};

/// The right to map memory at guest addresses, in the tables that this borrows.
pub struct Grant<'a, P: Platform, G: Granule = Kib4> {
    pub(crate) stage2: &'a Stage2<P, G>,
    pub(crate) ipa: Ipa,
    pub(crate) pa: Pa,
    pub(crate) size: u64,
    pub(crate) sample: Sample,
}

/// A run that a tree may map. It has one owner. It becomes a [`Run`] again when the tree cannot reach it any more.
///
/// The address of the tree's root names the tree: a root has one owner too, so no two live trees share one. A later
/// tree with the same root takes over the runs that were lent to the destroyed tree. Nothing of them is mapped then.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lent run that is dropped is lost: reclaim it"]
pub struct Lent {
    /// The first address at which it may be mapped, and the size, in whole pages and inside the run.
    start: Ipa,
    size: u64,
    /// The physical address for `start`.
    pa: Pa,
    pub(crate) root: Pa,
    pub(crate) run: Run,
}

/// Physical memory that a guest may reach and that no [`Run`] has: a device's registers, or RAM.
///
/// A window has no limit on access: what [`Grant::map`], [`Stage2::relax`] and [`Stage2::set_dbm`] allow, the guest may do. If
/// guests share it read-only, their fault handlers must not widen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pa: Pa,
    size: u64,
}

/// A proof that nothing is mapped at these addresses, in no TLB either, as long as this borrows the tables.
#[derive(Debug)]
pub struct Vacated<'a> {
    range: IpaRange,
    root: &'a Root,
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Lends a run to these tables. They may map its first byte at `ipa` and the rest after it, and only inside
    /// `range`.
    ///
    /// `ipa` is a multiple of the page size, inside the IPA space. Otherwise nothing of the run can be mapped:
    /// [`Grant::map`] reports [`Error::Misaligned`] or [`Error::OutsideIpa`].
    pub fn lend(&self, run: Run, ipa: Ipa, range: IpaRange) -> Lent {
        let end = ipa.checked_add(run.size()).unwrap_or(ipa).min(range.end).align_down(TablePage::SIZE);
        let start =
            range.start.max(ipa).raw().checked_next_multiple_of(TablePage::SIZE).unwrap_or(u64::MAX).min(end.raw());
        // If nothing can be mapped, `start` may be before `ipa`.
        let pa = run.pa() + start.saturating_sub(ipa.raw());
        Lent { start: Ipa::new(start), size: end.raw() - start, pa, root: self.root_pa(), run }
    }

    /// The right to map `size` bytes of a lent run, from `ipa` on.
    ///
    /// `None` if the run is lent to other tables, or for other addresses: [`Lent::range`] has those that it is lent for.
    #[inline(always)]
    pub fn grant(&self, lent: &Lent, ipa: Ipa, size: u64) -> Option<Grant<'_, P, G>> {
        // Wraps if `ipa` is before the start. The result is then larger than any size.
        let offset = ipa.raw().wrapping_sub(lent.start.raw());
        // Only whole pages are lent and mapped, so a page that begins inside ends inside.
        let fits = offset < lent.size && (size <= TablePage::SIZE || size <= lent.size - offset);
        let grant = || Grant { stage2: self, ipa, pa: lent.pa + offset, size, sample: self.sample() };
        (fits && lent.root == self.root_pa()).then(grant)
    }

    /// The right to map a window, from `ipa` on.
    #[inline(always)]
    pub fn open(&self, window: Window, ipa: Ipa) -> Grant<'_, P, G> {
        Grant { stage2: self, ipa, pa: window.pa, size: window.size, sample: Sample::NONE }
    }

    /// Unmaps `range` and completes the flush. No grant of these tables exists then, and none can be made while the
    /// result lives. So memory that was lent for these addresses can be reclaimed.
    ///
    /// # Errors
    ///
    /// As [`unmap`](Self::unmap).
    pub fn vacate(&mut self, range: IpaRange, tables: &mut impl TableSource<G>) -> Result<Vacated<'_>, Error> {
        self.unmap(range.clone(), tables, Unwatched)?.complete().free(tables);
        Ok(Vacated { range, root: self.root_of() })
    }
}

impl Lent {
    /// The run. The guest may be reading and writing it.
    pub const fn run(&self) -> &Run {
        &self.run
    }

    /// The addresses at which it may be mapped.
    pub fn range(&self) -> IpaRange {
        self.start..self.start + self.size
    }

    /// The first `size` bytes of the run, and the rest, each lent to the same tables for the addresses that it had.
    /// Returns the run itself if `size` is larger than the run, or not whole pages.
    ///
    /// What is mapped stays mapped. So one page can leave the tables, while the rest of its run stays lent.
    pub fn split_at(self, size: u64) -> Result<(Self, Self), Self> {
        let Self { start, size: granted, pa, root, run } = self;
        // The run may begin before the addresses that it is lent for.
        let before = pa.raw().saturating_sub(run.pa().raw());
        let (first, rest) = run.split_at(size).map_err(|run| Self { start, size: granted, pa, root, run })?;
        let cut = size.saturating_sub(before).min(granted);
        let first = Self { start, size: cut, pa, root, run: first };
        Ok((first, Self { start: start + cut, size: granted - cut, pa: pa + cut, root, run: rest }))
    }
}

impl Vacated<'_> {
    /// Takes back a run that was lent for these addresses, for any use. Returns `lent` itself if it may be mapped
    /// elsewhere.
    pub fn reclaim(&self, lent: Lent) -> Result<Run, Lent> {
        let range = lent.range();
        let covers = self.range.start <= range.start && range.end <= self.range.end;
        if lent.root == self.root.pa() && (covers || range.is_empty()) { Ok(lent.run) } else { Err(lent) }
    }
}

impl Root {
    /// Takes back a run that was lent to the tables of this root, which are [destroyed](Stage2::destroy), for any use.
    /// Returns `lent` itself if it was lent to other tables.
    pub fn reclaim(&self, lent: Lent) -> Result<Run, Lent> {
        // A live tree owns its root. The caller owns this one, so no live tree has it, and nothing is mapped through
        // it.
        if lent.root == self.pa() { Ok(lent.run) } else { Err(lent) }
    }
}

impl Window {
    /// Vouches for the `size` bytes from `pa` on.
    ///
    /// # Safety
    ///
    /// From now on, until nothing of the window is mapped and the flush that ends this is complete:
    ///
    /// * The range is a device or RAM. The guest, and the devices that it controls through the range, may read it, and
    ///   may write it if it is mapped writable.
    /// * No Rust object or reference covers it, and no [`Run`], [`Lent`] run or table has it.
    /// * Memory that is mapped with another type than [`Memory::Device`](crate::Memory::Device) is RAM, and
    ///   [`Platform::pointer`] maps it as that trait requires of donated memory: the engine cleans its lines there.
    pub const unsafe fn new(pa: Pa, size: u64) -> Self {
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

    /// The `size` bytes that begin `offset` bytes into the window; `None` if they are not inside.
    #[inline]
    pub fn part(&self, offset: u64, size: u64) -> Option<Self> {
        let fits = offset.checked_add(size)? <= self.size;
        fits.then_some(Self { pa: self.pa.checked_add(offset)?, size })
    }
}

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// The first address at which it maps.
    pub const fn ipa(&self) -> Ipa {
        self.ipa
    }

    /// The first physical address that it maps.
    pub const fn pa(&self) -> Pa {
        self.pa
    }

    /// Its size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Checks that the grant covers `size` bytes.
    #[inline(always)]
    pub(crate) fn check(&self, size: u64) -> Result<(), Error> {
        if size <= self.size { Ok(()) } else { Err(not_granted(self.ipa, size)) }
    }
}

#[cold]
#[inline(never)]
fn not_granted(ipa: Ipa, size: u64) -> Error {
    Error::NotGranted { ipa, size }
}

impl<P: Platform, G: Granule> Clone for Grant<'_, P, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, G: Granule> Copy for Grant<'_, P, G> {}

impl<P: Platform, G: Granule> fmt::Debug for Grant<'_, P, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ipa, pa, size, .. } = self;
        write!(f, "Grant({size:#x} bytes at {ipa}, from {pa})")
    }
}
