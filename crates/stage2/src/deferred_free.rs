// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table pages of a flush that was dropped: the tree keeps them until an operation has a source to give them to.
//!
//! A destructor has no [`TableSource`]. So a [`Pending`](crate::Pending) or [`Flushed`](crate::Flushed) that is dropped
//! puts its pages here after its flush. The next operation that may free pages gives them back.
//!
//! The pages are a stack, linked through their metadata. A page is pushed by one compare-and-exchange, and all pages are
//! taken by one swap. So the stack has no ABA problem: a page that leaves and comes back between load and exchange does
//! no harm.

use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::{Features, Granule, Pa, TablePage, TableSource};

/// The page on top of the stack, or 0.
#[derive(Debug, Default)]
pub(crate) struct DeferredFree(Word);

impl DeferredFree {
    /// Gives the pages to `tables`. No walk reaches them: their flush is complete.
    #[inline]
    pub(crate) fn give_to<P: Platform, G: Granule>(
        &self,
        tables: &mut impl TableSource<G>,
        platform: &P,
        features: &Features,
    ) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.give_all_to(tables, platform, features);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_all_to<P: Platform, G: Granule>(
        &self,
        tables: &mut impl TableSource<G>,
        platform: &P,
        features: &Features,
    ) {
        platform.on_atomic();
        let mut next = self.0.swap(0, Ordering::Acquire);
        while next != 0 {
            let page = Pa::new(next);
            // Read the link before the page has another owner.
            next = platform.metadata(page).link();
            tables.give(TablePage::from_tree(page, features));
        }
    }
}

/// A sink that puts the pages that it is given on the stack.
pub(crate) struct DeferFree<'a, P: Platform> {
    pub(crate) list: &'a DeferredFree,
    pub(crate) platform: &'a P,
}

impl<P: Platform, G: Granule> TableSource<G> for DeferFree<'_, P> {
    fn take(&mut self) -> Option<TablePage<G>> {
        None
    }

    fn give(&mut self, page: TablePage<G>) {
        let (head, metadata) = (&self.list.0, self.platform.metadata(page.pa()));
        loop {
            let next = head.load(Ordering::Relaxed);
            metadata.set_link(next);
            self.platform.on_atomic();
            // Release: the CPU that takes the page finds the link.
            if head.compare_exchange(next, page.pa().raw(), Ordering::Release).is_ok() {
                return;
            }
        }
    }
}
