// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest knows: what it wrote, and which interrupts it took and has not ended.

use super::event::HOT;
use crate::random::Random;

/// All that the choice of an event depends on.
pub struct Known {
    pub random: Random,
    pub vcpus: [Vcpu; 2],
    /// The priority of each of [`HOT`]. They differ.
    pub priorities: [u8; HOT.len()],
    /// Interrupts are taken, and not ended.
    pub holds: bool,
    /// The UART's line is asserted.
    pub uart: bool,
}

/// What it knows of a vCPU.
pub struct Vcpu {
    /// Its interface is set up.
    pub is_open: bool,
    /// Acknowledged, and not ended; the last one is ended first.
    pub handling: Stack<(u32, bool)>,
    /// Ended with EOImode 1, and not deactivated.
    pub ended: Stack<u32>,
    /// `ICC_IGRPEN<n>_EL1`.
    pub enabled: [bool; 2],
    /// `ICC_CTLR_EL1.EOImode`.
    pub split: bool,
}

impl Known {
    pub const fn new(random: Random) -> Self {
        let mut priorities = [0; HOT.len()];
        let mut n = 0;
        while n < HOT.len() {
            // A permutation of the 31 levels, because 31 is prime.
            priorities[n] = (n * 12 % 31 * 8) as u8;
            n += 1;
        }
        Self { random, vcpus: [const { Vcpu::new() }; 2], priorities, holds: false, uart: false }
    }

    /// The interrupts that any vCPU handles, or that `of` handles if the bank is private, as a mask of this bank.
    pub fn handled(&self, of: usize, bank: u32) -> u32 {
        let mut mask = 0;
        for (n, vcpu) in self.vcpus.iter().enumerate() {
            if bank == 0 && n != of {
                continue;
            }
            for (intid, _) in vcpu.handling.iter().filter(|(intid, _)| intid / 32 == bank) {
                mask |= 1 << (intid % 32);
            }
        }
        mask
    }
}

impl Vcpu {
    const fn new() -> Self {
        Self {
            is_open: false,
            handling: Stack { items: [(0, false); DEPTH], count: 0 },
            ended: Stack { items: [0; DEPTH], count: 0 },
            enabled: [true; 2],
            split: false,
        }
    }
}

/// More than the levels of priority.
const DEPTH: usize = 64;

/// The last items; an item too many is not kept.
pub struct Stack<T> {
    items: [T; DEPTH],
    count: usize,
}

impl<T: Copy> Stack<T> {
    pub fn push(&mut self, item: T) {
        if let Some(place) = self.items.get_mut(self.count) {
            *place = item;
            self.count += 1;
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        self.count = self.count.checked_sub(1)?;
        self.items.get(self.count).copied()
    }

    pub fn last(&self) -> Option<T> {
        self.iter().last()
    }

    pub const fn len(&self) -> usize {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.items.iter().take(self.count).copied()
    }
}
