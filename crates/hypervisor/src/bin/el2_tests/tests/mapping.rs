// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves of every size translate to their frames, and fault after they are unmapped.

use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Access, Attributes, Ipa, Level, Mapped, Pa, Vmid};

use super::permissions::stopped_by;
use crate::check::Outcome;
use crate::hand_mapped_guest::{HERE, HandMappedGuest, IPA_BITS, VMID, page_at};
use crate::machine::{BLOCK_1G, BLOCK_2M, Frame, Machine, PAGE};

tests!(
    mapping::a_page_leads_to_its_frame,
    mapping::a_2m_block_leads_to_its_frames,
    mapping::a_1g_block_leads_to_its_frames,
    mapping::nothing_faults_at_the_level_where_the_walk_ends,
    mapping::an_unmapped_page_faults_and_its_tables_come_back,
    mapping::a_page_unmapped_and_mapped_again_shows_its_new_frame,
    mapping::mapping_over_a_page_shows_the_new_frame,
    mapping::mapping_a_block_over_a_block_shows_the_new_frames,
    mapping::every_ipa_size_reaches_its_last_page,
    mapping::two_guests_see_their_own_frames,
);

const RAM: Attributes = Attributes::ram(Access::READ_WRITE);

fn a_page_leads_to_its_frame(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    both_ways(&mut guest, HERE, frame)
}

fn a_2m_block_leads_to_its_frames(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let block = machine.frame(BLOCK_2M)?;
    // At an address that is not a multiple of the next larger block.
    let ipa = HERE + 3 * BLOCK_2M;
    guest.map(&mut machine, ipa, block.pa, Level::L2, &RAM)?;
    both_ways(&mut guest, ipa, block)
}

fn a_1g_block_leads_to_its_frames(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let block = map_gigabyte(&mut machine, &mut guest, HERE, &RAM)?;
    both_ways(&mut guest, block.ipa, block.frame)
}

/// The part of a 1 GiB block that belongs to the guest.
pub(super) struct Part {
    pub(super) ipa: Ipa,
    pub(super) frame: Frame,
}

/// Maps a whole gigabyte of the machine at `ipa`. QEMU may have less RAM than that, so the agent touches only the
/// returned part: 2 MiB that belong to the test.
pub(super) fn map_gigabyte(
    machine: &mut Machine,
    guest: &mut HandMappedGuest,
    ipa: Ipa,
    attributes: &Attributes,
) -> Outcome<Part> {
    let frame = machine.frame(BLOCK_2M)?;
    let start = frame.pa.align_down(BLOCK_1G);
    guest.map(machine, ipa, start, Level::L1, attributes)?;
    Ok(Part { ipa: ipa + (frame.pa - start), frame })
}

/// The guest reads the values that EL2 writes, and the other way round, at several places of `frame`.
fn both_ways(guest: &mut HandMappedGuest, ipa: Ipa, frame: Frame) -> Outcome {
    let last = frame.size - PAGE;
    for (number, page) in [0, PAGE.min(last), (last / 2) & !(PAGE - 1), last].into_iter().enumerate() {
        for offset in [page, page + 0x528, page + PAGE - 8] {
            let value = offset ^ (number as u64) << 56 ^ 0xabcd;
            frame.write(offset, value);
            check_eq!(guest.load(ipa + offset)?, value, "the guest's load at {offset:#x}");
            guest.store(ipa + offset, !value)?;
            check_eq!(frame.read(offset), !value, "EL2's load at {offset:#x}");
        }
    }
    Ok(())
}

fn nothing_faults_at_the_level_where_the_walk_ends(mut machine: Machine) -> Outcome {
    let (mut guest, _) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    // 40 bits start at level 1.
    for (distance, level) in [(PAGE, Level::L3), (BLOCK_2M, Level::L2), (BLOCK_1G, Level::L1)] {
        let ipa = HERE + distance + 8;
        let (load, store, fetch) = (guest.load(ipa), guest.store(ipa, 1), guest.fetch(HERE + distance));
        for (end, access) in
            [(load, AccessKind::Read), (store.map(|()| 0), AccessKind::Write), (fetch, AccessKind::Execute)]
        {
            stopped_by(end, FaultKind::Translation, access, level, HERE + distance)?;
        }
    }
    Ok(())
}

fn an_unmapped_page_faults_and_its_tables_come_back(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let frames = machine.pages(3)?;
    let free = machine.frames.free();
    // In two tables of pages under one table of level 2.
    let places = [HERE, HERE + PAGE, HERE + BLOCK_2M];
    for (ipa, frame) in places.into_iter().zip(frames) {
        guest.page(&mut machine, ipa, frame, Access::READ_WRITE)?;
        guest.store(ipa, 1)?;
    }
    check_eq!(free - machine.frames.free(), 3, "tables taken");
    let (removed, freed) = guest.unmap(&mut machine, HERE..HERE + BLOCK_1G)?;
    check_eq!((removed.len(), freed), (3, 3), "leaves removed, tables freed");
    check_eq!(machine.frames.free(), free, "free frames afterwards");
    for ipa in places {
        stopped_by(guest.load(ipa), FaultKind::Translation, AccessKind::Read, Level::L1, ipa)?;
    }
    Ok(())
}

fn a_page_unmapped_and_mapped_again_shows_its_new_frame(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    frame.write(0, 1);
    check_eq!(guest.load(HERE)?, 1, "before");
    let (removed, _) = guest.unmap(&mut machine, page_at(HERE))?;
    check_eq!(removed.len(), 1, "leaves removed");
    let other = machine.page()?;
    other.write(0, 2);
    guest.page(&mut machine, HERE, other, Access::READ_WRITE)?;
    check_eq!(guest.load(HERE)?, 2, "after");
    Ok(())
}

fn mapping_over_a_page_shows_the_new_frame(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    guest.store(HERE, 1)?;
    let other = machine.page()?;
    other.write(0, 2);
    let mapped = guest.map_over(&mut machine, HERE, other.pa, Level::L3, &RAM)?;
    check!(matches!(mapped, Mapped::Replaced(old) if old.address() == frame.pa), "{mapped:x?}");
    check_eq!(guest.load(HERE)?, 2, "the load");
    guest.store(HERE, 3)?;
    check_eq!((frame.read(0), other.read(0)), (1, 3), "the frames");
    let again = guest.map_over(&mut machine, HERE, other.pa, Level::L3, &RAM)?;
    check!(matches!(again, Mapped::Already(_)), "mapping the same again: {again:x?}");
    Ok(())
}

fn mapping_a_block_over_a_block_shows_the_new_frames(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let (old, new) = (machine.frame(BLOCK_2M)?, machine.frame(BLOCK_2M)?);
    for (block, value) in [(old, 1), (new, 2)] {
        for page in 0..4 {
            block.write(page * PAGE, value);
        }
    }
    guest.map(&mut machine, HERE, old.pa, Level::L2, &RAM)?;
    for page in 0..4 {
        check_eq!(guest.load(HERE + page * PAGE)?, 1, "page {page} before");
    }
    let mapped = guest.map_over(&mut machine, HERE, new.pa, Level::L2, &RAM)?;
    check!(matches!(mapped, Mapped::Replaced(_)), "{mapped:x?}");
    for page in 0..4 {
        check_eq!(guest.load(HERE + page * PAGE)?, 2, "page {page} after");
    }
    Ok(())
}

/// Checks VTCR's T0SZ and SL0, and concatenated roots, against a real MMU.
fn every_ipa_size_reaches_its_last_page(mut machine: Machine) -> Outcome {
    for bits in 32..=machine.features.pa_bits.min(48) {
        let mut guest = HandMappedGuest::with_ipa_bits(&mut machine, VMID, bits)?;
        let frame = machine.page()?;
        let last = Ipa::new((1 << bits) - PAGE);
        guest.page(&mut machine, last, frame, Access::READ_WRITE)?;
        frame.write(8, u64::from(bits));
        match guest.load(last + 8) {
            Ok(value) => check_eq!(value, u64::from(bits), "the load with {bits} bits"),
            Err(exit) => check!(false, "{bits} bits: {exit}"),
        }
        stopped_by(
            guest.load(last.align_down(BLOCK_2M)),
            FaultKind::Translation,
            AccessKind::Read,
            Level::L3,
            last.align_down(BLOCK_2M),
        )?;
    }
    Ok(())
}

fn two_guests_see_their_own_frames(mut machine: Machine) -> Outcome {
    check!(IPA_BITS == 40, "the guests' tables start at level 1");
    let mut guests =
        [HandMappedGuest::new(&mut machine, Vmid::new(1))?, HandMappedGuest::new(&mut machine, Vmid::new(2))?];
    let frames = [machine.page()?, machine.page()?];
    for (guest, frame) in guests.iter_mut().zip(frames) {
        guest.page(&mut machine, HERE, frame, Access::READ_WRITE)?;
        frame.write(0, frame.pa.raw());
    }
    for turn in 0..4 {
        let (guest, frame) = (&mut guests[turn % 2], frames[turn % 2]);
        guest.load_tables();
        check_eq!(Pa::new(guest.load(HERE)?), frame.pa, "turn {turn}");
    }
    Ok(())
}
