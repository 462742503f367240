// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entities that wait in one CPU's queue, ordered by virtual time: a binary heap.
//!
//! The least is at the front. An entity that is not there is found by its number, which is rare (a slice that is handed
//! on), so no place is kept beside an entity.
//!
//! Invariant: no item is less than the item at half its place.

use alloc::vec::Vec;

use super::units::{EntityId, Virtual};

/// A waiting entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) virtual_time: Virtual,
    pub(super) entity: EntityId,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue(Vec<Item>);

impl Queue {
    /// Makes room for `count` entities, so that `push` does not allocate.
    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count.saturating_sub(self.0.len()));
    }

    /// The least.
    pub(super) fn first(&self) -> Option<Item> {
        self.0.first().copied()
    }

    /// The item, if there is one alone.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<Item> {
        match self.0[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Removes all entities.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, item: Item) {
        self.0.push(item);
        self.rise(self.0.len() - 1);
    }

    /// Removes an entity. The least is found at once, another by a search.
    #[inline]
    pub(super) fn remove(&mut self, entity: EntityId) -> Option<Item> {
        // The usual case: one waits.
        match self.only() {
            Some(only) if only.entity == entity => self.0.pop(),
            _ => self.remove_any(entity),
        }
    }

    #[inline(never)]
    fn remove_any(&mut self, entity: EntityId) -> Option<Item> {
        let place = self.0.iter().position(|item| item.entity == entity)?;
        let item = self.0.swap_remove(place);
        if place < self.0.len() {
            self.sink(place);
            self.rise(place);
        }
        Some(item)
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let above = (place - 1) / 2;
            if self.0[above] <= self.0[place] {
                break;
            }
            self.0.swap(above, place);
            place = above;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let below = [2 * place + 1, 2 * place + 2];
            let least = below.into_iter().filter(|at| *at < self.0.len()).min_by_key(|at| self.0[*at]);
            let Some(least) = least.filter(|least| self.0[*least] < self.0[place]) else { break };
            self.0.swap(least, place);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_least_is_first_whatever_was_removed(times: Vec<u8>, removed: Vec<prop::sample::Index>) {
            let (mut queue, mut model) = (Queue::default(), Vec::new());
            for (number, time) in times.iter().enumerate() {
                let item = Item { virtual_time: u128::from(*time), entity: EntityId(number as u32) };
                queue.push(item);
                model.push(item);
            }
            for index in removed.iter().filter(|_| !times.is_empty()) {
                let entity = EntityId(index.index(times.len()) as u32);
                let expected = model.iter().position(|item| item.entity == entity).map(|place| model.remove(place));
                prop_assert_eq!(queue.remove(entity), expected);
                prop_assert_eq!(queue.first(), model.iter().min().copied());
            }
            model.sort();
            for item in model {
                prop_assert_eq!(queue.first(), Some(item));
                prop_assert_eq!(queue.remove(item.entity), Some(item));
            }
        }
    }
}
