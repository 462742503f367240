// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of a range is mapped now, by the size of its leaves.
//!
//! A table's metadata counts its leaves, so the pages of a table are counted without a look at its entries.
//!
//! Invariant: each table counts as it was while it was linked. A CPU that finds that a table was unlinked since it looked at
//! the root starts there again, at the address that it had reached (W3 in module `lockless_walk`).

use crate::lockless_walk::Retry;
use crate::platform::Platform;
use crate::sequence::Snapshot;
use crate::table::Table;
use crate::{Error, Granule, Ipa, IpaRange, Level, Stage2};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// The number of leaves in `range` by level: index 3 counts pages, 2 and 1 count blocks. A block that reaches beyond the
    /// range counts. A table of pages counts as a whole, so give a range that begins and ends with such tables.
    ///
    /// While other CPUs change the tree, a leaf that is about to be replaced may count or not.
    ///
    /// # Errors
    ///
    /// `range` is not whole pages inside the IPA space.
    pub fn count_leaves(&self, range: IpaRange) -> Result<[u64; 4], Error> {
        self.geometry().check(&range)?;
        let (mut leaves, mut at) = ([0; 4], range.start);
        while at < range.end {
            let then = self.sequence.now();
            let _ =
                self.count_table(self.root(), self.geometry().root_level(), then, (&mut at, range.end), &mut leaves);
        }
        Ok(leaves)
    }

    /// Counts the part of a table above level 3 from `at` to `end`.
    fn count_table(
        &self,
        table: Table<'_, G>,
        level: Level,
        then: Snapshot,
        (at, end): (&mut Ipa, Ipa),
        leaves: &mut [u64; 4],
    ) -> Result<(), Retry> {
        let Some(below) = level.below() else { return Ok(()) };
        let span = self.geometry().granule().span(level);
        let mut index = self.geometry().index(*at, level);
        while index < table.len() && *at < end {
            let here = at.align_down(span);
            let entry = table.entry(index).look();
            if !self.sequence.is_still(then) {
                return Err(Retry);
            }
            if entry.is_leaf(level) {
                leaves[usize::from(level.raw())] += 1;
            } else if entry.is_table(level) && below < Level::L3 {
                self.count_table(self.table(entry), below, then, (at, end), leaves)?;
            } else if entry.is_table(level) {
                let metadata = self.platform().metadata(entry.address());
                // A locked table is about to have other counts. The ones before will do.
                let counts = metadata.peek().unwrap_or_else(|| metadata.last());
                if !self.sequence.is_still(then) {
                    return Err(Retry);
                }
                leaves[usize::from(below.raw())] += counts.leaves();
            }
            *at = here + span;
            index += 1;
        }
        Ok(())
    }
}
