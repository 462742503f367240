// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A console with one port (VIRTIO 1.2, 5.3, without MULTIPORT).
//!
//! Invariants:
//!
//! * A byte that the guest sends leaves by [`Terminal::output`] once, in order, unless the guest resets the device.
//! * A byte of [`Terminal::input`] is consumed when it is in a buffer that the device is bound to give back.
//!
//! A buffer that the guest sends may be of any length and the terminal may be full at any byte. So the chain that is
//! being sent is part of the model, and so is what has left of it.
//!
//! # The model's part of a state
//!
//! Bytes that have left of the chain that is being sent (u32), and the chain (see `snapshot.rs`), or one without
//! segments.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes};

use super::chain::Chain;
use super::device::{Model, Virtio};
use super::next::{Fault, Next, Stop, both};
use super::queue::{Queue, Used};
use super::state::{Reader, Writer, refuse};
use crate::line::InterruptLine;
use crate::ram::GuestRam;
use crate::state::StateError;

/// A virtio-console device.
pub type Console = Virtio<ConsoleModel>;

/// What a console is connected to.
pub trait Terminal {
    /// Takes bytes of the guest, and returns how many. If it takes less than all, the embedder polls the device when
    /// there is room.
    fn output(&mut self, bytes: &[u8]) -> usize;

    /// The oldest bytes that wait for the guest, or some of them. When there are more than there were, the embedder
    /// polls the device.
    fn input(&self) -> &[u8];

    /// The first `count` bytes of [`input`](Self::input) are the guest's.
    fn consume(&mut self, count: usize);
}

/// Features of a console.
pub mod feature {
    /// The configuration has the size of the screen.
    pub const SIZE: u64 = 1;
}

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Bytes that are copied at once.
const CHUNK: usize = 256;
/// Buffers or chunks of one poll, in each direction.
const BUDGET: usize = 16;

/// The model behind the registers.
#[derive(Clone, Debug)]
pub struct ConsoleModel {
    columns: u16,
    rows: u16,
    /// The chain that is being sent, if it has segments, and how much of it has left.
    sending: Chain,
    sent: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    columns: U16,
    rows: U16,
    ports: U32,
}

impl Console {
    /// The device after a reset, with a screen of this size.
    #[must_use]
    pub const fn new(columns: u16, rows: u16) -> Self {
        Self::with_model(ConsoleModel { columns, rows, sending: Chain::EMPTY, sent: 0 })
    }

    /// The screen has another size.
    pub fn resize(&mut self, columns: u16, rows: u16, line: &mut impl InterruptLine) {
        self.change_config(line, |model| (model.columns, model.rows) = (columns, rows));
    }

    /// Moves bytes in both directions.
    pub fn poll(&mut self, ram: &impl GuestRam, terminal: &mut impl Terminal, line: &mut impl InterruptLine) -> Next {
        self.work(ram, line, |model, [receive, transmit, ..], features| {
            // A page that one direction waits for does not stop the other.
            let sent = model.send(transmit, features, ram, terminal);
            let received = model.receive(receive, features, ram, terminal);
            both(sent, received)
        })
    }
}

impl ConsoleModel {
    fn send(
        &mut self,
        queue: &mut Queue,
        features: u64,
        ram: &impl GuestRam,
        terminal: &mut impl Terminal,
    ) -> Result<Next, Stop> {
        queue.pay(ram)?;
        for step in 0..BUDGET {
            if step > 0 && ram.should_pause() {
                return Ok(Next::Again);
            }
            if self.sending.is_empty() {
                if !queue.is_notified {
                    return Ok(Next::Idle);
                }
                // A chain that is read only in part is none.
                if !queue
                    .take(TRANSMIT as u8, ram, features, &mut self.sending)
                    .inspect_err(|_| self.sending.clear())?
                {
                    queue.rest(TRANSMIT as u8, ram, features)?;
                    continue;
                }
                self.sent = 0;
                queue.advance();
            }
            let left = self.sending.readable() - self.sent;
            let mut bytes = [0; CHUNK];
            let now = &mut bytes[..CHUNK.min(left as usize)];
            self.sending.read(ram, self.sent, now)?;
            let taken = terminal.output(now).min(now.len());
            self.sent += taken as u32;
            if self.sent == self.sending.readable() {
                let head = self.sending.head();
                self.sending.clear();
                self.sent = 0;
                queue.finish(ram, Used { head, written: 0 })?;
            } else if taken < now.len() {
                return Ok(Next::Idle);
            }
        }
        Ok(Next::Again)
    }

    fn receive(
        &mut self,
        queue: &mut Queue,
        features: u64,
        ram: &impl GuestRam,
        terminal: &mut impl Terminal,
    ) -> Result<Next, Stop> {
        queue.pay(ram)?;
        let mut chain = Chain::EMPTY;
        for step in 0..BUDGET {
            if step > 0 && ram.should_pause() {
                return Ok(Next::Again);
            }
            if !queue.is_notified || terminal.input().is_empty() {
                return Ok(Next::Idle);
            }
            if !queue.take(RECEIVE as u8, ram, features, &mut chain)? {
                queue.rest(RECEIVE as u8, ram, features)?;
                continue;
            }
            let (readable, writable) = (chain.readable(), chain.writable());
            let input = terminal.input();
            let count = input.len().min(writable as usize).min(CHUNK);
            if count == 0 {
                return Err(Fault::Short { readable, writable }.into());
            }
            chain.write(ram, 0, &input[..count])?;
            terminal.consume(count);
            queue.advance();
            queue.finish(ram, Used { head: chain.head(), written: count as u32 })?;
        }
        Ok(Next::Again)
    }
}

impl Model for ConsoleModel {
    const DEVICE: u32 = 3;
    const QUEUES: usize = 2;
    const STATE_MAX: usize = size_of::<U32>() + Chain::STATE_MAX;

    fn features(&self) -> u64 {
        feature::SIZE
    }

    fn config(&self, offset: u64) -> u8 {
        let config = Config { columns: self.columns.into(), rows: self.rows.into(), ports: 1.into() };
        usize::try_from(offset).ok().and_then(|at| config.as_bytes().get(at).copied()).unwrap_or(0)
    }

    fn abandon(&mut self, queue: usize) {
        if queue == TRANSMIT {
            self.sending.clear();
            self.sent = 0;
        }
    }

    fn held(&self, queue: usize) -> usize {
        usize::from(queue == TRANSMIT && !self.sending.is_empty())
    }

    fn save(&self, to: &mut Writer<'_>) -> Result<(), StateError> {
        to.put(&U32::new(self.sent))?;
        self.sending.save(to)
    }

    fn load(&mut self, from: &mut Reader<'_>, _: u64) -> Result<(), StateError> {
        self.sent = from.take::<U32>()?.get();
        self.sending = Chain::load(from)?;
        let ended = self.sent >= self.sending.readable();
        refuse([
            (self.sending.is_empty() && self.sent != 0, "bytes have left of no chain"),
            (!self.sending.is_empty() && ended, "a chain is being sent that has left"),
        ])
    }
}
