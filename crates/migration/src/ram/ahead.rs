// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a stream has asked a guest's store for.
//!
//! Invariant: a page is here until it was read, or until all are forgotten. So each is sent once.

use alloc::vec::Vec;
use core::time::Duration;

use twofold_memory::swap::Peeked;

use super::access::{Away, RamError};

/// Pages that a stream asks the guest's store for at a time. Each takes a frame while the store reads it.
pub(crate) const AHEAD: usize = 8;

/// Pages on their way from a store to a stream. Dropped, they are forgotten.
#[derive(Debug)]
pub struct Ahead<A> {
    pages: Vec<(usize, u64, A)>,
    /// When a page has come for the last time, or the first one was asked for.
    since: Duration,
    /// What the store has failed to read since then.
    failed: Option<RamError>,
    /// The link for which they were asked.
    pub(crate) link: u64,
}

impl<A> Default for Ahead<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Ahead<A> {
    /// No pages.
    pub const fn new() -> Self {
        Self { pages: Vec::new(), since: Duration::ZERO, failed: None, link: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Forgets all pages.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
    }

    /// Adds a page.
    pub(crate) fn push(&mut self, (slot, page): (usize, u64), away: A, now: Duration) {
        if self.pages.is_empty() {
            (self.since, self.failed) = (now, None);
        }
        self.pages.push((slot, page, away));
    }

    /// How long nothing has come, and why; `None` if nothing is waited for.
    pub(crate) fn silent(&self, now: Duration) -> Option<(Duration, RamError)> {
        let &(slot, page, _) = self.pages.first()?;
        let waited = now.saturating_sub(self.since);
        let silent = RamError::Silent { slot, page, others: self.pages.len() - 1, waited };
        Some((waited, self.failed.clone().unwrap_or(silent)))
    }
}

impl<A: Away> Ahead<A> {
    /// Reads the first of the pages that have come; returns the memslot's index, and the page.
    ///
    /// # Errors
    ///
    /// [`RamError::Store`] with a page that the store could not read. It is asked for again, and stays here.
    pub(crate) fn take(&mut self, bytes: &mut [u8], now: Duration) -> Result<Option<(usize, u64)>, RamError> {
        let mut failed = Ok(None);
        for index in 0..self.pages.len() {
            let (slot, page, away) = &mut self.pages[index];
            match away.look(bytes) {
                Peeked::Read => {
                    (self.since, self.failed) = (now, None);
                    let (slot, page, _) = self.pages.remove(index);
                    return Ok(Some((slot, page)));
                }
                Peeked::Later => {}
                Peeked::Failed(error) => {
                    let error = RamError::Store { slot: *slot, page: *page, error };
                    (self.failed, failed) = (Some(error.clone()), Err(error));
                }
            }
        }
        failed
    }
}
