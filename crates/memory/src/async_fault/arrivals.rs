// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a page store reports to a vCPU that pages have arrived. Here, and nowhere else, two CPUs meet.
//!
//! A vCPU has a fixed number of *slots*, one for each page that it has asked for. A slot has a word: its state, and a
//! generation that goes up with each use. A ticket names a slot and a generation, and the store returns it with the
//! page. A word of hints has a bit for each slot that may have changed.
//!
//! **Invariant.** Each ticket is taken at most once, and by the slot's use that it was opened for. A ticket that was
//! completed and not cancelled is taken after the kick that follows.
//!
//! **Opening**, on the vCPU's CPU:
//!
//! * O1: store *pending*, with the next generation, into the slot's word. The caller then gives the ticket to the
//!   store, by the store's own means of synchronization.
//!
//! **Completing**, on any CPU, after the page's content is in memory:
//!
//! * C1: compare-exchange the slot's word, with release, from *pending* of the ticket's generation to *present* or
//!   *failed*. If the word differs, the ticket is stale: it was completed or cancelled before. That is all.
//! * C2: set the slot's hint, with release.
//! * C3: if no hint was set before, kick the vCPU.
//!
//! **Taking**, on the vCPU's CPU:
//!
//! * T1: clear all hints, with acquire.
//! * T2: for each slot that a hint may stand for, read its word with acquire. If it is neither *present* nor *failed*,
//!   the hint means nothing.
//! * T3: store *free* into the word.
//!
//! **Cancelling**, on the vCPU's CPU:
//!
//! * X1: compare-exchange the slot's word from *pending* to *free*. If that fails, the ticket was completed; store
//!   *free*.
//!
//! **The kick.** [`Completion::Kick`] asks the embedder to kick the vCPU. After a kick, the vCPU takes at least once,
//! whatever it was doing: a kick that comes between a take and the sleep that follows makes that sleep end at once. A
//! thread's park token is such a kick, and so is an interrupt that is pending while EL2 masks it.
//!
//! **Why no arrival is lost.** C1 is followed by C2. A T1 that reads C2's bit acquires C1, so T2 sees the arrival. If
//! C2 found another bit set, no T1 came between the two, so the CPU that set the first bit of them kicks after it. The
//! take that follows that kick clears both bits.
//!
//! **Why no arrival is taken for another use.** C1 names the generation. A CPU that is late with C1 finds another word,
//! since T3 or X1 ended the use. A CPU that is late with C2 sets a hint for the slot's next use. Then T2 finds that use
//! *pending* and ignores the hint, or finds it completed by another CPU that has not come to its own C2. T2 acquires
//! what that CPU released at C1, so the page's content is visible then, too. That CPU's own hint then finds the slot
//! free or in its next use.
//!
//! **Why once.** C1 leaves *pending*, and only O1 makes a word *pending*, with a new generation. Only T3 follows a
//! word that T2 found completed, and the next T2 finds it free.

use twofold_stage2::primitive::{Ordering, Word};

/// Slots of a vCPU.
pub(crate) const SLOTS: usize = HINTS + 2;
/// Bits in the word of hints. Bit `i` stands for slot `i`, and for slot `i + HINTS` if there is one.
const HINTS: usize = 64;

const SLOT_BITS: u32 = 8;
const STATE_BITS: u32 = 2;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// States of a slot, in the low bits of its word. The generation is above them.
const FREE: u64 = 0;
const PENDING: u64 = 1;
const PRESENT: u64 = 2;
const FAILED: u64 = 3;

/// Names one request of one vCPU. The store returns it with the page. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    fn new(slot: usize, generation: u64) -> Self {
        Self(generation << SLOT_BITS | slot as u64)
    }

    /// The slot, which is below [`SLOTS`].
    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// The slot's word while the ticket is pending.
    fn pending(self) -> u64 {
        (self.0 >> SLOT_BITS) << STATE_BITS | PENDING
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The page's content is in memory.
    Present,
    /// The store cannot bring the page.
    Failed,
}

/// What [`Arrivals::complete`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without the kick, the vCPU may sleep for ever"]
pub enum Completion {
    /// Kick the vCPU now.
    Kick,
    /// Another completion has kicked the vCPU, or is about to.
    Noted,
    /// The ticket was completed or cancelled before. Nothing happens.
    Stale,
}

/// One vCPU's arrivals. The store reaches it from any CPU; the vCPU's own CPU opens, takes and cancels.
#[derive(Debug)]
pub struct Arrivals {
    hints: Word,
    slots: [Word; SLOTS],
}

impl Default for Arrivals {
    fn default() -> Self {
        Self::new()
    }
}

impl Arrivals {
    /// No slot is in use.
    pub fn new() -> Self {
        Self { hints: Word::default(), slots: core::array::from_fn(|_| Word::default()) }
    }

    /// Reports how a request ended (C1 to C3). Any CPU may call this, with any ticket of this vCPU, any number of
    /// times.
    pub fn complete(&self, ticket: Ticket, arrival: Arrival) -> Completion {
        let (slot, pending) = (ticket.slot(), ticket.pending());
        let state = if arrival == Arrival::Present { PRESENT } else { FAILED };
        let Some(word) = self.slots.get(slot) else { return Completion::Stale };
        if word.compare_exchange(pending, pending & !STATE | state, Ordering::Release).is_err() {
            return Completion::Stale;
        }
        match self.hints.fetch_or(1 << (slot % HINTS), Ordering::Release) {
            0 => Completion::Kick,
            _ => Completion::Noted,
        }
    }

    /// Whether something may have arrived since the last take: for a vCPU that is about to sleep.
    ///
    /// Relaxed: the caller uses nothing that arrived before it takes (T1). If this load misses a hint, the kick that
    /// follows the hint (C3) ends the sleep.
    pub fn has_any(&self) -> bool {
        self.hints.load(Ordering::Relaxed) != 0
    }

    /// Opens a slot that is free (O1). Only the vCPU's CPU calls this.
    pub(super) fn open(&self, slot: usize) -> Ticket {
        let word = &self.slots[slot];
        let free = word.load(Ordering::Relaxed);
        debug_assert_eq!(free & STATE, FREE, "slot {slot} is in use");
        let ticket = Ticket::new(slot, (free >> STATE_BITS) + 1);
        word.store(ticket.pending(), Ordering::Relaxed);
        ticket
    }

    /// Takes what has arrived, and frees these slots (T1 to T3). Only the vCPU's CPU calls this.
    pub(super) fn take(&self, mut arrived: impl FnMut(usize, Arrival)) {
        if self.hints.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut hints = self.hints.fetch_and(0, Ordering::Acquire);
        while hints != 0 {
            let bit = hints.trailing_zeros() as usize;
            hints &= hints - 1;
            for slot in (bit..SLOTS).step_by(HINTS) {
                let word = self.slots[slot].load(Ordering::Acquire);
                let arrival = match word & STATE {
                    PRESENT => Arrival::Present,
                    FAILED => Arrival::Failed,
                    _ => continue,
                };
                self.slots[slot].store(word & !STATE | FREE, Ordering::Relaxed);
                arrived(slot, arrival);
            }
        }
    }

    /// Ends a use whose arrival was not taken (X1). Returns whether it was pending: then the store still has the
    /// ticket. Only the vCPU's CPU calls this.
    pub(super) fn cancel(&self, ticket: Ticket) -> bool {
        let (word, pending) = (&self.slots[ticket.slot()], ticket.pending());
        let free = pending & !STATE | FREE;
        let was_pending = word.compare_exchange(pending, free, Ordering::Relaxed).is_ok();
        if !was_pending {
            word.store(free, Ordering::Relaxed);
        }
        was_pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn taken(arrivals: &Arrivals) -> Vec<(usize, Arrival)> {
        let mut taken = Vec::new();
        arrivals.take(|slot, arrival| taken.push((slot, arrival)));
        taken
    }

    #[test]
    fn slots_that_share_a_hint_are_told_apart() {
        let arrivals = Arrivals::new();
        let [low, high] = [0, HINTS].map(|slot| arrivals.open(slot));
        assert_eq!(arrivals.complete(high, Arrival::Failed), Completion::Kick);
        assert_eq!(taken(&arrivals), [(HINTS, Arrival::Failed)]);
        assert_eq!(arrivals.complete(low, Arrival::Present), Completion::Kick);
        assert_eq!(taken(&arrivals), [(0, Arrival::Present)]);
    }

    #[test]
    fn one_kick_is_asked_for_until_the_vcpu_takes() {
        let arrivals = Arrivals::new();
        let tickets = [3, 9, 65].map(|slot| arrivals.open(slot));
        let completions = tickets.map(|ticket| arrivals.complete(ticket, Arrival::Present));
        assert_eq!(completions, [Completion::Kick, Completion::Noted, Completion::Noted]);
        assert!(arrivals.has_any());
        // Slot 65 shares the hint of slot 1.
        let present = Arrival::Present;
        assert_eq!(taken(&arrivals), [(65, present), (3, present), (9, present)]);
        assert_eq!((taken(&arrivals), arrivals.has_any()), (vec![], false));
        let again = arrivals.open(3);
        assert_eq!(arrivals.complete(again, present), Completion::Kick);
    }

    #[test]
    fn a_ticket_counts_once_and_for_its_own_use_only() {
        let arrivals = Arrivals::new();
        let first = arrivals.open(5);
        assert_eq!(arrivals.complete(first, Arrival::Present), Completion::Kick);
        assert_eq!(arrivals.complete(first, Arrival::Failed), Completion::Stale, "twice, and not taken yet");
        assert_eq!(taken(&arrivals), [(5, Arrival::Present)]);
        assert_eq!(arrivals.complete(first, Arrival::Present), Completion::Stale, "taken, and the slot is free");
        let second = arrivals.open(5);
        assert_eq!(arrivals.complete(first, Arrival::Present), Completion::Stale, "the slot is in its next use");
        assert!(arrivals.cancel(second));
        assert_eq!(arrivals.complete(second, Arrival::Present), Completion::Stale, "cancelled");
        let third = arrivals.open(5);
        assert_eq!(arrivals.complete(third, Arrival::Present), Completion::Kick);
        assert!(!arrivals.cancel(third), "it was completed before");
        let fourth = arrivals.open(5);
        assert_eq!(taken(&arrivals), vec![], "the hint is of the third use, which was cancelled");
        assert_eq!(arrivals.complete(fourth, Arrival::Failed), Completion::Kick);
        assert_eq!(taken(&arrivals), [(5, Arrival::Failed)]);
    }

    #[test]
    fn each_use_of_a_slot_has_the_next_generation_however_the_last_one_ended() {
        let arrivals = Arrivals::new();
        for generation in (1..=9).step_by(3) {
            let [present, failed, cancelled] = [0, 1, 2].map(|more| Ticket::new(5, generation + more));
            for (ticket, arrival) in [(present, Arrival::Present), (failed, Arrival::Failed)] {
                assert_eq!(arrivals.open(5), ticket);
                assert_eq!(arrivals.complete(ticket, arrival), Completion::Kick);
                assert_eq!(taken(&arrivals), [(5, arrival)]);
            }
            assert_eq!(arrivals.open(5), cancelled);
            assert!(arrivals.cancel(cancelled));
        }
        let completed = arrivals.open(5);
        assert_eq!(arrivals.complete(completed, Arrival::Present), Completion::Kick);
        assert!(!arrivals.cancel(completed));
        assert_eq!(arrivals.open(5), Ticket::new(5, 11));
    }

    /// A generation that came again within the life of a ticket would make a stale ticket count.
    #[test]
    fn a_ticket_holds_56_bits_of_a_generation() {
        let last = (1 << 56) - 1;
        let ticket = Ticket::new(SLOTS - 1, last);
        assert_eq!((ticket.slot(), ticket.pending()), (SLOTS - 1, last << 2 | 1));
    }

    #[test]
    fn a_ticket_of_no_slot_is_stale() {
        let arrivals = Arrivals::new();
        assert_eq!(arrivals.complete(Ticket::new(SLOTS, 1), Arrival::Present), Completion::Stale);
    }
}
