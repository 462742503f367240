// SPDX-License-Identifier: Apache-2.0 OR MIT
//! R19, R23, and races of two CPUs: an access has two halves.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use twofold_machine::program::Instructions;
use twofold_machine::strict::{Bbm, Breach, Rule, Withdrawn};
use twofold_stage2::Platform;
use twofold_stage2::platform::{Domain, Tlbi};

use super::hand::{BASE, Hand, Machinery, READ_WRITE, ipa, pages};
use super::{SEEDS, allowed, allowed_in_a_race, reported_in_a_race};
use crate::world::{MODERN, PAGE};

// R19

#[test]
fn two_cpus_that_wait_for_each_other_are_reported() {
    let waits = |hand: &Hand| {
        loop {
            hand.cpu.pause();
        }
    };
    let ended = Machinery::new(MODERN, Bbm::default(), 2, 1).race(waits, waits);
    assert_eq!(ended.unwrap_err().rule, Rule::Livelock);
}

#[test]
fn a_lock_that_is_never_given_back_is_reported() {
    let locks = |hand: &Hand| hand.cpu.lock(hand.tree.level_3);
    let ended = Machinery::new(MODERN, Bbm::default(), 2, 1).race(locks, locks);
    assert_eq!(ended.unwrap_err().rule, Rule::Livelock);
}

/// A CPU that walks to an entry before each wait still waits.
#[test]
fn cpus_that_read_while_they_wait_for_each_other_are_reported() {
    let keeps_lock = |hand: &Hand| {
        hand.cpu.lock(hand.tree.level_3);
        loop {
            (0..20).for_each(|_| assert_eq!(hand.cpu.read_entry(hand.entry(0), Acquire), 0));
            hand.cpu.pause();
        }
    };
    let wants_lock = |hand: &Hand| {
        hand.cpu.pause();
        hand.cpu.lock(hand.tree.level_3);
    };
    // Whichever of the two gets the lock, and whichever is found waiting: the report says where each CPU was.
    let breach = Machinery::new(MODERN, Bbm::default(), 2, 1).race(keeps_lock, wants_lock).unwrap_err();
    assert_eq!(breach.rule, Rule::Livelock);
    let [other] = breach.others[..] else { panic!("{breach}") };
    assert_eq!(other.cpu, 1 - breach.cpu, "{breach}");
    let site = [breach.site, other.site].into_iter().flatten().next();
    assert!(site.is_some_and(|site| site.file().ends_with("concurrency.rs")), "{breach}");
}

/// As a coalesce to 1 GiB, which reads all entries below the block and writes none, while other CPUs wait for its claim.
#[test]
fn a_cpu_that_waits_for_one_that_reads_for_long_is_allowed() {
    let locked = AtomicBool::new(false);
    let reads = |hand: &Hand| {
        hand.locked(hand.entry(0), || {
            locked.store(true, Relaxed);
            (0..513 * 512 * 4).for_each(|_| assert_eq!(hand.cpu.read_entry(hand.entry(0), Acquire), 0));
        });
    };
    let waits = |hand: &Hand| {
        while !locked.load(Relaxed) {
            hand.cpu.pause();
        }
        hand.locked(hand.entry(0), || ());
    };
    // With three CPUs that wait, the work takes more passes than the limit without work.
    let machinery = Machinery::new(MODERN, Bbm::default(), 4, 1);
    machinery.race_of(vec![&reads, &waits, &waits, &waits]).unwrap_or_else(|breach| panic!("{breach}"));
}

#[test]
fn a_cpu_that_waits_for_one_that_works_is_allowed() {
    let works = |hand: &Hand| {
        hand.locked(hand.entry(0), || {
            for index in 0..512 {
                hand.cpu.write_entry(hand.entry(index), hand.leaf(index, &READ_WRITE), Relaxed);
                hand.cpu.pause();
            }
        });
    };
    allowed_in_a_race(works, |hand| hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE)));
}

// R23

/// Reaches the value behind a table's lock, with the lock or without it.
fn reach(hand: &Hand, locks: bool, changes: bool) {
    let reach = || hand.cpu.reach_value(7, changes);
    if locks { hand.locked(hand.entry(0), reach) } else { reach() }
}

/// Whichever of the two comes first, and although neither need be inside at the same time.
#[test]
fn a_value_that_is_reached_without_its_lock_is_reported() {
    for (first, second) in [(true, true), (true, false), (false, true)] {
        reported_in_a_race(Rule::ValueRace, |hand| reach(hand, true, first), |hand| reach(hand, false, second));
    }
}

#[test]
fn a_value_that_is_reached_under_another_lock_is_reported() {
    reported_in_a_race(
        Rule::ValueRace,
        |hand| reach(hand, true, true),
        |hand| {
            hand.cpu.lock(hand.tree.level_2);
            hand.cpu.reach_value(7, true);
            hand.cpu.unlock(hand.tree.level_2);
        },
    );
}

#[test]
fn a_value_that_is_reached_under_its_lock_is_allowed() {
    allowed_in_a_race(|hand| reach(hand, true, true), |hand| reach(hand, true, true));
}

#[test]
fn a_value_that_is_only_read_needs_no_lock() {
    allowed_in_a_race(|hand| reach(hand, false, false), |hand| reach(hand, false, false));
}

#[test]
fn a_value_of_one_cpu_needs_no_lock() {
    allowed(|hand| (0..3).for_each(|_| reach(hand, false, true)));
}

// The two halves of an access.

/// CPU 1 stores, with a delay between its translation and its store. CPU 0 unmaps the page meanwhile. Returns whether
/// CPU 0's barrier ended before that store.
fn overtaken(seed: u64, barrier: Domain) -> bool {
    let (inside, outside) = (AtomicBool::new(false), AtomicBool::new(false));
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, seed);
    machinery.alone(|hand| hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE))).unwrap();
    let mut overtaken = false;
    let ended = machinery.race(
        |hand| {
            while !inside.load(Relaxed) {
                hand.cpu.pause();
            }
            hand.make(hand.entry(0), 0);
            hand.tlbi(Tlbi::VmallS12E1Is, 0);
            hand.dsb(barrier);
            overtaken = !outside.load(Relaxed) || hand.content(0) != 7;
        },
        |hand| {
            let mut guest = hand.enter(0);
            guest.between_halves(|| {
                inside.store(true, Relaxed);
                (0..100).for_each(|_| hand_over(&machinery));
                outside.store(true, Relaxed);
            });
            guest.store(BASE, 7).unwrap();
        },
    );
    ended.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
    overtaken
}

/// Lets the other CPU run.
fn hand_over(machinery: &Machinery) {
    machinery.world.machine.platform().pause(1);
}

#[test]
fn a_barrier_waits_for_an_access_that_began_under_the_old_entry() {
    assert!((0..SEEDS).all(|seed| !overtaken(seed, Domain::Ish)));
}

/// A barrier for stores only completes no invalidation, and waits for nothing.
#[test]
fn a_barrier_that_completes_nothing_does_not_wait() {
    assert!((0..SEEDS).all(|seed| overtaken(seed, Domain::IshSt)));
}

/// A guest stores continuously. Its page is unmapped, `flush` is executed, and no later store may reach the frame.
fn stored_while_unmapped(seed: u64, flush: impl Fn(&Hand) + Sync) -> Result<(), Breach> {
    let done = AtomicBool::new(false);
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, seed);
    machinery.race(
        |hand| {
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
            while hand.content(0) == 0 {
                hand.cpu.pause();
            }
            hand.make(hand.entry(0), 0);
            flush(hand);
            let before = hand.content(0);
            (0..50).for_each(|_| hand.cpu.pause());
            if hand.content(0) != before {
                hand.cpu.report("a guest stored to a frame that it no longer has".to_owned());
            }
            done.store(true, Relaxed);
        },
        |hand| {
            let mut guest = hand.enter(0);
            for value in 1.. {
                if guest.store(BASE, value).is_err() {
                    hand.cpu.pause();
                }
                guest.forget_fault();
                if done.load(Relaxed) {
                    break;
                }
            }
        },
    )
}

#[test]
fn nothing_lands_in_a_frame_behind_its_flush() {
    for seed in 0..SEEDS {
        let ended = stored_while_unmapped(seed, |hand| hand.flush(ipa(0)));
        ended.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
    }
}

/// Without a flush, or with a flush on this CPU only, a store does.
#[test]
fn something_lands_in_a_frame_without_its_flush() {
    let flushes: [fn(&Hand); 2] = [|_| (), |hand| hand.flush_here(ipa(0))];
    for flush in flushes {
        let breaches: Vec<_> = (0..SEEDS).filter_map(|seed| stored_while_unmapped(seed, flush).err()).collect();
        assert!(breaches.len() > 5 && breaches.iter().all(|breach| breach.rule == Rule::Content));
    }
}

/// A change of this CPU is invalidated by another CPU that has seen it.
#[test]
fn a_flush_by_a_cpu_that_saw_the_change_covers_it() {
    allowed_in_a_race(
        |hand| {
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
            hand.set(hand.entry(0), 0);
        },
        |hand| {
            let seen = hand.locked(hand.entry(0), || hand.cpu.read_entry(hand.entry(0), Relaxed));
            if seen == 0 {
                hand.flush(ipa(0));
                hand.expect_flushed(pages(0..1), Withdrawn::Everything);
            }
        },
    );
}

/// If the other CPU has not seen the change, its flush may precede the change.
#[test]
fn a_flush_by_a_cpu_that_did_not_see_the_change_does_not_cover_it() {
    reported_in_a_race(
        Rule::FrameReusedTooEarly,
        |hand| {
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
            hand.set(hand.entry(0), 0);
        },
        |hand| {
            (0..10).for_each(|_| hand.cpu.pause());
            hand.flush(ipa(0));
            hand.cpu.reuse(hand.frame(0), PAGE);
        },
    );
}
