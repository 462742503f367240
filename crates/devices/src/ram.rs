// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory, as a device reaches it.

use core::sync::atomic::{Ordering, fence};

use thiserror::Error;

/// The guest's RAM, by intermediate physical address (IPA).
///
/// The guest's vCPUs may change it at any time. So a model reads each byte that it depends on once, and never trusts
/// that a second read returns the same.
///
/// # What an implementation guarantees
///
/// * Each access is checked against the memslots: an address outside of the RAM is an error, never an access.
/// * An access of 2, 4 or 8 bytes at a multiple of its length is one access. The indices of a virtqueue depend on it:
///   half of an old index and half of a new one is an index that no driver wrote.
/// * Accesses are in no order for the vCPUs, except by [`barrier`](Self::barrier).
pub trait GuestRam {
    /// Copies the memory at `address` into `bytes`. On an error, the content of `bytes` is unspecified.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError>;

    /// Copies `bytes` to the memory at `address`, and marks its pages in the dirty log. On an error, pages before the
    /// one of the error may have been written and are marked; nothing of later ones is.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError>;

    /// Whether the caller leaves what it can leave for a later call, because this CPU is needed elsewhere. It has done
    /// something when it asks.
    fn should_pause(&self) -> bool {
        false
    }

    /// Orders this caller's accesses before the call and those after it, as [`Barrier`] says, for all vCPUs.
    fn barrier(&self, barrier: Barrier) {
        fence(match barrier {
            Barrier::Acquire => Ordering::Acquire,
            Barrier::Release => Ordering::Release,
            Barrier::Full => Ordering::SeqCst,
        });
    }
}

/// Which accesses of the guest's RAM are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Reads before it, and all accesses after it.
    Acquire,
    /// All accesses before it, and writes after it.
    Release,
    /// All accesses before it, and all after it.
    Full,
}

/// Why a device cannot reach memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
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
