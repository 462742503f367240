// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as the models of devices reach it: through the gate that checks the bounds and marks dirty pages.
//!
//! Invariant: 2, 4 or 8 aligned bytes are one access. The models depend on it, because another vCPU may access them
//! meanwhile.

use core::cell::RefCell;

use arrayvec::ArrayVec;
use twofold_devices::{GuestRam, RamError};
use twofold_memory::Error;
use twofold_stage2::{Ipa, Platform};

use crate::granule::{Memory, PAGE};

/// The memory of one guest, for one piece of a device's work.
pub(crate) struct Ram<'a> {
    memory: &'a Memory,
    absent: RefCell<Absent>,
}

/// Absent pages that were met, in their order: each once, and no more than there is room for.
pub(crate) type Absent = ArrayVec<Ipa, ABSENT_MAX>;

/// Absent pages that one piece of work notes. A disk's requests and a card's directions meet one each.
pub(crate) const ABSENT_MAX: usize = 4;

impl<'a> Ram<'a> {
    pub(crate) const fn new(memory: &'a Memory) -> Self {
        Self { memory, absent: RefCell::new(Absent::new_const()) }
    }

    pub(crate) const fn memory(&self) -> &'a Memory {
        self.memory
    }

    /// The absent pages that were met.
    pub(crate) fn into_absent(self) -> Absent {
        self.absent.into_inner()
    }

    /// Gives up the whole pages of this range. Returns how many of its bytes were dealt with, and how many frames are free
    /// now. The rest is left for a later call, because this CPU is needed elsewhere.
    pub(crate) fn give_up(&self, start: u64, length: u64) -> Result<(u64, u64), RamError> {
        let end = start.checked_add(length).ok_or(RamError::NotRam(start))?;
        let given = self.memory.give_up(Ipa::new(start)..Ipa::new(end)).map_err(|error| self.why(start, &error))?;
        let is_all = given.end >= Ipa::new(end).align_down(PAGE);
        Ok((if is_all { length } else { given.end.raw() - start }, given.frames))
    }

    /// A device has no other use for memory that cannot be backed than for memory that is not there.
    #[cold]
    fn why(&self, address: u64, error: &Error) -> RamError {
        let Error::Absent { page, .. } = *error else { return RamError::NotRam(address) };
        let mut absent = self.absent.borrow_mut();
        if !absent.contains(&page) {
            // One that finds no room is met again by the work that follows the arrival of another.
            let _full = absent.try_push(page);
        }
        RamError::Absent(page.raw())
    }
}

impl GuestRam for Ram<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError> {
        self.memory.read(Ipa::new(address), bytes).map_err(|error| self.why(address, &error))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        self.memory.write(Ipa::new(address), bytes).map_err(|error| self.why(address, &error))
    }

    fn should_pause(&self) -> bool {
        self.memory.stage2().platform().interrupt_is_pending()
    }
}
