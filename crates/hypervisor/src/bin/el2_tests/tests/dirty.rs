// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty state that hardware manages (FEAT_HAFDBS): a write to a leaf that has DBM set and no write permission does
//! not fault, and makes the leaf writable.
//!
//! If the CPU lacks the feature, or the engine must not use it, the same write faults and the answer to the fault
//! records it.

use twofold_hypervisor::log;
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Access, Attributes, Ipa, Level, Relaxed};

use super::mapping::map_gigabyte;
use super::permissions::stopped_by;
use crate::check::Outcome;
use crate::hand_mapped_guest::{HERE, HandMappedGuest, VMID, page_at};
use crate::machine::{BLOCK_1G, BLOCK_2M, Frame, Machine, PAGE};

tests!(
    dirty::a_write_is_recorded_on_a_page,
    dirty::a_write_is_recorded_on_a_2m_block,
    dirty::a_write_is_recorded_on_a_1g_block,
    dirty::a_write_is_recorded_with_a_clear_access_flag,
    dirty::a_leaf_that_may_not_be_read_becomes_write_only,
    dirty::a_read_only_leaf_without_dbm_still_faults,
    dirty::protecting_ends_recording,
    dirty::splitting_keeps_what_was_recorded,
    dirty::unmapping_tells_what_was_recorded,
    dirty::many_pages_are_recorded_one_by_one,
    dirty::without_hardware_the_write_faults,
);

/// Writable, clean.
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };

/// A leaf under test: its start, its span, and the part that the guest may touch.
struct LeafUnderTest {
    guest: HandMappedGuest,
    leaf: Ipa,
    span: u64,
    ipa: Ipa,
    frame: Frame,
}

impl LeafUnderTest {
    fn new(machine: &mut Machine, level: Level, attributes: &Attributes) -> Outcome<Self> {
        let mut guest = HandMappedGuest::new(machine, VMID)?;
        if level == Level::L1 {
            let part = map_gigabyte(machine, &mut guest, HERE, attributes)?;
            return Ok(Self { guest, leaf: HERE, span: BLOCK_1G, ipa: part.ipa, frame: part.frame });
        }
        let span = if level == Level::L2 { BLOCK_2M } else { PAGE };
        let frame = machine.frame(span)?;
        guest.map(machine, HERE, frame.pa, level, attributes)?;
        Ok(Self { guest, leaf: HERE, span, ipa: HERE, frame })
    }

    fn is_dirty(&self) -> Outcome<bool> {
        Ok(self.guest.leaf(self.leaf)?.descriptor.is_hardware_dirty())
    }

    /// Stores. If hardware does not record the write, the answer to the fault does. Checks that it is recorded.
    fn store(&mut self, level: Level, offset: u64, value: u64) -> Outcome {
        let at = self.ipa + offset;
        let mut store = self.guest.store(at, value);
        if !self.guest.stage2.features().hardware_dirty_state && !self.is_dirty()? {
            let page = at.align_down(PAGE);
            stopped_by(store.map(|()| 0), FaultKind::Permission, AccessKind::Write, level, page)?;
            check_eq!(self.guest.relax(at, Access::READ_WRITE)?, Relaxed::Widened, "relaxing");
            store = self.guest.store(at, value);
        }
        store?;
        check_eq!(self.frame.read(offset), value, "the store");
        check!(self.is_dirty()?, "the store at {at} was not recorded");
        Ok(())
    }
}

fn a_write_is_recorded_on_a_page(machine: Machine) -> Outcome {
    a_write_is_recorded(machine, Level::L3)
}

fn a_write_is_recorded_on_a_2m_block(machine: Machine) -> Outcome {
    a_write_is_recorded(machine, Level::L2)
}

fn a_write_is_recorded_on_a_1g_block(machine: Machine) -> Outcome {
    a_write_is_recorded(machine, Level::L1)
}

fn a_write_is_recorded(mut machine: Machine, level: Level) -> Outcome {
    for warm in [false, true] {
        let mut tested = LeafUnderTest::new(&mut machine, level, &CLEAN)?;
        if warm {
            check_eq!(tested.guest.load(tested.ipa)?, 0, "the load");
        }
        check!(!tested.is_dirty()?, "the leaf is dirty before any store");
        for round in 1..4 {
            tested.store(level, 0, round)?;
            tested.store(level, tested.frame.size - 8, round)?;
            let dirty = tested.guest.clean(tested.leaf..tested.leaf + tested.span)?;
            check_eq!(dirty.len(), 1, "dirty leaves in round {round}");
            check_eq!(dirty[0], (tested.leaf, level), "the dirty leaf");
            check!(!tested.is_dirty()?, "cleaning left the leaf dirty");
            check_eq!(tested.guest.load(tested.ipa)?, round, "a load of a clean leaf");
            check!(!tested.is_dirty()?, "a load after cleaning was recorded as a write");
            check_eq!(
                tested.guest.clean(tested.leaf..tested.leaf + tested.span)?.len(),
                0,
                "dirty leaves of a clean one"
            );
        }
    }
    Ok(())
}

fn a_write_is_recorded_with_a_clear_access_flag(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    for level in [Level::L3, Level::L2, Level::L1] {
        let mut tested = LeafUnderTest::new(&mut machine, level, &Attributes { accessed: false, ..CLEAN })?;
        tested.store(level, 0, 1)?;
        let accessed = tested.guest.leaf(tested.leaf)?.descriptor.attributes(&machine.features).accessed;
        check!(accessed, "level {level}: the access flag is clear");
    }
    Ok(())
}

fn a_leaf_that_may_not_be_read_becomes_write_only(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    let attributes = Attributes { access: Access::NONE, ..CLEAN };
    let mut tested = LeafUnderTest::new(&mut machine, Level::L3, &attributes)?;
    stopped_by(tested.guest.load(HERE), FaultKind::Permission, AccessKind::Read, Level::L3, HERE)?;
    tested.store(Level::L3, 0, 1)?;
    let access = tested.guest.leaf(HERE)?.descriptor.access();
    check_eq!(access, Access { write: true, ..Access::NONE }, "the access");
    stopped_by(tested.guest.load(HERE), FaultKind::Permission, AccessKind::Read, Level::L3, HERE)?;
    Ok(())
}

fn a_read_only_leaf_without_dbm_still_faults(mut machine: Machine) -> Outcome {
    for level in [Level::L3, Level::L2, Level::L1] {
        let mut tested = LeafUnderTest::new(&mut machine, level, &Attributes::ram(Access::READ))?;
        let store = tested.guest.store(tested.ipa, 1).map(|()| 0);
        stopped_by(store, FaultKind::Permission, AccessKind::Write, level, tested.ipa)?;
        check_eq!(tested.guest.load(tested.ipa)?, 0, "the load at level {level}");
    }
    Ok(())
}

fn protecting_ends_recording(mut machine: Machine) -> Outcome {
    let mut tested = LeafUnderTest::new(&mut machine, Level::L3, &CLEAN)?;
    tested.store(Level::L3, 0, 1)?;
    tested.guest.protect(&mut machine, page_at(HERE), Access::READ)?;
    let store = tested.guest.store(HERE, 2).map(|()| 0);
    stopped_by(store, FaultKind::Permission, AccessKind::Write, Level::L3, HERE)?;
    check_eq!(tested.frame.read(0), 1, "the content");
    Ok(())
}

fn splitting_keeps_what_was_recorded(mut machine: Machine) -> Outcome {
    for written in [false, true] {
        let mut tested = LeafUnderTest::new(&mut machine, Level::L2, &CLEAN)?;
        if written {
            tested.store(Level::L2, 0, 1)?;
        }
        tested.guest.unmap(&mut machine, page_at(HERE + 9 * PAGE))?;
        for page in [0, 8, 10, 511] {
            let leaf = tested.guest.leaf(HERE + page * PAGE)?;
            check_eq!(leaf.level, Level::L3, "the level of page {page}");
            check_eq!(leaf.descriptor.is_hardware_dirty(), written, "the record of page {page}");
        }
        // From here on, each page has its own record.
        tested.guest.clean(HERE..HERE + BLOCK_2M)?;
        tested.store(Level::L3, 0, 2)?;
        check!(!tested.guest.leaf(HERE + PAGE)?.descriptor.is_hardware_dirty(), "a neighbour was recorded too");
    }
    Ok(())
}

fn unmapping_tells_what_was_recorded(mut machine: Machine) -> Outcome {
    for written in [false, true] {
        let mut tested = LeafUnderTest::new(&mut machine, Level::L3, &CLEAN)?;
        tested.guest.load(HERE)?;
        if written {
            tested.store(Level::L3, 0, 1)?;
        }
        let (removed, _) = tested.guest.unmap(&mut machine, page_at(HERE))?;
        check_eq!(removed.len(), 1, "leaves removed");
        check_eq!(removed[0].descriptor.is_hardware_dirty(), written, "the record");
    }
    Ok(())
}

fn many_pages_are_recorded_one_by_one(mut machine: Machine) -> Outcome {
    const COUNT: u64 = 256;
    let mut guest = HandMappedGuest::new(&mut machine, VMID)?;
    let block = machine.frame(COUNT * PAGE)?;
    for page in 0..COUNT {
        guest.map(&mut machine, HERE + page * PAGE, block.pa + page * PAGE, Level::L3, &CLEAN)?;
    }
    let mut tested = LeafUnderTest { guest, leaf: HERE, span: PAGE, ipa: HERE, frame: block };
    for round in 1..4 {
        for page in 0..COUNT {
            tested.guest.load(HERE + page * PAGE)?;
        }
        for page in (0..COUNT).step_by(round) {
            (tested.leaf, tested.ipa) = (HERE + page * PAGE, HERE + page * PAGE);
            tested.frame = Frame { pa: block.pa + page * PAGE, size: PAGE };
            tested.store(Level::L3, 0, page + round as u64)?;
        }
        let dirty = tested.guest.clean(HERE..HERE + COUNT * PAGE)?;
        let found = dirty.iter().map(|(leaf, _)| (*leaf - HERE) / PAGE);
        check!(found.eq((0..COUNT).step_by(round)), "round {round}: {} leaves are dirty", dirty.len());
    }
    Ok(())
}

/// The engine on a CPU without the feature. A CPU that has the feature runs the test with the feature hidden.
fn without_hardware_the_write_faults(mut machine: Machine) -> Outcome {
    machine.features.hardware_dirty_state = false;
    for level in [Level::L3, Level::L2, Level::L1] {
        let mut tested = LeafUnderTest::new(&mut machine, level, &CLEAN)?;
        check_eq!(tested.guest.load(tested.ipa)?, 0, "the load");
        // `LeafUnderTest::store` checks the fault.
        for round in 1..3 {
            tested.store(level, 0, round)?;
            let dirty = tested.guest.clean(tested.leaf..tested.leaf + tested.span)?;
            check_eq!(dirty.len(), 1, "dirty leaves at level {level}");
        }
    }
    Ok(())
}

fn skipped(machine: &Machine) -> bool {
    let skipped = !machine.features.hardware_dirty_state;
    if skipped {
        log!("skipped: this CPU does not manage dirty state (FEAT_HAFDBS)");
    }
    skipped
}
