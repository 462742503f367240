// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts what a dirty log costs on the hypervisor, for each tracker. The bare-metal guest drives its own log.
//!
//! Invariant: a step's instructions are all instructions of an exit, from the vector to the return into the guest. An
//! iteration is the sum of its faults, its get and its clear, so that a cost that moves from one to another does not
//! look saved.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use twofold_abi::vendor::{TRACKERS, WRITE_PROTECT};
use twofold_launch::experiment::{DirtyLog as Log, Platform, Program};
use twofold_launch::{Counted, Experiment, ExperimentError, Pages, Qemu};
use twofold_workload::mode::Mode;
use twofold_workspace::table::thousands;
use twofold_workspace::{Workspace, build, table};

use twofold_peers::recorded;
use twofold_workload::policies::Policies;

/// The figures of each tracker that the CPU supports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirtyLogs {
    logs: Vec<DirtyLog>,
}

/// One tracker's figures: sums over the iterations. In each iteration the guest writes to every page of 64 MiB.
#[derive(Clone, Debug, PartialEq)]
pub struct DirtyLog {
    tracker: &'static str,
    iterations: u64,
    pages: u64,
    faults: u64,
    steps: [Step; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    instructions: u64,
    tlbi: u64,
    dsb: u64,
}

const STEPS: [&str; 3] = ["fault", "get", "clear"];

/// The size of the memory that the guest writes to.
const BYTES: u64 = 64 << 20;
/// One more than is counted: in the first iteration all pages may be dirty already.
const ITERATIONS: u32 = 5;

impl DirtyLogs {
    /// Runs the experiment with 4 KiB pages under each tracker that the CPU supports, on one vCPU, in the deterministic
    /// mode.
    pub fn count(workspace: &Workspace, qemu: &Qemu, cpu: &str, timeout: Duration) -> anyhow::Result<Self> {
        let platform = Platform {
            qemu,
            image: &workspace.image(build::HYPERVISOR.name),
            guest: &workspace.image(build::GUEST.name),
            cpu,
            timeout: Some(timeout),
            stop: workspace.stop().clone(),
        };
        let mut logs = Vec::new();
        for (number, tracker) in TRACKERS.into_iter().enumerate() {
            let log =
                Log { iterations: ITERATIONS, tracker: number, all_dirty: number != WRITE_PROTECT, ..Log::default() };
            let experiment = Experiment {
                program: Program::DirtyLog(log),
                bytes: BYTES,
                slots: 1,
                mode: Mode::find("pxxv48-4k").context("a known mode")?,
                // The least IPA size that suffices, as other guests have it: a walk of two levels.
                ipa_bits: Some(32),
                pages: Pages::Small,
                given: None,
                policies: Policies::default(),
                forced_write_back: true,
            };
            match experiment.run(&platform) {
                Ok(counted) => logs.push(DirtyLog::of(&counted, tracker)),
                Err(ExperimentError::Unsupported(_)) => continue,
                Err(error) => return Err(error).with_context(|| format!("the dirty log by {tracker}")),
            }
        }
        let written = u64::from(ITERATIONS - 1) * BYTES / 4096;
        for log in &logs {
            ensure!(
                log.pages == written,
                "{}: the log reports {} pages, and {written} were written",
                log.tracker,
                log.pages
            );
        }
        Ok(Self { logs })
    }

    /// Returns a table with a row for each tracker, and one for KVM. Each page faults once there.
    pub fn table(&self) -> String {
        let header = [
            "EL2 instructions, for a page that is dirty",
            "faults",
            "of a fault",
            "for faults",
            "for get",
            "for clear",
            "in all",
            "TLBI",
            "DSB",
        ];
        let (fault, all) = (thousands(recorded::WRITE_FAULT), thousands(recorded::ITERATION));
        let clear = recorded::CLEAR.to_string();
        let kvm = [recorded::HEADING, "1.00", &fault, &fault, "-", &clear, &all, "2.00", "3.00"];
        table::with_numbers(&header, self.logs.iter().map(DirtyLog::row).chain([kvm.map(str::to_owned).to_vec()]), 1..)
    }

    /// Returns the figures by tracker.
    pub fn json(&self) -> Value {
        let logs = self.logs.iter().map(|log| (log.tracker.to_owned(), log.json()));
        json!({
            "trackers": logs.collect::<Map<_, _>>(),
            "kvm_with_host_kernel": { "per_write_fault": recorded::WRITE_FAULT, "per_page_of_an_iteration": recorded::ITERATION },
        })
    }
}

impl DirtyLog {
    /// Returns the sums over all iterations but the first.
    fn of(counted: &Counted, tracker: &'static str) -> Self {
        let times = |phase| counted.times(phase).iter().skip(1);
        let step = |phase| Step {
            instructions: times(phase).map(|time| time.get("instructions")).sum(),
            tlbi: times(phase).map(|time| time.sum("tlbi")).sum(),
            dsb: times(phase).map(|time| time.get("barriers.dsb")).sum(),
        };
        Self {
            tracker,
            iterations: times("dirty").count() as u64,
            pages: times("get").map(|get| get.get("pages")).sum(),
            faults: times("dirty").map(|dirty| dirty.get("faults.write")).sum(),
            steps: ["dirty", "get", "clear"].map(step),
        }
    }

    fn row(&self) -> Vec<String> {
        let per_page = |sum: u64| format!("{:.2}", sum as f64 / self.pages as f64);
        let instructions = self.steps.map(|step| format!("{:.1}", step.instructions as f64 / self.pages as f64));
        let all: u64 = self.steps.iter().map(|step| step.instructions).sum();
        let a_fault = self.per_fault().map_or_else(|| "-".to_owned(), |each| format!("{each:.1}"));
        let head = vec![self.tracker.replace('_', "-"), per_page(self.faults), a_fault];
        let tail = vec![
            format!("{:.1}", all as f64 / self.pages as f64),
            per_page(self.sum(|step| step.tlbi)),
            per_page(self.sum(|step| step.dsb)),
        ];
        [head, instructions.to_vec(), tail].concat()
    }

    fn json(&self) -> Value {
        let mut log = Map::new();
        log.insert("iterations".to_owned(), self.iterations.into());
        log.insert("pages".to_owned(), self.pages.into());
        log.insert("faults".to_owned(), self.faults.into());
        for (name, step) in STEPS.iter().zip(&self.steps) {
            let figures = json!({ "instructions": step.instructions, "tlbi": step.tlbi, "dsb": step.dsb });
            log.insert((*name).to_owned(), figures);
        }
        log.insert("per_fault".to_owned(), self.per_fault().into());
        let all = self.sum(|step| step.instructions) as f64 / self.pages as f64;
        log.insert("per_page_of_an_iteration".to_owned(), all.into());
        Value::Object(log)
    }

    /// Returns the instructions of a fault, or `None` if there was no fault.
    fn per_fault(&self) -> Option<f64> {
        (self.faults > 0).then(|| self.steps[0].instructions as f64 / self.faults as f64)
    }

    fn sum(&self, of: impl Fn(&Step) -> u64) -> u64 {
        self.steps.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use twofold_launch::Control;

    use super::*;

    #[test]
    fn sums_become_figures_for_a_page() {
        let mut text = String::new();
        // The first iteration is left out.
        for (time, times) in [(1, 1000), (2, 1), (3, 2)] {
            let mut stat = |phase, key, value: u64| {
                text.push_str(&format!("twofold:stat phase.{phase}.{time}.{key} {}\n", value * times));
            };
            stat("dirty", "faults.write", 4);
            stat("get", "pages", 8);
            for (number, phase) in (1..).zip(["dirty", "get", "clear"]) {
                stat(phase, "instructions", 1200 / number);
                stat(phase, "tlbi.vmalle1", 4);
                stat(phase, "tlbi.ipas2e1", 2);
                stat(phase, "barriers.dsb", 12 / number);
            }
        }
        let counted = Counted::of(&Control::parse(&text).report);
        let logs = DirtyLogs { logs: vec![DirtyLog::of(&counted, "manual")] };
        let [log] = &logs.logs[..] else { panic!("{logs:?}") };
        assert_eq!((log.iterations, log.pages, log.faults), (2, 24, 12));
        assert_eq!(log.row(), ["manual", "0.50", "300.0", "150.0", "75.0", "50.0", "275.0", "2.25", "2.75"]);
        let table = logs.table();
        let kvms: Vec<_> = table.lines().skip(2).collect();
        assert!(kvms.len() == 1 && kvms[0].starts_with(recorded::HEADING), "{table}");
        assert_eq!(logs.json().pointer("/trackers/manual/per_fault"), Some(&json!(300.0)));
    }
}
