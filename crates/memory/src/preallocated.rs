// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backing of preallocated RAM: one run of frames, whose content belongs to the guest from the beginning.
//!
//! Invariant: this data does not change as long as the slot exists. So finding a page takes no lock, no fault makes a
//! page ready, and a leaf may be as large as slot, alignment and embedder allow.

use twofold_stage2::{Geometry, Granule, Ipa, IpaRange, Lent, Level, Pa};

/// The frames of one slot, and the level of the largest leaf that may map them.
pub(crate) struct Preallocated {
    pub(crate) frames: Lent,
    pub(crate) largest: Level,
}

/// The largest leaf that fits: its level and both addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FittingLeaf {
    pub(crate) level: Level,
    pub(crate) ipa: Ipa,
    pub(crate) pa: Pa,
}

impl Preallocated {
    /// The physical address of the page at `ipa`, in the slot with the addresses `slot`.
    pub(crate) fn pa(&self, slot: &IpaRange, ipa: Ipa) -> Pa {
        self.frames.run().pa() + (ipa - slot.start)
    }

    /// The largest leaf that begins with the page at `ipa`.
    pub(crate) fn leaf_from<G: Granule>(&self, slot: &IpaRange, ipa: Ipa, geometry: &Geometry<G>) -> FittingLeaf {
        let begins = |level: &Level| ipa.is_aligned(geometry.granule().span(*level));
        let largest = LEAVES.into_iter().find(begins).unwrap_or(Level::L3);
        FittingLeaf::around(ipa, self.pa(slot, ipa), slot, self.largest.max(largest), geometry)
    }
}

impl FittingLeaf {
    /// The largest leaf, of level `largest` or below, that maps `page` to `pa`. It is inside the slot, and both its
    /// addresses are aligned, as in KVM (Wang 2021). A leaf of one page always fits. No leaf is larger than the geometry's largest block.
    pub(crate) fn around<G: Granule>(
        page: Ipa,
        pa: Pa,
        slot: &IpaRange,
        largest: Level,
        geometry: &Geometry<G>,
    ) -> Self {
        let leaves = LEAVES.into_iter().filter(|level| *level >= largest.max(geometry.largest_block()));
        let mut fitting = leaves.filter_map(|level| {
            let (ipa, pa) = fits(slot, page, pa, geometry.granule().span(level))?;
            Some(Self { level, ipa, pa })
        });
        fitting.next().unwrap_or(Self { level: Level::L3, ipa: page, pa })
    }

    /// The number of bytes that the leaf maps.
    pub(crate) fn size<G: Granule>(&self, geometry: &Geometry<G>) -> u64 {
        geometry.granule().span(self.level)
    }
}

/// Both addresses of a leaf of `span` bytes around `page`, if slot and alignment allow one.
fn fits(slot: &IpaRange, page: Ipa, pa: Pa, span: u64) -> Option<(Ipa, Pa)> {
    let ipa = page.align_down(span);
    let start = Pa::new(pa.raw().checked_sub(page - ipa)?);
    let inside = ipa >= slot.start && ipa.checked_add(span)? <= slot.end;
    (inside && start.is_aligned(span)).then_some((ipa, start))
}

/// The levels that may have leaves, from the largest leaf to the smallest.
const LEAVES: [Level; 4] = [Level::L0, Level::L1, Level::L2, Level::L3];
