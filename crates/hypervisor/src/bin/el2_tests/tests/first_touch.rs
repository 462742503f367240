// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Demand mapping: a first touch faults, is mapped, and continues.

use twofold_memory::{Done, Pages};
use twofold_stage2::Level;

use crate::agent;
use crate::check::Outcome;
use crate::demand::{Demand, RAM};
use crate::exit::Exit;
use crate::machine::{BLOCK_2M, Machine, PAGE};

tests!(
    first_touch::a_load_faults_once_and_sees_zeros,
    first_touch::a_store_faults_once_and_stays,
    first_touch::each_page_is_counted_once,
    first_touch::a_block_is_zeroed_whole_and_faults_once,
    first_touch::what_does_not_fit_a_block_is_mapped_by_pages,
    first_touch::what_a_loader_wrote_is_there,
    first_touch::a_call_is_granted_execution,
    first_touch::a_fault_that_finds_all_in_place_is_stale,
);

const PAGE_TOUCHED: Done = Done::Mapped { level: Level::L3, first_touch: true };
const BLOCK_TOUCHED: Done = Done::Mapped { level: Level::L2, first_touch: true };

fn a_load_faults_once_and_sees_zeros(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Small, BLOCK_2M)?;
    for page in [0, 1, 2, 300, 511] {
        let first = guest.load(RAM + page * PAGE)?;
        check_eq!(first.faults, [PAGE_TOUCHED], "page {page}");
        for offset in [0, 8, PAGE - 8] {
            let again = guest.load(RAM + page * PAGE + offset)?;
            check_eq!(again.end, Ok(0), "word {offset:#x} of page {page}");
            check_eq!(again.faults, [], "faults of the second touch");
        }
    }
    Ok(())
}

fn a_store_faults_once_and_stays(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Small, BLOCK_2M)?;
    for page in 0..64 {
        check_eq!(guest.store(RAM + page * PAGE, !page)?.faults, [PAGE_TOUCHED], "page {page}");
    }
    for page in 0..64 {
        check_eq!(guest.load(RAM + page * PAGE)?.end, Ok(!page), "page {page}");
        check_eq!(guest.load(RAM + page * PAGE + 8)?.end, Ok(0), "the next word of page {page}");
    }
    Ok(())
}

fn each_page_is_counted_once(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Small, BLOCK_2M)?;
    let before = guest.memory.counts();
    for _ in 0..3 {
        for page in 0..10 {
            guest.load(RAM + page * PAGE)?.end?;
            guest.store(RAM + page * PAGE, 1)?.end?;
        }
    }
    let after = guest.memory.counts();
    check_eq!(after.first_touches[3] - before.first_touches[3], 10, "first touches");
    check_eq!(after.mapped[3] - before.mapped[3], 10, "pages mapped");
    check_eq!(after.frames_zeroed - before.frames_zeroed, 10, "frames zeroed");
    Ok(())
}

fn a_block_is_zeroed_whole_and_faults_once(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Largest, 2 * BLOCK_2M)?;
    let before = guest.memory.counts();
    check_eq!(guest.load(RAM + BLOCK_2M + 5 * PAGE)?.faults, [BLOCK_TOUCHED], "the touch");
    for page in 0..512 {
        let access = guest.load(RAM + BLOCK_2M + page * PAGE + 8)?;
        check_eq!((access.end, access.faults.len()), (Ok(0), 0), "page {page}");
    }
    let after = guest.memory.counts();
    check_eq!(after.first_touches[2] - before.first_touches[2], 1, "first touches");
    check_eq!(after.frames_zeroed - before.frames_zeroed, 512, "frames zeroed");
    Ok(())
}

fn what_does_not_fit_a_block_is_mapped_by_pages(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Largest, BLOCK_2M + 2 * PAGE)?;
    check_eq!(guest.load(RAM)?.faults, [BLOCK_TOUCHED], "the part that fits");
    check_eq!(guest.load(RAM + BLOCK_2M)?.faults, [PAGE_TOUCHED], "the first page after it");
    check_eq!(guest.load(RAM + BLOCK_2M + PAGE)?.faults, [PAGE_TOUCHED], "the second page after it");
    let beyond = guest.load(RAM + BLOCK_2M + 2 * PAGE)?.end;
    check!(matches!(beyond, Err(Exit::Exception(_))), "after the slot: {beyond:x?}");
    Ok(())
}

fn what_a_loader_wrote_is_there(mut machine: Machine) -> Outcome {
    for pages in [Pages::Small, Pages::Largest] {
        let mut guest = Demand::new(&mut machine, pages, 2 * BLOCK_2M)?;
        // Across the end of a page.
        guest.memory.write(RAM + (3 * PAGE - 8), &[0x11; 16])?;
        check_eq!(guest.load(RAM + 3 * PAGE)?.end, Ok(0x1111_1111_1111_1111), "the second part, {pages:?}");
        check_eq!(guest.load(RAM + (3 * PAGE - 8))?.end, Ok(0x1111_1111_1111_1111), "the first part, {pages:?}");
        check_eq!(guest.load(RAM + (3 * PAGE - 16))?.end, Ok(0), "before it, {pages:?}");
        check_eq!(guest.load(RAM + 3 * PAGE + 8)?.end, Ok(0), "after it, {pages:?}");
    }
    Ok(())
}

fn a_call_is_granted_execution(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Small, BLOCK_2M)?;
    guest.store(RAM, agent::function(42))?.end?;
    let call = guest.fetch(RAM)?;
    check_eq!(call.end, Ok(42), "the call");
    // If fetches need no maintenance, the call does not fault.
    let expected: &[Done] = if machine.features.instruction_cache_coherent { &[] } else { &[Done::Widened] };
    check_eq!(call.faults, expected, "its faults");
    check_eq!(guest.fetch(RAM)?.faults, [], "the second call's faults");
    Ok(())
}

fn a_fault_that_finds_all_in_place_is_stale(mut machine: Machine) -> Outcome {
    let mut guest = Demand::new(&mut machine, Pages::Small, BLOCK_2M)?;
    // Two vCPUs can touch a page at once: the second fault then arrives after the first one was answered.
    let Err(Exit::Fault(stopped)) = guest.agent.store(RAM.raw(), 1) else {
        return Err(crate::check::Failure::new("the first touch did not fault"));
    };
    let mut answer = || guest.answer(&stopped);
    check_eq!(answer()?, twofold_memory::Answer::Retry(PAGE_TOUCHED), "the first answer");
    check_eq!(answer()?, twofold_memory::Answer::Retry(Done::Stale), "the second answer");
    check_eq!(guest.store(RAM, 2)?.faults, [], "faults of the retry");
    Ok(())
}
