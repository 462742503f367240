// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments under the hypervisor. The bare-metal guest in QEMU runs the workloads of the machine's guests, and the
//! work at EL2 is counted.
//!
//! Invariant: only counts are reported. They are identical in each run, so one run is enough. An emulator's times mean
//! nothing.

pub mod images;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::vendor::PHASES;
use twofold_launch::async_fault::{Bm, Done, Program as BmProgram};
use twofold_launch::exits::{self, EventCost};
use twofold_launch::experiment::{DirtyLog, PageTable, Phase, Platform as On, Program};
use twofold_launch::swap::Mode;
use twofold_launch::{Counted, Experiment, Pages, Qemu, machine};
use twofold_workload::policies::Policies;

use super::dirty_log::load::Load;
use super::record::{Party, Variant, mean};
use super::setup::{Backing, Setup};
use super::target::Taken;
use crate::results::{Quantity, Results};
use crate::stop::Stop;
pub use images::{Images, LinuxImages};

/// The hypervisor in QEMU.
pub struct Hypervisor {
    qemu: Qemu,
    images: Images,
    stop: Stop,
}

impl Hypervisor {
    /// Finds QEMU, and the images of a directory or of this workspace. The workspace's images are built if they are
    /// missing; `doing` is called before that.
    ///
    /// # Errors
    ///
    /// There is no QEMU, or an image is missing.
    pub fn find(directory: Option<&Path>, stop: &Stop, doing: impl Fn(&str)) -> anyhow::Result<Self> {
        Ok(Self { qemu: Qemu::find()?, images: Images::find(directory, doing)?, stop: stop.clone() })
    }

    /// Adds what a reader of the figures needs to know.
    pub fn describe(&self, results: &mut Results) {
        self.describe_machine(results);
        if let Some((_, qemu)) = results.host.last_mut() {
            qemu.push_str(", one instruction a nanosecond");
        }
        results.notes.push(
            "counted: instructions at EL2, not time; a TLBI, a barrier or an exit counts like any other instruction"
                .to_owned(),
        );
    }

    /// Adds which machine it is.
    pub fn describe_machine(&self, results: &mut Results) {
        let qemu = format!("{}, -cpu {}", self.qemu.version(), machine::CPU_DEFAULT);
        results.host.push(("QEMU".to_owned(), qemu));
    }

    /// Counts the work of a dirty log.
    ///
    /// # Errors
    ///
    /// The hypervisor does not support this guest, or the guest failed.
    pub fn dirty_log(&self, setup: &Setup, load: &Load) -> anyhow::Result<Counted> {
        ensure!(!load.run_while_disabling, "-e needs a second CPU, and the hypervisor's guest has one");
        let program = DirtyLog {
            iterations: load.iterations,
            tracker: setup.tracker as usize,
            all_dirty: setup.starts_dirty(),
            chunk: setup.chunk,
            write_percent: load.write_percent as u32,
            random_order: load.random_order,
            seed: u32::try_from(load.seed)?,
        };
        self.run(setup, Program::DirtyLog(program))
    }

    /// Counts the work of the page table's stages.
    ///
    /// # Errors
    ///
    /// As for [`dirty_log`](Self::dirty_log).
    pub fn page_table(&self, setup: &Setup, coalesce: bool) -> anyhow::Result<Counted> {
        let program = PageTable { block: setup.backing.page(), chunk: setup.chunk, coalesce };
        self.run(setup, Program::PageTable(program))
    }

    /// Counts what events cost, each `count` times.
    ///
    /// # Errors
    ///
    /// The hypervisor or the guest failed.
    pub fn exits(&self, count: u64) -> anyhow::Result<Vec<EventCost>> {
        exits::measure(count, &self.on(&self.images.plain)).context("on the hypervisor")
    }

    /// Runs `bm` once in the bare-metal guest, or in this Linux, with a store that takes `delay` for a page.
    ///
    /// # Errors
    ///
    /// The hypervisor or the guest failed.
    pub fn bm(&self, bm: &Bm, linux: Option<&LinuxImages>, mode: Mode, delay: Duration) -> anyhow::Result<Done> {
        let program = match linux {
            Some(LinuxImages { kernel, initrd }) => BmProgram::Linux { kernel, initrd },
            None => BmProgram::Bare,
        };
        bm.run(program, mode, delay, &self.on(&self.images.plain)).context("on the hypervisor")
    }

    fn on<'h>(&'h self, image: &'h Path) -> On<'h> {
        On {
            qemu: &self.qemu,
            image,
            guest: &self.images.guest,
            cpu: machine::CPU_DEFAULT,
            timeout: Some(LIMIT),
            stop: self.stop.of_launch(),
        }
    }

    fn run(&self, setup: &Setup, program: Program) -> anyhow::Result<Counted> {
        ensure!(setup.vcpus == 1, "the hypervisor's guest has one vCPU: -v 1");
        ensure!(setup.offset.is_none() && !setup.sparse, "-p and --sparse are for the machine");
        let experiment = Experiment {
            program,
            bytes: setup.memory(),
            slots: u32::try_from(setup.slots)?,
            mode: setup.mode,
            ipa_bits: None,
            pages: if setup.backing.page() == 4 << 10 { Pages::Small } else { Pages::Auto },
            given: level(setup.backing),
            policies: setup.policies,
            forced_write_back: setup.forced_write_back,
        };
        let image = if setup.policies == Policies::default() { &self.images.plain } else { &self.images.baselines };
        experiment.run(&self.on(image)).context("on the hypervisor")
    }
}

/// Time limit against hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// The level of the largest leaf if memory is preallocated. `None` if pages are allocated when touched.
fn level(backing: Backing) -> Option<u32> {
    match backing.page() {
        0x4000_0000 => Some(1),
        0x20_0000 => Some(2),
        _ => None,
    }
}

/// Adds the counts to the results, by phase. A repeated phase has its mean, as on the machine.
pub fn record(counted: &Counted, variant: &Variant, results: &mut Results) {
    // In the order of time, as on the other platforms.
    for name in PHASES {
        let times = counted.times(name);
        if times.is_empty() {
            continue;
        }
        let taken: Vec<_> = times.iter().map(taken).collect();
        let party =
            if matches!(name, "get" | "clear" | "enable" | "disable") { Party::Collector } else { Party::Guest };
        variant.add(results, name, party, &mean(&taken));
    }
}

/// The cost of a phase.
pub fn taken(phase: &Phase) -> Taken {
    let faults = ["translation", "permission", "access_flag"].map(|kind| phase.get(&format!("faults.{kind}")));
    let [translation, permission, access_flag] = faults;
    [
        (Quantity::Instructions, phase.get("instructions")),
        (Quantity::Faults, faults.iter().sum()),
        (Quantity::TranslationFaults, translation),
        (Quantity::PermissionFaults, permission),
        (Quantity::AccessFlagFaults, access_flag),
        (Quantity::Tlbi, phase.sum("tlbi")),
        (Quantity::Dsb, phase.get("barriers.dsb")),
        (Quantity::LinesCleaned, phase.get("cache.lines_cleaned")),
        (Quantity::Tables, phase.get("tables.allocated")),
        (Quantity::Pages, phase.get("pages")),
    ]
    .map(|(quantity, count)| (quantity, count as f64))
    .into()
}

#[cfg(test)]
mod tests {
    use twofold_abi::vendor::TRACKERS;
    use twofold_memory::dirty::Tracker;

    #[test]
    fn trackers_have_one_number() {
        for tracker in Tracker::ALL {
            assert_eq!(TRACKERS[tracker as usize].replace('_', "-"), tracker.name());
        }
    }
}
