// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A split virtqueue (VIRTIO 1.2, 2.7), as a device uses it.
//!
//! # The protocol
//!
//! Taking a chain ([`Queue::take`], [`Queue::advance`]):
//!
//! * T1 read the available index. If it is the next one to take, there is nothing.
//! * T2 barrier, acquire.
//! * T3 read the ring's entry, then the descriptors.
//! * T4 advance: the chain is the device's. Until then nothing has changed, and T1 to T3 can be done again.
//!
//! The driver writes descriptors and the entry before the index. By T2, a device that saw the index sees these.
//!
//! Giving it back ([`Queue::give`]):
//!
//! * G1 write the used element.
//! * G2 barrier, release: what was written to the chain's buffers, and the element, are visible before the index.
//! * G3 write the used index. If a page is absent in G1 or G3, nothing has changed for the driver, which reads no
//!   element from the index on. The next attempt does both again.
//!
//! Notifying the driver ([`Queue::wants_interrupt`]), once after any number of chains:
//!
//! * N1 barrier, full.
//! * N2 read the driver's wish: `used_event`, or NO_INTERRUPT. If that is not possible, the driver is notified.
//!
//! The driver writes its wish, executes a full barrier, and reads the used index. By N1 and that barrier, at least one
//! of the two sees the other: the device sees the wish, or the driver sees the new index.
//!
//! Coming to rest ([`Queue::rest`]), so that the next chain is notified:
//!
//! * R1 write `avail_event` (with EVENT_IDX; without it, every chain is notified).
//! * R2 barrier, full.
//! * R3 read the available index. If there is more to take, go on. The argument is that of N1.
//!
//! # Invariants
//!
//! * A queue that is not ready has taken and given nothing, and owes nothing.
//! * A ready queue has a size of 1 to [`SEGMENTS`] that is a power of two, and rings that are aligned and end before the
//!   last address. So no address of a ring overflows.

use zerocopy::IntoBytes;

use super::chain::{Chain, SEGMENTS, Table};
use super::layout::{Descriptor, NO_INTERRUPT, RING_ENTRIES, RING_INDEX, UsedElement, feature};
use super::next::{Fault, Stop};
use crate::ram::{Barrier, GuestRam, RamError};

/// The most descriptors of a queue.
pub(super) const SIZE_MAX: u16 = SEGMENTS as u16;

/// A virtqueue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub size: u16,
    pub is_ready: bool,
    /// The descriptor table, the driver's (available) ring and the device's (used) ring.
    pub descriptors: u64,
    pub driver: u64,
    pub device: u64,
    /// The guest has notified the queue since it last came to rest.
    pub is_notified: bool,
    /// The available index that is taken next.
    pub next: u16,
    /// The used index.
    pub used: u16,
    /// The `avail_event` that is in the used ring.
    pub asked: Option<u16>,
    /// A chain that the device is done with, and that the driver cannot see yet.
    pub owed: Option<Used>,
}

/// A chain that the device is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub head: u16,
    /// How many bytes the device has written.
    pub written: u32,
}

impl Queue {
    /// After a reset.
    pub const fn new() -> Self {
        Self {
            size: 0,
            is_ready: false,
            descriptors: 0,
            driver: 0,
            device: 0,
            is_notified: false,
            next: 0,
            used: 0,
            asked: None,
            owed: None,
        }
    }

    /// Makes the queue ready. The result is false if its size or its addresses are none that a queue can have.
    #[must_use]
    pub fn start(&mut self) -> bool {
        self.is_ready = self.is_possible();
        self.is_ready
    }

    /// The queue is no longer ready. Its size and addresses stay.
    pub fn stop(&mut self) {
        let Self { size, descriptors, driver, device, .. } = *self;
        *self = Self { size, descriptors, driver, device, ..Self::new() };
    }

    /// Could a queue have this size and these addresses?
    pub fn is_possible(&self) -> bool {
        let size = u64::from(self.size);
        let fits = |address: u64, align: u64, length: u64| {
            address.is_multiple_of(align) && address.checked_add(length).is_some()
        };
        self.size.is_power_of_two()
            && self.size <= SIZE_MAX
            && fits(self.descriptors, 16, Descriptor::SIZE as u64 * size)
            && fits(self.driver, 2, RING_ENTRIES + 2 * size + 2)
            && fits(self.device, 4, RING_ENTRIES + 8 * size + 2)
    }

    /// Copies the next available chain to `chain` (T1 to T3). False if there is none. The chain stays available.
    pub fn take(&self, number: u8, ram: &impl GuestRam, features: u64, chain: &mut Chain) -> Result<bool, Stop> {
        if self.available(number, ram)? == 0 {
            return Ok(false);
        }
        ram.barrier(Barrier::Acquire);
        let place = u64::from(self.next % self.size);
        let head = half(ram, self.driver + RING_ENTRIES + 2 * place)?;
        let has_indirect = features & feature::INDIRECT_DESC != 0;
        chain.read_from(ram, Table { address: self.descriptors, count: self.size, has_indirect }, head)?;
        Ok(true)
    }

    /// The chain that was copied last is the device's (T4).
    pub fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Gives a chain back (G1 to G3). On an error, nothing has changed.
    pub fn give(&mut self, ram: &impl GuestRam, used: Used) -> Result<(), Stop> {
        let element = UsedElement { id: u32::from(used.head).into(), length: used.written.into() };
        let place = u64::from(self.used % self.size);
        ram.write(self.device + RING_ENTRIES + 8 * place, element.as_bytes())?;
        ram.barrier(Barrier::Release);
        let index = self.used.wrapping_add(1);
        ram.write(self.device + RING_INDEX, &index.to_le_bytes())?;
        self.used = index;
        Ok(())
    }

    /// The device is done with the chain that it took last. If the driver cannot see that yet, the queue owes it.
    pub fn finish(&mut self, ram: &impl GuestRam, used: Used) -> Result<(), Stop> {
        self.owed = Some(used);
        self.pay(ram)
    }

    /// Gives back what the queue owes.
    pub fn pay(&mut self, ram: &impl GuestRam) -> Result<(), Stop> {
        if let Some(used) = self.owed {
            self.give(ram, used)?;
            self.owed = None;
        }
        Ok(())
    }

    /// Does the driver want an interrupt, after the used index was `before` (N1, N2)?
    pub fn wants_interrupt(&self, ram: &impl GuestRam, features: u64, before: u16) -> bool {
        if self.used == before {
            return false;
        }
        ram.barrier(Barrier::Full);
        let wants = if features & feature::EVENT_IDX != 0 {
            let event = half(ram, self.driver + RING_ENTRIES + 2 * u64::from(self.size));
            // Is `event` one of the indices that were given since `before`?
            event.map(|event| self.used.wrapping_sub(event).wrapping_sub(1) < self.used.wrapping_sub(before))
        } else {
            half(ram, self.driver).map(|flags| flags & NO_INTERRUPT == 0)
        };
        wants.unwrap_or(true)
    }

    /// Asks for a notification of the next chain (R1 to R3). True if there is one by now.
    pub fn rest(&mut self, number: u8, ram: &impl GuestRam, features: u64) -> Result<bool, Stop> {
        if features & feature::EVENT_IDX != 0 && self.asked != Some(self.next) {
            ram.write(self.device + RING_ENTRIES + 8 * u64::from(self.size), &self.next.to_le_bytes())?;
            self.asked = Some(self.next);
            ram.barrier(Barrier::Full);
        }
        let more = self.available(number, ram)? > 0;
        self.is_notified = more;
        Ok(more)
    }

    /// How many chains are available (T1).
    fn available(&self, number: u8, ram: &impl GuestRam) -> Result<u16, Stop> {
        let ahead = half(ram, self.driver + RING_INDEX)?.wrapping_sub(self.next);
        if ahead > self.size {
            return Err(Fault::Index { queue: number, ahead, size: self.size }.into());
        }
        Ok(ahead)
    }
}

/// Reads 16 bits, by one access.
fn half(ram: &impl GuestRam, address: u64) -> Result<u16, RamError> {
    let mut bytes = [0; 2];
    ram.read(address, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}
