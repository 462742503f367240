// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations that an experiment needs from the platform that runs its guest.
//!
//! Invariant: an operation is complete when it returns. It returns its cost, measured as close to the work as possible,
//! and from outside: the time that a user waits (Bras RFC 2026, review).

use std::collections::BTreeMap;
use std::sync::Arc;

use twofold_workload::pass::Pass;

use super::setup::Setup;
use crate::results::{Platform, Quantity, Results};

/// A platform that makes guests.
pub trait Targets {
    /// The platform.
    fn platform(&self) -> Platform;

    /// Makes a guest with its memory set up and untouched by the guest. The caller has dropped the guest before it.
    ///
    /// # Errors
    ///
    /// The guest does not fit, which is reported before any memory is touched. Or the platform does not support it.
    fn make(&mut self, setup: &Setup) -> anyhow::Result<Box<dyn Target>>;

    /// Adds what a reader of the figures needs to know about this platform.
    fn describe(&self, _: &mut Results) {}
}

/// A guest with its memory set up, on some platform.
pub trait Target {
    /// Whether all pages are dirty when the log starts.
    fn starts_dirty(&self) -> bool;

    /// Bytes in a page of the log.
    fn page(&self) -> u64 {
        4 << 10
    }

    /// Runs the passes of each vCPU in order, with all vCPUs at once. Returns when the last vCPU is done. Wall time is
    /// that of the slowest vCPU. The guest's final generator states are stored in the passes.
    ///
    /// # Errors
    ///
    /// The guest makes no progress, or does something unexpected.
    fn run(&mut self, passes: &mut [Vec<Pass>]) -> anyhow::Result<Taken>;

    /// Enables the dirty logs of all memslots.
    ///
    /// # Errors
    ///
    /// The platform fails.
    fn enable_log(&mut self) -> anyhow::Result<Taken>;

    /// Reads the dirty pages of all memslots' logs, for [`dirty`](Self::dirty) and for the next clear.
    ///
    /// # Errors
    ///
    /// The platform fails.
    fn get_log(&mut self) -> anyhow::Result<Taken>;

    /// Clears the pages that the last get reported. `None` if the get has cleared them.
    ///
    /// # Errors
    ///
    /// The platform fails.
    fn clear_log(&mut self) -> anyhow::Result<Option<Taken>>;

    /// Disables the logs.
    ///
    /// # Errors
    ///
    /// The platform fails.
    fn disable_log(&mut self) -> anyhow::Result<Taken>;

    /// The [pages](Self::page) that the last get reported, over all memslots: ascending numbers from the start of the
    /// memory. Memory is one run of pages: the regions in order, and within them the vCPUs' regions.
    fn dirty(&self) -> Vec<u64>;

    /// Starts the vCPUs, which repeat their passes until [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// The vCPUs run already.
    fn start(&mut self, passes: &[Vec<Pass>]) -> anyhow::Result<()>;

    /// A function that returns the vCPUs' progress, on any thread.
    fn meter(&self) -> Meter;

    /// Stops the vCPUs, and returns their total cost.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    fn stop(&mut self) -> anyhow::Result<Taken>;

    /// The guest's tables and memory, if the platform permits to look inside.
    fn inside(&self) -> Option<&dyn Inspect> {
        None
    }
}

/// A guest's tables and memory, seen and changed from outside its operations. Nothing of that is timed.
pub trait Inspect {
    /// Bytes that the leaf at this offset into the memory maps. `None` if nothing is mapped there.
    fn leaf(&self, offset: u64) -> Option<u64>;

    /// The word at this offset into the memory.
    fn word(&self, offset: u64) -> Option<u64>;

    /// Unmaps the first `bytes` of the memory.
    ///
    /// # Errors
    ///
    /// The tables cannot be changed.
    fn unmap(&self, bytes: u64) -> anyhow::Result<()>;
}

/// Returns the progress of vCPUs that repeat their passes.
pub type Meter = Arc<dyn Fn() -> Progress + Send + Sync>;

/// The progress of the vCPUs since they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Accesses of all vCPUs.
    pub accesses: u64,
    /// Nanoseconds of CPU time of the vCPUs' threads since their creation. `None` if the platform does not report it.
    pub cpu: Option<f64>,
}

/// The cost of an operation: the value of each quantity that the platform can measure.
pub type Taken = BTreeMap<Quantity, f64>;

/// The guest virtual address of the first region, as in KVM's selftests.
pub const REGION: u64 = 0xc000_0000;
