// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An access to an address where nothing is: the guest gets a synchronous external abort, and the hypervisor continues.

use twofold_hypervisor::inject;
use twofold_memory::Pages;
use twofold_stage2::{Access, Ipa};

use crate::agent::Command;
use crate::check::{Failure, Outcome};
use crate::demand::{Demand, RAM};
use crate::exit::{Exception, Exit};
use crate::guest_mmu::{GuestTables, entry};
use crate::hand_mapped_guest::{HERE, HandMappedGuest, page_at};
use crate::machine::{BLOCK_2M, Machine, PAGE};

tests!(
    abort::a_load_from_nowhere_is_an_external_abort,
    abort::a_store_to_nowhere_is_an_external_abort,
    abort::a_call_to_nowhere_is_an_external_abort,
    abort::a_load_from_nowhere_at_el0_is_an_external_abort,
    abort::a_store_to_a_read_only_slot_is_an_external_abort,
    abort::cache_maintenance_where_nothing_is_does_nothing,
    abort::an_abort_behind_the_guests_mmu_names_the_virtual_address,
);

/// An address without a slot.
const NOWHERE: Ipa = Ipa::new(0x20_0000_0000);

/// Exception classes of ESR_EL1 (Arm ARM DDI 0487K.a, D23.2).
mod class {
    pub const INSTRUCTION_ABORT: u64 = 0x21;
    pub const DATA_ABORT_FROM_EL0: u64 = 0x24;
    pub const DATA_ABORT: u64 = 0x25;
}

/// Offsets of vectors.
mod vector {
    pub const SAME_LEVEL: u64 = 0x200;
    pub const LOWER_LEVEL: u64 = 0x400;
}

const SYNCHRONOUS_EXTERNAL: u64 = 0x10;
const WRITE_NOT_READ: u64 = 1 << 6;

/// Checks that an access ended in an external abort in the guest.
fn aborted(end: Result<u64, Exit>, vector: u64, class: u64, address: u64) -> Outcome<Exception> {
    match end {
        Err(Exit::Exception(exception))
            if exception.vector == vector
                && exception.class() == class
                && exception.status() == SYNCHRONOUS_EXTERNAL
                && exception.far == address =>
        {
            Ok(exception)
        }
        end => Err(Failure::new(alloc::format!("expected an external abort at {address:#x}, found {end:x?}"))),
    }
}

/// A guest with RAM. After an abort, its earlier stores are still there, and it continues.
fn with_ram(mut machine: Machine, access: impl FnOnce(&mut Demand) -> Outcome) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Small, BLOCK_2M)?;
    guest.store(RAM, 5)?.end?;
    access(&mut guest)?;
    check_eq!(guest.load(RAM)?.end, Ok(5), "a load of an earlier store");
    guest.store(RAM + PAGE, 6)?.end?;
    check_eq!(guest.load(RAM + PAGE)?.end, Ok(6), "a touch of a new page");
    Ok(())
}

fn a_load_from_nowhere_is_an_external_abort(machine: Machine) -> Outcome {
    with_ram(machine, |guest| {
        for address in [NOWHERE, NOWHERE + 0x128, RAM + BLOCK_2M] {
            let end = guest.load(address)?.end;
            let exception = aborted(end, vector::SAME_LEVEL, class::DATA_ABORT, address.raw())?;
            check_eq!(exception.esr & WRITE_NOT_READ, 0, "WnR of {exception:x?}");
        }
        Ok(())
    })
}

fn a_store_to_nowhere_is_an_external_abort(machine: Machine) -> Outcome {
    with_ram(machine, |guest| {
        let end = guest.store(NOWHERE + 8, 1)?.end;
        let exception = aborted(end, vector::SAME_LEVEL, class::DATA_ABORT, NOWHERE.raw() + 8)?;
        check!(exception.esr & WRITE_NOT_READ != 0, "WnR of {exception:x?}");
        Ok(())
    })
}

fn a_call_to_nowhere_is_an_external_abort(machine: Machine) -> Outcome {
    with_ram(machine, |guest| {
        let end = guest.fetch(NOWHERE + 0x40)?.end;
        let exception = aborted(end, vector::SAME_LEVEL, class::INSTRUCTION_ABORT, NOWHERE.raw() + 0x40)?;
        check_eq!(exception.elr, NOWHERE.raw() + 0x40, "ELR_EL1");
        Ok(())
    })
}

fn a_load_from_nowhere_at_el0_is_an_external_abort(machine: Machine) -> Outcome {
    with_ram(machine, |guest| {
        check_eq!(guest.run(Command::LoadAtEl0, RAM, 0)?.end, Ok(5), "a load at EL0");
        let end = guest.run(Command::LoadAtEl0, NOWHERE, 0)?.end;
        aborted(end, vector::LOWER_LEVEL, class::DATA_ABORT_FROM_EL0, NOWHERE.raw())?;
        Ok(())
    })
}

fn a_store_to_a_read_only_slot_is_an_external_abort(machine: Machine) -> Outcome {
    with_ram(machine, |guest| {
        let slot = RAM + 2 * BLOCK_2M;
        guest.add_ram(slot..slot + 2 * PAGE, false)?;
        // First with nothing mapped, then with the page mapped read-only.
        for turn in ["cold", "warm"] {
            let end = guest.store(slot, 1)?.end;
            aborted(end, vector::SAME_LEVEL, class::DATA_ABORT, slot.raw())?;
            check_eq!(guest.load(slot)?.end, Ok(0), "the load, {turn}");
        }
        Ok(())
    })
}

/// A CPU that translates the address of the maintenance reports a fault, and the answer skips the instruction. QEMU has
/// no caches and reports none.
fn cache_maintenance_where_nothing_is_does_nothing(machine: Machine) -> Outcome {
    with_ram(machine, |guest| {
        guest.run(Command::Clean, NOWHERE, 0)?.end?;
        let slot = RAM + 2 * BLOCK_2M;
        guest.add_ram(slot..slot + PAGE, false)?;
        guest.run(Command::Clean, slot, 0)?.end?;
        let end = guest.store(slot, 1)?.end;
        aborted(end, vector::SAME_LEVEL, class::DATA_ABORT, slot.raw())?;
        Ok(())
    })
}

fn an_abort_behind_the_guests_mmu_names_the_virtual_address(mut machine: Machine) -> Outcome {
    const VA: u64 = 0x4_0000;
    let (mut guest, _) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    let tables = GuestTables::in_ram(&mut machine, &mut guest, Ipa::new(0x5000_0000))?;
    tables.map(VA, HERE, entry::ACCESSED);
    tables.turn_on(&mut guest);
    guest.agent.load(VA)?;
    guest.unmap(&mut machine, page_at(HERE))?;
    let Err(Exit::Fault(stopped)) = guest.agent.load(VA + 0x30) else {
        return Err(Failure::new("a load of an unmapped page succeeded"));
    };
    // As if the guest's memory had no slot there.
    check_eq!(stopped.ipa, HERE, "the fault's page");
    inject::external_abort(guest.agent.context(), stopped.esr, stopped.far, None);
    let end = guest.agent.resume();
    aborted(end, vector::SAME_LEVEL, class::DATA_ABORT, VA + 0x30)?;
    Ok(())
}
