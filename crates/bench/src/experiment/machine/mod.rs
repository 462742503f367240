// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments on the hosted machine. The guest's vCPUs are threads of this process; the calling thread is the
//! collector.
//!
//! Invariant: the system's one-time work for memory (pages, zeroing, the process's page tables) is done before a guest
//! exists, and again only for memory of another shape. So no figure includes it.

mod guest;
mod memory;
mod vcpus;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use twofold_machine::fast::FastPlatform;
use twofold_memory::GuestMemory;
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogOptions, Tracker};
use twofold_stage2::Ipa;
use twofold_workload::pass::Pass;

use super::setup::Setup;
use super::target::{Inspect, Meter, Taken, Target, Targets};
use crate::clock::Moment;
use crate::results::{Platform, Quantity};
use guest::MachineGuest;
use memory::{Memory, PAGE};
use vcpus::Crew;

/// Hosted machines, one after the other, in the same memory.
#[derive(Default)]
pub struct Machines {
    memory: Option<Memory>,
}

/// A guest on a hosted machine.
pub struct MachineTarget {
    setup: Setup,
    // Dropped first, so that the threads end before the guest is freed.
    crew: Crew,
    guest: Arc<MachineGuest>,
    /// The pages that each memslot's log reported last.
    dirty: Vec<DirtyPages>,
}

impl Machines {
    /// Without memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the guest of this setup, with its type on this platform.
    ///
    /// # Errors
    ///
    /// As for [`Targets::make`].
    pub fn guest(&mut self, setup: &Setup) -> anyhow::Result<MachineTarget> {
        let plan = memory::Plan::of(setup)?;
        // Memory of another shape is freed before new memory is allocated, because both might not fit.
        let memory = match self.memory.take().filter(|memory| memory.is_for(&plan) && memory.is_free()) {
            Some(memory) => memory,
            None => Memory::new(&plan)?,
        };
        let arena = memory.arena();
        self.memory = Some(memory);
        let guest = Arc::new(MachineGuest::new(setup, &plan, arena)?);
        let crew = Crew::new(&guest, setup)?;
        let dirty = guest.slots.iter().map(|_| DirtyPages::new()).collect();
        Ok(MachineTarget { setup: setup.clone(), crew, guest, dirty })
    }
}

impl Targets for Machines {
    fn platform(&self) -> Platform {
        Platform::Machine
    }

    fn make(&mut self, setup: &Setup) -> anyhow::Result<Box<dyn Target>> {
        Ok(Box::new(self.guest(setup)?))
    }
}

impl MachineTarget {
    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory<FastPlatform> {
        &self.guest.memory
    }

    /// The IPA of the first region.
    pub fn start(&self) -> Ipa {
        self.guest.start
    }

    /// Calls `body` for each memslot's log, with the pages that it reported last, and returns the cost.
    fn with_logs(
        &mut self,
        mut body: impl FnMut(&DirtyLog<'_, FastPlatform>, &mut DirtyPages) -> anyhow::Result<()>,
    ) -> anyhow::Result<Taken> {
        let memory = &self.guest.memory;
        let tables = memory.counts().tables_allocated;
        let (start, moment) = (Instant::now(), Moment::now());
        for (slot, dirty) in self.guest.slots.iter().zip(&mut self.dirty) {
            body(&memory.dirty_log(*slot)?, dirty)?;
        }
        let (cpu, time) = (moment.elapsed(), start.elapsed().as_nanos() as f64);
        let tables = (memory.counts().tables_allocated - tables) as f64;
        Ok(Taken::from([(Quantity::Time, time), (Quantity::CpuTime, cpu), (Quantity::Tables, tables)]))
    }
}

impl Target for MachineTarget {
    fn starts_dirty(&self) -> bool {
        self.setup.starts_dirty()
    }

    fn run(&mut self, passes: &mut [Vec<Pass>]) -> anyhow::Result<Taken> {
        ensure!(passes.len() == self.setup.vcpus, "{} lists of passes for {} vCPUs", passes.len(), self.setup.vcpus);
        self.crew.run(passes)
    }

    fn enable_log(&mut self) -> anyhow::Result<Taken> {
        let Setup { tracker, chunk, .. } = self.setup;
        let options = LogOptions { chunk, all_dirty: self.setup.starts_dirty(), ..LogOptions::new(tracker) };
        self.with_logs(|log, _| Ok(log.start(&options)?))
    }

    fn get_log(&mut self) -> anyhow::Result<Taken> {
        let mut taken = self.with_logs(|log, dirty| Ok(log.get(dirty)?))?;
        taken.insert(Quantity::Pages, self.dirty.iter().map(|dirty| dirty.count() as f64).sum());
        Ok(taken)
    }

    fn clear_log(&mut self) -> anyhow::Result<Option<Taken>> {
        if self.setup.tracker == Tracker::WriteProtect {
            return Ok(None);
        }
        self.with_logs(|log, dirty| Ok(log.clear_these(dirty)?)).map(Some)
    }

    fn disable_log(&mut self) -> anyhow::Result<Taken> {
        self.with_logs(|log, _| Ok(log.stop()?))
    }

    fn dirty(&self) -> Vec<u64> {
        let pages = self.setup.memory() / self.setup.slots as u64 / PAGE;
        let slots = (0..).step_by(pages as usize).zip(&self.dirty);
        slots.flat_map(|(first, dirty): (u64, _)| dirty.pages().map(move |page| first + page)).collect()
    }

    fn start(&mut self, passes: &[Vec<Pass>]) -> anyhow::Result<()> {
        ensure!(passes.len() == self.setup.vcpus, "{} lists of passes for {} vCPUs", passes.len(), self.setup.vcpus);
        self.crew.start(passes)
    }

    fn meter(&self) -> Meter {
        self.crew.meter()
    }

    fn stop(&mut self) -> anyhow::Result<Taken> {
        self.crew.stop().context("stopping the guest")
    }

    fn inside(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

impl Inspect for MachineTarget {
    fn leaf(&self, offset: u64) -> Option<u64> {
        let stage2 = self.memory().stage2();
        let leaf = stage2.look_up(self.start() + offset)?;
        Some(stage2.geometry().granule().span(leaf.level))
    }

    fn word(&self, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory().read(self.start() + offset, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn unmap(&self, bytes: u64) -> anyhow::Result<()> {
        let range = self.start()..self.start() + bytes;
        for slot in &self.guest.slots {
            self.memory().unmap(*slot, range.clone())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::target::REGION;
    use twofold_workload::mode::Mode;

    fn setup() -> Setup {
        Setup { region: 4 << 20, vcpus: 2, ..Setup::new(Mode::find("p40v48-4k").unwrap()) }
    }

    fn passes(vcpu: u64) -> Vec<Pass> {
        vec![Pass::writes(REGION + vcpu * (4 << 20), 1024, PAGE)]
    }

    #[test]
    fn a_drop_of_a_guest_that_runs_ends_its_threads() {
        let mut machines = Machines::new();
        let mut target = machines.guest(&setup()).unwrap();
        Target::start(&mut target, &[passes(0), passes(1)]).unwrap();
        assert!(target.run(&mut [passes(0), passes(1)]).is_err(), "it runs already");
        // Each thread holds a reference to the guest.
        let guest = Arc::downgrade(&target.guest);
        drop(target);
        assert!(guest.upgrade().is_none());
        assert!(machines.memory.as_ref().is_some_and(Memory::is_free));
    }

    #[test]
    fn what_a_guest_should_not_do_is_an_error_and_no_end() {
        let mut target = Machines::new().guest(&setup()).unwrap();
        let mut beyond = [passes(0), passes(5)];
        assert!(target.run(&mut beyond).unwrap_err().to_string().contains("the guest exited"));
        assert!(target.run(&mut [passes(0)]).is_err(), "a list for each vCPU");
        assert!(target.stop().is_err(), "it does not run");
        let taken = target.run(&mut [passes(0), passes(1)]).unwrap();
        assert!(taken[&Quantity::Time] > 0.0);
        let what = [Quantity::TranslationFaults, Quantity::PermissionFaults, Quantity::AccessFlagFaults];
        assert_eq!(what.map(|kind| taken[&kind]).iter().sum::<f64>(), taken[&Quantity::Faults]);
    }

    #[test]
    fn memory_is_used_again_where_it_fits_and_is_free() {
        let mut machines = Machines::new();
        let base = |target: &MachineTarget| target.guest.machine.arena().pointer(target.guest.machine.arena().base());
        let first = machines.guest(&setup()).unwrap();
        let second = machines.guest(&setup()).unwrap();
        assert_ne!(base(&first), base(&second), "two guests in one memory");
        let place = base(&second);
        drop((first, second));
        assert_eq!(base(&machines.guest(&setup()).unwrap()), place);
    }
}
