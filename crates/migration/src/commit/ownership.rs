// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner record, and the arbiter that keeps it.

/// One start of a host's program. A program that starts again is another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The host.
    pub host: u64,
    /// The program's start on it. No two starts on a host have the same number: a random one, or a durable counter.
    pub incarnation: u64,
}

/// The content of the owner record: the guest's owner, and the number of times that the guest has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ownership {
    /// The owner.
    pub owner: Owner,
    /// Rises by one whenever the record changes, so no content ever comes back.
    pub epoch: u64,
}

impl Ownership {
    /// Returns what the record holds after `owner` has taken the guest from here.
    pub const fn taken_by(self, owner: Owner) -> Self {
        Self { owner, epoch: self.epoch + 1 }
    }
}

/// What a side asks of the arbiter. The arbiter answers each request with what the record then holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// What does the record hold?
    Read,
    /// If the record holds `from`, let `by` take the guest.
    Take {
        /// What the record must hold.
        from: Ownership,
        /// The new owner.
        by: Owner,
    },
}

/// Answers a request, and changes the record if the request says so. An arbiter does this in one indivisible, durable
/// step.
pub fn arbitrate(record: &mut Ownership, request: Request) -> Ownership {
    if let Request::Take { from, by } = request
        && *record == from
    {
        *record = from.taken_by(by);
    }
    *record
}
