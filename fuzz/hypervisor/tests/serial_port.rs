// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The serial port's driver against a naive console, written from virtio 1.2 and with what QEMU's does between the lines.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_fuzz_hypervisor::serial_port::shared::{Registers, SharedMemory};
use twofold_fuzz_hypervisor::serial_port::wire;
use twofold_fuzz_hypervisor::serial_port::{
    DeviceError, MEMORY_SIZE, QueueError, SEND_MAX, SIZE, SendError, SerialPort, SetUpError, TooSmall,
};

/// Beyond 32 bits, so that both words of addresses matter.
const BASE: u64 = 0x12_3456_7000;
const QUEUES: usize = 6;

#[derive(Clone, Default)]
struct Queue {
    size: u16,
    addresses: [u64; 3],
    ready: bool,
    seen: u16,
    notified: bool,
    /// Buffers that were made available and not yet used: descriptor numbers.
    held: VecDeque<u16>,
}

/// A console with port 0 for a console, and port 1.
struct Device {
    memory: Vec<u8>,
    status: u32,
    features: u64,
    accepted: [u32; 2],
    select: [u32; 3],
    queues: Vec<Queue>,
    interrupt: bool,
    magic: [u32; 3],
    ports: u32,
    queue_max: u32,
    refuses: bool,
    /// It never completes a reset.
    hangs: bool,
    /// The device looks at its queues whenever the driver does something, as on another CPU, and wants no notifications.
    eager: bool,
    /// It returns buffers in the other order.
    reverses: bool,
    messages: VecDeque<(u32, u16, u16, &'static [u8])>,
    guest_open: bool,
    /// How often the driver said that port 1 is ready.
    ready: u32,
    /// It says nothing about the port then.
    mute: bool,
    host_open: bool,
    to_guest: VecDeque<u8>,
    /// Bytes that the host has room for.
    room: usize,
    /// The queues that the driver gave notice of.
    notifications: Vec<u32>,
    /// Each buffer that was sent, and whether the host had the port open.
    sent: Vec<(Vec<u8>, bool)>,
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

    fn at(&self, address: u64, size: u64) -> usize {
        let at = address.checked_sub(BASE).expect("below the shared memory");
        assert!(at + size <= MEMORY_SIZE as u64, "{address:#x} and {size} bytes are beyond the shared memory");
        at as usize
    }

    fn number(&self, address: u64, size: usize) -> u64 {
        let at = self.at(address, size as u64);
        self.memory[at..][..size].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    fn set(&mut self, address: u64, value: u64, size: usize) {
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
    fn look(&mut self, number: usize) {
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
    fn put(&mut self, number: usize, bytes: &[u8]) -> bool {
        let Some((address, length)) = self.buffer(number) else { return false };
        assert!(bytes.len() as u64 <= length, "queue {number}: {} bytes do not fit into {length}", bytes.len());
        let at = self.at(address, length);
        self.memory[at..][..bytes.len()].copy_from_slice(bytes);
        self.give_back(number, &[bytes.len()]);
        true
    }

    /// Returns the oldest buffers, with these lengths.
    fn give_back(&mut self, number: usize, lengths: &[usize]) {
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
    fn parts(&self, number: usize) -> Vec<Range<u64>> {
        let Queue { size, addresses: [descriptors, driver, device], .. } = self.queues[number];
        let size = u64::from(size);
        let rings = [(descriptors, 16 * size), (driver, 6 + 2 * size), (device, 6 + 8 * size)];
        let buffers = (0..size).map(|id| descriptors + 16 * id).map(|at| (self.number(at, 8), self.number(at + 8, 4)));
        rings.into_iter().chain(buffers).map(|(start, size)| start..start + size).collect()
    }

    fn step(&mut self) {
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
    fn add_port(&mut self, times: u16) {
        self.look(2);
        for _ in 0..times {
            assert!(self.put(2, &[1, 0, 0, 0, 1, 0, 0, 0]));
        }
    }

    fn open(&mut self, open: bool) {
        self.host_open = open;
        if self.status & 4 != 0 {
            self.messages.push_back((1, 6, open.into(), b""));
        }
    }
}

#[derive(Clone)]
struct Shared(Rc<RefCell<Device>>);

impl Shared {
    fn new(change: impl FnOnce(&mut Device)) -> Self {
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

    fn set_up(&self) -> Result<SerialPort<Self, Self>, SetUpError> {
        SerialPort::new(self.clone(), self.clone())
    }

    /// Both sides do what there is to do.
    fn settle(&self, port: &mut SerialPort<Self, Self>) {
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

#[derive(Clone, Debug)]
enum Event {
    /// The device does its work.
    Step,
    HostOpens(bool),
    HostWrites(usize),
    HostReads(usize),
    Poll,
    Send(usize),
    Receive(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Step),
        1 => any::<bool>().prop_map(Event::HostOpens),
        2 => (0_usize..5000).prop_map(Event::HostWrites),
        2 => (0_usize..5000).prop_map(Event::HostReads),
        2 => Just(Event::Poll),
        6 => (0_usize..=SEND_MAX).prop_map(Event::Send),
        3 => (0_usize..3000).prop_map(Event::Receive),
    ]
}

/// Numbers that repeat with no short period.
fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|index| (index % 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn bytes_arrive_once_and_in_order(eager in any::<bool>(), reverses in any::<bool>(), events in vec(event(), 0..150)) {
        let device = Shared::new(|device| (device.eager, device.reverses) = (eager, reverses));
        let mut port = device.set_up().unwrap();
        let (mut sends, mut received): (Vec<Vec<u8>>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut written = 0;
        for event in events {
            match event {
                Event::Step => device.0.borrow_mut().step(),
                Event::HostOpens(open) => device.0.borrow_mut().open(open),
                Event::HostWrites(count) => {
                    device.0.borrow_mut().to_guest.extend(pattern(written, count));
                    written += count;
                }
                Event::HostReads(count) => device.0.borrow_mut().room += count,
                Event::Poll => port.poll().unwrap(),
                Event::Send(count) => {
                    let bytes = pattern(sends.len() * 7, count);
                    let open = port.is_open();
                    match port.send(&bytes) {
                        Ok(()) if count == 0 => {}
                        Ok(()) => sends.push(bytes),
                        Err(SendError::Closed) => prop_assert!(!open),
                        Err(SendError::Full) => {
                            let lent = sends.len() - device.0.borrow().sent.len();
                            prop_assert_eq!(lent, usize::from(SIZE));
                            // Room raises an interrupt, which the caller may count on.
                            device.0.borrow_mut().interrupt = false;
                            device.0.borrow_mut().room += SEND_MAX;
                            device.0.borrow_mut().step();
                            prop_assert!(device.0.borrow().interrupt);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                Event::Receive(count) => {
                    let mut bytes = vec![0; count];
                    let count = port.receive(&mut bytes).unwrap();
                    received.extend(&bytes[..count]);
                }
            }
        }
        // Both sides come to rest with the port open.
        device.0.borrow_mut().open(true);
        device.0.borrow_mut().room = usize::MAX / 2;
        let mut bytes = [0; 999];
        loop {
            device.settle(&mut port);
            match port.receive(&mut bytes).unwrap() {
                0 => break,
                count => received.extend(&bytes[..count]),
            }
        }
        prop_assert!(port.is_open());
        prop_assert_eq!(received, pattern(0, written));
        port.send(b"last").unwrap();
        sends.push(b"last".to_vec());
        device.settle(&mut port);
        let device = device.0.borrow();
        let sent: Vec<_> = device.sent.iter().map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(sent, sends);
        prop_assert!(device.sent.last().unwrap().1);
    }

    /// A device that writes anything anywhere: errors, no panic, no access beyond the memory, and an error stays.
    #[test]
    fn a_device_that_lies_is_an_error(
        events in vec(event(), 1..40),
        lies in vec((0_usize..MEMORY_SIZE, any::<u8>()), 1..60),
        rings in vec((0_usize..4, 0_usize..200, 0_u8..40), 1..60),
    ) {
        let device = Shared::new(|device| (device.host_open, device.room) = (true, 1 << 20));
        let mut port = device.set_up().unwrap();
        device.settle(&mut port);
        let mut failed = None;
        let (mut lies, mut rings) = (lies.into_iter(), rings.into_iter());
        for event in events {
            let mut buffer = [0; 1500];
            let result = match event {
                Event::Send(count) => match port.send(&buffer[..count.min(1500)]) {
                    Err(SendError::Device(error)) => Err(error),
                    _ => Ok(()),
                },
                Event::Receive(count) => port.receive(&mut buffer[..count.min(1500)]).map(|_| ()),
                _ => port.poll(),
            };
            prop_assert!(failed.is_none() || result.err() == failed, "{:?} after {:?}", result, failed);
            failed = result.err();
            prop_assert!(failed.is_none() || !port.is_open());
            let mut device = device.0.borrow_mut();
            if let Some((at, byte)) = lies.next() {
                device.memory[at] = byte;
            }
            if let Some((queue, at, byte)) = rings.next() {
                let used = device.at(device.queues[2 + queue].addresses[2], 0);
                device.memory[used + at] = byte;
            }
        }
    }
}

#[test]
fn the_port_opens_as_qemu_opens_it() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    assert_eq!(port.send(b"x"), Err(SendError::Closed));
    device.settle(&mut port);
    assert!(device.0.borrow().guest_open && !port.is_open(), "the host has not connected");
    // QEMU ignores a notification of the input queue that comes before the port is open.
    assert_eq!(device.0.borrow().notifications.iter().rfind(|&&queue| queue >= 3), Some(&4));
    device.0.borrow_mut().open(true);
    device.settle(&mut port);
    assert!(port.is_open());
    assert_eq!(port.send(&[0; SEND_MAX + 1]), Err(SendError::TooLong(SEND_MAX + 1)));
    assert_eq!(port.send(b""), Ok(()), "nothing to send");
    port.send(b"one").unwrap();
    device.0.borrow_mut().open(false);
    device.settle(&mut port);
    assert!(!port.is_open());
    assert_eq!(device.0.borrow().sent, [(b"one".to_vec(), false)], "the host had gone");
    // The port goes for good, as by a monitor's device_del.
    device.0.borrow_mut().open(true);
    device.settle(&mut port);
    device.0.borrow_mut().messages.push_back((1, 2, 0, b""));
    device.settle(&mut port);
    assert!(!port.is_open());
}

#[test]
fn messages_for_other_ports_are_ignored() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    for event in 0..9 {
        device.0.borrow_mut().messages.extend([(0, event, 1, &b""[..]), (2, event, 1, b""), (u32::MAX, event, 1, b"")]);
    }
    device.settle(&mut port);
    assert!(!port.is_open());
}

/// More events than there are buffers, each answered by two messages, from a device that takes these late. A driver
/// that looks only when it is interrupted answers all of them.
#[test]
fn a_storm_of_messages_is_answered_in_full() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    device.0.borrow_mut().mute = true;
    for _ in 0..100 {
        device.0.borrow_mut().messages.push_back((1, 1, 0, b""));
    }
    for _ in 0..100 {
        device.0.borrow_mut().step();
        while device.0.borrow().interrupt {
            port.poll().unwrap();
        }
    }
    assert_eq!(device.0.borrow().ready, 1 + 100);
}

/// Each event is answered by two messages. The device returns the buffers of messages only once it has all of them.
#[test]
fn as_many_events_are_answered_as_there_is_room_for() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    device.0.borrow_mut().mute = true;
    for round in 0..3 {
        device.0.borrow_mut().add_port(SIZE / 2);
        port.poll().unwrap();
        let mut model = device.0.borrow_mut();
        model.look(3);
        assert_eq!(model.queues[3].held.len(), usize::from(SIZE), "round {round}");
        model.give_back(3, &[0; SIZE as usize]);
    }
}

/// All buffers are in use at once: a whole one for each send, and one for each message.
#[test]
fn no_two_queues_share_memory() {
    let device = Shared::new(|device| device.host_open = true);
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    for _ in 0..SIZE {
        assert_eq!(port.send(&[0; SEND_MAX]), Ok(()));
    }
    device.0.borrow_mut().add_port(SIZE / 2);
    port.poll().unwrap();
    let mut parts: Vec<_> = (2..QUEUES).flat_map(|number| device.0.borrow().parts(number)).collect();
    assert!(parts.iter().all(|part| !part.is_empty() && part.start >= BASE && part.end <= BASE + MEMORY_SIZE as u64));
    parts.sort_by_key(|part| part.start);
    for pair in parts.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:x?}");
    }
}

#[test]
fn the_queues_of_a_port_have_virtios_numbers() {
    // Virtio 1.2, 5.3.2: queues 2 and 3 are for control.
    assert_eq!([0, 1, 2, 30].map(wire::input_queue), [0, 4, 6, 62]);
}

/// A notification is an exit to the host.
#[test]
fn a_receive_gives_notice_only_of_buffers() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    let mut receive = |count: usize, expected: Result<usize, DeviceError>, notices: usize| {
        device.0.borrow_mut().notifications.clear();
        assert_eq!(port.receive(&mut vec![0; count]), expected);
        assert_eq!(device.0.borrow().notifications, vec![4; notices], "after {count} bytes");
    };
    receive(10, Ok(0), 0);
    assert!(device.0.borrow_mut().put(4, &[0; 10]));
    receive(4, Ok(4), 0);
    receive(10, Ok(6), 1);
}

#[test]
fn a_receive_takes_the_bytes_of_all_buffers() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    (0..SIZE as u8).for_each(|byte| assert!(device.0.borrow_mut().put(4, &[byte])));
    let mut bytes = [0xff; 20];
    assert_eq!(port.receive(&mut bytes), Ok(SIZE.into()));
    assert!(bytes[..SIZE.into()].iter().copied().eq(0..SIZE as u8));
}

/// A caller that has what it wants does not lose it to a lie about what comes next.
#[test]
fn a_receive_looks_at_no_buffer_that_it_does_not_need() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    let mut model = device.0.borrow_mut();
    assert!(model.put(4, b"good"));
    model.give_back(4, &[1025]);
    drop(model);
    assert_eq!(port.receive(&mut [0; 4]), Ok(4));
    let lie = QueueError::Length { queue: 4, length: 1025, buffer: 1024 };
    assert_eq!(port.receive(&mut [0; 4]), Err(DeviceError::Queue(lie)));
}

/// A byte sent costs no interrupt while there is room.
#[test]
fn what_was_sent_comes_back_without_an_interrupt() {
    let device = Shared::new(|device| (device.host_open, device.room) = (true, usize::MAX));
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    for _ in 0..100 {
        port.send(b"x").unwrap();
        device.0.borrow_mut().step();
        assert!(!device.0.borrow().interrupt);
    }
    // No send waits for room after the last of these.
    for _ in 0..SIZE {
        port.send(b"x").unwrap();
    }
    device.0.borrow_mut().step();
    assert!(!device.0.borrow().interrupt);
    device.0.borrow_mut().room = 0;
    assert_eq!(port.unsent(), Ok(0));
    while port.send(b"x").is_ok() {}
    device.0.borrow_mut().step();
    assert_eq!(port.unsent(), Ok(SIZE.into()), "the host takes nothing");
    device.0.borrow_mut().room = 3;
    device.0.borrow_mut().step();
    assert_eq!(port.unsent(), Ok(u32::from(SIZE) - 3), "the host has taken three");
    while port.send(b"x").is_ok() {}
    device.0.borrow_mut().room = usize::MAX;
    device.0.borrow_mut().step();
    assert!(device.0.borrow().interrupt, "there is room again");
    assert_eq!(port.unsent(), Ok(0));
    for sent in 0..40 {
        port.poll().unwrap();
        port.send(b"x").unwrap();
        device.0.borrow_mut().step();
        assert!(!device.0.borrow().interrupt, "{sent}");
    }
}

#[test]
fn what_cannot_be_driven_is_refused_by_name_and_left_reset() {
    type Change = fn(&mut Device);
    let cases: [(SetUpError, Change); 9] = [
        (SetUpError::Magic(1), |device| device.magic[0] = 1),
        (SetUpError::Version(1), |device| device.magic[1] = 1),
        (SetUpError::Device(2), |device| device.magic[2] = 2),
        (SetUpError::Features(2), |device| device.features &= !2),
        (SetUpError::Features(1 << 32), |device| device.features = 2),
        (SetUpError::Refused, |device| device.refuses = true),
        (SetUpError::Ports(1), |device| device.ports = 1),
        (SetUpError::Queue(TooSmall { queue: 2, most: 8 }), |device| device.queue_max = 8),
        (SetUpError::Memory(MEMORY_SIZE - 1), |device| _ = device.memory.pop()),
    ];
    for (error, change) in cases {
        let device = Shared::new(change);
        assert_eq!(device.set_up().err(), Some(error));
        assert_eq!(device.0.borrow().status, 0);
    }
}

#[test]
fn a_device_that_does_not_complete_its_reset_is_refused() {
    let device = Shared::new(|device| device.hangs = true);
    assert_eq!(device.set_up().err(), Some(SetUpError::Reset));
}

#[test]
fn a_queue_of_just_the_size_is_enough() {
    let device = Shared::new(|device| device.queue_max = SIZE.into());
    assert!(device.set_up().is_ok());
}

#[test]
fn a_dropped_driver_leaves_a_reset_device() {
    let device = Shared::new(|_| ());
    let port = device.set_up().unwrap();
    assert!(device.0.borrow().status != 0);
    drop(port);
    assert_eq!(device.0.borrow().status, 0);
}

#[test]
fn lies_have_names() {
    let lie = |queue: usize, at: u64, value: u64, size: usize| {
        let device = Shared::new(|device| device.host_open = true);
        let mut port = device.set_up().unwrap();
        device.settle(&mut port);
        let used = device.0.borrow().queues[queue].addresses[2];
        let index = device.0.borrow().number(used + 2, 2);
        let entry = used + 4 + 8 * (index % u64::from(SIZE));
        let mut model = device.0.borrow_mut();
        // One more buffer comes back, by a good number and with a length that fits.
        let id = model.queues[queue].held.front().copied().unwrap_or(0);
        model.set(entry, id.into(), 4);
        model.set(entry + 4, 8, 4);
        model.set(used + 2, index + 1, 2);
        model.set(if at == 2 { used + 2 } else { entry + at - 4 }, value, size);
        drop(model);
        let error = port.receive(&mut [0; 10]).err().or(port.poll().err());
        assert!(port.poll().err() == error && !port.is_open());
        error.unwrap()
    };
    let queue = DeviceError::Queue;
    assert_eq!(lie(4, 2, 500, 2), queue(QueueError::Index { queue: 4, returned: 500, lent: 16 }));
    assert_eq!(lie(4, 4, 16, 4), queue(QueueError::Buffer { queue: 4, id: 16 }));
    assert_eq!(lie(4, 8, 1025, 4), queue(QueueError::Length { queue: 4, length: 1025, buffer: 1024 }));
    assert_eq!(lie(2, 8, 7, 4), DeviceError::Message(7));
    assert_eq!(lie(5, 4, 3, 4), queue(QueueError::Index { queue: 5, returned: 1, lent: 0 }));
}

#[test]
fn a_buffer_that_is_not_lent_cannot_come_back() {
    let device = Shared::new(|device| device.host_open = true);
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    port.send(b"x").unwrap();
    let mut model = device.0.borrow_mut();
    model.look(5);
    let id = model.queues[5].held[0] + 1;
    model.queues[5].held[0] = id;
    model.give_back(5, &[0]);
    drop(model);
    assert_eq!(port.poll(), Err(DeviceError::Queue(QueueError::Buffer { queue: 5, id: id.into() })));
}

#[test]
fn a_device_that_gives_up_is_an_error() {
    let device = Shared::new(|device| device.host_open = true);
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    device.0.borrow_mut().status |= 64;
    assert_eq!(port.poll(), Err(DeviceError::NeedsReset));
    assert_eq!(port.send(b"x"), Err(SendError::Device(DeviceError::NeedsReset)));
}
