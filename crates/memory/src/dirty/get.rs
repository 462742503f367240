// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Get: collect what hardware recorded, as the tracker does it, then report the dirty pages.
//!
//! Invariant: a page that [`Tracker::WriteProtect`] reports is protected, and its flush is complete, when the call
//! returns; the caller may read it then.

use core::ops::Range;

use twofold_stage2::{Downgrade, Granule, IpaRange, Marked, Pending, Platform};

use super::bits::{WORD, inside};
use super::clear::Clearing;
use super::options::{LogError, Tracker, WORD_PAGES};
use super::pages::DirtyPages;
use super::start::{DirtyLog, Held, join};

impl<P: Platform, G: Granule> DirtyLog<'_, P, G> {
    /// Writes the dirty pages into `dirty`, in place of what it held. With [`Tracker::WriteProtect`] they are clear
    /// when this returns, and may be read. With other trackers they stay in the log until they are
    /// [cleared](Self::clear).
    ///
    /// The cost follows the number of 64-page words that have dirty pages and the number of hardware-tracked pages, not
    /// the size of the slot.
    ///
    /// # Errors
    ///
    /// The log does not run; no memory is left for the list; the tables cannot be changed. `dirty` is empty then, and
    /// no dirty page is lost.
    pub fn get(&self, dirty: &mut DirtyPages) -> Result<(), LogError> {
        dirty.clear();
        let mut held = self.held()?;
        match held.running.tracker() {
            Tracker::WriteProtect => return held.get_and_clear(dirty),
            Tracker::Manual => {}
            Tracker::Hardware => held.look_through()?,
            Tracker::Combined => held.end_records()?,
            Tracker::Adaptive => held.look_at_tracked()?,
        }
        held.report(dirty)
    }
}

impl<P: Platform, G: Granule> Held<'_, P, G> {
    /// Lists what is in the log.
    fn report(&self, dirty: &mut DirtyPages) -> Result<(), LogError> {
        let pages = &self.log.pages;
        dirty.reserve(pages.words_set_count())?;
        for word in pages.words_set(0, pages.words()) {
            if !dirty.has_room() {
                // vCPUs have dirtied more words since the first reservation.
                dirty.reserve(1).inspect_err(|_| dirty.clear())?;
            }
            dirty.push(word, pages.word(word));
        }
        Ok(())
    }

    /// Moves the log's pages to the list, and protects them.
    fn get_and_clear(&self, dirty: &mut DirtyPages) -> Result<(), LogError> {
        let mut clearing = self.clearing(0);
        let taken = self.take_all(&mut clearing, dirty);
        // After an error midway, the pages before it are protected, and still need their flush.
        clearing.finish().and(taken).inspect_err(|_| {
            // The caller does not get these pages, so they go back into the log.
            dirty.words().iter().for_each(|word| self.log.pages.set_in(word.first_page / WORD, word.mask));
            dirty.clear();
        })
    }

    /// Moves the log's pages to the list, up to the first error.
    fn take_all(&self, clearing: &mut Clearing<'_, '_, P, G>, dirty: &mut DirtyPages) -> Result<(), LogError> {
        let pages = &self.log.pages;
        dirty.reserve(pages.words_set_count())?;
        for word in pages.words_set(0, pages.words()) {
            if !dirty.has_room() {
                // vCPUs have dirtied more words since the first reservation.
                dirty.reserve(1)?;
            }
            dirty.push(word, clearing.word(word, u64::MAX)?);
        }
        Ok(())
    }

    /// Marks the pages that hardware recorded in the whole slot, and keeps the records: until a page is cleared,
    /// further writes to it cost nothing.
    fn look_through(&self) -> Result<(), LogError> {
        let range = self.slot.range.clone();
        Ok(self.memory.stage2.dirty(range, &mut |marked| self.log.mark_found(self.slot, &marked))?)
    }

    /// Ends hardware's records in all tracked sections, and marks what it recorded (D14 to D17; Kolothum 2023).
    fn end_records(&self) -> Result<(), LogError> {
        let (memory, tracked, cleared) = (self.memory, &self.log.tracked, &self.log.dbm_cleared);
        let mut pending = None;
        for word in tracked.words_set(0, tracked.words()) {
            let sections = tracked.take(word, u64::MAX) & self.sections_in(word);
            cleared.set_in(word, sections);
            for run in runs(word, sections) {
                join(&mut pending, memory.stage2.clear_dbm(self.sections(&run))?);
            }
        }
        self.written_in_cleared(pending)
    }

    /// Marks the pages that hardware recorded in tracked sections, and ends the records of sections that are cold (D14
    /// to D17).
    fn look_at_tracked(&mut self) -> Result<(), LogError> {
        let (memory, tracked, cleared) = (self.memory, &self.log.tracked, &self.log.dbm_cleared);
        self.log.heat.next_round();
        self.own.cold.next_round();
        let mut pending = None;
        for word in tracked.words_set(0, tracked.words()) {
            let sections = tracked.word(word) & self.sections_in(word);
            let mut dirty = 0;
            for run in runs(word, sections) {
                let mut found = |marked: Marked| {
                    self.log.mark_found(self.slot, &marked);
                    dirty |= self.sections_of(&marked);
                };
                memory.stage2.dirty(self.sections(&run), &mut found)?;
            }
            let cold = self.own.cold.looked(word, sections, dirty);
            if cold != 0 {
                tracked.take(word, cold);
                cleared.set_in(word, cold);
                for run in runs(word, cold) {
                    join(&mut pending, memory.stage2.clear_dbm(self.sections(&run))?);
                }
            }
        }
        self.written_in_cleared(pending)
    }

    /// Completes the flush (D16), then marks what was recorded in the sections whose DBM was cleared (D17).
    ///
    /// Reading before the flush would find the same if hardware grants a write only by a compare-and-exchange of the
    /// descriptor in memory, which has DBM clear after `clear_dbm`. So no test can tell the two orders apart. This order is
    /// also safe if a CPU goes by a cached entry, and costs no more.
    fn written_in_cleared(&self, pending: Option<Pending<'_, P, Downgrade, G>>) -> Result<(), LogError> {
        let (cleared, stage2) = (&self.log.dbm_cleared, &self.memory.stage2);
        if let Some(pending) = pending {
            let _ = pending.complete();
        }
        for word in cleared.words_set(0, cleared.words()) {
            for sections in runs(word, cleared.take(word, u64::MAX)) {
                let range = self.sections(&sections);
                stage2.written(range, &mut |marked| self.log.mark_found(self.slot, &marked))?;
            }
        }
        Ok(())
    }

    /// The sections of the marked pages, as bits of the one word of sections that has them all.
    fn sections_of(&self, marked: &Marked) -> u64 {
        let first = (marked.ipa - self.slot.range.start) / G::SIZE;
        let section = |page: u64| page / WORD_PAGES % WORD;
        let (low, high) = (first + u64::from(marked.mask.trailing_zeros()), first + u64::from(marked.mask.ilog2()));
        1 << section(low) | 1 << section(high)
    }

    /// The sections of a word that exist, as a mask. A late fault of another log, with smaller sections, may have set
    /// bits beyond them.
    fn sections_in(&self, word: u64) -> u64 {
        inside(self.log.pages.count().div_ceil(self.running.section()), word)
    }

    /// The addresses of a run of sections.
    fn sections(&self, sections: &Range<u64>) -> IpaRange {
        let (pages, count) = (self.running.section(), self.log.pages.count());
        self.ipa(sections.start * pages)..self.ipa((sections.end * pages).min(count))
    }
}

/// The runs of set bits in a word, as ranges of bit numbers counted from the first word.
fn runs(word: u64, bits: u64) -> impl Iterator<Item = Range<u64>> {
    let mut left = bits;
    core::iter::from_fn(move || {
        let start = left.checked_ilog2().map(|_| left.trailing_zeros())?;
        let length = (left >> start).trailing_ones();
        left &= u64::MAX.checked_shl(start + length).unwrap_or(0);
        let start = word * WORD + u64::from(start);
        Some(start..start + u64::from(length))
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn runs_are_cut_at_the_ends_of_a_word() {
        let all = |word, bits| runs(word, bits).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(all(0, 0), []);
        assert_eq!(all(2, 0b1011), [(128, 130), (131, 132)]);
        assert_eq!(all(1, u64::MAX), [(64, 128)]);
        assert_eq!(all(0, 1 << 63), [(63, 64)]);
    }
}
