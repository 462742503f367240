// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The claim of Kolothum 2023 in virtual time: a guest that moves while it writes, with each tracker.
//!
//! The rows are targets of ours. The published figures of a migration need Redis in a guest at EL2, so their rows stay
//! without a measurement.

use twofold_memory::dirty::Tracker;

use super::part::{Bench, Part, Round};
use crate::experiment::migrate_model::{Guest, LOADS, TRACKERS, migrate, missing_rows, record, rows_of};
use crate::results::{HeadlineRow, Results};

/// The measurement.
pub struct MigrateModelPart {
    rounds: u64,
    /// The rounds' figures.
    results: Results,
}

impl MigrateModelPart {
    /// The guest that was fixed beforehand.
    pub fn new() -> Self {
        Self { rounds: 0, results: Results::begin() }
    }
}

impl Part for MigrateModelPart {
    fn name(&self) -> String {
        "target: migration in virtual time".to_owned()
    }

    fn begin(&mut self, _: &mut Bench<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        // Each migration is checked, so no round is for that alone.
        if round == Round::Checked {
            return Ok(());
        }
        let seed = 1 + self.rounds;
        let mut taken = Vec::new();
        for (load, tracker) in LOADS.into_iter().flat_map(|load| TRACKERS.map(|tracker: Tracker| (load, tracker))) {
            if bench.stop.is_requested() {
                return Ok(());
            }
            let guest = Guest { load, ..Guest::CLAIM };
            taken.push((guest, tracker, migrate(&guest, tracker, seed)?));
        }
        self.rounds += 1;
        for (guest, tracker, moved) in &taken {
            record(&mut self.results, guest, *tracker, moved);
            record(bench.results, guest, *tracker, moved);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        why.map_or_else(|| rows_of(&self.results), missing_rows)
    }
}
