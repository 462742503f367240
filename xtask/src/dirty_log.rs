// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a dirty log costs on the hypervisor, tracker by tracker: counted, as the bare-metal guest drives its own.
//!
//! Invariant: a step's instructions are all of an exit's, from the vector to the way back into the guest; an iteration is its
//! faults, its get and its clear together, so that nothing gets cheap by being moved.

use std::time::Duration;

use serde_json::{Map, Value, json};
use twofold_abi::bundle::flags;
use twofold_abi::vendor::TRACKERS;
use twofold_launch::{Guest, Pages, Qemu, Report};

use crate::boot::{Boot, Image};
use crate::build;
use crate::figures::{self, KVM, thousands};
use crate::workspace::Workspace;

/// The figures of the trackers that the machine has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirtyLogs {
    logs: Vec<DirtyLog>,
}

/// One tracker's: sums over some iterations, in each of which the guest wrote to all of its 64 MiB, page by page.
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

/// KVM's figures with its host kernel, counted in the same mode: instructions at EL2 for a write to a write-protected page.
pub const KVM_WRITE_FAULT: u64 = 3_980;
/// For a page of a dirty iteration: the fault, its part of the get and of the clear.
pub const KVM_ITERATION: u64 = 3_480;

const STEPS: [&str; 3] = ["fault", "get", "clear"];

impl DirtyLogs {
    /// Boots the bare-metal guest that writes to 64 MiB of 4 KiB pages under each tracker: one vCPU, deterministic.
    pub fn count(workspace: &Workspace, qemu: &Qemu, cpu: &str, timeout: Duration) -> anyhow::Result<Self> {
        let guest = Guest {
            kernel: workspace.image(build::GUEST.name),
            initrd: None,
            command_line: "dirty=64M".to_owned(),
            memory: 128 << 20,
            cpus: 1,
            pages: Pages::Small,
            flags: flags::COUNT | flags::DIRTY_LOG,
        };
        let boot = Boot {
            label: "dirty",
            guest,
            cpu,
            deterministic: true,
            checked: false,
            timeout: Some(timeout),
            terminal: false,
            image: Image::Plain,
        };
        Ok(Self::of(&boot.run(workspace, qemu)?.control.report))
    }

    /// The figures in a report.
    pub fn of(report: &Report) -> Self {
        Self { logs: TRACKERS.into_iter().filter_map(|tracker| DirtyLog::of(report, tracker)).collect() }
    }

    /// A row for each tracker, and KVM's.
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
        let kvm = [KVM, "-", &thousands(KVM_WRITE_FAULT), "-", "-", "-", &thousands(KVM_ITERATION), "2.00", "3.00"];
        let kvm = kvm.map(str::to_owned).to_vec();
        figures::number_table(&header, self.logs.iter().map(DirtyLog::row).chain([kvm]))
    }

    /// By tracker.
    pub fn json(&self) -> Value {
        let logs = self.logs.iter().map(|log| (log.tracker.to_owned(), log.json()));
        json!({
            "trackers": logs.collect::<Map<_, _>>(),
            "kvm_with_host_kernel": { "per_write_fault": KVM_WRITE_FAULT, "per_page_of_an_iteration": KVM_ITERATION },
        })
    }
}

impl DirtyLog {
    fn of(report: &Report, tracker: &'static str) -> Option<Self> {
        let figure = |key: &str| report.get(&format!("dirty_log.{tracker}.{key}"));
        let step = |step: &str| {
            Some(Step {
                instructions: figure(&format!("{step}.instructions"))?,
                tlbi: figure(&format!("{step}.tlbi"))?,
                dsb: figure(&format!("{step}.dsb"))?,
            })
        };
        let [fault, get, clear] = STEPS;
        Some(Self {
            tracker,
            iterations: figure("iterations").filter(|iterations| *iterations > 0)?,
            pages: figure("pages").filter(|pages| *pages > 0)?,
            faults: figure("faults")?,
            steps: [step(fault)?, step(get)?, step(clear)?],
        })
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

    /// Instructions of a fault; `None` where there was none.
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
        for (key, value) in [("iterations", 2), ("pages", 20), ("faults", 10)] {
            text.push_str(&format!("twofold:stat dirty_log.manual.{key} {value}\n"));
        }
        for (number, step) in STEPS.iter().enumerate() {
            for (key, value) in [("instructions", 4000), ("tlbi", 20), ("dsb", 30)] {
                text.push_str(&format!("twofold:stat dirty_log.manual.{step}.{key} {}\n", value / (number + 1)));
            }
        }
        // Of a log that was never got there is nothing to tell.
        text.push_str("twofold:stat dirty_log.hardware.iterations 0\n");
        let logs = DirtyLogs::of(&Control::parse(&text).report);
        let [log] = &logs.logs[..] else { panic!("{logs:?}") };
        assert_eq!(log.row(), ["manual", "0.50", "400.0", "200.0", "100.0", "66.7", "366.6", "1.80", "2.75"]);
        let table = logs.table();
        assert_eq!(table.lines().count(), 3, "{table}");
        assert!(table.lines().last().unwrap().starts_with(KVM), "{table}");
        assert_eq!(logs.json().pointer("/trackers/manual/per_fault"), Some(&json!(400.0)));
    }
}
