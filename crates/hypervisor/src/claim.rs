// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A right that one CPU gets and the others do not: to switch a vCPU on, to end the guest.
//!
//! Invariant: of all CPUs that call [`Claim::take`] between two calls of [`Claim::give_back`], exactly one gets `true`.
//! A load and a later store would let two CPUs in; the exchange does both in one step.

use crate::primitive::{AtomicBool, Ordering};

/// The right, taken or free.
pub struct Claim(AtomicBool);

impl Claim {
    /// A claim that is initially taken, or free.
    pub fn new(is_taken: bool) -> Self {
        Self(AtomicBool::new(is_taken))
    }

    /// Takes the claim. Returns `false` if it is already taken.
    ///
    /// Everything that a CPU wrote before it gave the claim back is visible to the CPU that takes it next.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Gives the claim back. Only the CPU that took it may call this.
    pub fn give_back(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether the claim is taken at this moment.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
