// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests in the fast mode: they read what they wrote, and cannot reach what the engine unmapped.

mod stage1;

use std::sync::Arc;
use std::thread;

use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{CpusError, FastMachine, FastPlatform, FastVcpu, VcpuError};
use twofold_machine::interrupts::{Interrupts, Line};
use twofold_machine::program::{Abort, Ended, Exit, Instructions, Program};
use twofold_memory::dirty::{CoalescedRange, DirtyPages, LogOptions, Tracker};
use twofold_memory::{Answer, Frames, GuestFault, GuestMemory, Pages, Slot};
use twofold_stage2::fault::{AccessKind, Fault, FaultKind, ipa_from_hpfar, ipa_from_par};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::tlb::single_operand;
use twofold_stage2::{
    Access, Attributes, Features, Geometry, Ipa, Kib4, Level, Pa, Platform, Run, Stage2, TablePage, TableSource,
    Unwatched, Vmid, Window,
};

const PAGE: u64 = 4096;
const MIB_2: u64 = 2 << 20;
const RAM: Ipa = Ipa::new(0x4000_0000);

/// The features that make most TLB and cache maintenance unnecessary.
const FEATURES: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_zero_block(64);

fn machine(cpus: usize) -> Arc<FastMachine> {
    let arena = Arena::new(&ArenaOptions::new(32 << 20, Backing::Anonymous)).unwrap();
    FastMachine::new(Arc::new(arena), FEATURES, cpus).unwrap()
}

/// Tables without slots, for operations that only the engine has.
struct BareTables {
    machine: Arc<FastMachine>,
    stage2: Stage2<FastPlatform>,
    tables: Source,
}

struct Source {
    rest: Option<Run>,
    free: Vec<TablePage>,
}

impl TableSource for Source {
    fn take(&mut self) -> Option<TablePage> {
        self.free.pop().or_else(|| {
            let (page, rest) = self.rest.take()?.split_at(PAGE).ok()?;
            self.rest = Some(rest);
            page.into_table(&FEATURES).ok()
        })
    }

    fn give(&mut self, page: TablePage) {
        self.free.push(page);
    }
}

/// A frame for guests; the tables are below it.
fn frame(number: u64) -> Pa {
    Pa::new(0x4000_0000 + 4 * MIB_2 + number * PAGE)
}

impl BareTables {
    fn new(features: Features) -> Self {
        Self::on(&FastMachine::new(Arc::clone(machine(1).arena()), features, 2).unwrap(), features, 1)
    }

    /// The guest with this VMID, which has tables of its own.
    fn on(machine: &Arc<FastMachine>, features: Features, vmid: u16) -> Self {
        let geometry = Geometry::new(Kib4, 40, &features).unwrap();
        let first = u64::from(vmid - 1) * 64;
        let part = |first: u64, pages: u64| machine.arena().donate_part(first * PAGE, pages * PAGE).unwrap().into_run();
        let root = part(first, 2).into_root(&geometry).unwrap();
        let platform = FastPlatform(Arc::clone(machine));
        let stage2 = Stage2::new(platform, features, geometry, Vmid::new(vmid), root).unwrap();
        let tables = Source { rest: Some(part(first + 2, 62)), free: Vec::new() };
        Self { machine: Arc::clone(machine), stage2, tables }
    }

    fn map(&mut self, ipa: Ipa, pa: Pa, level: Level, attributes: &Attributes) {
        // SAFETY: the tests map frames of the arena that are not donated.
        let window = unsafe { Window::new(pa, Kib4.span(level)) };
        let _ = self.stage2.open(window, ipa).map(level, attributes, &mut self.tables).unwrap();
    }

    fn unmap(&mut self, ipa: Ipa, size: u64) {
        let pending = self.stage2.unmap(ipa..ipa + size, &mut self.tables, Unwatched).unwrap();
        pending.complete().free(&mut self.tables);
    }

    fn vcpu(&self, cpu: usize) -> FastVcpu {
        let registers = (self.stage2.vttbr(), self.stage2.vtcr());
        FastVcpu::new(&self.machine, cpu, registers, Arc::new(Interrupts::new())).unwrap()
    }

    /// The address of the leaf of `ipa`, found by its value among the tables. For changes that bypass the engine.
    fn entry(&self, ipa: Ipa) -> Pa {
        let raw = self.stage2.look_up(ipa).unwrap().descriptor.raw();
        let words = (0..4 * MIB_2 / 8).map(|word| Pa::new(0x4000_0000 + word * 8));
        let mut found = words.filter(|pa| self.machine.arena().load(*pa) == Some(raw));
        let entry = found.next().unwrap();
        assert_eq!(found.next(), None);
        entry
    }
}

fn ram() -> Attributes {
    Attributes::ram(Access::READ_WRITE)
}

fn fault(exit: Exit) -> Option<(FaultKind, AccessKind, u8)> {
    let Exit::Abort(abort) = exit else { panic!("{exit:?}") };
    Fault::from_syndrome(abort.esr).map(|fault| (fault.kind, fault.access, fault.level.raw()))
}

/// Writes a word into each page, reads it back, and executes it. It keeps its state from exit to exit.
struct Toucher {
    pages: u64,
    at: u64,
}

impl Program for Toucher {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.at < 3 * self.pages {
            let (round, page) = (self.at / self.pages, self.at % self.pages);
            let va = RAM.raw() + page * PAGE + page % 512 * 8;
            match round {
                0 => cpu.store(va, !page)?,
                1 => assert_eq!(cpu.load(va)?, !page),
                _ => assert_eq!(cpu.fetch(va)?, !page),
            }
            self.at += 1;
        }
        Ok(Ended)
    }
}

/// A fault is handled as at EL2: syndrome, address, answer.
#[test]
fn a_guest_finds_what_it_wrote_wherever_it_was_mapped() {
    const TOUCHED: u64 = 3000;
    for pages in [Pages::Small, Pages::Largest] {
        let machine = machine(1);
        let mut frames = Frames::new(FEATURES);
        frames.add(machine.arena().donate());
        let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
        let platform = FastPlatform(Arc::clone(&machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, pages).unwrap();
        let range = RAM..RAM + 8 * MIB_2;
        memory.add_slot(Slot { range, backing: twofold_memory::Backing::Ram, writable: true }).unwrap();
        let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
        let mut vcpu = FastVcpu::new(&machine, 0, registers, Arc::new(Interrupts::new())).unwrap();
        let mut program = Toucher { pages: TOUCHED, at: 0 };
        let mut faults = [0; 4];
        loop {
            let abort = match vcpu.run(&mut program) {
                Ok(Ended) => break,
                Err(Exit::Abort(abort)) => abort,
                Err(exit) => panic!("{exit:?}"),
            };
            let fault = Fault::from_syndrome(abort.esr).unwrap();
            let ipa = if fault.hpfar_is_valid() {
                ipa_from_hpfar(abort.hpfar)
            } else {
                ipa_from_par(vcpu.translate_stage1(abort.far)).unwrap()
            };
            assert_eq!(ipa.raw(), abort.far & !(PAGE - 1), "stage 1 is off");
            let Fault { kind, access, .. } = fault;
            let answer = memory.fault(&GuestFault { ipa, kind, access }).unwrap();
            assert!(matches!(answer, Answer::Retry(_)), "{answer:?}");
            faults[kind as usize] += 1;
        }
        let leaves = if pages == Pages::Small { TOUCHED } else { (TOUCHED * PAGE).div_ceil(MIB_2) };
        assert_eq!(faults, [0, leaves, 0, leaves], "each leaf is mapped, and then made executable");
        for page in [0, TOUCHED - 1] {
            let leaf = memory.stage2().look_up(RAM + page * PAGE).unwrap();
            let pa = leaf.descriptor.address() + (RAM + page * PAGE - leaf.ipa) + page % 512 * 8;
            assert_eq!(machine.arena().load(pa), Some(!page));
        }
    }
}

/// Sparse memory has no records, so it cannot hold tables. A guest's slot may have it, in blocks of 1 GiB.
/// A virtqueue's indices are 2 and 4 bytes, at multiples of 2 and of 4. A thread that reads one while another writes it sees
/// the old or the new one, never half of each.
#[test]
fn an_aligned_access_is_whole() {
    const ROUNDS: u32 = 200_000;
    let machine = machine(1);
    let run = machine.arena().donate_part(0, PAGE).unwrap().into_run();
    for (width, offset) in [(2, 2), (2, 6), (2, 4), (4, 4), (8, 8)] {
        let (run, machine) = (&run, &machine);
        thread::scope(|scope| {
            scope.spawn(move || {
                let platform = FastPlatform(Arc::clone(machine));
                for round in 0..ROUNDS {
                    run.write(&platform, offset, &[0, 0xff][round as usize % 2..][..1].repeat(width));
                }
            });
            let platform = FastPlatform(Arc::clone(machine));
            for _ in 0..ROUNDS {
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..width];
                run.read(&platform, offset, bytes);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:x?} at {offset}");
            }
        });
    }
}

#[test]
fn a_guest_is_given_more_than_the_machine_has() {
    const GIB: u64 = 1 << 30;
    let options = ArenaOptions { sparse: 4 * GIB, ..ArenaOptions::new(8 << 20, Backing::Anonymous) };
    let machine = FastMachine::new(Arc::new(Arena::new(&options).unwrap()), FEATURES, 1).unwrap();
    let mut frames = Frames::new(FEATURES);
    frames.add(machine.arena().donate());
    let free = frames.free();
    let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
    let platform = FastPlatform(Arc::clone(&machine));
    let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Largest).unwrap();
    // The slot's memory starts at a multiple of 1 GiB, so that blocks of 1 GiB fit.
    let sparse = machine.arena().donate_sparse().unwrap().into_run();
    let before = Pa::new(2 * GIB) - sparse.pa();
    let (_, behind) = sparse.split_at(before).unwrap();
    let (frames, _) = behind.split_at(2 * GIB).unwrap();
    assert_eq!((frames.pa(), frames.size()), (Pa::new(2 * GIB), 2 * GIB));
    let backing = twofold_memory::Backing::Preallocated { frames, largest: Level::L1 };
    let slot = memory.add_slot(Slot { range: RAM..RAM + 2 * GIB, backing, writable: true }).unwrap();
    let write = |vcpu: &mut FastVcpu, at: u64| {
        let mut faults = 0;
        while let Err(exit) = vcpu.store(RAM.raw() + at, at) {
            let (kind, access, _) = fault(exit).unwrap();
            let answer = memory.fault(&GuestFault { ipa: RAM + at, kind, access }).unwrap();
            assert!(matches!(answer, Answer::Retry(_)), "{answer:?}");
            faults += 1;
        }
        faults
    };
    let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
    let mut vcpu = FastVcpu::new(&machine, 0, registers, Arc::new(Interrupts::new())).unwrap();
    let places = [GIB + 5 * PAGE, 0, GIB - 8, 2 * GIB - PAGE];
    assert_eq!(places.map(|at| write(&mut vcpu, at)), [1, 1, 0, 0]);
    let log = memory.dirty_log(slot).unwrap();
    log.start(&LogOptions { all_dirty: false, chunk: 0, ..LogOptions::new(Tracker::Manual) }).unwrap();
    assert_eq!(places.map(|at| write(&mut vcpu, at)), [1; 4]);
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty).unwrap();
    let mut pages = places.map(|at| at / PAGE);
    pages.sort();
    assert_eq!(dirty.pages().collect::<Vec<_>>(), pages);
    log.stop().unwrap();
    assert_eq!(log.coalesce_range(0, 9), Ok(CoalescedRange { blocks: 2, next: None }));
    assert_eq!(places.map(|at| write(&mut vcpu, at)), [0; 4]);
    // Of the tables, only the root is left.
    assert_eq!(memory.frames().free(), free - 2);
}

#[test]
fn what_is_unmapped_is_gone_on_every_cpu_and_the_rest_is_not() {
    let mut guest = BareTables::new(FEATURES);
    for page in 0..3 {
        guest.map(RAM + page * PAGE, frame(page), Level::L3, &ram());
    }
    let mut vcpus = [guest.vcpu(0), guest.vcpu(1)];
    for vcpu in &mut vcpus {
        (0..3).for_each(|page| vcpu.store(RAM.raw() + page * PAGE, page).unwrap());
    }
    // The engine does not see this change, so no TLB is invalidated for it.
    guest.machine.arena().store(guest.entry(RAM + PAGE), 0).unwrap();
    guest.unmap(RAM, PAGE);
    for vcpu in &mut vcpus {
        let gone = vcpu.store(RAM.raw(), 9).unwrap_err();
        assert_eq!(fault(gone), Some((FaultKind::Translation, AccessKind::Write, 3)));
        assert_eq!(vcpu.load(RAM.raw() + PAGE), Ok(1), "an invalidation by address removes one page");
        assert_eq!(vcpu.load(RAM.raw() + 2 * PAGE), Ok(2));
    }
    guest.stage2.invalidate_all();
    for vcpu in &mut vcpus {
        assert!(vcpu.load(RAM.raw() + PAGE).is_err());
        assert_eq!(vcpu.load(RAM.raw() + 2 * PAGE), Ok(2));
    }
}

/// The operand of the invalidation has the block's level, or no level.
#[test]
fn a_block_goes_with_all_its_pages() {
    for features in [FEATURES, FEATURES.with_tlbi_level_hint(false).with_tlbi_range(false)] {
        let mut guest = BareTables::new(features);
        guest.map(RAM, Pa::new(0x4000_0000 + 4 * MIB_2), Level::L2, &ram());
        guest.map(RAM + MIB_2, frame(600), Level::L3, &ram());
        let mut vcpu = guest.vcpu(0);
        let touched = [0, 1, 200, 511, 512].map(|page| RAM.raw() + page * PAGE);
        for va in touched {
            vcpu.store(va, va).unwrap();
        }
        guest.unmap(RAM, MIB_2);
        for va in &touched[..4] {
            let gone = fault(vcpu.load(*va).unwrap_err());
            assert_eq!(gone, Some((FaultKind::Translation, AccessKind::Read, 2)), "{va:#x}");
        }
        assert_eq!(vcpu.load(touched[4]), Ok(touched[4]));
    }
}

/// The operand may have any address in the block, if it has the block's level.
#[test]
fn a_block_goes_by_an_address_in_its_middle() {
    let mut guest = BareTables::new(FEATURES);
    guest.map(RAM, Pa::new(0x4000_0000 + 4 * MIB_2), Level::L2, &ram());
    let mut vcpu = guest.vcpu(0);
    let touched = [0, 511].map(|page| RAM.raw() + page * PAGE);
    for va in touched {
        vcpu.store(va, va).unwrap();
    }
    let entry = guest.entry(RAM);
    guest.machine.arena().store(entry, 0).unwrap();
    let platform = guest.stage2.platform();
    platform.load_vttbr(guest.stage2.vttbr());
    platform.tlbi(Tlbi::Ipas2Le1Is, single_operand(RAM + 5 * PAGE, Some(Level::L2), Kib4));
    platform.dsb(Domain::Ish);
    for va in touched {
        assert!(vcpu.load(va).is_err(), "{va:#x}");
    }
}

/// With DBM, hardware records a write when the write walks the tables. A write that the TLB allows does not walk.
#[test]
fn a_write_is_recorded_after_the_flush_and_not_before() {
    let mut guest = BareTables::new(FEATURES);
    let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    guest.map(RAM, frame(0), Level::L3, &tracked);
    let dirty = |guest: &BareTables| guest.stage2.look_up(RAM).unwrap().descriptor.access().write;
    let mut vcpu = guest.vcpu(0);
    vcpu.load(RAM.raw()).unwrap();
    assert!(!dirty(&guest), "a read is recorded as a write");
    vcpu.store(RAM.raw(), 1).unwrap();
    assert!(dirty(&guest));

    let mut marked = Vec::new();
    let pending = guest.stage2.clean(RAM..RAM + PAGE, &mut |leaves| marked.extend(leaves.leaves(PAGE))).unwrap();
    assert_eq!(marked, [RAM]);
    vcpu.store(RAM.raw(), 2).unwrap();
    assert!(!dirty(&guest), "the TLB still allows it");
    let _ = pending.complete();
    vcpu.store(RAM.raw(), 3).unwrap();
    assert!(dirty(&guest));

    let _ = guest.stage2.write_protect(RAM..RAM + PAGE).unwrap().complete();
    let refused = vcpu.store(RAM.raw(), 4).unwrap_err();
    assert_eq!(fault(refused), Some((FaultKind::Permission, AccessKind::Write, 3)));
    assert_eq!(vcpu.load(RAM.raw()), Ok(3));
}

#[test]
fn an_access_sets_the_access_flag() {
    let mut guest = BareTables::new(FEATURES);
    guest.map(RAM, frame(0), Level::L3, &ram());
    let young = |guest: &BareTables| {
        let mut young = 0;
        guest.stage2.age(RAM..RAM + PAGE, &mut |_| young += 1).unwrap();
        young
    };
    young(&guest);
    assert_eq!(young(&guest), 0);
    let mut vcpu = guest.vcpu(0);
    vcpu.load(RAM.raw()).unwrap();
    assert_eq!(young(&guest), 1);
    vcpu.load(RAM.raw()).unwrap();
    assert_eq!(young(&guest), 0, "the TLB has it");
    guest.stage2.invalidate_all();
    vcpu.load(RAM.raw()).unwrap();
    assert_eq!(young(&guest), 1);
}

#[test]
fn one_guests_invalidations_leave_anothers_entries() {
    let mut first = BareTables::new(FEATURES);
    let mut second = BareTables::on(&first.machine, FEATURES, 2);
    first.map(RAM, frame(0), Level::L3, &ram());
    second.map(RAM, frame(1), Level::L3, &ram());
    let (mut a, mut b) = (first.vcpu(0), second.vcpu(1));
    a.store(RAM.raw(), 1).unwrap();
    b.store(RAM.raw(), 2).unwrap();
    assert_eq!((a.load(RAM.raw()), b.load(RAM.raw())), (Ok(1), Ok(2)));
    let entry = first.entry(RAM);
    first.machine.arena().store(entry, 0).unwrap();
    second.stage2.invalidate_all();
    assert_eq!(a.load(RAM.raw()), Ok(1), "still in its TLB");

    // A CPU that loads another guest keeps no entries.
    a.load_guest(second.stage2.vttbr(), second.stage2.vtcr()).unwrap();
    assert_eq!(a.load(RAM.raw()), Ok(2));
    a.load_guest(first.stage2.vttbr(), first.stage2.vtcr()).unwrap();
    assert!(a.load(RAM.raw()).is_err());
}

/// A local invalidation reaches only the CPU of the thread that executes it.
#[test]
fn local_invalidations_are_local() {
    struct Load;
    impl Program for Load {
        fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
            cpu.load(RAM.raw()).map(|_| Ended)
        }
    }
    let mut guest = BareTables::new(FEATURES);
    guest.map(RAM, frame(0), Level::L3, &ram());
    let (mut here, mut there) = (guest.vcpu(0), guest.vcpu(1));
    thread::scope(|scope| scope.spawn(|| there.run(&mut Load)).join().unwrap().unwrap());
    here.run(&mut Load).unwrap();
    let entry = guest.entry(RAM);
    guest.machine.arena().store(entry, 0).unwrap();
    let platform = guest.stage2.platform();
    platform.tlbi(Tlbi::VmallE1, 0);
    platform.dsb(Domain::Nsh);
    assert_eq!(here.load(RAM.raw()), Ok(0), "stage-2 entries stay");
    platform.tlbi(Tlbi::Ipas2E1, RAM.raw() >> 12);
    platform.dsb(Domain::Nsh);
    assert!(here.load(RAM.raw()).is_err());
    assert_eq!(there.load(RAM.raw()), Ok(0));
}

#[test]
fn an_address_that_is_odd_or_in_no_slot() {
    let mut guest = BareTables::new(FEATURES);
    guest.map(RAM, frame(0), Level::L3, &ram());
    guest.map(RAM + PAGE, Pa::new(0x900_0000), Level::L3, &Attributes::device());
    let mut vcpu = guest.vcpu(0);
    let status = |exit| match exit {
        Err(Exit::Stage1(abort)) => abort.esr & 0x3f,
        other => panic!("{other:?}"),
    };
    vcpu.load(RAM.raw()).unwrap();
    assert_eq!(status(vcpu.load(RAM.raw() + 4)), 0b10_0001, "alignment");
    assert_eq!(status(vcpu.load(RAM.raw() + PAGE)), 0b01_0000, "external abort");
    assert_eq!(status(vcpu.load(1 << 48)), 0b00_0000, "address size");
    assert_eq!(fault(vcpu.load(1 << 47).unwrap_err()), Some((FaultKind::Translation, AccessKind::Read, 0)));
}

struct Spin;

impl Program for Spin {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        loop {
            cpu.store(RAM.raw(), 1)?;
        }
    }
}

#[test]
fn a_kick_ends_a_run_and_no_more_than_that() {
    let mut guest = BareTables::new(FEATURES);
    guest.map(RAM, frame(0), Level::L3, &ram());
    let mut vcpu = guest.vcpu(0);
    let interrupts = Arc::clone(vcpu.interrupts());
    vcpu.store(RAM.raw(), 0).unwrap();
    interrupts.kick();
    assert_eq!(vcpu.store(RAM.raw(), 1), Err(Exit::Kicked), "though the TLB has the page");
    assert_eq!(vcpu.load(RAM.raw()), Ok(0));
    thread::scope(|scope| {
        let runs = scope.spawn(|| vcpu.run(&mut Spin));
        while guest.machine.arena().load(frame(0)) != Some(1) {
            thread::yield_now();
        }
        interrupts.kick();
        assert_eq!(runs.join().unwrap(), Err(Exit::Kicked));
    });
    assert_eq!(vcpu.store(RAM.raw(), 2), Ok(()), "a kick ends one run");
    interrupts.kick();
    assert_eq!(vcpu.wait_for_interrupt(), Err(Exit::Kicked));
}

#[test]
fn waiting_interrupts_and_calls() {
    let guest = BareTables::new(FEATURES);
    let mut vcpu = guest.vcpu(0);
    assert_eq!(vcpu.wait_for_interrupt(), Err(Exit::WaitForInterrupt));
    vcpu.interrupts().raise(Line::new(5).unwrap());
    assert_eq!(vcpu.wait_for_interrupt(), Ok(()));
    assert_eq!((vcpu.take_interrupts(), vcpu.take_interrupts()), (1 << 5, 0));
    assert_eq!(vcpu.hypercall([1, 2, 3, 4]), Err(Exit::Hypercall([1, 2, 3, 4])));
    vcpu.answer(9);
    assert_eq!(vcpu.hypercall([1, 2, 3, 4]), Ok(9));
    assert_eq!(vcpu.hypercall([1, 2, 3, 4]), Err(Exit::Hypercall([1, 2, 3, 4])), "the next call exits again");
}

#[test]
fn a_cpu_has_one_vcpu() {
    let guest = BareTables::new(FEATURES);
    let (vttbr, vtcr) = (guest.stage2.vttbr(), guest.stage2.vtcr());
    let ask = |index, vtcr| FastVcpu::new(&guest.machine, index, (vttbr, vtcr), Arc::new(Interrupts::new()));
    let first = ask(0, vtcr).unwrap();
    assert_eq!(ask(0, vtcr).unwrap_err(), VcpuError::Taken { index: 0 });
    assert_eq!(ask(2, vtcr).unwrap_err(), VcpuError::NoCpu { index: 2, cpus: 2 });
    assert!(matches!(ask(1, 0).unwrap_err(), VcpuError::Registers { what: "VTCR_EL2", .. }));
    drop(first);
    ask(0, vtcr).unwrap();
}

#[test]
fn more_cpus_than_make_sense_are_refused() {
    let arena = Arc::new(Arena::new(&ArenaOptions::new(MIB_2, Backing::Anonymous)).unwrap());
    let error = FastMachine::new(Arc::clone(&arena), FEATURES, 1000).unwrap_err();
    assert!(error.most <= 64 && error.most <= 8 * error.available, "{error}");
    assert_eq!(FastMachine::new(Arc::clone(&arena), FEATURES, error.most).unwrap().cpus(), error.most);
    assert_eq!(CpusError::check(error.most), Ok(()));
    assert!(FastMachine::new(arena, FEATURES, 0).is_err());
}
