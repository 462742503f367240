// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's own tables in unreadable memory: EL2 survives its walk of them, and the guest gets the same abort as from
//! hardware.

use twofold_hypervisor::abort::{self, Located};
use twofold_hypervisor::sysreg::isb;
use twofold_hypervisor::translate::{Translation, translate};
use twofold_hypervisor::{read_sysreg, write_sysreg};
use twofold_memory::{Answer, Pages};
use twofold_stage2::{Ipa, Pa};

use super::staleness::{Seen, both_ways, seen_if_gone};
use crate::agent::Command;
use crate::check::{Failure, Outcome};
use crate::demand::{AGENT, Demand, RAM};
use crate::exit::{Exception, Exit, Stopped};
use crate::guest_mmu::{self, AGENT_VA, entry};
use crate::machine::{BLOCK_2M, Machine, PAGE};
use crate::omit::LeftOut;

tests!(
    stage1_walk::el2_survives_an_abort_of_its_own_walk,
    stage1_walk::the_guest_gets_the_abort_of_el2s_walk_as_from_hardware,
    stage1_walk::a_walk_into_nothing_is_an_abort_of_stage_1s_level,
    stage1_walk::a_translation_leaves_the_guests_registers_alone,
    stage1_walk::tables_that_changed_meanwhile_are_walked_anew,
    stage1_walk::a_tlb_conflict_empties_the_tlb,
);

/// The guest's tables of levels 1, 2 and 3, in this order.
const TABLES: Ipa = Ipa::new(RAM.raw() + 0x10_0000);
/// A virtual address that translates to [`RAM`].
const VA: u64 = 0x4_2000;
/// The guest physical address of a page where no device responds.
const HOLE: Ipa = Ipa::new(0x0c00_0000);
/// An address without a slot.
const NOWHERE: Ipa = Ipa::new(0x20_0000_0000);

/// Addresses whose walk reads from a given table at level 1, 2 and 3.
const PATHS: [(i8, u64); 3] = [(1, 0xffff_ff80_0000_0118), (2, 0x4000_0118), (3, 0x20_0118)];

/// A guest with its MMU on, and its tables in RAM.
struct Paged {
    guest: Demand,
}

impl Paged {
    fn new(machine: &mut Machine) -> Outcome<Self> {
        // An earlier guest may have left the MMU on.
        guest_mmu::turn_off();
        let mut this = Self { guest: Demand::new(machine, Pages::Small, BLOCK_2M)? };
        this.put(1, 0, (TABLES + PAGE).raw() | entry::TABLE)?;
        this.put(2, 0, (TABLES + 2 * PAGE).raw() | entry::TABLE)?;
        this.put(3, AGENT_VA / PAGE, AGENT.raw() | entry::ACCESSED | entry::READ_ONLY | entry::PAGE)?;
        this.put(3, VA / PAGE, RAM.raw() | entry::ACCESSED | entry::PAGE)?;
        guest_mmu::turn_on(this.guest.memory.stage2().features());
        // SAFETY: the register belongs to the guest, which is not running.
        unsafe { write_sysreg!(TTBR0_EL1, TABLES.raw()) };
        isb();
        this.guest.agent.move_to(AGENT_VA);
        this.guest.memory.stage2().invalidate_all();
        this.guest.memory.write(RAM, &21_u64.to_le_bytes())?;
        check_eq!(this.guest.load(Ipa::new(VA))?.end, Ok(21), "a load by the guest's tables");
        Ok(this)
    }

    /// Writes an entry of the table of `level`.
    fn put(&mut self, level: u64, index: u64, value: u64) -> Outcome {
        let at = TABLES + (level - 1) * PAGE + index * 8;
        Ok(self.guest.memory.write(at, &value.to_le_bytes())?)
    }

    /// Makes the walk of each of [`PATHS`] read from the page at `table`.
    fn lead_to(&mut self, table: Ipa) -> Outcome {
        guest_mmu::turn_upper_half_on(table);
        self.put(1, 1, table.raw() | entry::TABLE)?;
        self.put(2, 1, table.raw() | entry::TABLE)?;
        self.guest.memory.stage2().invalidate_all();
        Ok(())
    }

    /// The same with a page of a device that refuses reads: after the last redistributor.
    fn lead_to_hole(&mut self, machine: &Machine) -> Outcome {
        let gicr = machine.board.gicr.last().ok_or_else(|| Failure::new("no redistributors"))?;
        self.guest.add_device(HOLE..HOLE + PAGE, Pa::new(gicr.end - PAGE))?;
        self.lead_to(HOLE)
    }

    /// Makes stage 2 map the page that the walk for `va` reads. The guest's own load faults on it, and is not resumed.
    fn stop_at(&mut self, va: u64) -> Outcome<Stopped> {
        let Err(Exit::Fault(stopped)) = self.guest.agent.load(va) else {
            return Err(Failure::new("a walk into an unmapped page succeeded"));
        };
        let answer = self.guest.answer(&stopped)?;
        check!(matches!(answer, Answer::Retry(_)), "the walk's page: {answer:?}");
        Ok(stopped)
    }

    /// Locates the page of a load's permission fault, as EL2 does.
    fn locate(&mut self, va: u64) -> Located {
        const LOAD_REFUSED: u64 = 0x24 << 26 | 1 << 25 | 0x0f;
        abort::locate(&self.guest.memory, self.guest.agent.context(), LOAD_REFUSED, va)
    }
}

fn exception(end: Result<u64, Exit>) -> Outcome<Exception> {
    match end {
        Err(Exit::Exception(exception)) => Ok(exception),
        end => Err(Failure::new(alloc::format!("expected an exception in the guest, found {end:x?}"))),
    }
}

fn el2_survives_an_abort_of_its_own_walk(mut machine: Machine) -> Outcome {
    let mut paged = Paged::new(&mut machine)?;
    paged.lead_to_hole(&machine)?;
    // One mapping in stage 2 serves all three.
    paged.stop_at(PATHS[0].1)?;
    for (level, va) in PATHS {
        check_eq!(translate(va, |_| None), Translation::Aborted(level), "the translation of {va:#x}");
    }
    check_eq!(paged.guest.load(Ipa::new(VA))?.end, Ok(21), "a load afterwards");
    Ok(())
}

fn the_guest_gets_the_abort_of_el2s_walk_as_from_hardware(mut machine: Machine) -> Outcome {
    let mut paged = Paged::new(&mut machine)?;
    paged.lead_to_hole(&machine)?;
    for (level, va) in PATHS {
        if level == 1 {
            paged.stop_at(va)?;
        }
        let from_hardware = exception(paged.guest.agent.load(va))?;
        check_eq!(from_hardware.status(), 0x14 + level as u64, "the status of {from_hardware:x?}");
        // The context is now at the agent's vector. Set it back to the load.
        let context = paged.guest.agent.context();
        context.pc = from_hardware.elr;
        context.pstate = read_sysreg!(SPSR_EL1);
        context.x[0] = va;
        check_eq!(paged.locate(va), Located::Aborted, "the result of EL2's walk at {va:#x}");
        let from_el2 = exception(paged.guest.agent.resume())?;
        check_eq!(from_el2, from_hardware, "the guest's exception for {va:#x}");
    }
    check_eq!(paged.guest.load(Ipa::new(VA))?.end, Ok(21), "a load afterwards");
    Ok(())
}

fn a_walk_into_nothing_is_an_abort_of_stage_1s_level(mut machine: Machine) -> Outcome {
    const DATA_ABORT: u64 = 0x25;
    const INSTRUCTION_ABORT: u64 = 0x21;
    let mut paged = Paged::new(&mut machine)?;
    paged.lead_to(NOWHERE)?;
    for (level, va) in PATHS {
        for (command, class) in [(Command::Load, DATA_ABORT), (Command::Fetch, INSTRUCTION_ABORT)] {
            let found = exception(paged.guest.run(command, Ipa::new(va), 0)?.end)?;
            let expected = (class, 0x14 + level as u64, va);
            check_eq!((found.class(), found.status(), found.far), expected, "{command:?} of {va:#x}");
        }
    }
    // The page itself, not a walk.
    paged.put(3, VA / PAGE, NOWHERE.raw() | entry::ACCESSED | entry::PAGE)?;
    paged.guest.memory.stage2().invalidate_all();
    let found = exception(paged.guest.load(Ipa::new(VA))?.end)?;
    check_eq!((found.class(), found.status(), found.far), (DATA_ABORT, 0x10, VA), "a load of a page that is not there");
    Ok(())
}

fn a_translation_leaves_the_guests_registers_alone(mut machine: Machine) -> Outcome {
    const PAR: u64 = 0x1234_5000;
    const THREAD: u64 = 0x5ec2_e75e_c2e7_5ec2;
    let mut paged = Paged::new(&mut machine)?;
    paged.lead_to_hole(&machine)?;
    paged.stop_at(PATHS[0].1)?;
    // SAFETY: the registers belong to the guest, which is not running.
    unsafe {
        write_sysreg!(PAR_EL1, PAR);
        write_sysreg!(TPIDR_EL0, THREAD);
        write_sysreg!(TPIDRRO_EL0, !THREAD);
    }
    let unmapped = VA + PAGE;
    for (va, expected) in
        [(VA, Translation::Page(RAM)), (unmapped, Translation::Unmapped), (PATHS[2].1, Translation::Aborted(3))]
    {
        check_eq!(translate(va, |_| None), expected, "the translation of {va:#x}");
        check_eq!(read_sysreg!(PAR_EL1), PAR, "PAR_EL1 after {expected:?}");
        check_eq!(read_sysreg!(TPIDR_EL0), THREAD, "TPIDR_EL0 after {expected:?}");
        check_eq!(read_sysreg!(TPIDRRO_EL0), !THREAD, "TPIDRRO_EL0 after {expected:?}");
    }
    Ok(())
}

fn tables_that_changed_meanwhile_are_walked_anew(machine: Machine) -> Outcome {
    const TRANSLATION_FAULT_3: u64 = 0x07;
    both_ways(machine, LeftOut::EveryTlbi, |machine, left_out| {
        let mut paged = Paged::new(machine)?;
        // The guest does not invalidate the entry.
        paged.put(3, VA / PAGE, 0)?;
        let platform = paged.guest.memory.stage2().platform();
        platform.leave_out(left_out);
        check_eq!(paged.locate(VA), Located::Retry, "the result of EL2's walk");
        paged.guest.memory.stage2().platform().leave_out(LeftOut::Nothing);
        match paged.guest.agent.load(VA) {
            Ok(_) => Ok(Seen::Old),
            end => {
                check_eq!(exception(end)?.status(), TRANSLATION_FAULT_3, "the guest's own fault");
                Ok(Seen::New)
            }
        }
    })
}

fn a_tlb_conflict_empties_the_tlb(machine: Machine) -> Outcome {
    const CONFLICT: u64 = 0x24 << 26 | 1 << 25 | 0x30;
    both_ways(machine, LeftOut::EveryTlbi, |machine, left_out| {
        let mut guest = Demand::new(machine, Pages::Small, BLOCK_2M)?;
        guest.store(RAM, 5)?.end?;
        let (memory, platform) = (&guest.memory, guest.memory.stage2().platform());
        platform.leave_out(LeftOut::EveryTlbi);
        let _ = memory.stage2().unmap(RAM..RAM + PAGE, &mut memory.tables(), |_| ())?.complete();
        platform.leave_out(left_out);
        let aborted = abort::odd(memory, guest.agent.context(), CONFLICT);
        platform.leave_out(LeftOut::Nothing);
        check!(!aborted, "the guest got an abort for a conflict");
        seen_if_gone(guest.agent.load(RAM.raw()))
    })
}
