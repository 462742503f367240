// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment may use of the virtual machine.

use core::fmt;

use twofold_memory::SlotId;
use twofold_memory::dirty::{DirtyLog, LogError};

use super::platform::EnginePlatform;
use crate::granule::{GuestGranule, Memory};
use crate::stats::Stats;

/// The virtual machine, as an experiment sees it.
pub trait ObservedGuest {
    /// The guest's memory.
    fn memory(&self) -> &Memory;

    /// The slot of the guest's RAM.
    fn ram(&self) -> SlotId;

    /// The slots of the guest's test memory, if it has any.
    fn test_slots(&self) -> &[SlotId];

    /// The figures of each vCPU.
    fn stats(&self) -> impl Iterator<Item = &Stats> + Clone;

    /// Records that a call of the guest was refused.
    fn refused(&self, why: fmt::Arguments);

    /// All pages of the guest's RAM leave to its store. Returns how many; `None`: it has no store in memory.
    fn swap_out(&self) -> Option<u64>;

    /// Ends the guest as if it had switched itself off.
    fn power_off(&self) -> !;

    /// The guest cannot continue, for a reason that is not a defect of EL2.
    fn fail(&self, why: fmt::Arguments) -> !;

    /// The dirty log of the guest's RAM.
    fn dirty_log(&self) -> Result<DirtyLog<'_, EnginePlatform, GuestGranule>, LogError> {
        self.memory().dirty_log(self.ram())
    }
}
