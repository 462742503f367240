// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages that a guest accessed in some time: those that are in memory, and those that have left.

use twofold_memory::swap::WrittenOut;

use crate::rig::{Plan, Rig, ipa};

/// Ends a time, and begins the next. Returns the pages in memory that were accessed in it.
fn count(rig: &Rig) -> u64 {
    let accessed = rig.memory.count_accessed(ipa(0)..ipa(1024)).unwrap();
    rig.memory.stage2().invalidate_all();
    accessed
}

#[test]
fn pages_are_counted_once_in_the_time_of_their_access() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    (0..30).for_each(|page| rig.write(page));
    assert_eq!(count(&rig), 30);
    assert_eq!(count(&rig), 0);
    for page in [3, 4, 4, 29] {
        rig.read(page);
    }
    assert_eq!((count(&rig), rig.memory.accessed_and_left()), (3, 0));
    rig.check();
    rig.end();
}

/// Of the pages that leave, those count that were accessed since the time began.
#[test]
fn a_page_that_leaves_counts_if_it_was_accessed() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    (0..30).for_each(|page| rig.write(page));
    assert_eq!(count(&rig), 30);
    (0..10).for_each(|page| rig.read(page));
    for page in [0, 1, 20, 21, 22] {
        assert_eq!(rig.memory.write_out(ipa(page)), Ok(WrittenOut::Started));
    }
    assert_eq!((rig.memory.accessed_and_left(), count(&rig)), (2, 8));
    rig.end();
}

#[test]
fn no_page_has_left_without_a_store() {
    let mut rig = Rig::new();
    rig.write(0);
    std::rc::Rc::get_mut(&mut rig.memory).unwrap().detach_store().unwrap();
    assert_eq!(rig.memory.accessed_and_left(), 0);
    rig.end();
}

/// A block has one flag, so that all its pages count.
#[test]
fn a_block_counts_with_all_its_pages() {
    let rig = Rig::new();
    rig.write(5);
    assert_eq!((count(&rig), count(&rig)), (512, 0));
    rig.read(511);
    // Also if the range has a part of it.
    assert_eq!(rig.memory.count_accessed(ipa(0)..ipa(8)), Ok(512));
    rig.end();
}
