// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench engine`: the stage-2 engine on this CPU.
//!
//! The tables are in real memory, there is no guest memory, and the architecture's instructions cost nothing. The rows
//! run on one thread, and at the end on two (module `threads`). The options name [`rows`], which [`measure`] measures into a
//! [`report`]; or another program measures them one by one ([`steps`]).

pub mod arena;
mod baseline;
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

use crate::options::EngineOptions;
use crate::output;

use arena::Arena;
use guest::{PAGE, table_pages};
use measure::Plan;
use rows::Chosen;

/// Runs `twofold bench engine`.
pub fn command(options: &EngineOptions) -> anyhow::Result<()> {
    let size = options.size.bytes();
    if options.list {
        return rows::names().try_for_each(output::line);
    }
    let arena = Arena::map((table_pages(size) + SPARE) * PAGE)?;
    if let Some(what) = options.steps {
        return steps::serve(what, arena, size);
    }
    let plan = Plan { size, runs: options.runs, chosen: Chosen::of(&options.only)? };
    let report = measure::measure(&plan, arena)?;
    output::line(&if options.all { report.shown() } else { report.summary() })?;
    options.json.as_deref().map_or(Ok(()), |path| output::json(path, &report))
}

/// Pages for the root and its alignment.
const SPARE: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn every_operation_leads_to_what_it_should() {
        let arena = Arena::map((table_pages(SIZE) + SPARE) * PAGE).unwrap();
        for row in rows::rows() {
            row.count(arena, SIZE).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        }
    }
}
