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

/// Exactly one CPU wins, at whichever point another CPU interferes. So only one CPU switches a vCPU on, and only one
/// reports the end of the guest.
#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::Claim;
    use crate::primitive::meanwhile;

    #[test]
    fn one_of_two_takes_it_wherever_they_meet() {
        // An exchange is one operation. A load and a store would be two, and another CPU could act between them.
        for after in 0..3 {
            let claim = Rc::new(Claim::new(false));
            let other_took = Rc::new(Cell::new(None));
            meanwhile(after, {
                let (claim, other_took) = (Rc::clone(&claim), Rc::clone(&other_took));
                move || other_took.set(Some(claim.take()))
            });
            let took = claim.take();
            let other_took = other_took.take().unwrap_or_else(|| claim.take());
            assert!(took != other_took, "the other CPU acts after {after} operations: {took}, {other_took}");
            assert!(claim.is_taken());
        }
    }

    #[test]
    fn it_can_be_taken_again_when_it_is_given_back() {
        let claim = Claim::new(true);
        assert!(!claim.take() && claim.is_taken());
        claim.give_back();
        assert!(!claim.is_taken());
        assert!(claim.take() && !claim.take());
    }
}
