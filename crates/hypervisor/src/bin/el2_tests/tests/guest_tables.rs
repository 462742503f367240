// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's own tables: hardware reads them through stage 2. If hardware manages their flags, it also writes them
//! through stage 2.

use twofold_hypervisor::log;
use twofold_stage2::fault::{AccessKind, Fault, FaultKind};
use twofold_stage2::{Access, Attributes, Ipa, Level, Relaxed};

use crate::check::{Failure, Outcome};
use crate::exit::{Exit, Stopped};
use crate::guest_mmu::{GuestTables, entry};
use crate::hand_mapped_guest::{HERE, HandMappedGuest, page_at};
use crate::machine::{Frame, Machine, PAGE};

tests!(
    guest_tables::the_guests_mmu_leads_through_both_stages,
    guest_tables::a_walk_into_nothing_is_a_read_of_the_tables_page,
    guest_tables::an_access_flag_update_of_read_only_tables_is_a_write,
    guest_tables::a_dirty_state_update_of_read_only_tables_is_a_write,
    guest_tables::a_walk_does_not_dirty_its_tables,
    guest_tables::an_update_dirties_its_tables,
    guest_tables::a_fault_behind_the_guests_mmu_names_the_ipa,
);

/// The place of the guest's tables.
const TABLES: Ipa = Ipa::new(0x5000_0000);
/// A virtual address that tests use.
const VA: u64 = 0x4_2000;

/// A guest with its MMU on: an entry with `bits` translates `VA` to [`HERE`].
fn with_mmu(machine: &mut Machine, tables: &Attributes, bits: u64) -> Outcome<(HandMappedGuest, GuestTables, Frame)> {
    let (mut guest, frame) = HandMappedGuest::with_page(machine, Access::READ_WRITE)?;
    frame.write(0, 21);
    let tables = GuestTables::new(machine, &mut guest, TABLES, tables)?;
    tables.map(VA, HERE, bits);
    tables.turn_on(&mut guest);
    Ok((guest, tables, frame))
}

const READ_WRITE: Attributes = Attributes::ram(Access::READ_WRITE);
const READ_ONLY: Attributes = Attributes::ram(Access::READ);
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..READ_ONLY };

/// Checks that an access ended in a fault of a walk of the guest's tables.
fn stopped_walk(end: Result<u64, Exit>, kind: FaultKind, access: AccessKind, page: Ipa) -> Outcome<Stopped> {
    let expected = Fault { kind, access, level: Level::L3, stage1_walk: true };
    match end {
        Err(Exit::Fault(stopped)) if stopped.fault == expected && stopped.ipa == page => Ok(stopped),
        end => Err(Failure::new(alloc::format!("expected {expected:?} at {page}, found {end:x?}"))),
    }
}

fn the_guests_mmu_leads_through_both_stages(mut machine: Machine) -> Outcome {
    let (mut guest, tables, frame) = with_mmu(&mut machine, &READ_WRITE, entry::ACCESSED)?;
    let other = machine.page()?;
    guest.page(&mut machine, HERE + PAGE, other, Access::READ_WRITE)?;
    tables.map(VA + PAGE, HERE + PAGE, entry::ACCESSED | entry::READ_ONLY);
    other.write(8, 22);
    check_eq!(guest.agent.load(VA)?, 21, "the first page");
    check_eq!(guest.agent.load(VA + PAGE + 8)?, 22, "the second page");
    guest.agent.store(VA, 23)?;
    check_eq!(frame.read(0), 23, "the store");
    // EL2 does not handle faults of the guest's own tables.
    let refused = guest.agent.store(VA + PAGE, 1);
    check!(matches!(refused, Err(Exit::Exception(own)) if own.class() == 0x25 && own.far == VA + PAGE), "{refused:x?}");
    Ok(())
}

fn a_walk_into_nothing_is_a_read_of_the_tables_page(mut machine: Machine) -> Outcome {
    let (mut guest, tables, _) = with_mmu(&mut machine, &READ_WRITE, entry::ACCESSED)?;
    guest.agent.load(VA)?;
    let page = tables.pages_at();
    guest.unmap(&mut machine, page_at(page))?;
    // The first walk is the one for the agent's own code.
    let stopped = stopped_walk(guest.agent.load(VA), FaultKind::Translation, AccessKind::Read, page)?;
    check!(stopped.esr & STAGE_1_WALK != 0, "S1PTW is clear in {:#x}", stopped.esr);
    guest.page(&mut machine, page, tables.pages(), Access::READ)?;
    check_eq!(guest.agent.load(VA)?, 21, "the load");
    Ok(())
}

fn an_access_flag_update_of_read_only_tables_is_a_write(mut machine: Machine) -> Outcome {
    let (mut guest, tables, _) = with_mmu(&mut machine, &READ_ONLY, 0)?;
    if !machine.features.hardware_access_flag {
        log!("skipped: this CPU does not manage access flags (FEAT_HAFDBS): the guest's own fault is checked instead");
        let own = guest.agent.load(VA);
        check!(matches!(own, Err(Exit::Exception(own)) if own.class() == 0x25 && own.status() == 0x0b), "{own:x?}");
        return Ok(());
    }
    refused_update(&mut guest, &tables, |guest| guest.agent.load(VA))?;
    check_eq!(guest.agent.load(VA)?, 21, "the load");
    check!(tables.entry(VA) & entry::ACCESSED != 0, "the access flag in {:#x}", tables.entry(VA));
    Ok(())
}

fn a_dirty_state_update_of_read_only_tables_is_a_write(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    let clean = entry::ACCESSED | entry::READ_ONLY | entry::DIRTY_BY_HARDWARE;
    let (mut guest, tables, frame) = with_mmu(&mut machine, &READ_ONLY, clean)?;
    check_eq!(guest.agent.load(VA)?, 21, "the load, which updates nothing");
    refused_update(&mut guest, &tables, |guest| guest.agent.store(VA, 22).map(|()| 0))?;
    guest.agent.store(VA, 22)?;
    check_eq!(frame.read(0), 22, "the store");
    check_eq!(tables.entry(VA) & entry::READ_ONLY, 0, "AP[2] of the guest's entry");
    Ok(())
}

const STAGE_1_WALK: u64 = 1 << 7;
const WRITE_NOT_READ: u64 = 1 << 6;

/// Checks that an access whose walk must write the guest's entry faults: for permission, as a write. Then allows it.
fn refused_update(
    guest: &mut HandMappedGuest,
    tables: &GuestTables,
    access: impl FnOnce(&mut HandMappedGuest) -> Result<u64, Exit>,
) -> Outcome {
    let before = tables.entry(VA);
    let stopped = stopped_walk(access(guest), FaultKind::Permission, AccessKind::Write, tables.pages_at())?;
    check!(stopped.esr & STAGE_1_WALK != 0, "S1PTW is clear in {:#x}", stopped.esr);
    if stopped.esr & WRITE_NOT_READ == 0 {
        log!("WnR is clear, which is allowed: the syndrome is still read as a write");
    }
    check_eq!(tables.entry(VA), before, "the guest's entry");
    check_eq!(guest.relax(stopped.ipa, Access::READ_WRITE)?, Relaxed::Widened, "relaxing");
    Ok(())
}

fn a_walk_does_not_dirty_its_tables(mut machine: Machine) -> Outcome {
    let (mut guest, tables, _) = with_mmu(&mut machine, &CLEAN, entry::ACCESSED)?;
    guest.agent.load(VA)?;
    guest.agent.store(VA, 1)?;
    for table in 0..3 {
        let leaf = guest.leaf(tables.root + table * PAGE)?;
        check!(!leaf.descriptor.is_hardware_dirty(), "table {table} is dirty after plain walks");
    }
    Ok(())
}

fn an_update_dirties_its_tables(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    let clean = entry::READ_ONLY | entry::DIRTY_BY_HARDWARE;
    let (mut guest, tables, _) = with_mmu(&mut machine, &CLEAN, clean)?;
    let page = tables.pages_at();
    let dirty = |guest: &mut HandMappedGuest| Ok::<_, Failure>(guest.clean(page_at(page))?.len());
    guest.agent.load(VA)?;
    check!(tables.entry(VA) & entry::ACCESSED != 0, "the access flag in {:#x}", tables.entry(VA));
    check_eq!(dirty(&mut guest)?, 1, "dirty pages after an access flag update");
    guest.agent.load(VA)?;
    check_eq!(dirty(&mut guest)?, 0, "dirty pages after a load that updates nothing");
    guest.agent.store(VA, 1)?;
    check_eq!(tables.entry(VA) & entry::READ_ONLY, 0, "AP[2] of the guest's entry");
    check_eq!(dirty(&mut guest)?, 1, "dirty pages after a dirty state update");
    check_eq!(guest.clean(page_at(tables.root))?.len(), 0, "dirty pages at the root");
    Ok(())
}

fn a_fault_behind_the_guests_mmu_names_the_ipa(mut machine: Machine) -> Outcome {
    let (mut guest, tables, _) = with_mmu(&mut machine, &READ_WRITE, entry::ACCESSED)?;
    tables.map(VA + PAGE, HERE + PAGE, entry::ACCESSED);
    let nothing = guest.agent.load(VA + PAGE + 0x18);
    let at = |end: Result<u64, Exit>| match end {
        Err(Exit::Fault(stopped)) if !stopped.fault.stage1_walk => Ok((stopped.fault.kind, stopped.ipa, stopped.far)),
        end => Err(Failure::new(alloc::format!("expected a fault, found {end:x?}"))),
    };
    check_eq!(at(nothing)?, (FaultKind::Translation, HERE + PAGE, VA + PAGE + 0x18), "a translation fault");
    // Here HPFAR_EL2 is UNKNOWN, and AT S1E1R finds the page.
    guest.protect(&mut machine, page_at(HERE), Access::READ)?;
    let refused = guest.agent.store(VA + 0x18, 1).map(|()| 0);
    check_eq!(at(refused)?, (FaultKind::Permission, HERE, VA + 0x18), "a permission fault");
    Ok(())
}

fn skipped(machine: &Machine) -> bool {
    let skipped = !machine.features.hardware_dirty_state;
    if skipped {
        log!("skipped: this CPU does not manage dirty state (FEAT_HAFDBS)");
    }
    skipped
}
