// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenarios for one vCPU of a virtual machine, on a CPU of either mode.

use std::sync::Arc;

use twofold_machine::arena::Arena;
use twofold_machine::interrupts::{Interrupts, Line};
use twofold_machine::program::Stage1Registers;
use twofold_machine::vm::{Cpu, Left, RunError, Vcpu, Vm};
use twofold_memory::{Backing, Error, Frames, GuestMemory, Pages, Slot};
use twofold_stage2::fault::AccessKind;
use twofold_stage2::{Access, Attributes, Features, Geometry, Ipa, Kib4, Level, Pa, Platform, Vmid, Window};

use super::programs::{Op, PAGE, Script, WorkingSet};

pub const MIB_2: u64 = 2 << 20;
pub const RAM: Ipa = Ipa::new(0x4000_0000);
pub const RAM_SIZE: u64 = 8 * MIB_2;
const READ_ONLY: Ipa = Ipa::new(0x8000_0000);
const DEVICE: Ipa = Ipa::new(0x900_0000);
/// Mapped by the test, with hardware's records.
const TRACKED: Ipa = Ipa::new(0xc000_0000);
const NOWHERE: u64 = 0x1_0000_0000;

/// xFSC of a synchronous external abort.
const EXTERNAL: u64 = 0b01_0000;
/// xFSC of a translation fault at level 3.
const TRANSLATION: u64 = 0b00_0111;

/// A machine, whose memory is divided into parts for virtual machines.
pub struct Room<'a, H> {
    pub arena: &'a Arena,
    pub platform: H,
    pub features: Features,
    pub interrupts: fn() -> Interrupts,
}

/// Bytes of each part.
pub const PART: u64 = 16 * MIB_2;

impl<H: Platform + Clone> Room<'_, H> {
    /// The memory in part `part`, without its last 2 MiB: RAM, a read-only slot, and a device whose registers are in
    /// those 2 MiB.
    pub fn memory(&self, part: u64, vmid: u16, pages: Pages) -> GuestMemory<H> {
        let mut frames = Frames::new(self.features);
        frames.add(self.arena.donate_part(part * PART, PART - MIB_2).unwrap());
        let mut memory = self.empty(vmid, pages, frames);
        let slot = |start: Ipa, size, backing, writable| Slot { range: start..start + size, backing, writable };
        memory.add_slot(slot(RAM, RAM_SIZE, Backing::Ram, true)).unwrap();
        memory.add_slot(slot(READ_ONLY, 2 * MIB_2, Backing::Ram, false)).unwrap();
        memory.add_slot(slot(DEVICE, 2 * PAGE, Backing::Device(self.window(part)), true)).unwrap();
        memory
    }

    /// The last 2 MiB of a part, for devices and for frames that no slot has.
    pub fn window(&self, part: u64) -> Window {
        // SAFETY: this part of the arena is not donated, and only vCPUs and tests access it.
        unsafe { Window::new(self.behind(part), MIB_2) }
    }

    /// The last 2 MiB of a part.
    fn behind(&self, part: u64) -> Pa {
        self.arena.base() + (part * PART + PART - MIB_2)
    }

    /// Memory without slots.
    fn empty(&self, vmid: u16, pages: Pages, frames: Frames) -> GuestMemory<H> {
        let geometry = Geometry::new(Kib4, 40, &self.features).unwrap();
        GuestMemory::new(self.platform.clone(), geometry, Vmid::new(vmid), frames, pages).unwrap()
    }

    pub fn vcpu<P>(&self, program: P) -> Vcpu<P> {
        Vcpu::new(program, Arc::new((self.interrupts)()))
    }

    /// Runs a guest with these operations.
    fn script<C: Cpu<Host = H>>(&self, vm: &Vm<H>, cpu: &C, operations: &[Op]) {
        let mut vcpu = self.vcpu(Script::new(operations));
        assert_eq!(vm.run(cpu, &mut vcpu, |_| 0), Ok(Left::Ended));
    }
}

/// Accesses to each slot, outside of the slots, and without permission.
pub fn slots<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    use AccessKind::{Execute, Read, Write};
    for (vmid, part, pages) in [(1, part, Pages::Small), (2, part + 1, Pages::Largest)] {
        let memory = room.memory(part, vmid, pages);
        memory.write(READ_ONLY + (PAGE - 8), &[7; 16]).unwrap();
        let vm = Vm::new(memory);
        let (read_only, device) = (READ_ONLY.raw(), DEVICE.raw());
        let sevens = u64::from_ne_bytes([7; 8]);
        room.script(
            &vm,
            cpu,
            &[
                Op::Clean(NOWHERE),
                Op::Clean(read_only),
                Op::Clean(NOWHERE),
                Op::Abort(Read, NOWHERE, EXTERNAL),
                Op::Abort(Write, read_only, EXTERNAL),
                Op::Load(read_only + PAGE - 8, sevens),
                Op::Abort(Write, read_only + PAGE - 8, EXTERNAL),
                Op::Fetch(read_only + PAGE, sevens),
                Op::Abort(Write, read_only + PAGE, EXTERNAL),
                Op::Load(read_only + PAGE, sevens),
                Op::Abort(Read, NOWHERE, EXTERNAL),
                Op::Abort(Execute, NOWHERE, EXTERNAL),
                Op::Abort(Execute, device, EXTERNAL),
                Op::Store(device + 8, 42),
                Op::Abort(Execute, device, EXTERNAL),
                Op::Store(device + PAGE, 43),
                Op::Load(device + 8, 42),
                Op::Abort(Read, device + 2 * PAGE, EXTERNAL),
                Op::Load(RAM.raw() + RAM_SIZE - 8, 0),
                Op::Abort(Read, RAM.raw() + RAM_SIZE, EXTERNAL),
            ],
        );
        let registers = room.behind(part);
        assert_eq!(room.arena.load(registers + 8), Some(42));
        assert_eq!(room.arena.load(registers + PAGE), Some(43));
        vm.destroy();
    }
}

/// A program that handles no aborts stops at its first abort, repeatedly. A kick at that point is not lost.
pub fn own_faults<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    let vm = Vm::new(room.memory(part, 2, Pages::Small));
    let mut vcpu = room.vcpu(Script::new(&[Op::Store(RAM.raw(), 5), Op::Load(NOWHERE, 1), Op::Load(RAM.raw(), 5)]));
    for _ in 0..2 {
        let Ok(Left::Fault(abort)) = vm.run(cpu, &mut vcpu, |_| 0) else { panic!("it went on") };
        assert_eq!((abort.esr, abort.far), (0x25 << 26 | 1 << 25 | EXTERNAL, NOWHERE));
        vcpu.interrupts().kick();
        assert_eq!(vm.run(cpu, &mut vcpu, |_| 0), Ok(Left::Kicked));
    }
    vm.destroy();
}

/// A guest executes what a loader wrote, and what it wrote itself.
pub fn code<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    for (vmid, part, pages) in [(3, part, Pages::Small), (4, part + 1, Pages::Largest)] {
        let memory = room.memory(part, vmid, pages);
        memory.write(RAM + 16, &0xd65f_03c0_u64.to_ne_bytes()).unwrap();
        let vm = Vm::new(memory);
        let (loaded, written, both) = (RAM.raw() + 16, RAM.raw() + MIB_2 + 16, RAM.raw() + 16 + 8);
        room.script(
            &vm,
            cpu,
            &[
                Op::Fetch(loaded, 0xd65f_03c0),
                Op::Store(written, 0xd503_201f),
                Op::Load(written, 0xd503_201f),
                Op::Fetch(written, 0xd503_201f),
                Op::Store(both, 1),
                Op::Fetch(both, 1),
                Op::Load(loaded, 0xd65f_03c0),
            ],
        );
        vm.destroy();
    }
}

/// Each call is answered once, and the hypervisor gets its arguments.
pub fn hypercalls<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    let vm = Vm::new(room.memory(part, 5, Pages::Small));
    let calls: Vec<_> = (0..5).flat_map(|n| [Op::Call([n, 2, 3, 4], 10 * n), Op::Store(RAM.raw(), n)]).collect();
    let mut vcpu = room.vcpu(Script::new(&calls));
    let mut asked = Vec::new();
    let left = vm.run(cpu, &mut vcpu, |arguments| {
        asked.push(arguments);
        arguments[0] * 10
    });
    assert_eq!(left, Ok(Left::Ended));
    assert_eq!(asked, [0, 1, 2, 3, 4].map(|n| [n, 2, 3, 4]));
    vm.destroy();
}

/// The timer and other lines wake a waiting vCPU. So does a kick, after which the wait resumes.
pub fn interrupts<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    let vm = Vm::new(room.memory(part, 6, Pages::Small));
    room.script(&vm, cpu, &[Op::Timer(100), Op::Wait(1 << 27), Op::Timer(0), Op::Wait(1 << 27)]);

    let mut vcpu = room.vcpu(Script::new(&[Op::Wait(1 << 5), Op::Call([0; 4], 0), Op::Wait(1 << 6)]));
    let interrupts = Arc::clone(vcpu.interrupts());
    interrupts.kick();
    assert_eq!(vm.run(cpu, &mut vcpu, |_| 0), Ok(Left::Kicked));
    interrupts.raise(Line::new(5).unwrap());
    let left = vm.run(cpu, &mut vcpu, |_| {
        interrupts.raise(Line::new(6).unwrap());
        0
    });
    assert_eq!(left, Ok(Left::Ended));
    vm.destroy();
}

/// A guest's stage-1 tables: two address spaces, each with a root and one table at each level below. Blocks of 1 GiB in
/// the root map a part of the IPA space to itself. The pages are from `VA` on.
struct OwnTables {
    tables: u64,
    data: u64,
}

const VA: u64 = 0x20_0000;
/// Normal memory, inner shareable, not global.
const LEAF: u64 = 0b11 | 3 << 8 | 1 << 11;
const ACCESSED: u64 = 1 << 10;
const PROTECTED: u64 = 1 << 7;
const DBM: u64 = 1 << 51;

impl OwnTables {
    /// The table of an address space at this level.
    fn table(&self, space: u64, level: u64) -> u64 {
        self.tables + (space * 3 + level - 1) * PAGE
    }

    fn entry(&self, space: u64, page: u64) -> u64 {
        self.table(space, 3) + page * 8
    }

    fn page(&self, space: u64, page: u64) -> u64 {
        self.data + (space * 3 + page) * PAGE
    }

    /// Makes the tables, with the MMU off.
    fn make(&self) -> Vec<Op> {
        const TABLE: u64 = 0b11;
        const BLOCK: u64 = 0b01 | 3 << 8;
        let mut operations = Vec::new();
        for space in [0, 1] {
            operations.push(Op::Store(self.table(space, 1), self.table(space, 2) | TABLE));
            for gib in 1..4 {
                operations.push(Op::Store(self.table(space, 1) + gib * 8, gib << 30 | BLOCK | ACCESSED));
            }
            operations.push(Op::Store(self.table(space, 2) + (VA >> 21) * 8, self.table(space, 3) | TABLE));
            for (page, attributes) in [ACCESSED, 0, ACCESSED | PROTECTED | DBM].into_iter().enumerate() {
                let raw = self.page(space, page as u64) | LEAF | attributes;
                operations.push(Op::Store(self.entry(space, page as u64), raw));
            }
        }
        operations
    }

    /// Turns the MMU on in an address space: 39 bits in the lower half, none in the upper, 48 bits of IPA, HA and HD.
    fn enter(&self, space: u64) -> Op {
        const TCR: u64 = 25 | 0b0101 << 8 | 3 << 12 | 1 << 23 | 5 << 32 | 1 << 39 | 1 << 40;
        let ttbr0 = self.table(space, 1) | (space + 1) << 48;
        Op::Stage1(Stage1Registers { sctlr: 1, tcr: TCR, ttbr0, ttbr1: 0, mair: 0xff })
    }

    /// Checks a page's state in its descriptor.
    fn has(&self, space: u64, page: u64, bits: u64, set: bool) -> Op {
        Op::LoadBits(self.entry(space, page), bits, if set { bits } else { 0 })
    }
}

/// Both stages; address spaces; hardware's updates; the guest's own invalidation.
pub fn stage1<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    for (vmid, part, pages) in [(7, part, Pages::Small), (8, part + 1, Pages::Largest)] {
        let vm = Vm::new(room.memory(part, vmid, pages));
        let own = OwnTables { tables: RAM.raw() + MIB_2 - 4 * PAGE, data: RAM.raw() + 2 * MIB_2 - 2 * PAGE };
        let off = Op::Stage1(Stage1Registers::default());
        let mut operations = own.make();
        operations.extend([
            own.enter(0),
            Op::Store(VA, 0xa1),
            own.enter(1),
            Op::Load(VA, 0),
            Op::Store(VA, 0xb1),
            own.enter(0),
            Op::Load(VA, 0xa1),
            // AF.
            own.has(0, 1, ACCESSED, false),
            Op::Load(VA + PAGE, 0),
            own.has(0, 1, ACCESSED, true),
            own.has(1, 1, ACCESSED, false),
            // Dirty state.
            Op::Load(VA + 2 * PAGE, 0),
            own.has(0, 2, PROTECTED, true),
            Op::Store(VA + 2 * PAGE + 8, 0xa3),
            own.has(0, 2, PROTECTED, false),
            own.has(1, 2, PROTECTED, true),
            // Faults: stage-1 faults, and accesses that stage 2 refuses.
            Op::Abort(AccessKind::Read, VA + 3 * PAGE, TRANSLATION),
            Op::Abort(AccessKind::Write, READ_ONLY.raw() + 8, EXTERNAL),
            Op::Fetch(VA, 0xa1),
            // A page is replaced, first by nothing.
            Op::Store(own.entry(0, 0), 0),
            Op::Invalidate,
            Op::Abort(AccessKind::Read, VA, TRANSLATION),
            Op::Store(own.entry(0, 0), own.page(1, 0) | LEAF | ACCESSED),
            Op::Load(VA, 0xb1),
            off,
            Op::Load(own.page(0, 0), 0xa1),
            Op::Load(own.page(1, 0), 0xb1),
            Op::Load(own.page(0, 2) + 8, 0xa3),
        ]);
        room.script(&vm, cpu, &operations);
        vm.destroy();
    }
}

/// A vCPU's stage-1 registers are its own, and are restored when it resumes.
pub fn registers_go_along<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    let vm = Vm::new(room.memory(part, 16, Pages::Small));
    let own = OwnTables { tables: RAM.raw(), data: RAM.raw() + 6 * PAGE };
    room.script(&vm, cpu, &own.make());
    let program = |space: u64| {
        let write = [own.enter(space), Op::Store(VA, space), Op::Call([0; 4], 7)];
        let read = [Op::Load(VA, space), Op::Call([0; 4], 7), Op::Load(VA, space)];
        room.vcpu(Script::new(&[write, read].concat()))
    };
    let mut vcpus = [program(0), program(1)];
    for expected in [Left::Kicked, Left::Kicked, Left::Ended] {
        for vcpu in &mut vcpus {
            let interrupts = Arc::clone(vcpu.interrupts());
            let left = vm.run(cpu, vcpu, |_| {
                interrupts.kick();
                7
            });
            assert_eq!(left, Ok(expected));
        }
    }
    vm.destroy();
}

/// With hardware's records in stage 2, hardware's update of a guest's table is recorded as a write to the table's page.
pub fn stage1_updates_are_recorded<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    const PAGES: u64 = 12;
    let vm = Vm::new(room.memory(part, 9, Pages::Small));
    // Frames that belong to no slot.
    let offset = 64 * PAGE;
    let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    for page in 0..PAGES {
        let frame = room.window(part).part(offset + page * PAGE, PAGE).unwrap();
        let grant = vm.memory().stage2().open(frame, TRACKED + page * PAGE);
        let _ = grant.map(Level::L3, &tracked, &mut vm.memory().tables()).unwrap();
    }
    let dirty = || {
        let mut dirty = Vec::new();
        let memory = vm.memory();
        let range = TRACKED..TRACKED + PAGES * PAGE;
        let pending = memory.stage2().clean(range, &mut |marked| dirty.extend(marked.leaves(PAGE))).unwrap();
        let _ = pending.complete();
        dirty
    };
    let own = OwnTables { tables: TRACKED.raw(), data: TRACKED.raw() + 6 * PAGE };
    room.script(&vm, cpu, &own.make());
    assert_eq!(dirty(), [0, 1, 2, 3, 4, 5].map(|page| TRACKED + page * PAGE), "the tables");
    let (table, data) = (Ipa::new(own.table(0, 3)), Ipa::new(own.page(0, 2)));
    let enter = own.enter(0);
    room.script(&vm, cpu, &[enter, Op::Load(VA, 0)]);
    assert_eq!(dirty(), [], "nothing is written");
    room.script(&vm, cpu, &[enter, Op::Load(VA + PAGE, 0)]);
    assert_eq!(dirty(), [table], "the access flag");
    room.script(&vm, cpu, &[enter, Op::Load(VA + PAGE, 0), Op::Load(VA + 2 * PAGE, 0)]);
    assert_eq!(dirty(), [], "all of that was set");
    room.script(&vm, cpu, &[enter, Op::Store(VA + 2 * PAGE, 1)]);
    assert_eq!(dirty(), [table, data], "the dirty state, and the write itself");
    vm.destroy();
}

/// If stage 2 has removed write access, hardware's update faults, and is handled as a write.
pub fn stage1_updates_fault_as_writes<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    let vm = Vm::new(room.memory(part, 10, Pages::Small));
    let own = OwnTables { tables: RAM.raw(), data: RAM.raw() + 6 * PAGE };
    room.script(&vm, cpu, &own.make());
    let enter = own.enter(0);
    room.script(&vm, cpu, &[enter, Op::Load(VA, 0)]);
    let writable = || -> Vec<u64> {
        let memory = vm.memory();
        let pages = (0..12).map(|page| RAM + page * PAGE);
        let writable = |ipa: &Ipa| memory.stage2().look_up(*ipa).is_some_and(|leaf| leaf.descriptor.access().write);
        pages.filter(writable).map(Ipa::raw).collect()
    };
    let protect = || {
        let memory = vm.memory();
        let _ = memory.stage2().write_protect(RAM..RAM + RAM_SIZE).unwrap().complete();
    };
    protect();
    room.script(&vm, cpu, &[enter, Op::Load(VA + PAGE, 0)]);
    assert_eq!(writable(), [own.table(0, 3), own.page(0, 1)], "the table, and the page that was not mapped before");
    protect();
    room.script(
        &vm,
        cpu,
        &[enter, Op::Load(VA + PAGE, 0), Op::Store(VA + 2 * PAGE, 1), own.has(0, 2, PROTECTED, false)],
    );
    assert_eq!(writable(), [own.table(0, 3), own.page(0, 2)]);
    vm.destroy();
}

/// The two kinds of frames that a guest's memory asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Table,
    HugePage,
}

/// A memory that gets its frames one by one, in part `part`.
struct Drops<'a, 'r, H> {
    room: &'a Room<'r, H>,
    part: u64,
    tables: u64,
    huge_pages: u64,
}

impl<H> Drops<'_, '_, H> {
    fn add(&mut self, unit: Unit, frames: &mut Frames) {
        let (offset, size) = match unit {
            // The first two pages are the root.
            Unit::Table => ((2 + self.tables) * PAGE, PAGE),
            Unit::HugePage => ((1 + self.huge_pages) * MIB_2, MIB_2),
        };
        match unit {
            Unit::Table => self.tables += 1,
            Unit::HugePage => self.huge_pages += 1,
        }
        frames.add(self.room.arena.donate_part(self.part * PART + offset, size).unwrap());
    }
}

/// If a frame of either kind is missing, the run returns that error. The guest resumes once there is one.
pub fn out_of_frames<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    const HIGH: Ipa = Ipa::new(0x1_0000_0000);
    /// In three huge_pages, under two tables of level 2.
    fn program() -> Vec<Op> {
        let touched = [RAM, RAM + PAGE, RAM + (MIB_2 - 8), RAM + MIB_2, HIGH, HIGH + PAGE].map(Ipa::raw);
        let write = touched.iter().map(|va| Op::Store(*va, !va));
        write.chain(touched.iter().map(|va| Op::Load(*va, !va))).collect()
    }
    let empty = |drops: &Drops<'_, '_, C::Host>, vmid| {
        let mut frames = Frames::new(room.features);
        frames.add(room.arena.donate_part(drops.part * PART, 2 * PAGE).unwrap());
        let mut memory = room.empty(vmid, Pages::Small, frames);
        for start in [RAM, HIGH] {
            let slot = Slot { range: start..start + 2 * MIB_2, backing: Backing::Ram, writable: true };
            memory.add_slot(slot).unwrap();
        }
        Vm::new(memory)
    };
    let lacks = |left: Result<Left, RunError>| match left {
        Ok(Left::Ended) => None,
        Err(RunError::Memory { error: Error::NoFrames { .. }, .. }) => Some(Unit::HugePage),
        Err(RunError::Memory { error: Error::Stage2(twofold_stage2::Error::NoTablePage { .. }), .. }) => {
            Some(Unit::Table)
        }
        other => panic!("{other:?}"),
    };

    // One unit at a time, when it is missing.
    let mut asked = Vec::new();
    let mut drops = Drops { room, part, tables: 0, huge_pages: 0 };
    let vm = empty(&drops, 11);
    let mut vcpu = room.vcpu(Script::new(&program()));
    while let Some(unit) = lacks(vm.run(cpu, &mut vcpu, |_| 0)) {
        asked.push(unit);
        drops.add(unit, &mut vm.memory().frames());
    }
    use Unit::{HugePage, Table};
    assert_eq!(asked, [HugePage, Table, Table, HugePage, Table, HugePage, Table, Table]);
    vm.destroy();

    // The first `n` units, and then all others at once.
    for n in 0..asked.len() {
        let mut drops = Drops { room, part: part + 1 + n as u64, tables: 0, huge_pages: 0 };
        let vm = empty(&drops, 12 + n as u16);
        asked[..n].iter().for_each(|unit| drops.add(*unit, &mut vm.memory().frames()));
        let mut vcpu = room.vcpu(Script::new(&program()));
        assert_eq!(lacks(vm.run(cpu, &mut vcpu, |_| 0)), Some(asked[n]), "after {n}");
        assert_eq!(lacks(vm.run(cpu, &mut vcpu, |_| 0)), Some(asked[n]), "and again");
        asked[n..].iter().for_each(|unit| drops.add(*unit, &mut vm.memory().frames()));
        assert_eq!(lacks(vm.run(cpu, &mut vcpu, |_| 0)), None, "after {n} and then the others");
        let counts = vm.memory().counts();
        assert_eq!((counts.frames_zeroed, counts.tables_allocated), (6, 2 + 5));
        assert_eq!(vm.destroy().free(), 2 + 5 + 3 * MIB_2 / PAGE);
    }
}

/// Checks that memory has the last word that each vCPU of a working set wrote.
pub fn check_working_set<H: Platform>(room: &Room<'_, H>, vm: &Vm<H>, vcpus: &[Vcpu<WorkingSet>]) {
    let memory = vm.memory();
    for WorkingSet { start, pages, rounds, vcpu, .. } in vcpus.iter().map(Vcpu::program) {
        for page in 0..*pages {
            let set = WorkingSet::new(*start, *pages, *rounds, (*vcpu, 0));
            let at = Ipa::new(set.word(page, *vcpu));
            let leaf = memory.stage2().look_up(at).expect("all of it is mapped");
            let found = room.arena.load(leaf.descriptor.address() + (at - leaf.ipa));
            assert_eq!(found, Some(WorkingSet::value(*vcpu, page, rounds - 1)), "page {page}, vCPU {vcpu}");
        }
    }
}
