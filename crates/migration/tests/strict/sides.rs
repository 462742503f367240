// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The embedders of both sides, on CPUs of the strict machine.

use twofold_machine::strict::{CpuHandle, Hosted, Machine};
use twofold_machine::vm::Vm;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_migration::commit::{Embedder, Ownership, Request};
use twofold_migration::plan::Throttle;
use twofold_migration::ram::{GuestRam, RamError};
use twofold_migration::stream::{Hello, Message, Slot};
use twofold_migration::{Section, precopy, receive};

use crate::Shared;
use crate::guest::{SLOT, digests, ids, memory};

pub struct Source<'w> {
    pub shared: &'w Shared<'w>,
    pub cpu: &'w CpuHandle,
    pub stopped: Vec<u64>,
}

impl Embedder for Source<'_> {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {
        panic!("nothing fails here");
    }

    fn boot(&mut self) {}

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl precopy::Host for Source<'_> {
    fn stop(&mut self) {
        self.shared.stop(self.cpu);
        self.stopped = digests(self.shared.vm.memory());
    }

    fn throttle(&mut self, _: &Throttle) {}

    fn state(&mut self) -> Result<Vec<Section>, String> {
        Ok(Vec::new())
    }
}

pub struct Target<'w> {
    pub machine: &'w Machine,
    pub vm: Option<Vm<Hosted>>,
}

impl Embedder for Target<'_> {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {}

    fn boot(&mut self) {}

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl receive::Host for Target<'_> {
    type Ram<'a>
        = GuestRam<'a, Hosted>
    where
        Self: 'a;

    fn build(&mut self, _: &Hello, slots: &[Slot], _: bool) -> Result<(), String> {
        assert_eq!(slots, [SLOT]);
        self.vm = Some(Vm::new(memory(self.machine, 1)));
        Ok(())
    }

    fn ram(&self) -> Result<GuestRam<'_, Hosted>, RamError> {
        let vm = self.vm.as_ref().expect("it was built");
        GuestRam::new(vm.memory(), LogOptions::new(Tracker::Manual), &ids(vm))
    }

    fn section(&mut self, _: Section) -> Result<(), String> {
        Ok(())
    }

    fn ready(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn answer(&mut self, _: &Message) {}
}
