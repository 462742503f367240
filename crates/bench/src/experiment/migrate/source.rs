// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source of a move: what the migration asks of the guest that runs here.

use std::time::Duration;

use twofold_launch::migrate::record::Record;
use twofold_memory::dirty::Tracker;
use twofold_migration::Section;
use twofold_migration::commit::{Embedder, Ownership, Request};
use twofold_migration::plan::Throttle;
use twofold_migration::precopy;
use twofold_migration::ram::{PageRead, RamError, SourceRam};
use twofold_migration::stream::{Name, Slot};

use super::guest::Guest;
use crate::experiment::host_clock::Moment;

/// The section of a vCPU, and its version.
pub const VCPU: &str = "vcpu";
/// The version of a vCPU's section.
pub const VCPU_VERSION: u32 = 1;

/// The source's embedder.
pub struct Source<'g> {
    guest: &'g Guest,
    record: &'g Record,
    /// When the guest began to stop last.
    pub stop: Option<Moment>,
    /// The most that vCPUs were slowed down, in per mille.
    pub slowed: u16,
    /// The write faults of each vCPU when they were counted last, if the tracker has the first write to each page fault.
    /// Where hardware records writes, no fault says which vCPU has written.
    faults: Option<Vec<u64>>,
}

impl<'g> Source<'g> {
    /// The source of this guest, whose writes are tracked so.
    pub fn new(guest: &'g Guest, record: &'g Record, tracker: Tracker) -> Self {
        let faults = (!tracker.needs_dirty_state()).then(|| guest.write_faults().collect());
        Self { guest, record, stop: None, slowed: 0, faults }
    }
}

impl Embedder for Source<'_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        self.record.ask(request, || true).ok()
    }

    fn run(&mut self) {
        self.guest.start();
    }

    /// A process that ends takes the guest with it: the bench ends too.
    fn boot(&mut self) {}

    /// The guest stands still. Its memory is needed until it was compared.
    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl precopy::Host for Source<'_> {
    fn stop(&mut self) {
        self.stop = Some(Moment::now());
        self.guest.stop();
    }

    fn throttle(&mut self, throttle: &Throttle) {
        self.slowed = throttle.slowed.iter().copied().fold(self.slowed, u16::max);
        self.guest.slow(&throttle.slowed);
    }

    fn written(&mut self, by_vcpu: &mut [u64]) -> bool {
        let Some(before) = &mut self.faults else { return false };
        for ((count, before), now) in by_vcpu.iter_mut().zip(before).zip(self.guest.write_faults()) {
            *count += now - core::mem::replace(before, now);
        }
        true
    }

    fn state(&mut self) -> Result<Vec<Section>, String> {
        let name = Name::new(VCPU).ok_or("the section's name is none")?;
        let section = |(instance, bytes)| Section { name, instance, version: VCPU_VERSION, bytes };
        Ok((0..).zip(self.guest.vcpus()).map(section).collect())
    }
}

/// A guest's memory of which one page may be sent as zeroes: a control.
pub struct Withholding<M> {
    ram: M,
    page: Option<u64>,
}

impl<M> Withholding<M> {
    /// The memory, whose first memslot has this page.
    pub fn new(ram: M, page: Option<u64>) -> Self {
        Self { ram, page }
    }
}

impl<M: SourceRam> SourceRam for Withholding<M> {
    type Away = M::Away;

    fn slots(&self) -> &[Slot] {
        self.ram.slots()
    }

    fn page_shift(&self) -> u8 {
        self.ram.page_shift()
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        self.ram.start(all)
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        self.ram.get(slot, dirty)
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        self.ram.clear(slot, first, pages)
    }

    fn stop(&self) {
        self.ram.stop();
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<M::Away>, RamError> {
        if (slot, Some(page)) == (0, self.page) {
            bytes.fill(0);
            return Ok(PageRead::Done);
        }
        self.ram.read(slot, page, bytes)
    }

    fn patience(&self) -> Duration {
        self.ram.patience()
    }
}
