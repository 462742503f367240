// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holes: the memory that a new block will map and the smaller mappings that it replaces do not map.
//!
//! A coalesce cleans the holes (step C1, module `coalesce`), and nothing else: the rest was cleaned when it was mapped
//! (Wang 2021: cache maintenance where it is needed).
//!
//! **Invariant.** When the block is made, all of its memory was cleaned, either here or by the CPU that mapped it
//! before.
//!
//! * A leaf of another memory type counts as a hole: it may have been made without any cleaning.
//! * The walk holds no lock, since cleaning takes time. A CPU that maps a page meanwhile cleans that page. The walk
//!   waits for a busy entry.
//! * A page that is unmapped meanwhile was clean. If its owner writes it now, that write is too late for the block, as
//!   it would be for any mapping that is being made.

use crate::platform::{Domain, Platform};
use crate::walk::{Entry, Visitor};
use crate::{Descriptor, Error, Granule, Ipa, IpaRange, Stage2, cache, primitive};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Cleans the holes in the `span` bytes from `ipa` on, which `block` is going to map.
    ///
    /// # Errors
    ///
    /// As [`walk`](Self::walk).
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn clean_holes(&self, ipa: Ipa, span: u64, block: Descriptor<G>) -> Result<(), Error> {
        primitive::step!(Ok(()));
        let range = ipa..ipa + span;
        let mut holes = Holes { stage2: self, block, range: range.clone(), hole: ipa..ipa };
        self.walk(range, &mut holes)?;
        holes.clean();
        // The cleaning is complete before the block is made.
        primitive::dsb(self.platform(), Domain::Ish);
        Ok(())
    }
}

/// Cleans each hole as soon as it ends.
struct Holes<'a, P: Platform, G: Granule> {
    stage2: &'a Stage2<P, G>,
    block: Descriptor<G>,
    /// The addresses of the block.
    range: IpaRange,
    /// The hole that the walk is in, as far as the walk has come.
    hole: IpaRange,
}

impl<P: Platform, G: Granule> Holes<'_, P, G> {
    fn clean(&self) {
        if !self.hole.is_empty() {
            let (pa, size) =
                (self.block.address() + (self.hole.start - self.range.start), self.hole.end - self.hole.start);
            cache::clean_lines(self.stage2.platform(), self.stage2.features(), pa, size);
        }
    }
}

impl<P: Platform, G: Granule> Visitor<G> for Holes<'_, P, G> {
    type Error = Error;

    fn leaf(&mut self, entry: &Entry<G>) -> Result<(), Error> {
        let found = entry.descriptor;
        if found.is_leaf(entry.level) && found.memory_bits() == self.block.memory_bits() {
            return Ok(());
        }
        // If everything was unmapped meanwhile, the entry may cover more than the block.
        let start = entry.ipa.max(self.range.start);
        if start != self.hole.end {
            self.clean();
            self.hole.start = start;
        }
        self.hole.end = entry.range().end.min(self.range.end);
        Ok(())
    }
}
