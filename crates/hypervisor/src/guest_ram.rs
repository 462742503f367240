// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as the models of devices reach it: through the gate that checks the bounds and marks dirty pages.
//!
//! Invariant: 2, 4 or 8 aligned bytes are one access. The models depend on it, because another vCPU may access them
//! meanwhile.

use twofold_devices::{GuestRam, RamError};
use twofold_memory::{Error, GuestMemory};
use twofold_stage2::{Ipa, Platform};

use crate::experiment::EnginePlatform;

/// The memory of one guest.
pub(crate) struct Ram<'a>(pub(crate) &'a GuestMemory<EnginePlatform>);

impl GuestRam for Ram<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError> {
        self.0.read(Ipa::new(address), bytes).map_err(|error| why(address, &error))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        self.0.write(Ipa::new(address), bytes).map_err(|error| why(address, &error))
    }

    fn should_pause(&self) -> bool {
        self.0.stage2().platform().interrupt_is_pending()
    }
}

/// A device has no other use for memory that cannot be backed than for memory that is not there.
fn why(address: u64, error: &Error) -> RamError {
    match error {
        Error::Absent { page, .. } => RamError::Absent(page.raw()),
        _ => RamError::NotRam(address),
    }
}
