// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests whose pages leave to a store and come back while they move, and stores that are late, silent or fail. The store
//! answers by the test's clock, and a page leaves in each third step of it, also while the guest is stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use twofold_machine::fast::FastPlatform;
use twofold_memory::dirty::Tracker;
use twofold_memory::swap::{Peeked, Waiter};
use twofold_migration::Cancel;
use twofold_migration::precopy::Cause;
use twofold_migration::ram::{Away, GuestRam, PageRead, RamError, SourceRam};
use twofold_migration::stream::Slot;
use twofold_stage2::Ipa;

use crate::guest::{Guest, PAGE, Place, Swap, places};
use crate::link::Arbiter;
use crate::moved::{Move, Moved, first};
use crate::setting;
use crate::store::{Mood, Store};

/// The first place has a store, and the guest there has pages in it.
fn boot(here: &mut Place, seed: u64, limit: Option<u64>) -> (Guest, Arc<Store>) {
    let store = Store::new(300_000, seed);
    here.swap = Some(Swap::with(&store, limit));
    let guest = here.boot(2, (40, 80));
    guest.leave();
    assert!(guest.absent() > 30, "{}", guest.absent());
    (guest, store)
}

/// Ends the guest and checks that no frame and no place is lost, and that each failure was reported.
fn end(here: &mut Place, guest: Guest, store: &Store, frames: u64) {
    store.get().mood = Mood::Answers;
    store.finish(guest.vm.memory());
    let used = guest.vm.memory().frame_use();
    assert_eq!((used.leaving, used.arriving, used.waiting), (0, 0, 0));
    assert_eq!(used.free + used.data + used.tables, frames, "{used:?}: frames are lost");
    assert_eq!(guest.reports.failed.load(Ordering::Relaxed), store.get().failed, "a failure was not reported");
    here.end(guest);
    assert!(store.get().live.is_empty(), "places are lost");
}

fn free(place: &Place) -> u64 {
    place.frames.as_ref().unwrap().free()
}

#[test]
fn a_guest_moves_while_its_pages_leave_and_come() {
    let (moves, seed) = (setting("TWOFOLD_MOVES", 4), setting("TWOFOLD_SEED", 1));
    for tracker in Tracker::ALL {
        for number in seed..seed + moves {
            println!("TWOFOLD_SEED={number} {tracker:?}");
            let [mut here, mut there] = places();
            let frames = free(&here);
            let (guest, store) = boot(&mut here, number, (number % 2 == 0).then_some(80));
            if number % 4 == 1 {
                store.get().mood = Mood::Fails(50);
            }
            let (before, _) = store.counts();
            let streams = [1, 3, 2][number as usize % 3];
            let all = Move { streams, rates: vec![30_000, 20_000], ..Move::new(tracker) };
            let arbiter = Arbiter::new(first());
            let moved = all.go(&guest, &mut there, &arbiter);
            assert_eq!(moved.received, Ok(()), "{tracker:?}: {:?}", moved.result);
            let came = moved.check(&guest, &mut there, &arbiter).expect("it moved");
            assert!(store.counts().0 > before + 100, "pages came and went");
            end(&mut here, guest, &store, frames);
            came.work(0, 1000);
            came.work(1, 1000);
        }
    }
}

/// A guest that stands still needs no page: each is read once, and stays where it is.
#[test]
fn pages_travel_from_the_store_and_do_not_become_resident() {
    for tracker in Tracker::ALL {
        let [mut here, mut there] = places();
        let frames = free(&here);
        let (guest, store) = boot(&mut here, 1, None);
        guest.leaves.store(false, Ordering::Relaxed);
        let (absent, used) = (guest.absent(), guest.vm.memory().frame_use());
        let (read, written) = store.counts();
        let all = Move { rates: vec![0, 0], ..Move::new(tracker) };
        let arbiter = Arbiter::new(first());
        let moved = all.go(&guest, &mut there, &arbiter);
        assert_eq!(moved.received, Ok(()), "{tracker:?}: {:?}", moved.result);
        moved.check(&guest, &mut there, &arbiter).expect("it moved");
        assert_eq!((guest.absent(), guest.vm.memory().frame_use().data), (absent, used.data), "{tracker:?}");
        // Once for the stream, and once for the digest.
        assert_eq!(store.counts(), (read + 2 * absent, written), "{tracker:?}");
        end(&mut here, guest, &store, frames);
    }
}

/// What happens to each seventh page of the second memslot between the clear and the read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    /// It leaves, and the store has it.
    Leaves,
    /// It is about to leave.
    IsLeaving,
    /// It arrives.
    Arrives,
    /// It arrives, is written by a device, and leaves again: after the clear, so the log has it.
    IsWrittenAndLeaves,
    /// A control: the page was asked for before the clear, and what it held then is sent.
    IsAskedForTooEarly,
}

/// A memory in which that happens.
struct Racing<'g> {
    ram: GuestRam<'g, FastPlatform>,
    guest: &'g Guest,
    between: Between,
    happened: &'g AtomicU64,
    /// For the control.
    early: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Racing<'_> {
    fn ipa(&self, page: u64) -> Ipa {
        Ipa::new((self.slots()[1].first + page) * PAGE)
    }

    fn concerns(&self, slot: usize, page: u64) -> bool {
        slot == 1 && page % 7 == 3 && self.guest.running.load(Ordering::Relaxed)
    }

    fn leave(&self, page: u64) {
        let _ = self.guest.vm.memory().write_out(self.ipa(page)).unwrap();
        self.guest.finish();
    }

    fn arrive(&self, page: u64) {
        self.guest.vm.memory().bring(self.ipa(page), Waiter::Other(7)).unwrap();
        self.guest.finish();
    }

    /// A device writes where the guest does not.
    fn write(&self, page: u64) {
        let count = self.happened.load(Ordering::Relaxed) + 1;
        let at = self.ipa(page) + (page * 72 + 2048) % PAGE;
        self.arrive(page);
        self.guest.vm.memory().write(at, &count.to_le_bytes()).unwrap();
    }
}

impl<'g> SourceRam for Racing<'g> {
    type Away = <GuestRam<'g, FastPlatform> as SourceRam>::Away;

    fn slots(&self) -> &[Slot] {
        self.ram.slots()
    }

    fn page_shift(&self) -> u8 {
        self.ram.page_shift()
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        self.ram.start(all)
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        self.ram.get(slot, dirty)
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        let first_page = first as u64 * 64;
        if self.between == Between::IsAskedForTooEarly {
            for page in first_page..first_page + 64 {
                if self.concerns(slot, page) && pages[0] >> (page % 64) & 1 == 1 && page < self.slots()[slot].pages {
                    self.leave(page);
                    let (mut bytes, mut peek) = (vec![0; 4096], self.guest.vm.memory().peek(self.ipa(page)).unwrap());
                    while Away::look(&mut peek, &mut bytes) != Peeked::Read {
                        self.guest.finish();
                    }
                    self.early.lock().unwrap().push((page, bytes));
                    self.write(page);
                }
            }
        }
        self.ram.clear(slot, first, pages)
    }

    fn stop(&self) {
        self.ram.stop();
    }

    fn patience(&self) -> Duration {
        self.ram.patience()
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Self::Away>, RamError> {
        if self.concerns(slot, page) {
            self.happened.fetch_add(1, Ordering::Relaxed);
            match self.between {
                Between::Leaves => self.leave(page),
                Between::IsLeaving => {
                    let _ = self.guest.vm.memory().write_out(self.ipa(page)).unwrap();
                }
                Between::Arrives => {
                    self.leave(page);
                    // A page of zeroes is read at once.
                    let read = self.ram.read(slot, page, bytes)?;
                    self.arrive(page);
                    return Ok(read);
                }
                Between::IsWrittenAndLeaves => {
                    self.leave(page);
                    let read = self.ram.read(slot, page, bytes)?;
                    self.write(page);
                    self.leave(page);
                    return Ok(read);
                }
                Between::IsAskedForTooEarly => {
                    let early = &mut *self.early.lock().unwrap();
                    if let Some(index) = early.iter().position(|(at, _)| *at == page) {
                        bytes.copy_from_slice(&early.swap_remove(index).1);
                        return Ok(PageRead::Done);
                    }
                }
            }
        }
        self.ram.read(slot, page, bytes)
    }
}

/// Returns how often it happened, and the number of pages that differ at the target.
fn races(tracker: Tracker, between: Between) -> (u64, usize) {
    let [mut here, mut there] = places();
    let frames = free(&here);
    let (guest, store) = boot(&mut here, 1, None);
    let happened = AtomicU64::new(0);
    let all = Move { rates: vec![20_000, 20_000], ..Move::new(tracker) };
    let racing = |ram| Racing { ram, guest: &guest, between, happened: &happened, early: Mutex::default() };
    let moved = all.go_with(&guest, &mut there, &Arbiter::new(first()), racing, &Cancel::new(), None);
    let Moved { digests: (Some(stopped), Some(came)), .. } = moved else {
        panic!("it did not move: {:?}", moved.result)
    };
    let differ = stopped.iter().zip(&came).filter(|(stopped, came)| stopped != came).count();
    end(&mut here, guest, &store, frames);
    (happened.into_inner(), differ)
}

#[test]
fn a_page_that_leaves_or_arrives_between_the_log_and_the_read_is_sent_as_it_is() {
    for tracker in Tracker::ALL {
        for between in [Between::Leaves, Between::IsLeaving, Between::Arrives, Between::IsWrittenAndLeaves] {
            let (happened, differ) = races(tracker, between);
            assert!(happened > 20, "{tracker:?}, {between:?}: {happened}");
            assert_eq!(differ, 0, "{tracker:?}, {between:?}");
        }
    }
}

#[test]
fn a_page_that_is_asked_for_before_it_is_cleared_is_found() {
    for tracker in [Tracker::Manual, Tracker::Combined] {
        let (_, differ) = races(tracker, Between::IsAskedForTooEarly);
        assert!(differ > 0, "{tracker:?}");
    }
}

/// Lets a store fall into a mood when the guest has stopped, or at once.
fn stays(mood: Mood, when_stopped: bool) -> Cause {
    let [mut here, mut there] = places();
    let frames = free(&here);
    let (guest, store) = boot(&mut here, 1, None);
    let has_fallen = AtomicBool::new(false);
    let hook = |_| {
        let is_time = !when_stopped || !guest.running.load(Ordering::Relaxed);
        if is_time && !has_fallen.swap(true, Ordering::Relaxed) {
            store.get().mood = mood;
        }
    };
    let all = Move { rates: vec![30_000, 20_000], ..Move::new(Tracker::Combined) };
    let arbiter = Arbiter::new(first());
    let patience = Duration::from_millis(30);
    let patient = |ram| Leaving(GuestRam::with_patience(ram, patience), &guest);
    // The hook lives as long as the guest's borrow here.
    let moved = all.go_with(&guest, &mut there, &arbiter, patient, &Cancel::new(), Some(&hook));
    let cause = moved.result.as_ref().expect_err("it moves").cause.clone();
    assert!(moved.check(&guest, &mut there, &arbiter).is_none(), "it stays");
    assert!(has_fallen.load(Ordering::Relaxed));
    // The store is mended, and the guest goes on, and moves.
    store.get().mood = Mood::Answers;
    guest.work(0, 500);
    let moved = all.go(&guest, &mut there, &arbiter);
    let came = moved.check(&guest, &mut there, &arbiter).expect("it moved");
    came.work(1, 500);
    end(&mut here, guest, &store, frames);
    cause
}

/// A memory in which each page that is read in the last round has just left.
struct Leaving<'g>(GuestRam<'g, FastPlatform>, &'g Guest);

impl<'g> SourceRam for Leaving<'g> {
    type Away = <GuestRam<'g, FastPlatform> as SourceRam>::Away;

    fn slots(&self) -> &[Slot] {
        self.0.slots()
    }

    fn page_shift(&self) -> u8 {
        self.0.page_shift()
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        self.0.start(all)
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        self.0.get(slot, dirty)
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        self.0.clear(slot, first, pages)
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Self::Away>, RamError> {
        if slot > 0 && !self.1.running.load(Ordering::Relaxed) {
            let _ = self.1.vm.memory().write_out(Ipa::new((self.slots()[slot].first + page) * PAGE)).unwrap();
        }
        self.0.read(slot, page, bytes)
    }

    fn patience(&self) -> Duration {
        self.0.patience()
    }
}

/// The guest is not kept stopped by a store that does not answer, and the reason is said.
#[test]
fn a_store_that_is_silent_keeps_the_guest_with_a_reason() {
    for when_stopped in [false, true] {
        let Cause::Ram(RamError::Silent { waited, .. }) = stays(Mood::Silent, when_stopped) else {
            panic!("another cause")
        };
        assert!(waited >= Duration::from_millis(30) && waited < Duration::from_millis(31), "{waited:?}");
    }
}

#[test]
fn a_store_that_always_fails_keeps_the_guest_with_a_reason() {
    let cause = stays(Mood::Fails(1), false);
    assert!(matches!(cause, Cause::Ram(RamError::Store { .. })), "{cause:?}");
    let text = cause.to_string();
    assert!(text.ends_with("cannot be read from its store: error 5 of its device"), "{text}");
}

/// At any step: what was asked for is forgotten, and the guest goes on.
#[test]
fn a_migration_is_cancelled_with_pages_in_flight() {
    let (mut cancelled, mut in_flight) = (0, 0);
    for step in (0..700).step_by(37) {
        let [mut here, mut there] = places();
        let frames = free(&here);
        let (guest, store) = boot(&mut here, step, None);
        let (cancel, arbiter) = (Cancel::new(), Arbiter::new(first()));
        let hook = |call| {
            if call == step {
                cancel.cancel();
            }
        };
        let all = Move { streams: 2, rates: vec![30_000, 20_000], ..Move::new(Tracker::Adaptive) };
        let moved = all.go_with(&guest, &mut there, &arbiter, |ram| ram, &cancel, Some(&hook));
        if moved.received.is_err() {
            cancelled += 1;
            in_flight += store.in_flight();
            assert!(moved.check(&guest, &mut there, &arbiter).is_none());
            guest.work(0, 300);
            guest.work(1, 300);
        }
        end(&mut here, guest, &store, frames);
    }
    assert!(cancelled > 10 && in_flight > 50, "{cancelled} cancelled, {in_flight} in flight");
}
