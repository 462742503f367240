// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is behind RAM that is given: one run of frames, whose content is the guest's from the beginning.
//!
//! Invariant: nothing of it ever changes while the slot is there. So nobody takes a lock to find a page, no fault has to make
//! one ready, and a leaf may be as large as slot, alignment and giver allow.

use twofold_stage2::{Geometry, Ipa, IpaRange, Lent, Level, Pa};

/// The frames of one slot, and the level of the largest leaf that may map them.
pub(crate) struct Given {
    pub(crate) frames: Lent,
    pub(crate) largest: Level,
}

/// A leaf that memory may be mapped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) level: Level,
    pub(crate) ipa: Ipa,
    pub(crate) pa: Pa,
}

impl Given {
    /// Where the page at `ipa` is, in a slot of these addresses.
    pub(crate) fn pa(&self, slot: &IpaRange, ipa: Ipa) -> Pa {
        self.frames.run().pa() + (ipa - slot.start)
    }

    /// The largest leaf that begins with the page at `ipa`.
    pub(crate) fn leaf_from(&self, slot: &IpaRange, ipa: Ipa, geometry: &Geometry) -> Place {
        let begins = |level: &Level| ipa.is_aligned(geometry.granule().span(*level));
        let largest = LEAVES.into_iter().find(begins).unwrap_or(Level::L3);
        Place::around(ipa, self.pa(slot, ipa), slot, self.largest.max(largest), geometry)
    }
}

impl Place {
    /// The largest leaf, of `largest` or below, that maps `page` to `pa`: inside the slot, and aligned at both ends, as in KVM
    /// (source S4). The page always fits. Above the root there are no leaves.
    pub(crate) fn around(page: Ipa, pa: Pa, slot: &IpaRange, largest: Level, geometry: &Geometry) -> Self {
        let leaves = LEAVES.into_iter().filter(|level| *level >= largest.max(geometry.root_level()));
        let mut fitting = leaves.filter_map(|level| {
            let (ipa, pa) = fits(slot, page, pa, geometry.granule().span(level))?;
            Some(Self { level, ipa, pa })
        });
        fitting.next().unwrap_or(Self { level: Level::L3, ipa: page, pa })
    }

    /// How many bytes it maps.
    pub(crate) fn size(&self, geometry: &Geometry) -> u64 {
        geometry.granule().span(self.level)
    }
}

/// Where a leaf that spans `span` bytes around `page` would lie, if slot and alignment allow one.
fn fits(slot: &IpaRange, page: Ipa, pa: Pa, span: u64) -> Option<(Ipa, Pa)> {
    let ipa = page.align_down(span);
    let start = Pa::new(pa.raw().checked_sub(page - ipa)?);
    let inside = ipa >= slot.start && ipa.checked_add(span)? <= slot.end;
    (inside && start.is_aligned(span)).then_some((ipa, start))
}

/// Levels that have leaves, the largest first.
const LEAVES: [Level; 3] = [Level::L1, Level::L2, Level::L3];
