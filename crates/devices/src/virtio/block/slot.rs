// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A place for a request, and how far the request has come: the steps B2 and B5 of `block/mod.rs`.

use super::super::chain::Chain;
use super::super::next::Stop;
use super::super::queue::{Queue, Used};
use super::{Disk, Full, Operation, Tag};
use crate::ram::GuestRam;

/// A place for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub phase: Phase,
    pub serial: u64,
    pub chain: Chain,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// Before B2.
    Waits(Operation),
    /// In B3.
    Begun(Operation),
    /// Before B5, with this status.
    Done {
        status: u8,
        identify: bool,
    },
    /// In B3, from before a reset.
    Orphan,
}

impl Slot {
    pub const FREE: Self = Self { phase: Phase::Free, serial: 0, chain: Chain::EMPTY };

    /// Offers the request to the disk, if it waits (B2).
    pub fn begin(&mut self, number: usize, disk: &mut impl Disk) -> Result<(), Full> {
        if let Phase::Waits(operation) = self.phase {
            disk.begin(Tag { slot: number as u8, serial: self.serial }, operation)?;
            self.phase = Phase::Begun(operation);
        }
        Ok(())
    }

    /// Gives the request back, if it is done (B5).
    pub fn give_back(&mut self, id: [u8; 20], queue: &mut Queue, ram: &impl GuestRam) -> Result<(), Stop> {
        let Phase::Done { status, identify } = self.phase else { return Ok(()) };
        if identify {
            self.chain.write(ram, 0, &id)?;
        }
        let written = self.chain.writable();
        self.chain.write(ram, written - 1, &[status])?;
        // A driver may ignore what lies behind the first `written` bytes, and the status is the last one. So all are
        // counted, although a read that failed has not written its data.
        queue.give(ram, Used { head: self.chain.head(), written })?;
        self.phase = Phase::Free;
        Ok(())
    }
}
