// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that what makes no sense is refused, with what would; and that the log is then as it was.

use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Backing, Error, Pages, Slot};
use twofold_stage2::{Features, Pa};

use crate::machine::{PAGE, SECTION, device_at};
use crate::world::{BASE, FEATURES, PAGES, START, World};

/// What a log says of its pages, and what the tables do.
fn state(world: &World) -> (DirtyPages, Option<Tracker>, Vec<u64>) {
    let mut dirty = DirtyPages::new();
    world.log().get(&mut dirty).unwrap();
    let tables = world.guest.scan().leaves.into_iter().map(|leaf| leaf.raw);
    (dirty, world.log().tracker(), tables.collect())
}

/// A log of this kind, with something in it.
fn world(tracker: Tracker) -> World {
    let mut world = World::new(Pages::Largest);
    world.write_all(0..PAGES);
    world.start(LogOptions::new(tracker));
    world.write_all([0, 64, 700, 1099]);
    world
}

/// That it is refused like this, in these words, and that nothing comes of it.
fn refused(action: impl Fn(&World) -> Result<(), LogError>, error: LogError, words: &str) {
    let mut world = world(Tracker::Manual);
    let before = state(&world);
    assert_eq!(action(&world), Err(error));
    assert_eq!(error.to_string(), words);
    assert!(state(&world) == before, "{error}: but something was done");
    world.check_told([0, 64, 700, 1099]);
}

#[test]
fn clears_that_name_no_words_of_the_slot() {
    let clear = |first, pages, words: usize| move |world: &World| world.log().clear(first, pages, &vec![!0; words]);
    for (first, aligned) in [(1, 0), (63, 0), (65, 64), (u64::MAX, u64::MAX / 64 * 64)] {
        let words = format!("page {first} is not a multiple of 64; start from {aligned}");
        refused(clear(first, 64, 1), LogError::Misaligned { page: first }, &words);
    }
    let length = |pages| LogError::Length { pages, slot: PAGES };
    refused(
        clear(0, 65, 2),
        length(65),
        "65 pages are no multiple of 64, and do not end with the slot, which has 1100",
    );
    refused(
        clear(1088, 11, 1),
        length(11),
        "11 pages are no multiple of 64, and do not end with the slot, which has 1100",
    );
    for (page, pages) in [(0, PAGES + 1), (1088, 64), (1152, 0), (64, u64::MAX), (u64::MAX / 64 * 64, 64)] {
        let words = format!("page {page} and {pages} more are beyond the slot, which has 1100");
        refused(clear(page, pages, 1), LogError::BeyondSlot { page, pages, slot: PAGES }, &words);
    }
    for (pages, words, needed) in [(64, 0, 1), (64, 2, 1), (128, 1, 2), (0, 1, 0)] {
        let text = format!("a mask of {words} words for {pages} pages; it takes {needed}");
        refused(clear(0, pages, words), LogError::Mask { words, pages }, &text);
    }
    let text = "a mask of 17 words for 1100 pages; it takes 18";
    refused(clear(0, PAGES, 17), LogError::Mask { words: 17, pages: PAGES }, text);
}

/// Told of by the log of a larger slot.
#[test]
fn pages_of_another_slot() {
    let mut other = World::with(FEATURES, Pages::Small, BASE, 1200, 64);
    other.start(LogOptions::new(Tracker::Manual));
    other.write_all([0, 64, 1190]);
    let mut dirty = DirtyPages::new();
    other.log().get(&mut dirty).unwrap();
    refused(
        |world| world.log().clear_these(&dirty),
        LogError::BeyondSlot { page: 1152, pages: 64, slot: PAGES },
        "page 1152 and 64 more are beyond the slot, which has 1100",
    );
}

/// The first word that is beyond a slot which ends with a word.
#[test]
fn a_word_behind_the_slot() {
    let mut other = World::with(FEATURES, Pages::Small, BASE, 128, 64);
    other.start(LogOptions::new(Tracker::Manual));
    other.write(64);
    let mut dirty = DirtyPages::new();
    other.log().get(&mut dirty).unwrap();
    let mut world = World::with(FEATURES, Pages::Small, BASE, 64, 64);
    world.start(LogOptions::new(Tracker::Manual));
    let beyond = LogError::BeyondSlot { page: 64, pages: 64, slot: 64 };
    assert_eq!(world.log().clear_these(&dirty), Err(beyond));
    assert_eq!(LogOptions::new(Tracker::Manual).chunk, 2 << 20);
}

#[test]
fn a_start_of_what_runs() {
    for tracker in Tracker::ALL {
        refused(
            |world| world.log().start(&LogOptions::new(tracker)),
            LogError::Running { start: START },
            "the log of the slot at 0x100003000 runs already: stop it first",
        );
    }
    refused(
        |world| world.log().rejoin(0, 1).map(|_| ()),
        LogError::Running { start: START },
        "the log of the slot at 0x100003000 runs already: stop it first",
    );
}

#[test]
fn options_that_make_no_sense() {
    let start = |options: LogOptions| move |world: &World| world.log().start(&options);
    let manual = LogOptions::new(Tracker::Manual);
    for chunk in [1, 2048, 4097, 12 << 10, u64::MAX] {
        let words = format!("a chunk of {chunk} bytes; take 0, or a power of two of at least 4096");
        refused(start(LogOptions { chunk, ..manual }), LogError::Chunk { chunk }, &words);
    }
    for section in [0, 1, 4, 63, 65, 1024, u64::MAX] {
        let words = format!("a section of {section} pages; take a power of two from 8 to 512");
        refused(start(LogOptions { section, ..manual }), LogError::Section { pages: section }, &words);
    }
    refused(
        start(LogOptions { all_dirty: true, ..LogOptions::new(Tracker::WriteProtect) }),
        LogError::AllDirtyNeedsClear,
        "write-protect has no all-dirty start; take manual",
    );
    // Those at the ends of what is taken.
    for (chunk, section) in [(4096, 8), (1 << 63, 512)] {
        let mut world = World::new(Pages::Largest);
        world.write_all(0..PAGES);
        world.start(LogOptions { chunk, section, ..LogOptions::new(Tracker::Combined) });
        world.write(70);
        world.check_told([70]);
    }
}

#[test]
fn hardware_that_records_nothing() {
    let features = Features { hardware_dirty_state: false, ..FEATURES };
    for tracker in Tracker::ALL {
        let mut world = World::with(features, Pages::Small, START, PAGES, 64);
        world.write_all(0..PAGES);
        let tables = world.guest.scan();
        let started = world.log().start(&LogOptions::new(tracker));
        if tracker.needs_dirty_state() {
            assert_eq!(started, Err(LogError::NoDirtyState));
            assert_eq!((world.log().tracker(), world.guest.scan()), (None, tables));
        } else {
            assert_eq!((started, world.log().tracker()), (Ok(()), Some(tracker)));
        }
    }
    let words = "this CPU records no writes (FEAT_HAFDBS with dirty state); take write-protect or manual";
    assert_eq!(LogError::NoDirtyState.to_string(), words);
}

#[test]
fn what_only_a_running_log_does() {
    for was_started in [false, true] {
        let mut world = World::new(Pages::Small);
        if was_started {
            world.start(LogOptions::new(Tracker::Manual));
            world.log().stop().unwrap();
        }
        let (log, mut dirty) = (world.log(), DirtyPages::new());
        let error = LogError::NotRunning { start: START };
        assert_eq!(log.stop(), Err(error));
        assert_eq!(log.get(&mut dirty), Err(error));
        assert_eq!(log.clear(0, 64, &[1]), Err(error));
        assert_eq!(log.clear_these(&dirty), Err(error));
        assert_eq!(error.to_string(), "no log of the slot at 0x100003000 runs: start one first");
        assert_eq!((log.tracker(), dirty), (None, DirtyPages::new()));
    }
}

#[test]
fn a_clear_of_what_is_cleared_by_get() {
    let mut world = world(Tracker::WriteProtect);
    world.check_told([0, 64, 700, 1099]);
    world.write(3);
    assert_eq!(world.log().clear(0, 64, &[!0]), Err(LogError::ClearedByGet));
    assert_eq!(world.log().clear_these(&DirtyPages::new()), Err(LogError::ClearedByGet));
    let words = "this log is cleared by reading it (write-protect); take another tracker to clear it apart";
    assert_eq!(LogError::ClearedByGet.to_string(), words);
    world.check_told([3]);
}

#[test]
fn slots_that_have_no_log() {
    let mut world = World::new(Pages::Small);
    let (device, rom, gone) = (BASE + (1 << 30), BASE + (2 << 30), BASE + (3 << 30));
    let mut add = |start, backing, writable| {
        world.guest.memory.add_slot(Slot { range: start..start + SECTION, backing, writable }).unwrap()
    };
    let with_device = add(device, device_at(Pa::new(0x20_0000_0000)), true);
    let read_only = add(rom, Backing::Ram, false);
    let removed = add(gone, Backing::Ram, true);
    world.guest.memory.remove_slot(removed).unwrap();
    let error = |slot| world.guest.memory.dirty_log(slot).err().unwrap();
    for (slot, expected, words) in [
        (with_device, LogError::NotRam { start: device }, "the slot at 0x140000000 is no RAM: it has no log"),
        (read_only, LogError::ReadOnly { start: rom }, "the slot at 0x180000000 is read-only: it has no log"),
        (removed, LogError::SlotGone, "the slot is gone"),
    ] {
        assert_eq!((error(slot), error(slot).to_string().as_str()), (expected, words));
    }
    // What a device writes to what has no log is nobody's business.
    assert_eq!(world.guest.memory.write(rom, &[1; PAGE as usize]), Ok(()));
    assert!(matches!(world.guest.memory.write(device, &[1]), Err(Error::NoRam { .. })));
}
