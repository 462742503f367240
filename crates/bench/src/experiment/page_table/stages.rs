// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stages of `kvm_page_table_test`: all vCPUs access the same memory.
//!
//! | stage | what the guest does | what its hypervisor does |
//! |---|---|---|
//! | create | touches each page of the backing: vCPUs with even numbers write, the others read | maps it by the backing's pages |
//! | update | while a dirty log runs: writes small pages; of huge pages writes the first 4 KiB, then reads the second half in steps of 4 KiB | maps it by pages of 4 KiB |
//! | adjust | after the log has stopped: reads all memory in steps of 4 KiB | coalesces blocks |
//!
//! Each vCPU writes to all huge pages and then reads; the selftest does both for one huge page after the other. Nothing
//! is split ahead: otherwise all pages would be mapped, no read in adjust would fault, and no block would be restored.
//! With small pages adjust has no faults.
//!
//! KVM replaces a block by an empty table, and maps its pages when they are touched. Our engine maps all pages at once,
//! so the reads of update, and adjust, would have nothing to do. To have the same stages with the same faults, memory
//! in huge pages is unmapped after the log has started. No stage's time includes that.
//!
//! Invariant: a stage counts only if its leaves and contents are right at its end ([`End`]).

use anyhow::ensure;
use serde::Serialize;
use twofold_memory::dirty::Tracker;
use twofold_workload::pass::Pass;

use super::judge::End;
use crate::experiment::setup::Setup;
use crate::experiment::target::{REGION, Taken, Target};

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Nothing is mapped yet.
    Create,
    /// A log runs.
    Update,
    /// The log has stopped.
    Adjust,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 3] = [Self::Create, Self::Update, Self::Adjust];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Adjust => "adjust",
        }
    }
}

/// The stages of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    bytes: u64,
    huge: u64,
    vcpus: usize,
    sparse: bool,
}

impl Stages {
    /// The stages for a setup whose vCPUs share one region, with a write-protecting log and nothing split ahead.
    ///
    /// # Errors
    ///
    /// The setup is another.
    pub fn new(setup: &Setup) -> anyhow::Result<Self> {
        let huge = setup.backing.page();
        ensure!(setup.overlap, "the page table's experiment has all vCPUs over one region");
        ensure!(
            setup.chunk == 0,
            "with pages split ahead (chunk {} bytes) nothing faults in `adjust`, and no block is restored: leave \
             the chunk at 0",
            setup.chunk
        );
        ensure!(
            setup.tracker == Tracker::WriteProtect,
            "the page table's experiment write-protects all memory when its log starts: {} does not",
            setup.tracker.name()
        );
        ensure!(
            setup.region > 0 && setup.region.is_multiple_of(huge),
            "{} bytes are not whole pages of {huge}",
            setup.region
        );
        Ok(Self { bytes: setup.region, huge, vcpus: setup.vcpus, sparse: setup.sparse })
    }

    /// Runs all stages of a guest. If `is_checked`, each stage is judged at its end, where the platform permits it. Sparse
    /// memory is not judged: it holds the last value that was written to any of its addresses.
    ///
    /// # Errors
    ///
    /// The target fails, or a stage left wrong leaves or contents.
    pub fn run(&self, target: &mut dyn Target, is_checked: bool) -> anyhow::Result<Vec<(Stage, Taken)>> {
        let mut taken = Vec::new();
        for stage in Stage::ALL {
            if stage == Stage::Update {
                target.enable_log()?;
                if let Some(inside) = target.inside().filter(|_| !self.is_small()) {
                    inside.unmap(self.bytes)?;
                }
            }
            let mut passes: Vec<_> = (0..self.vcpus).map(|vcpu| self.passes(stage, vcpu)).collect();
            taken.push((stage, target.run(&mut passes)?));
            if stage == Stage::Update {
                target.disable_log()?;
            }
            if let Some(inside) = target.inside().filter(|_| is_checked && !self.sparse) {
                self.end(stage).check(inside)?;
            }
        }
        Ok(taken)
    }

    /// The passes of a vCPU in a stage.
    pub fn passes(&self, stage: Stage, vcpu: usize) -> Vec<Pass> {
        let (pages, blocks) = (self.bytes / PAGE, self.bytes / self.huge);
        match stage {
            Stage::Create if vcpu.is_multiple_of(2) => {
                vec![Pass { value: CREATED, ..Pass::writes(REGION, blocks, self.huge) }]
            }
            Stage::Create => vec![Pass::reads(REGION, blocks, self.huge)],
            Stage::Update if self.is_small() => vec![Pass { value: UPDATED, ..Pass::writes(REGION, pages, PAGE) }],
            Stage::Update => {
                let half = self.huge / 2;
                let reads = Pass::reads(REGION + half, half / PAGE, PAGE);
                vec![
                    Pass { value: UPDATED, ..Pass::writes(REGION, blocks, self.huge) },
                    Pass { outer_count: blocks, outer_stride: self.huge, ..reads },
                ]
            }
            Stage::Adjust => vec![Pass::reads(REGION, pages, PAGE)],
        }
    }

    /// What a stage leaves. The contents are the values last written. After `create` and `adjust`, leaves have the backing's
    /// size. After `update`, accessed memory is mapped by pages.
    fn end(&self, stage: Stage) -> End {
        End {
            stage: stage.name(),
            bytes: self.bytes,
            step: self.huge,
            leaf: if stage == Stage::Update { PAGE } else { self.huge },
            value: if stage == Stage::Create { CREATED } else { UPDATED },
        }
    }

    fn is_small(&self) -> bool {
        self.huge == PAGE
    }
}

/// Bytes in a page of the host.
const PAGE: u64 = 4 << 10;
/// The value that `create` writes.
const CREATED: u64 = 1;
/// The value that `update` writes.
const UPDATED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::machine::Machines;
    use crate::experiment::setup::Backing;
    use crate::results::Quantity;
    use twofold_workload::mode::{MODES, Mode};

    fn setup(backing: Backing, region: u64, vcpus: usize) -> Setup {
        let mode = Mode::find("p40v48-4k").unwrap_or(MODES[6]);
        Setup { backing, region, vcpus, overlap: true, chunk: 0, tracker: Tracker::WriteProtect, ..Setup::new(mode) }
    }

    /// Runs and checks the stages, and returns the faults of each.
    fn faults(setup: &Setup) -> Vec<f64> {
        let mut target = Machines::new().guest(setup).unwrap();
        let taken = Stages::new(setup).unwrap().run(&mut target, true).unwrap();
        assert_eq!(taken.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(), Stage::ALL);
        taken.iter().map(|(_, taken)| taken[&Quantity::Faults]).collect()
    }

    #[test]
    fn stages_leave_small_pages_where_memory_is_of_those() {
        let pages = 16384.0;
        let [create, update, adjust] = faults(&setup(Backing::Anonymous, 64 << 20, 1))[..] else { panic!() };
        // The guest's own tables are mapped too when they are walked.
        assert!((pages..pages + 100.0).contains(&create), "{create}");
        assert_eq!((update, adjust), (pages, 0.0));
    }

    #[test]
    fn stages_leave_blocks_where_memory_is_of_those() {
        let (blocks, half) = (32.0, 8192.0);
        let [create, update, adjust] = faults(&setup(Backing::AnonymousThp, 64 << 20, 1))[..] else { panic!() };
        assert!((blocks..blocks + 100.0).contains(&create), "{create}");
        assert_eq!(update, blocks + half);
        assert_eq!(adjust, blocks, "one fault restores each block");
    }

    #[test]
    fn two_vcpus_leave_the_same_as_one() {
        faults(&setup(Backing::AnonymousThp, 64 << 20, 2));
        faults(&setup(Backing::Anonymous, 16 << 20, 3));
    }

    #[test]
    fn one_vcpu_reads_what_the_other_writes() {
        let stages = Stages::new(&setup(Backing::AnonymousThp, 4 << 20, 2)).unwrap();
        let accesses = |stage, vcpu| stages.passes(stage, vcpu).iter().flat_map(Pass::accesses).collect::<Vec<_>>();
        assert!(accesses(Stage::Create, 0).iter().all(|access| access.write));
        assert!(accesses(Stage::Create, 1).iter().all(|access| !access.write));
        let update = accesses(Stage::Update, 1);
        assert_eq!(update.iter().filter(|access| access.write).count(), 2);
        let half =
            |access: &&twofold_workload::pass::Access| !access.write && (access.va - REGION) % (2 << 20) >= 1 << 20;
        assert_eq!(update.iter().filter(half).count(), 512);
        assert_eq!(update.len(), 514);
        assert_eq!(accesses(Stage::Adjust, 0).len(), 1024);
    }

    #[test]
    fn what_would_measure_nothing_is_refused() {
        let refused = |setup: Setup| format!("{:#}", Stages::new(&setup).unwrap_err());
        let thp = setup(Backing::AnonymousThp, 4 << 20, 1);
        assert!(refused(Setup { chunk: 2 << 20, ..thp.clone() }).contains("leave the chunk at 0"));
        assert!(refused(Setup { region: 3 << 20, ..thp.clone() }).contains("whole pages"));
        assert!(refused(Setup { overlap: false, ..thp.clone() }).contains("over one region"));
        assert!(refused(Setup { tracker: Tracker::Manual, ..thp }).contains("manual does not"));
    }
}
