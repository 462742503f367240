// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The UART as the manual describes it, with nothing clever.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The UART: registers by offset, interrupts by bit number.
#[derive(Default)]
pub struct Naive {
    registers: BTreeMap<u64, u64>,
    raised: BTreeSet<u32>,
    received: Vec<u64>,
    pub waiting: Vec<u8>,
    lost_one: bool,
    pub sink: Sink,
}

impl Naive {
    pub fn new(room: usize) -> Self {
        let registers = [(CR, 0x300), (IFLS, 0x12)].into();
        Self { registers, sink: Sink { room, taken: Vec::new() }, ..Self::default() }
    }

    fn get(&self, offset: u64) -> u64 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    pub fn bit(&self, offset: u64, bit: u32) -> bool {
        self.get(offset) >> bit & 1 == 1
    }

    fn eighths(select: u64) -> usize {
        [1, 2, 4, 6, 7, 7, 7, 7][select as usize] * 32 / 8
    }

    fn places(&self) -> usize {
        if self.bit(LCR_H, 4) { 32 } else { 1 }
    }

    fn ris(&self) -> u64 {
        self.raised.iter().map(|bit| 1 << bit).sum()
    }

    pub fn line(&self) -> bool {
        self.ris() & self.get(IMSC) != 0
    }

    fn inputs(&self) -> [bool; 4] {
        if self.bit(CR, 7) {
            [self.bit(CR, 13), self.bit(CR, 11), self.bit(CR, 12), self.bit(CR, 10)]
        } else {
            [false, true, true, true]
        }
    }

    pub fn arrive(&mut self, character: u64) {
        if !self.bit(CR, 0) || !self.bit(CR, 9) {
            return;
        }
        if self.received.len() >= self.places() {
            self.lost_one = true;
            self.raised.insert(10);
            self.registers.insert(RSR, self.get(RSR) | 8);
            return;
        }
        self.received.push(character | if self.lost_one { 1 << 11 } else { 0 });
        self.lost_one = false;
        for error in 8..=10 {
            if character >> error & 1 == 1 {
                self.raised.insert(error - 1);
            }
        }
        let level = if self.bit(LCR_H, 4) { Self::eighths(self.get(IFLS) >> 3) } else { 1 };
        if self.received.len() >= level {
            self.raised.insert(4);
        }
    }

    pub fn pause(&mut self) {
        if !self.received.is_empty() {
            self.raised.insert(6);
        }
    }

    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        for &byte in bytes {
            let off = !self.bit(CR, 0) || !self.bit(CR, 9) || self.bit(CR, 7);
            if off || self.received.len() >= self.places() {
                break;
            }
            self.arrive(u64::from(byte));
            taken += 1;
        }
        self.pause();
        taken
    }

    fn transmit_level(&self) -> usize {
        if self.bit(LCR_H, 4) { Self::eighths(self.get(IFLS) & 7) } else { 0 }
    }

    pub fn transmit(&mut self) {
        let mut looped = false;
        while !self.waiting.is_empty() {
            if self.bit(CR, 7) {
                self.arrive(u64::from(self.waiting[0]));
                looped = true;
            } else if self.sink.put(self.waiting[0]).is_err() {
                break;
            }
            self.waiting.remove(0);
            if self.waiting.len() <= self.transmit_level() {
                self.raised.insert(5);
            }
        }
        if looped {
            self.pause();
        }
    }

    fn read_register(&mut self, offset: u64) -> u64 {
        match offset {
            DR => {
                if self.received.is_empty() {
                    return 0;
                }
                let character = self.received.remove(0);
                self.registers.insert(RSR, self.get(RSR) & 8 | character >> 8 & 7);
                let level = if self.bit(LCR_H, 4) { Self::eighths(self.get(IFLS) >> 3) } else { 1 };
                if self.received.len() < level {
                    self.raised.remove(&4);
                }
                if self.received.is_empty() {
                    self.raised.remove(&6);
                }
                character
            }
            FR => {
                let [ri, cts, dcd, dsr] = self.inputs();
                let (out, into) = (self.waiting.len(), self.received.len());
                let bits =
                    [cts, dsr, dcd, out > 0, into == 0, out >= self.places(), into >= self.places(), out == 0, ri];
                bits.iter().rev().fold(0, |value, &bit| value << 1 | u64::from(bit))
            }
            RIS => self.ris(),
            MIS => self.ris() & self.get(IMSC),
            ICR => 0,
            0xfe0..0x1000 => [0x11, 0x10, 0x34, 0, 0x0d, 0xf0, 0x05, 0xb1][(offset as usize - 0xfe0) / 4],
            _ => self.get(offset),
        }
    }

    fn write_register(&mut self, offset: u64, value: u64) {
        let kept = match offset {
            DR => {
                self.transmit();
                if self.waiting.len() < 32 {
                    self.waiting.push(value as u8);
                    if self.waiting.len() > self.transmit_level() {
                        self.raised.remove(&5);
                    }
                }
                self.transmit();
                return;
            }
            RSR => 0,
            ICR => {
                self.raised.retain(|bit| value >> bit & 1 == 0);
                return;
            }
            LCR_H => {
                if (value ^ self.get(LCR_H)) & 0x10 != 0 {
                    self.received.clear();
                    self.lost_one = false;
                    self.raised.retain(|bit| ![4, 6].contains(bit));
                }
                0xff
            }
            CR => {
                let before = self.inputs();
                self.registers.insert(CR, value & 0xff87);
                for (bit, (before, after)) in before.into_iter().zip(self.inputs()).enumerate() {
                    if before != after {
                        self.raised.insert(bit as u32);
                    }
                }
                self.transmit();
                return;
            }
            0x20 => 0xff,
            0x24 => 0xffff,
            0x28 | IFLS => 0x3f,
            IMSC => 0x7ff,
            0x48 => 7,
            _ => return,
        };
        self.registers.insert(offset, value & kept);
    }

    pub fn read(&mut self, offset: u64, width: Width) -> u64 {
        let low = self.read_register(offset & !3) >> (8 * (offset & 3));
        match width {
            Width::Byte => low & 0xff,
            Width::Half => low & 0xffff,
            Width::Word => low,
            Width::Double => low | self.read_register((offset & !3).wrapping_add(4)) << 32,
        }
    }

    pub fn write(&mut self, offset: u64, width: Width, value: u64) {
        if offset & 3 != 0 {
            return;
        }
        let bits = 8 << width as u32;
        self.write_register(offset, value & (u64::MAX >> (64 - bits)) & 0xffff_ffff);
        if width == Width::Double {
            self.write_register(offset.wrapping_add(4), value >> 32);
        }
    }
}
