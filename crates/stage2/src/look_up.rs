// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finding the leaf that maps an address, without a lock.

use crate::lockless_walk::EntryLocation;
use crate::platform::Platform;
use crate::{Granule, Ipa, Leaf, Level, Stage2};

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
