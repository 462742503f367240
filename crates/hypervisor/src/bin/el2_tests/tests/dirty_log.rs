// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log of a guest that really writes: which writes fault, and which pages the log reports.

use alloc::vec::Vec;

use twofold_hypervisor::log;
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Done, Pages};
use twofold_stage2::Level;

use crate::check::Outcome;
use crate::demand::{Demand, RAM};
use crate::machine::{BLOCK_2M, Machine, PAGE};
use crate::omit::{LeftOut, Omit};

tests!(
    dirty_log::a_protected_page_faults_once_and_is_reported,
    dirty_log::hardware_records_writes_without_a_fault,
    dirty_log::without_hardware_its_trackers_are_refused,
    dirty_log::a_fault_sets_dbm_on_its_section,
    dirty_log::a_tracked_section_stays_so_when_it_is_cleared,
    dirty_log::a_load_is_not_reported,
    dirty_log::what_the_hypervisor_writes_is_reported,
    dirty_log::a_block_is_split_by_the_first_write,
    dirty_log::blocks_come_back_with_their_content,
    dirty_log::what_a_stale_tlb_lets_through_is_not_reported,
);

/// A guest that has written to each page of its RAM.
fn written(machine: &mut Machine, pages: Pages) -> Outcome<Demand> {
    let mut guest = Demand::new(machine, pages, BLOCK_2M)?;
    for page in 0..BLOCK_2M / PAGE {
        guest.store(RAM + page * PAGE, page)?.end?;
    }
    Ok(guest)
}

fn log(guest: &Demand) -> Outcome<DirtyLog<'_, Omit>> {
    Ok(guest.memory.dirty_log(guest.ram)?)
}

/// Starts a log of the writes from now on, with no split ahead.
fn start(guest: &Demand, tracker: Tracker) -> Outcome {
    Ok(log(guest)?.start(&LogOptions { all_dirty: false, chunk: 0, ..LogOptions::new(tracker) })?)
}

fn get(guest: &Demand) -> Outcome<Vec<u64>> {
    let mut dirty = DirtyPages::new();
    log(guest)?.get(&mut dirty)?;
    Ok(dirty.pages().collect())
}

/// Gets the log, and clears the reported pages.
fn get_and_clear(guest: &Demand, tracker: Tracker) -> Outcome<Vec<u64>> {
    let mut dirty = DirtyPages::new();
    log(guest)?.get(&mut dirty)?;
    if tracker != Tracker::WriteProtect {
        log(guest)?.clear_these(&dirty)?;
    }
    Ok(dirty.pages().collect())
}

/// Stores to a page, and returns the faults.
fn store(guest: &mut Demand, page: u64, value: u64) -> Outcome<Vec<Done>> {
    let store = guest.store(RAM + page * PAGE, value)?;
    store.end?;
    Ok(store.faults)
}

fn a_protected_page_faults_once_and_is_reported(mut machine: Machine) -> Outcome {
    for tracker in [Tracker::WriteProtect, Tracker::Manual] {
        let mut guest = written(&mut machine, Pages::Small)?;
        start(&guest, tracker)?;
        check_eq!(get(&guest)?, [], "{tracker:?}: dirty pages at the start");
        for round in 0..3 {
            for page in [5, 63, 64, 511] {
                check_eq!(store(&mut guest, page, round)?, [Done::Widened], "{tracker:?}: the first store to {page}");
                check_eq!(store(&mut guest, page, round)?, [], "{tracker:?}: the second store to {page}");
            }
            check_eq!(get_and_clear(&guest, tracker)?, [5, 63, 64, 511], "{tracker:?}: dirty pages in round {round}");
            check_eq!(get(&guest)?, [], "{tracker:?}: dirty pages after they were cleared");
        }
        log(&guest)?.stop()?;
        check_eq!(store(&mut guest, 5, 9)?, [Done::Widened], "{tracker:?}: a store after the end");
        check_eq!(guest.load(RAM + 511 * PAGE)?.end, Ok(2), "{tracker:?}: the stored value");
    }
    Ok(())
}

fn hardware_records_writes_without_a_fault(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    let mut guest = written(&mut machine, Pages::Small)?;
    start(&guest, Tracker::Hardware)?;
    check_eq!(get(&guest)?, [], "dirty pages at the start");
    for round in 0..3 {
        for page in [0, 7, 8, 300] {
            check_eq!(store(&mut guest, page, round)?, [], "faults of the store to {page}");
        }
        check_eq!(get(&guest)?, [0, 7, 8, 300], "dirty pages in round {round}");
        check_eq!(get_and_clear(&guest, Tracker::Hardware)?, [0, 7, 8, 300], "dirty pages of a second get");
        check_eq!(get(&guest)?, [], "dirty pages after they were cleared");
    }
    Ok(())
}

fn without_hardware_its_trackers_are_refused(mut machine: Machine) -> Outcome {
    machine.features.hardware_dirty_state = false;
    let mut guest = written(&mut machine, Pages::Small)?;
    for tracker in Tracker::ALL.into_iter().filter(|tracker| tracker.needs_dirty_state()) {
        let refused = log(&guest)?.start(&LogOptions::new(tracker));
        check_eq!(refused, Err(LogError::NoDirtyState), "{tracker:?}");
        check_eq!(log(&guest)?.tracker(), None, "the running tracker after that");
    }
    start(&guest, Tracker::Manual)?;
    check_eq!(store(&mut guest, 1, 1)?, [Done::Widened], "faults of a store under a tracker without hardware");
    check_eq!(get(&guest)?, [1], "dirty pages");
    Ok(())
}

fn a_fault_sets_dbm_on_its_section(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    let mut guest = written(&mut machine, Pages::Small)?;
    start(&guest, Tracker::Combined)?;
    for round in 0..3 {
        check_eq!(store(&mut guest, 65, round)?, [Done::Widened], "the first store to a section");
        for page in [64, 66, 127] {
            check_eq!(store(&mut guest, page, round)?, [], "a store to page {page} of the same section");
        }
        check_eq!(store(&mut guest, 128, round)?, [Done::Widened], "the first store to the next section");
        check_eq!(get_and_clear(&guest, Tracker::Combined)?, [64, 65, 66, 127, 128], "dirty pages in round {round}");
        check_eq!(get(&guest)?, [], "dirty pages after they were cleared");
    }
    Ok(())
}

fn a_tracked_section_stays_so_when_it_is_cleared(mut machine: Machine) -> Outcome {
    if skipped(&machine) {
        return Ok(());
    }
    let mut guest = written(&mut machine, Pages::Small)?;
    start(&guest, Tracker::Adaptive)?;
    for page in [65, 127] {
        check_eq!(store(&mut guest, page, 1)?, [Done::Widened], "the first two stores to a section");
    }
    for round in 0..3 {
        for page in [64, 65, 66, 127] {
            check_eq!(store(&mut guest, page, round)?, [], "a store to page {page} in round {round}");
        }
        check_eq!(get_and_clear(&guest, Tracker::Adaptive)?, [64, 65, 66, 127], "dirty pages in round {round}");
        check_eq!(get(&guest)?, [], "dirty pages after they were cleared");
    }
    Ok(())
}

fn a_load_is_not_reported(mut machine: Machine) -> Outcome {
    for tracker in there(&machine) {
        let mut guest = written(&mut machine, Pages::Small)?;
        start(&guest, tracker)?;
        store(&mut guest, 1, 1)?;
        for page in 0..64 {
            check_eq!(guest.load(RAM + page * PAGE)?.faults, [], "{tracker:?}: faults of the load from {page}");
        }
        check_eq!(get(&guest)?, [1], "{tracker:?}: dirty pages");
    }
    Ok(())
}

fn what_the_hypervisor_writes_is_reported(mut machine: Machine) -> Outcome {
    for tracker in there(&machine) {
        let mut guest = written(&mut machine, Pages::Small)?;
        start(&guest, tracker)?;
        // Across the end of a page.
        guest.memory.write(RAM + (3 * PAGE - 8), &[0x11; 16])?;
        check_eq!(get_and_clear(&guest, tracker)?, [2, 3], "{tracker:?}: dirty pages");
        check_eq!(get(&guest)?, [], "{tracker:?}: dirty pages after they were cleared");
        store(&mut guest, 3, 4)?;
        check_eq!(get(&guest)?, [3], "{tracker:?}: dirty pages after a store of the guest");
    }
    Ok(())
}

fn a_block_is_split_by_the_first_write(mut machine: Machine) -> Outcome {
    for tracker in there(&machine) {
        let mut guest = written(&mut machine, Pages::Largest)?;
        check_eq!(level(&guest)?, Level::L2, "the leaf that was written");
        start(&guest, tracker)?;
        let faults = store(&mut guest, 200, 1)?;
        let expected: &[Done] = if tracker == Tracker::Hardware { &[] } else { &[Done::Widened] };
        check_eq!(faults, expected, "{tracker:?}: faults");
        check_eq!(level(&guest)?, Level::L3, "{tracker:?}: the leaf after a store");
        check_eq!(get_and_clear(&guest, tracker)?, [200], "{tracker:?}: dirty pages");
        store(&mut guest, 201, 1)?;
        check_eq!(get(&guest)?, [201], "{tracker:?}: dirty pages after another store");
    }
    Ok(())
}

fn blocks_come_back_with_their_content(mut machine: Machine) -> Outcome {
    for tracker in there(&machine) {
        let mut guest = written(&mut machine, Pages::Largest)?;
        start(&guest, tracker)?;
        store(&mut guest, 17, 0x17)?;
        let running = log(&guest)?.coalesce_range(0, 1);
        check!(
            matches!(running, Err(LogError::Running { .. })),
            "{tracker:?}: coalesced while the log runs: {running:?}"
        );
        log(&guest)?.stop()?;
        let joined = log(&guest)?.coalesce_range(0, 4)?;
        check_eq!((joined.blocks, joined.next), (1, None), "{tracker:?}: coalesced blocks");
        check_eq!(level(&guest)?, Level::L2, "{tracker:?}: the leaf");
        for (page, value) in [(17, 0x17), (18, 18), (511, 511)] {
            let load = guest.load(RAM + page * PAGE)?;
            check_eq!((load.end, load.faults), (Ok(value), Vec::new()), "{tracker:?}: page {page}");
        }
        check_eq!(store(&mut guest, 18, 1)?, [], "{tracker:?}: faults of a store");
    }
    Ok(())
}

/// The reason why a clear must flush: otherwise a write bypasses the log.
fn what_a_stale_tlb_lets_through_is_not_reported(mut machine: Machine) -> Outcome {
    for (left_out, reported) in [(LeftOut::EveryTlbi, &[][..]), (LeftOut::Nothing, &[9][..])] {
        let mut guest = written(&mut machine, Pages::Small)?;
        start(&guest, Tracker::Manual)?;
        store(&mut guest, 9, 1)?;
        guest.memory.stage2().platform().leave_out(left_out);
        check_eq!(get_and_clear(&guest, Tracker::Manual)?, [9], "dirty pages");
        guest.memory.stage2().platform().leave_out(LeftOut::Nothing);
        store(&mut guest, 9, 2)?;
        check_eq!(get(&guest)?, reported, "dirty pages with {left_out:?} left out");
    }
    Ok(())
}

fn level(guest: &Demand) -> Outcome<Level> {
    let leaf = guest.memory.stage2().look_up(RAM);
    leaf.map(|leaf| leaf.level).ok_or_else(|| crate::check::Failure::new("nothing is mapped"))
}

/// The trackers that work on this CPU.
fn there(machine: &Machine) -> impl Iterator<Item = Tracker> + use<> {
    let recorded = machine.features.hardware_dirty_state;
    Tracker::ALL.into_iter().filter(move |tracker| recorded || !tracker.needs_dirty_state())
}

fn skipped(machine: &Machine) -> bool {
    let skipped = !machine.features.hardware_dirty_state;
    if skipped {
        log!("skipped: this CPU does not manage dirty state (FEAT_HAFDBS)");
    }
    skipped
}
