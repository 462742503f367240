// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of the machine, and its clients: the guests' disks on it or on parts of it.
//!
//! The steps D1 to D4 are those of [`virtio::host`](crate::virtio::host). All are calls under the disk's lock.
//!
//! Invariants:
//!
//! * A client has at most its share of the slots, so that a busy guest does not keep the others' requests out. One that was
//!   refused is woken when a request of any client ends.
//! * What has ended stays with its client, in room that was made before any guest ran.

use alloc::vec::Vec;

use spin::Mutex;
use virtio_drivers::transport::mmio::MmioTransport;

use super::disk::{Disk, ID, RangeMax, Request, SLOTS, Work as DriverWork};
use super::dma::Machine;
use super::{CONFIGURATION, Registers};
use crate::virtio::host::{Client, Ended, HostDisk, TRANSFERS, Transfer, Waker, Work};

/// A disk of the machine.
pub struct MachineDisk {
    registers: Registers,
    id: [u8; ID],
    state: Mutex<State>,
}

type Driver = Disk<Machine, MmioTransport<'static>, Tag>;

struct State {
    driver: Driver,
    clients: Vec<Seat>,
}

/// A client.
struct Seat {
    waker: Waker,
    flying: usize,
    ended: Vec<Ended>,
    /// There was no room for a transfer.
    is_refused: bool,
}

/// The request of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tag {
    client: usize,
    ticket: u32,
}

impl MachineDisk {
    pub(super) fn new(registers: Registers, driver: Driver) -> Self {
        let id = driver.id();
        Self { registers, id, state: Mutex::new(State { driver, clients: Vec::new() }) }
    }

    /// Its serial number.
    pub(super) fn id(&self) -> [u8; ID] {
        self.id
    }

    pub(super) fn registers(&self) -> &Registers {
        &self.registers
    }

    /// I2 and I3.
    pub(super) fn interrupt(&self) {
        let reasons = self.registers.acknowledge();
        let mut state = self.state.lock();
        if reasons & CONFIGURATION != 0 && state.driver.look_again() {
            // Each looks at the size when it is polled.
            state.clients.iter().for_each(|client| client.waker.wake());
        }
        state.collect();
    }
}

impl HostDisk for MachineDisk {
    fn sectors(&self) -> u64 {
        self.state.lock().driver.sectors()
    }

    fn is_read_only(&self) -> bool {
        self.state.lock().driver.is_read_only()
    }

    fn range_max(&self) -> RangeMax {
        self.state.lock().driver.range_max()
    }

    fn open(&self, waker: Waker) -> Client {
        let mut state = self.state.lock();
        let ended = Vec::with_capacity(TRANSFERS);
        state.clients.push(Seat { waker, flying: 0, ended, is_refused: false });
        Client(state.clients.len() - 1)
    }

    fn begin(&self, Client(client): Client, transfer: Transfer) -> Result<(), Transfer> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let share = (SLOTS / state.clients.len().max(1)).max(1);
        let Some(seat) = state.clients.get_mut(client) else { return Err(transfer) };
        let Transfer { ticket, work, length, buffer } = transfer;
        let request = Request { tag: Tag { client, ticket }, work: work.into(), length, buffer };
        let begun = if seat.flying < share { state.driver.begin(request) } else { Err(request) };
        if let Err(request) = begun {
            seat.is_refused = true;
            return Err(Transfer { ticket, work, length, buffer: request.buffer });
        }
        seat.flying += 1;
        state.driver.notify();
        // A request that fails at once has no interrupt.
        state.collect();
        Ok(())
    }

    fn is_idle(&self, Client(client): Client) -> bool {
        self.state.lock().clients.get(client).is_none_or(|seat| seat.flying == 0)
    }

    fn ended(&self, Client(client): Client) -> Option<Ended> {
        self.state.lock().clients.get_mut(client)?.ended.pop()
    }
}

impl State {
    /// D3, for all that has ended.
    fn collect(&mut self) {
        let mut has_room = false;
        // Each has a slot, so this ends.
        while let Some((request, is_good)) = self.driver.ended() {
            has_room = true;
            let Request { tag, work, length, buffer } = request;
            let Some(seat) = self.clients.get_mut(tag.client) else { continue };
            let work = match work {
                DriverWork::Read(sector) => Work::Read(sector),
                DriverWork::Write(sector) => Work::Write(sector),
                DriverWork::Discard(range) => Work::Discard(range),
                DriverWork::Zero(range, may_unmap) => Work::Zero(range, may_unmap),
                DriverWork::Flush | DriverWork::Identify => Work::Flush,
            };
            seat.flying -= 1;
            seat.ended.push(Ended { transfer: Transfer { ticket: tag.ticket, work, length, buffer }, is_good });
            seat.waker.wake();
        }
        if has_room {
            for seat in &mut self.clients {
                if core::mem::take(&mut seat.is_refused) {
                    seat.waker.wake();
                }
            }
        }
    }
}

impl From<Work> for DriverWork {
    fn from(work: Work) -> Self {
        match work {
            Work::Read(sector) => Self::Read(sector),
            Work::Write(sector) => Self::Write(sector),
            Work::Flush => Self::Flush,
            Work::Discard(range) => Self::Discard(range),
            Work::Zero(range, may_unmap) => Self::Zero(range, may_unmap),
        }
    }
}
