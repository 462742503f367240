// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hypervisor that writes its tables by hand, step by step.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Relaxed, Release};

use twofold_machine::strict::{Bbm, Breach, CpuHandle, Hosted, Program, StrictVcpu, Withdrawn};
use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::tlb::single_operand;
use twofold_stage2::{Access, Attributes, Descriptor, Features, Ipa, IpaRange, Kib4, Level, Pa, Platform, TableSource};

use crate::world::{MIB_2, PAGE, World};

/// The first address that is mapped: the second entry of the root.
pub const BASE: u64 = 0x4000_0000;
/// The guest's VMID.
pub const VMID: u16 = 3;
pub const READ_WRITE: Attributes = Attributes::ram(Access::READ_WRITE);
pub const READ: Attributes = Attributes::ram(Access::READ);
/// Clean, with DBM set.
pub const TRACKED: Attributes = Attributes { dirty_by_hardware: true, ..READ };
/// S2AP\[1\].
pub const WRITE: u64 = 1 << 7;
pub const ACCESSED: u64 = 1 << 10;
pub const DBM: u64 = 1 << 51;

/// A machine with a tree of one table of each level, which all its CPUs have loaded.
pub struct Machinery {
    pub world: World,
    pub tree: Tree,
}

/// A tree with an empty table of level 3, which translates 2 MiB from [`BASE`] on.
#[derive(Clone, Copy)]
pub struct Tree {
    pub vttbr: u64,
    pub vtcr: u64,
    pub root: Pa,
    pub level_2: Pa,
    pub level_3: Pa,
}

/// A CPU with the tree that it changes.
pub struct Hand<'a> {
    pub cpu: &'a CpuHandle,
    pub platform: Hosted,
    pub world: &'a World,
    pub tree: Tree,
}

impl Machinery {
    pub fn new(features: Features, bbm: Bbm, cpus: usize, seed: u64) -> Self {
        let world = World::with(features, bbm, cpus, seed, 64 << 20);
        let tree = world.machine.alone(|cpu| Hand::tree(cpu, &world, 0, VMID));
        let tree = tree.unwrap_or_else(|breach| panic!("{breach}"));
        let load = |_| Box::new(move |cpu: &CpuHandle| cpu.load(tree.vttbr)) as Program<'_>;
        world.machine.run((0..cpus).map(load).collect()).unwrap_or_else(|breach| panic!("{breach}"));
        Self { world, tree }
    }

    /// Runs `body` as CPU 0, while the other CPUs keep their TLB entries.
    pub fn alone<R: Send>(&self, body: impl FnOnce(&Hand) -> R + Send) -> Result<R, Breach> {
        self.world.machine.alone(|cpu| body(&self.hand(cpu)))
    }

    /// Runs two CPUs at once.
    pub fn race(&self, first: impl FnOnce(&Hand) + Send, second: impl FnOnce(&Hand) + Send) -> Result<(), Breach> {
        let first = Box::new(|cpu: &CpuHandle| first(&self.hand(cpu)));
        self.world.machine.run(vec![first, Box::new(|cpu: &CpuHandle| second(&self.hand(cpu)))])
    }

    /// Runs each of these on a CPU, at the same time.
    pub fn race_of<'a>(&'a self, bodies: Vec<&'a (dyn Fn(&Hand) + Sync)>) -> Result<(), Breach> {
        let programs = bodies.into_iter().map(|body| Box::new(|cpu: &CpuHandle| body(&self.hand(cpu))) as Program<'a>);
        self.world.machine.run(programs.collect())
    }

    fn hand<'a>(&'a self, cpu: &'a CpuHandle) -> Hand<'a> {
        Hand { cpu, platform: self.world.machine.platform(), world: &self.world, tree: self.tree }
    }
}

/// The address that an entry of the table of level 3 translates.
pub const fn ipa(index: u64) -> Ipa {
    Ipa::new(BASE + index * PAGE)
}

pub fn pages(range: std::ops::Range<u64>) -> IpaRange {
    ipa(range.start)..ipa(range.end)
}

impl<'a> Hand<'a> {
    /// Makes a tree with this number and VMID.
    pub fn tree(cpu: &CpuHandle, world: &World, number: u64, vmid: u16) -> Tree {
        let stage2 = world.tables(number, vmid, 40);
        let (vttbr, vtcr) = (stage2.vttbr(), stage2.vtcr());
        // From now on the tree is changed by hand.
        std::mem::forget(stage2);
        let root = Pa::new(vttbr & 0xffff_ffff_f000);
        let tree = Tree { vttbr, vtcr, root, level_2: Pa::new(0), level_3: Pa::new(0) };
        let mut hand = Hand { cpu, platform: world.machine.platform(), world, tree };
        let (level_2, level_3) = (hand.table(), hand.table());
        hand.make(root + 8, table(level_2));
        hand.make(level_2, table(level_3));
        hand.tree = Tree { level_2, level_3, ..tree };
        hand.tree
    }

    /// The same CPU with another tree.
    pub fn on(&self, tree: Tree) -> Hand<'a> {
        Hand { cpu: self.cpu, platform: self.platform.clone(), world: self.world, tree }
    }

    /// A page for a table, with its old content.
    pub fn page(&self) -> Pa {
        let page = (&self.world.pages).take().expect("there are pages").pa();
        self.cpu.take_page(page);
        page
    }

    /// An empty table, not linked yet.
    pub fn table(&self) -> Pa {
        let page = self.page();
        self.fill(page, |_| 0);
        page
    }

    /// Writes each entry of a table that is not linked yet.
    pub fn fill(&self, table: Pa, entry: impl Fn(u64) -> u64) {
        (0..512).for_each(|index| self.cpu.write_entry(table + index * 8, entry(index), Relaxed));
    }

    /// The entry for a page.
    pub fn entry(&self, index: u64) -> Pa {
        self.tree.level_3 + index * 8
    }

    /// A page that maps frame `number`.
    pub fn leaf(&self, number: u64, attributes: &Attributes) -> u64 {
        <Descriptor>::leaf(self.frame(number), Level::L3, attributes, &self.world.features).raw()
    }

    /// A block that maps the 2 MiB of frames from the first on.
    pub fn block(&self, number: u64, attributes: &Attributes) -> u64 {
        <Descriptor>::leaf(self.world.frame(number * MIB_2), Level::L2, attributes, &self.world.features).raw()
    }

    pub fn frame(&self, number: u64) -> Pa {
        self.world.frame(number * PAGE)
    }

    /// Runs `body` with the lock of the entry's table.
    pub fn locked<R>(&self, entry: Pa, body: impl FnOnce() -> R) -> R {
        let page = Pa::new(entry.raw() & !(PAGE - 1));
        // A root of two pages.
        let table = if page == self.tree.root + PAGE { self.tree.root } else { page };
        self.cpu.lock(table);
        let result = body();
        self.cpu.unlock(table);
        result
    }

    /// Writes an entry under its table's lock, with release ordering, and without a barrier.
    pub fn set(&self, entry: Pa, raw: u64) {
        self.locked(entry, || self.cpu.write_entry(entry, raw, Release));
    }

    /// The same, with the barrier that makes it visible to walks.
    pub fn make(&self, entry: Pa, raw: u64) {
        self.set(entry, raw);
        self.dsb(Domain::IshSt);
    }

    pub fn dsb(&self, domain: Domain) {
        self.platform.dsb(domain);
    }

    pub fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.platform.tlbi(operation, operand);
    }

    /// Invalidates a page's stage-2 entries, with the right operand.
    pub fn by_ipa(&self, ipa: Ipa) {
        self.tlbi(Tlbi::Ipas2E1Is, single_operand(ipa, None, Kib4));
    }

    /// The complete sequence for one page.
    pub fn flush(&self, ipa: Ipa) {
        self.dsb(Domain::IshSt);
        self.by_ipa(ipa);
        self.dsb(Domain::Ish);
        self.tlbi(Tlbi::VmallE1Is, 0);
        self.dsb(Domain::Ish);
        self.platform.isb();
    }

    /// The complete sequence for the whole VMID that is loaded.
    pub fn flush_all(&self) {
        self.dsb(Domain::IshSt);
        self.tlbi(Tlbi::VmallS12E1Is, 0);
        self.dsb(Domain::Ish);
        self.platform.isb();
    }

    /// The sequence for one page on this CPU only.
    pub fn flush_here(&self, ipa: Ipa) {
        self.dsb(Domain::NshSt);
        self.tlbi(Tlbi::Ipas2E1, single_operand(ipa, None, Kib4));
        self.dsb(Domain::Nsh);
        self.tlbi(Tlbi::VmallE1, 0);
        self.dsb(Domain::Nsh);
        self.platform.isb();
    }

    /// The hypervisor relies on this: nothing that was withdrawn before is cached any more.
    pub fn expect_flushed(&self, range: IpaRange, withdrawn: Withdrawn) {
        self.cpu.expect_flushed(self.tree.vttbr, &range, &self.cpu.knowledge(), withdrawn);
    }

    pub fn enter(&self, vcpu: u32) -> StrictVcpu<'a> {
        self.cpu.enter(self.tree.vttbr, self.tree.vtcr, vcpu)
    }

    /// Writes to a frame, as a hypervisor does that prepares it for a guest.
    pub fn write(&self, number: u64, value: u64) {
        let run = self.world.run(self.frame(number) - self.world.frame(0), PAGE);
        run.write(&self.platform, 0, &value.to_ne_bytes());
    }

    /// The first word of a frame.
    pub fn content(&self, number: u64) -> u64 {
        self.world.machine.arena().load(self.frame(number)).expect("a frame")
    }

    /// Cleans and invalidates a frame's lines.
    pub fn clean(&self, number: u64) {
        let (start, line) = (self.platform.pointer(self.frame(number)), self.world.features.data_line);
        // SAFETY: the frame is in the arena, and donated.
        unsafe { self.platform.dc_lines(Dc::Civac, start.addr().get(), PAGE, line) };
    }

    /// Invalidates all instruction caches.
    pub fn invalidate_code(&self) {
        self.platform.ic(Ic::IallUis, 0);
    }
}

/// The operations of a CPU that need no tree.
impl Deref for Hand<'_> {
    type Target = CpuHandle;

    fn deref(&self) -> &CpuHandle {
        self.cpu
    }
}

pub fn table(table: Pa) -> u64 {
    <Descriptor>::table(table).raw()
}
