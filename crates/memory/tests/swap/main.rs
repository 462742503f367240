// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that pages which leave and come back keep their content; that a page of zeroes and a page with a good copy are
//! not written; that each misbehaviour of a store loses nothing; that each race between a page that leaves and a CPU
//! that needs it ends well, at each point where one can begin; that no frame and no place is lost; and that no more
//! frames are used than the limit allows, at each step.
//!
//! The guest has no TLB here. Stale TLB entries are tested in the machine's strict mode.

#[path = "../machine/mod.rs"]
mod machine;

mod accessed;
mod ahead;
mod at_once;
mod clock;
mod copies;
mod generations;
mod given_up;
mod leaving;
mod limits;
mod locks;
mod mapped;
mod misbehaving;
mod overtaken;
mod peeks;
mod pins;
mod pokes;
mod postcopy;
mod queue;
mod races;
mod random;
mod refused;
mod rig;
mod store;
mod vcpus;
