// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench engine`: the stage-2 engine on this CPU.
//!
//! The tables are in real memory, there is no guest memory, and the architecture's instructions cost nothing. The rows
//! run on one thread, and at the end on two (module `threads`). The options name [`rows`], which [`measure`] measures into a
//! [`report`]; or another program measures them one by one ([`steps`]).

pub mod arena;
mod baseline;
pub mod contiguous;
mod guest;
pub mod limits;
mod measure;
mod operations;
mod platform;
pub mod report;
mod row;
mod rows;
mod steps;
mod threads;
mod visits;

use twofold_stage2::{Granule, Kib4, Kib16, Kib64};

use crate::options::{EngineOptions, GranuleOption};
use crate::output;

use arena::Arena;
use guest::table_pages;
use measure::Plan;
use rows::Chosen;

/// Runs `twofold bench engine`.
pub fn command(options: &EngineOptions) -> anyhow::Result<()> {
    match options.granule {
        GranuleOption::Kib4 => run::<Kib4>(options),
        GranuleOption::Kib16 => run::<Kib16>(options),
        GranuleOption::Kib64 => run::<Kib64>(options),
    }
}

fn run<G: Granule>(options: &EngineOptions) -> anyhow::Result<()> {
    let size = options.size.bytes();
    if options.list {
        return rows::names::<G>(size).try_for_each(output::line);
    }
    let arena = arena::<G>(size)?;
    if let Some(what) = options.steps {
        return steps::serve::<G>(what, arena, size);
    }
    let plan = Plan { size, runs: options.runs, chosen: Chosen::<G>::of(&options.only, size)? };
    let report = measure::measure(&plan, arena)?;
    output::line(&if options.all { report.shown() } else { report.summary() })?;
    options.json.as_deref().map_or(Ok(()), |path| output::json(path, &report))
}

/// Maps memory for the tables of a guest of `size` bytes.
fn arena<G: Granule>(size: u64) -> anyhow::Result<Arena> {
    Arena::map((table_pages::<G>(size)? + SPARE) * G::SIZE)
}

/// Pages for the root and its alignment, and for a pool that is filled ahead.
const SPARE: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn every_operation_leads_to_what_it_should() {
        every_operation::<Kib4>();
        every_operation::<Kib16>();
        every_operation::<Kib64>();
    }

    fn every_operation<G: Granule>() {
        let arena = arena::<G>(SIZE).unwrap();
        for row in rows::rows::<G>() {
            row.count(arena, SIZE).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        }
    }

    #[test]
    fn counts_of_each_granule() {
        // In 1 GiB: pages, blocks of level 2, and tables below the root.
        counts::<Kib4>("2m", 1 << 18, 512, 512 + 1);
        counts::<Kib16>("32m", 1 << 16, 32, 32 + 1);
        counts::<Kib64>("512m", 1 << 14, 2, 2);
    }

    /// Checks counts that follow from the granule.
    fn counts<G: Granule>(block: &str, pages: u64, blocks: u64, tables: u64) {
        let arena = arena::<G>(SIZE).unwrap();
        let count = |name: &str| {
            let row = rows::rows::<G>().find(|row| row.name == name).unwrap();
            row.count(arena, SIZE).unwrap()
        };
        let of = |all: u64, units: u64| Some(all as f64 / units as f64);
        // A table is taken when its first page is mapped, and nothing is flushed.
        let map = count("map_pages");
        assert_eq!((map.tables, map.tlbi), (of(tables, pages), Some(0.0)));
        // Each page is invalidated by itself at stage 2, and then at stage 1. The last page of a table frees the table.
        let unmap = count("unmap_pages");
        assert_eq!((unmap.tables, unmap.tlbi), (of(tables, pages), Some(2.0)));
        // A split breaks each block before it makes the table, and a coalescing frees the table.
        assert_eq!(count(&format!("split_{block}")).tlbi, of(2 * blocks, pages));
        assert_eq!(count(&format!("coalesce_{block}")).tables, Some(1.0));
        assert_eq!(count("protect_again").tlbi, Some(0.0));
    }
}
