// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver, written naively from the specification: registers by offset, rings by address.

use std::collections::BTreeMap;

use twofold_devices::Width;
use twofold_devices::virtio::{Model, Virtio};

use crate::ram::{BASE, Ram};

pub const VERSION_1: u64 = 1 << 32;
pub const EVENT_IDX: u64 = 1 << 29;
pub const INDIRECT: u64 = 1 << 28;
pub const STATUS: u64 = 0x70;
pub const NOTIFY: u64 = 0x50;
pub const NEEDS_RESET: u32 = 64;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const TABLE: u16 = 4;

/// Where the tests put data. Below are the queues, 64 KiB each.
pub const DATA: u64 = BASE + 0x4_0000;

/// A device on its bus.
pub struct Board<M> {
    pub device: Virtio<M>,
    pub ram: Ram,
    pub line: bool,
    /// The device asked to be polled.
    pub polls: bool,
}

/// A queue of the driver.
#[derive(Clone, Debug)]
pub struct Queue {
    pub number: u32,
    pub size: u16,
    pub features: u64,
    free: Vec<u16>,
    chains: BTreeMap<u16, Vec<u16>>,
    pub next: u16,
    pub seen: u16,
}

/// A buffer: address, length, and whether the device writes it.
pub type Buffer = (u64, u32, bool);

impl<M: Model> Board<M> {
    pub fn new(device: Virtio<M>) -> Self {
        Self { device, ram: Ram::new(), line: false, polls: false }
    }

    pub fn get(&self, offset: u64) -> u32 {
        self.device.read(offset, Width::Word) as u32
    }

    pub fn set(&mut self, offset: u64, value: u32) {
        self.polls |= self.device.write(offset, Width::Word, value.into(), &mut self.line);
        assert_eq!(self.line, self.get(0x60) != 0, "the line is InterruptStatus");
    }

    /// Steps 1 to 6 of section 3.1.1. Returns the accepted features.
    pub fn negotiate(&mut self, wanted: u64) -> u64 {
        assert_eq!((self.get(0), self.get(4)), (0x7472_6976, 2));
        self.set(STATUS, 0);
        self.set(STATUS, 1);
        self.set(STATUS, 3);
        let mut offered = 0;
        for half in 0..2 {
            self.set(0x14, half);
            offered |= u64::from(self.get(0x10)) << (32 * half);
        }
        let accepted = offered & wanted | VERSION_1;
        for half in 0..2 {
            self.set(0x24, half);
            self.set(0x20, (accepted >> (32 * half)) as u32);
        }
        self.set(STATUS, 11);
        assert_eq!(self.get(STATUS), 11, "FEATURES_OK stays");
        accepted
    }

    /// Steps 7 and 8, with a size for each queue.
    pub fn start(&mut self, wanted: u64, sizes: &[u16]) -> Vec<Queue> {
        let features = self.negotiate(wanted);
        let queues = sizes.iter().enumerate().map(|(number, &size)| self.add_queue(number as u32, size, features));
        let queues = queues.collect();
        self.set(STATUS, 15);
        queues
    }

    pub fn add_queue(&mut self, number: u32, size: u16, features: u64) -> Queue {
        let queue = Queue::new(number, size, features);
        queue.clear(&self.ram);
        self.set(0x30, number);
        assert_eq!(self.get(0x44), 0, "a queue is not in use after a reset");
        assert!(self.get(0x34) >= size.into());
        self.set(0x38, size.into());
        for (offset, address) in [(0x80, queue.descriptors()), (0x90, queue.driver()), (0xa0, queue.device())] {
            self.set(offset, address as u32);
            self.set(offset + 4, (address >> 32) as u32);
        }
        self.set(0x44, 1);
        queue
    }

    /// Makes a chain available, and notifies if the device asked for that.
    pub fn offer(&mut self, queue: &mut Queue, buffers: &[Buffer], indirect: bool) -> Option<u16> {
        let head = queue.add(&self.ram, buffers, indirect)?;
        if queue.publish(&self.ram, head) {
            self.set(NOTIFY, queue.number);
        }
        Some(head)
    }

    /// The chain that came back next, and how many bytes the device wrote.
    pub fn collect(&self, queue: &mut Queue) -> Option<(u16, u32)> {
        queue.collect(&self.ram)
    }

    pub fn acknowledge(&mut self) -> u32 {
        let status = self.get(0x60);
        self.set(0x64, status);
        status
    }

    pub fn state(&self) -> Vec<u8> {
        let mut room = vec![0; Virtio::<M>::STATE_MAX];
        self.device.state(&mut room).unwrap().to_vec()
    }
}

impl Queue {
    pub fn new(number: u32, size: u16, features: u64) -> Self {
        let free = (0..size).rev().collect();
        Self { number, size, features, free, chains: BTreeMap::new(), next: 0, seen: 0 }
    }

    pub fn descriptors(&self) -> u64 {
        BASE + u64::from(self.number) * 0x1_0000
    }

    pub fn driver(&self) -> u64 {
        self.descriptors() + 0x1000
    }

    pub fn device(&self) -> u64 {
        self.descriptors() + 0x2000
    }

    /// The indirect table of a head: room for 64 descriptors, where tables of other heads are if they are long.
    pub fn table(&self, head: u16) -> u64 {
        self.descriptors() + 0x4000 + u64::from(head) * 16 * 16
    }

    pub fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    pub fn clear(&self, ram: &Ram) {
        ram.poke(self.descriptors(), &[0; 0x3000]);
    }

    pub fn write_descriptor(ram: &Ram, at: u64, (address, length, _): Buffer, flags: u16, next: u16) {
        ram.poke(at, &address.to_le_bytes());
        ram.poke(at + 8, &length.to_le_bytes());
        ram.poke16(at + 12, flags);
        ram.poke16(at + 14, next);
    }

    /// Writes a chain's descriptors. `None` if there are too few.
    pub fn add(&mut self, ram: &Ram, buffers: &[Buffer], indirect: bool) -> Option<u16> {
        let indirect = indirect && self.has(INDIRECT);
        let needed = if indirect { 1 } else { buffers.len() };
        if needed == 0 || self.free.len() < needed {
            return None;
        }
        let mut taken = self.free.split_off(self.free.len() - needed);
        taken.reverse();
        let head = taken[0];
        let flags = |index: usize, buffer: Buffer| {
            (if index + 1 < buffers.len() { NEXT } else { 0 }) | if buffer.2 { WRITE } else { 0 }
        };
        if indirect {
            let table = self.table(head);
            for (index, &buffer) in buffers.iter().enumerate() {
                let at = table + 16 * index as u64;
                Self::write_descriptor(ram, at, buffer, flags(index, buffer), index as u16 + 1);
            }
            let at = self.descriptors() + 16 * u64::from(head);
            Self::write_descriptor(ram, at, (table, 16 * buffers.len() as u32, false), TABLE, 0);
        } else {
            for (index, &buffer) in buffers.iter().enumerate() {
                let at = self.descriptors() + 16 * u64::from(taken[index]);
                let next = taken.get(index + 1).copied().unwrap_or(0);
                Self::write_descriptor(ram, at, buffer, flags(index, buffer), next);
            }
        }
        self.chains.insert(head, taken);
        Some(head)
    }

    /// Makes a chain available. True if the device wants to be notified.
    pub fn publish(&mut self, ram: &Ram, head: u16) -> bool {
        ram.poke16(self.driver() + 4 + 2 * u64::from(self.next % self.size), head);
        let before = self.next;
        self.next = self.next.wrapping_add(1);
        ram.poke16(self.driver() + 2, self.next);
        if !self.has(EVENT_IDX) {
            return ram.peek16(self.device()) & 1 == 0;
        }
        let event = ram.peek16(self.device() + 4 + 8 * u64::from(self.size));
        self.next.wrapping_sub(event).wrapping_sub(1) < self.next.wrapping_sub(before)
    }

    pub fn collect(&mut self, ram: &Ram) -> Option<(u16, u32)> {
        if ram.peek16(self.device() + 2) == self.seen {
            return None;
        }
        let at = self.device() + 4 + 8 * u64::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        let (head, written) = (ram.peek32(at), ram.peek32(at + 4));
        let taken = self.chains.remove(&(head as u16)).expect("the device gives back what was made available, once");
        self.free.extend(taken.into_iter().rev());
        Some((head as u16, written))
    }

    /// Has the device given back a chain that was not collected?
    pub fn has_more(&self, ram: &Ram) -> bool {
        ram.peek16(self.device() + 2) != self.seen
    }

    /// The driver wants an interrupt for the next chain, or for none.
    pub fn want_interrupt(&self, ram: &Ram, wants: bool) {
        if self.has(EVENT_IDX) {
            let event = if wants { self.seen } else { self.seen.wrapping_sub(1) };
            ram.poke16(self.driver() + 4 + 2 * u64::from(self.size), event);
        } else {
            ram.poke16(self.driver(), u16::from(!wants));
        }
    }

    pub fn outstanding(&self) -> usize {
        self.chains.len()
    }
}
