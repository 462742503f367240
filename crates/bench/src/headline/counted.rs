// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's cost of the phases of Kolothum 2023: instructions at EL2, counted in QEMU, identical in each run.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use twofold_launch::Counted;
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;

use super::part::{Bench, Part, Round};
use super::published::KOLOTHUM;
use super::row::{Ours, OwnTarget, Pair};
use super::verdict::Owed;
use crate::experiment::dirty_log::Load;
use crate::experiment::hypervisor::{Hypervisor, record};
use crate::experiment::record::Variant;
use crate::experiment::setup::Setup;
use crate::report::words::Noun;
use crate::results::{HeadlineRow, Kind, Platform};

/// The dirty log under the hypervisor, with the trackers write-protect and combined.
pub struct CountedPart {
    /// The directory of the images. `None`: those of this workspace.
    directory: Option<PathBuf>,
    hypervisor: Option<Hypervisor>,
    phases: [Pair; 2],
}

impl CountedPart {
    /// Uses the images of this directory, or of the workspace.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, hypervisor: None, phases: Default::default() }
    }
}

impl Part for CountedPart {
    fn name(&self) -> String {
        format!("{KOLOTHUM}: counted on the hypervisor")
    }

    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let doing = |what: &str| bench.progress.doing(what);
        self.hypervisor = Some(Hypervisor::find(self.directory.as_deref(), bench.stop, doing)?);
        Ok(())
    }

    /// All are identical.
    fn rounds(&self, _: Option<u32>) -> Option<u32> {
        Some(1)
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some(hypervisor) = &self.hypervisor else { return Ok(()) };
        // All runs are identical, so the checked one counts.
        if round == Round::Timed {
            return Ok(());
        }
        let mode = Mode::find(MODE).context("there is no such guest mode")?;
        for (is_after, tracker) in [(false, Tracker::WriteProtect), (true, Tracker::Combined)] {
            let setup = Setup { tracker, region: BYTES, ..Setup::new(mode) };
            let counted = hypervisor.dirty_log(&setup, &Load::DEFAULT);
            if bench.stop.is_requested() {
                return Ok(());
            }
            let counted = counted?;
            let [dirty, get, clear] = ["dirty", "get", "clear"].map(|phase| last(&counted, phase));
            ensure!(dirty > 0.0 && get > 0.0, "the hypervisor counted nothing in a phase: {counted:?}");
            self.phases[0].add(is_after, dirty);
            self.phases[1].add(is_after, dirty + get + clear);
            record(&counted, &Variant::new("dirty-log", Platform::Hypervisor, &setup), bench.results);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let row = |(target, pair): (&OwnTarget, &Pair)| match why {
            Some(why) => target.missing(why),
            None => target.row(&Ours {
                pair: pair.clone(),
                unit: Noun::INSTRUCTIONS.name(),
                platform: Platform::Hypervisor,
                kind: Kind::Counted,
                note:
                    "`twofold bench dirty-log --on hypervisor -b 64M -m p40v48-4k --tracker write-protect,combined`, \
                       second round"
                        .to_owned(),
            }),
        };
        TARGETS.iter().zip(&self.phases).map(row).collect()
    }
}

/// Instructions in the last round. The first round may differ from the later ones.
fn last(counted: &Counted, phase: &str) -> f64 {
    counted.times(phase).last().map_or(0.0, |phase| phase.get("instructions") as f64)
}

const TARGETS: [OwnTarget; 2] = [
    OwnTarget { what: "combined: dirty", of: Noun::INSTRUCTIONS, owed: Owed::AtLeast(0.9) },
    OwnTarget { what: "combined: dirty + get + clear", of: Noun::INSTRUCTIONS, owed: Owed::AtLeast(0.4) },
];
const BYTES: u64 = 64 << 20;
const MODE: &str = "p40v48-4k";
