// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pokes that a guest has: pages that are to be written as a whole, and may wait for a frame.
//!
//! Invariant: a poke is changed under the lock of the waiting entries.

use alloc::vec::Vec;

use twofold_stage2::Ipa;

/// All pokes.
#[derive(Default)]
pub(super) struct Pokes {
    list: Vec<Entry>,
    /// Pokes so far.
    count: u64,
}

struct Entry {
    id: u64,
    page: Ipa,
    state: State,
}

/// How far a poke is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for no frame.
    Idle,
    /// It waits for a frame, with this number in the queue.
    Wants(u64),
    /// No frame comes.
    Failed,
}

impl Pokes {
    /// Adds a poke, and returns its name. `None` if the heap is full.
    pub(super) fn add(&mut self, page: Ipa) -> Option<u64> {
        self.list.try_reserve(1).ok()?;
        self.count += 1;
        self.list.push(Entry { id: self.count, page, state: State::Idle });
        Some(self.count)
    }

    /// Whether there is no poke.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Removes a poke.
    pub(super) fn remove(&mut self, id: u64) {
        self.list.retain(|entry| entry.id != id);
    }

    /// A poke waits for a frame, with this number, unless it does already. Returns whether it took the number.
    pub(super) fn queue(&mut self, id: u64, number: u64) -> bool {
        let waits = |entry: &&mut Entry| entry.id == id && !matches!(entry.state, State::Wants(_));
        let entry = self.list.iter_mut().find(waits);
        entry.map(|entry| entry.state = State::Wants(number)).is_some()
    }

    /// A poke waits for nothing any more.
    pub(super) fn end(&mut self, id: u64) {
        self.list.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.state = State::Idle);
    }

    /// Fails the pokes that wait for a frame with a number below `until`. Returns how many.
    pub(super) fn fail(&mut self, until: u64) -> usize {
        let waits = |entry: &&mut Entry| matches!(entry.state, State::Wants(number) if number < until);
        self.list.iter_mut().filter(waits).map(|entry| entry.state = State::Failed).count()
    }

    /// Whether a poke has failed. If so, it waits for nothing any more.
    pub(super) fn take_failed(&mut self, id: u64) -> bool {
        let failed = self.list.iter_mut().find(|entry| entry.id == id && entry.state == State::Failed);
        failed.map(|entry| entry.state = State::Idle).is_some()
    }

    /// The pokes that wait for a frame: their numbers and pages.
    pub(super) fn wanting(&self) -> impl Iterator<Item = (u64, Ipa)> {
        self.list.iter().filter_map(|entry| match entry.state {
            State::Wants(number) => Some((number, entry.page)),
            State::Idle | State::Failed => None,
        })
    }

    /// Whether a poke waits for a frame for this page.
    pub(super) fn want(&self, page: Ipa) -> bool {
        self.wanting().any(|(_, wanted)| wanted == page)
    }
}
