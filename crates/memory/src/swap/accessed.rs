// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many pages a guest has accessed in some time, for an embedder whose write-out task does not look at accesses. With
//! [`Generations`](super::Generations) there is no need of it, and the two do not go together: each clears the access flags.
//!
//! The time begins when [`count_accessed`](GuestMemory::count_accessed) has been called for all RAM and the TLBs are
//! invalidated, and ends when the same is done again. Two figures add up to the pages that were accessed meanwhile:
//!
//! * the pages with an access flag then, which the calls count;
//! * the pages that left meanwhile, and had the flag ([`accessed_and_left`](GuestMemory::accessed_and_left)). A page that leaves
//!   twice counts twice.
//!
//! No fault does anything for this, and nothing is kept for a page.

use twofold_stage2::{Error, Granule, IpaRange, Platform};

use crate::guest::GuestMemory;

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Counts the pages whose access flag is set, and clears the flags. A block has one for all its pages, and counts whole,
    /// also those outside the range.
    ///
    /// A CPU that has a page in its TLB sets no flag. So the caller invalidates
    /// ([`invalidate_all`](twofold_stage2::Stage2::invalidate_all)) after the last range.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages of the IPA space.
    pub fn count_accessed(&self, range: IpaRange) -> Result<u64, Error> {
        let granule = self.stage2.geometry().granule();
        let mut pages = 0;
        self.stage2.age(range, &mut |young| {
            pages += u64::from(young.mask.count_ones()) * (granule.span(young.level) / G::SIZE);
        })?;
        Ok(pages)
    }

    /// The pages that have left so far, and had the access flag.
    pub fn accessed_and_left(&self) -> u64 {
        self.swap.as_deref().map_or(0, |swap| swap.accessed_and_left.get())
    }
}
