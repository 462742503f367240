// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest had goes to the others when it has ended, by power-off, by a reset that ends it, or for an error: work of
//! the task that also restarts guests. The guest keeps its name, its VMID and its root.
//!
//! The steps, with the labels of `release` in `twofold_memory`, where the argument is:
//!
//! - E1. The guest's end is claimed: a turn that begins later ends at once ([`vcpu`](crate::vcpu)).
//! - E2. Wait until no vCPU is in its turn. The kick that came with the end makes each leave.
//! - E3. RAM, a huge page in each piece, so that the CPU can take interrupts and run something else in between.
//! - E4. The tables.

use spin::Mutex;
use twofold_memory::{Error, HUGE_PAGE};

use crate::schedule::cpu::Progress;

/// The release of one guest's memory: how many bytes of RAM are done. `None`: it has not begun, or is over.
pub(crate) struct Release(Mutex<Option<u64>>);

/// A guest that has ended (E1).
pub(crate) trait Ended {
    /// Whether a vCPU is in its turn on a CPU.
    fn has_turns(&self) -> bool;
    /// E3, for the huge page at this offset in RAM and, after it, in the flash; at the end, for the stolen time. Returns
    /// `false` there.
    fn release_ram(&self, offset: u64) -> Result<bool, Error>;
    /// E4.
    fn release_tables(&self);
}

impl Release {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Begins. The caller wakes the task.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(0);
    }

    /// Does the next piece. `None`: there is nothing to do.
    ///
    /// # Errors
    ///
    /// The tables cannot be changed. The release is over, and the rest of the memory stays the guest's.
    pub(crate) fn work(&self, guest: &impl Ended) -> Result<Option<Progress>, Error> {
        let mut guard = self.0.lock();
        let Some(done) = *guard else { return Ok(None) };
        if guest.has_turns() {
            return Ok(Some(Progress::More));
        }
        match guest.release_ram(done) {
            Ok(true) => {
                *guard = Some(done + HUGE_PAGE);
                Ok(Some(Progress::More))
            }
            Ok(false) => {
                guest.release_tables();
                *guard = None;
                Ok(Some(Progress::Finished))
            }
            Err(error) => {
                *guard = None;
                Err(error)
            }
        }
    }
}
