// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several vCPUs or guests. A change of a guest's tables reaches every CPU that runs the guest, even if this CPU runs
//! another one. vCPUs that take turns on a CPU keep their own stage 1.

use twofold_hypervisor::read_sysreg;
use twofold_stage2::{Access, Ipa, Vmid};

use super::staleness::{Seen, both_ways, seen_by_content, seen_if_gone};
use crate::agent::Command;
use crate::check::Outcome;
use crate::guest_mmu::{GuestTables, entry};
use crate::hand_mapped_guest::{HERE, HandMappedGuest, page_at};
use crate::machine::{Machine, PAGE};
use crate::omit::LeftOut;
use crate::other_cpu::OtherCpu;

tests!(
    vcpus::unmapping_needs_the_broadcast,
    vcpus::narrowing_needs_the_broadcast,
    vcpus::relaxing_here_is_found_there_by_a_retry,
    vcpus::a_flush_for_a_guest_that_is_not_loaded_names_it,
    vcpus::a_flush_for_a_guest_that_is_not_loaded_reaches_it,
    vcpus::vcpus_that_take_turns_need_an_invalidation,
);

fn unmapping_needs_the_broadcast(machine: Machine) -> Outcome {
    let other = OtherCpu::start(&machine)?;
    both_ways(machine, LeftOut::Broadcast, |machine, left_out| {
        let (mut guest, frame) = HandMappedGuest::with_page(machine, Access::READ_WRITE)?;
        frame.write(0, 4);
        let there = |guest: &HandMappedGuest| other.run(guest, Command::Load, HERE.raw());
        check_eq!((guest.load(HERE)?, there(&guest)?), (4, 4), "both CPUs' loads");
        guest.without(left_out, |guest| guest.unmap(machine, page_at(HERE)))?;
        check_eq!(seen_if_gone(guest.load(HERE))?, Seen::New, "this CPU's load");
        seen_if_gone(there(&guest))
    })
}

fn narrowing_needs_the_broadcast(machine: Machine) -> Outcome {
    let other = OtherCpu::start(&machine)?;
    both_ways(machine, LeftOut::Broadcast, |machine, left_out| {
        let (mut guest, _) = HandMappedGuest::with_page(machine, Access::READ_WRITE)?;
        let there = |guest: &HandMappedGuest| other.run(guest, Command::Store, HERE.raw());
        guest.store(HERE, 1)?;
        there(&guest)?;
        guest.without(left_out, |guest| guest.protect(machine, page_at(HERE), Access::READ))?;
        check_eq!(seen_if_gone(guest.store(HERE, 2).map(|()| 0))?, Seen::New, "this CPU's store");
        seen_if_gone(there(&guest))
    })
}

/// A permission upgrade is not broadcast: the other CPU faults at most once more, and its fault is answered as stale.
fn relaxing_here_is_found_there_by_a_retry(mut machine: Machine) -> Outcome {
    let other = OtherCpu::start(&machine)?;
    let (mut guest, _) = HandMappedGuest::with_page(&mut machine, Access::READ)?;
    let there = |guest: &HandMappedGuest, command| other.run(guest, command, HERE.raw());
    there(&guest, Command::Load)?;
    check_eq!(seen_if_gone(there(&guest, Command::Store))?, Seen::New, "the store before");
    let _ = guest.relax(HERE, Access::READ_WRITE)?;
    if seen_if_gone(there(&guest, Command::Store))? == Seen::New {
        twofold_hypervisor::log!("the other CPU faulted once more");
        there(&guest, Command::Store)?;
    }
    Ok(())
}

/// QEMU's invalidations ignore the VMID, and a change of VMID empties its TLB. So the guest would behave correctly even
/// if its VTTBR were not loaded. The test therefore inspects the record of executed invalidations.
fn a_flush_for_a_guest_that_is_not_loaded_names_it(machine: Machine) -> Outcome {
    both_ways(machine, LeftOut::VttbrSwitch, |machine, left_out| {
        let (mut absent, loaded) = two_guests(machine)?;
        absent.stage2.platform().take_executed();
        absent.without(left_out, |absent| absent.unmap(machine, page_at(HERE)))?;
        check_eq!(read_sysreg!(VTTBR_EL2), loaded.stage2.vttbr(), "VTTBR_EL2 afterwards");
        let executed = absent.stage2.platform().take_executed();
        check!(executed.len() >= 2, "expected an invalidation by IPA and a combined one: {executed:x?}");
        let named = |guest: &HandMappedGuest| executed.iter().all(|one| one.vttbr == guest.stage2.vttbr());
        check!(named(&absent) || named(&loaded), "{executed:x?}");
        Ok(if named(&absent) { Seen::New } else { Seen::Old })
    })
}

fn a_flush_for_a_guest_that_is_not_loaded_reaches_it(mut machine: Machine) -> Outcome {
    let (mut absent, mut loaded) = two_guests(&mut machine)?;
    absent.unmap(&mut machine, page_at(HERE))?;
    check_eq!(read_sysreg!(VTTBR_EL2), loaded.stage2.vttbr(), "VTTBR_EL2 after unmapping");
    check_eq!(loaded.load(HERE)?, 2, "the load of the guest that is loaded");
    absent.stage2.invalidate_all();
    check_eq!(read_sysreg!(VTTBR_EL2), loaded.stage2.vttbr(), "VTTBR_EL2 after invalidating all");
    check_eq!(loaded.load(HERE)?, 2, "its second load");
    absent.load_tables();
    check_eq!(seen_if_gone(absent.load(HERE))?, Seen::New, "the load of the other one");
    Ok(())
}

/// Two guests with one page each, both touched. The second guest is loaded.
fn two_guests(machine: &mut Machine) -> Outcome<(HandMappedGuest, HandMappedGuest)> {
    let mut guests = [HandMappedGuest::new(machine, Vmid::new(1))?, HandMappedGuest::new(machine, Vmid::new(2))?];
    for (value, guest) in (1..).zip(&mut guests) {
        let frame = machine.page()?;
        frame.write(0, value);
        guest.page(machine, HERE, frame, Access::READ_WRITE)?;
        guest.load_tables();
        check_eq!(guest.load(HERE)?, value, "the load of guest {value}");
    }
    let [first, second] = guests;
    Ok((first, second))
}

/// The vCPUs share the VMID and the ASID, but not the tables of stage 1.
fn vcpus_that_take_turns_need_an_invalidation(machine: Machine) -> Outcome {
    const VA: u64 = 0x4_0000;
    both_ways(machine, LeftOut::CombinedTlbi, |machine, left_out| {
        let (mut guest, frame) = HandMappedGuest::with_page(machine, Access::READ_WRITE)?;
        let other = machine.page()?;
        guest.page(machine, HERE + PAGE, other, Access::READ_WRITE)?;
        frame.write(0, 1);
        other.write(0, 2);
        let first = GuestTables::in_ram(machine, &mut guest, Ipa::new(0x5000_0000))?;
        let second = GuestTables::in_ram(machine, &mut guest, Ipa::new(0x5100_0000))?;
        first.map(VA, HERE, entry::ACCESSED);
        second.map(VA, HERE + PAGE, entry::ACCESSED);
        first.turn_on(&mut guest);
        check_eq!(guest.agent.load(VA)?, 1, "the first vCPU's load");
        second.switch_to();
        guest.without(left_out, |guest| {
            guest.stage2.invalidate_for_other_vcpu();
            Ok(())
        })?;
        let seen = seen_by_content(guest.agent.load(VA)?, 1, 2);
        first.turn_off(&mut guest);
        seen
    })
}
