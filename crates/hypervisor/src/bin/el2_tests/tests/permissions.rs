// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An access that a leaf does not permit faults with the right kind; after a relaxation it succeeds.

use alloc::format;

use twofold_hypervisor::log;
use twofold_stage2::fault::{AccessKind, Fault, FaultKind};
use twofold_stage2::{Access, Attributes, Execute, Ipa, Level, Relaxed};

use crate::agent::{self, Command};
use crate::check::{Failure, Outcome};
use crate::exit::{Exit, Stopped};
use crate::hand_mapped_guest::{HERE, HandMappedGuest, VMID, page_at};
use crate::machine::{BLOCK_2M, Machine};

tests!(
    permissions::a_store_to_a_read_only_page_faults_until_it_is_relaxed,
    permissions::a_store_to_a_read_only_block_faults_until_it_is_relaxed,
    permissions::a_load_of_a_write_only_page_faults_until_it_is_relaxed,
    permissions::a_call_into_data_faults_until_it_is_relaxed,
    permissions::code_of_one_level_faults_at_the_other_until_it_is_relaxed,
    permissions::taking_the_write_permission_away_holds,
    permissions::relaxing_what_is_allowed_already_changes_nothing,
    permissions::a_clear_access_flag_is_set,
);

/// Checks that an access ended in this fault.
pub(super) fn stopped_by(
    end: Result<u64, Exit>,
    kind: FaultKind,
    access: AccessKind,
    level: Level,
    page: Ipa,
) -> Outcome<Stopped> {
    let expected = Fault { kind, access, level, stage1_walk: false };
    match end {
        Err(Exit::Fault(stopped)) if stopped.fault == expected && stopped.ipa == page => Ok(stopped),
        end => Err(Failure::new(format!("expected {expected:?} at {page}, found {end:x?}"))),
    }
}

fn refused_write(guest: &mut HandMappedGuest, level: Level) -> Outcome {
    let store = guest.store(HERE + 8, 1).map(|()| 0);
    let stopped = stopped_by(store, FaultKind::Permission, AccessKind::Write, level, HERE)?;
    const WRITE_NOT_READ: u64 = 1 << 6;
    check!(stopped.esr & WRITE_NOT_READ != 0, "WnR is clear in {:#x}", stopped.esr);
    check_eq!(stopped.far, HERE.raw() + 8, "FAR_EL2");
    Ok(())
}

fn a_store_to_a_read_only_page_faults_until_it_is_relaxed(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ)?;
    frame.write(8, 7);
    for turn in ["cold", "warm"] {
        refused_write(&mut guest, Level::L3)?;
        check_eq!(guest.load(HERE + 8)?, 7, "the load, {turn}");
    }
    check_eq!(guest.relax(HERE, Access::READ_WRITE)?, Relaxed::Widened, "relaxing");
    guest.store(HERE + 8, 8)?;
    check_eq!(frame.read(8), 8, "the store");
    Ok(())
}

fn a_store_to_a_read_only_block_faults_until_it_is_relaxed(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let block = machine.frame(BLOCK_2M)?;
    guest.map(&mut machine, HERE, block.pa, Level::L2, &Attributes::ram(Access::READ))?;
    refused_write(&mut guest, Level::L2)?;
    check_eq!(guest.relax(HERE + 0x5000, Access::READ_WRITE)?, Relaxed::Widened, "relaxing");
    guest.store(HERE + 8, 8)?;
    check_eq!(block.read(8), 8, "the store");
    Ok(())
}

fn a_load_of_a_write_only_page_faults_until_it_is_relaxed(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access { write: true, ..Access::NONE })?;
    guest.store(HERE, 9)?;
    check_eq!(frame.read(0), 9, "the store");
    stopped_by(guest.load(HERE), FaultKind::Permission, AccessKind::Read, Level::L3, HERE)?;
    check_eq!(guest.relax(HERE, Access::READ)?, Relaxed::Widened, "relaxing");
    check_eq!(guest.load(HERE)?, 9, "the load");
    guest.store(HERE, 10)?;
    Ok(())
}

fn a_call_into_data_faults_until_it_is_relaxed(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    frame.write(0, agent::function(77));
    guest.load(HERE)?;
    stopped_by(guest.fetch(HERE), FaultKind::Permission, AccessKind::Execute, Level::L3, HERE)?;
    check_eq!(guest.relax(HERE, Access { execute: Execute::ALWAYS, ..Access::READ })?, Relaxed::Widened, "relaxing");
    check_eq!(guest.fetch(HERE)?, 77, "the call");
    Ok(())
}

fn code_of_one_level_faults_at_the_other_until_it_is_relaxed(mut machine: Machine) -> Outcome {
    if !machine.features.execute_per_el {
        log!("skipped: this CPU has no separate execute permissions for EL0 and EL1 (FEAT_XNX)");
        return Ok(());
    }
    let (el0, el1) = (Command::FetchAtEl0, Command::Fetch);
    for (execute, allowed, refused) in [(Execute::EL0, el0, el1), (Execute::EL1, el1, el0)] {
        let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access { execute, ..Access::READ })?;
        frame.write(0, agent::function(78));
        for turn in ["cold", "warm"] {
            let call = guest.agent.run(refused, HERE.raw(), 0);
            stopped_by(call, FaultKind::Permission, AccessKind::Execute, Level::L3, HERE)?;
            check_eq!(guest.agent.run(allowed, HERE.raw(), 0)?, 78, "{allowed:?}, {turn}");
        }
        check_eq!(
            guest.relax(HERE, Access { execute: Execute::ALWAYS, ..Access::READ })?,
            Relaxed::Widened,
            "relaxing"
        );
        for command in [refused, allowed] {
            check_eq!(guest.agent.run(command, HERE.raw(), 0)?, 78, "{command:?}, relaxed");
        }
    }
    Ok(())
}

fn taking_the_write_permission_away_holds(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    for value in 1..4 {
        guest.store(HERE, value)?;
        guest.protect(&mut machine, page_at(HERE), Access::READ)?;
        refused_write(&mut guest, Level::L3)?;
        check_eq!((guest.load(HERE)?, frame.read(0)), (value, value), "the content");
        // Relaxing again needs no flush to be correct: at worst the guest faults once more.
        check_eq!(guest.relax(HERE, Access::READ_WRITE)?, Relaxed::Widened, "relaxing");
    }
    Ok(())
}

fn relaxing_what_is_allowed_already_changes_nothing(mut machine: Machine) -> Outcome {
    let (mut guest, _) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    let before = guest.leaf(HERE)?;
    for access in [Access::READ, Access::READ_WRITE, Access::NONE] {
        check_eq!(guest.relax(HERE, access)?, Relaxed::Already, "relaxing to {access:?}");
    }
    check_eq!(guest.leaf(HERE)?, before, "the leaf");
    guest.store(HERE, 1)?;
    Ok(())
}

/// By hardware if it can, otherwise by the answer to the fault.
fn a_clear_access_flag_is_set(mut machine: Machine) -> Outcome {
    for hardware in [true, false] {
        machine.features.hardware_access_flag &= hardware;
        machine.features.hardware_dirty_state &= hardware;
        let hardware = machine.features.hardware_access_flag;
        let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
        let frame = machine.page()?;
        let attributes = Attributes { accessed: false, ..Attributes::ram(Access::READ) };
        guest.map(&mut machine, HERE, frame.pa, Level::L3, &attributes)?;
        frame.write(0, 3);
        if !hardware {
            stopped_by(guest.load(HERE), FaultKind::AccessFlag, AccessKind::Read, Level::L3, HERE)?;
            check_eq!(guest.relax(HERE, Access::NONE)?, Relaxed::Widened, "relaxing");
        }
        check_eq!(guest.load(HERE)?, 3, "the load");
        let accessed = guest.leaf(HERE)?.descriptor.attributes(&machine.features).accessed;
        check!(accessed, "the access flag is clear; hardware sets it: {hardware}");
    }
    Ok(())
}
