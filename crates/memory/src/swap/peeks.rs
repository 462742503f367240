// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peeks that a guest has: pages that are read where they are.
//!
//! Invariant: a peek is changed under the lock of the waiting entries. It is filled or fails only together with the change
//! of its page's state from *arriving* to *absent*, under the lock of the slot's backing. So a CPU that has the backing's
//! lock and finds the page *absent*, and the peek *reading*, knows that no read is in flight for it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::Ipa;

use super::store_error::StoreError;
use crate::frames::FRAME;

/// A page's bytes.
pub(super) type Bytes = Box<[u8; FRAME as usize]>;

/// All peeks.
#[derive(Default)]
pub(super) struct Peeks {
    list: Vec<Entry>,
    /// Peeks so far.
    count: u64,
}

struct Entry {
    id: u64,
    page: Ipa,
    state: State,
    /// Where the content goes; `None` while a CPU fills it.
    bytes: Option<Bytes>,
}

/// How far a peek is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has asked for nothing.
    Idle,
    /// It waits for a frame, with this number in the queue.
    Wants(u64),
    /// The store reads its page, or did.
    Reading,
    /// Its bytes are the page's.
    Filled,
    /// The store could not read the page.
    Failed(StoreError),
}

impl Peeks {
    /// Adds a peek, and returns its name. `None` if the heap is full.
    pub(super) fn add(&mut self, page: Ipa, bytes: Bytes) -> Option<u64> {
        self.list.try_reserve(1).ok()?;
        self.count += 1;
        self.list.push(Entry { id: self.count, page, state: State::Idle, bytes: Some(bytes) });
        Some(self.count)
    }

    /// Whether there is no peek.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Removes a peek.
    pub(super) fn remove(&mut self, id: u64) {
        self.list.retain(|entry| entry.id != id);
    }

    /// How far a peek is.
    pub(super) fn state(&self, id: u64) -> State {
        self.list.iter().find(|entry| entry.id == id).map_or(State::Idle, |entry| entry.state)
    }

    /// The bytes of a peek; those of its page if it is [filled](State::Filled).
    pub(super) fn bytes(&self, id: u64) -> Option<&[u8; FRAME as usize]> {
        self.list.iter().find(|entry| entry.id == id)?.bytes.as_deref()
    }

    /// A peek begins anew.
    pub(super) fn reset(&mut self, id: u64) {
        self.set(id, State::Idle);
    }

    /// A peek waits for a frame.
    pub(super) fn queue(&mut self, id: u64, number: u64) {
        self.set(id, State::Wants(number));
    }

    /// The peeks that wait for a frame: their numbers and pages.
    pub(super) fn wanting(&self) -> impl Iterator<Item = (u64, Ipa)> {
        self.list.iter().filter_map(|entry| match entry.state {
            State::Wants(number) => Some((number, entry.page)),
            _ => None,
        })
    }

    /// Whether a peek waits for a frame for this page.
    pub(super) fn want(&self, page: Ipa) -> bool {
        self.wanting().any(|(_, wanted)| wanted == page)
    }

    /// Whether a peek waits for what the store reads of this page.
    pub(super) fn read(&self, page: Ipa) -> bool {
        self.list.iter().any(|entry| entry.page == page && entry.state == State::Reading)
    }

    /// The peeks at this page do not wait for a frame any more.
    pub(super) fn have_frame(&mut self, page: Ipa) {
        let entries = self.list.iter_mut().filter(|entry| entry.page == page);
        for entry in entries.filter(|entry| matches!(entry.state, State::Wants(_))) {
            entry.state = State::Reading;
        }
    }

    /// Takes the bytes of a peek that waits for what was read of this page. [`fill`](Self::fill) puts them back.
    pub(super) fn take(&mut self, page: Ipa) -> Option<(u64, Bytes)> {
        let waits = |entry: &&mut Entry| entry.page == page && entry.state == State::Reading;
        self.list.iter_mut().filter(waits).find_map(|entry| Some((entry.id, entry.bytes.take()?)))
    }

    /// Ends the read of a peek whose bytes were taken. It may be gone.
    pub(super) fn fill(&mut self, id: u64, bytes: Bytes, result: Result<(), StoreError>) {
        if let Some(entry) = self.list.iter_mut().find(|entry| entry.id == id) {
            entry.bytes = Some(bytes);
            entry.state = result.map_or_else(State::Failed, |()| State::Filled);
        }
    }

    fn set(&mut self, id: u64, state: State) {
        self.list.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.state = state);
    }
}
