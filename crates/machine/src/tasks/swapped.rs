// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory with a store in virtual time: the machine's pager.
//!
//! Pages leave by a task of the host's that runs on other CPUs, so it takes none of the vCPUs' time. It works whenever
//! frames are wanted, in no time; what it starts takes the store's latency.

use std::sync::Arc;

use twofold_memory::async_fault::{AbsentPage, Arrival};
use twofold_memory::swap::{Clock, Waiter};
use twofold_memory::{Answer, Error, GuestFault, GuestMemory};
use twofold_stage2::{Ipa, Platform};

use super::pager::{Paged, Pager, Request};
use super::store::VirtualStore;
use super::time::Nanos;

/// A guest's memory, and the store that is attached to it.
pub struct Swapped<'m, H: Platform> {
    memory: &'m GuestMemory<H>,
    store: Arc<VirtualStore>,
    hand: Clock,
}

impl<'m, H: Platform> Swapped<'m, H> {
    /// The pager of this memory. `store` is attached to it, as its store and as what it notifies.
    pub fn new(memory: &'m GuestMemory<H>, store: Arc<VirtualStore>) -> Self {
        Self { memory, store, hand: Clock::new() }
    }

    /// Reads the guest's RAM when the guest does not run, and brings what is absent. One other waiter has to be allowed
    /// for that ([`SwapOptions::others`](twofold_memory::swap::SwapOptions::others)).
    ///
    /// # Errors
    ///
    /// There is no RAM, or the store cannot bring a page.
    pub fn read(&mut self, ipa: Ipa, bytes: &mut [u8]) -> Result<(), Error> {
        loop {
            let absent = match self.memory.read(ipa, bytes) {
                Err(Error::Absent { page, .. }) => page,
                done => return done,
            };
            let failed = Err(Error::Absent { page: absent, done: 0 });
            if self.memory.bring(absent, READER).is_err() {
                return failed;
            }
            self.make_room();
            loop {
                match self.store.ended_for(READER) {
                    Some(Arrival::Present) => break,
                    Some(Arrival::Failed) => return failed,
                    None => {}
                }
                let Some(transfer) = self.store.take() else { return failed };
                self.store.complete(self.memory, transfer);
                self.make_room();
            }
        }
    }

    /// The host's task.
    fn make_room(&mut self) {
        let wanted = self.memory.wants_frames();
        // If no page can leave, each request that waits for a frame fails.
        if wanted > 0 && self.hand.make_room(self.memory, wanted).is_err() {
            self.memory.fail_waiting();
        }
    }
}

impl<H: Platform> Pager for Swapped<'_, H> {
    type Memory = GuestMemory<H>;

    fn memory(&self) -> &GuestMemory<H> {
        self.memory
    }

    fn fault(&mut self, now: Nanos, fault: &GuestFault) -> Result<Paged, Error> {
        self.store.at(now);
        let answer = self.memory.fault(fault)?;
        self.make_room();
        Ok(match answer {
            Answer::Retry(_) | Answer::Skip => Paged::Retry,
            Answer::Absent => Paged::Absent(AbsentPage::of(fault)),
            Answer::ExternalAbort => Paged::NoMemory,
        })
    }

    fn ask(&mut self, now: Nanos, request: Request, absent: &AbsentPage) -> Option<Arrival> {
        self.store.at(now);
        if self.memory.bring(absent.page, waiter(request)).is_err() {
            return Some(Arrival::Failed);
        }
        self.make_room();
        self.store.ended_for(waiter(request))
    }

    fn cancel(&mut self, request: Request) {
        self.memory.forget(waiter(request));
    }

    fn next(&self) -> Option<Nanos> {
        self.store.next()
    }

    fn arrive(&mut self) -> Option<(Request, Arrival)> {
        let ended = self.store.ended().or_else(|| {
            let transfer = self.store.take()?;
            self.store.complete(self.memory, transfer);
            self.make_room();
            self.store.ended()
        });
        match ended? {
            (Waiter::Vcpu { vcpu, ticket }, arrival) => Some((Request { vcpu: vcpu as usize, ticket }, arrival)),
            (Waiter::Other(_), _) => None,
        }
    }
}

/// What is on its way ends now: a request that is dropped would lose its frame.
impl<H: Platform> Drop for Swapped<'_, H> {
    fn drop(&mut self) {
        while let Some(transfer) = self.store.take() {
            self.store.complete(self.memory, transfer);
        }
        while self.store.ended().is_some() {}
    }
}

const READER: Waiter = Waiter::Other(0);

fn waiter(Request { vcpu, ticket }: Request) -> Waiter {
    Waiter::Vcpu { vcpu: vcpu as u32, ticket }
}
