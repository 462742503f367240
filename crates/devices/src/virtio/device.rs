// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all devices have in common: registers, queues, a model behind them, and the frame of one poll.
//!
//! Invariant: a model works on queues only while the device is live, and from its reset on (or from the moment in
//! which its driver broke a rule) it holds no chain from before.

use super::layout::{feature, interrupt};
use super::next::{Next, Stop};
use super::queue::Queue;
use super::state::{Reader, Writer};
use super::transport::{CONFIG, Identity, QUEUES, Transport, Written};
use crate::access::Width;
use crate::line::InterruptLine;
use crate::ram::GuestRam;
use crate::state::StateError;

/// A virtio device: a model, and the registers and queues by which the guest reaches it.
#[derive(Clone, Debug)]
pub struct Virtio<M> {
    transport: Transport,
    pub(super) model: M,
}

/// What a device does behind its queues.
pub trait Model {
    /// The number of this kind of device.
    const DEVICE: u32;
    /// How many queues it has.
    const QUEUES: usize;
    /// The most bytes of its part of a state.
    const STATE_MAX: usize;

    /// The features of this kind that it offers.
    fn features(&self) -> u64;

    /// A byte of its configuration space.
    fn config(&self, offset: u64) -> u8;

    /// The driver writes a byte of its configuration space.
    fn set_config(&mut self, _offset: u64, _byte: u8) {}

    /// The chains that it has taken from this queue are void.
    fn abandon(&mut self, queue: usize);

    /// How many chains of this queue it holds.
    fn held(&self, queue: usize) -> usize;

    /// Writes its part of a state.
    fn save(&self, to: &mut Writer<'_>) -> Result<(), StateError>;

    /// Becomes what a state says. It has abandoned all queues before.
    fn load(&mut self, from: &mut Reader<'_>, accepted: u64) -> Result<(), StateError>;
}

impl<M: Model> Virtio<M> {
    /// The most bytes of a state.
    pub const STATE_MAX: usize = Transport::STATE_SIZE + M::STATE_MAX;

    pub(super) const fn with_model(model: M) -> Self {
        Self { transport: Transport::new(), model }
    }

    /// The guest reads, `offset` bytes behind the first register.
    #[must_use]
    pub fn read(&self, offset: u64, width: Width) -> u64 {
        self.transport.read(self.identity(), offset, width, |offset| self.model.config(offset))
    }

    /// The guest writes. If the result is true, the embedder polls the device: now, or later on any CPU.
    pub fn write(&mut self, offset: u64, width: Width, value: u64, line: &mut impl InterruptLine) -> bool {
        if let Some(first) = offset.checked_sub(CONFIG) {
            let bytes = value.to_le_bytes().into_iter().take(width.bytes() as usize);
            (first..).zip(bytes).for_each(|(offset, byte)| self.model.set_config(offset, byte));
            return false;
        }
        let written = self.transport.write(self.identity(), offset, width, value);
        match written {
            Written::Nothing | Written::Notified => {}
            Written::Reset | Written::Failed => self.abandon(),
            Written::Stopped(queue) => self.model.abandon(queue),
        }
        line.set(self.interrupt());
        written == Written::Notified
    }

    /// The level of the device's line.
    #[must_use]
    pub fn interrupt(&self) -> bool {
        self.transport.line()
    }

    /// The device's reset, as by the guest.
    pub fn reset(&mut self, line: &mut impl InterruptLine) {
        self.transport.reset();
        self.abandon();
        line.set(self.interrupt());
    }

    /// Writes the whole state to `room`, and returns the part that it takes. The line is not part of it: its level is
    /// [`interrupt`](Self::interrupt). `room` has [`STATE_MAX`](Self::STATE_MAX) bytes or more.
    pub fn state<'r>(&self, room: &'r mut [u8]) -> Result<&'r [u8], StateError> {
        let mut to = Writer::new(room);
        self.transport.save(M::DEVICE, &mut to)?;
        self.model.save(&mut to)?;
        Ok(to.written())
    }

    /// This device with the state in `bytes`. The embedder then sets the line to [`interrupt`](Self::interrupt), and
    /// polls the device.
    pub fn with_state(mut self, bytes: &[u8]) -> Result<Self, StateError> {
        self.load(bytes)?;
        Ok(self)
    }

    /// As [`with_state`](Self::with_state), in place: for a device that is large for the stack. One that refuses is as after
    /// a reset.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let loaded = self.load(bytes);
        if loaded.is_err() {
            self.transport.reset();
            self.abandon();
        }
        loaded
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.abandon();
        let mut from = Reader::new(bytes);
        self.transport = Transport::load(self.identity(), &mut from)?;
        self.model.load(&mut from, self.transport.features)?;
        from.end()?;
        for (number, queue) in self.transport.queues.iter().enumerate() {
            let held = self.model.held(number);
            // A device that needs a reset has abandoned its chains.
            let taken = usize::from(queue.next.wrapping_sub(queue.used));
            let agree = match self.transport.needs_reset() {
                true => held == 0,
                false => taken == held + usize::from(queue.owed.is_some()),
            };
            if !agree {
                return Err(StateError::Impossible("a queue's indices disagree with the chains that are taken"));
            }
        }
        Ok(())
    }

    /// Does work on the queues, if the driver has them ready, and then what follows for the guest.
    pub(super) fn work<R: GuestRam>(
        &mut self,
        ram: &R,
        line: &mut impl InterruptLine,
        work: impl FnOnce(&mut M, &mut [Queue; QUEUES], u64) -> Result<Next, Stop>,
    ) -> Next {
        if !self.transport.is_live() {
            return Next::Idle;
        }
        let features = self.transport.features;
        let before = self.transport.queues.each_ref().map(|queue| queue.used);
        let result = work(&mut self.model, &mut self.transport.queues, features);
        for (queue, before) in self.transport.queues.iter().zip(before) {
            if queue.wants_interrupt(ram, features, before) {
                self.transport.interrupt |= interrupt::USED;
            }
        }
        let next = match result {
            Ok(next) => next,
            Err(Stop::Absent(address)) => Next::Absent(address),
            Err(Stop::Broken(fault)) => {
                self.transport.fail();
                self.abandon();
                Next::Broken(fault)
            }
        };
        line.set(self.interrupt());
        next
    }

    /// The configuration space changes.
    pub(super) fn change_config(&mut self, line: &mut impl InterruptLine, change: impl FnOnce(&mut M)) {
        change(&mut self.model);
        self.transport.change_config();
        line.set(self.interrupt());
    }

    fn abandon(&mut self) {
        (0..M::QUEUES).for_each(|queue| self.model.abandon(queue));
    }

    fn identity(&self) -> Identity {
        let common = feature::VERSION_1 | feature::INDIRECT_DESC | feature::EVENT_IDX;
        Identity { device: M::DEVICE, offered: self.model.features() | common, queues: M::QUEUES }
    }
}
