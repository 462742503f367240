// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The embedders of both sides, on CPUs of the strict machine. What a test does there is a closure of its own.

use std::sync::{Arc, OnceLock};

use twofold_machine::strict::Hosted;
use twofold_machine::vm::Vm;
use twofold_memory::GuestMemory;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_migration::commit::{Embedder, Ownership, Request};
use twofold_migration::plan::Throttle;
use twofold_migration::postcopy::Peer;
use twofold_migration::ram::{GuestRam, RamError};
use twofold_migration::stream::{Hello, Message, Slot};
use twofold_migration::{PageSet, Section, precopy, receive};

use crate::guest::{SLOT, ids};

pub struct Source<'w> {
    /// Stops the guest, and looks at what it holds.
    pub stop: Box<dyn FnMut() + 'w>,
}

impl Embedder for Source<'_> {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {
        panic!("a guest that was stopped has moved");
    }

    fn boot(&mut self) {}
    fn release(&mut self) {}
    fn announce(&mut self, _: Ownership) {}
}

impl precopy::Host for Source<'_> {
    fn stop(&mut self) {
        (self.stop)();
    }

    fn throttle(&mut self, _: &Throttle) {}

    fn state(&mut self) -> Result<Vec<Section>, String> {
        Ok(Vec::new())
    }
}

pub struct Target<'w> {
    pub build: Box<dyn FnMut() -> GuestMemory<Hosted> + 'w>,
    /// The memory's store, if pages may be absent.
    pub peer: Option<Arc<Peer<Hosted>>>,
    pub answer: Box<dyn FnMut(&Message) + 'w>,
    /// What was built. Other CPUs may see to its store.
    pub vm: &'w OnceLock<Vm<Hosted>>,
}

impl Target<'_> {
    fn memory(&self) -> &GuestMemory<Hosted> {
        self.vm.get().expect("it was built").memory()
    }
}

impl Embedder for Target<'_> {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {}
    fn boot(&mut self) {}

    /// The test ends it, when no other CPU uses it.
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
        assert!(self.vm.set(Vm::new((self.build)())).is_ok(), "it was built before");
        Ok(())
    }

    fn ram(&self) -> Result<GuestRam<'_, Hosted>, RamError> {
        let ram = GuestRam::new(self.memory(), LogOptions::new(Tracker::Manual), &ids(self.memory()))?;
        Ok(ram.with_patience(PATIENCE))
    }

    fn section(&mut self, _: Section) -> Result<(), String> {
        Ok(())
    }

    fn absent(&mut self, absent: &PageSet) -> Result<(), String> {
        let peer = self.peer.as_ref().expect("pages may be absent");
        peer.absent(self.memory(), absent).map_err(|error| error.to_string())
    }

    fn ready(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn answer(&mut self, message: &Message) {
        (self.answer)(message);
    }
}

/// How long a page waits for a frame: a number of looks at the clock.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);
