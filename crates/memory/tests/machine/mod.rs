// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine on which a guest's memory is tested: the one that records the engine's instructions in `stage2`'s tests,
//! with memory that can be accessed, and that keeps track of cleaned lines (module `bank`).
//!
//! It proves one thing by itself: whenever a watched address gets mapped, the guest reads there what the test expects,
//! through its caches and past them. With `twofold-machine/strict`, it also proves that each lock orders what is behind it.
#![allow(dead_code, reason = "each test uses its own part")]

pub mod bank;
pub mod guest;
#[path = "../../../stage2/tests/platform/mod.rs"]
pub mod platform;

use std::rc::Rc;

use twofold_memory::Backing;
use twofold_stage2::{Donated, Features, Level, Pa};

use bank::{Bank, Banks};
use platform::HostMemory as _;

pub const PAGE: u64 = 4096;
pub const HUGE_PAGE: u64 = 2 << 20;
pub const GIB: u64 = 1 << 30;

/// The RAM of most tests.
pub const RAM: Pa = Pa::new(0x8_4000_0000);
/// The preallocated memory of most tests.
pub const PREALLOCATED: Pa = Pa::new(0x40_0000_0000);

/// A device at `pa`. No guest accesses it.
pub fn device_at(pa: Pa) -> Backing {
    Backing::Device(platform::window::device(pa))
}

/// One CPU, its memory, and the record of its instructions.
pub type Machine = platform::Machine<Banks>;
/// The machine as the engine's platform.
pub type Host = platform::Host<Banks>;

impl Machine {
    pub fn new(features: Features, banks: &[(Pa, u64)]) -> Rc<Self> {
        // Whatever the test has the engine do under a lock, it does on one CPU after another: what a lock does not order is
        // found, though the test has one thread.
        twofold_machine::relay::begin();
        Self::with_memory(features, Banks::new(banks))
    }

    /// Donates the range to guests and tables.
    pub fn donate(&self, start: Pa, size: u64) -> Donated {
        assert!(self.memory.has(start, size));
        // SAFETY: a bank has the range. Only the engine accesses it, and the test copies it while the engine does not
        // run.
        unsafe { Donated::new(start, size) }
    }

    /// Preallocated RAM for one slot, which may be mapped by leaves of `largest`.
    pub fn give(&self, start: Pa, size: u64, largest: Level) -> Backing {
        Backing::Preallocated { frames: self.donate(start, size).into_run(), largest }
    }

    pub fn is_ram(&self, pa: Pa) -> bool {
        self.memory.has(pa, 1)
    }

    pub fn bank(&self, pa: Pa) -> &Bank {
        self.memory.bank(pa)
    }

    /// Has another CPU do something, once, before the next atomic: nothing was changed yet then.
    pub fn before_next_atomic(&self, action: impl FnOnce() + 'static) {
        self.before_atomic(1, action);
    }

    /// Checks that a guest reads `expected` in the page at `pa`, with its caches on or off.
    pub fn check_page(&self, pa: Pa, expected: &[u8]) {
        self.memory.check_page(pa, expected, &self.features);
    }
}
