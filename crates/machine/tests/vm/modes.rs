// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests of each mode, on a CPU of either kind. What they write by their own tables is where stage 1 and stage 2 map
//! it. What stage 2 takes away is gone, whatever granule stage 1 has.

use twofold_machine::guest_tables::TablesInRam;
use twofold_machine::passes::Passes;
use twofold_machine::program::Stage1Registers;
use twofold_machine::vm::{Cpu, Left, Vm};
use twofold_memory::{Backing, Frames, GuestMemory, Pages, Slot};
use twofold_stage2::fault::AccessKind;
use twofold_stage2::{Geometry, Ipa, Kib4, Platform, Unwatched, Vmid};
use twofold_workload::mode::{MODES, Mode};
use twofold_workload::pass::Pass;
use twofold_workload::stage1::{Layout, Leaves, Memory, Stage1};

use super::programs::{Op, PAGE, Script};
use super::scenarios::{MIB_2, PART, Room};

/// Bytes of RAM: at the upper end of the mode's physical addresses. The upper half is for tables.
const RAM_SIZE: u64 = 4 * MIB_2;
/// Bytes that the guest writes to: pages of all granules, and no multiple of a table's reach.
const DATA: u64 = 5 << 16;
/// The memory of a guest: huge pages for data and tables, and pages for stage-2 tables.
const SHARE: u64 = 4 * MIB_2;
/// The number of guests, each with memory of its own.
const GUESTS: u64 = 2 * 11;
/// The number of a room's parts that the guests need.
pub const PARTS: u64 = (GUESTS * SHARE).div_ceil(PART);
/// xFSC of a translation fault at level 3.
const TRANSLATION: u64 = 0b00_0111;

/// The modes that have tables.
fn modes() -> impl Iterator<Item = (Mode, Layout)> {
    [Leaves::Pages, Leaves::Largest].into_iter().flat_map(|leaves| {
        let supported = move |mode: Mode| Some((mode, Layout::new(&mode, mode.pa_bits.unwrap_or(44), leaves).ok()?));
        MODES.into_iter().filter_map(supported)
    })
}

/// A guest with its tables in its memory.
struct Stage1Guest {
    ram: Ipa,
    /// The address of its data, which ends with the mode's virtual addresses.
    va: u64,
    registers: Stage1Registers,
}

impl Stage1Guest {
    fn new<H: Platform + Clone>(room: &Room<'_, H>, layout: Layout, vmid: u16, part: u64) -> (Self, GuestMemory<H>) {
        let geometry = Geometry::new(Kib4, layout.pa_bits(), &room.features).unwrap();
        let mut frames = Frames::new(room.features);
        let share = u64::from(vmid - 1) * SHARE;
        frames.add(room.arena.donate_part(part * PART + share, SHARE).unwrap());
        let mut memory =
            GuestMemory::new(room.platform.clone(), geometry, Vmid::new(vmid), frames, Pages::Small).unwrap();
        let ram = Ipa::new((1 << layout.pa_bits()) - RAM_SIZE);
        memory.add_slot(Slot { range: ram..ram + RAM_SIZE, backing: Backing::Ram, writable: true }).unwrap();
        let mut tables = TablesInRam::new(&memory, ram + RAM_SIZE / 2..ram + RAM_SIZE);
        let stage1 = Stage1::new(layout, &mut tables).unwrap();
        let va = (1 << layout.va_bits()) - DATA;
        stage1.map(&mut tables, va, ram.raw(), DATA, Memory::Normal).unwrap();
        (Self { ram, va, registers: stage1.registers().into() }, memory)
    }

    /// A word in each page of 4 KiB, each with its own value.
    fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        let va = self.va;
        (0..DATA / PAGE).map(move |page| (va + page * PAGE + page % 512 * 8, !page))
    }
}

/// Every written word is where it should be, and nothing else is mapped.
pub fn what_is_written_is_found<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    let mut seen = 0;
    for (vmid, (mode, layout)) in (1..).zip(modes()) {
        let (guest, memory) = Stage1Guest::new(room, layout, vmid, part);
        let vm = Vm::new(memory);
        let pass = |(va, value)| Pass { value, ..Pass::writes(va, 1, 8) };
        let mut vcpu = room.vcpu(Passes::new(guest.words().map(pass).collect::<Vec<_>>())).with_stage1(guest.registers);
        assert_eq!(vm.run(cpu, &mut vcpu, |_| 0), Ok(Left::Ended), "{mode}");
        for (va, value) in guest.words() {
            let mut found = [0; 8];
            vm.memory().read(guest.ram + (va - guest.va), &mut found).unwrap();
            assert_eq!(u64::from_ne_bytes(found), value, "{mode}: {va:#x}");
        }
        let below = guest.va - layout.granule().size();
        let mut script: Vec<_> = guest.words().map(|(va, value)| Op::Load(va, value)).collect();
        script.extend(guest.words().map(|(va, value)| Op::Fetch(va, value)));
        script.extend([Op::Abort(AccessKind::Read, below, TRANSLATION), Op::Load(guest.va, !0)]);
        let mut vcpu = room.vcpu(Script::new(&script)).with_stage1(guest.registers);
        assert_eq!(vm.run(cpu, &mut vcpu, |_| 0), Ok(Left::Ended), "{mode}");
        vm.destroy();
        seen += 1;
    }
    assert_eq!(seen, GUESTS);
}

/// Stage 2 takes a page while the guest runs. It is gone, wherever it lies in a page of the guest's. A page with a
/// table is gone too.
pub fn what_is_taken_is_gone<C: Cpu>(room: &Room<'_, C::Host>, cpu: &C, part: u64) {
    for (vmid, (mode, layout)) in (1..).zip(modes()) {
        let (guest, memory) = Stage1Guest::new(room, layout, vmid, part);
        let vm = Vm::new(memory);
        let all = || guest.words().map(|(va, value)| Op::Load(va, value));
        let mut script: Vec<_> = guest.words().map(|(va, value)| Op::Store(va, value)).collect();
        let rounds = [1, DATA / PAGE - 2, DATA / PAGE / 2];
        for page in rounds {
            script.extend(all());
            script.push(Op::Call([page; 4], 0));
            // The words are loaded in order: mapped pages are found, and the page that was taken faults.
            script.extend(all());
            script.push(Op::Call([u64::MAX; 4], 0));
        }
        let mapped = || vm.memory().counts().mapped;
        let mut before = [0; 4];
        let mut vcpu = room.vcpu(Script::new(&script)).with_stage1(guest.registers);
        let left = vm.run(cpu, &mut vcpu, |[page, ..]| {
            if page == u64::MAX {
                before[3] += 2;
                assert_eq!(mapped(), before, "{mode}: the page and the table's page, once each");
                return 0;
            }
            before = mapped();
            let root = Ipa::new(guest.registers.ttbr0);
            for gone in [guest.ram + page * PAGE, root + root_entry(&guest, &layout) / PAGE * PAGE] {
                let mut tables = vm.memory().tables();
                let pending = vm.memory().stage2().unmap(gone..gone + PAGE, &mut tables, Unwatched).unwrap();
                pending.complete().free(&mut tables);
            }
            0
        });
        assert_eq!(left, Ok(Left::Ended), "{mode}");
        vm.destroy();
    }
}

/// The offset in bytes of the root's entry for the guest's data, which is the last entry.
fn root_entry(guest: &Stage1Guest, layout: &Layout) -> u64 {
    let index_bits = layout.granule().shift() - 3;
    let below = (layout.va_bits() - layout.granule().shift() - 1) / index_bits * index_bits;
    (guest.va >> (layout.granule().shift() + below)) * 8
}
