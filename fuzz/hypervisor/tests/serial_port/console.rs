// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A naive console, written from virtio 1.2 and with what QEMU's does between the lines.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use twofold_fuzz_hypervisor::serial_port::shared::{Registers, SharedMemory};
use twofold_fuzz_hypervisor::serial_port::{MEMORY_SIZE, SerialPort, SetUpError};

/// Beyond 32 bits, so that both words of addresses matter.
pub const BASE: u64 = 0x12_3456_7000;
pub const QUEUES: usize = 6;

#[derive(Clone, Default)]
pub struct Queue {
    size: u16,
    pub addresses: [u64; 3],
    ready: bool,
    seen: u16,
    notified: bool,
    /// Buffers that were made available and not yet used: descriptor numbers.
    pub held: VecDeque<u16>,
}

/// A console with port 0 for a console, and port 1.
pub struct Device {
    pub memory: Vec<u8>,
    pub status: u32,
    pub features: u64,
    accepted: [u32; 2],
    select: [u32; 3],
    pub queues: Vec<Queue>,
    pub interrupt: bool,
    pub magic: [u32; 3],
    pub ports: u32,
    pub queue_max: u32,
    pub refuses: bool,
    /// It never completes a reset.
    pub hangs: bool,
    /// The device looks at its queues whenever the driver does something, as on another CPU, and wants no notifications.
    pub eager: bool,
    /// It returns buffers in the other order.
    pub reverses: bool,
    pub messages: VecDeque<(u32, u16, u16, &'static [u8])>,
    pub guest_open: bool,
    /// How often the driver said that port 1 is ready.
    pub ready: u32,
    /// It says nothing about the port then.
    pub mute: bool,
    pub host_open: bool,
    pub to_guest: VecDeque<u8>,
    /// Bytes that the host has room for.
    pub room: usize,
    /// The queues that the driver gave notice of.
    pub notifications: Vec<u32>,
    /// Each buffer that was sent, and whether the host had the port open.
    pub sent: Vec<(Vec<u8>, bool)>,
}

impl Device {
    fn new() -> Self {
        Self {
            memory: vec![0xaa; MEMORY_SIZE],
            status: 0,
            features: 1 << 32 | 1 << 29 | 1 << 28 | 0b111,
            accepted: [0; 2],
            select: [0; 3],
            queues: vec![Queue::default(); QUEUES],
            interrupt: false,
            magic: [0x7472_6976, 2, 3],
            ports: 31,
            queue_max: 128,
            refuses: false,
            hangs: false,
            eager: false,
            reverses: false,
            messages: VecDeque::new(),
            guest_open: false,
            ready: 0,
            mute: false,
            host_open: false,
            to_guest: VecDeque::new(),
            room: 0,
            notifications: Vec::new(),
            sent: Vec::new(),
        }
    }

    pub fn at(&self, address: u64, size: u64) -> usize {
        let at = address.checked_sub(BASE).expect("below the shared memory");
        assert!(at + size <= MEMORY_SIZE as u64, "{address:#x} and {size} bytes are beyond the shared memory");
        at as usize
    }

    pub fn number(&self, address: u64, size: usize) -> u64 {
        let at = self.at(address, size as u64);
        self.memory[at..][..size].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    pub fn set(&mut self, address: u64, value: u64, size: usize) {
        let at = self.at(address, size as u64);
        self.memory[at..][..size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    fn status(&mut self, value: u32) {
        if value == 0 {
            self.status = self.hangs.into();
            self.queues = vec![Queue::default(); QUEUES];
            (self.guest_open, self.interrupt) = (false, false);
            self.messages.clear();
            return;
        }
        assert_eq!(self.status & !value, 0, "a driver clears no bit");
        assert_eq!((value & !self.status).count_ones(), 1, "a driver sets one bit after the other: {value:#x}");
        if value & 8 != 0 && self.status & 8 == 0 {
            assert_eq!(value & 4, 0, "features first");
            if self.refuses {
                return self.status = value & !8;
            }
            assert_eq!(self.accepted, [0b10, 1], "MULTIPORT and VERSION_1 alone");
        }
        self.status = value;
    }

    fn read(&self, offset: usize) -> u32 {
        match offset {
            0 | 4 | 8 => self.magic[offset / 4],
            0x10 => (self.features >> (32 * self.select[0])) as u32,
            0x34 => {
                if (self.select[2] as usize) < QUEUES {
                    self.queue_max
                } else {
                    0
                }
            }
            0x44 => self.queues[self.select[2] as usize].ready.into(),
            0x60 => self.interrupt.into(),
            0x70 => self.status,
            0x104 => self.ports,
            _ => panic!("a read of {offset:#x}"),
        }
    }

    fn write(&mut self, offset: usize, value: u32) {
        match offset {
            0x14 => self.select[0] = value,
            0x20 => self.accepted[self.select[1] as usize] = value,
            0x24 => self.select[1] = value,
            0x30 => self.select[2] = value,
            0x38 => self.queue().size = value as u16,
            0x44 => {
                assert_eq!((value, self.status & 0xc), (1, 8), "queues between FEATURES_OK and DRIVER_OK");
                self.queue().ready = true;
            }
            0x50 => {
                assert!(self.status & 4 != 0, "a notification before DRIVER_OK");
                assert!(!self.eager, "a notification that the device does not want");
                self.queues[value as usize].notified = true;
                self.notifications.push(value);
            }
            0x64 => {
                assert_eq!((value, self.interrupt), (1, true), "an interrupt that the device did not raise");
                self.interrupt = false;
            }
            0x70 => self.status(value),
            0x80..0xb0 => {
                let index = (offset - 0x80) / 0x10;
                let high = offset % 0x10 == 4;
                let part = &mut self.queue().addresses[index];
                *part = if high { *part & 0xffff_ffff | u64::from(value) << 32 } else { u64::from(value) };
            }
            _ => panic!("a write of {offset:#x}"),
        }
    }

    fn queue(&mut self) -> &mut Queue {
        assert!(!self.queues[self.select[2] as usize].ready, "the queue is in use");
        &mut self.queues[self.select[2] as usize]
    }

    /// Reads what the driver has made available in a queue.
    pub fn look(&mut self, number: usize) {
        let Queue { size, addresses: [descriptors, driver, device], ready, seen, notified, .. } = self.queues[number];
        if !ready || self.status & 4 == 0 || !(notified || self.eager) {
            return;
        }
        assert_eq!((descriptors % 16, driver % 2, device % 4, size.is_power_of_two()), (0, 0, 0, true));
        // A driver ignores the other bits.
        self.set(device, if self.eager { 1 } else { !1 }, 2);
        let index = self.number(driver + 2, 2) as u16;
        assert!(index.wrapping_sub(seen) <= size, "more buffers than descriptors");
        for entry in 0..index.wrapping_sub(seen) {
            let entry = seen.wrapping_add(entry);
            let id = self.number(driver + 4 + 2 * u64::from(entry % size), 2) as u16;
            assert!(id < size && !self.queues[number].held.contains(&id), "descriptor {id} is in use");
            let flags = self.number(descriptors + 16 * u64::from(id) + 12, 2);
            assert_eq!(flags, if number.is_multiple_of(2) { 2 } else { 0 }, "queue {number}: direction");
            self.queues[number].held.push_back(id);
        }
        self.queues[number].seen = index;
        self.queues[number].notified = false;
    }

    /// The address and the length of the oldest buffer that the device holds.
    fn buffer(&self, number: usize) -> Option<(u64, u64)> {
        let queue = &self.queues[number];
        let descriptor = queue.addresses[0] + 16 * u64::from(*queue.held.front()?);
        Some((self.number(descriptor, 8), self.number(descriptor + 8, 4)))
    }

    /// Takes the bytes of the oldest buffer.
    fn take(&mut self, number: usize) -> Option<Vec<u8>> {
        let (address, length) = self.buffer(number)?;
        let at = self.at(address, length);
        Some(self.memory[at..][..length as usize].to_vec())
    }

    /// Writes the oldest buffer.
    pub fn put(&mut self, number: usize, bytes: &[u8]) -> bool {
        let Some((address, length)) = self.buffer(number) else { return false };
        assert!(bytes.len() as u64 <= length, "queue {number}: {} bytes do not fit into {length}", bytes.len());
        let at = self.at(address, length);
        self.memory[at..][..bytes.len()].copy_from_slice(bytes);
        self.give_back(number, &[bytes.len()]);
        true
    }

    /// Returns the oldest buffers, with these lengths.
    pub fn give_back(&mut self, number: usize, lengths: &[usize]) {
        let mut used: Vec<_> = lengths.iter().map(|&length| (self.queues[number].held.pop_front(), length)).collect();
        if self.reverses {
            used.reverse();
        }
        let Queue { size, addresses: [_, driver, device], .. } = self.queues[number];
        let mut index = self.number(device + 2, 2);
        for (id, length) in used {
            let entry = device + 4 + 8 * (index % u64::from(size));
            self.set(entry, id.unwrap().into(), 4);
            self.set(entry + 4, length as u64, 4);
            index += 1;
        }
        self.set(device + 2, index & 0xffff, 2);
        let flags = self.number(driver, 2);
        assert!(flags <= 1, "queue {number}: flags {flags:#x} of the available ring");
        self.interrupt |= flags == 0;
    }

    /// The parts of the shared memory that a queue has now: its rings, and the buffers that the driver has filled or
    /// lent.
    pub fn parts(&self, number: usize) -> Vec<Range<u64>> {
        let Queue { size, addresses: [descriptors, driver, device], .. } = self.queues[number];
        let size = u64::from(size);
        let rings = [(descriptors, 16 * size), (driver, 6 + 2 * size), (device, 6 + 8 * size)];
        let buffers = (0..size).map(|id| descriptors + 16 * id).map(|at| (self.number(at, 8), self.number(at + 8, 4)));
        rings.into_iter().chain(buffers).map(|(start, size)| start..start + size).collect()
    }

    pub fn step(&mut self) {
        for number in 2..QUEUES {
            self.look(number);
        }
        while let Some(message) = self.take(3) {
            self.give_back(3, &[0]);
            let number = |at: usize, size: usize| {
                message[at..][..size].iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte))
            };
            match (number(0, 4), number(4, 2), number(6, 2)) {
                (_, 0, 1) => self.messages.extend([(0, 1, 0, &b""[..]), (1, 1, 0, b"")]),
                (1, 3, 1) => {
                    self.ready += 1;
                    if self.mute {
                        continue;
                    }
                    self.messages.push_back((1, 7, 1, b"twofold.control\0"));
                    self.messages.push_back((1, 6, self.host_open.into(), b""));
                }
                (1, 6, value) => self.guest_open = value == 1,
                other => panic!("message {other:?}"),
            }
        }
        while let Some(&(port, event, value, name)) = self.messages.front() {
            let message = [&port.to_le_bytes()[..], &event.to_le_bytes(), &value.to_le_bytes(), name].concat();
            if !self.put(2, &message) {
                break;
            }
            self.messages.pop_front();
        }
        while self.guest_open && !self.to_guest.is_empty() {
            let Some((_, length)) = self.buffer(4) else { break };
            let bytes: Vec<_> = self.to_guest.iter().copied().take(length as usize).collect();
            assert!(self.put(4, &bytes));
            self.to_guest.drain(..bytes.len());
        }
        let mut lengths = Vec::new();
        let held = self.queues[5].held.clone();
        for _ in held {
            let bytes = self.take(5).unwrap();
            if self.host_open && bytes.len() > self.room {
                break;
            }
            self.room -= if self.host_open { bytes.len() } else { 0 };
            self.sent.push((bytes, self.host_open));
            lengths.push(0);
            let id = self.queues[5].held.pop_front().unwrap();
            self.queues[5].held.push_back(id);
        }
        // The buffers that were taken are now behind those that were not.
        self.queues[5].held.rotate_right(lengths.len());
        if !lengths.is_empty() {
            self.give_back(5, &lengths);
        }
    }

    /// Says this often, at once, that there is port 1.
    pub fn add_port(&mut self, times: u16) {
        self.look(2);
        for _ in 0..times {
            assert!(self.put(2, &[1, 0, 0, 0, 1, 0, 0, 0]));
        }
    }

    pub fn open(&mut self, open: bool) {
        self.host_open = open;
        if self.status & 4 != 0 {
            self.messages.push_back((1, 6, open.into(), b""));
        }
    }
}

#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Device>>);

impl Shared {
    pub fn new(change: impl FnOnce(&mut Device)) -> Self {
        let mut device = Device::new();
        change(&mut device);
        Self(Rc::new(RefCell::new(device)))
    }

    /// The driver has done something, and the device may see it.
    fn seen(&self) {
        let mut device = self.0.borrow_mut();
        if device.eager {
            device.step();
        }
    }

    pub fn set_up(&self) -> Result<SerialPort<Self, Self>, SetUpError> {
        SerialPort::new(self.clone(), self.clone())
    }

    /// Both sides do what there is to do.
    pub fn settle(&self, port: &mut SerialPort<Self, Self>) {
        for _ in 0..8 {
            self.0.borrow_mut().step();
            port.poll().unwrap();
        }
    }
}

impl Registers for Shared {
    fn read(&self, offset: usize) -> u32 {
        self.0.borrow().read(offset)
    }

    fn write(&mut self, offset: usize, value: u32) {
        self.0.borrow_mut().write(offset, value);
        self.seen();
    }
}

impl SharedMemory for Shared {
    fn address(&self) -> u64 {
        BASE
    }

    fn size(&self) -> usize {
        self.0.borrow().memory.len()
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.borrow().memory[at..][..bytes.len()]);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut().memory[at..][..bytes.len()].copy_from_slice(bytes);
        self.seen();
    }

    fn load(&self, at: usize) -> u16 {
        assert_eq!(at % 2, 0);
        u16::from_le_bytes(self.0.borrow().memory[at..][..2].try_into().unwrap())
    }

    fn store(&mut self, at: usize, value: u16) {
        assert_eq!(at % 2, 0);
        self.0.borrow_mut().memory[at..][..2].copy_from_slice(&value.to_le_bytes());
        self.seen();
    }

    fn fence(&self) {
        self.seen();
    }
}
