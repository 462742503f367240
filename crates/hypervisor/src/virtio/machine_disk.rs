// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk on a disk of the machine, or on a part of one: each request becomes transfers of at most [`BUFFER`] bytes, which the
//! driver works on in any order (D1 to D4 of [`host`](super::host)).
//!
//! Invariants:
//!
//! * A buffer is in one place: free, with the driver, or late: its data waits for an absent page of the guest. So at most
//!   [`TRANSFERS`] are in flight or late.
//! * A request ends when none of its transfers is in flight or late. An orphan begins no further one.
//!
//! A discard and zeroes have no data, so one transfer can be for many sectors. If the machine's disk has none of these, a discard
//! has nothing to do, and zeroes are written. A write that has to be durable ends with a flush of its own.

use alloc::boxed::Box;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use twofold_devices::virtio::block::{Block, DataError, Operation, SECTOR};
use twofold_devices::{GuestRam, RamError};

use super::disk::{Counts, Extent, Moved, Request, Requests};
use super::host::{BUFFER, Client, Ended, HostDisk, Range, RangeMax, TRANSFERS, Transfer, Waker, Work};
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
    /// Reads that have ended, and whose data could not be copied to the guest yet.
    late: ArrayVec<Ended, TRANSFERS>,
}

/// What [`MachineBacking::begin`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// A transfer, or what needs none.
    One,
    /// Nothing: there is no room for one.
    NoRoom,
    /// Nothing: a page of the data is absent.
    Absent,
}

impl MachineBacking {
    /// The part from sector `start` on that has `sectors` sectors. `own`: it has no more if the machine's disk grows.
    pub(super) fn new(disk: &'static dyn HostDisk, start: u64, sectors: u64, own: Option<u64>, waker: Waker) -> Self {
        let free = (0..TRANSFERS).map(|_| alloc::vec![0; BUFFER].into_boxed_slice()).collect();
        let (client, range_max) = (disk.open(waker), disk.range_max());
        Self { disk, client, start, own, sectors, range_max, free, tickets: [None; TRANSFERS], late: ArrayVec::new() }
    }

    /// Whether the machine's disk works on nothing of this one's.
    pub(super) fn is_idle(&self) -> bool {
        self.disk.is_idle(self.client)
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
        let mut late = self.late.len();
        loop {
            let next = if late > 0 { self.late.pop_at(0) } else { self.disk.ended(self.client) };
            late = late.saturating_sub(1);
            let Some(ended) = next else { break };
            match self.take_in(ended, block, requests, ram) {
                Some(number) if requests.get(number).is_some_and(|request| request.has_ended()) => {
                    requests.end(number, block, counts);
                    moved = Moved::Ended;
                }
                _ => {}
            }
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
                match self.begin(number, request, block, ram) {
                    Begun::One => {}
                    Begun::NoRoom => return moved,
                    Begun::Absent => break,
                }
                if ram.should_pause() {
                    return Moved::More;
                }
            }
        }
        moved
    }

    /// D4 for one transfer, which is over then, unless it is late. Returns the number of its request.
    fn take_in(&mut self, ended: Ended, block: &Block, requests: &mut Requests, ram: &Ram<'_>) -> Option<usize> {
        let Transfer { ticket, work, length, buffer } = &ended.transfer;
        let ticket = *ticket as usize;
        let of = self.tickets.get(ticket).copied().flatten();
        let request = of.and_then(|(number, at)| Some((at, requests.get(number)?)));
        if let Some((at, request)) = request {
            let copied = match work {
                Work::Read(_) if ended.is_good => block.store(request.tag, ram, at, &buffer[..*length]),
                _ => Ok(()),
            };
            if let Err(DataError::Ram(RamError::Absent(_))) = copied {
                self.late.push(ended);
                return None;
            }
            request.in_flight -= 1;
            request.is_failed |= !ended.is_good || copied.is_err();
        }
        self.free.push(ended.transfer.buffer);
        self.tickets.get_mut(ticket)?.take().map(|(number, _)| number)
    }

    /// D1 for the next piece of a request.
    fn begin(&mut self, number: usize, request: &mut Request, block: &Block, ram: &Ram<'_>) -> Begun {
        let Some(ticket) = self.tickets.iter().position(Option::is_none) else { return Begun::NoRoom };
        let Some(mut buffer) = self.free.pop() else { return Begun::NoRoom };
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
                return Begun::One;
            }
            Operation::Discard { .. } => (Work::Discard(range(self.range_max.discard)), 0),
            Operation::WriteZeroes { may_unmap, .. } if self.range_max.zero != 0 => {
                (Work::Zero(range(self.range_max.zero), may_unmap), 0)
            }
            Operation::Read { .. } => (Work::Read(sector), length),
            Operation::Write { .. } => match block.fetch(request.tag, ram, at, &mut buffer[..length]) {
                Ok(()) => (Work::Write(sector), length),
                Err(why) => {
                    self.free.push(buffer);
                    if let DataError::Ram(RamError::Absent(_)) = why {
                        return Begun::Absent;
                    }
                    request.is_failed = true;
                    return Begun::One;
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
                Begun::One
            }
            Err(transfer) => {
                self.free.push(transfer.buffer);
                Begun::NoRoom
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
