// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest's tables: built in the state that an operation starts from, and checked after it.
//!
//! Invariant: an operation's figure depends on no other operation. Each starts from tables built for it, in the same
//! places of the same arena.

use std::collections::VecDeque;
use std::rc::Rc;

use twofold_stage2::walk::{Entry, Visitor};
use twofold_stage2::{
    Attributes, Donated, Features, Geometry, Grant, Granule, Ipa, IpaRange, Level, Mapped, Pa, Platform, Stage2,
    TablePage, TableSource, Vmid, Window,
};

use super::arena::{Arena, TABLES};
use super::platform::{Counts, FEATURES, Free, NOT_FORCED};

/// The guest's memory: its IPA, and the physical address of its frames.
const GUEST: Ipa = Ipa::new(0x4000_0000);
const FRAMES: Pa = Pa::new(0x10_0000_0000);
const VMID: Vmid = Vmid::new(1);

/// Bytes of a GiB, and, with pages of 4 KiB, of a block of level 1.
pub const GIB: u64 = 1 << 30;
/// Bits of the IPA space. With 40, the root is two concatenated tables of level 1 with pages of 4 KiB, a part of a table of
/// level 1 with 16 KiB, and of level 2 with 64 KiB.
pub const IPA_BITS: u32 = 40;

/// The tables before an operation.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// Nothing.
    Empty,
    /// Nothing, on a CPU without FEAT_S2FWB.
    EmptyNotForced,
    /// All of the guest's memory, by pages.
    Pages(Attributes),
    /// All of the guest's memory, by pages, on a CPU without FEAT_S2FWB.
    PagesNotForced(Attributes),
    /// Pages: each tenth with the first attributes, all others with the second.
    OneInTen(Attributes, Attributes),
    /// All of the guest's memory, by blocks of this level.
    Blocks(Level, Attributes),
}

/// The tables that an operation must leave.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Nothing, and no table but the root.
    Nothing,
    /// All of the guest's memory, by pages with these attributes.
    Pages(Attributes),
    /// All of the guest's memory, by blocks of this level.
    Blocks(Level, Attributes),
}

impl Start {
    /// Returns the level of its leaves.
    pub fn level(self) -> Level {
        if let Self::Blocks(level, _) = self { level } else { Level::L3 }
    }
}

impl End {
    /// Returns the level of its leaves.
    pub fn level(self) -> Level {
        if let Self::Blocks(level, _) = self { level } else { Level::L3 }
    }
}

/// Why an operation has no figure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The engine returned an error.
    #[error("the engine returned an error: {0}")]
    Engine(#[from] twofold_stage2::Error),
    /// The engine did something other than what was asked.
    #[error("{0}")]
    Unexpected(&'static str),
}

/// A guest's tables, and the pages for more of them.
pub struct GuestTables<G: Granule, const COUNT: bool> {
    /// The tables, until they are destroyed.
    stage2: Option<Stage2<Free<COUNT>, G>>,
    /// Pages for tables.
    pool: Pool<G>,
    size: u64,
}

impl<G: Granule, const COUNT: bool> GuestTables<G, COUNT> {
    /// Makes a guest with `size` bytes of memory and its tables in `arena`.
    pub fn new(arena: Arena, counts: Rc<Counts>, size: u64, start: Start) -> Result<Self, Failure> {
        let features =
            if matches!(start, Start::EmptyNotForced | Start::PagesNotForced(_)) { NOT_FORCED } else { FEATURES };
        let stage2 = tables(Free::new(arena, counts), features)?;
        let pool = Pool::new(features, pool::<G>(), arena.size() - (pool::<G>() - TABLES));
        let mut guest = Self { stage2: Some(stage2), pool, size };
        guest.start(start)?;
        guest.pool.turned_over = 0;
        Ok(guest)
    }

    fn start(&mut self, start: Start) -> Result<(), Failure> {
        let (largest, attributes) = match start {
            Start::Empty | Start::EmptyNotForced => return Ok(()),
            Start::OneInTen(one, all) => {
                return (0..self.pages())
                    .try_for_each(|page| self.map_page(page, if page.is_multiple_of(10) { &one } else { &all }));
            }
            Start::Pages(attributes) | Start::PagesNotForced(attributes) => (Level::L3, attributes),
            Start::Blocks(level, attributes) => (level, attributes),
        };
        let range = self.range();
        let (stage2, pool) = self.parts()?;
        Ok(grant(stage2, 0, range.end - range.start).map_range(largest, &attributes, pool)?)
    }

    /// Returns the tables and the pool.
    #[inline(always)]
    pub fn parts(&mut self) -> Result<(&Stage2<Free<COUNT>, G>, &mut Pool<G>), Failure> {
        Ok((self.stage2.as_ref().ok_or(DESTROYED)?, &mut self.pool))
    }

    /// Returns the tables, which the caller destroys, and the pool.
    pub fn take(&mut self) -> Result<(Stage2<Free<COUNT>, G>, &mut Pool<G>), Failure> {
        Ok((self.stage2.take().ok_or(DESTROYED)?, &mut self.pool))
    }

    /// Maps a page that is not mapped.
    #[inline(always)]
    pub fn map_page(&mut self, page: u64, attributes: &Attributes) -> Result<(), Failure> {
        let (stage2, pool) = self.parts()?;
        map_page(stage2, pool, page, attributes)
    }

    /// Returns the number of pages, a power of two.
    pub fn pages(&self) -> u64 {
        self.size / G::SIZE
    }

    /// Returns the addresses of all of its memory.
    pub fn range(&self) -> IpaRange {
        range(self.size)
    }

    /// Returns the addresses of all of its memory, `step` bytes at a time.
    pub fn steps(&self, step: u64) -> impl Iterator<Item = IpaRange> + use<G, COUNT> {
        (0..self.size / step).map(move |index| GUEST + index * step..GUEST + (index + 1) * step)
    }

    /// Maps a page's number to another, in an order that a prefetcher does not predict. The map is a bijection.
    #[inline(always)]
    pub fn scattered(&self, page: u64) -> u64 {
        scattered(page, self.pages())
    }

    /// Returns the number of tables taken and given back since the guest was made.
    pub fn tables_turned_over(&self) -> u64 {
        self.pool.turned_over
    }

    /// Checks that the tables are in the state `end`.
    pub fn check(&self, end: End) -> Result<(), Failure> {
        let (size, leaves) = match end {
            End::Nothing => (0, None),
            End::Pages(attributes) => (self.size, Some((Level::L3, attributes))),
            End::Blocks(level, attributes) => (self.size, Some((level, attributes))),
        };
        let wanted = leaves.map_or(Ok(0), |(level, _)| table_pages_down_to::<G>(level, self.size))?;
        if self.pool.used() != wanted {
            return Err(Failure::Unexpected("table pages were lost, or more were taken than are needed"));
        }
        let Some(stage2) = &self.stage2 else { return Ok(()) };
        if mapped_bytes(stage2, self.size, leaves)? != size {
            return Err(Failure::Unexpected("not everything is mapped, or unmapped, as it should be"));
        }
        Ok(())
    }
}

/// Returns the shape of a guest's tables.
pub fn geometry<G: Granule>() -> Result<Geometry<G>, Failure> {
    Ok(Geometry::new(G::default(), IPA_BITS, &FEATURES)?)
}

/// Returns where the pages for tables begin; the root comes before.
pub fn pool<G: Granule>() -> Pa {
    TABLES + 4 * G::SIZE
}

/// Makes the empty tables of a guest, with the root at the arena's start.
pub fn tables<P: Platform, G: Granule>(platform: P, features: Features) -> Result<Stage2<P, G>, Failure> {
    let geometry = geometry()?;
    // SAFETY: only the engine's own references reach the arena's memory, and it is never unmapped.
    let donated = unsafe { Donated::new(TABLES, geometry.root_size()) };
    let root = donated.into_run().into_root(&geometry);
    let root = root.map_err(|run| twofold_stage2::Error::Root { root: run.pa(), size: run.size() })?;
    let stage2 = Stage2::new(platform, features, geometry, VMID, root)?;
    // As on a CPU that runs this guest.
    stage2.platform().load_vttbr(stage2.vttbr());
    Ok(stage2)
}

/// Maps a page that is not mapped.
#[inline(always)]
pub fn map_page<P: Platform, G: Granule>(
    stage2: &Stage2<P, G>,
    pool: &mut Pool<G>,
    page: u64,
    attributes: &Attributes,
) -> Result<(), Failure> {
    match grant(stage2, page, G::SIZE).map(Level::L3, attributes, pool)? {
        Mapped::New => Ok(()),
        _ => Err(Failure::Unexpected("something was mapped already")),
    }
}

/// Returns how many bytes are mapped. An error is returned if a leaf has another output address than it should, or,
/// with `leaves`, another level or other attributes.
pub fn mapped_bytes<P: Platform, G: Granule>(
    stage2: &Stage2<P, G>,
    size: u64,
    leaves: Option<(Level, Attributes)>,
) -> Result<u64, Failure> {
    let mut look = Look { leaves, features: *stage2.features(), bytes: 0 };
    stage2.walk(range(size), &mut look)?;
    Ok(look.bytes)
}

const DESTROYED: Failure = Failure::Unexpected("the tables are already destroyed");

/// Returns the address of a page.
#[inline(always)]
pub fn ipa<G: Granule>(page: u64) -> Ipa {
    GUEST + page * G::SIZE
}

/// Returns the right to map `size` bytes from a page on to its frames.
#[inline(always)]
pub fn grant<P: Platform, G: Granule>(stage2: &Stage2<P, G>, page: u64, size: u64) -> Grant<'_, P, G> {
    // SAFETY: no CPU walks these tables, and the platforms here execute no `DC CIVAC`, so nothing accesses the mapped
    // frames.
    let window = unsafe { Window::new(FRAMES + page * G::SIZE, size) };
    stage2.open(window, ipa::<G>(page))
}

/// Returns the addresses of `size` bytes of memory.
pub fn range(size: u64) -> IpaRange {
    GUEST..GUEST + size
}

/// Returns how many table pages below the root map `size` bytes by pages.
pub fn table_pages<G: Granule>(size: u64) -> Result<u64, Failure> {
    table_pages_down_to::<G>(Level::L3, size)
}

fn table_pages_down_to<G: Granule>(deepest: Level, size: u64) -> Result<u64, Failure> {
    let (root, range) = (geometry::<G>()?.root_level(), range(size));
    // Each entry that covers a part of the range, above the deepest level, has a table below it.
    let tables = |level| {
        let span = G::default().span(level);
        range.end.raw().div_ceil(span) - range.start.raw() / span
    };
    Ok([Level::L1, Level::L2].into_iter().filter(|level| (root..deepest).contains(level)).map(tables).sum())
}

/// Returns the bytes of a block of level 2: 2 MiB, 32 MiB or 512 MiB.
pub const fn block<G: Granule>() -> u64 {
    G::SIZE * G::ENTRIES as u64
}

/// Maps a page's number, one of `pages`, to another, in an order that a prefetcher does not predict.
#[inline(always)]
pub fn scattered(page: u64, pages: u64) -> u64 {
    let (mask, half) = (pages - 1, pages.ilog2() / 2);
    // Each step is invertible: the shift to the right by applying it again, the product by the inverse of the odd
    // number.
    let step = |page: u64, odd: u64| {
        let page = page.wrapping_mul(odd) & mask;
        page ^ page >> half
    };
    step(step(step(page, 0x9e37_79b9_7f4a_7c15), 0xbf58_476d_1ce4_e5b9), 0x94d0_49bb_1331_11eb)
}

/// Pages for tables. The page given back last is taken first.
pub struct Pool<G: Granule> {
    free: Vec<TablePage<G>>,
    all: u64,
    turned_over: u64,
}

impl<G: Granule> Pool<G> {
    /// Makes a pool of the `size` bytes from `first` on.
    pub fn new(features: Features, first: Pa, size: u64) -> Self {
        // SAFETY: only the engine's own references reach the arena's memory, and it is never unmapped.
        let donated = unsafe { Donated::new(first, size) };
        let mut rest = Some(donated.into_run());
        let mut cut = || {
            let (page, after) = rest.take()?.split_at(G::SIZE).ok()?;
            rest = Some(after);
            page.into_table(&features).ok()
        };
        let mut free: Vec<_> = std::iter::from_fn(&mut cut).collect();
        free.reverse();
        Self { all: free.len() as u64, free, turned_over: 0 }
    }

    fn used(&self) -> u64 {
        self.all - self.free.len() as u64
    }
}

impl<G: Granule> TableSource<G> for Pool<G> {
    #[inline]
    fn take(&mut self) -> Option<TablePage<G>> {
        self.turned_over += 1;
        self.free.pop()
    }

    #[inline]
    fn give(&mut self, page: TablePage<G>) {
        self.turned_over += 1;
        self.free.push(page);
    }
}

/// Pages taken from the pool ahead of use, as a split wants them. They leave in the order in which they entered, so
/// that tables are adjacent as with the pool itself: adjacent memory is written faster.
pub struct Ready<'a, G: Granule> {
    pool: &'a mut Pool<G>,
    pages: VecDeque<TablePage<G>>,
}

impl<'a, G: Granule> Ready<'a, G> {
    /// Makes an empty list.
    pub fn new(pool: &'a mut Pool<G>) -> Self {
        Self { pool, pages: VecDeque::new() }
    }

    /// Takes pages from the pool until there are `pages`, or the pool is empty.
    pub fn fill(&mut self, pages: usize) {
        while self.pages.len() < pages
            && let Some(page) = self.pool.take()
        {
            self.pages.push_back(page);
        }
    }
}

impl<G: Granule> Drop for Ready<'_, G> {
    fn drop(&mut self) {
        self.pages.drain(..).for_each(|page| self.pool.give(page));
    }
}

impl<G: Granule> TableSource<G> for Ready<'_, G> {
    #[inline]
    fn take(&mut self) -> Option<TablePage<G>> {
        self.pages.pop_front()
    }

    #[inline]
    fn give(&mut self, page: TablePage<G>) {
        self.pages.push_front(page);
    }
}

/// Checks every leaf.
struct Look {
    leaves: Option<(Level, Attributes)>,
    features: Features,
    bytes: u64,
}

impl<G: Granule> Visitor<G> for Look {
    type Error = Failure;

    fn leaf(&mut self, entry: &Entry<G>) -> Result<(), Failure> {
        if !entry.descriptor.is_valid() {
            return Ok(());
        }
        if entry.descriptor.address() != FRAMES + (entry.ipa - GUEST) {
            return Err(Failure::Unexpected("a leaf has another output address than it should have"));
        }
        if self.leaves.is_some_and(|leaf| leaf != (entry.level, entry.descriptor.attributes(&self.features))) {
            return Err(Failure::Unexpected("a leaf has another level, or other attributes, than it should have"));
        }
        self.bytes += entry.span;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scattered_pages_are_all_pages() {
        for pages in [1 << 18, 1 << 19] {
            let mut seen = vec![false; pages as usize];
            for page in 0..pages {
                assert!(!std::mem::replace(&mut seen[scattered(page, pages) as usize], true));
            }
        }
    }

    #[test]
    fn scattered_pages_have_no_stride() {
        let pages = 1 << 22;
        let strides: BTreeSet<_> =
            (0..10_000).map(|page| scattered(page + 1, pages).wrapping_sub(scattered(page, pages))).collect();
        assert!(strides.len() > 9_000, "only {} strides", strides.len());
    }
}
