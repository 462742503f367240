// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups of entities: weights, and the clocks by which running entities are charged.
//!
//! A group's clock runs while an entity waits for a CPU, at the number of its entities that can run divided by its
//! weight. A running entity's virtual time grows by what the clock grew. So a change of that number counts from its
//! moment on, for each running entity, and costs one addition.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::units::{EntityId, Ticks, Virtual};

/// A group's weight, 1 to 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(NonZeroU32);

impl Weight {
    /// The largest weight.
    pub const MAX: u32 = twofold_abi::bundle::WEIGHT_MAX;

    /// The weight of this number, unless it is 0 or larger than the largest.
    pub const fn checked(weight: u32) -> Option<Self> {
        match NonZeroU32::new(weight) {
            Some(weight) if weight.get() <= Self::MAX => Some(Self(weight)),
            _ => None,
        }
    }
}

/// The time during which at least one entity waited for a CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContendedTime {
    /// Entities that wait.
    waiting: u32,
    /// The contended time until `since`.
    until: Ticks,
    since: Ticks,
}

impl ContendedTime {
    /// The contended time until `now`.
    pub(super) fn at(&self, now: Ticks) -> Ticks {
        if self.waiting == 0 { self.until } else { self.until + (now - self.since) }
    }

    /// The contended time until `now`, if one entity waits.
    #[inline(always)]
    pub(super) fn of_one(&self, now: Ticks) -> Option<Ticks> {
        (self.waiting == 1).then_some(self.until + (now - self.since))
    }

    /// Whether an entity waits.
    pub(super) fn is_running(&self) -> bool {
        self.waiting != 0
    }

    /// No entity waits, and one does for no time now.
    pub(super) fn passes(&mut self, now: Ticks) {
        self.since = now;
    }

    /// One more entity waits.
    pub(super) fn add(&mut self, now: Ticks) {
        if self.waiting == 0 {
            self.since = now;
        }
        self.waiting += 1;
    }

    /// One entity fewer waits. The contended time until now is `contended`.
    pub(super) fn subtract(&mut self, now: Ticks, contended: Ticks) {
        self.until = contended;
        self.since = now;
        self.waiting -= 1;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Virtual time in a tick of one entity that has the whole weight: 2^32 / weight.
    tick: u64,
    /// How many entities can run.
    runnable: u32,
    /// The group's clock at the contended time `at`.
    clock: Virtual,
    at: Ticks,
    pub(super) members: Vec<EntityId>,
    /// The place in `members` of the one that got the last slice that was handed on.
    pub(super) handed_to: usize,
    pub(super) is_removed: bool,
}

impl Group {
    pub(super) fn new(weight: Weight, contended: Ticks) -> Self {
        let (members, is_removed) = (Vec::new(), false);
        Self { tick: tick(weight), runnable: 0, clock: 0, at: contended, members, handed_to: 0, is_removed }
    }

    /// The virtual time in a tick of one entity.
    pub(super) fn rate(&self) -> u64 {
        // At most 2^32 by less than 2^32.
        self.tick * u64::from(self.runnable.max(1))
    }

    /// The virtual time in a tick of one entity, if no other one of the group can run.
    #[inline(always)]
    pub(super) fn least_rate(&self) -> u64 {
        self.tick
    }

    /// The group's clock at this contended time.
    pub(super) fn clock(&self, contended: Ticks) -> Virtual {
        self.clock + Virtual::from(contended - self.at) * Virtual::from(self.rate())
    }

    /// One more entity can run.
    pub(super) fn add_runnable(&mut self, contended: Ticks) {
        self.settle(contended);
        self.runnable += 1;
    }

    /// One entity fewer can run.
    pub(super) fn subtract_runnable(&mut self, contended: Ticks) {
        self.settle(contended);
        self.runnable -= 1;
    }

    /// As [`subtract_runnable`](Self::subtract_runnable), at a contended time at which the clock is known.
    pub(super) fn subtract_runnable_at(&mut self, clock: Virtual, contended: Ticks) {
        (self.clock, self.at) = (clock, contended);
        self.runnable -= 1;
    }

    pub(super) fn set_weight(&mut self, weight: Weight, contended: Ticks) {
        self.settle(contended);
        self.tick = tick(weight);
    }

    fn settle(&mut self, contended: Ticks) {
        self.clock = self.clock(contended);
        self.at = contended;
    }
}

fn tick(weight: Weight) -> u64 {
    (1 << 32) / u64::from(weight.0.get())
}
