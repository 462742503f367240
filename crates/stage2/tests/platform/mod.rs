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

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::rc::Rc;

use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{
    Access, Donated, Features, Geometry, Granule, Ipa, Pa, Platform, Run, Stage2, TableMetadata, TablePage, Vmid,
};

use memory::{Arena, FRAMES, ROOT, TABLES};
use mmu::{Mmu, Scan};
use tlb::Reach;

pub const KIB_4: u64 = 4 << 10;
pub const MIB_2: u64 = 2 << 20;
pub const GIB: u64 = 1 << 30;

pub const VMID: u16 = 0x5a;

/// Armv8.0 and nothing more. Cache lines are long, so that cleaning a 1 GiB block does not take 16 Mi calls.
pub const PLAIN: Features = Features { data_line: 2048, instruction_line: 2048, ..Features::NONE };

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

/// One CPU, its memory, and the log of events.
pub struct Machine {
    features: Features,
    arena: Arena,
    vttbr: Cell<u64>,
    log: RefCell<Vec<Event>>,
    guest: Cell<Option<Mmu>>,
    watched: RefCell<Vec<(Ipa, Option<Sight>)>>,
    hook: RefCell<Option<Hook>>,
    atomic_hook: RefCell<Option<AtomicHook>>,
    /// The roots of trees that were dropped without `destroy`.
    pub abandoned: RefCell<Vec<Pa>>,
}

impl Machine {
    pub fn new(features: Features, table_pages: u64) -> Rc<Self> {
        Rc::new(Self {
            features,
            arena: Arena::new(table_pages),
            vttbr: Cell::new(0),
            log: RefCell::default(),
            guest: Cell::new(None),
            watched: RefCell::default(),
            hook: RefCell::default(),
            atomic_hook: RefCell::default(),
            abandoned: RefCell::default(),
        })
    }

    pub fn set_hook(&self, hook: impl FnMut(&Event, u64) + 'static) {
        *self.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Atomic read-modify-writes are the only places between two events where something can happen unseen.
    pub fn set_atomic_hook(&self, hook: impl FnMut() + 'static) {
        *self.atomic_hook.borrow_mut() = Some(Box::new(hook));
    }

    /// The MMU, set up for the guest with these tables.
    pub fn mmu(&self) -> Mmu {
        self.guest.get().unwrap()
    }

    pub fn loaded(&self) -> u64 {
        self.vttbr.get()
    }

    pub fn load(&self, vttbr: u64) {
        self.vttbr.set(vttbr);
    }

    /// The events since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.observe();
        self.log.take()
    }

    /// Sets bits in an entry, as hardware does.
    pub fn hardware_sets(&self, entry: Pa, bits: u64) {
        self.arena.set_bits(entry, bits);
    }

    /// Writes an entry without the engine.
    pub fn write(&self, entry: Pa, raw: u64) {
        self.arena.write(entry, raw);
    }

    pub fn read(&self, pa: Pa) -> u64 {
        self.arena.read(pa)
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

    /// Records which watched addresses translate differently now.
    fn observe(&self) {
        let Some(mmu) = self.guest.get() else { return };
        for (ipa, last) in &mut *self.watched.borrow_mut() {
            let now = mmu.translate(&|pa| self.read(pa), *ipa).ok();
            let now = now.map(|leaf| Sight { level: leaf.level, pa: leaf.output(*ipa), access: leaf.access() });
            if now != *last {
                *last = now;
                self.log.borrow_mut().push(Event::Sees(*ipa, now));
            }
        }
    }
}

/// The machine as the engine's platform.
#[derive(Clone)]
pub struct Host(pub Rc<Machine>);

// SAFETY: in the arena, `pointer` returns memory that lives as long as the machine and is accessed only by atomics. For
// a frame outside the arena it returns an address that this machine uses for cache operations without accessing it, and
// the tests let the engine do nothing else there.
unsafe impl Platform for Host {
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
        match operation {
            Dc::Civac => {
                let line = self.0.features.data_line;
                self.0.record(Event::Clean(memory::frame_at(address).align_down(line), line));
            }
            Dc::Zva => {
                let block = self.0.features.zero_block;
                assert!(block > 0, "DC ZVA is prohibited on this CPU");
                let pa = self.0.arena.at(address).align_down(block);
                self.0.arena.zero(pa, block);
                self.0.record(Event::Zero(pa, block));
            }
        }
    }

    fn ic(&self, operation: Ic, address: usize) {
        match operation {
            Ic::Ivau => {
                let line = self.0.features.instruction_line;
                self.0.record(Event::InvalidateCode(memory::frame_at(address).align_down(line), line));
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

    fn load_vttbr(&self, value: u64) {
        self.0.vttbr.set(value);
        self.0.record(Event::LoadVttbr(value));
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.0.arena.pointer(pa).unwrap_or_else(|| memory::frame_pointer(pa))
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.0.arena.metadata(pa)
    }

    /// All memory is freed with the machine.
    fn abandoned(&self, root: Pa) {
        self.0.abandoned.borrow_mut().push(root);
    }

    fn pause(&self, _: u32) {
        panic!("the engine waits for another CPU, and there is none");
    }

    fn on_atomic(&self) {
        if let Some(mut hook) = self.0.atomic_hook.take() {
            hook();
            self.0.atomic_hook.borrow_mut().get_or_insert(hook);
        }
    }
}

/// Table pages. Each is either here or in the tree.
pub struct Pool {
    machine: Rc<Machine>,
    free: Vec<TablePage>,
    pub out: BTreeSet<Pa>,
    /// How many more pages may be taken. A page that is given back may be taken again.
    pub limit: usize,
}

impl Pool {
    /// The first pages of the pool, not taken yet, as a guest's memory.
    pub fn run(&mut self, pages: u64) -> Run {
        let runs = (0..pages).map(|_| self.free.pop().unwrap().into_run());
        runs.reduce(|run, next| run.join(next).unwrap()).unwrap()
    }
}

impl twofold_stage2::TableSource for Pool {
    fn take(&mut self) -> Option<TablePage> {
        self.limit = self.limit.checked_sub(1)?;
        let page = self.free.pop().expect("the test needs more pages");
        assert!(self.out.insert(page.pa()));
        self.machine.record(Event::Take(page.pa()));
        Some(page)
    }

    fn give(&mut self, page: TablePage) {
        let pa = page.pa();
        assert!(self.out.remove(&pa), "{pa} was given back, but it was not out");
        self.machine.record(Event::Give(pa));
        self.machine.arena.spoil(pa, KIB_4);
        self.free.push(page);
        self.limit = self.limit.saturating_add(1);
    }
}

impl Drop for Pool {
    /// The test is over. Hooks are dropped, since a hook may hold the machine that holds it.
    fn drop(&mut self) {
        let hooks = (self.machine.hook.take(), self.machine.atomic_hook.take());
        drop(hooks);
    }
}

/// A guest with empty tables, whose `VTTBR_EL2` is loaded, with its pool and its machine.
pub struct Guest {
    pub machine: Rc<Machine>,
    pub stage2: Stage2<Host>,
    pub pool: Pool,
    /// Checks what must hold for the tables between two operations.
    pub check: fn(&Stage2<Host>),
}

impl Guest {
    /// The events. Pages of the pool are numbered from [`table`]`(0)` on, in the order in which they are first taken.
    pub fn new(features: Features, ipa_bits: u32) -> Self {
        Self::with_pages(features, ipa_bits, 24)
    }

    pub fn with_pages(features: Features, ipa_bits: u32, pages: u64) -> Self {
        let machine = Machine::new(features, pages);
        let geometry = Geometry::new(Granule::KIB_4, ipa_bits, &features).unwrap();
        // SAFETY: the arena is accessed only by atomics, and `Host` maps it as long as it lives.
        let donated = unsafe { Donated::new(ROOT, TABLES - ROOT + pages * KIB_4) };
        let (root, pages_of_tables) = donated.into_run().split_at(TABLES - ROOT).unwrap();
        let (root, _) = root.split_at(geometry.root_size()).unwrap();
        let root = root.into_root(&geometry).unwrap();
        let stage2 = Stage2::new(Host(machine.clone()), features, geometry, Vmid::new(VMID), root).unwrap();
        machine.load(stage2.vttbr());
        machine.guest.set(Some(Mmu::new(stage2.vttbr(), stage2.vtcr(), &features)));
        let free = pages_of_tables.into_pages().map(|page| page.into_table(&features).unwrap());
        let free = free.collect::<Vec<_>>().into_iter().rev().collect();
        let pool = Pool { machine: machine.clone(), free, out: BTreeSet::new(), limit: usize::MAX };
        Self { machine, stage2, pool, check: |_| () }
    }

    /// From here on, records what a walk for `ipa` finds. Forgets earlier events.
    pub fn watch(&self, ipa: Ipa) {
        self.machine.watched.borrow_mut().push((ipa, None));
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
