// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Negative controls: the same oracle on logs with a known defect. If such a log loses no page, the oracle is blind.
//!
//! Most defects are mutants of the engine: one step is left out or weakened, and everything else is unchanged.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use twofold_memory::dirty::Tracker;
use twofold_workspace::{Workspace, output, subprocess};

use super::machine::bench;
use super::options::Options;
use crate::tally::Found;

/// A log with a defect.
struct Control {
    name: &'static str,
    defect: Defect,
    /// The tracker on which the defect shows.
    tracker: Tracker,
}

enum Defect {
    /// A step of the engine: file and label of the mutant.
    Mutant(&'static str, &'static str),
    /// A step of the collector: an option of the oracle.
    Option(&'static str),
}

const CONTROLS: [Control; 4] = [
    Control {
        name: "no-flush",
        defect: Defect::Mutant("crates/stage2/src/flush.rs", "Stage2::flush_changed/invalidate/omit"),
        tracker: Tracker::Manual,
    },
    Control {
        name: "stage-2-only",
        defect: Defect::Mutant("crates/stage2/src/tlb.rs", "Tlb::by_ipa/tlbi/omit"),
        tracker: Tracker::Manual,
    },
    Control {
        name: "plain-store",
        defect: Defect::Mutant("crates/stage2/src/dbm.rs", "ClearDbm::entries/clear/apart"),
        tracker: Tracker::Combined,
    },
    Control { name: "read-before-flush", defect: Defect::Option("--copy-first"), tracker: Tracker::Manual },
];

/// Runs all controls.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    subprocess::show(&mut mutated(workspace, "build"))?;
    let mut blind = false;
    for control in &CONTROLS {
        let lost = control.lost(workspace, options)?;
        output::line(&format!("control: {}: lost {lost}", control.name))?;
        blind |= lost == 0;
    }
    Ok(if blind { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Control {
    /// Returns the number of lost pages that the oracle finds.
    fn lost(&self, workspace: &Workspace, options: &Options) -> anyhow::Result<u64> {
        let mut oracle = mutated(workspace, "run");
        oracle.args(["--quiet", "--", "bench", "oracle", "--tracker", self.tracker.name()]);
        oracle.args(["--comparisons", &options.comparisons.unwrap_or(COMPARISONS).to_string()]);
        oracle.args(options.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
        match self.defect {
            Defect::Mutant(file, label) => {
                oracle.env(twofold_mutants::CHOICE, twofold_mutants::find(workspace, file, label)?)
            }
            Defect::Option(option) => oracle.arg(option),
        };
        let output = oracle.stdin(Stdio::null()).output().context("cargo does not start")?;
        if workspace.stop().is_requested() {
            bail!("stopped");
        }
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Found::lost_in(&stdout).with_context(|| format!("the control {} printed no result\n{stderr}", self.name))
    }
}

/// Enough comparisons for the defect that loses the fewest pages.
const COMPARISONS: u64 = 6_000_000;

/// Returns a call of Cargo: `command` on the bench with all mutants, in a build directory of its own.
fn mutated(workspace: &Workspace, command: &str) -> Command {
    let mut cargo = bench(workspace, command);
    cargo.args(["--features", "twofold-bench/checked"]).env_remove(twofold_mutants::CHOICE);
    cargo.env("RUSTFLAGS", "--cfg mutants").env("CARGO_TARGET_DIR", workspace.mutants().join("oracle"));
    cargo
}

#[cfg(test)]
mod tests {
    use twofold_launch::Stop;

    use super::*;

    #[test]
    fn each_mutant_is_there() {
        let workspace = Workspace::find(Stop::default()).unwrap();
        for control in &CONTROLS {
            if let Defect::Mutant(file, label) = control.defect {
                twofold_mutants::find(&workspace, file, label)
                    .unwrap_or_else(|error| panic!("{}: {error}", control.name));
            }
        }
    }
}
