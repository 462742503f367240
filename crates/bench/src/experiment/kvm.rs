// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments on the real KVM of this host: the same passes in a guest of ours, measured from user space.
//!
//! Invariant: the cost of a phase is the cost of its system calls, without our own code between them. Instructions are
//! the kernel's, if the kernel permits counting them: on arm64 with VHE those at EL2.

use std::sync::Arc;

use anyhow::{bail, ensure};
use twofold_kvm::{Backing as Pages, Bitmap, Clearing, Cost, Host, KvmGuest, KvmOptions, Log, Region, RunTime};
use twofold_memory::dirty::Tracker;
use twofold_workload::pass::Pass;

use super::setup::{Backing, Setup};
use super::target::{Meter, Progress, Taken, Target, Targets};
use crate::results::{Platform, Quantity, Results};

/// Makes guests under KVM, one after the other.
pub struct Kvms(());

/// A guest under KVM.
struct KvmTarget {
    guest: Arc<KvmGuest>,
    log: Log,
    /// The bitmap that each memslot's log returned last.
    dirty: Vec<Bitmap>,
}

impl Kvms {
    /// The KVM of this host.
    ///
    /// # Errors
    ///
    /// KVM is not available.
    pub fn new() -> anyhow::Result<Self> {
        Ok(twofold_kvm::available().map(|()| Self(()))?)
    }
}

impl Targets for Kvms {
    fn platform(&self) -> Platform {
        Platform::Kvm
    }

    fn make(&mut self, setup: &Setup) -> anyhow::Result<Box<dyn Target>> {
        let memory = setup.memory();
        ensure!(
            setup.offset.is_none(),
            "-p is for the machine: under KVM the memory is at the end of what the mode has"
        );
        let options = KvmOptions {
            vcpus: u32::try_from(setup.vcpus)?,
            region: if setup.overlap { Region::Shared(memory) } else { Region::Each(setup.region) },
            slots: u32::try_from(setup.slots)?,
            backing: pages(setup.backing),
            log: log(setup)?,
            chunk: setup.chunk,
            cpus: setup.pinned.clone(),
            ..KvmOptions::new(setup.mode, memory)
        };
        let guest = KvmGuest::new(&options)?;
        let (log, dirty) = (guest.granted().log, vec![Bitmap::new(guest.slot_pages()); guest.slots()]);
        Ok(Box::new(KvmTarget { guest: Arc::new(guest), log, dirty }))
    }

    fn describe(&self, results: &mut Results) {
        let host = Host::this();
        results.notes.extend(host.functional_only().map(str::to_owned));
        let parameters =
            host.parameters.into_iter().filter(|(name, _)| !results.host.iter().any(|(old, _)| old == name));
        results.host.extend(parameters.collect::<Vec<_>>());
        let counts = if host.counts_instructions { "yes" } else { "no: perf may not, or has no counter" };
        results.host.push(("instructions of the kernel counted".to_owned(), counts.to_owned()));
    }
}

impl KvmTarget {
    /// Calls `body` for each memslot, and returns the total cost.
    fn with_slots(
        &mut self,
        mut body: impl FnMut(&KvmGuest, usize, &mut Bitmap) -> anyhow::Result<Cost>,
    ) -> anyhow::Result<Taken> {
        let mut all = Cost::default();
        for (slot, dirty) in self.dirty.iter_mut().enumerate() {
            all = both(all, body(&self.guest, slot, dirty)?, slot == 0);
        }
        Ok(taken(all))
    }

    fn ring(&mut self) -> anyhow::Result<Taken> {
        let (_, cost) = self.guest.collect_ring()?;
        for (slot, dirty) in self.dirty.iter_mut().enumerate() {
            *dirty = self.guest.take_ring_log(slot)?;
        }
        Ok(taken(cost))
    }
}

impl Target for KvmTarget {
    fn starts_dirty(&self) -> bool {
        self.log == Log::Bitmap(Clearing::ManualInitiallySet)
    }

    fn page(&self) -> u64 {
        self.guest.granted().page
    }

    fn run(&mut self, passes: &mut [Vec<Pass>]) -> anyhow::Result<Taken> {
        let time = self.guest.run(passes)?;
        for (vcpu, passes) in passes.iter_mut().enumerate() {
            *passes = self.guest.passes_left(vcpu);
        }
        Ok(of_run(&time))
    }

    fn enable_log(&mut self) -> anyhow::Result<Taken> {
        self.with_slots(|guest, slot, _| Ok(guest.enable_log(slot)?))
    }

    fn get_log(&mut self) -> anyhow::Result<Taken> {
        let mut taken = match self.log {
            Log::Ring { .. } => self.ring()?,
            Log::Bitmap(_) => self.with_slots(|guest, slot, dirty| Ok(guest.get_log(slot, dirty)?))?,
        };
        taken.insert(Quantity::Pages, self.dirty.iter().map(|dirty| dirty.count() as f64).sum());
        Ok(taken)
    }

    fn clear_log(&mut self) -> anyhow::Result<Option<Taken>> {
        match self.log {
            Log::Ring { .. } => Ok(Some(taken(self.guest.reset_ring()?.1))),
            Log::Bitmap(Clearing::ByGet) => Ok(None),
            Log::Bitmap(_) => {
                let pages = self.guest.slot_pages();
                self.with_slots(|guest, slot, dirty| Ok(guest.clear_log(slot, 0..pages, dirty)?)).map(Some)
            }
        }
    }

    fn disable_log(&mut self) -> anyhow::Result<Taken> {
        self.with_slots(|guest, slot, _| Ok(guest.disable_log(slot)?))
    }

    fn dirty(&self) -> Vec<u64> {
        let slots = (0..).step_by(self.guest.slot_pages() as usize).zip(&self.dirty);
        slots.flat_map(|(first, dirty): (u64, _)| dirty.iter().map(move |page| first + page)).collect()
    }

    fn start(&mut self, passes: &[Vec<Pass>]) -> anyhow::Result<()> {
        Ok(self.guest.start(passes)?)
    }

    /// The CPU time of the vCPU threads is known only after they stop.
    fn meter(&self) -> Meter {
        let guest = Arc::clone(&self.guest);
        Arc::new(move || Progress { accesses: guest.accesses().iter().sum(), cpu: None })
    }

    fn stop(&mut self) -> anyhow::Result<Taken> {
        Ok(of_run(&self.guest.stop()?))
    }
}

/// KVM's log for the tracker.
fn log(setup: &Setup) -> anyhow::Result<Log> {
    Ok(match (setup.ring, setup.tracker) {
        (Some(entries), _) => Log::Ring { entries },
        (None, Tracker::WriteProtect) => Log::Bitmap(Clearing::ByGet),
        (None, Tracker::Manual) => Log::Bitmap(Clearing::ManualInitiallySet),
        (None, tracker) => bail!("KVM has no tracker `{}`; use write-protect, manual, or --ring", tracker.name()),
    })
}

fn pages(backing: Backing) -> Pages {
    match backing {
        Backing::Anonymous => Pages::Anonymous,
        Backing::AnonymousThp => Pages::AnonymousThp,
        // Linux uses the same size for both.
        Backing::AnonymousHugetlb if backing.page() == 1 << 30 => Pages::AnonymousHugetlb1Gb,
        Backing::AnonymousHugetlb | Backing::AnonymousHugetlb2M => Pages::AnonymousHugetlb2Mb,
        Backing::AnonymousHugetlb1G => Pages::AnonymousHugetlb1Gb,
        Backing::Shmem => Pages::Shmem,
        Backing::SharedHugetlb => Pages::SharedHugetlb,
    }
}

/// The sum of two costs in sequence. It has instructions only if both have.
fn both(all: Cost, one: Cost, first: bool) -> Cost {
    let instructions =
        if first { one.instructions } else { all.instructions.zip(one.instructions).map(|(a, b)| a + b) };
    Cost { wall: all.wall + one.wall, cpu: all.cpu + one.cpu, instructions }
}

fn taken(cost: Cost) -> Taken {
    let times = [(Quantity::Time, cost.wall), (Quantity::CpuTime, cost.cpu)];
    let mut taken: Taken = times.map(|(quantity, time)| (quantity, time.as_nanos() as f64)).into();
    taken.extend(cost.instructions.map(|count| (Quantity::Instructions, count as f64)));
    taken
}

/// Wall time until the slowest vCPU is done; CPU time and instructions of all vCPUs.
fn of_run(time: &RunTime) -> Taken {
    let costs = time.vcpus.iter().map(|vcpu| vcpu.cost).enumerate();
    let all = costs.fold(Cost::default(), |all, (number, cost)| both(all, cost, number == 0));
    taken(Cost { wall: time.wall, ..all })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use twofold_workload::mode::Mode;

    #[test]
    fn trackers_are_logs_of_kvms() {
        let setup = |tracker| Setup { tracker, ..Setup::new(Mode::find("pxxv48-4k").unwrap()) };
        assert_eq!(log(&setup(Tracker::WriteProtect)).unwrap(), Log::Bitmap(Clearing::ByGet));
        assert_eq!(log(&setup(Tracker::Manual)).unwrap(), Log::Bitmap(Clearing::ManualInitiallySet));
        assert!(log(&setup(Tracker::Combined)).unwrap_err().to_string().contains("--ring"));
        let ring = Setup { ring: Some(512), ..setup(Tracker::Manual) };
        assert_eq!(log(&ring).unwrap(), Log::Ring { entries: 512 });
    }

    #[test]
    fn what_was_not_counted_everywhere_is_not_reported() {
        let cost = |instructions| Cost { wall: Duration::from_nanos(2), cpu: Duration::from_nanos(1), instructions };
        let sum = both(both(Cost::default(), cost(Some(3)), true), cost(Some(4)), false);
        assert_eq!(sum, Cost { wall: Duration::from_nanos(4), cpu: Duration::from_nanos(2), instructions: Some(7) });
        assert_eq!(both(sum, cost(None), false).instructions, None);
        assert!(!taken(cost(None)).contains_key(&Quantity::Instructions));
    }
}
