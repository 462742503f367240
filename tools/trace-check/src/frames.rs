// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that the leaves of all trees map: the number of leaves of each level for each address.

use std::collections::HashMap;

use super::entries::{Entry, span_of};

/// The leaves of all trees, by output address.
#[derive(Clone, Default)]
pub struct Frames {
    /// For each level: counts by address, in units of the size of a leaf of that level.
    leaves: [HashMap<u64, u32>; 4],
}

impl Frames {
    /// Counts a leaf that walks may use. Ignores an entry that is not a leaf.
    pub fn map(&mut self, entry: Entry, level: u32) {
        if let Some(output) = entry.output_at(level) {
            *self.leaves[level as usize].entry(output.start / span_of(level)).or_default() += 1;
        }
    }

    /// Removes a leaf that walks may no longer use.
    pub fn unmap(&mut self, entry: Entry, level: u32) {
        let Some(output) = entry.output_at(level) else { return };
        let unit = output.start / span_of(level);
        if let Some(count) = self.leaves[level as usize].get_mut(&unit) {
            *count -= 1;
            if *count == 0 {
                self.leaves[level as usize].remove(&unit);
            }
        }
    }

    /// Returns the level of a leaf that maps the page at `pa`.
    pub fn leaf_over(&self, pa: u64) -> Option<u32> {
        (0..4).find(|level| self.leaves[*level as usize].contains_key(&(pa / span_of(*level))))
    }
}
