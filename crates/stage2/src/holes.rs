// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holes: what a block is going to map, and the smaller mappings that it replaces do not. They are cleaned, and nothing else
//! is (source S4: only where it is needed); the rest was when it was mapped.
//!
//! Invariant: what is there from before the walk until the block is made, was cleaned by who mapped it, or is cleaned here. A
//! leaf of another type of memory is a hole: it may have been made without any cleaning. The walk holds no lock, since
//! cleaning takes its time; what others map meanwhile they clean, and an entry that they are changing is waited for. What they
//! unmap meanwhile was clean; who writes there as well is as late for this block as for any mapping that is on its way.

use crate::platform::{Domain, Platform};
use crate::walk::{Entry, Visitor};
use crate::{Descriptor, Error, Ipa, IpaRange, Stage2, cache, primitive};

impl<P: Platform> Stage2<P> {
    /// Cleans the holes below the `span` bytes from `ipa` on, where a block of this descriptor is going to be.
    ///
    /// # Errors
    ///
    /// As [`walk`](Self::walk).
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn clean_holes(&self, ipa: Ipa, span: u64, block: Descriptor) -> Result<(), Error> {
        primitive::step!(Ok(()));
        let range = ipa..ipa + span;
        let mut holes = Holes { stage2: self, block, range: range.clone(), hole: ipa..ipa };
        self.walk(range, &mut holes)?;
        holes.clean();
        // Complete before the block is made (S4: clean before make).
        primitive::dsb(self.platform(), Domain::Ish);
        Ok(())
    }
}

/// Cleans each hole as soon as it ends.
struct Holes<'a, P: Platform> {
    stage2: &'a Stage2<P>,
    block: Descriptor,
    /// Where it is going to be.
    range: IpaRange,
    /// The one that the walk is in, as far as it has come.
    hole: IpaRange,
}

impl<P: Platform> Holes<'_, P> {
    fn clean(&self) {
        if !self.hole.is_empty() {
            let (pa, size) =
                (self.block.address() + (self.hole.start - self.range.start), self.hole.end - self.hole.start);
            cache::clean_lines(self.stage2.platform(), self.stage2.features(), pa, size);
        }
    }
}

impl<P: Platform> Visitor for Holes<'_, P> {
    type Error = Error;

    fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
        let found = entry.descriptor;
        if found.is_leaf(entry.level) && found.memory_bits() == self.block.memory_bits() {
            return Ok(());
        }
        // Where all was unmapped meanwhile, the entry may be of more than the block is.
        let start = entry.ipa.max(self.range.start);
        if start != self.hole.end {
            self.clean();
            self.hole.start = start;
        }
        self.hole.end = entry.range().end.min(self.range.end);
        Ok(())
    }
}
