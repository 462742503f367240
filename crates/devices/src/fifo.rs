// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue with a fixed number of places.
//!
//! Invariant: `first < DEPTH` and `count <= DEPTH`.

/// The places of a FIFO. A power of two, so that no index needs a check.
pub(crate) const DEPTH: usize = 32;

/// A FIFO of [`DEPTH`] places.
#[derive(Clone, Debug)]
pub(crate) struct Fifo<T> {
    items: [T; DEPTH],
    first: usize,
    count: usize,
}

impl<T: Copy + Default> Fifo<T> {
    pub(crate) fn new() -> Self {
        Self { items: [T::default(); DEPTH], first: 0, count: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest item.
    pub(crate) fn peek(&self) -> Option<T> {
        (self.count > 0).then(|| self.items[self.first % DEPTH])
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.peek()?;
        self.first = (self.first + 1) % DEPTH;
        self.count -= 1;
        Some(item)
    }

    /// Adds an item. If the FIFO is full, nothing changes and the result is false.
    pub(crate) fn push(&mut self, item: T) -> bool {
        if self.count == DEPTH {
            return false;
        }
        self.items[(self.first + self.count) % DEPTH] = item;
        self.count += 1;
        true
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// The items, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.count).map(|index| self.items[(self.first + index) % DEPTH])
    }
}
