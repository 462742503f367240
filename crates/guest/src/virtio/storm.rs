// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `storm=ROUNDS`: a driver that breaks every rule. In each round it resets a device, makes queues of random sizes at random
//! places, fills them with descriptors of which many are wrong, and writes random registers while the device works.
//!
//! A device may write wherever a descriptor says, so descriptors name only pages that the program gives to that, and
//! addresses outside of its RAM. So what else changes in RAM is a defect, and would end the program: its own code and
//! tables are there. At the end each device is used as it should be, and must work.

use core::ops::Range;

use twofold_abi::virt::{VIRTIO_BASE, VIRTIO_COUNT, VIRTIO_SIZE};

use super::{Failure, dma};
use crate::devices::{load, store};
use crate::memory::{self, Memory, PAGE};
use crate::random::Random;
use crate::uart::println;

/// Pages for queues and buffers.
const PAGES: u64 = 32;

/// Registers (VIRTIO 1.2, 4.2.2).
mod register {
    pub const DEVICE: u64 = 0x08;
    pub const DRIVER_FEATURES: u64 = 0x20;
    pub const DRIVER_FEATURES_SELECT: u64 = 0x24;
    pub const QUEUE: u64 = 0x30;
    pub const QUEUE_SIZE: u64 = 0x38;
    pub const QUEUE_READY: u64 = 0x44;
    pub const NOTIFY: u64 = 0x50;
    pub const INTERRUPT_STATUS: u64 = 0x60;
    pub const INTERRUPT_ACK: u64 = 0x64;
    pub const STATUS: u64 = 0x70;
    pub const DESCRIPTORS: u64 = 0x80;
    pub const DRIVER: u64 = 0x90;
    pub const DEVICE_RING: u64 = 0xa0;
}

pub fn run(ram: &Memory, rounds: u64, seed: u64) -> Result<(), Failure> {
    dma::begin(ram)?;
    let pages = dma::pages(PAGES as usize).ok_or(Failure::NoMemory)?;
    let start = pages.as_ptr().addr() as u64;
    let arena = start..start + PAGES * PAGE;
    let outside = ram.banks().iter().map(|bank| bank.end).max().unwrap_or(u64::MAX);
    let mut random = Random::new(seed);
    let (mut live, mut used, mut broken) = (0, 0, 0);
    for round in 0..rounds {
        for place in 0..VIRTIO_COUNT as u64 {
            let base = VIRTIO_BASE + place * VIRTIO_SIZE;
            if load(base + register::DEVICE) == 0 {
                continue;
            }
            let mut storm = Storm { base, arena: arena.clone(), outside, random: &mut random };
            storm.begin();
            (0..2).for_each(|queue| storm.set(register::NOTIFY, queue));
            used += u64::from(load(base + register::INTERRUPT_STATUS) & 1);
            for _ in 0..16 {
                storm.step();
            }
            live += u64::from(load(base + register::STATUS) & LIVE == LIVE);
            broken += u64::from(load(base + register::STATUS) & NEEDS_RESET != 0);
            store(base + register::STATUS, 0);
        }
        if round % 1024 == 0 {
            println!("storm: round {round}");
        }
    }
    println!("storm: {live} devices were live");
    println!("storm: {used} devices used buffers");
    println!("storm: {broken} devices needed a reset");
    Ok(())
}

const ACKNOWLEDGE: u32 = 1;
const DRIVER: u32 = 2;
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;
const NEEDS_RESET: u32 = 64;
const LIVE: u32 = ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK;

struct Storm<'a> {
    base: u64,
    arena: Range<u64>,
    /// An address behind all RAM.
    outside: u64,
    random: &'a mut Random,
}

impl Storm<'_> {
    /// Resets the device and makes it live, with queues that are mostly possible.
    fn begin(&mut self) {
        self.set(register::STATUS, 0);
        self.set(register::STATUS, ACKNOWLEDGE | DRIVER);
        for half in 0..2 {
            self.set(register::DRIVER_FEATURES_SELECT, half);
            // Those of queues, and VERSION_1; sometimes any.
            let usual = if half == 1 { 1 } else { self.random.next() as u32 & (3 << 28 | 1 << 9 | 3 << 13) };
            let features = if self.chance(16) { self.random.next() as u32 } else { usual };
            self.set(register::DRIVER_FEATURES, features);
        }
        self.set(register::STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
        for queue in 0..2 {
            self.set(register::QUEUE, queue);
            let size = 1 << (self.random.next() % 7);
            let size = if self.chance(16) { self.random.next() as u32 } else { size };
            self.set(register::QUEUE_SIZE, size);
            for (register, align) in [(register::DESCRIPTORS, 16), (register::DRIVER, 2), (register::DEVICE_RING, 4)] {
                let place = self.place() / align * align;
                let place = if self.chance(32) { self.wild() } else { place };
                self.set(register, place as u32);
                self.set(register + 4, (place >> 32) as u32);
                if register == register::DESCRIPTORS {
                    self.descriptors(place);
                }
                if register == register::DRIVER {
                    self.available(place);
                }
            }
            self.set(register::QUEUE_READY, 1);
        }
        self.set(register::STATUS, LIVE);
    }

    /// One write while the device is live.
    fn step(&mut self) {
        match self.random.next() % 8 {
            0..=3 => {
                let queue = self.random.next() % 3;
                self.set(register::NOTIFY, queue as u32);
            }
            4 => {
                let word = self.place() & !7;
                let value = self.random.next();
                self.poke(word, value);
            }
            5 => {
                let place = self.place();
                self.descriptors(place & !15);
            }
            6 => self.set(register::INTERRUPT_ACK, 3),
            _ => {
                // Not those by which the device would get other addresses.
                let register = (self.random.next() % 0x200) & !3;
                if !(0x80..0xb0).contains(&register) {
                    let value = self.random.next() as u32;
                    self.set(register, value & if register == register::STATUS { 0x8f } else { u32::MAX });
                }
            }
        }
    }

    /// Descriptors from here on: of buffers in the arena, outside of RAM, and with any length and flags. Half of the time most
    /// of them are chains as a driver makes them.
    fn descriptors(&mut self, at: u64) {
        let are_good = self.chance(2);
        for number in 0..64 {
            if are_good && !self.chance(32) {
                self.good_descriptor(at, number);
                continue;
            }
            let address = if self.chance(8) { self.wild() } else { self.place() };
            let room = self.arena.end.saturating_sub(address).max(1);
            let length = match self.random.next() % 8 {
                0 => self.random.next() % 4,
                1 => 16,
                2 => 1526,
                _ => self.random.next() % 4096,
            };
            // A buffer in the arena ends there.
            let length = if self.arena.contains(&address) { length.min(room) } else { self.random.next() };
            let flags = (self.random.next() % 8) & if self.chance(4) { 7 } else { 3 };
            let next = self.random.next() % 80;
            self.poke(at + 16 * number, address);
            self.poke(at + 16 * number + 8, length & 0xffff_ffff | flags << 32 | next << 48);
        }
    }

    /// One of a chain of three: to read, to write, and a byte to write.
    fn good_descriptor(&mut self, at: u64, number: u64) {
        const NEXT: u64 = 1;
        const WRITE: u64 = 2;
        let (length, flags) = [(16, NEXT), (512, NEXT | WRITE), (1, WRITE)][number as usize % 3];
        let address = self.place();
        self.poke(at + 16 * number, address);
        self.poke(at + 16 * number + 8, length | flags << 32 | (number + 1) << 48);
    }

    /// An available ring from here on: its index is a little ahead, mostly, and half of the time its entries are the heads of
    /// such chains.
    fn available(&mut self, at: u64) {
        let ahead = if self.chance(16) { self.random.next() } else { self.random.next() % 8 };
        let are_good = self.chance(2);
        for number in 0..20 {
            let entries = self.random.next() & 0x003f_003f_003f_003f;
            let entries = if are_good { 0x0003_0000_0003_0000 } else { entries };
            self.poke(
                (at & !7) + 8 * number,
                if number == 0 { entries & !0xffff_ffff | (ahead & 0xffff) << 16 } else { entries },
            );
        }
    }

    /// Somewhere in the arena, so far from its end that rings and tables fit.
    fn place(&mut self) -> u64 {
        self.arena.start + self.random.next() % (self.arena.end - self.arena.start - 2 * PAGE)
    }

    /// An address that is not RAM.
    fn wild(&mut self) -> u64 {
        match self.random.next() % 4 {
            0 => self.random.next() % VIRTIO_BASE,
            1 => u64::MAX - self.random.next() % 64,
            2 => self.outside + self.random.next() % (1 << 30),
            _ => self.outside.wrapping_add(self.random.next() >> 4),
        }
    }

    /// One time in this many.
    fn chance(&mut self, of: u64) -> bool {
        self.random.next().is_multiple_of(of)
    }

    fn set(&mut self, register: u64, value: u32) {
        store(self.base + register, value);
    }

    /// Writes a word of the arena; nothing elsewhere.
    fn poke(&mut self, at: u64, value: u64) {
        if self.arena.contains(&at) && at.is_multiple_of(8) {
            // SAFETY: a word of the program's pages, to which no reference is in use.
            unsafe { memory::write(at, value) };
        }
    }
}
