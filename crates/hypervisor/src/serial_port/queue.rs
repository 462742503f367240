// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A split virtqueue whose buffers are its own: each descriptor has one buffer of a fixed size for ever.
//!
//! # Steps
//!
//! To hand a buffer to the device: P1 write the descriptor and the next entry of the available ring; P2 fence; P3 store
//! the ring's index; P4 fence; P5 read whether the device wants to be notified, and notify it.
//!
//! To take one back: T1 load the used ring's index; T2 fence; T3 read the entry and the buffer.
//!
//! By P2 a device that sees the index sees the entry. By P4 either the device sees the index before it sleeps, or it has
//! asked for a notification before P5. By T2 the entry is read after the index that covers it.
//!
//! Invariant: a bit of `in_flight` is set while the device has that buffer. The device's numbers are checked against it,
//! so a device that lies is an error and nothing else.

use zerocopy::IntoBytes;

use super::shared::{Registers, SharedMemory};
use super::wire::{Descriptor, NO_INTERRUPT, NO_NOTIFY, Used, WRITE, register};

/// Descriptors of a queue.
pub const SIZE: u16 = 16;

const AVAILABLE: usize = SIZE as usize * size_of::<Descriptor>();
const AVAILABLE_INDEX: usize = AVAILABLE + 2;
const AVAILABLE_RING: usize = AVAILABLE + 4;
/// The available ring has one more number at its end.
const USED: usize = (AVAILABLE_RING + 2 * SIZE as usize + 2).next_multiple_of(4);
const USED_INDEX: usize = USED + 2;
const USED_RING: usize = USED + 4;
const BUFFERS: usize = (USED_RING + SIZE as usize * size_of::<Used>() + 2).next_multiple_of(16);

/// Bytes of a queue with buffers of this size: a multiple of 16, as `BUFFERS` and `SIZE` are.
pub const fn bytes(buffer: usize) -> usize {
    BUFFERS + SIZE as usize * buffer
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    number: u16,
    at: usize,
    buffer: usize,
    /// Whether the device writes the buffers.
    to_driver: bool,
    in_flight: u16,
    available: u16,
    used: u16,
    interrupts: bool,
}

/// The device breaks the rules of its queues. It has to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// It returns more buffers than it has.
    #[error("queue {queue}: {returned} buffers come back, and {lent} are lent")]
    Index {
        /// The queue's number.
        queue: u16,
        /// How many buffers come back.
        returned: u16,
        /// How many it has.
        lent: u32,
    },
    /// It returns a buffer that it does not have.
    #[error("queue {queue}: buffer {id} comes back, and it is not lent")]
    Buffer {
        /// The queue's number.
        queue: u16,
        /// The buffer.
        id: u32,
    },
    /// It says that it wrote more than the buffer has.
    #[error("queue {queue}: {length} bytes in a buffer of {buffer}")]
    Length {
        /// The queue's number.
        queue: u16,
        /// What it says.
        length: u32,
        /// The buffer's bytes.
        buffer: usize,
    },
}

/// A queue cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue {queue} has at most {most} descriptors, and {SIZE} are needed")]
pub struct TooSmall {
    /// The queue's number.
    pub queue: u16,
    /// The most descriptors that it has; 0: there is no such queue.
    pub most: u32,
}

impl Queue {
    /// Makes a queue in the memory from `at` on, and shows it to the device.
    pub fn set_up(
        number: u16,
        at: usize,
        buffer: usize,
        to_driver: bool,
        registers: &mut impl Registers,
        memory: &mut impl SharedMemory,
    ) -> Result<Self, TooSmall> {
        registers.write(register::QUEUE_SELECT, number.into());
        let most = registers.read(register::QUEUE_SIZE_MAX);
        if most < SIZE.into() {
            return Err(TooSmall { queue: number, most });
        }
        memory.write(at, &[0; BUFFERS]);
        registers.write(register::QUEUE_SIZE, SIZE.into());
        for (register, part) in
            [(register::QUEUE_DESCRIPTORS, 0), (register::QUEUE_DRIVER, AVAILABLE), (register::QUEUE_DEVICE, USED)]
        {
            let address = memory.address() + (at + part) as u64;
            registers.write(register, address as u32);
            registers.write(register + 4, (address >> 32) as u32);
        }
        memory.fence();
        registers.write(register::QUEUE_READY, 1);
        Ok(Self { number, at, buffer, to_driver, in_flight: 0, available: 0, used: 0, interrupts: true })
    }

    /// The number of buffers that the device does not have.
    pub fn free(&self) -> u32 {
        self.in_flight.count_zeros()
    }

    /// Hands all buffers to the device, empty.
    pub fn lend_all(&mut self, memory: &mut impl SharedMemory) {
        for id in 0..SIZE {
            self.lend(id, self.buffer, memory);
        }
    }

    /// Hands a buffer with these bytes to the device. False: it has all buffers. `bytes` fit into one.
    #[must_use]
    pub fn send(&mut self, bytes: &[u8], memory: &mut impl SharedMemory) -> bool {
        let id = self.in_flight.trailing_ones() as u16;
        if id >= SIZE {
            return false;
        }
        let length = bytes.len().min(self.buffer);
        memory.write(self.buffer_at(id), &bytes[..length]);
        self.lend(id, length, memory);
        true
    }

    /// Hands a buffer to the device, without notifying it. The buffer is not lent.
    pub fn lend(&mut self, id: u16, length: usize, memory: &mut impl SharedMemory) {
        // P1.
        let id = id % SIZE;
        let descriptor = Descriptor {
            address: (memory.address() + self.buffer_at(id) as u64).into(),
            length: (length as u32).into(),
            flags: if self.to_driver { WRITE } else { 0 }.into(),
            next: 0.into(),
        };
        memory.write(self.at + usize::from(id) * size_of::<Descriptor>(), descriptor.as_bytes());
        memory.store(self.at + AVAILABLE_RING + 2 * usize::from(self.available % SIZE), id);
        // P2, P3.
        memory.fence();
        self.available = self.available.wrapping_add(1);
        memory.store(self.at + AVAILABLE_INDEX, self.available);
        self.in_flight |= 1 << id;
    }

    /// Notifies the device of what was lent.
    pub fn notify(&self, registers: &mut impl Registers, memory: &impl SharedMemory) {
        // P4, P5.
        memory.fence();
        if memory.load(self.at + USED) & NO_NOTIFY == 0 {
            registers.write(register::QUEUE_NOTIFY, self.number.into());
        }
    }

    /// Asks for an interrupt when a buffer comes back, or for none.
    pub fn want_interrupts(&mut self, wanted: bool, memory: &mut impl SharedMemory) {
        if self.interrupts != wanted {
            self.interrupts = wanted;
            memory.store(self.at + AVAILABLE, if wanted { 0 } else { NO_INTERRUPT });
            // What came back before the device saw this is found by a look after it.
            memory.fence();
        }
    }

    /// Takes one buffer back: its number, and how many bytes the device wrote.
    pub fn take(&mut self, memory: &impl SharedMemory) -> Result<Option<(u16, usize)>, QueueError> {
        // T1.
        let returned = memory.load(self.at + USED_INDEX).wrapping_sub(self.used);
        if returned == 0 {
            return Ok(None);
        }
        let (queue, lent) = (self.number, self.in_flight.count_ones());
        if u32::from(returned) > lent {
            return Err(QueueError::Index { queue, returned, lent });
        }
        // T2, T3.
        memory.fence();
        let mut entry = [0; size_of::<Used>()];
        memory.read(self.at + USED_RING + usize::from(self.used % SIZE) * size_of::<Used>(), &mut entry);
        let entry: Used = zerocopy::transmute!(entry);
        let (id, length) = (entry.id.get(), entry.length.get());
        if id >= SIZE.into() || self.in_flight & 1 << id == 0 {
            return Err(QueueError::Buffer { queue, id });
        }
        if length as usize > self.buffer {
            return Err(QueueError::Length { queue, length, buffer: self.buffer });
        }
        self.used = self.used.wrapping_add(1);
        self.in_flight &= !(1 << id);
        Ok(Some((id as u16, length as usize)))
    }

    /// Hands a buffer that came back to the device again, empty.
    pub fn give_back(&mut self, id: u16, memory: &mut impl SharedMemory) {
        self.lend(id, self.buffer, memory);
    }

    /// Copies a buffer's bytes from `from` on.
    pub fn copy(&self, id: u16, from: usize, bytes: &mut [u8], memory: &impl SharedMemory) {
        memory.read(self.buffer_at(id) + from, bytes);
    }

    fn buffer_at(&self, id: u16) -> usize {
        self.at + BUFFERS + usize::from(id % SIZE) * self.buffer
    }
}
