// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment asks of the place where its guest runs.
//!
//! Invariant: every operation was done, completely, when it returns, and tells what it took: measured there, nearest to the
//! work, and from outside (S2's review: what a user of it waits for).

use std::collections::BTreeMap;
use std::sync::Arc;

use twofold_pattern::pass::Pass;

use super::setup::Setup;
use crate::results::{Platform, Quantity, Results};

/// A place where guests are made.
pub trait Targets {
    /// Which one.
    fn platform(&self) -> Platform;

    /// A new guest, with its memory there and nothing of it touched by the guest. The one before it is gone.
    ///
    /// # Errors
    ///
    /// It does not fit (told before any memory is touched), or the platform has no such guest.
    fn make(&mut self, setup: &Setup) -> anyhow::Result<Box<dyn Target>>;

    /// Adds what a reader of figures has to know of this platform.
    fn describe(&self, _: &mut Results) {}
}

/// A guest with its memory set up, on some platform.
pub trait Target {
    /// Which one.
    fn platform(&self) -> Platform;

    /// Whether all pages are in its log when that starts.
    fn starts_dirty(&self) -> bool;

    /// Bytes of a page of its log.
    fn page(&self) -> u64 {
        4 << 10
    }

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

    /// The [pages](Self::page) that the last get told: their numbers from the memory's first, ascending, over all slots. Memory is
    /// one run of pages in the order of regions, and regions of vCPUs.
    fn dirty(&self) -> Vec<u64>;

    /// Lets the vCPUs do their passes over and over, until [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// They run already.
    fn start(&mut self, passes: &[Vec<Pass>]) -> anyhow::Result<()>;

    /// Tells, on any thread, how far they are.
    fn meter(&self) -> Meter;

    /// Stops them; what they took, in all.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn stop(&mut self) -> anyhow::Result<Taken>;
}

/// How far vCPUs are that do their passes over and over.
pub type Meter = Arc<dyn Fn() -> Progress + Send + Sync>;

/// What vCPUs have done since they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Accesses, of all of them.
    pub accesses: u64,
    /// Nanoseconds of CPU time that their threads took since they exist; `None` where the platform does not tell.
    pub cpu: Option<f64>,
}

/// What something took: of each quantity that the platform can tell, how much.
pub type Taken = BTreeMap<Quantity, f64>;

/// Where the guest has its first region, in its own addresses: as KVM's selftests have it.
pub const REGION: u64 = 0xc000_0000;
