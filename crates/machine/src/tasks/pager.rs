// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine needs of a guest's memory whose pages may be absent.

use twofold_memory::async_fault::{AbsentPage, AreaMemory, Arrival, Ticket};
use twofold_memory::{Error, GuestFault};

use super::time::Nanos;

/// A guest's memory with a store behind it. Its store lives in the machine's virtual time.
pub trait Pager {
    /// The guest's RAM as areas of asynchronous page faults need it.
    type Memory: AreaMemory;

    /// The guest's RAM.
    fn memory(&self) -> &Self::Memory;

    /// Answers a stage-2 fault at this moment.
    ///
    /// # Errors
    ///
    /// The memory cannot answer it.
    fn fault(&mut self, now: Nanos, fault: &GuestFault) -> Result<Paged, Error>;

    /// Asks for a page at this moment. Returns how the request ended if it did at once; else its arrival comes out of
    /// [`arrive`](Self::arrive).
    fn ask(&mut self, now: Nanos, request: Request, absent: &AbsentPage) -> Option<Arrival>;

    /// The request is not needed any more. It may arrive all the same.
    fn cancel(&mut self, request: Request);

    /// When the store has something to do next; `None` if nothing is on its way.
    fn next(&self) -> Option<Nanos>;

    /// Does what the store has to do at [`next`](Self::next). Returns a request that has ended by it.
    fn arrive(&mut self) -> Option<(Request, Arrival)>;
}

/// The answer to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paged {
    /// The guest repeats the access.
    Retry,
    /// The page is in the store.
    Absent(AbsentPage),
    /// There is no memory there.
    NoMemory,
}

/// A request of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// The vCPU.
    pub vcpu: usize,
    /// What its [`Arrivals`](twofold_memory::async_fault::Arrivals) know it by.
    pub ticket: Ticket,
}
