// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The most urgent of many interrupts, in one pass.

use super::interface::MOST_LIST_REGISTERS;
use super::intid::Intid;

/// The most urgent interrupts of those that were offered, at most as many as list registers can hold. Of equal
/// priorities, the lower INTID is first.
#[derive(Debug)]
pub(super) struct Best {
    keys: [u32; MOST_LIST_REGISTERS],
    offered: usize,
}

impl Best {
    pub const fn new() -> Self {
        Self { keys: [u32::MAX; MOST_LIST_REGISTERS], offered: 0 }
    }

    /// How many were offered.
    pub const fn offered(&self) -> usize {
        self.offered
    }

    pub const fn is_empty(&self) -> bool {
        self.offered == 0
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.offered.min(MOST_LIST_REGISTERS)
    }

    /// `last`: after all others, whatever its priority.
    pub fn offer(&mut self, last: bool, priority: u8, intid: Intid) {
        self.offered += 1;
        let mut key = u32::from(last) << 24 | u32::from(priority) << 16 | intid.raw();
        for kept in &mut self.keys {
            if key < *kept {
                core::mem::swap(kept, &mut key);
            }
        }
    }

    /// The most urgent first.
    pub fn iter(&self) -> impl Iterator<Item = Intid> {
        self.keys.iter().take(self.len()).filter_map(|&key| Intid::new(key & 0xffff))
    }
}
