// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a guest that shares frames stops at its own limit, and that what a guest had when it ended gets to
//! another one only after the flush, and as zeroes.

use std::rc::Rc;
use std::sync::Arc;

use twofold_memory::{Backing, Error, Frames, SharedFrames, SlotId};
use twofold_stage2::Pa;
use twofold_stage2::platform::Tlbi;

use super::*;
use crate::machine::guest::IPA_BITS;
use crate::machine::platform::Event;
use crate::machine::{HUGE_PAGE, Machine, PAGE, RAM, device_at};

/// Frames that guests share: `chunks` times 2 MiB.
fn share(features: Features, chunks: u64) -> (Rc<Machine>, Arc<SharedFrames>) {
    let machine = Machine::new(features, &[(RAM, (chunks + 1) * HUGE_PAGE)]);
    let mut frames = Frames::new(features);
    // A part of a chunk is left out.
    frames.add(machine.donate(RAM, chunks * HUGE_PAGE + 7 * PAGE));
    (machine, Arc::new(SharedFrames::new(&mut frames)))
}

/// A guest with `ram` huge pages of RAM, and a limit in frames.
fn sharing(machine: &Rc<Machine>, shared: &Arc<SharedFrames>, limit: u64, ram: u64) -> (RunningGuest, SlotId) {
    let frames = Frames::sharing(machine.features, Arc::clone(shared), limit);
    let mut guest = RunningGuest::on(Rc::clone(machine), frames, Pages::Small, IPA_BITS);
    let slot = guest.add(BASE, ram * HUGE_PAGE, Backing::Ram, true);
    (guest, slot)
}

/// The guest, loaded on the CPU.
fn on_cpu(guest: &mut RunningGuest) -> &mut RunningGuest {
    guest.machine.enter(guest.memory.stage2().vttbr(), guest.memory.stage2().vtcr());
    guest
}

fn at(huge_page: u64) -> Ipa {
    BASE + huge_page * HUGE_PAGE
}

#[test]
fn a_guest_stops_at_its_limit_and_another_goes_on() {
    let (machine, shared) = share(PLAIN, 7);
    let free = || shared.free(&machine.platform());
    let (mut one, slot) = sharing(&machine, &shared, 3 * 512, 4);
    let (mut two, _) = sharing(&machine, &shared, 3 * 512 + 1, 4);
    // Each has a chunk for its tables.
    assert_eq!(free(), 5);
    on_cpu(&mut one).reach(at(0), Write);
    on_cpu(&mut one).reach(at(1), Write);
    assert_eq!(free(), 3);
    for _ in 0..3 {
        assert_eq!(on_cpu(&mut one).fault(at(2) + 5, Translation, Write), Err(Error::NoFrames { ipa: at(2) }));
        assert_eq!(one.walk(at(2)), None);
    }
    assert_eq!(free(), 3);
    // The limit is rounded up to chunks.
    for huge_page in 0..3 {
        on_cpu(&mut two).reach(at(huge_page), Write);
    }
    assert_eq!(on_cpu(&mut two).fault(at(3), Translation, Write), Err(Error::NoFrames { ipa: at(3) }));
    assert_eq!(free(), 0);
    // What one gives back, it can take again.
    assert_eq!(one.memory.release(slot, at(0)..at(1)), Ok(1));
    assert_eq!(free(), 1);
    on_cpu(&mut one).reach(at(2), Write);
    assert_eq!(on_cpu(&mut one).fault(at(3), Translation, Write), Err(Error::NoFrames { ipa: at(3) }));
}

/// A running guest gives up huge pages: another guest may have them. A part of one stays.
#[test]
fn what_a_guest_gives_up_goes_to_all() {
    let (machine, shared) = share(PLAIN, 7);
    let free = || shared.free(&machine.platform());
    let (mut one, _) = sharing(&machine, &shared, 4 * 512, 3);
    let reached: Vec<Pa> = (0..3).map(|huge_page| one.reach(at(huge_page) + PAGE, Write)).collect();
    one.memory.write(at(1) + PAGE, &[0x5e; 64]).unwrap();
    assert_eq!(free(), 3);
    machine.events();
    let given = one.memory.give_up(at(0) + 511 * PAGE..at(2) + PAGE).unwrap();
    assert_eq!((given.end, given.frames), (at(2) + PAGE, 512));
    let flushed = |event: &Event| matches!(event, Event::Tlbi(Tlbi::VmallE1Is | Tlbi::VmallS12E1Is, _));
    assert!(machine.events().iter().any(flushed));
    assert_eq!((free(), one.walk(at(1) + PAGE)), (4, None));
    assert!([0, 2].iter().all(|huge_page| one.walk(at(*huge_page) + PAGE).is_some()));
    let (mut two, _) = sharing(&machine, &shared, 3 * 512, 2);
    // Its tables got what the other one had, or its RAM does.
    let zeroes = vec![0; PAGE as usize];
    for huge_page in 0..2 {
        machine.check_page(on_cpu(&mut two).reach(at(huge_page) + PAGE, Read), &zeroes);
    }
    // Touched again, the huge page reads as zero.
    let again = on_cpu(&mut one).reach(at(1) + PAGE, Read);
    machine.check_page(again, &zeroes);
    assert_ne!(again, reached[1]);
}

#[test]
fn what_an_ended_guest_had_is_flushed_before_and_zeroed_after() {
    for features in [PLAIN, FORCED] {
        let (machine, shared) = share(features, 4);
        let free = || shared.free(&machine.platform());
        let (mut one, slot) = sharing(&machine, &shared, 4 * 512, 3);
        let had: Vec<Pa> = (0..3).map(|huge_page| one.reach(at(huge_page) + PAGE, Write)).collect();
        for huge_page in 0..3 {
            one.memory.write(at(huge_page) + PAGE, &[0x5e; 64]).unwrap();
        }
        assert_eq!(free(), 0);
        machine.events();
        assert_eq!(one.memory.release(slot, at(1)..at(2)), Ok(1));
        let flushed = |event: &Event| matches!(event, Event::Tlbi(Tlbi::Ipas2E1Is | Tlbi::Ripas2E1Is, _));
        let combined = |event: &Event| matches!(event, Event::Tlbi(Tlbi::VmallE1Is | Tlbi::VmallS12E1Is, _));
        let events = machine.events();
        assert!(events.iter().any(flushed) || events.iter().any(combined), "{events:?}");
        assert_eq!((free(), one.walk(at(1) + PAGE), one.memory.frame_use().data), (1, None, 2 * 512));
        assert_eq!(one.memory.release(slot, BASE..at(3)), Ok(2));
        assert_eq!((free(), one.memory.frame_use().data), (3, 0));
        assert_eq!(one.memory.release(slot, BASE..at(3)), Ok(0));
        // The chunk with the root stays, and no table is left below the root.
        assert_eq!((one.memory.release_tables(), one.memory.frames().free()), (1, 512 - 2));
        assert!(machine.events().iter().any(combined));
        assert!(one.scan().links.is_empty() && one.scan().leaves.is_empty());

        let (mut two, _) = sharing(&machine, &shared, 3 * 512, 2);
        let zeroes = vec![0; PAGE as usize];
        let mut reached: Vec<Pa> = (0..2).map(|huge_page| two.reach(at(huge_page) + PAGE, Read)).collect();
        reached.iter().for_each(|pa| machine.check_page(*pa, &zeroes));
        // It got what the other one had.
        reached.retain(|pa| had.contains(pa));
        assert!(!reached.is_empty());
    }
}

#[test]
fn frames_that_are_left_give_back_a_whole_chunk() {
    let (machine, shared) = share(PLAIN, 3);
    let (mut one, slot) = sharing(&machine, &shared, 3 * 512, 2);
    one.reach(at(0), Write);
    // A slot that is removed: its chunk is the guest's, for its next touch. The frames of its tables are free.
    one.memory.remove_slot(slot).unwrap();
    assert_eq!((shared.free(&machine.platform()), one.memory.frames().free()), (1, 512 - 2));
    one.add_ram(BASE, 2 * HUGE_PAGE);
    one.reach(at(0), Write);
    assert_eq!(shared.free(&machine.platform()), 1);
    one.reach(at(1), Write);
    assert_eq!(shared.free(&machine.platform()), 0);
}

/// The tables of a device fill a chunk beside the one with the root. When they are gone, the chunk is still for tables
/// alone, until it goes back.
#[test]
fn a_chunk_without_tables_goes_back() {
    let (machine, shared) = share(PLAIN, 3);
    let (mut one, _) = sharing(&machine, &shared, 2 * 512, 1);
    // No block fits, so each huge page of addresses takes a table.
    let devices = one.add(at(512), 512 * HUGE_PAGE, device_at(Pa::new((1 << 36) + PAGE)), true);
    for huge_page in 512..1024 {
        one.reach(at(huge_page), Read);
    }
    assert_eq!((shared.free(&machine.platform()), one.memory.frames().free()), (1, 2 * 512 - 2 - 1 - 512));
    one.memory.remove_slot(devices).unwrap();
    assert_eq!((shared.free(&machine.platform()), one.memory.frames().free()), (1, 2 * 512 - 2));
    assert_eq!(one.fault(at(0), Translation, Write), Err(Error::NoFrames { ipa: at(0) }));

    assert_eq!(one.memory.release_tables(), 1);
    assert_eq!((shared.free(&machine.platform()), one.memory.frames().free()), (2, 512 - 2));
    assert_eq!(one.memory.frames().free_to_all(&machine.platform()), 2 * 512);
    one.reach(at(0), Write);
    assert_eq!((shared.free(&machine.platform()), one.memory.frame_use().data), (1, 512));
}
