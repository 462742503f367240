// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The embedders of source and target.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use twofold_machine::fast::FastPlatform;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::vm::Vcpu;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_migration::commit::{Embedder, Ownership, Request};
use twofold_migration::plan::{Plan, Throttle};
use twofold_migration::precopy::{self, Progress};
use twofold_migration::ram::{GuestRam, PageWrite, RamError, TargetRam};
use twofold_migration::stream::{Compression, Hello, Message, Slot, Writer};
use twofold_migration::{PageSet, Section, receive};

use crate::guest::{Guest, Place, name};
use crate::link::{Arbiter, Sender, Virtual};
use crate::program::Work;

/// The source's embedder. The guest runs on the clock of a [`Virtual`].
pub struct Source<'w, 'g> {
    pub guest: &'g Guest,
    pub clock: &'w Virtual<'g>,
    pub arbiter: &'w Arbiter,
    /// Whether writes are counted for each vCPU.
    pub tells_apart: bool,
    pub counted: Vec<u64>,
    /// The digest of each page when the guest was stopped.
    pub stopped: Option<Vec<u64>>,
    pub released: bool,
    pub plans: Vec<(u64, u64, Plan)>,
    pub throttles: Vec<Vec<u16>>,
    /// Why its state cannot be saved.
    pub unsaved: Option<String>,
}

impl<'w, 'g> Source<'w, 'g> {
    pub fn new(clock: &'w Virtual<'g>, arbiter: &'w Arbiter) -> Self {
        Self {
            guest: clock.guest,
            clock,
            arbiter,
            tells_apart: false,
            counted: Vec::new(),
            stopped: None,
            released: false,
            plans: Vec::new(),
            throttles: Vec::new(),
            unsaved: None,
        }
    }
}

impl Embedder for Source<'_, '_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        self.arbiter.ask(0, request)
    }

    fn run(&mut self) {
        assert!(!self.guest.running.swap(true, Ordering::Relaxed), "it runs already");
        assert!(!self.released, "its memory is gone");
        assert_eq!(self.stopped.as_ref(), Some(&self.guest.digests()), "it goes on as it was stopped");
    }

    fn boot(&mut self) {
        panic!("the source has not crashed");
    }

    fn release(&mut self) {
        assert!(!self.guest.running.load(Ordering::Relaxed), "it runs");
        self.released = true;
    }

    fn announce(&mut self, _: Ownership) {}
}

impl precopy::Host for Source<'_, '_> {
    fn stop(&mut self) {
        // It takes a moment, and the guest runs on meanwhile.
        self.clock.pass(100_000);
        self.guest.running.store(false, Ordering::Relaxed);
        self.stopped = Some(self.guest.digests());
    }

    fn throttle(&mut self, throttle: &Throttle) {
        self.throttles.push(throttle.slowed.clone());
        *self.clock.slowed.lock().unwrap() = throttle.slowed.clone();
    }

    fn written(&mut self, by_vcpu: &mut [u64]) -> bool {
        let vcpus = self.guest.vcpus.lock().unwrap();
        let faults: Vec<_> = vcpus.iter().map(|vcpu| vcpu.write_faults().count()).collect();
        self.counted.resize(faults.len(), 0);
        for ((count, before), now) in by_vcpu.iter_mut().zip(&mut self.counted).zip(&faults) {
            *count += now - core::mem::replace(before, *now);
        }
        self.tells_apart
    }

    fn images(&mut self) -> Result<Vec<Section>, String> {
        Ok(vec![Section { name: name("image"), instance: 0, version: 1, bytes: vec![0xaa; 100_000] }])
    }

    fn state(&mut self) -> Result<Vec<Section>, String> {
        if let Some(why) = &self.unsaved {
            return Err(why.clone());
        }
        Ok(state(self.guest))
    }

    fn progress(&mut self, round: &Progress<'_>) {
        self.plans.push((round.pages, round.left, round.plan.clone()));
    }
}

/// The state of a guest's vCPUs.
pub fn state(guest: &Guest) -> Vec<Section> {
    let vcpus = guest.vcpus.lock().unwrap();
    let section = |(instance, vcpu): (usize, &Vcpu<Work>)| Section {
        name: name("vcpu"),
        instance: instance as u32,
        version: 1,
        bytes: vcpu.program().to_bytes(),
    };
    vcpus.iter().enumerate().map(section).collect()
}

/// The target's embedder.
pub struct Target<'w> {
    pub place: &'w mut Place,
    pub guest: Option<Guest>,
    link: Option<Sender>,
    pub answers: Option<Writer<Sender>>,
    /// Whether it takes a guest with absent pages, and whether one comes.
    pub takes_absent: bool,
    absent: bool,
    pub arbiter: &'w Arbiter,
    vcpus: Vec<Work>,
    wanted: u32,
    /// The digest of each page before the guest's first entry.
    pub digests: Option<Vec<u64>>,
    pub refused: Vec<String>,
}

impl<'w> Target<'w> {
    pub fn new(place: &'w mut Place, answers: Option<Sender>, arbiter: &'w Arbiter) -> Self {
        Self {
            place,
            guest: None,
            link: answers,
            answers: None,
            takes_absent: false,
            absent: false,
            arbiter,
            vcpus: Vec::new(),
            wanted: 0,
            digests: None,
            refused: Vec::new(),
        }
    }

    pub fn guest(&self) -> &Guest {
        self.guest.as_ref().expect("it was built")
    }
}

impl Embedder for Target<'_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        self.arbiter.ask(1, request)
    }

    fn run(&mut self) {
        // Before the first entry.
        self.digests = Some(self.guest().digests_here());
        assert!(!self.guest().running.swap(true, Ordering::Relaxed));
    }

    fn boot(&mut self) {
        panic!("the target has not crashed");
    }

    fn release(&mut self) {
        let guest = self.guest.take().expect("what was built is released once");
        assert!(!guest.running.load(Ordering::Relaxed), "it runs");
        self.place.end(guest);
    }

    fn announce(&mut self, now: Ownership) {
        receive::Host::answer(self, &Message::Taken(now));
    }
}

impl receive::Host for Target<'_> {
    type Ram<'a>
        = GuestRam<'a, FastPlatform>
    where
        Self: 'a;

    fn build(&mut self, hello: &Hello, slots: &[Slot], absent: bool) -> Result<(), String> {
        assert!(self.guest.is_none());
        self.absent = absent;
        self.wanted = hello.vcpus;
        self.guest = Some(self.place.make(slots)?);
        Ok(())
    }

    fn ram(&self) -> Result<GuestRam<'_, FastPlatform>, RamError> {
        GuestRam::new(self.guest().vm.memory(), LogOptions::new(Tracker::Manual), &self.guest().ids)
    }

    fn section(&mut self, section: Section) -> Result<(), String> {
        let Section { name, instance, version, bytes } = section;
        match (name.as_str(), version) {
            ("image", 1) => Ok(()),
            ("vcpu", 1) if instance as usize == self.vcpus.len() => {
                self.vcpus.push(Work::from_bytes(&bytes).ok_or("no vCPU's state")?);
                Ok(())
            }
            _ => Err(format!("section {name}, instance {instance}, version {version} is not known here")),
        }
    }

    fn absent(&mut self, absent: &PageSet) -> Result<(), String> {
        if !self.takes_absent {
            return Err(format!("{} pages are absent, and this target needs all", absent.count()));
        }
        if let Some(peer) = &self.place.peer {
            return peer.absent(self.guest().vm.memory(), absent).map_err(|error| error.to_string());
        }
        // Whatever the guest finds there before the page comes, it is wrong.
        let (ram, mut at) = (self.ram().unwrap(), (0, 0));
        while let Some((slot, page)) = absent.next(at) {
            assert!(matches!(ram.write(slot, page, Some(&[0xee; 4096])), Ok(PageWrite::Done)));
            at = (slot, page + 1);
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<(), String> {
        if self.vcpus.len() != self.wanted as usize {
            return Err(format!("the state of {} vCPUs came, and the guest has {}", self.vcpus.len(), self.wanted));
        }
        let vcpu = |work| Vcpu::new(work, Arc::new(Interrupts::new()));
        *self.guest().vcpus.lock().unwrap() = self.vcpus.drain(..).map(vcpu).collect();
        Ok(())
    }

    fn answer(&mut self, message: &Message) {
        if let Message::Refused(why) = message {
            self.refused.push(why.clone());
        }
        if let Some(link) = self.link.take() {
            let new = if self.absent { Writer::with_absent } else { Writer::new };
            self.answers = Some(new(link, Compression::Off));
        }
        if let Some(answers) = &mut self.answers {
            let _ = answers.message(message);
        }
    }
}
