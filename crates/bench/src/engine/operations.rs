// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations, one row each.
//!
//! To add one: a function of its name, and a line in [`ROWS`] with what it starts from and what it has to lead to.
//! Names and meanings are those of `peers/linux`, whose driver does the same with Linux's own code. Operations that
//! the engine does not have are not here.

use std::hint::black_box;

use twofold_stage2::{Access, Attributes, Level, Relaxed};

use super::guest::{End, Failure, GIB, Guest, PAGE, Start, ipa};
use super::row::{Row, Unit, row};

/// All rows, in the order in which they are printed.
pub const ROWS: &[Row] = &[
    row!(map_pages, Unit::Page, Start::Empty, End::Pages(WRITABLE)),
    row!(map_pages_scattered, Unit::Page, Start::Empty, End::Pages(WRITABLE)),
    row!(protect, Unit::Page, Start::Pages(WRITABLE), End::Pages(READABLE)),
    row!(protect_sections, Unit::Page, Start::Pages(WRITABLE), End::Pages(READABLE)),
    row!(protect_again, Unit::Page, Start::Pages(READABLE), End::Pages(READABLE)),
    row!(relax, Unit::Page, Start::Pages(READABLE), End::Pages(WRITABLE)),
    row!(relax_scattered, Unit::Page, Start::Pages(READABLE), End::Pages(WRITABLE)),
    row!(young, Unit::Page, Start::Pages(OLD), End::Pages(WRITABLE)),
    row!(lookup, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
    row!(unmap, Unit::Page, Start::Pages(WRITABLE), End::Nothing),
    row!(unmap_pages, Unit::Page, Start::Pages(WRITABLE), End::Nothing),
    row!(destroy, Unit::Page, Start::Pages(WRITABLE), End::Nothing),
    row!(unmap_harvest, Unit::Page, Start::PagesNotForced(DIRTY), End::Nothing),
    row!(protect_dbm, Unit::Page, Start::Pages(DIRTY), End::Pages(READABLE)),
    row!(scan_dirty_clean, Unit::Page, Start::Pages(CLEAN), End::Pages(CLEAN)),
    row!(scan_dirty_1in10, Unit::Page, Start::OneInTen(DIRTY, CLEAN), End::Pages(CLEAN)),
];

const WRITABLE: Attributes = Attributes::ram(Access::READ_WRITE);
const READABLE: Attributes = Attributes::ram(Access::READ);
const OLD: Attributes = Attributes { accessed: false, ..WRITABLE };
/// Writes are recorded by hardware, and there was one.
const DIRTY: Attributes = Attributes { dirty_by_hardware: true, ..WRITABLE };
/// Writes are recorded by hardware, and there was none.
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..READABLE };

/// Pages of a section: the bits of a word of KVM's dirty log.
const SECTION: u64 = 64 * PAGE;

/// One call a page, in ascending order, as faults come.
fn map_pages<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| guest.map_page(page, &WRITABLE))
}

/// One call a page, all over the guest's memory.
fn map_pages_scattered<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| guest.map_page(guest.scattered(page), &WRITABLE))
}

/// Takes the writes from everything in one call, with the flush.
fn protect<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    let _flushed = stage2.protect(range, Access::READ, pool)?.complete();
    Ok(())
}

/// The same in calls of 64 pages. Each has its flush: the engine has no way yet to put them together.
fn protect_sections<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    let sections = guest.steps(SECTION);
    let (stage2, pool) = guest.parts()?;
    for section in sections {
        let _flushed = stage2.protect(section, Access::READ, pool)?.complete();
    }
    Ok(())
}

/// Where everything is protected already.
fn protect_again<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    protect(guest)
}

/// Where hardware may be writing the entries.
fn protect_dbm<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    protect(guest)
}

/// The answer to a write fault, page by page in ascending order.
fn relax<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| relax_page(guest, page, Access::READ_WRITE))
}

/// The same all over the guest's memory.
fn relax_scattered<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| relax_page(guest, guest.scattered(page), Access::READ_WRITE))
}

/// The answer to an access flag fault: no more access than there is, and the flag.
fn young<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    (0..guest.pages()).try_for_each(|page| relax_page(guest, page, Access::NONE))
}

#[inline(always)]
fn relax_page<const COUNT: bool>(guest: &mut Guest<COUNT>, page: u64, access: Access) -> Result<(), Failure> {
    match guest.parts()?.0.relax(ipa(page), access)? {
        Relaxed::Widened => Ok(()),
        Relaxed::Already => Err(Failure::Unexpected("there was nothing to relax")),
    }
}

/// The leaf of each page in ascending order.
fn lookup<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, _) = guest.parts()?;
    for page in 0..pages {
        match black_box(stage2.look_up(black_box(ipa(page)))) {
            Some(leaf) if leaf.level == Level::L3 => {}
            _ => return Err(Failure::Unexpected("a page was not found")),
        }
    }
    Ok(())
}

/// Unmaps everything 1 GiB a call, with flush and freeing.
fn unmap<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    unmap_steps(guest, GIB)
}

/// The same page by page.
fn unmap_pages<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    unmap_steps(guest, PAGE)?;
    // What no single page covers stays linked: an engine that frees a table with its last page has nothing left here.
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    let (pending, detached) = stage2.unmap(range, pool, &mut |_| ())?;
    detached.free(pending.complete(), pool);
    Ok(())
}

#[inline(always)]
fn unmap_steps<const COUNT: bool>(guest: &mut Guest<COUNT>, step: u64) -> Result<(), Failure> {
    let steps = guest.steps(step);
    let (stage2, pool) = guest.parts()?;
    for range in steps {
        let (pending, detached) = stage2.unmap(range, pool, &mut |_| ())?;
        detached.free(pending.complete(), pool);
    }
    Ok(())
}

/// Unmaps everything 1 GiB a call, and takes from each leaf its frame, access flag and dirty state.
fn unmap_harvest<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    let (steps, pages) = (guest.steps(GIB), guest.pages());
    let (stage2, pool) = guest.parts()?;
    let features = *stage2.features();
    let (mut frames, mut accessed, mut dirty) = (0, 0, 0);
    for range in steps {
        let (pending, detached) = stage2.unmap(range, pool, &mut |leaf| {
            frames ^= leaf.descriptor.address().raw();
            accessed += u64::from(leaf.descriptor.attributes(&features).accessed);
            dirty += u64::from(leaf.descriptor.is_hardware_dirty());
        })?;
        detached.free(pending.complete(), pool);
    }
    black_box(frames);
    if (accessed, dirty) != (pages, pages) {
        return Err(Failure::Unexpected("what hardware recorded was lost"));
    }
    Ok(())
}

/// Unmaps and frees everything, the root too.
fn destroy<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    let (stage2, pool) = guest.take()?;
    let _root = stage2.destroy(pool, &mut |_| ())?;
    Ok(())
}

/// Looks for pages that hardware marked, where there are none.
fn scan_dirty_clean<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    scan_dirty(guest, 0)
}

/// Finds and cleans those that hardware marked: each tenth.
fn scan_dirty_1in10<const COUNT: bool>(guest: &mut Guest<COUNT>) -> Result<(), Failure> {
    let marked = guest.pages().div_ceil(10);
    scan_dirty(guest, marked)
}

fn scan_dirty<const COUNT: bool>(guest: &mut Guest<COUNT>, marked: u64) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, _) = guest.parts()?;
    let mut found = 0;
    let _flushed = stage2.clean(range, &mut |_| found += 1)?.complete();
    if found == marked { Ok(()) } else { Err(Failure::Unexpected("not all marked pages were found")) }
}
