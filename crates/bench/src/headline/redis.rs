// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis during a live migration, of Kolothum 2023: Linux moves between two hypervisors, with the log in software and with the
//! combined one in turns.
//!
//! Time is the host's, as for the source, and the machine is emulated. Each move is compared, so a round checks itself.

use std::path::PathBuf;
use std::sync::Arc;

use super::part::{Bench, Part, Round};
use super::published::{KOLOTHUM, PUBLISHED, Published};
use super::row::{Ours, Pair};
use super::subject::{RedisFigure, Subject};
use crate::experiment::migrate_redis::{Guest, Plan, record};
use crate::results::{HeadlineRow, Kind, Platform};
use crate::statistics::ENOUGH;

/// The measurement.
pub struct RedisPart {
    /// The directory of the images. `None`: those of this workspace.
    images: Option<PathBuf>,
    running: Option<(Arc<Plan>, Guest)>,
    benchmark: Pair,
    migration: Pair,
}

impl RedisPart {
    /// Uses the images of this directory, or of the workspace.
    pub fn new(images: Option<PathBuf>) -> Self {
        Self { images, running: None, benchmark: Pair::default(), migration: Pair::default() }
    }

    fn published() -> impl Iterator<Item = (&'static Published, RedisFigure)> {
        PUBLISHED.iter().filter_map(|published| match published.subject {
            Subject::Redis { figure } => Some((published, figure)),
            _ => None,
        })
    }

    fn ours(&self, figure: RedisFigure) -> Ours {
        let pair = match figure {
            RedisFigure::Benchmark => &self.benchmark,
            RedisFigure::Migration => &self.migration,
        };
        let command = self.running.as_ref().map(|(plan, _)| plan.command()).unwrap_or_default();
        Ours {
            pair: pair.clone(),
            unit: "s",
            platform: Platform::Hypervisor,
            kind: Kind::Emulated,
            note: format!("`{command}`"),
        }
    }
}

impl Part for RedisPart {
    fn name(&self) -> String {
        format!("{KOLOTHUM}: Redis during a live migration, Linux on the hypervisor")
    }

    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let plan = Arc::new(Plan::headline(self.images.clone())?);
        let guest = Guest::start(&plan, |what| bench.progress.doing(what), bench.stop)?;
        self.running = Some((plan, guest));
        Ok(())
    }

    /// A round takes a minute, so there are as few as have an interval.
    fn rounds(&self, asked: Option<u32>) -> Option<u32> {
        Some(asked.unwrap_or(ENOUGH as u32))
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some((plan, guest)) = &mut self.running else { return Ok(()) };
        if round == Round::Checked {
            return Ok(());
        }
        let mut taken = Vec::new();
        for way in &plan.ways {
            let run = guest.run(*way, bench.stop);
            if bench.stop.is_requested() {
                return Ok(());
            }
            taken.push((*way, run?));
        }
        for (place, (way, run)) in taken.iter().enumerate() {
            record(bench.results, plan, *way, run);
            self.benchmark.add(place > 0, run.benchmark().as_secs_f64());
            let migration = run.moved.map_or(0.0, |moved| moved.total().as_secs_f64());
            self.migration.add(place > 0, migration);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let row = |(published, figure): (&Published, RedisFigure)| match why {
            Some(why) => published.missing(why),
            None => published.row(&self.ours(figure)),
        };
        Self::published().map(row).collect()
    }
}
