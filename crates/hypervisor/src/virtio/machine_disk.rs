// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk on a disk of the machine, or on a part of one: each request becomes transfers of at most [`BUFFER`] bytes, which the
//! driver works on in any order (D1 to D4 of [`host`](super::host)).
//!
//! Invariants:
//!
//! * A buffer is in one place: free, or with the driver. So at most [`TRANSFERS`] are in flight.
//! * A request ends when none of its transfers is in flight. An orphan begins no further one.
//!
//! A discard and zeroes have no data, so one transfer can be for many sectors. If the machine's disk has none of these, a discard
//! has nothing to do, and zeroes are written. A write that has to be durable ends with a flush of its own.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_devices::GuestRam;
use twofold_devices::virtio::block::{Block, DataError, Operation, SECTOR};

use super::disk::{Counts, Extent, Moved, Request, Requests};
use super::host::{BUFFER, Client, HostDisk, Range, RangeMax, TRANSFERS, Transfer, Waker, Work};
use crate::guest_ram::Ram;

/// A part of a disk of the machine.
pub(super) struct MachineBacking {
    disk: &'static dyn HostDisk,
    client: Client,
    /// Its first sector.
    start: u64,
    /// How many sectors it may have at most; `None`: all up to the end of the machine's disk.
    own: Option<u64>,
    /// How many sectors it has.
    sectors: u64,
    range_max: RangeMax,
    free: Vec<Box<[u8]>>,
    /// What each ticket is for: the number of a request, and its byte at which the transfer begins.
    tickets: [Option<(usize, u32)>; TRANSFERS],
}

impl MachineBacking {
    /// The part from sector `start` on that has `sectors` sectors. `own`: it has no more if the machine's disk grows.
    pub(super) fn new(disk: &'static dyn HostDisk, start: u64, sectors: u64, own: Option<u64>, waker: Waker) -> Self {
        let free = (0..TRANSFERS).map(|_| alloc::vec![0; BUFFER].into_boxed_slice()).collect();
        let (client, range_max) = (disk.open(waker), disk.range_max());
        Self { disk, client, start, own, sectors, range_max, free, tickets: [None; TRANSFERS] }
    }

    /// How many sectors the part has now, if the machine's disk has another size than before.
    pub(super) fn resized(&mut self) -> Option<u64> {
        let has = self.disk.sectors().saturating_sub(self.start);
        let sectors = self.own.map_or(has, |own| own.min(has));
        (core::mem::replace(&mut self.sectors, sectors) != sectors).then_some(sectors)
    }

    /// Takes what has ended, then begins what can begin.
    pub(super) fn advance(
        &mut self,
        block: &mut Block,
        requests: &mut Requests,
        counts: &mut Counts,
        ram: &Ram<'_>,
    ) -> Moved {
        let mut moved = Moved::Nothing;
        while let Some(ended) = self.disk.ended(self.client) {
            let Transfer { ticket, work, length, buffer } = ended.transfer;
            if let Some((number, at)) = self.tickets.get_mut(ticket as usize).and_then(Option::take)
                && let Some(request) = requests.get(number)
            {
                request.in_flight -= 1;
                let bytes = &buffer[..length];
                let is_good = ended.is_good
                    && (!matches!(work, Work::Read(_)) || block.store(request.tag, ram, at, bytes).is_ok());
                request.is_failed |= !is_good;
                if request.has_ended() {
                    requests.end(number, block, counts);
                    moved = Moved::Ended;
                }
            }
            self.free.push(buffer);
            if ram.should_pause() {
                return Moved::More;
            }
        }
        for number in 0..twofold_devices::virtio::block::REQUESTS {
            while let Some(request) = requests.get(number) {
                if request.has_ended() {
                    requests.end(number, block, counts);
                    moved = Moved::Ended;
                    break;
                }
                if !request.has_more() {
                    break;
                }
                if !self.begin(number, request, block, ram) {
                    return moved;
                }
                if ram.should_pause() {
                    return Moved::More;
                }
            }
        }
        moved
    }

    /// D1 for the next piece of a request. Returns `false` if there is no room for it.
    fn begin(&mut self, number: usize, request: &mut Request, block: &Block, ram: &Ram<'_>) -> bool {
        let Some(ticket) = self.tickets.iter().position(Option::is_none) else { return false };
        let Some(mut buffer) = self.free.pop() else { return false };
        let operation = request.operation;
        let (at, size) = (request.done, operation.data());
        let left = size - u64::from(at);
        let sector = self.start + operation.start() + u64::from(at) / SECTOR;
        let range = |most: u32| {
            let sectors = most.min((left / SECTOR) as u32);
            Range { sector, sectors }
        };
        let length = left.min(BUFFER as u64) as usize;
        let (work, length) = match operation {
            _ if left == 0 => (Work::Flush, 0),
            Operation::Discard { .. } if self.range_max.discard == 0 => {
                request.done = size as u32;
                self.free.push(buffer);
                return true;
            }
            Operation::Discard { .. } => (Work::Discard(range(self.range_max.discard)), 0),
            Operation::WriteZeroes { may_unmap, .. } if self.range_max.zero != 0 => {
                (Work::Zero(range(self.range_max.zero), may_unmap), 0)
            }
            Operation::Read { .. } => (Work::Read(sector), length),
            Operation::Write { .. } => match block.fetch(request.tag, ram, at, &mut buffer[..length]) {
                Ok(()) => (Work::Write(sector), length),
                Err(DataError::Stale | DataError::Beyond | DataError::Ram(_)) => {
                    request.is_failed = true;
                    self.free.push(buffer);
                    return true;
                }
            },
            _ => {
                buffer[..length].fill(0);
                (Work::Write(sector), length)
            }
        };
        let done = match work {
            Work::Discard(range) | Work::Zero(range, _) => range.sectors * SECTOR as u32,
            _ => length as u32,
        };
        match self.disk.begin(self.client, Transfer { ticket: ticket as u32, work, length, buffer }) {
            Ok(()) => {
                self.tickets[ticket] = Some((number, at));
                request.done += done;
                request.in_flight += 1;
                request.is_flushing |= work == Work::Flush;
                true
            }
            Err(transfer) => {
                self.free.push(transfer.buffer);
                false
            }
        }
    }
}

impl Request {
    /// Whether a transfer is left to begin. A flush of its own begins when the rest has ended.
    fn has_more(&self) -> bool {
        let data = u64::from(self.done) < self.operation.data();
        !self.is_failed && (data || self.operation.ends_with_flush() && !self.is_flushing && self.in_flight == 0)
    }

    /// Whether nothing is left to do or to wait for.
    fn has_ended(&self) -> bool {
        self.in_flight == 0 && !self.has_more()
    }
}

trait Transfers {
    /// Bytes of the disk that it is about.
    fn data(&self) -> u64;
    fn ends_with_flush(&self) -> bool;
}

impl Transfers for Operation {
    fn data(&self) -> u64 {
        match self {
            Self::Flush => 0,
            _ => self.sectors() * SECTOR,
        }
    }

    fn ends_with_flush(&self) -> bool {
        match *self {
            Self::Flush => true,
            Self::Write { is_durable, .. } | Self::WriteZeroes { is_durable, .. } => is_durable,
            Self::Read { .. } | Self::Discard { .. } => false,
        }
    }
}
