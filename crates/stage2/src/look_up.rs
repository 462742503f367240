// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finding the leaf that maps an address, without a lock.

use crate::lockless_walk::EntryLocation;
use crate::platform::Platform;
use crate::{Granule, Ipa, IpaRange, Leaf, Level, Stage2};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// The leaf that maps `ipa`, if any. It may have changed when this returns.
    #[inline]
    pub fn look_up(&self, ipa: Ipa) -> Option<Leaf<G>> {
        self.find(ipa).map(|(_, leaf)| leaf)
    }

    /// How many table pages mapping a leaf of `level` at `ipa` would take now. 0 if the table is there, as for most
    /// faults.
    ///
    /// For an embedder that keeps pages ready ([`Pool`](crate::Pool)).
    #[inline]
    pub fn tables_needed(&self, ipa: Ipa, level: Level) -> usize {
        if ipa >= self.geometry().end() {
            return 0;
        }
        let location = self.lockless_walk(ipa, level);
        usize::from(level.raw().saturating_sub(location.level.raw()))
    }

    /// The addresses of the entry that `ipa` leads to, and the leaf there, if any. `ipa` is inside the IPA space.
    pub(crate) fn look_at(&self, ipa: Ipa) -> (IpaRange, Option<Leaf<G>>) {
        loop {
            let location = self.lockless_walk_out_of_line(ipa, Level::L3);
            if !self.is_still_linked(&location) {
                continue;
            }
            let (entry, level, span) = (location.entry, location.level, self.geometry().granule().span(location.level));
            let range = ipa.align_down(span).range(span);
            if entry.is_valid() {
                return (range.clone(), Some(Leaf { ipa: range.start, level, descriptor: entry }));
            }
            if entry.is_vacant() {
                return (range, None);
            }
            self.platform().pause(1);
        }
    }

    /// The leaf that maps `ipa`, and the location of its entry. Waits while the entry is busy.
    #[inline(always)]
    pub(crate) fn find(&self, ipa: Ipa) -> Option<(EntryLocation<'_, G>, Leaf<G>)> {
        let start = self.root_entry(ipa)?;
        loop {
            let then = self.sequence.now(); // W1
            let Ok(location) = self.lockless_walk_from(start, then, ipa, Level::L3) else { continue };
            if !self.is_still_linked(&location) {
                continue;
            }
            if location.entry.is_valid() {
                let ipa = ipa.align_down(self.geometry().granule().span(location.level));
                return Some((location, Leaf { ipa, level: location.level, descriptor: location.entry }));
            }
            if location.entry.is_vacant() {
                return None;
            }
            self.platform().pause(1);
        }
    }
}
