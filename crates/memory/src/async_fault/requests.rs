// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages that one vCPU has asked the store for, each in a slot of its [`Arrivals`].
//!
//! Slots 0 to 63 are for pages that can be announced to the guest. Slot 64 is for a page that the vCPU waits for while
//! those are all in use. Slot 65 is for the page of the vCPU's area.

use twofold_abi::async_fault::{NO_TOKEN, TOKENS_MAX, WAKE_ALL};
use twofold_stage2::Ipa;

use super::arrivals::{Arrival, Arrivals, SLOTS, Ticket};
use crate::frames::FRAME;
use crate::guest_fault::GuestFault;

/// The slot for a page that the vCPU waits for while all others are in use.
pub(super) const SPARE: usize = TOKENS_MAX;
/// The slot for the page of the area.
pub(super) const AREA: usize = TOKENS_MAX + 1;

const _: () = assert!(AREA + 1 == SLOTS);

/// A page that the guest needs and that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsentPage {
    /// The start of what has to arrive. Two faults with the same start wait for the same arrival.
    pub page: Ipa,
    /// The fault to repeat when the page has arrived.
    pub fault: GuestFault,
}

impl AbsentPage {
    /// The page of a fault that was answered by [`Answer::Absent`](crate::Answer::Absent).
    pub fn of(fault: &GuestFault) -> Self {
        Self { page: fault.ipa.align_down(FRAME), fault: *fault }
    }
}

/// One page that the vCPU has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub absent: AbsentPage,
    pub ticket: Ticket,
    pub state: State,
    /// The token that was announced for it, or [`NO_TOKEN`].
    pub token: u32,
    /// The sequence number of that announcement.
    pub sequence: u64,
}

/// How far a request is. One without a token goes when its page arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The store has it.
    InFlight,
    /// The store could not bring the page, and the guest needs it.
    Failed,
    /// The page is there, and the guest does not know it yet, or has not acknowledged it.
    Ready,
}

/// All requests of one vCPU.
#[derive(Debug)]
pub(super) struct Requests {
    slots: [Option<Request>; SLOTS],
    /// A bit for each slot in use, so that a vCPU that has asked for nothing pays nothing.
    used: u128,
}

impl Default for Requests {
    fn default() -> Self {
        Self { slots: [None; SLOTS], used: 0 }
    }
}

impl Requests {
    pub fn get(&self, slot: usize) -> Option<&Request> {
        self.slots[slot].as_ref()
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Request> {
        self.slots[slot].as_mut()
    }

    /// All requests, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Request)> {
        let mut left = self.used;
        core::iter::from_fn(move || {
            let slot = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some((slot, self.slots[slot].as_ref()?))
        })
    }

    /// A page that has failed, with its slot.
    pub fn failed(&self) -> Option<(usize, &Request)> {
        self.iter().find(|(_, request)| request.state == State::Failed)
    }

    /// The slot whose request for this page has not arrived.
    pub fn find(&self, page: Ipa) -> Option<usize> {
        let waits = |request: &Request| request.absent.page == page && request.state != State::Ready;
        self.iter().find(|(_, request)| waits(request)).map(|(slot, _)| slot)
    }

    /// A free slot for a page of the guest; [`SPARE`] if none is free, which may be in use.
    pub fn choose(&self) -> usize {
        (!self.used).trailing_zeros().min(SPARE as u32) as usize
    }

    /// Fills a free slot with a request, and returns its ticket.
    pub fn open(&mut self, arrivals: &Arrivals, slot: usize, absent: AbsentPage) -> Ticket {
        let ticket = arrivals.open(slot);
        self.slots[slot] = Some(Request { absent, ticket, state: State::InFlight, token: NO_TOKEN, sequence: 0 });
        self.used |= 1 << slot;
        ticket
    }

    /// Empties a slot. Returns the ticket if the store still has it.
    pub fn cancel(&mut self, arrivals: &Arrivals, slot: usize) -> Option<Ticket> {
        let request = self.close(slot)?;
        (request.state == State::InFlight && arrivals.cancel(request.ticket)).then_some(request.ticket)
    }

    /// Empties a slot that the store does not have.
    pub fn close(&mut self, slot: usize) -> Option<Request> {
        self.used &= !(1 << slot);
        self.slots[slot].take()
    }

    /// Returns a new ticket for a request that has failed. Its token stays.
    pub fn reopen(&mut self, arrivals: &Arrivals, slot: usize) -> Ticket {
        let ticket = arrivals.open(slot);
        if let Some(request) = &mut self.slots[slot] {
            (request.ticket, request.state) = (ticket, State::InFlight);
        }
        ticket
    }

    /// Notes what has arrived. Calls `present` with each fault whose page has. `halted` is the slot that the vCPU
    /// waits for.
    pub fn take(&mut self, arrivals: &Arrivals, halted: Option<usize>, mut present: impl FnMut(&GuestFault)) {
        arrivals.take(|slot, arrival| {
            let Some(request) = &mut self.slots[slot] else { return };
            let is_announced = request.token != NO_TOKEN;
            if arrival == Arrival::Present {
                present(&request.absent.fault);
            }
            match arrival {
                Arrival::Present if is_announced => request.state = State::Ready,
                // Nothing waits for it: a fault that needs the page after all asks for it again.
                Arrival::Failed if is_announced || halted == Some(slot) || slot == AREA => {
                    request.state = State::Failed
                }
                Arrival::Present | Arrival::Failed => drop(self.close(slot)),
            }
        });
    }

    /// The token whose page is present and whose announcement is the oldest.
    pub fn oldest_ready(&self) -> Option<u32> {
        let ready = self.iter().map(|(_, request)| request).filter(|request| request.state == State::Ready);
        ready.min_by_key(|request| request.sequence).map(|request| request.token)
    }

    /// The slot of a token.
    pub fn with_token(&self, token: u32) -> Option<usize> {
        self.iter().find(|(_, request)| request.token == token).map(|(slot, _)| slot)
    }

    /// The token of the announcement with this sequence number: its low bits, or the next value that means nothing else
    /// and is not outstanding. `unacknowledged` is outstanding, even if it is of another machine.
    pub fn token_for(&self, sequence: u64, unacknowledged: u32) -> u32 {
        let mut token = sequence as u32;
        while [NO_TOKEN, WAKE_ALL, unacknowledged].contains(&token) || self.with_token(token).is_some() {
            token = token.wrapping_add(1);
        }
        token
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use twofold_stage2::fault::{AccessKind, FaultKind};

    use super::*;

    #[test]
    fn tokens_that_wrap_skip_those_that_are_out() {
        let (arrivals, mut requests) = (Arrivals::new(), Requests::default());
        let ipa = Ipa::new(0x1000);
        let fault = GuestFault { ipa, kind: FaultKind::Translation, access: AccessKind::Read };
        for (slot, token) in [(0, 5), (1, 6), (2, u32::MAX - 1), (3, 1)] {
            requests.open(&arrivals, slot, AbsentPage { page: ipa, fault });
            requests.get_mut(slot).unwrap().token = token;
        }
        assert_eq!(requests.token_for(4, 0), 4);
        assert_eq!(requests.token_for((1 << 32) + 5, 0), 7, "5 and 6 have been out for a whole turn");
        assert_eq!(requests.token_for((1 << 32) + 5, 7), 8);
        assert_eq!(requests.token_for(u64::from(u32::MAX) - 1, 9), 2, "all ones and 0 mean something, 1 is out");
    }
}
