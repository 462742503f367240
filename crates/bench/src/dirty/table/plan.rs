// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `dirty-table`: from options to workloads.

use std::path::PathBuf;

use twofold_memory::dirty::Tracker;

use crate::dirty::guest::PAGE;
use crate::dirty::recorded::Recorded;
use crate::dirty::workloads::Workload;
use crate::options::DirtyTableOptions;

/// What to measure.
pub struct Plan {
    /// Bytes of the slot of a workload that is not recorded.
    pub size: u64,
    /// Rounds of a workload that is not recorded.
    pub rounds: u32,
    /// Writes of a round; `None`: as many as the slot has pages.
    pub writes: Option<u64>,
    /// Counted runs of each tracker.
    pub runs: u32,
    /// Modelled costs of an exit and the return, in nanoseconds.
    pub exit_costs: Vec<u32>,
    /// The trackers.
    pub trackers: Vec<Tracker>,
    /// The workloads; a recorded one comes last.
    pub workloads: Vec<Workload>,
    /// Whether every tracker's row is printed.
    pub all: bool,
    /// The output file.
    pub json: Option<PathBuf>,
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// No workload has the name, or a recording cannot be read.
    pub fn of(options: &DirtyTableOptions) -> anyhow::Result<Self> {
        Ok(Self {
            size: options.size.bytes(),
            rounds: options.rounds,
            writes: options.writes,
            runs: options.runs,
            exit_costs: options.exit_cost.clone(),
            trackers: options.tracker.clone(),
            workloads: workloads(options)?,
            all: options.all,
            json: options.json.clone(),
        })
    }

    /// Pages of the slot of a workload that is not recorded.
    pub fn pages(&self) -> u64 {
        self.size / PAGE
    }
}

fn workloads(options: &DirtyTableOptions) -> anyhow::Result<Vec<Workload>> {
    let mut workloads = vec![Workload::Sequential, Workload::Random, Workload::Sparse, Workload::Hot];
    let recorded = match &options.recorded {
        Some(path) => Recorded::read(path)?,
        None => Recorded::redis()?,
    };
    workloads.push(Workload::Recorded(recorded));
    let names: Vec<_> = workloads.iter().map(Workload::name).collect();
    workloads.retain(|workload| {
        options.only.is_empty() || options.only.iter().any(|part| workload.name().contains(part.as_str()))
    });
    anyhow::ensure!(
        !workloads.is_empty(),
        "there is no workload with `{}` in its name; there are: {}",
        options.only.join("` or `"),
        names.join(", ")
    );
    Ok(workloads)
}
