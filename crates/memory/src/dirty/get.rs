// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Telling which pages are dirty: what hardware recorded is collected first, by way of the tracker.
//!
//! Invariant: what is told is in the caller's list when the call has returned, and not before: by then, where the tracker
//! clears as it tells, these pages are protected, and may be read.

use core::ops::Range;

use twofold_stage2::{IpaRange, Marked, Narrowed, Pending, Platform};

use super::bits::{WORD, inside};
use super::clear::Clearing;
use super::options::SECTION;
use super::{DirtyLog, DirtyPages, Held, LogError, Tracker, join};
use crate::frames::FRAME;

impl<P: Platform> DirtyLog<'_, P> {
    /// Tells which pages are dirty. With [`Tracker::WriteProtect`] they are clear when this returns, and may be read; with the
    /// others they stay in the log until they are [cleared](Self::clear).
    ///
    /// What it costs follows the number of words that have dirty pages, and of pages that hardware records, not the size of
    /// the slot.
    ///
    /// # Errors
    ///
    /// The log does not run; no memory is left for the list, which is empty then, and the log as it was.
    pub fn get(&self, dirty: &mut DirtyPages) -> Result<(), LogError> {
        dirty.clear();
        let mut held = self.held()?;
        match held.running.tracker() {
            Tracker::WriteProtect => return held.get_and_clear(dirty),
            Tracker::Manual => {}
            Tracker::Hardware => held.look_through()?,
            Tracker::Combined => held.end_records()?,
            Tracker::Adaptive => held.look_at_armed()?,
        }
        held.tell(dirty)
    }
}

impl<P: Platform> Held<'_, P> {
    /// Lists what is in the log.
    fn tell(&self, dirty: &mut DirtyPages) -> Result<(), LogError> {
        let pages = &self.log.pages;
        dirty.reserve(pages.words_set_count())?;
        for word in pages.words_set(0, pages.words()) {
            if !dirty.has_room() {
                // More than there were a moment ago.
                dirty.reserve(1).inspect_err(|_| dirty.clear())?;
            }
            dirty.push(word, pages.word(word));
        }
        Ok(())
    }

    /// Takes what is in the log, and protects it.
    fn get_and_clear(&self, dirty: &mut DirtyPages) -> Result<(), LogError> {
        let mut clearing = self.clearing(0);
        let taken = self.take_all(&mut clearing, dirty);
        // Where it failed midway, the pages before that are protected, and their flush is still to come.
        clearing.finish().and(taken).inspect_err(|_| {
            // The caller does not get these pages, so they go back into the log.
            dirty.words().iter().for_each(|word| self.log.pages.set_in(word.first_page / WORD, word.mask));
            dirty.clear();
        })
    }

    /// Moves what is in the log to the list, up to the first error.
    fn take_all(&self, clearing: &mut Clearing<'_, '_, P>, dirty: &mut DirtyPages) -> Result<(), LogError> {
        let pages = &self.log.pages;
        dirty.reserve(pages.words_set_count())?;
        for word in pages.words_set(0, pages.words()) {
            if !dirty.has_room() {
                // More than there were a moment ago.
                dirty.reserve(1)?;
            }
            dirty.push(word, clearing.word(word, u64::MAX)?);
        }
        Ok(())
    }

    /// Marks what hardware recorded, and leaves it recorded: what is written on costs nothing until it is cleared.
    fn look_through(&self) -> Result<(), LogError> {
        let range = self.slot.range.clone();
        Ok(self.memory.stage2.dirty(range, &mut |marked| self.log.mark_found(self.slot, &marked))?)
    }

    /// Ends hardware's records of the sections that are armed, and marks what it recorded (source S3). The section's bit goes
    /// first: who arms it again meanwhile sets it again. What was recorded is looked at after the flush: until then hardware
    /// may record.
    fn end_records(&self) -> Result<(), LogError> {
        let (memory, armed, sealed) = (self.memory, &self.log.armed, &self.log.sealed);
        let mut pending = None;
        for word in armed.words_set(0, armed.words()) {
            let sections = armed.take(word, u64::MAX) & self.sections_in(word);
            sealed.set_in(word, sections);
            for run in runs(word, sections) {
                join(&mut pending, memory.stage2.seal(self.sections(&run))?);
            }
        }
        self.written_in_sealed(pending)
    }

    /// Marks what hardware recorded in the sections that are armed, and ends the records of those that are cold, as above.
    fn look_at_armed(&mut self) -> Result<(), LogError> {
        let (memory, armed, sealed) = (self.memory, &self.log.armed, &self.log.sealed);
        self.log.heat.next_round();
        self.own.cold.next_round();
        let mut pending = None;
        for word in armed.words_set(0, armed.words()) {
            let sections = armed.word(word) & self.sections_in(word);
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
                armed.take(word, cold);
                sealed.set_in(word, cold);
                for run in runs(word, cold) {
                    join(&mut pending, memory.stage2.seal(self.sections(&run))?);
                }
            }
        }
        self.written_in_sealed(pending)
    }

    /// After the flush, marks what was recorded in the sections that were sealed.
    ///
    /// A look before the flush would find the same: hardware grants a write by a compare-and-exchange of the descriptor in
    /// memory, and only where that has DBM set, which `seal` has cleared. So no test can tell the two orders apart. This one
    /// is as safe if a CPU went by the entry in its TLB, and costs no more.
    fn written_in_sealed(&self, pending: Option<Pending<'_, P, Narrowed>>) -> Result<(), LogError> {
        let (sealed, stage2) = (&self.log.sealed, &self.memory.stage2);
        if let Some(pending) = pending {
            let _ = pending.complete();
        }
        for word in sealed.words_set(0, sealed.words()) {
            for sections in runs(word, sealed.take(word, u64::MAX)) {
                let range = self.sections(&sections);
                stage2.written(range, &mut |marked| self.log.mark_found(self.slot, &marked))?;
            }
        }
        Ok(())
    }

    /// Which sections some pages are in, all of them in one word of sections: as bits of that word.
    fn sections_of(&self, marked: &Marked) -> u64 {
        let first = (marked.ipa - self.slot.range.start) / FRAME;
        let section = |page: u64| page / SECTION % WORD;
        let (low, high) = (first + u64::from(marked.mask.trailing_zeros()), first + u64::from(marked.mask.ilog2()));
        1 << section(low) | 1 << section(high)
    }

    /// Which sections of a word there are. Who faulted while another log ran, and is late, may set bits of its sections.
    fn sections_in(&self, word: u64) -> u64 {
        inside(self.log.pages.count().div_ceil(self.running.section()), word)
    }

    /// The addresses of some sections.
    fn sections(&self, sections: &Range<u64>) -> IpaRange {
        let (pages, count) = (self.running.section(), self.log.pages.count());
        self.ipa(sections.start * pages)..self.ipa((sections.end * pages).min(count))
    }
}

/// The runs of bits that are set in a word, as numbers of the bits among all.
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
