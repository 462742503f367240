// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The moments of a guest that an experiment sees.

use core::convert::Infallible;
use core::error::Error;

use twofold_stage2::Features;

use super::observed_guest::ObservedGuest;
use crate::board::Board;
use crate::context::Context;
use crate::memory::Taken;

/// An experiment that watches the exits of a guest, one value for each vCPU. By default it does nothing, so in an image
/// without an experiment each call compiles to nothing.
pub trait ExitObserver: Sized {
    /// Why the experiment cannot begin.
    type Error: Error + 'static;

    /// Bits of HCR_EL2 that are set in addition to those of [`hcr`](crate::registers::hcr).
    const TRAPS: u64 = 0;
    /// EL2's heap has one more byte for this many bytes of RAM. It holds the metadata of the guest's memory.
    const RAM_PER_HEAP: u64 = 4096;
    /// Whether [`begin`](Self::begin) refuses a guest with several vCPUs. Only then may the observer own memory: a vCPU
    /// is never dropped, and a guest's only vCPU is never started twice.
    const ONE_VCPU: bool = false;

    /// A guest with `cpus` vCPUs is about to be made, of CPUs that share `features`, from the memory in `taken`.
    ///
    /// # Errors
    ///
    /// The experiment cannot watch this guest, or its own arguments are missing.
    fn begin(board: &Board, cpus: u32, features: &Features, taken: &Taken) -> Result<(), Self::Error>;

    /// A vCPU starts on this CPU.
    fn vcpu_starts(index: usize) -> Self;

    /// Whether [`tables_loaded`](Self::tables_loaded) does anything.
    const SEES_TABLES: bool = false;

    /// The guest's tables were loaded on this CPU, by this value of VTTBR_EL2 and an ISB.
    fn tables_loaded(_vttbr: u64) {}

    /// The guest is about to be entered.
    fn guest_entered(&mut self) {}

    /// The guest has left.
    fn guest_left(&mut self) {}

    /// An exit is about to be answered.
    fn before_answer(&mut self, _guest: &impl ObservedGuest) {}

    /// A trapped access to a system register: emulates it if it traps because of [`TRAPS`](Self::TRAPS). Returns
    /// whether it does.
    fn register_trapped(&mut self, _esr: u64, _context: &mut Context) -> bool {
        false
    }

    /// An exit with this ESR_EL2 was answered.
    fn after_answer(&mut self, _guest: &impl ObservedGuest, _esr: u64) {}

    /// The guest asked for its end.
    fn guest_ends(&mut self, _guest: &impl ObservedGuest) {}

    /// The image is about to exit, after the last line of every other part.
    fn image_ends() {}
}

/// The observer of an image without an experiment.
pub struct NoObserver;

impl ExitObserver for NoObserver {
    type Error = Infallible;

    fn begin(_: &Board, _: u32, _: &Features, _: &Taken) -> Result<(), Infallible> {
        Ok(())
    }

    fn vcpu_starts(_: usize) -> Self {
        Self
    }
}
