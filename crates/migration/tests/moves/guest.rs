// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest on the hosted machine, and the two places where it can be.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use twofold_machine::arena::{Arena, ArenaOptions, Backing as Kind};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::vm::{FastCpu, Left, RunError, Vcpu, Vm};
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::swap::{Clock, Located, PageStore, Peeked, SwapOptions, Waiter};
use twofold_memory::{Backing, Error, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_migration::postcopy::Peer;
use twofold_migration::ram::GuestRam;
use twofold_migration::stream::{self, Capabilities, Feature, Hello, Name};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};
use xxhash_rust::xxh3::xxh3_64;

use crate::Random;
use crate::program::Work;
use crate::store::{Mood, Reports, Store};

pub const PAGE: u64 = 4096;
const MIB_2: u64 = 2 << 20;
/// Memory of a place.
const PART: u64 = 5 * MIB_2;

const FEATURES: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_zero_block(64);

/// The guest's memslots: one that it cannot write to, and two of odd sizes. Together they have all kinds of words.
pub fn slots() -> Vec<stream::Slot> {
    let slot = |number, read_only, first, pages| stream::Slot { number, read_only, first, pages };
    vec![slot(2, true, 0x3_0000, 5), slot(0, false, 0x4_0003, 300), slot(1, false, 0x8_0000, 90)]
}

/// The pages that the guest writes to.
pub fn word_pages() -> u64 {
    slots().iter().filter(|slot| !slot.read_only).map(|slot| slot.pages).sum()
}

/// The address of a page that the guest writes to.
pub fn address_of(page: u64) -> u64 {
    let mut left = page;
    for slot in slots().iter().filter(|slot| !slot.read_only) {
        if left < slot.pages {
            return (slot.first + left) * PAGE;
        }
        left -= slot.pages;
    }
    panic!("page {page} is in no memslot");
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn hello(vcpus: u32) -> Hello {
    Hello {
        migration: *b"a migration's id",
        stream: 0,
        streams: 1,
        model: name("virt-1"),
        page_shift: 12,
        ipa_bits: 40,
        vcpus,
        memory: slots().iter().map(|slot| slot.pages * PAGE).sum(),
        features: vec![Feature { name: name("sve"), value: 1, exact: true }],
    }
}

pub fn capabilities() -> Capabilities {
    let features = vec![(name("sve"), 1)];
    Capabilities { model: name("virt-1"), page_shift: 12, ipa_bits: 40, vcpus: 4, memory: 2 << 20, features }
}

/// A host for one guest.
pub struct Place {
    pub machine: Arc<FastMachine>,
    pub frames: Option<Frames>,
    pub vmid: u16,
    pub pages: Pages,
    /// What guests made here have beside their memory.
    pub swap: Option<Swap>,
    /// The source of the guest that comes here, as its memory's store.
    pub peer: Option<Arc<Peer<FastPlatform>>>,
}

/// A store, and its reports.
pub struct Swap {
    pub store: Box<dyn Fn() -> Box<dyn PageStore> + Send>,
    pub reports: Arc<Reports>,
    /// The test's own store, if it is that.
    pub own: Option<Arc<Store>>,
    pub limit: Option<u64>,
}

impl Swap {
    /// The test's own store.
    pub fn with(store: &Arc<Store>, limit: Option<u64>) -> Self {
        let (attached, own) = (Arc::clone(store), Some(Arc::clone(store)));
        Self { store: Box::new(move || Box::new(Arc::clone(&attached))), reports: Arc::default(), own, limit }
    }
}

/// Two places on one machine.
pub fn places() -> [Place; 2] {
    let arena = Arena::new(&ArenaOptions::new(2 * PART, Kind::Anonymous)).unwrap();
    let machine = FastMachine::new(Arc::new(arena), FEATURES, 4).unwrap();
    [(0, Pages::Largest), (1, Pages::Small)].map(|(number, pages)| {
        let mut frames = Frames::new(FEATURES);
        frames.add(machine.arena().donate_part(number * PART, PART).unwrap());
        Place {
            machine: Arc::clone(&machine),
            frames: Some(frames),
            vmid: number as u16 + 1,
            pages,
            swap: None,
            peer: None,
        }
    })
}

/// A guest at a place.
pub struct Guest {
    pub machine: Arc<FastMachine>,
    pub vm: Vm<FastPlatform>,
    pub ids: Vec<(SlotId, stream::Slot)>,
    pub vcpus: Mutex<Vec<Vcpu<Work>>>,
    /// Whether its vCPUs may run.
    pub running: AtomicBool,
    /// Its own store, and what leaves next.
    pub store: Option<Arc<Store>>,
    pub reports: Arc<Reports>,
    /// Whether pages leave as time passes.
    pub leaves: AtomicBool,
    leaving: Mutex<Random>,
    clock: Mutex<Clock>,
}

impl Place {
    /// Makes a guest without content.
    pub fn make(&mut self, slots: &[stream::Slot]) -> Result<Guest, String> {
        let frames = self.frames.take().ok_or("this place has a guest")?;
        let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
        let platform = FastPlatform(Arc::clone(&self.machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(self.vmid), frames, self.pages).unwrap();
        let mut ids = Vec::new();
        for slot in slots {
            let start = Ipa::new(slot.first * PAGE);
            let range = start..start + slot.pages * PAGE;
            let added = memory.add_slot(Slot { range, backing: Backing::Ram, writable: !slot.read_only });
            match added {
                Ok(id) => ids.push((id, *slot)),
                Err(refused) => {
                    self.frames = Some(memory.destroy(drop));
                    return Err(refused.to_string());
                }
            }
        }
        let (mut store, mut reports) = (None, Arc::default());
        if let Some(peer) = &self.peer {
            let options = SwapOptions { vcpus: 2, others: 0, headroom: 0 };
            memory.attach_store(Box::new(Arc::clone(peer)), Box::new(Arc::clone(&reports)), &options).unwrap();
        }
        if let Some(swap) = &self.swap {
            (store, reports) = (swap.own.clone(), Arc::clone(&swap.reports));
            let options = SwapOptions { vcpus: 2, others: 8, headroom: 2 };
            memory.attach_store((swap.store)(), Box::new(Arc::clone(&reports)), &options).unwrap();
            assert_eq!(memory.set_limit(swap.limit.unwrap_or(u64::MAX)), Ok(0));
        }
        let (vm, machine) = (Vm::new(memory), Arc::clone(&self.machine));
        let (vcpus, running) = (Mutex::default(), AtomicBool::new(false));
        let (leaves, leaving, clock) = (AtomicBool::new(true), Mutex::new(Random(11)), Mutex::new(Clock::new()));
        Ok(Guest { machine, vm, ids, vcpus, running, store, reports, leaves, leaving, clock })
    }

    /// Ends a guest.
    pub fn end(&mut self, guest: Guest) {
        self.frames = Some(guest.vm.destroy());
    }

    /// Makes a guest, loads its memory, and lets it run.
    pub fn boot(&mut self, vcpus: u64, hot: (u64, u64)) -> Guest {
        let guest = self.make(&slots()).unwrap();
        let mut random = Random(3);
        for slot in slots() {
            for page in 0..slot.pages {
                let at = Ipa::new((slot.first + page) * PAGE);
                // The guest's own words are zero at first.
                let text = |at: usize| if at < PAGE as usize / 2 { 0 } else { (at / 100) as u8 };
                let bytes: Vec<u8> = match page % 4 {
                    0 => (0..PAGE as usize).map(text).collect(),
                    1 if slot.read_only => (0..PAGE).map(|_| random.below(256) as u8).collect(),
                    _ => continue,
                };
                guest.load(at, &bytes);
            }
        }
        let vcpu = |number| {
            let mut work = Work::new(number, hot);
            for page in 0..word_pages() {
                let mut word = [0; 8];
                let at = Ipa::new(address_of(page) + (page * 72 + 8 * number) % PAGE);
                while guest.vm.memory().read(at, &mut word).is_err() {
                    guest.vm.memory().bring(at, Waiter::Other(0)).unwrap();
                    guest.finish();
                }
                work.wrote[page as usize] = u64::from_le_bytes(word);
            }
            Vcpu::new(work, Arc::new(Interrupts::new()))
        };
        *guest.vcpus.lock().unwrap() = (0..vcpus).map(vcpu).collect();
        guest.running.store(true, Ordering::Relaxed);
        guest
    }
}

impl Guest {
    pub fn ram(&self, tracker: Tracker) -> GuestRam<'_, FastPlatform> {
        GuestRam::new(self.vm.memory(), LogOptions::new(tracker), &self.ids).unwrap()
    }

    /// Lets a vCPU do this number of writes, on this thread.
    pub fn work(&self, vcpu: usize, writes: u64) {
        if self.running.load(Ordering::Relaxed) {
            let cpu = FastCpu { machine: Arc::clone(&self.machine), number: vcpu };
            let vcpus = &mut self.vcpus.lock().unwrap();
            let vcpu = &mut vcpus[vcpu];
            vcpu.program_mut().budget = writes;
            while let Some(page) = self.run(&cpu, vcpu) {
                self.vm.memory().bring(page, Waiter::Other(0)).unwrap();
                self.finish();
            }
        }
    }

    /// The same, until the vCPU needs a page that is absent: that is asked for.
    pub fn work_while_pages_are_here(&self, vcpu: usize, writes: u64) {
        if self.running.load(Ordering::Relaxed) {
            let (number, cpu) = (vcpu, FastCpu { machine: Arc::clone(&self.machine), number: vcpu });
            let vcpus = &mut self.vcpus.lock().unwrap();
            let vcpu = &mut vcpus[vcpu];
            vcpu.program_mut().budget = writes;
            if let Some(page) = self.run(&cpu, vcpu) {
                self.vm.memory().bring(page, Waiter::Other(number as u64)).unwrap();
                vcpu.program_mut().budget = 0;
            }
        }
    }

    /// Runs a vCPU. Returns the absent page that it needs, if it came to one.
    pub fn run(&self, cpu: &FastCpu, vcpu: &mut Vcpu<Work>) -> Option<Ipa> {
        match self.vm.run(cpu, vcpu, |_| 0) {
            Ok(Left::Ended) => None,
            Err(RunError::Memory { error: Error::Absent { page, .. }, .. }) => Some(page),
            other => panic!("{other:?}"),
        }
    }

    /// Time passes for the store, and for the task that writes pages out.
    pub fn tick(&self, now: u64) {
        let (Some(store), memory) = (&self.store, self.vm.memory()) else { return };
        store.tick(memory, now);
        let page = {
            let mut leaving = self.leaving.lock().unwrap();
            (leaving.below(3) == 0 && self.leaves.load(Ordering::Relaxed)).then(|| leaving.below(word_pages()))
        };
        if let Some(page) = page {
            let _ = memory.write_out(Ipa::new(address_of(page))).unwrap();
        }
        self.make_room();
    }

    /// Writes where the guest's frames may be limited.
    fn load(&self, at: Ipa, bytes: &[u8]) {
        while self.vm.memory().write(at, bytes).is_err() {
            let _ = self.clock.lock().unwrap().make_room(self.vm.memory(), 1).unwrap();
            self.finish();
        }
    }

    fn make_room(&self) {
        let memory = self.vm.memory();
        let wanted = memory.wants_frames();
        if wanted > 0 {
            let _ = self.clock.lock().unwrap().make_room(memory, wanted);
        }
        let used = memory.frame_use();
        assert!(used.data <= used.limit, "{used:?}");
    }

    /// The store answers everything, and pages that wait for frames get them.
    pub fn finish(&self) {
        let Some(store) = &self.store else { panic!("a page is absent, and there is no store") };
        self.make_room();
        store.finish(self.vm.memory());
    }

    /// Writes all of the guest's pages out but each third.
    pub fn leave(&self) {
        for page in (0..word_pages()).filter(|page| page % 3 > 0) {
            let _ = self.vm.memory().write_out(Ipa::new(address_of(page))).unwrap();
            self.finish();
        }
    }

    /// Pages that are in the store alone.
    pub fn absent(&self) -> u64 {
        let located = |page| self.vm.memory().locate(Ipa::new(address_of(page))).unwrap();
        (0..word_pages()).filter(|&page| matches!(located(page), Located::Absent(_))).count() as u64
    }

    /// A digest of each page that is here.
    pub fn digests_here(&self) -> Vec<u64> {
        let located = |ipa| self.vm.memory().locate(ipa).unwrap();
        let is_here = |ipa: Ipa| !matches!(located(ipa), Located::Absent(_) | Located::Arriving(_));
        let pages = |slot: usize| (0..self.ids[slot].1.pages).map(move |page| (slot, page));
        let digest = |(slot, page): (usize, u64)| {
            let ipa = Ipa::new((self.ids[slot].1.first + page) * PAGE);
            if is_here(ipa) { self.digest(slot, page) } else { 0 }
        };
        (0..self.ids.len()).flat_map(pages).map(digest).collect()
    }

    /// A digest of each page.
    pub fn digests(&self) -> Vec<u64> {
        let pages = |slot: usize| (0..self.ids[slot].1.pages).map(move |page| (slot, page));
        (0..self.ids.len()).flat_map(pages).map(|(slot, page)| self.digest(slot, page)).collect()
    }

    /// A digest of a page.
    pub fn digest(&self, slot: usize, page: u64) -> u64 {
        let mut bytes = vec![0; PAGE as usize];
        let ipa = Ipa::new((self.ids[slot].1.first + page) * PAGE);
        if self.vm.memory().read(ipa, &mut bytes).is_err() {
            // A digest brings no page. A store that is silent answers this one.
            let mut peek = self.vm.memory().peek(ipa).unwrap();
            let store = self.store.as_ref().expect("it is in a store");
            while peek.look(bytes.first_chunk_mut().unwrap()) != Peeked::Read {
                let mood = std::mem::replace(&mut store.get().mood, Mood::Answers);
                self.finish();
                store.get().mood = mood;
            }
        }
        xxh3_64(&bytes)
    }

    /// Whether any memslot's log runs.
    pub fn logs(&self) -> bool {
        let log = |id| self.vm.memory().dirty_log(id).ok().and_then(|log| log.tracker());
        self.ids.iter().any(|(id, _)| log(*id).is_some())
    }

    /// The writes that all vCPUs have done.
    pub fn done(&self) -> u64 {
        self.vcpus.lock().unwrap().iter().map(|vcpu| vcpu.program().done).sum()
    }
}
