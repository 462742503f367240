// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The collector drives the judge: it gets, clears and copies in rounds, as a migration does, while the guest is written
//! to. Every few rounds it holds all writers, gets once more, and has the memory compared.
//!
//! After some rounds the collector stops the log, coalesces some blocks, and starts the log with other options. So
//! blocks are split and coalesced all the time.

use std::thread;
use std::time::Duration;

use twofold_machine::fast::FastPlatform;
use twofold_memory::dirty::{DirtyLog, DirtyPages, DirtyWord, LogError, Tracker};
use twofold_oracle::{Judge, Lost, Random, Tally, options};

use super::crew::Crew;
use super::guest::{JudgedGuest, PAGES};
use crate::stop::Stop;

/// The order in which a page is cleared and copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Cleared first, which is correct.
    ClearFirst,
    /// Copied first, which loses a write in between. This is the control.
    CopyFirst,
}

/// Collects what one tracker's log reports.
pub struct Collector<'a> {
    guest: &'a JudgedGuest,
    crew: &'a Crew,
    log: DirtyLog<'a, FastPlatform>,
    tracker: Tracker,
    order: Order,
    random: Random,
    judge: Judge,
    dirty: DirtyPages,
    /// One round in this many ends with a comparison.
    rounds: u64,
    lost: &'a dyn Fn(&Lost),
}

impl<'a> Collector<'a> {
    /// Makes a collector. It calls `lost` with each lost page.
    pub fn new(
        (guest, crew): (&'a JudgedGuest, &'a Crew),
        (tracker, order): (Tracker, Order),
        random: Random,
        lost: &'a dyn Fn(&Lost),
    ) -> anyhow::Result<Self> {
        let (log, judge, dirty) = (guest.log()?, Judge::new(), DirtyPages::new());
        // Pages that leave and come back make rounds long.
        let rounds = if guest.shelf.is_some() { 2 } else { 6 };
        Ok(Self { guest, crew, log, tracker, order, random, judge, dirty, rounds, lost })
    }

    /// Runs until `comparisons` pages were compared, or `stop` is set. It calls `progress` with the sum after each
    /// comparison.
    pub fn run(mut self, comparisons: u64, stop: &Stop, progress: impl Fn(u64)) -> anyhow::Result<Tally> {
        while self.judge.tally().compared < comparisons && !stop.is_requested() {
            self.start()?;
            // More rounds than a tracker waits until it considers a page cold.
            for _ in 0..self.random.of_any_size(7) {
                self.gather()?;
                if self.random.once_in(self.rounds) {
                    self.compare()?;
                    progress(self.judge.tally().compared);
                }
                self.wait();
            }
            self.log.stop()?;
            self.coalesce()?;
        }
        Ok(self.judge.tally())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let options = options::any(self.tracker, &mut self.random);
        self.log.start(&options)?;
        self.judge.start(&self.guest.running_all(), options.all_dirty);
        Ok(())
    }

    /// Runs a round: gets the log, clears some or all pages that it reports, and copies them.
    fn gather(&mut self) -> anyhow::Result<()> {
        self.get()?;
        if self.tracker == Tracker::WriteProtect {
            return Ok(());
        }
        let dirty = std::mem::take(&mut self.dirty);
        match self.random.below(4) {
            0 => self.clear_pieces(dirty.words())?,
            1 => self.clear_unseen()?,
            _ => self.clear(&dirty.words().iter().flat_map(|word| word.pages()).collect::<Vec<_>>(), |log| {
                log.clear_these(&dirty)
            })?,
        }
        self.dirty = dirty;
        Ok(())
    }

    /// Has the judge mark the pages that the log reports. If the get also cleared them, has them copied.
    fn get(&mut self) -> anyhow::Result<()> {
        self.log.get(&mut self.dirty)?;
        self.dirty.pages().for_each(|page| self.judge.report(page));
        if self.tracker == Tracker::WriteProtect {
            let now = self.guest.running();
            self.dirty.pages().for_each(|page| self.judge.copy(&now, page));
        }
        Ok(())
    }

    /// Clears a few words at a time. Of each word it clears all reported pages, or most of them; some words are left
    /// for another round.
    fn clear_pieces(&mut self, words: &[DirtyWord]) -> anyhow::Result<()> {
        let mut left = words;
        while !left.is_empty() {
            let (piece, others) = left.split_at(left.len().min(self.random.of_any_size(4) as usize));
            left = others;
            if self.random.once_in(4) {
                continue;
            }
            let first = piece[0].first_page;
            let end = piece[piece.len() - 1].first_page + 64;
            let mut mask = vec![0; ((end - first) / 64) as usize];
            for word in piece {
                let some =
                    if self.random.once_in(2) { u64::MAX } else { self.random.next_word() | self.random.next_word() };
                mask[((word.first_page - first) / 64) as usize] = word.mask & some;
            }
            self.clear_masked(first, &mask)?;
        }
        Ok(())
    }

    /// Clears pages that the log may not have reported yet. That is allowed if they are copied after.
    fn clear_unseen(&mut self) -> anyhow::Result<()> {
        let words = PAGES.div_ceil(64);
        let first = self.random.below(words);
        let count = self.random.of_any_size(4).min(words - first);
        self.clear_masked(first * 64, &vec![u64::MAX; count as usize])
    }

    fn clear_masked(&mut self, first: u64, mask: &[u64]) -> anyhow::Result<()> {
        let pages = (mask.len() as u64 * 64).min(PAGES - first);
        let cleared: Vec<_> = (0..pages).filter(|page| mask[(page / 64) as usize] >> (page % 64) & 1 == 1).collect();
        let cleared: Vec<_> = cleared.into_iter().map(|page| first + page).collect();
        self.clear(&cleared, |log| log.clear(first, pages, mask))
    }

    /// Clears and copies pages, in the collector's order.
    fn clear(
        &mut self,
        pages: &[u64],
        clear: impl FnOnce(&DirtyLog<'_, FastPlatform>) -> Result<(), LogError>,
    ) -> anyhow::Result<()> {
        let copy = |judge: &mut Judge| {
            let now = self.guest.running();
            pages.iter().for_each(|page| judge.copy(&now, *page));
        };
        match self.order {
            Order::ClearFirst => {
                clear(&self.log)?;
                copy(&mut self.judge);
            }
            Order::CopyFirst => {
                copy(&mut self.judge);
                clear(&self.log)?;
            }
        }
        Ok(())
    }

    /// Holds all writers, gets once more, and compares: each page that the log does not report must equal its copy.
    fn compare(&mut self) -> anyhow::Result<()> {
        self.crew.hold()?;
        self.get()?;
        self.judge.compare(&self.guest.held(), self.lost);
        self.crew.let_go();
        Ok(())
    }

    /// Sometimes leaves all CPUs to the guest for a moment.
    fn wait(&mut self) {
        match self.random.below(4) {
            0 => thread::sleep(Duration::from_micros(self.random.of_any_size(10))),
            1 => thread::yield_now(),
            _ => {}
        }
    }

    /// Coalesces some blocks, from a random page on.
    fn coalesce(&mut self) -> anyhow::Result<()> {
        let joined = self.log.coalesce_range(self.random.below(PAGES), self.random.below(8))?;
        self.judge.coalesced(joined.blocks);
        Ok(())
    }
}
