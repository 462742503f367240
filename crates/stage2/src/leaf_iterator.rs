// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The leaves of a range, one after the other, without a lock.
//!
//! Each step walks from the root again, so a caller may change the tree between two steps, and no page of it is kept.

use core::iter::FusedIterator;

use crate::platform::Platform;
use crate::{Error, Granule, Ipa, IpaRange, Kib4, Leaf, Stage2};

/// The leaves of a range, by ascending address. Made by [`Stage2::leaves`].
#[derive(Debug)]
#[must_use = "an iterator does nothing unless it is used"]
pub struct Leaves<'a, P: Platform, G: Granule = Kib4> {
    stage2: &'a Stage2<P, G>,
    at: Ipa,
    end: Ipa,
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// The leaves of `range`, by ascending address: what to export or print. The first one may begin before the range, and
    /// the last one may end after it.
    ///
    /// Each leaf is as it was when it was returned. While other CPUs change the tree, leaves may be missed or be gone.
    /// [`count_leaves`](Self::count_leaves) only counts, which takes less time; [`walk`](Self::walk) also visits tables.
    ///
    /// ```
    /// # use twofold_stage2::*;
    /// fn mapped<P: Platform>(stage2: &Stage2<P>, range: IpaRange) -> Result<u64, Error> {
    ///     Ok(stage2.leaves(range)?.map(|leaf| leaf.size()).sum())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `range` is not whole pages inside the IPA space.
    pub fn leaves(&self, range: IpaRange) -> Result<Leaves<'_, P, G>, Error> {
        self.geometry().check(&range)?;
        Ok(Leaves { stage2: self, at: range.start, end: range.end })
    }
}

impl<P: Platform, G: Granule> Iterator for Leaves<'_, P, G> {
    type Item = Leaf<G>;

    fn next(&mut self) -> Option<Leaf<G>> {
        while self.at < self.end {
            let (entry, found) = self.stage2.look_at(self.at);
            self.at = entry.end;
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl<P: Platform, G: Granule> FusedIterator for Leaves<'_, P, G> {}
