// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why pages do not leave or come: a part of the reason for which their guest is stopped.

use core::fmt;

use twofold_memory::swap::{Failure, Operation, WriteOutError};
use twofold_stage2::Ipa;

use crate::host_devices::disk;

/// What went wrong with a store.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Cause {
    /// A request.
    #[error("{0}")]
    Failed(Failure),
    /// No page could be passed to it.
    #[error("{0}")]
    NoRoom(WriteOutError),
}

/// What went wrong last.
#[derive(Default)]
pub struct Causes {
    arriving: Option<Failure>,
    /// No frame became free.
    pub(super) leaving: Option<Cause>,
}

impl Causes {
    pub(super) fn note(&mut self, failure: &Failure) {
        match failure.operation {
            Operation::Read => self.arriving = Some(*failure),
            Operation::Write => self.leaving = Some(Cause::Failed(*failure)),
        }
    }

    /// The one why this page, or any, cannot be brought.
    pub(super) fn of(&self, page: Option<Ipa>) -> Option<Cause> {
        let its_own = self.arriving.filter(|failure| page.is_none_or(|page| page == failure.page));
        its_own.map(Cause::Failed).or(self.leaving).or(self.arriving.map(Cause::Failed))
    }
}

/// Why a page cannot be brought, with the store's disk. It begins with a colon, and is nothing if nothing went wrong.
#[derive(Debug, Default)]
pub struct Why {
    pub(super) cause: Option<Cause>,
    /// The serial number.
    pub(super) disk: Option<[u8; disk::ID]>,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = &self.cause else { return Ok(()) };
        write!(f, ": {cause}")?;
        let Some(serial) = &self.disk else { return Ok(()) };
        let serial = serial.split(|byte| *byte == 0).next().unwrap_or(&[]);
        write!(f, " (--swap: the machine's disk \"{}\"", serial.escape_ascii())?;
        // The disk has one error for all.
        let is_write = matches!(cause, Cause::Failed(Failure { operation: Operation::Write, .. }));
        f.write_str(if is_write { "; its host may have no room left)" } else { ")" })
    }
}
