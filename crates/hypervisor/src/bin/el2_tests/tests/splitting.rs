// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A part of a block is changed: the part gets the change, and its neighbours stay the same.

use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Access, Attributes, Ipa, Level, Mapped};

use super::mapping::{Part, map_gigabyte};
use super::permissions::stopped_by;
use crate::check::Outcome;
use crate::hand_mapped_guest::{HERE, HandMappedGuest, VMID, page_at};
use crate::machine::{BLOCK_2M, Frame, Machine, PAGE};

tests!(
    splitting::unmapping_a_page_of_a_2m_block_leaves_the_others,
    splitting::unmapping_a_page_of_a_1g_block_leaves_the_others,
    splitting::unmapping_2m_of_a_1g_block_splits_one_level,
    splitting::mapping_a_page_in_a_block_replaces_that_page_alone,
    splitting::protecting_a_page_of_a_block_leaves_the_others_writable,
    splitting::mapping_a_block_over_its_pages_is_refused,
);

const RAM: Attributes = Attributes::ram(Access::READ_WRITE);

/// A guest with a block at [`HERE`] whose pages were all touched.
fn with_block(machine: &mut Machine) -> Outcome<(HandMappedGuest, Frame)> {
    let mut guest = HandMappedGuest::new(machine, VMID)?;
    let block = machine.frame(BLOCK_2M)?;
    guest.map(machine, HERE, block.pa, Level::L2, &RAM)?;
    number(block);
    others_are_intact(&mut guest, HERE, None)?;
    Ok((guest, block))
}

/// Writes into each page its number.
fn number(block: Frame) {
    for page in 0..block.size / PAGE {
        block.write(page * PAGE, page);
    }
}

/// Checks that all pages of the 2 MiB at `ipa`, except `changed`, still hold their number and can be written.
fn others_are_intact(guest: &mut HandMappedGuest, ipa: Ipa, changed: Option<u64>) -> Outcome {
    for page in (0..512).filter(|page| Some(*page) != changed) {
        check_eq!(guest.load(ipa + page * PAGE)?, page, "page {page}");
        guest.store(ipa + page * PAGE + 8, page)?;
    }
    Ok(())
}

fn unmapping_a_page_of_a_2m_block_leaves_the_others(mut machine: Machine) -> Outcome {
    for page in [0, 7, 511] {
        let (mut guest, block) = with_block(&mut machine)?;
        let hole = HERE + page * PAGE;
        let (removed, _) = guest.unmap(&mut machine, page_at(hole))?;
        check_eq!(removed.len(), 1, "leaves removed");
        check_eq!(removed[0].descriptor.address(), block.pa + page * PAGE, "the removed leaf");
        stopped_by(guest.load(hole), FaultKind::Translation, AccessKind::Read, Level::L3, hole)?;
        others_are_intact(&mut guest, HERE, Some(page))?;
    }
    Ok(())
}

fn unmapping_a_page_of_a_1g_block_leaves_the_others(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let Part { ipa, frame } = map_gigabyte(&mut machine, &mut guest, HERE, &RAM)?;
    number(frame);
    others_are_intact(&mut guest, ipa, None)?;
    let hole = ipa + 100 * PAGE;
    let (removed, _) = guest.unmap(&mut machine, page_at(hole))?;
    check_eq!(removed.len(), 1, "leaves removed");
    stopped_by(guest.load(hole), FaultKind::Translation, AccessKind::Read, Level::L3, hole)?;
    others_are_intact(&mut guest, ipa, Some(100))?;
    check_eq!(guest.leaf(ipa)?.level, Level::L3, "the level of its neighbour");
    let far = if ipa == HERE { ipa + BLOCK_2M } else { HERE };
    check_eq!(guest.leaf(far)?.level, Level::L2, "the level of a distant page");
    Ok(())
}

fn unmapping_2m_of_a_1g_block_splits_one_level(mut machine: Machine) -> Outcome {
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let Part { ipa, frame } = map_gigabyte(&mut machine, &mut guest, HERE, &RAM)?;
    number(frame);
    others_are_intact(&mut guest, ipa, None)?;
    let free = machine.frames.free();
    let other = if ipa == HERE { ipa + BLOCK_2M } else { HERE };
    let (removed, _) = guest.unmap(&mut machine, other..other + BLOCK_2M)?;
    check_eq!(removed.len(), 1, "leaves removed");
    check_eq!(free - machine.frames.free(), 1, "tables taken");
    stopped_by(guest.load(other), FaultKind::Translation, AccessKind::Read, Level::L2, other)?;
    others_are_intact(&mut guest, ipa, None)?;
    check_eq!(guest.leaf(ipa)?.level, Level::L2, "the level of the rest");
    Ok(())
}

fn mapping_a_page_in_a_block_replaces_that_page_alone(mut machine: Machine) -> Outcome {
    let (mut guest, block) = with_block(&mut machine)?;
    let other = machine.page()?;
    other.write(0, 0x07e4);
    let place = HERE + 33 * PAGE;
    let mapped = guest.map_over(&mut machine, place, other.pa, Level::L3, &RAM)?;
    check!(matches!(mapped, Mapped::Replaced(old) if old.address() == block.pa + 33 * PAGE), "{mapped:x?}");
    check_eq!(guest.load(place)?, 0x07e4, "the page");
    guest.store(place, 1)?;
    check_eq!((other.read(0), block.read(33 * PAGE)), (1, 33), "the frames");
    others_are_intact(&mut guest, HERE, Some(33))
}

fn protecting_a_page_of_a_block_leaves_the_others_writable(mut machine: Machine) -> Outcome {
    let (mut guest, _) = with_block(&mut machine)?;
    let place = HERE + 200 * PAGE;
    guest.protect(&mut machine, page_at(place), Access::READ)?;
    check_eq!(guest.load(place)?, 200, "the page");
    let store = guest.store(place, 1).map(|()| 0);
    stopped_by(store, FaultKind::Permission, AccessKind::Write, Level::L3, place)?;
    others_are_intact(&mut guest, HERE, Some(200))
}

fn mapping_a_block_over_its_pages_is_refused(mut machine: Machine) -> Outcome {
    let (mut guest, frame) = HandMappedGuest::with_page(&mut machine, Access::READ_WRITE)?;
    let block = machine.frame(BLOCK_2M)?;
    let refused = guest.try_map(&mut machine, HERE, block.pa, Level::L2, &RAM);
    let expected = Err(twofold_stage2::Error::TableInTheWay { ipa: HERE, level: Level::L2 });
    check_eq!(refused, expected, "mapping a block there");
    frame.write(0, 5);
    check_eq!(guest.load(HERE)?, 5, "the page");
    Ok(())
}
