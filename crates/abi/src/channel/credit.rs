// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Credit: how many bytes of a console may be sent.
//!
//! The receiver of a guest's console grants as many bytes as it has room for. So it can always take what comes, never
//! stops reading the stream, and a command or its answer is never behind bytes that nothing takes.
//!
//! Invariant: bytes sent and not yet received, bytes received and not yet consumed, and credit that is unused, are
//! together at most the receiver's room, and at most [`WINDOW_MAX`].

use thiserror::Error;

use super::wire::WINDOW_MAX;

/// A peer breaks the rules of credit.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreditError {
    /// A grant beyond the window.
    #[error("a grant of {grant} bytes beside {unused} unused ones; {WINDOW_MAX} are the most")]
    Grant {
        /// The grant's bytes.
        grant: u32,
        /// The bytes of earlier grants that are left.
        unused: u32,
    },
    /// More bytes than were granted.
    #[error("{sent} bytes came, and {unused} were granted")]
    Overrun {
        /// The bytes that came.
        sent: usize,
        /// The bytes of grants that are left.
        unused: u32,
    },
}

/// The sender's side, for one guest's console. A session begins with none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendCredit {
    unused: u32,
}

impl SendCredit {
    /// A grant came. On an error, nothing changes.
    pub fn granted(&mut self, grant: u32) -> Result<(), CreditError> {
        match self.unused.checked_add(grant).filter(|&sum| sum <= WINDOW_MAX) {
            Some(sum) => self.unused = sum,
            None => return Err(CreditError::Grant { grant, unused: self.unused }),
        }
        Ok(())
    }

    /// Bytes for which there is credit.
    #[must_use]
    pub fn unused(&self) -> u32 {
        self.unused
    }

    /// Takes credit for at most `wanted` bytes and returns for how many. They are to be sent.
    #[must_use]
    pub fn take(&mut self, wanted: usize) -> usize {
        let taken = wanted.min(self.unused as usize);
        self.unused -= taken as u32;
        taken
    }
}

/// The receiver's side, for one guest's console.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCredit {
    unused: u32,
}

impl ReceiveCredit {
    /// The receiver has `room` for bytes that have not come: what is to be granted beyond earlier grants, if that is
    /// worth a frame: half of the room, or all of it.
    #[must_use]
    pub fn grant(&mut self, room: usize) -> Option<u32> {
        let grant = self.due(room)?;
        self.unused += grant;
        Some(grant)
    }

    /// What [`grant`](Self::grant) would return.
    #[must_use]
    pub fn due(&self, room: usize) -> Option<u32> {
        let room = room.min(WINDOW_MAX as usize) as u32;
        room.checked_sub(self.unused).filter(|&grant| grant > 0 && grant >= room / 2)
    }

    /// Bytes came. On an error, the sender has broken the rules, and nothing changes.
    pub fn received(&mut self, sent: usize) -> Result<(), CreditError> {
        let left = u32::try_from(sent).ok().and_then(|sent| self.unused.checked_sub(sent));
        self.unused = left.ok_or(CreditError::Overrun { sent, unused: self.unused })?;
        Ok(())
    }
}
