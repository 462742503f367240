// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which memory the leaves in the trees map: how many leaves of each level lead there.

use std::collections::HashMap;

use super::entries::{Entry, span_of};

/// The leaves of all trees, by what they map.
#[derive(Clone, Default)]
pub struct Frames {
    /// By level, and by address in units of what a leaf of that level spans.
    leaves: [HashMap<u64, u32>; 4],
}

impl Frames {
    /// A leaf can be used by walks from here on; what is no leaf is passed over.
    pub fn map(&mut self, entry: Entry, level: u32) {
        if let Some(output) = entry.output_at(level) {
            *self.leaves[level as usize].entry(output.start / span_of(level)).or_default() += 1;
        }
    }

    /// It cannot any more.
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

    /// The level of a leaf that maps the page at `pa`.
    pub fn leaf_over(&self, pa: u64) -> Option<u32> {
        (0..4).find(|level| self.leaves[*level as usize].contains_key(&(pa / span_of(*level))))
    }
}
