// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory and CPUs that several threads share.
//!
//! Free pages hold garbage. A late walk that follows it leaves the arena, which panics; a store to a free page is found
//! when the page is taken.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{
    Donated, Features, Geometry, Kib4, Pa, Platform, Stage2, TableMetadata, TablePage, TableSource, Unwatched, Vmid,
};

use super::mmu::{Mmu, Scan};
use super::*;

const ROOT: Pa = Pa::new(0x8_4000_0000);
/// Enough for two concatenated tables.
const ROOT_SIZE: u64 = 2 * KIB_4;
const FRAMES: Pa = Pa::new(0x100_0000_0000);
const FRAMES_TO_POINTER: u64 = 0x7000_0000_0000;

/// A place at which other threads may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Atomic,
    Instruction,
    /// A table or its metadata is about to be read, after the entry that led to it.
    Look,
    Pause,
}

type Hook = Box<dyn FnMut(Step)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static JITTER: Cell<u64> = const { Cell::new(0) };
    static PAUSES: Cell<u64> = const { Cell::new(0) };
    static CREW: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
}

/// Threads that work together. If one fails, the others stop waiting for it.
pub struct Crew {
    count: u64,
    arrived: AtomicU64,
    failed: AtomicBool,
}

impl Crew {
    pub fn new(count: u64) -> Arc<Self> {
        Arc::new(Self { count, arrived: AtomicU64::new(0), failed: AtomicBool::new(false) })
    }

    /// Makes this thread one of them, until the result is dropped.
    pub fn join(self: &Arc<Self>) -> Member {
        CREW.set(Some(self.clone()));
        Member
    }

    /// Waits until all threads are here.
    pub fn meet(&self) {
        let meeting = self.arrived.fetch_add(1, Ordering::SeqCst) / self.count + 1;
        while self.arrived.load(Ordering::SeqCst) < meeting * self.count {
            self.check();
            std::thread::yield_now();
        }
    }

    pub fn check(&self) {
        assert!(!self.failed.load(Ordering::Relaxed), "another thread failed");
    }
}

pub struct Member;

impl Drop for Member {
    fn drop(&mut self) {
        let crew = CREW.take();
        HOOK.take();
        if let Some(crew) = crew.filter(|_| std::thread::panicking()) {
            crew.failed.store(true, Ordering::Relaxed);
        }
    }
}

/// Calls `hook` at each step of this thread.
pub fn set_hook(hook: impl FnMut(Step) + 'static) {
    HOOK.with_borrow_mut(|place| *place = Some(Box::new(hook)));
}

/// From here on, yields to other threads at random steps of this thread.
pub fn jitter(seed: u64) {
    JITTER.set(seed | 1);
}

fn step(step: Step) {
    // Only one pause of 16 is a step.
    if step == Step::Pause && !PAUSES.replace(PAUSES.get() + 1).is_multiple_of(16) {
        return;
    }
    HOOK.with_borrow_mut(|hook| hook.as_mut().map(|hook| hook(step)));
    let jitter = JITTER.get();
    if jitter != 0 {
        let mut random = Random(jitter);
        let next = random.below(8);
        JITTER.set(random.0 | 1);
        if next == 0 {
            std::thread::yield_now();
        }
    }
    if step == Step::Pause {
        CREW.with_borrow(|crew| crew.iter().for_each(|crew| crew.check()));
        std::thread::yield_now();
    }
}

pub struct World {
    words: Vec<AtomicU64>,
    first: usize,
    metadata: Vec<TableMetadata>,
    vttbr: AtomicU64,
    /// The number of lines cleaned.
    pub cleaned: AtomicU64,
    pub vmid_flushes: AtomicU64,
}

impl World {
    fn new(pages: u64) -> Arc<Self> {
        let words = (ROOT_SIZE + pages * KIB_4) / 8;
        // Room for the root to be aligned.
        let words: Vec<_> = (0..words + ROOT_SIZE / 8).map(|_| AtomicU64::new(GARBAGE)).collect();
        let first = words.as_ptr().align_offset(ROOT_SIZE as usize);
        let metadata = (0..pages + ROOT_SIZE / KIB_4).map(|_| TableMetadata::new()).collect();
        let (vttbr, cleaned, vmid_flushes) = Default::default();
        Arc::new(Self { words, first, metadata, vttbr, cleaned, vmid_flushes })
    }

    fn word(&self, pa: Pa) -> &AtomicU64 {
        let offset = pa.raw().checked_sub(ROOT.raw()).filter(|at| *at < self.metadata.len() as u64 * KIB_4);
        &self.words[self.first + offset.unwrap_or_else(|| panic!("{pa} is no table's")) as usize / 8]
    }

    pub fn read(&self, pa: Pa) -> u64 {
        self.word(pa).load(Ordering::Acquire)
    }

    /// Records a write in a leaf, as a CPU's hardware walk does if the leaf allows it. Returns whether it did.
    pub fn hardware_writes(&self, entry: Pa) -> bool {
        let (valid, write, tracked) = (1, 1 << 7, 1 << 51);
        let change = |raw| (raw & (valid | write | tracked) == valid | tracked).then_some(raw | write);
        self.word(entry).fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

/// The content of free pages: an entry that leads to a table far away, with bits that no table entry has.
const GARBAGE: u64 = u64::MAX;

#[derive(Clone)]
pub struct Cpus(pub Arc<World>);

// SAFETY: `pointer` is inside the arena, which lives as long as the world and is accessed only by atomics. Each page of
// it has its own metadata. A frame has an address that nothing accesses.
unsafe impl Platform for Cpus {
    fn tlbi(&self, operation: Tlbi, _: u64) {
        if operation == Tlbi::VmallS12E1Is {
            self.0.vmid_flushes.fetch_add(1, Ordering::Relaxed);
        }
        step(Step::Instruction);
    }

    fn dsb(&self, _: Domain) {
        std::sync::atomic::fence(Ordering::SeqCst);
        step(Step::Instruction);
    }

    fn isb(&self) {}

    unsafe fn dc(&self, operation: Dc, _: usize) {
        assert_eq!(operation, Dc::Civac);
        self.0.cleaned.fetch_add(1, Ordering::Relaxed);
        step(Step::Instruction);
    }

    fn ic(&self, _: Ic, _: usize) {}

    fn vttbr(&self) -> u64 {
        self.0.vttbr.load(Ordering::Relaxed)
    }

    fn load_vttbr(&self, value: u64) {
        panic!("the guest is loaded, and {value:#x} is asked for");
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        if pa >= FRAMES {
            let address = (pa.raw() + FRAMES_TO_POINTER) as usize;
            return NonNull::without_provenance(std::num::NonZero::new(address).unwrap());
        }
        step(Step::Look);
        let index = self.0.first + (pa.raw().wrapping_sub(ROOT.raw()) / 8) as usize;
        assert!(pa >= ROOT && index + 512 <= self.0.words.len(), "a walk follows garbage to {pa}");
        NonNull::from(&self.0.words[index..]).cast()
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        step(Step::Look);
        let index = pa.raw().checked_sub(ROOT.raw()).map_or(usize::MAX, |at| (at / KIB_4) as usize);
        self.0.metadata.get(index).unwrap_or_else(|| panic!("a walk follows garbage to the metadata of {pa}"))
    }

    /// All memory is freed with the machine.
    fn abandoned(&self, _: Pa) {}

    fn pause(&self, _: u32) {
        step(Step::Pause);
    }

    fn on_atomic(&self) {
        step(Step::Atomic);
    }
}

/// Table pages for all threads. The page that is given last is taken first.
pub struct Pool {
    world: Arc<World>,
    pages: Mutex<(Vec<TablePage>, BTreeSet<Pa>)>,
}

impl TableSource for &Pool {
    fn take(&mut self) -> Option<TablePage> {
        let mut pages = self.pages.lock().unwrap();
        let page = pages.0.pop()?;
        assert!(pages.1.insert(page.pa()));
        self.check_garbage(page.pa());
        Some(page)
    }

    fn give(&mut self, page: TablePage) {
        let mut pages = self.pages.lock().unwrap();
        assert!(pages.1.remove(&page.pa()), "{} was given back twice", page.pa());
        (0..512).for_each(|index| self.world.word(page.pa() + index * 8).store(GARBAGE, Ordering::Relaxed));
        pages.0.push(page);
    }
}

impl Pool {
    fn check_garbage(&self, pa: Pa) {
        for at in (0..512).map(|index| pa + index * 8) {
            assert_eq!(self.world.read(at), GARBAGE, "a thread wrote to {at}, which is free");
        }
    }

    pub fn out(&self) -> BTreeSet<Pa> {
        self.pages.lock().unwrap().1.clone()
    }
}

/// A guest that threads share.
pub struct Guest {
    pub world: Arc<World>,
    pub stage2: Stage2<Cpus>,
    pub pool: Pool,
    /// A counter for the tests.
    pub reported: AtomicU64,
}

impl Guest {
    pub fn new(features: Features, ipa_bits: u32, pages: u64) -> Self {
        let world = World::new(pages);
        let geometry = Geometry::new(Kib4, ipa_bits, &features).unwrap();
        // SAFETY: the arena is accessed only by atomics, and `Cpus` maps it as long as it lives.
        let donated = unsafe { Donated::new(ROOT, ROOT_SIZE + pages * KIB_4) };
        let (root, rest) = donated.into_run().split_at(ROOT_SIZE).unwrap();
        let (root, _) = root.split_at(geometry.root_size()).unwrap();
        let root = root.into_root(&geometry).unwrap();
        let stage2 = Stage2::new(Cpus(world.clone()), features, geometry, Vmid::new(1), root).unwrap();
        world.vttbr.store(stage2.vttbr(), Ordering::Relaxed);
        let free = rest.into_pages().map(|page| page.into_table(&features).unwrap());
        let free = free.collect::<Vec<_>>().into_iter().rev().collect();
        let pool = Pool { world: world.clone(), pages: Mutex::new((free, BTreeSet::new())) };
        Self { world, stage2, pool, reported: AtomicU64::new(0) }
    }

    pub fn scan(&self) -> Scan {
        Mmu::new(self.stage2.vttbr(), self.stage2.vtcr(), self.stage2.features()).scan(&|pa| self.world.read(pa))
    }

    /// Checks the tables after all threads have ended: each address maps its own frame, each page is in the tree or
    /// free, and the counts agree with the entries, since otherwise the operations here would fail. Then ends the
    /// guest.
    pub fn check_and_destroy(self) {
        let scan = self.scan();
        for leaf in &scan.leaves {
            assert_eq!(leaf.pa(), home(leaf.ipa), "{leaf:x?}");
        }
        let links: BTreeSet<_> = scan.links.iter().map(|link| link.table).collect();
        assert_eq!(links, self.pool.out(), "pages that are out, and are in the tree");
        self.pool.pages.lock().unwrap().0.iter().for_each(|page| self.pool.check_garbage(page.pa()));

        let all = Ipa::new(0)..self.stage2.geometry().end();
        let _ = self.stage2.write_protect(all.clone()).unwrap().complete();
        let writable = |leaf: &&mmu::Leaf| leaf.access().write || leaf.dirty_by_hardware();
        assert_eq!(self.scan().leaves.iter().find(writable), None, "write protection skipped it");
        let mut young = 0;
        self.stage2.age(all, &mut |marked| young += marked.mask.count_ones() as usize).unwrap();
        assert_eq!(young, scan.leaves.iter().filter(|leaf| leaf.accessed()).count());
        // A table is unlinked with its last leaf, neither earlier nor later.
        if let Some(leaf) = scan.leaves.first().filter(|leaf| leaf.level > 1) {
            let table = leaf.ipa.align_down(mmu::span(leaf.level - 1));
            let stays =
                scan.leaves.iter().skip(1).any(|other| other.ipa.align_down(mmu::span(leaf.level - 1)) == table);
            let pending = self.stage2.unmap(leaf.ipa..leaf.end(), &mut &self.pool, Unwatched).unwrap();
            assert_eq!(pending.complete().free(&mut &self.pool).tables() == 0, stays);
        }
        let Self { stage2, pool, .. } = self;
        let _root = stage2.destroy(&mut &pool, Unwatched);
        assert_eq!(pool.out(), BTreeSet::new());
    }
}

/// The frame of an address, whichever thread maps it.
pub fn home(ipa: Ipa) -> Pa {
    FRAMES + ipa.raw()
}
