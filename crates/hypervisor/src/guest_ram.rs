// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as the models of devices reach it: through the gate that checks the bounds and marks dirty pages.
//!
//! Invariant: eight aligned bytes are one store. The model of stolen time depends on it, because another vCPU may read
//! them meanwhile.

use twofold_devices::{GuestRam, RamError};
use twofold_memory::{Error, GuestMemory};
use twofold_stage2::Ipa;

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
}

/// A device has no other use for memory that cannot be backed than for memory that is not there.
fn why(address: u64, error: &Error) -> RamError {
    match error {
        Error::Absent { page, .. } => RamError::Absent(page.raw()),
        _ => RamError::NotRam(address),
    }
}
