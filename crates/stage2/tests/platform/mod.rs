// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine that the tests run the engine on. It proves nothing by itself. It records in order what the engine does,
//! and reads the tables with the walk and the TLBI decoder of `twofold-machine` ([`mmu`], [`tlb`]).
//!
//! The log shows a change of memory as [`Event::Sees`], where a walk would first see it: the watched addresses are
//! translated again before each instruction.
#![allow(dead_code, reason = "each test uses its own part")]

pub mod memory;
pub mod mmu;
pub mod tlb;
pub mod window;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{
    Access, Donated, Features, Geometry, Granule, Ipa, Kib4, Pa, Platform, Run, Stage2, TableMetadata, TablePage, Vmid,
    Vmids,
};

use memory::{Arena, FRAMES, ROOT, TABLES};
use mmu::{Mmu, Scan};
use tlb::Reach;

pub const KIB_4: u64 = 4 << 10;
pub const MIB_2: u64 = 2 << 20;
pub const GIB: u64 = 1 << 30;

pub const VMID: u16 = 0x5a;

/// Armv8.0 and nothing more. Cache lines are long, so that cleaning a 1 GiB block does not take 16 Mi calls.
pub const PLAIN: Features = Features::NONE.with_data_line(2048).with_instruction_line(2048);

/// What the engine did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Tlbi(Tlbi, Reach),
    Dsb(Domain),
    Isb,
    LoadVttbr(u64),
    /// `DC CIVAC` of all lines of the range, in ascending order.
    Clean(Pa, u64),
    /// `DC ZVA` of all blocks of the range, in ascending order.
    Zero(Pa, u64),
    /// `IC IVAU` of all lines of the range, in ascending order.
    InvalidateCode(Pa, u64),
    InvalidateAllCode,
    Take(Pa),
    Give(Pa),
    /// From here on, a walk for this address finds this.
    Sees(Ipa, Option<Sight>),
}

/// What a walk finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    pub level: u8,
    /// The output address of the watched address.
    pub pa: Pa,
    pub access: Access,
}

/// Called with each event as it happens, and the value of `VTTBR_EL2` at that time.
type Hook = Box<dyn FnMut(&Event, u64)>;
/// Called before each atomic read-modify-write.
type AtomicHook = Box<dyn FnMut()>;
/// Whether an interrupt is pending, each time that the engine asks.
type InterruptHook = Box<dyn FnMut() -> bool>;

/// The memory of a recording machine.
pub trait HostMemory {
    /// The word at `pa`.
    fn read(&self, pa: Pa) -> u64;
    fn pointer(&self, pa: Pa) -> NonNull<u8>;
    fn metadata(&self, pa: Pa) -> &TableMetadata;
    /// The PA of the byte at `address`, which a cache operation names.
    fn at(&self, address: usize) -> Pa;
    fn zero(&self, pa: Pa, size: u64);
    /// Writes lines back.
    fn clean(&self, pa: Pa, size: u64);
    /// Checks that a guest reads `expected` in the page at `pa`.
    fn check_page(&self, pa: Pa, expected: &[u8], features: &Features);
}

/// An address whose translation is observed.
struct Watched {
    ipa: Ipa,
    seen: Option<Sight>,
    /// The content that the guest must read in the page when it first sees it.
    expected: Option<Vec<u8>>,
}

/// One CPU, its memory, and the log of events.
pub struct Machine<M = Arena> {
    pub features: Features,
    pub memory: M,
    vttbr: Cell<u64>,
    log: RefCell<Vec<Event>>,
    mmu: Cell<Option<Mmu>>,
    watched: RefCell<Vec<Watched>>,
    hook: RefCell<Option<Hook>>,
    atomic_hook: RefCell<Option<AtomicHook>>,
    interrupt_hook: RefCell<Option<InterruptHook>>,
    /// Atomic read-modify-writes so far: mostly locks that were taken.
    atomics: Cell<u64>,
    /// The value of `atomics` at each [`Event::Sees`].
    atomics_at_sights: RefCell<Vec<u64>>,
    /// Whether the engine may wait for another CPU.
    pub may_wait: Cell<bool>,
    /// The VMIDs that trees share, if any do.
    pub vmids: OnceCell<&'static Vmids<'static>>,
    /// The roots of trees that were dropped without `destroy`.
    pub abandoned: RefCell<Vec<Pa>>,
    /// The number of entries of each visit of a maintenance pass, if a test asks for them.
    visits: RefCell<Option<Vec<usize>>>,
}

impl<M: HostMemory> Machine<M> {
    pub fn with_memory(features: Features, memory: M) -> Rc<Self> {
        Rc::new(Self {
            features,
            memory,
            vttbr: Cell::new(0),
            log: RefCell::default(),
            mmu: Cell::new(None),
            watched: RefCell::default(),
            hook: RefCell::default(),
            atomic_hook: RefCell::default(),
            interrupt_hook: RefCell::default(),
            atomics: Cell::new(0),
            atomics_at_sights: RefCell::default(),
            may_wait: Cell::new(false),
            vmids: OnceCell::new(),
            abandoned: RefCell::default(),
            visits: RefCell::default(),
        })
    }

    /// The machine as the engine's platform.
    pub fn platform(self: &Rc<Self>) -> Host<M> {
        Host(self.clone())
    }

    /// Sets `VTTBR_EL2` and the MMU for the guest with these tables.
    pub fn enter(&self, vttbr: u64, vtcr: u64) {
        self.vttbr.set(vttbr);
        self.mmu.set(Some(Mmu::new(vttbr, vtcr, &self.features)));
    }

    pub fn set_hook(&self, hook: impl FnMut(&Event, u64) + 'static) {
        *self.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Atomic read-modify-writes are the only places between two events where something can happen unseen. Another CPU does
    /// what the hook does.
    pub fn set_atomic_hook(&self, hook: impl FnMut() + 'static) {
        *self.atomic_hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Answers whether an interrupt is pending from here on. Without this, none is.
    pub fn set_interrupt_hook(&self, hook: impl FnMut() -> bool + 'static) {
        *self.interrupt_hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Has another CPU do something, once, before the atomic with this number; the next one is 1.
    pub fn before_atomic(&self, number: usize, action: impl FnOnce() + 'static) {
        let (mut left, mut action) = (number, Some(action));
        self.set_atomic_hook(move || {
            left = left.saturating_sub(1);
            if left == 0
                && let Some(action) = action.take()
            {
                action();
            }
        });
    }

    /// The MMU, set up for the guest that was entered.
    pub fn mmu(&self) -> Mmu {
        self.mmu.get().expect("no guest was entered")
    }

    pub fn loaded(&self) -> u64 {
        self.vttbr.get()
    }

    pub fn load(&self, vttbr: u64) {
        self.vttbr.set(vttbr);
    }

    pub fn read(&self, pa: Pa) -> u64 {
        self.memory.read(pa)
    }

    /// Whether a table is locked.
    pub fn is_locked(&self, table: Pa) -> bool {
        let metadata = std::ptr::from_ref(self.memory.metadata(table));
        // SAFETY: the metadata is two atomic words with the alignment of one, and every value is valid. The first word
        // has the lock in bit 0.
        let word = unsafe { &*metadata.cast::<AtomicU64>() };
        word.load(Ordering::Relaxed) & 1 == 1
    }

    /// The events since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.observe();
        self.log.take()
    }

    /// The number of locks and other atomics up to each [`Event::Sees`] since the last call.
    pub fn atomics_at_sights(&self) -> Vec<u64> {
        self.atomics_at_sights.take()
    }

    /// The number of entries of each visit of a maintenance pass since the last call. They are recorded from the first call on.
    pub fn visits(&self) -> Vec<usize> {
        self.visits.replace(Some(Vec::new())).unwrap_or_default()
    }

    /// Makes room for `count` events, for tests in which recording one must not allocate.
    pub fn expect_events(&self, count: usize) {
        self.log.borrow_mut().reserve(count);
    }

    /// Records from now on each change of what a walk for `ipa` finds. `expected` is the content of its page when it
    /// gets mapped.
    pub fn watch(&self, ipa: Ipa, expected: Option<Vec<u8>>) {
        let mut watched = self.watched.borrow_mut();
        watched.retain(|old| old.ipa != ipa);
        watched.push(Watched { ipa, seen: self.sight(ipa), expected });
    }

    pub fn watch_nothing(&self) {
        self.watched.borrow_mut().clear();
    }

    fn record(&self, event: Event) {
        self.observe();
        // The hook is taken out during the call: the engine's events within a hook are recorded, and call no hook.
        if let Some(mut hook) = self.hook.take() {
            hook(&event, self.vttbr.get());
            self.hook.borrow_mut().get_or_insert(hook);
        }
        let mut log = self.log.borrow_mut();
        match (log.last_mut(), &event) {
            (Some(Event::Clean(start, size)), Event::Clean(pa, more))
            | (Some(Event::Zero(start, size)), Event::Zero(pa, more))
            | (Some(Event::InvalidateCode(start, size)), Event::InvalidateCode(pa, more))
                if *start + *size == *pa =>
            {
                *size += more;
            }
            _ => log.push(event),
        }
    }

    fn sight(&self, ipa: Ipa) -> Option<Sight> {
        let leaf = self.mmu().translate(&|pa| self.read(pa), ipa).ok()?;
        Some(Sight { level: leaf.level, pa: leaf.output(ipa), access: leaf.access() })
    }

    /// Records which watched addresses translate differently now.
    fn observe(&self) {
        for watched in &mut *self.watched.borrow_mut() {
            let now = self.sight(watched.ipa);
            if let (None, Some(sight), Some(expected)) = (watched.seen, now, &watched.expected) {
                self.memory.check_page(sight.pa.align_down(KIB_4), expected, &self.features);
            }
            if now != watched.seen {
                watched.seen = now;
                self.log.borrow_mut().push(Event::Sees(watched.ipa, now));
                self.atomics_at_sights.borrow_mut().push(self.atomics.get());
            }
        }
    }
}

impl Machine {
    /// A machine with this many table pages, and guest memory that is never accessed.
    pub fn with_arena(features: Features, table_pages: u64) -> Rc<Self> {
        Self::with_memory(features, Arena::new(table_pages))
    }

    /// Sets bits in an entry, as hardware does.
    pub fn hardware_sets(&self, entry: Pa, bits: u64) {
        self.memory.set_bits(entry, bits);
    }

    /// Writes an entry without the engine.
    pub fn write(&self, entry: Pa, raw: u64) {
        self.memory.write(entry, raw);
    }
}

/// The machine as the engine's platform.
pub struct Host<M = Arena>(pub Rc<Machine<M>>);

impl<M> Clone for Host<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

// SAFETY: `pointer` returns memory that lives as long as the machine and is accessed only by atomics, or by copies while
// the engine does not run. For a frame outside an arena it returns an address that the machine uses for cache operations
// without accessing it, and the tests let the engine do nothing else there.
unsafe impl<M: HostMemory> Platform for Host<M> {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.0.record(Event::Tlbi(operation, Reach::decode(operation, operand, &self.0.features)));
    }

    fn dsb(&self, domain: Domain) {
        self.0.record(Event::Dsb(domain));
    }

    fn isb(&self) {
        self.0.record(Event::Isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        let (machine, pa) = (&*self.0, self.0.memory.at(address));
        match operation {
            Dc::Civac => {
                let (pa, line) = (pa.align_down(machine.features.data_line), machine.features.data_line);
                machine.record(Event::Clean(pa, line));
                machine.memory.clean(pa, line);
            }
            Dc::Zva => {
                let block = machine.features.zero_block;
                assert!(block > 0, "DC ZVA is prohibited on this CPU");
                machine.record(Event::Zero(pa.align_down(block), block));
                machine.memory.zero(pa.align_down(block), block);
            }
        }
    }

    fn ic(&self, operation: Ic, address: usize) {
        match operation {
            Ic::Ivau => {
                let line = self.0.features.instruction_line;
                self.0.record(Event::InvalidateCode(self.0.memory.at(address).align_down(line), line));
            }
            Ic::IallUis => {
                assert_eq!(address, 0, "IC IALLUIS takes no address");
                self.0.record(Event::InvalidateAllCode);
            }
        }
    }

    fn vttbr(&self) -> u64 {
        self.0.vttbr.get()
    }

    fn vmids(&self) -> Option<&Vmids<'_>> {
        self.0.vmids.get().copied()
    }

    fn load_vttbr(&self, value: u64) {
        self.0.vttbr.set(value);
        self.0.record(Event::LoadVttbr(value));
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.0.memory.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.0.memory.metadata(pa)
    }

    /// All memory is freed with the machine.
    fn abandoned(&self, root: Pa) {
        self.0.abandoned.borrow_mut().push(root);
    }

    fn pause(&self, _: u32) {
        assert!(self.0.may_wait.get(), "the engine waits for another CPU, and there is none");
    }

    fn on_atomic(&self) {
        if let Some(mut hook) = self.0.atomic_hook.take() {
            twofold_machine::relay::meanwhile(&mut hook);
            self.0.atomic_hook.borrow_mut().get_or_insert(hook);
        }
        self.0.atomics.set(self.0.atomics.get() + 1);
    }

    fn on_entries(&self, count: usize) {
        if let Some(visits) = &mut *self.0.visits.borrow_mut() {
            visits.push(count);
        }
    }

    fn interrupt_is_pending(&self) -> bool {
        self.0.interrupt_hook.borrow_mut().as_mut().is_some_and(|hook| hook())
    }
}

/// Table pages. Each is either here or in the tree.
pub struct Pool<G: Granule = Kib4> {
    machine: Rc<Machine>,
    free: Vec<TablePage<G>>,
    pub out: BTreeSet<Pa>,
    /// How many more pages may be taken. A page that is given back may be taken again.
    pub limit: usize,
}

impl<G: Granule> Pool<G> {
    /// The first pages of the pool, not taken yet, as a guest's memory.
    pub fn run(&mut self, pages: u64) -> Run {
        let runs = (0..pages).map(|_| self.free.pop().unwrap().into_run());
        runs.reduce(|run, next| run.join(next).unwrap()).unwrap()
    }
}

impl<G: Granule> twofold_stage2::TableSource<G> for Pool<G> {
    fn take(&mut self) -> Option<TablePage<G>> {
        self.limit = self.limit.checked_sub(1)?;
        let page = self.free.pop().expect("the test needs more pages");
        assert!(self.out.insert(page.pa()));
        self.machine.record(Event::Take(page.pa()));
        Some(page)
    }

    fn give(&mut self, page: TablePage<G>) {
        let pa = page.pa();
        assert!(self.out.remove(&pa), "{pa} was given back, but it was not out");
        self.machine.record(Event::Give(pa));
        self.machine.memory.spoil(pa, G::SIZE);
        self.free.push(page);
        self.limit = self.limit.saturating_add(1);
    }
}

impl<G: Granule> Drop for Pool<G> {
    /// The test is over. Hooks are dropped, since a hook may hold the machine that holds it.
    fn drop(&mut self) {
        let hooks = (self.machine.hook.take(), self.machine.atomic_hook.take());
        drop(hooks);
    }
}

/// A guest with empty tables, whose `VTTBR_EL2` is loaded, with its pool and its machine.
pub struct Guest<G: Granule = Kib4> {
    pub machine: Rc<Machine>,
    pub stage2: Stage2<Host, G>,
    pub pool: Pool<G>,
    /// Checks what must hold for the tables between two operations.
    pub check: fn(&Stage2<Host, G>),
}

impl Guest {
    /// Pages of the pool are numbered from [`table`]`(0)` on, in the order in which they are first taken.
    pub fn new(features: Features, ipa_bits: u32) -> Self {
        Self::with_pages(features, ipa_bits, 24)
    }

    pub fn with_pages(features: Features, ipa_bits: u32, pages: u64) -> Self {
        Self::of(Kib4, features, ipa_bits, pages)
    }
}

impl<G: Granule> Guest<G> {
    /// A guest with tables of this type, and this many pages for tables.
    pub fn of(granule: G, features: Features, ipa_bits: u32, pages: u64) -> Self {
        let machine = Machine::with_arena(features, pages * G::SIZE / KIB_4);
        let geometry = Geometry::new(granule, ipa_bits, &features).unwrap();
        // SAFETY: the arena is accessed only by atomics, and `Host` maps it as long as it lives.
        let donated = unsafe { Donated::new(ROOT, TABLES - ROOT + pages * G::SIZE) };
        let (root, mut rest) = donated.into_run().split_at(TABLES - ROOT).unwrap();
        let (root, _) = root.split_at(geometry.root_size()).unwrap();
        let root = root.into_root(&geometry).unwrap();
        let stage2 = Stage2::new(Host(machine.clone()), features, geometry, Vmid::new(VMID), root).unwrap();
        machine.enter(stage2.vttbr(), stage2.vtcr());
        let mut free = Vec::new();
        for _ in 0..pages {
            let (page, more) = rest.split_at(G::SIZE).unwrap();
            free.push(page.into_table(&features).unwrap());
            rest = more;
        }
        free.reverse();
        let pool = Pool { machine: machine.clone(), free, out: BTreeSet::new(), limit: usize::MAX };
        Self { machine, stage2, pool, check: |_| () }
    }

    /// From here on, records what a walk for `ipa` finds. Forgets earlier events.
    pub fn watch(&self, ipa: Ipa) {
        self.machine.watch(ipa, None);
        self.machine.events();
    }

    /// The events since the last call. Checks the tables first.
    pub fn events(&self) -> Vec<Event> {
        (self.check)(&self.stage2);
        self.machine.events()
    }

    pub fn mmu(&self) -> Mmu {
        self.machine.mmu()
    }

    /// All leaves and tables, as a walk reads them.
    pub fn scan(&self) -> Scan {
        self.mmu().scan(&|pa| self.machine.read(pa))
    }

    /// The leaf that a walk for `ipa` finds.
    pub fn walk(&self, ipa: Ipa) -> Option<mmu::Leaf> {
        self.mmu().translate(&|pa| self.machine.read(pa), ipa).ok()
    }
}

/// The PA of a page of the pool.
pub fn table(index: u64) -> Pa {
    TABLES + index * KIB_4
}

/// The PA of guest memory at `offset`.
pub fn frame(offset: u64) -> Pa {
    FRAMES + offset
}

/// Guest memory at `offset` as a run, which may be lent. Only its lines are maintained.
pub fn frames(offset: u64, size: u64) -> Run {
    // SAFETY: no code accesses a frame.
    unsafe { Donated::new(frame(offset), size) }.into_run()
}
