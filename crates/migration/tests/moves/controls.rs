// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Negative controls: memories and drivers that break a promise. Each is seen in the digests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::ram::{PageRead, RamError, SourceRam};
use twofold_migration::stream::Slot;
use twofold_stage2::Ipa;

use crate::guest::{Guest, PAGE, places};
use crate::link::Arbiter;
use crate::moved::{Move, first};

/// A memory that breaks a promise.
struct Broken<'g, M> {
    ram: M,
    guest: &'g Guest,
    how: How,
    gets: AtomicU64,
    cleared: Mutex<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Not,
    /// Pages are cleared before the log is read.
    ClearFirst,
    /// Pages are cleared after they were read, and the guest writes between.
    ClearLast,
    /// A word of the log's third report is lost.
    LostWord,
    /// A page is not sent, but another in its place.
    OtherPage,
}

impl<M: SourceRam> SourceRam for Broken<'_, M> {
    type Away = M::Away;

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
        if self.how == How::ClearFirst && *self.cleared.lock().unwrap() {
            self.ram.clear(slot, 0, &vec![!0; dirty.len()])?;
        }
        *self.cleared.lock().unwrap() = true;
        self.ram.get(slot, dirty)?;
        if self.how == How::LostWord
            && self.gets.fetch_add(1, Ordering::Relaxed) >= 3
            && let Some(word) = dirty.iter_mut().find(|word| **word != 0)
        {
            *word = 0;
        }
        Ok(())
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        match self.how {
            How::ClearFirst | How::ClearLast => Ok(()),
            _ => self.ram.clear(slot, first, pages),
        }
    }

    fn stop(&self) {
        self.ram.stop();
    }

    fn patience(&self) -> Duration {
        self.ram.patience()
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<M::Away>, RamError> {
        if self.how == How::OtherPage && slot == 1 && page == 17 {
            return self.ram.read(slot, page + 1, bytes);
        }
        let read = self.ram.read(slot, page, bytes)?;
        if self.how == How::ClearLast && slot == 1 && page % 10 == 7 && self.guest.running.load(Ordering::Relaxed) {
            // A device writes where the guest does not.
            let at = Ipa::new((self.slots()[slot].first + page) * PAGE + (page * 72 + 2048) % PAGE);
            let count = self.gets.fetch_add(1, Ordering::Relaxed) + 1;
            self.guest.vm.memory().write(at, &count.to_le_bytes()).unwrap();
            let word = page as usize / 64;
            self.ram.clear(slot, word, &[1 << (page % 64)])?;
        }
        Ok(read)
    }
}

/// Returns the number of pages that differ at the target.
fn differ(tracker: Tracker, how: How) -> usize {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (40, 80));
    let all = Move { rates: vec![50_000], ..Move::new(tracker) };
    let broken = |ram| Broken { ram, guest: &guest, how, gets: AtomicU64::new(0), cleared: Mutex::new(false) };
    let moved = all.go_with(&guest, &mut there, &Arbiter::new(first()), broken, &Cancel::new(), None);
    let (Some(stopped), Some(came)) = moved.digests else { panic!("it did not move: {:?}", moved.result) };
    stopped.iter().zip(&came).filter(|(stopped, came)| stopped != came).count()
}

#[test]
fn a_log_that_is_cleared_before_it_is_read_loses_pages() {
    for tracker in [Tracker::Manual, Tracker::Hardware, Tracker::Combined, Tracker::Adaptive] {
        assert_eq!(differ(tracker, How::Not), 0);
        assert!(differ(tracker, How::ClearFirst) > 0, "{tracker:?}");
    }
}

#[test]
fn pages_that_are_read_before_they_are_cleared_are_found() {
    for tracker in [Tracker::Manual, Tracker::Hardware, Tracker::Combined, Tracker::Adaptive] {
        assert!(differ(tracker, How::ClearLast) > 0, "{tracker:?}");
    }
}

#[test]
fn a_log_that_loses_a_word_is_found() {
    for tracker in Tracker::ALL {
        assert!(differ(tracker, How::LostWord) > 0, "{tracker:?}");
    }
}

#[test]
fn a_page_that_is_not_sent_is_found() {
    for tracker in Tracker::ALL {
        assert!(differ(tracker, How::OtherPage) > 0, "{tracker:?}");
    }
}
