// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that exactly one CPU wins a claim, at whichever point another CPU interferes. So only one CPU switches a vCPU
//! on, and only one reports the end of the guest.

use std::cell::Cell;
use std::rc::Rc;

use twofold_fuzz_hypervisor::claim::Claim;
use twofold_fuzz_hypervisor::primitive::meanwhile;

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
