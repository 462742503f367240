// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU's own table pages, in front of a source that vCPUs share.
//!
//! Most faults need no table (Wang 2021: table pages when needed). The engine takes a page only when one is missing,
//! and with no lock held. So a pool need not be filled for a fault. It saves accesses to the shared source, and keeps
//! the pages of lost races for the next fault. It is filled before a split, which takes hundreds of pages.

use crate::{Granule, Kib4, TablePage, TableSource};

/// At most `N` pages, and the source that they come from. Dropping the pool gives its pages back.
#[derive(Debug)]
pub struct Pool<S: TableSource<G>, const N: usize, G: Granule = Kib4> {
    source: S,
    pages: [Option<TablePage<G>>; N],
    ready: usize,
}

impl<S: TableSource<G>, const N: usize, G: Granule> Pool<S, N, G> {
    /// An empty pool.
    pub const fn new(source: S) -> Self {
        Self { source, pages: [const { None }; N], ready: 0 }
    }

    /// The number of pages in the pool.
    pub const fn ready(&self) -> usize {
        self.ready
    }

    /// Fills the pool to `pages` pages, or as far as they fit and the source has them. Returns the number of pages in
    /// the pool.
    #[inline]
    pub fn top_up(&mut self, pages: usize) -> usize {
        while self.ready < pages {
            let Some(place) = self.pages.get_mut(self.ready) else { break };
            let Some(page) = self.source.take() else { break };
            *place = Some(page);
            self.ready += 1;
        }
        self.ready
    }
}

impl<S: TableSource<G>, const N: usize, G: Granule> TableSource<G> for Pool<S, N, G> {
    #[inline]
    fn take(&mut self) -> Option<TablePage<G>> {
        let Some(last) = self.ready.checked_sub(1) else { return self.source.take() };
        self.ready = last;
        self.pages.get_mut(last)?.take()
    }

    #[inline]
    fn give(&mut self, page: TablePage<G>) {
        match self.pages.get_mut(self.ready) {
            Some(place) => {
                *place = Some(page);
                self.ready += 1;
            }
            None => self.source.give(page),
        }
    }
}

impl<S: TableSource<G>, const N: usize, G: Granule> Drop for Pool<S, N, G> {
    fn drop(&mut self) {
        for page in self.pages.iter_mut().filter_map(Option::take) {
            self.source.give(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Donated, Features, Pa};

    /// A source of pages; `asked` counts the calls of `take`.
    struct Pages {
        free: Vec<TablePage>,
        asked: usize,
    }

    impl Pages {
        fn new(count: u64) -> Self {
            // SAFETY: nothing is accessed through it here.
            let donated = unsafe { Donated::new(Pa::new(0x10_0000), count * TablePage::SIZE) };
            let pages = donated.into_run().into_pages();
            Self { free: pages.filter_map(|page| page.into_table(&Features::NONE).ok()).collect(), asked: 0 }
        }
    }

    impl TableSource for Pages {
        fn take(&mut self) -> Option<TablePage> {
            self.asked += 1;
            self.free.pop()
        }

        fn give(&mut self, page: TablePage) {
            self.free.push(page);
        }
    }

    #[test]
    fn what_is_ready_is_not_asked_for() {
        let mut source = Pages::new(8);
        let mut pool: Pool<_, 4> = Pool::new(&mut source);
        assert_eq!(pool.top_up(3), 3);
        assert_eq!(pool.top_up(2), 3);
        let page = pool.take().unwrap();
        pool.give(page);
        drop(pool);
        assert_eq!(source.asked, 3);
    }

    #[test]
    fn it_holds_no_more_than_it_has_room_for() {
        let mut source = Pages::new(8);
        let mut pool: Pool<_, 4> = Pool::new(&mut source);
        assert_eq!(pool.top_up(6), 4);
        let pages: Vec<_> = core::iter::from_fn(|| pool.take()).collect();
        assert_eq!(pages.len(), 8, "the pages of the source too");
        pages.into_iter().for_each(|page| pool.give(page));
        assert_eq!(pool.ready(), 4);
    }

    #[test]
    fn every_page_goes_back() {
        let mut source = Pages::new(8);
        let mut pool: Pool<_, 4> = Pool::new(&mut source);
        pool.top_up(4);
        drop(pool);
        let mut free: Vec<_> = source.free.iter().map(|page| page.pa().raw()).collect();
        free.sort_unstable();
        assert_eq!(free, (0..8).map(|page| 0x10_0000 + page * TablePage::SIZE).collect::<Vec<_>>());
    }

    #[test]
    fn a_dry_source_is_no_harm() {
        let mut source = Pages::new(1);
        let mut pool: Pool<_, 4> = Pool::new(&mut source);
        assert_eq!(pool.top_up(4), 1);
        assert!(pool.take().is_some_and(|page| {
            pool.give(page);
            true
        }));
        assert!(pool.take().is_some());
    }
}
