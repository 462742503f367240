// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages of its guest that a device waits for.
//!
//! A guest with a store may have a device work on pages that have left: rings, descriptors, buffers. The models lose
//! nothing then, and come back later (`twofold_devices::virtio`). In steps:
//!
//! * P1: the device works (V3). An access to an absent page fails, and the page is noted
//!   ([`Ram`](crate::guest_ram::Ram)).
//! * P2: after the work, still under the device's lock, each noted page is asked for, with a waiter of the device's own.
//! * P3: the page arrives, or cannot come. That is a far end's event: F1. No lock of a device is held.
//!
//! **No arrival is missed.** The notes of P1 are of pages that this work needed, so P2 asks for each of them again, and
//! `bring` notifies for a page that is in memory by now. A page that was not noted for want of room is met again by the
//! work that follows.
//!
//! **No page is pinned.** A page that has come stays until the hand of the write-out task comes around to it. So all pages
//! that a step needs are in memory at one time, unless they are more than the guest's limit leaves room for. The
//! machine's devices have buffers of their own ([`host`](super::host)): they never reach a guest's page.

use twofold_memory::swap::Waiter;

use crate::granule::Memory;
use crate::guest_ram::{ABSENT_MAX, Absent};

/// The waiters of a device.
pub(super) struct Waits {
    /// The number of the first one. Those of its other pages follow.
    first: u64,
    /// How often the device has asked for a page.
    pub(super) count: u64,
}

/// How many waiters a guest's virtio devices have.
pub(crate) const fn waiters(devices: usize) -> usize {
    devices * ABSENT_MAX
}

/// The device of this waiter.
pub(super) fn device_of(waiter: u64) -> Option<usize> {
    usize::try_from(waiter / ABSENT_MAX as u64).ok()
}

impl Waits {
    /// Those of the device with this number.
    pub(super) const fn new(device: usize) -> Self {
        Self { first: (device * ABSENT_MAX) as u64, count: 0 }
    }

    /// P2.
    pub(super) fn ask(&mut self, memory: &Memory, met: &Absent) {
        self.count += met.len() as u64;
        for (page, number) in met.iter().zip(self.first..) {
            // A guest without a store has no absent page.
            let _ = memory.bring(*page, Waiter::Other(number));
        }
    }

    /// Nothing is waited for.
    pub(super) fn forget(&self, memory: &Memory) {
        (self.first..).take(ABSENT_MAX).for_each(|number| memory.forget(Waiter::Other(number)));
    }
}
