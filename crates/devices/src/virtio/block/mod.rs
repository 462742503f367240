// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk (VIRTIO 1.2, 5.2).
//!
//! # The life of a request
//!
//! * B1 [`Block::poll`] takes its chain, reads its header, and gives it a slot. From here on the guest's descriptors and
//!   header are not looked at again.
//! * B2 The poll offers it to [`Disk::begin`] with a [`Tag`]. A disk that has no room gets it again at a later poll.
//! * B3 The disk works on it, as long as it likes, in any order among the requests. It copies the data in pieces of any
//!   size, by [`Block::fetch`] from the guest (a write) or by [`Block::store`] to the guest (a read). A piece that meets
//!   an absent page is copied again when the page is back.
//! * B4 [`Block::complete`] ends it. It needs no memory, so it cannot fail.
//! * B5 The next poll writes the status byte and gives the chain back. If a page is absent, the slot keeps the request,
//!   and a later poll does it. Other requests do not wait for it.
//!
//! A request that fails its checks at B1 goes to B5 at once, with an error for the guest.
//!
//! # Invariants
//!
//! * A request is in one slot until the guest has it back. Its tag is of that request only: a serial number is not used
//!   twice.
//! * After a reset, requests of B3 are orphans: `fetch` and `store` refuse their tags, `complete` frees the slot. While
//!   there is an orphan, no new request begins. So a write of before the reset cannot overwrite one of after it.
//! * If the driver did not accept FLUSH, it knows of no cache: each write [is durable](Operation::Write) when it is
//!   complete.
//!
//! # States
//!
//! A state has the requests that were begun. [`Block::with_state`] begins them again with their old tags, which is
//! harmless for each kind of request, as long as the disk of before has ended or forgotten them: the embedder sees to
//! that. Orphans are not part of it.

mod model;
mod request;
mod slot;
mod snapshot;

use thiserror::Error;

pub use model::BlockModel;
pub use request::{Operation, Tag};

use super::device::Virtio;
use super::next::Next;
use crate::line::InterruptLine;
use crate::ram::{GuestRam, RamError};

/// A virtio-blk device.
pub type Block = Virtio<BlockModel>;

/// Requests that a device works on at the same time. Further ones wait in the guest's queue.
pub const REQUESTS: usize = 16;
/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// The far end: what works on requests.
pub trait Disk {
    /// Begins a request. The disk ends it by [`Block::complete`], later and in any order.
    ///
    /// A flush is complete when all writes, discards and zeroes that were complete before it began are stable.
    ///
    /// # Errors
    ///
    /// [`Full`]: the disk has no room. Nothing has begun, and the embedder polls the device when there is room.
    fn begin(&mut self, tag: Tag, operation: Operation) -> Result<(), Full>;
}

/// A disk has no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A disk could not do what was asked: the guest sees an I/O error.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the disk reports an error")]
pub struct DiskError;

/// What a disk is, for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its size.
    pub sectors: u64,
    /// The guest may not change it.
    pub is_read_only: bool,
    /// Its serial number: ASCII, filled with zeros.
    pub id: [u8; 20],
}

/// Why data of a request was not copied.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataError {
    /// There is no such request, or the guest has reset the device since. The disk completes it: nothing else is left
    /// to do.
    #[error("the request is no longer the guest's")]
    Stale,
    /// It has no such data.
    #[error("the request has no data there")]
    Beyond,
    /// Memory cannot be reached. If the page [is absent](RamError::Absent), the call is repeated when it is back;
    /// otherwise the disk completes the request with an error.
    #[error(transparent)]
    Ram(#[from] RamError),
}

/// A tag is of no request that a disk works on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no request has this tag")]
pub struct Stale;

impl Block {
    /// The device after a reset.
    #[must_use]
    pub const fn new(config: DiskConfig) -> Self {
        Self::with_model(BlockModel::new(config))
    }

    /// Gives back what is complete, and begins what the guest asks for (B1, B2, B5).
    pub fn poll(&mut self, ram: &impl GuestRam, disk: &mut impl Disk, line: &mut impl InterruptLine) -> Next {
        self.work(ram, line, |model, [queue, ..], features| model.poll(queue, features, ram, disk))
    }

    /// Copies data of a write, from its byte `offset` on, for the disk (B3).
    ///
    /// # Errors
    ///
    /// [`DataError`].
    pub fn fetch(&self, tag: Tag, ram: &impl GuestRam, offset: u32, bytes: &mut [u8]) -> Result<(), DataError> {
        self.model.fetch(tag, ram, offset, bytes)
    }

    /// Copies data of a read, from its byte `offset` on, to the guest (B3).
    ///
    /// # Errors
    ///
    /// [`DataError`]. Some of the data may have been copied.
    pub fn store(&self, tag: Tag, ram: &impl GuestRam, offset: u32, bytes: &[u8]) -> Result<(), DataError> {
        self.model.store(tag, ram, offset, bytes)
    }

    /// The disk is done with a request (B4). The embedder polls the device, after any number of completions.
    ///
    /// # Errors
    ///
    /// [`Stale`]: there is no such request. (An orphan is one.)
    pub fn complete(&mut self, tag: Tag, result: Result<(), DiskError>) -> Result<(), Stale> {
        self.model.complete(tag, result)
    }

    /// The disk has another size. A request that began before may reach beyond it: the disk fails it.
    pub fn resize(&mut self, sectors: u64, line: &mut impl InterruptLine) {
        self.change_config(line, |model| model.resize(sectors));
    }
}
