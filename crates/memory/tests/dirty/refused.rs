// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that invalid calls are refused, that the error says what is valid, and that the log is then as it was.

use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Backing, Error, Pages, Slot};
use twofold_stage2::Pa;

use crate::machine::{HUGE_PAGE, PAGE, device_at};
use crate::world::{BASE, FEATURES, PAGES, START, World};

/// What the log reports, its tracker, and all descriptors.
fn state(world: &World) -> (DirtyPages, Option<Tracker>, Vec<u64>) {
    let mut dirty = DirtyPages::new();
    world.log().get(&mut dirty).unwrap();
    let tables = world.guest.scan().leaves.into_iter().map(|leaf| leaf.raw);
    (dirty, world.log().tracker(), tables.collect())
}

/// A world whose log runs with `tracker`, and has pages in it.
fn world(tracker: Tracker) -> World {
    let mut world = World::new(Pages::Largest);
    world.write_all(0..PAGES);
    world.start(LogOptions::new(tracker));
    world.write_all([0, 64, 700, 1099]);
    world
}

/// Checks that `action` is refused with this error, in these words, and changes nothing.
fn refused(action: impl Fn(&World) -> Result<(), LogError>, error: LogError, words: &str) {
    let mut world = world(Tracker::Manual);
    let before = state(&world);
    assert_eq!(action(&world), Err(error));
    assert_eq!(error.to_string(), words);
    assert!(state(&world) == before, "{error}: but something has changed");
    world.check_reported([0, 64, 700, 1099]);
}

#[test]
fn clears_that_name_no_words_of_the_slot() {
    let clear = |first, pages, words: usize| move |world: &World| world.log().clear(first, pages, &vec![!0; words]);
    for (first, aligned) in [(1, 0), (63, 0), (65, 64), (u64::MAX, u64::MAX / 64 * 64)] {
        let words = format!("page {first} is not a multiple of 64: start from {aligned}");
        refused(clear(first, 64, 1), LogError::Misaligned { page: first }, &words);
    }
    let length = |pages| LogError::Length { pages, slot: PAGES };
    refused(
        clear(0, 65, 2),
        length(65),
        "65 pages are not a multiple of 64, and do not end with the slot, which has 1100",
    );
    refused(
        clear(1088, 11, 1),
        length(11),
        "11 pages are not a multiple of 64, and do not end with the slot, which has 1100",
    );
    for (page, pages) in [(0, PAGES + 1), (1088, 64), (1152, 0), (64, u64::MAX), (u64::MAX / 64 * 64, 64)] {
        let words = format!("{pages} pages from page {page} on reach beyond the slot, which has 1100");
        refused(clear(page, pages, 1), LogError::BeyondSlot { page, pages, slot: PAGES }, &words);
    }
    for (pages, words, needed) in [(64, 0, 1), (64, 2, 1), (128, 1, 2), (0, 1, 0)] {
        let text = format!("the mask has {words} words for {pages} pages: it needs {needed}");
        refused(clear(0, pages, words), LogError::Mask { words, pages }, &text);
    }
    let text = "the mask has 17 words for 1100 pages: it needs 18";
    refused(clear(0, PAGES, 17), LogError::Mask { words: 17, pages: PAGES }, text);
}

/// A list that the log of a larger slot has reported.
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
        "64 pages from page 1152 on reach beyond the slot, which has 1100",
    );
}

/// The first word beyond a slot that ends with a word.
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
            "the dirty log of the slot at 0x100003000 already runs: stop it first",
        );
    }
    refused(
        |world| world.log().coalesce_range(0, 1).map(|_| ()),
        LogError::Running { start: START },
        "the dirty log of the slot at 0x100003000 already runs: stop it first",
    );
}

#[test]
fn options_that_make_no_sense() {
    let start = |options: LogOptions| move |world: &World| world.log().start(&options);
    let manual = LogOptions::new(Tracker::Manual);
    for chunk in [1, 2048, 4097, 12 << 10, u64::MAX] {
        let words = format!("a chunk of {chunk} bytes: use 0, or a power of two of at least 4096");
        refused(start(LogOptions { chunk, ..manual }), LogError::Chunk { chunk, page: 4096 }, &words);
    }
    for section in [0, 1, 4, 63, 65, 1024, u64::MAX] {
        let words = format!("a section of {section} pages: use a power of two from 8 to 512");
        refused(start(LogOptions { section, ..manual }), LogError::Section { pages: section }, &words);
    }
    refused(
        start(LogOptions { all_dirty: true, ..LogOptions::new(Tracker::WriteProtect) }),
        LogError::AllDirtyNeedsClear,
        "write-protect cannot start with all pages dirty: use manual",
    );
    // The smallest and largest values that are accepted.
    for (chunk, section) in [(4096, 8), (1 << 63, 512)] {
        let mut world = World::new(Pages::Largest);
        world.write_all(0..PAGES);
        world.start(LogOptions { chunk, section, ..LogOptions::new(Tracker::Combined) });
        world.write(70);
        world.check_reported([70]);
    }
}

#[test]
fn hardware_that_records_nothing() {
    let features = FEATURES.with_hardware_dirty_state(false);
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
    let words = "this CPU records no writes (no FEAT_HAFDBS with dirty state): use write-protect or manual";
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
        assert_eq!(error.to_string(), "the dirty log of the slot at 0x100003000 does not run: start it first");
        assert_eq!((log.tracker(), dirty), (None, DirtyPages::new()));
    }
}

#[test]
fn a_clear_of_what_is_cleared_by_get() {
    let mut world = world(Tracker::WriteProtect);
    world.check_reported([0, 64, 700, 1099]);
    world.write(3);
    assert_eq!(world.log().clear(0, 64, &[!0]), Err(LogError::ClearedByGet));
    assert_eq!(world.log().clear_these(&DirtyPages::new()), Err(LogError::ClearedByGet));
    let words = "a write-protect log is cleared by get: use another tracker to clear pages separately";
    assert_eq!(LogError::ClearedByGet.to_string(), words);
    world.check_reported([3]);
}

#[test]
fn slots_that_have_no_log() {
    let mut world = World::new(Pages::Small);
    let (device, rom, gone) = (BASE + (1 << 30), BASE + (2 << 30), BASE + (3 << 30));
    let mut add = |start, backing, writable| {
        world.guest.memory.add_slot(Slot { range: start..start + HUGE_PAGE, backing, writable }).unwrap()
    };
    let with_device = add(device, device_at(Pa::new(0x20_0000_0000)), true);
    let read_only = add(rom, Backing::Ram, false);
    let removed = add(gone, Backing::Ram, true);
    world.guest.memory.remove_slot(removed).unwrap();
    let error = |slot| world.guest.memory.dirty_log(slot).err().unwrap();
    for (slot, expected, words) in [
        (with_device, LogError::NotRam { start: device }, "the slot at 0x140000000 is not RAM: it has no dirty log"),
        (read_only, LogError::ReadOnly { start: rom }, "the slot at 0x180000000 is read-only: it has no dirty log"),
        (removed, LogError::SlotGone, "the slot is gone"),
    ] {
        assert_eq!((error(slot), error(slot).to_string().as_str()), (expected, words));
    }
    // A device may write to a slot without a log, and not to a device.
    assert_eq!(world.guest.memory.write(rom, &[1; PAGE as usize]), Ok(()));
    assert!(matches!(world.guest.memory.write(device, &[1]), Err(Error::NoRam { .. })));
}
