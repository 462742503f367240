// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages of a slot that do not leave: how often each is pinned.
//!
//! Invariant: sorted by address, and each count is above 0. Accessed under the lock of the slot's backing.

use alloc::vec::Vec;

use twofold_stage2::{Ipa, IpaRange};

/// The pinned pages of a slot.
#[derive(Default)]
pub(crate) struct Pins(Vec<(Ipa, u64)>);

impl Pins {
    /// Pins a page once more. Returns whether there was memory for it on the heap.
    pub(crate) fn pin(&mut self, page: Ipa) -> bool {
        match self.find(page) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => {
                if self.0.try_reserve(1).is_err() {
                    return false;
                }
                self.0.insert(at, (page, 1));
            }
        }
        true
    }

    /// Unpins a page once.
    pub(crate) fn unpin(&mut self, page: Ipa) {
        let Ok(at) = self.find(page) else { return debug_assert!(false, "{page} is not pinned") };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }

    /// Whether the page is pinned.
    pub(crate) fn has(&self, page: Ipa) -> bool {
        self.find(page).is_ok()
    }

    /// Whether a page of this range is pinned.
    pub(crate) fn any_in(&self, range: &IpaRange) -> bool {
        let first = self.0.partition_point(|(page, _)| *page < range.start);
        self.0.get(first).is_some_and(|(page, _)| *page < range.end)
    }

    /// How many pages are pinned.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    fn find(&self, page: Ipa) -> Result<usize, usize> {
        self.0.binary_search_by_key(&page, |(pinned, _)| *pinned)
    }
}
