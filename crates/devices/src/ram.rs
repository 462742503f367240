// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory, as a device reaches it.

use thiserror::Error;

/// The guest's RAM, by intermediate physical address (IPA).
///
/// The guest's vCPUs may change it at any time. So a model reads each byte that it depends on once, and never trusts
/// that a second read returns the same.
pub trait GuestRam {
    /// Copies the memory at `address` into `bytes`. On an error, the content of `bytes` is unspecified.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError>;

    /// Copies `bytes` to the memory at `address`, and marks its pages in the dirty log. On an error, nothing is
    /// written.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError>;
}

/// Why a device cannot reach memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RamError {
    /// The page is in a store, and the embedder has asked for it. The model comes back later.
    #[error("the page of {0:#x} is absent")]
    Absent(u64),
    /// There is no RAM, or the range runs past its end.
    #[error("there is no RAM at {0:#x}")]
    NotRam(u64),
    /// The guest may not write there.
    #[error("the memory at {0:#x} is read-only")]
    ReadOnly(u64),
}
