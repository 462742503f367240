// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves how often the log flushes: once for each clear, however much it protects, and never if nothing changes.

use twofold_memory::Pages;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_stage2::platform::{Domain, Tlbi};

use crate::machine::platform::Event;
use crate::world::{EDGES, World};

fn world(tracker: Tracker) -> World {
    let mut world = World::new(Pages::Small);
    world.write_all(0..world.pages);
    world.start(LogOptions::new(tracker));
    world
}

#[test]
fn a_clear_flushes_once() {
    for tracker in Tracker::ALL.into_iter().filter(|tracker| *tracker != Tracker::WriteProtect) {
        let mut world = world(tracker);
        for written in [vec![5], EDGES.to_vec(), (0..world.pages).collect()] {
            world.write_all(written.iter().copied());
            world.check_reported(written.iter().copied());
            assert_eq!(world.flushes(|world| world.clear(written.iter().copied())).1, 1, "{tracker:?}");
            world.copy_pages(written.iter().copied());
            // The pages are clear, so nothing is protected or flushed.
            assert_eq!(world.flushes(|world| world.clear(written.iter().copied())).1, 0, "{tracker:?}");
            assert_eq!(world.flushes(|world| world.clear([])).1, 0, "{tracker:?}");
        }
    }
}

/// Every instruction of a clear of one page.
#[test]
fn a_flush_is_what_the_architecture_asks_for_and_no_more() {
    let mut world = world(Tracker::Manual);
    world.write(5);
    world.guest.machine.events();
    world.clear([5]);
    let events = world.guest.machine.events();
    let at = world.ipa(5);
    let [Event::Dsb(Domain::IshSt), Event::Tlbi(Tlbi::Ipas2Le1Is, reach), rest @ ..] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*reach, crate::machine::platform::tlb::Reach::At(at, None));
    let [Event::Dsb(Domain::Ish), Event::Tlbi(Tlbi::VmallE1Is, _), Event::Dsb(Domain::Ish), Event::Isb] = rest else {
        panic!("{events:?}")
    };
}

#[test]
fn a_get_flushes_where_it_clears_or_ends_records() {
    let expected = |tracker| match tracker {
        Tracker::WriteProtect | Tracker::Combined => 1,
        Tracker::Manual | Tracker::Hardware | Tracker::Adaptive => 0,
    };
    for tracker in Tracker::ALL {
        let mut world = world(tracker);
        assert_eq!(world.flushes(|world| world.check_reported([])).1, 0, "{tracker:?}: nothing was written");
        world.write_all(EDGES);
        assert_eq!(world.flushes(|world| world.check_reported(EDGES)).1, expected(tracker), "{tracker:?}");
    }
}

#[test]
fn what_is_not_mapped_is_cleared_without_a_flush() {
    for tracker in [Tracker::Manual, Tracker::Hardware, Tracker::Combined, Tracker::Adaptive] {
        let mut world = World::new(Pages::Small);
        let (_, flushes) = world.flushes(|world| world.start(LogOptions::new(tracker)));
        assert_eq!(flushes, 0);
        world.check_reported([]);
    }
}

/// With `all_dirty`, a start touches no table. Otherwise it protects the whole slot at once.
#[test]
fn a_start_flushes_once_or_not_at_all() {
    for (tracker, all_dirty, expected) in [
        (Tracker::WriteProtect, false, 1),
        (Tracker::Manual, false, 1),
        (Tracker::Manual, true, 0),
        (Tracker::Hardware, true, 0),
    ] {
        let mut world = World::new(Pages::Small);
        world.write_all(0..world.pages);
        let tables = world.guest.scan();
        let options = LogOptions { all_dirty, ..LogOptions::new(tracker) };
        let ((), flushes) = world.flushes(|world| world.log().start(&options).unwrap());
        assert_eq!(flushes, expected, "{tracker:?}");
        assert_eq!(world.guest.scan() == tables, all_dirty);
    }
}
