// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages the hand of a clock finds, in slots that are larger than what was touched of them.

use twofold_memory::swap::{Clock, Relief};

use crate::rig::{Plan, Rig, ipa};

/// Pages whose state is allocated together, at the first touch of one of them.
const PART: u64 = 64 * 512;

#[test]
fn untouched_memory_between_pages_is_passed_over() {
    let rig = Rig::with(Plan { count: 4 * PART, ..Plan::default() });
    // The first page, and the last one of the third part.
    let touched = [0, 3 * PART - 1];
    touched.iter().for_each(|page| rig.write(*page));
    // The other pages of both huge pages are zero.
    let all = Relief { freed: 1022, started: 2, ..Relief::default() };
    let mut clock = Clock::new();
    assert_eq!(clock.make_room(&rig.memory, 1024), Ok(all));
    assert_eq!(rig.memory.frame_use().data, 0);
    assert_eq!(clock.next(&*rig.memory), None, "no page has a frame");
}

/// The frame of a page behind the slot's end belongs to the huge page around the end.
#[test]
fn a_page_behind_the_end_of_the_slot_is_not_found() {
    let rig = Rig::with(Plan { count: 100, ..Plan::default() });
    rig.write(99);
    let mut clock = Clock::new();
    assert_eq!(clock.make_room(&rig.memory, 100), Ok(Relief { freed: 99, started: 1, ..Relief::default() }));
    assert_eq!(clock.next(&*rig.memory), None);
    rig.bring(99, 1);
    assert_eq!(clock.next(&*rig.memory), Some(ipa(99)));
    rig.end();
}
