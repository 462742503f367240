// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that memory which was cleared is not seen again: neither by the guest, nor by what reads its memory.

use twofold_memory::Backing;

use super::*;
use crate::machine::{HUGE_PAGE, PAGE};

const CONTENT: [u8; PAGE as usize] = [0xa5; PAGE as usize];
const ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];

#[test]
fn cleared_memory_reads_as_zero_and_is_zeroed_before_it_is_mapped_again() {
    for (pages, level) in [(Pages::Small, Level::L3), (Pages::Largest, Level::L2)] {
        let mut guest = RunningGuest::new(PLAIN, pages, 5);
        let slot = guest.add(BASE, 2 * HUGE_PAGE, Backing::Ram, true);
        let [kept, cleared] = [BASE + 3 * PAGE, BASE + HUGE_PAGE + 7 * PAGE];
        for page in [kept, cleared] {
            guest.memory.write(page, &CONTENT).unwrap();
            assert_eq!(guest.fault(page, Translation, Write), Ok(mapped(level, level == Level::L2)));
        }
        let zeroed = guest.memory.counts().frames_zeroed;

        guest.memory.clear(slot, BASE + HUGE_PAGE..BASE + 2 * HUGE_PAGE).unwrap();

        assert!(guest.walk(cleared).is_none() && guest.walk(kept).is_some(), "{pages:?}");
        let read = |guest: &RunningGuest, page| {
            let mut bytes = [1; PAGE as usize];
            guest.memory.read(page, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(read(&guest, cleared), ZEROES, "{pages:?}");
        assert_eq!(read(&guest, kept), CONTENT, "{pages:?}");
        assert_eq!(guest.memory.counts().frames_zeroed, zeroed, "nothing was written yet");

        assert_eq!(guest.fault(cleared, Translation, Read), Ok(mapped(level, true)), "{pages:?}");
        let pa = guest.walk(cleared).unwrap().output(cleared);
        guest.machine.check_page(pa, &ZEROES);
    }
}

#[test]
fn a_part_of_a_huge_page_can_be_cleared() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Small, 3);
    let slot = guest.add(BASE, HUGE_PAGE, Backing::Ram, true);
    for page in 60..70 {
        guest.memory.write(BASE + page * PAGE, &CONTENT).unwrap();
    }
    guest.memory.clear(slot, BASE + 62 * PAGE..BASE + 66 * PAGE).unwrap();
    for page in 60..70 {
        let mut bytes = [1; PAGE as usize];
        guest.memory.read(BASE + page * PAGE, &mut bytes).unwrap();
        assert_eq!(bytes == ZEROES, (62..66).contains(&page), "page {page}");
    }
}
