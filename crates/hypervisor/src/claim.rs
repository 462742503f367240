// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Something that one CPU gets and the others do not: the right to switch a vCPU on, the right to end the guest.
//!
//! Invariant: of all CPUs that call [`Claim::take`] between two calls of [`Claim::give_back`], exactly one gets `true`.
//! A look and a later store would let two CPUs in; the exchange does both in one step.

use crate::primitive::{AtomicBool, Ordering};

/// The thing, taken or free.
pub struct Claim(AtomicBool);

impl Claim {
    /// A claim that is taken from the start, or free.
    pub fn new(is_taken: bool) -> Self {
        Self(AtomicBool::new(is_taken))
    }

    /// Takes it. Returns `false` if it is taken already.
    ///
    /// Everything that the CPU wrote before it gave the claim back is visible to the CPU that takes it next.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Gives it back. Only the CPU that took it may call this.
    pub fn give_back(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether it is taken at this moment.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
