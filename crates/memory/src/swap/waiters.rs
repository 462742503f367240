// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The waiters for each page. vCPUs and devices have a fixed number of entries, so that a fault allocates nothing. Peeks and
//! pokes are a migration's, and their lists grow when one begins: never by a fault.
//!
//! Invariant: a vCPU has one entry for each slot of its [`Arrivals`](crate::async_fault::Arrivals). A ticket that takes
//! a slot again replaces the one before, which is stale then. So a vCPU's entry is always free for it.
//!
//! An entry *waits for a frame* until its page is in memory or on its way. Such entries, peeks and pokes are served in
//! their order.
//!
//! Most entries are free most of the time, so a bit for each says which are in use: a search looks at those alone.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::Ipa;

use super::peeks::Peeks;
use super::pokes::Pokes;
use super::store::Failure;
use crate::async_fault::{SLOTS, Ticket};

/// What waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// A vCPU, by a ticket of its arrivals.
    Vcpu {
        /// The vCPU's number, from 0 on.
        vcpu: u32,
        /// The ticket to complete.
        ticket: Ticket,
    },
    /// Anything else, such as a device: a number that the embedder has chosen. One number waits for one page at a time.
    Other(u64),
}

/// All that wait.
pub(crate) struct Waiting {
    entries: Box<[Option<Entry>]>,
    /// Which entries are in use: a bit for each.
    used: Box<[u64]>,
    vcpus: u32,
    /// Entries in use, and those of them that wait for frames.
    count: usize,
    wanting: usize,
    /// Entries so far.
    next: u64,
    /// A CPU serves the entries that wait for frames.
    pub(super) serving: bool,
    /// A frame has become free since that CPU looked.
    pub(super) again: bool,
    /// Pages leave until all of the headroom is free.
    pub(super) refills: bool,
    /// Pages that are read without being brought.
    pub(super) peeks: Peeks,
    /// Pages that are written as a whole.
    pub(super) pokes: Pokes,
    /// The last write that the store could not do, for those that wait in vain.
    pub(super) failure: Option<Failure>,
}

/// Entries in a word of bits.
const WORD: usize = u64::BITS as usize;

#[derive(Clone, Copy)]
struct Entry {
    page: Ipa,
    waiter: Waiter,
    number: u64,
    wants_frame: bool,
}

impl Waiting {
    /// Room for this many vCPUs and others. `None` if the heap is full.
    pub(super) fn new(vcpus: u32, others: u32) -> Option<Self> {
        let count = (vcpus as usize).checked_mul(SLOTS)?.checked_add(others as usize)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(count).ok()?;
        entries.resize(count, None);
        let entries = entries.into_boxed_slice();
        let mut used = Vec::new();
        let words = count.div_ceil(WORD);
        used.try_reserve_exact(words).ok()?;
        used.resize(words, 0);
        let used = used.into_boxed_slice();
        let (peeks, pokes) = Default::default();
        Some(Self {
            entries,
            used,
            vcpus,
            count: 0,
            wanting: 0,
            next: 0,
            serving: false,
            again: false,
            refills: false,
            peeks,
            pokes,
            failure: None,
        })
    }

    /// The number of entries in use.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The number of the next entry. Entries that are there now have smaller ones.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds an entry, which waits for a frame at first. Returns whether there is room.
    pub(super) fn add(&mut self, page: Ipa, waiter: Waiter) -> bool {
        let is_added = self.insert(page, waiter, true);
        self.wanting += usize::from(is_added);
        is_added
    }

    /// Adds an entry that does not wait for a frame, if nothing does. Returns whether it did.
    #[inline]
    pub(super) fn add_at_once(&mut self, page: Ipa, waiter: Waiter) -> bool {
        self.wants_nothing() && self.insert(page, waiter, false)
    }

    #[inline(always)]
    fn insert(&mut self, page: Ipa, waiter: Waiter, wants_frame: bool) -> bool {
        if let Waiter::Other(_) = waiter {
            self.remove(waiter);
        }
        let Some(at) = self.free(waiter) else { return false };
        // The same waiter's entry, or a stale ticket's.
        self.vacate(at);
        self.entries[at] = Some(Entry { page, waiter, number: self.next, wants_frame });
        self.used[at / WORD] |= 1 << (at % WORD);
        self.count += 1;
        self.next += 1;
        true
    }

    /// Removes the entry of this waiter, if there is one.
    pub(super) fn remove(&mut self, waiter: Waiter) {
        let Waiter::Vcpu { .. } = waiter else {
            let _removed = self.take_if(|entry| entry.waiter == waiter);
            return;
        };
        if let Some(at) = self.free(waiter)
            && let Some(Some(entry)) = self.entries.get(at)
            && entry.waiter == waiter
        {
            self.vacate(at);
        }
    }

    /// Whether an entry waits for this page.
    #[inline]
    pub(super) fn has(&self, page: Ipa) -> bool {
        self.count > 0 && self.used().any(|entry| entry.page == page)
    }

    /// Removes and returns an entry for this page whose number is below `until`.
    pub(super) fn take(&mut self, page: Ipa, until: u64) -> Option<Waiter> {
        self.take_if(|entry| entry.page == page && entry.number < until)
    }

    /// In the usual case, in which nothing waits for a frame and one entry waits for this page: removes and returns that.
    #[inline]
    pub(super) fn take_alone(&mut self, page: Ipa) -> Option<Waiter> {
        if !self.wants_nothing() {
            return None;
        }
        let mut found = None;
        for at in bits(&self.used) {
            if let Some(Some(entry)) = self.entries.get(at)
                && entry.page == page
                && found.replace((at, entry.waiter)).is_some()
            {
                return None;
            }
        }
        let (at, waiter) = found?;
        self.vacate(at);
        Some(waiter)
    }

    /// Removes and returns an entry that waits for a frame and whose number is below `until`.
    pub(super) fn take_wanting(&mut self, until: u64) -> Option<Waiter> {
        self.take_if(|entry| entry.wants_frame && entry.number < until)
    }

    /// A peek waits for a frame, behind all that do so now.
    pub(super) fn queue_peek(&mut self, id: u64) {
        self.peeks.queue(id, self.next);
        self.next += 1;
    }

    /// A poke waits for a frame, behind all that do so now, unless it waits already.
    pub(super) fn queue_poke(&mut self, id: u64) {
        self.next += u64::from(self.pokes.queue(id, self.next));
    }

    /// The entries and peeks for this page do not wait for a frame any more.
    pub(super) fn has_frame(&mut self, page: Ipa) {
        self.peeks.have_frame(page);
        for at in bits(&self.used) {
            if let Some(Some(entry)) = self.entries.get_mut(at)
                && entry.page == page
            {
                self.wanting -= usize::from(core::mem::take(&mut entry.wants_frame));
            }
        }
    }

    /// The page that has waited longest for a frame.
    #[inline]
    pub(super) fn oldest_wanting(&self) -> Option<Ipa> {
        if self.wants_nothing() { None } else { self.oldest_of_all() }
    }

    #[inline(never)]
    fn oldest_of_all(&self) -> Option<Ipa> {
        let entries = self.used().filter(|entry| entry.wants_frame).map(|entry| (entry.number, entry.page));
        entries.chain(self.peeks.wanting()).chain(self.pokes.wanting()).min().map(|(_, page)| page)
    }

    /// How many entries, peeks and pokes wait for frames.
    #[inline]
    pub(super) fn wanting(&self) -> usize {
        if self.wants_nothing() {
            return 0;
        }
        self.wanting + self.peeks.wanting().count() + self.pokes.wanting().count()
    }

    /// Whether this page may have the next free frame: no other has waited for longer.
    pub(super) fn is_next(&self, page: Ipa) -> bool {
        self.oldest_wanting().is_none_or(|oldest| oldest == page)
    }

    /// Nothing waits for a frame: the usual case.
    #[inline]
    fn wants_nothing(&self) -> bool {
        self.wanting == 0 && self.peeks.is_empty() && self.pokes.is_empty()
    }

    fn used(&self) -> impl Iterator<Item = &Entry> {
        bits(&self.used).filter_map(|at| self.entries.get(at)?.as_ref())
    }

    fn take_if(&mut self, condition: impl Fn(&Entry) -> bool) -> Option<Waiter> {
        let is_it = |at: &usize| matches!(self.entries.get(*at), Some(Some(entry)) if condition(entry));
        if self.count == 0 {
            return None;
        }
        let at = bits(&self.used).find(is_it)?;
        let waiter = self.entries.get(at)?.as_ref()?.waiter;
        self.vacate(at);
        Some(waiter)
    }

    /// Frees an entry, if it is in use.
    fn vacate(&mut self, at: usize) {
        if let (Some(place), Some(word)) = (self.entries.get_mut(at), self.used.get_mut(at / WORD))
            && let Some(entry) = place
        {
            self.wanting -= usize::from(entry.wants_frame);
            self.count -= 1;
            *word &= !(1 << (at % WORD));
            *place = None;
        }
    }

    /// The index for an entry of this waiter.
    fn free(&self, waiter: Waiter) -> Option<usize> {
        match waiter {
            Waiter::Vcpu { vcpu, ticket } => (vcpu < self.vcpus).then(|| vcpu as usize * SLOTS + ticket.slot()),
            Waiter::Other(_) => {
                let others = self.vcpus as usize * SLOTS;
                let free = self.entries[others..].iter().position(Option::is_none)?;
                Some(others + free)
            }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(words: &[u64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(index, word)| {
        let rest = core::iter::successors(Some(*word), |rest| Some(rest & rest.wrapping_sub(1)));
        rest.take_while(|rest| *rest != 0).map(move |rest| index * WORD + rest.trailing_zeros() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_set_while_its_entry_is_in_use() {
        let (first, count) = (SLOTS, 2 * WORD as u64);
        let mut waiting = Waiting::new(1, count as u32).unwrap();
        let used = |waiting: &Waiting| bits(&waiting.used).collect::<Vec<_>>();
        assert_eq!(used(&waiting), []);
        for number in 0..count {
            assert!(waiting.add(Ipa::new(number << 12), Waiter::Other(number)));
        }
        assert!(!waiting.add(Ipa::new(0), Waiter::Other(count)), "there is room for no more");
        let mut expected: Vec<_> = (first..first + count as usize).collect();
        assert_eq!(used(&waiting), expected);
        for number in [70, 5, 64] {
            waiting.remove(Waiter::Other(number));
            expected.retain(|at| *at != first + number as usize);
            assert_eq!(used(&waiting), expected);
        }
    }
}
