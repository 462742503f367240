// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clear: take the bits, protect the pages, complete the flush (D11 to D13). The order is KVM's, for KVM's reason: a
//! page that is read before the flush may miss a write that a TLB still allows.
//!
//! Only pages whose bits were set are protected, not those between. Adjacent words in which all bits were set are
//! gathered, and protected by one pass.

use core::ops::Range;

use twofold_stage2::{Downgrade, Granule, IpaRange, Pending, Platform};

use super::bits::WORD;
use super::options::{LogError, Tracker};
use super::pages::DirtyPages;
use super::start::{DirtyLog, Held, join, least_chunk};

impl<P: Platform, G: Granule> DirtyLog<'_, P, G> {
    /// Clears the pages whose bits are set in `mask`, among the `pages` pages from `first_page` on. Bit `n % 64` of
    /// word `n / 64` stands for page `first_page + n`. When this returns, these pages may be read. A later write to one
    /// puts it into the log again.
    ///
    /// Only pages that are in the log are protected. vCPUs may fault meanwhile. A slot may be cleared in pieces.
    ///
    /// # Errors
    ///
    /// The log does not run, or is cleared by [`get`](Self::get); `first_page` is not a multiple of 64; `pages` is not
    /// a multiple of 64, and the pages do not end with the slot; the pages reach beyond the slot; the mask does not
    /// have one bit for each page. Nothing is cleared then.
    ///
    /// [`LogError::Stage2`] if the tables cannot be changed. Pages that could not be protected stay in the log.
    pub fn clear(&self, first_page: u64, pages: u64, mask: &[u64]) -> Result<(), LogError> {
        let words = self.words(first_page, pages)?;
        if mask.len() as u64 != pages.div_ceil(WORD) {
            return Err(LogError::Mask { words: mask.len(), pages });
        }
        self.clear_words(words.zip(mask.iter().copied()))
    }

    /// Clears the pages that a [`get`](Self::get) has reported.
    ///
    /// # Errors
    ///
    /// As [`clear`](Self::clear), and [`LogError::BeyondSlot`] if the pages are of a larger slot.
    pub fn clear_these(&self, dirty: &DirtyPages) -> Result<(), LogError> {
        let slot = self.pages();
        if let Some(word) = dirty.words().last().filter(|word| word.first_page >= slot) {
            return Err(LogError::BeyondSlot { page: word.first_page, pages: WORD, slot });
        }
        self.clear_words(dirty.words().iter().map(|word| (word.first_page / WORD, word.mask)))
    }

    /// Clears what is in the log of these pages, as [`clear`](Self::clear) does, and returns how many pages that was. What
    /// hardware has recorded is not in the log before a [`get`](Self::get).
    ///
    /// For a caller that counts pages and does not read them: it needs no list, and a slot can be done in pieces.
    ///
    /// # Errors
    ///
    /// As [`clear`](Self::clear). On [`LogError::Stage2`], pages that were cleared before are not in the log any more.
    pub fn collect(&self, pages: Range<u64>) -> Result<u64, LogError> {
        let words = self.words(pages.start, pages.end.saturating_sub(pages.start))?;
        let mut collected = 0;
        self.clear_each(words.map(|word| (word, u64::MAX)), |taken| collected += u64::from(taken.count_ones()))?;
        Ok(collected)
    }

    /// The words of these pages.
    fn words(&self, first_page: u64, pages: u64) -> Result<Range<u64>, LogError> {
        let slot = self.pages();
        if !first_page.is_multiple_of(WORD) {
            return Err(LogError::Misaligned { page: first_page });
        }
        let end = first_page.checked_add(pages).filter(|end| *end <= slot);
        let end = end.ok_or(LogError::BeyondSlot { page: first_page, pages, slot })?;
        if !pages.is_multiple_of(WORD) && end != slot {
            return Err(LogError::Length { pages, slot });
        }
        Ok(first_page / WORD..end.div_ceil(WORD))
    }

    fn clear_words(&self, words: impl Iterator<Item = (u64, u64)>) -> Result<(), LogError> {
        self.clear_each(words, |_| ())
    }

    /// Clears the bits of `words` that are in their masks, and calls `taken` with those that were set.
    fn clear_each(
        &self,
        mut words: impl Iterator<Item = (u64, u64)>,
        mut taken: impl FnMut(u64),
    ) -> Result<(), LogError> {
        let held = self.held()?;
        if held.running.tracker() == Tracker::WriteProtect {
            return Err(LogError::ClearedByGet);
        }
        // Without `all_dirty`, the start has split what it could.
        let options = &held.own.options;
        let mut clearing = held.clearing(if options.all_dirty { options.chunk } else { 0 });
        let cleared = words.try_for_each(|(word, mask)| clearing.word(word, mask).map(&mut taken));
        // After an error midway, the pages before it are protected, and still need their flush.
        clearing.finish().and(cleared)
    }
}

impl<'a, P: Platform, G: Granule> Held<'a, P, G> {
    /// Begins to clear, and splits `chunk` bytes at once before they are protected.
    pub(super) fn clearing(&self, chunk: u64) -> Clearing<'_, 'a, P, G> {
        Clearing { held: self, chunk, split: 0, full: 0..0, full_sets_dbm: false, pending: None }
    }
}

/// A clear in progress.
pub(super) struct Clearing<'l, 'a, P: Platform, G: Granule> {
    held: &'l Held<'a, P, G>,
    /// Bytes that are split at once before they are protected; 0: none.
    chunk: u64,
    /// Pages before this one are split already.
    split: u64,
    /// A run of pages whose bits were taken, all of them, and which are still to be protected.
    full: Range<u64>,
    full_sets_dbm: bool,
    pending: Option<Pending<'l, P, Downgrade, G>>,
}

impl<P: Platform, G: Granule> Clearing<'_, '_, P, G> {
    /// Takes the bits of a word that are in `mask`, and protects these pages at once or in [`finish`](Self::finish).
    /// Returns the bits that were taken.
    pub(super) fn word(&mut self, word: u64, mask: u64) -> Result<u64, LogError> {
        let pages = &self.held.log.pages;
        let (first, inside) = (word * WORD, pages.inside(word));
        let dirty = pages.word(word) & mask & inside;
        if dirty == 0 {
            return Ok(dirty);
        }
        #[cfg(feature = "baselines")]
        self.split_word(first, dirty)?;
        self.split_before(first)?;
        let taken = pages.take(word, mask & inside);
        let sets_dbm = self.sets_dbm(first);
        if taken == inside {
            let end = first + u64::from(inside.count_ones());
            if self.full.end != first || self.full_sets_dbm != sets_dbm {
                self.protect_full().inspect_err(|_| pages.set_in(word, taken))?;
                self.full = first..first;
                self.full_sets_dbm = sets_dbm;
            }
            self.full.end = end;
        } else {
            let (stage2, ipa) = (&self.held.memory.stage2, self.held.ipa(first));
            let pending =
                if sets_dbm { stage2.set_dbm_clean_mask(ipa, taken) } else { stage2.write_protect_mask(ipa, taken) };
            // A page that could not be protected goes back into the log.
            join(&mut self.pending, pending.inspect_err(|_| pages.set_in(word, taken))?);
        }
        Ok(taken)
    }

    /// Protects the pages that are left, and completes the flush.
    pub(super) fn finish(mut self) -> Result<(), LogError> {
        let result = self.protect_full();
        if let Some(pending) = self.pending.take() {
            let _ = pending.complete();
        }
        result
    }

    /// Whether the word's pages are to be hardware-tracked from now on.
    fn sets_dbm(&self, first: u64) -> bool {
        match self.held.running.tracker() {
            Tracker::Hardware => true,
            // A section of `Adaptive` is a word.
            Tracker::Adaptive => self.held.log.tracked.is_set(first / WORD),
            Tracker::WriteProtect | Tracker::Manual | Tracker::Combined => false,
        }
    }

    fn protect_full(&mut self) -> Result<(), LogError> {
        let full = core::mem::take(&mut self.full);
        if full.is_empty() {
            return Ok(());
        }
        let stage2 = &self.held.memory.stage2;
        let range = self.addresses(&full);
        let pending = if self.full_sets_dbm { stage2.set_dbm_clean(range) } else { stage2.write_protect(range) };
        join(&mut self.pending, pending.inspect_err(|_| self.held.log.pages.set_run(full.start, full.end))?);
        Ok(())
    }

    /// Splits the blocks in the chunk around a word.
    fn split_before(&mut self, first: u64) -> Result<(), LogError> {
        if first < self.split || !self.splits() {
            return Ok(());
        }
        let (held, span) = (self.held, self.span());
        let around = held.ipa(first).align_down(span);
        let (start, end) = (held.slot.range.start, held.slot.range.end);
        let range = around.max(start)..around.checked_add(span).unwrap_or(end).min(end);
        self.split = (range.end - start) / G::SIZE;
        held.split(range, span)
    }

    /// Where splits are walks (feature `baselines`), splits word by word, as KVM does: from the first to the last page
    /// to be cleared.
    #[cfg(feature = "baselines")]
    fn split_word(&mut self, first: u64, pages: u64) -> Result<(), LogError> {
        let held = self.held;
        if !held.memory.baselines.walks_to_split() || !self.splits() {
            return Ok(());
        }
        // So that `split_before` passes over this word.
        self.split = first + WORD;
        let (start, end) = (u64::from(pages.trailing_zeros()), u64::from(pages.ilog2()) + 1);
        held.split(held.ipa(first + start)..held.ipa(first + end), self.span())
    }

    /// Whether blocks are split before they are protected.
    fn splits(&self) -> bool {
        self.chunk != 0 || self.held.running.maps_tracked()
    }

    /// Bytes to split at once: at least what one table of pages maps, so that each table is looked for once.
    fn span(&self) -> u64 {
        self.chunk.max(least_chunk::<G>())
    }

    fn addresses(&self, pages: &Range<u64>) -> IpaRange {
        self.held.ipa(pages.start)..self.held.ipa(pages.end)
    }
}
