// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The baselines of the engine's techniques (`twofold_stage2::baselines`), one row each. The gain of a technique is the
//! difference to the row with the plain name, in the same run.
//!
//! Names are `<operation>_<rule>`. `cargo xtask peers linux` sets each, with pages of 4 KiB, beside Linux's figure for the
//! operation, which no baseline may exceed: a baseline is the same engine with one rule changed, never a crippled one.

use twofold_stage2::baselines::{EveryLevel, SkipChildren, SkipLeaves, SplitPolicy};
use twofold_stage2::{Coalesced, Granule, Level, Mapped, Pool};

use super::guest::{End, Failure, GuestTables, Start, block, grant};
use super::operations::WRITABLE;
use super::row::{Row, Unit, row, sized};

/// Returns all rows, in the order in which they are printed.
pub const fn rows<G: Granule>() -> &'static [Row<G>] {
    const {
        &[
            row!(
                split_blocks_every_level as sized!("split_", "_every_level"),
                Unit::Page,
                Start::Blocks(Level::L2, WRITABLE),
                End::Pages(WRITABLE)
            ),
            row!(
                split_blocks_skip_children as sized!("split_", "_skip_children"),
                Unit::Page,
                Start::Blocks(Level::L2, WRITABLE),
                End::Pages(WRITABLE)
            ),
            row!(
                split_blocks_skip_leaves as sized!("split_", "_skip_leaves"),
                Unit::Page,
                Start::Blocks(Level::L2, WRITABLE),
                End::Pages(WRITABLE)
            ),
            row!(split_again_every_level, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
            row!(split_again_skip_children, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
            row!(split_again_skip_leaves, Unit::Page, Start::Pages(WRITABLE), End::Pages(WRITABLE)),
            row!(map_pages_clean_on_abort, Unit::Page, Start::EmptyNotForced, End::Pages(WRITABLE)),
            row!(map_pages_top_up_always, Unit::Page, Start::Empty, End::Pages(WRITABLE)),
            row!(
                coalesce_blocks_free_first as sized!("coalesce_", "_free_first"),
                Unit::Block,
                Start::Pages(WRITABLE),
                End::Blocks(Level::L2, WRITABLE)
            ),
        ]
    }
}

/// Visits every entry, also those of tables that this split has just made, as Linux 6.12 does.
fn split_blocks_every_level<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split::<EveryLevel, G, COUNT>(guest)
}

/// Skips the tables that this split has just made.
fn split_blocks_skip_children<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split::<SkipChildren, G, COUNT>(guest)
}

/// Enters no table of level 3 (Bras 2026).
fn split_blocks_skip_leaves<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split::<SkipLeaves, G, COUNT>(guest)
}

/// The same three policies on memory that is already split.
fn split_again_every_level<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split::<EveryLevel, G, COUNT>(guest)
}

fn split_again_skip_children<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split::<SkipChildren, G, COUNT>(guest)
}

fn split_again_skip_leaves<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    split::<SkipLeaves, G, COUNT>(guest)
}

fn split<S: SplitPolicy, G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let range = guest.range();
    let (stage2, pool) = guest.parts()?;
    stage2.split_by::<S>(range, pool)?;
    Ok(())
}

/// Each fault cleans before it looks whether the page is mapped (Wang 2021: clean on map), on a CPU without FEAT_S2FWB.
fn map_pages_clean_on_abort<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, pool) = guest.parts()?;
    (0..pages)
        .try_for_each(|page| is_new(grant(stage2, page, G::SIZE).map_cleaning_on_abort(Level::L3, &WRITABLE, pool)?))
}

/// Each fault fills its pool as if it needed a table at every level (Wang 2021: table pages when needed).
fn map_pages_top_up_always<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, pool) = guest.parts()?;
    let mut pool: Pool<_, 4, G> = Pool::new(pool);
    (0..pages).try_for_each(|page| {
        is_new(grant(stage2, page, G::SIZE).map_topping_up_always(Level::L3, &WRITABLE, &mut pool)?)
    })
}

#[inline(always)]
fn is_new<G: Granule>(mapped: Mapped<G>) -> Result<(), Failure> {
    if mapped == Mapped::New { Ok(()) } else { Err(Failure::Unexpected("something was mapped already")) }
}

/// Frees the old table before it makes the block (Wang 2021: install before free).
fn coalesce_blocks_free_first<G: Granule, const COUNT: bool>(guest: &mut GuestTables<G, COUNT>) -> Result<(), Failure> {
    let pages = guest.pages();
    let (stage2, pool) = guest.parts()?;
    for first in (0..pages).step_by(G::ENTRIES) {
        match grant(stage2, first, block::<G>()).coalesce_freeing_first(Level::L2, &WRITABLE, pool, &mut |_| ())? {
            Coalesced::Done { .. } => {}
            Coalesced::Mapped(_) => return Err(Failure::Unexpected("there was nothing to replace")),
        }
    }
    Ok(())
}
