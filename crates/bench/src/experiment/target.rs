// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment asks of the place where its guest runs.
//!
//! Invariant: every operation was done, completely, when it returns, and tells what it took: measured there, nearest to the
//! work, and from outside (S2's review: what a user of it waits for).

use std::collections::BTreeMap;

use twofold_pattern::pass::Pass;

use crate::results::{Platform, Quantity};

/// A guest with its memory set up, on some platform.
pub trait Target {
    /// Which one.
    fn platform(&self) -> Platform;

    /// Has each vCPU do its passes, one after the other, all vCPUs at once; until the last has done them. The time on the wall
    /// is that of the slowest. The generator's state is left in the passes, as the guest left it.
    ///
    /// # Errors
    ///
    /// A guest that does not get on, or something else than a guest is to do.
    fn run(&mut self, passes: &mut [Vec<Pass>]) -> anyhow::Result<Taken>;

    /// Starts the dirty logs of all slots.
    ///
    /// # Errors
    ///
    /// What the platform says.
    fn enable_log(&mut self) -> anyhow::Result<Taken>;

    /// Has the logs of all slots tell what is dirty, for [`dirty`](Self::dirty) and the next clear.
    ///
    /// # Errors
    ///
    /// What the platform says.
    fn get_log(&mut self) -> anyhow::Result<Taken>;

    /// Clears what the last get told. `None` where getting it has cleared it.
    ///
    /// # Errors
    ///
    /// What the platform says.
    fn clear_log(&mut self) -> anyhow::Result<Option<Taken>>;

    /// Stops the logs.
    ///
    /// # Errors
    ///
    /// What the platform says.
    fn disable_log(&mut self) -> anyhow::Result<Taken>;

    /// The pages of 4 KiB that the last get told: their numbers from the memory's first, ascending, over all slots. Memory is
    /// one run of pages in the order of regions, and regions of vCPUs.
    fn dirty(&self) -> Vec<u64>;

    /// Lets the vCPUs do their passes over and over, until [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// They run already.
    fn start(&mut self, passes: &[Vec<Pass>]) -> anyhow::Result<()>;

    /// Accesses that all vCPUs have done since they were started.
    fn done(&self) -> u64;

    /// Stops them; what they took, in all.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn stop(&mut self) -> anyhow::Result<Taken>;
}

/// What something took: of each quantity that the platform can tell, how much.
pub type Taken = BTreeMap<Quantity, f64>;

/// Where the guest has its first region, in its own addresses: as KVM's selftests have it.
pub const REGION: u64 = 0xc000_0000;
