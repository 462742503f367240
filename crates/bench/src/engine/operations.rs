// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations, one row each.
//!
//! To add an operation, write a function of its name, and a line in [`ROWS`] with the tables it starts from and those
//! it must leave. Names and meanings are those of `peers/linux`, whose driver does the same with Linux's own code.

use std::hint::black_box;
use std::ops::ControlFlow;

use twofold_stage2::{
    Access, Attributes, Broken, Coalesced, Granule, IpaRange, Level, Pending, Relaxed, Split, Stage2, Unwatched,
};

use super::guest::{End, Failure, GIB, GuestTables, Pool, Ready, Start, block, grant, ipa};
use super::platform::Free;
use super::row::{Row, Unit, row, sized};

/// Returns all rows, in the order in which they are printed.
pub const fn rows<G: Granule>() -> &'static [Row<G>] {
    const {
        &[
            row!(map_pages, Unit::Page, Start::Empty, End::Pages(WRITABLE)),
            row!(map_pages_scattered, Unit::Page, Start::Empty, End::Pages(WRITABLE)),
            row!(map_range, Unit::Page, Start::Empty, End::Pages(WRITABLE)),
            row!(
                split_blocks as sized!("split_"),
                Unit::Page,
                Start::Blocks(Level::L2, WRITABLE),
                End::Pages(WRITABLE)
            ),
            row!(split_1g, Unit::Page, Start::Blocks(Level::L1, WRITABLE), End::Pages(WRITABLE)),
            row!(split_again, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
            row!(split_again_sections, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
            row!(protect, Unit::Page, Start::Pages(WRITABLE), End::Pages(READABLE)),
            row!(protect_sections, Unit::Page, Start::Pages(WRITABLE), End::Pages(READABLE)),
            row!(protect_again, Unit::Page, Start::Pages(READABLE), End::Pages(READABLE)),
            row!(protect_split_sections, Unit::Page, Start::Pages(WRITABLE), End::Pages(READABLE)),
            row!(relax, Unit::Page, Start::Pages(READABLE), End::Pages(WRITABLE)),
            row!(relax_scattered, Unit::Page, Start::Pages(READABLE), End::Pages(WRITABLE)),
            row!(young, Unit::Page, Start::Pages(OLD), End::Pages(WRITABLE)),
            row!(age, Unit::Page, Start::Pages(WRITABLE), End::Pages(OLD)),
            row!(lookup, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
            row!(
                coalesce_blocks as sized!("coalesce_"),
                Unit::Block,
                Start::Pages(WRITABLE),
                End::Blocks(Level::L2, WRITABLE)
            ),
            row!(coalesce_1g, Unit::Gib, Start::Pages(WRITABLE), End::Blocks(Level::L1, WRITABLE)),
            row!(unmap, Unit::Page, Start::Pages(WRITABLE), End::Nothing),
            row!(unmap_pages, Unit::Page, Start::Pages(WRITABLE), End::Nothing),
            row!(destroy, Unit::Page, Start::Pages(WRITABLE), End::Nothing),
            row!(unmap_harvest, Unit::Page, Start::PagesNotForced(DIRTY), End::Nothing),
            row!(protect_dbm, Unit::Page, Start::Pages(DIRTY), End::Pages(READABLE)),
            row!(age_dbm, Unit::Page, Start::Pages(DIRTY), End::Pages(DIRTY_OLD)),
            row!(scan_dirty_clean, Unit::Page, Start::Pages(CLEAN), End::Pages(CLEAN)),
            row!(scan_dirty_1in10, Unit::Page, Start::OneInTen(DIRTY, CLEAN), End::Pages(CLEAN)),
        ]
    }
}

pub const WRITABLE: Attributes = Attributes::ram(Access::READ_WRITE);
const READABLE: Attributes = Attributes::ram(Access::READ);
const OLD: Attributes = Attributes { accessed: false, ..WRITABLE };
/// Hardware-tracked pages that were written.
const DIRTY: Attributes = Attributes { dirty_by_hardware: true, ..WRITABLE };
/// Hardware-tracked pages that were written, and not accessed since the last ageing.
const DIRTY_OLD: Attributes = Attributes { accessed: false, ..DIRTY };
/// Hardware-tracked pages that were not written.
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..READABLE };

/// Pages of a word of KVM's dirty log, which has a bit for each.
const WORD_PAGES: u64 = 64;

/// Maps one page a call, in ascending order, as faults do.
fn map_pages<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| guest.map_page(page, &WRITABLE))
}

/// Maps one page a call, scattered over the guest's memory.
fn map_pages_scattered<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| guest.map_page(guest.scattered(page), &WRITABLE))
}

/// Maps everything in one call.
fn map_range<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    Ok(grant(stage2, 0, range.end - range.start).map_range(Level::L3, &WRITABLE, pool)?)
}

/// Splits all blocks of level 2 in one call, which asks for table pages once in each 1 GiB.
fn split_blocks<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split(guest)
}

/// Splits all blocks of 1 GiB in one call.
fn split_1g<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split(guest)
}

fn split<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    let mut ready = Ready::new(pool);
    let split = stage2.split(range, GIB, &mut ready, |ready, pages| {
        ready.fill(pages);
        ControlFlow::Continue(())
    })?;
    if split.blocks > 0 && split.stopped.is_none() { Ok(()) } else { Err(NOT_SPLIT) }
}

/// Splits, in one call, memory that is already split.
fn split_again<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    split_nothing(stage2, pool, range)
}

/// Splits memory that is already split, 64 pages a call.
fn split_again_sections<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let mut sections = guest.steps(WORD_PAGES * G::SIZE);
    let (stage2, pool) = guest.parts()?;
    sections.try_for_each(|section| split_nothing(stage2, pool, section))
}

#[inline(always)]
fn split_nothing<G: Granule, const COUNT: bool>(
    stage2: &Stage2<Free<COUNT>, G>,
    pool: &mut Pool<G>,
    range: IpaRange,
) -> Result<(), Failure> {
    match stage2.split(range, GIB, pool, |_, _| ControlFlow::Continue(()))? {
        Split { blocks: 0, stopped: None, .. } => Ok(()),
        _ => Err(NOT_SPLIT),
    }
}

const NOT_SPLIT: Failure = Failure::Unexpected("the split did not split exactly the blocks that there were");

/// Write-protects everything in one call, with the flush.
fn protect<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    stage2.write_protect(range)?.complete().free(pool);
    Ok(())
}

/// Write-protects 64 pages a call, with one flush at the end.
fn protect_sections<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    protect_each_section(guest, |_, _, _| Ok(()))
}

/// Write-protects and splits 64 pages a call, as KVM does for a word of its dirty log. Everything is already split.
fn protect_split_sections<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    protect_each_section(guest, split_nothing)
}

#[inline(always)]
fn protect_each_section<G: Granule, const COUNT: bool>(
    guest: &mut GuestTables<G, COUNT>,
    then: impl Fn(&Stage2<Free<COUNT>, G>, &mut Pool<G>, IpaRange) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let sections = guest.steps(WORD_PAGES * G::SIZE);
    let (stage2, pool) = guest.parts()?;
    let mut all: Option<Pending<'_, _, _, G>> = None;
    for section in sections {
        let pending = stage2.write_protect(section.clone())?;
        match &mut all {
            Some(all) => all.join(pending),
            None => all = Some(pending),
        }
        then(stage2, pool, section)?;
    }
    if let Some(all) = all {
        all.complete().free(pool);
    }
    Ok(())
}

/// Write-protects pages that are already protected.
fn protect_again<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    protect(guest)
}

/// Write-protects hardware-tracked pages: hardware may write the entries meanwhile.
fn protect_dbm<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    protect(guest)
}

/// Answers a write fault for each page, in ascending order.
fn relax<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| relax_page(guest, page))
}

/// Answers a write fault for each page, scattered over the guest's memory.
fn relax_scattered<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| relax_page(guest, guest.scattered(page)))
}

#[inline(always)]
fn relax_page<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>, page: u64) -> Result<(), Failure> {
    match guest.parts()?.0.relax(ipa::<G>(page), Access::READ_WRITE)? {
        Relaxed::Widened => Ok(()),
        Relaxed::Already => Err(Failure::Unexpected("there was nothing to relax")),
    }
}

/// Answers an access flag fault for each page.
fn young<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, _) = guest.parts()?;
    for page in 0..pages {
        if !stage2.make_young(ipa::<G>(page))? {
            return Err(Failure::Unexpected("a page was young already"));
        }
    }
    Ok(())
}

/// Collects and clears all access flags in one call.
fn age<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let (range, pages) = (guest.range(), guest.pages());
    let (stage2, _) = guest.parts()?;
    let mut young = 0;
    stage2.age(range, &mut |marked| young += u64::from(marked.mask.count_ones()))?;
    if young == pages { Ok(()) } else { Err(Failure::Unexpected("not all young pages were found")) }
}

/// Ages hardware-tracked pages: hardware may write the entries meanwhile.
fn age_dbm<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    age(guest)
}

/// Looks up the leaf of each page, in ascending order.
fn lookup<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, _) = guest.parts()?;
    for page in 0..pages {
        match black_box(stage2.look_up(black_box(ipa::<G>(page)))) {
            Some(leaf) if leaf.level == Level::L3 => {}
            _ => return Err(Failure::Unexpected("a page was not found")),
        }
    }
    Ok(())
}

/// Replaces the pages of each block of level 2 by the block, with flush and freeing.
fn coalesce_blocks<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    coalesce(guest, Level::L2, block::<G>())
}

/// Replaces the pages of each 1 GiB by a block of level 1, with flush and freeing.
fn coalesce_1g<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    coalesce(guest, Level::L1, GIB)
}

fn coalesce<G: Granule, const COUNT: bool>(
    guest: &mut GuestTables<G, COUNT>,
    level: Level,
    span: u64,
) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, pool) = guest.parts()?;
    for first in (0..pages).step_by((span / G::SIZE) as usize) {
        match grant(stage2, first, span).coalesce(level, &WRITABLE, pool, &mut |_| ())? {
            Coalesced::Done { .. } => {}
            Coalesced::Mapped(_) => return Err(Failure::Unexpected("there was nothing to replace")),
        }
    }
    Ok(())
}

/// Unmaps everything, 1 GiB a call, with flush and freeing.
fn unmap<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    unmap_steps(guest, GIB)
}

/// Unmaps everything, one page a call. A table is freed with its last page.
fn unmap_pages<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    unmap_steps(guest, G::SIZE)
}

#[inline(always)]
fn unmap_steps<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>, step: u64) -> Result<(), Failure> {
    let steps = guest.steps(step);
    let (stage2, pool) = guest.parts()?;
    for range in steps {
        stage2.unmap(range, pool, Unwatched)?.complete().free(pool);
    }
    Ok(())
}

/// Unmaps everything, 1 GiB a call, and takes the address, access flag and dirty state of each leaf.
fn unmap_harvest<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let (steps, pages) = (guest.steps(GIB), guest.pages());
    let (stage2, pool) = guest.parts()?;
    let mut seen = Harvest::default();
    for range in steps {
        let pending = stage2.unmap(range, pool, |leaf: Broken<G>| seen.see(leaf))?;
        pending.complete().free(pool);
    }
    black_box(seen.pages);
    if (seen.accessed, seen.dirty) != (pages, pages) {
        return Err(Failure::Unexpected("an access flag or dirty state that hardware recorded was lost"));
    }
    Ok(())
}

/// What was taken from the leaves.
#[derive(Default)]
struct Harvest {
    pages: u64,
    accessed: u64,
    dirty: u64,
}

impl Harvest {
    #[inline(always)]
    fn see<G: Granule>(&mut self, leaf: Broken<G>) {
        self.pages ^= leaf.ipa().raw();
        self.accessed += u64::from(leaf.is_accessed());
        self.dirty += u64::from(leaf.is_hardware_dirty());
    }
}

/// Unmaps and frees everything, including the root.
fn destroy<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let (stage2, pool) = guest.take()?;
    let _root = stage2.destroy(pool, Unwatched);
    Ok(())
}

/// Scans for pages that hardware marked dirty, where there are none.
fn scan_dirty_clean<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    scan_dirty(guest, 0)
}

/// Finds and cleans the pages that hardware marked dirty, which are one in ten.
fn scan_dirty_1in10<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let marked = guest.pages().div_ceil(10);
    scan_dirty(guest, marked)
}

fn scan_dirty<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>, marked: u64) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    let mut found = 0;
    let pending = stage2.clean(range, &mut |marked| found += u64::from(marked.mask.count_ones()))?;
    pending.complete().free(pool);
    if found == marked { Ok(()) } else { Err(Failure::Unexpected("not all marked pages were found")) }
}
