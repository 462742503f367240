// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest's disks and networks need of the machine's: the traits that EL2's drivers implement.
//!
//! Neither side waits for the other. A request goes to the driver by value, with its buffer, so no driver ever reaches a
//! guest's memory, and nothing of a guest changes because of the driver alone. A completion wakes the guest's I/O task
//! ([`Waker`]), which takes it when the guest may run.
//!
//! # A disk, in steps
//!
//! * D1: a guest's I/O task, or a vCPU, fills a [`Transfer`] and calls [`HostDisk::begin`].
//! * D2: the driver works on it: it has the buffer.
//! * D3: the driver, in its interrupt or its task, keeps what has ended for the client, and wakes that client.
//! * D4: the client's I/O task calls [`HostDisk::ended`] until there is nothing more.
//!
//! A client that has ended takes nothing any more. So a driver keeps what has ended for each client by itself, and has
//! room for all that the client has in flight, which is at most [`TRANSFERS`].

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};

use twofold_vmm::scheduler::EntityId;

use super::network::Uplink;
pub use crate::host_devices::disk::{Range, RangeMax};
use crate::schedule;

/// The most transfers that a client has in flight.
pub const TRANSFERS: usize = 8;
/// Bytes of a transfer's buffer: a whole number of pages, and of sectors.
pub const BUFFER: usize = 16 << 10;

/// A disk of the machine. Its lock, if it has one, is taken under that of a guest's device. Under it only the scheduler's
/// may be taken.
pub trait HostDisk: Sync {
    /// Its size, in sectors of 512 bytes.
    fn sectors(&self) -> u64;

    /// Whether it cannot be written.
    fn is_read_only(&self) -> bool;

    /// How large discards and zeroes may be.
    fn range_max(&self) -> RangeMax;

    /// A new client, for a guest's disk. It is called before any guest runs.
    fn open(&self, waker: Waker) -> Client;

    /// D1. The transfers of a client may end in any order. A flush ends when all writes that had ended before it began are
    /// stable.
    ///
    /// # Errors
    ///
    /// There is no room: the transfer comes back, and the client is woken when there is room.
    fn begin(&self, client: Client, transfer: Transfer) -> Result<(), Transfer>;

    /// Whether the disk works on no transfer of this client. What has ended may not have been taken yet (D4).
    fn is_idle(&self, client: Client) -> bool;

    /// D4: a transfer of this client that has ended.
    fn ended(&self, client: Client) -> Option<Ended>;
}

/// A card of the machine.
pub trait HostCard: Sync {
    /// From now on frames for the outside are taken from this end of a network, and frames from the outside go there. It is
    /// called once, before any guest runs.
    fn attach(&self, uplink: Uplink);
}

/// A client of a disk, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client(pub usize);

/// A piece of work for a disk, with its buffer.
#[derive(Debug)]
pub struct Transfer {
    /// The client's name for it.
    pub ticket: u32,
    /// What to do.
    pub work: Work,
    /// Bytes of `buffer` that are read or written: a multiple of 512; 0 if there is no data.
    pub length: usize,
    /// [`BUFFER`] bytes.
    pub buffer: Box<[u8]>,
}

/// What a disk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read from this sector on.
    Read(u64),
    /// Write from this sector on.
    Write(u64),
    /// Make stable what has ended.
    Flush,
    /// These sectors are no longer needed.
    Discard(Range),
    /// Make these sectors zero. Their place on the disk may be given up if the second field is set.
    Zero(Range, bool),
}

/// A transfer that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The transfer, with its buffer.
    pub transfer: Transfer,
    /// The disk has done it. Otherwise it reports an error, and the buffer may have any content.
    pub is_good: bool,
}

/// Wakes the task that polls a device.
#[derive(Clone, Copy, Debug)]
pub struct Waker {
    task: EntityId,
    is_due: &'static AtomicBool,
}

impl Waker {
    /// A waker of this task, for one of its devices. It is made before any guest runs, and stays for ever.
    #[must_use]
    pub fn new(task: EntityId) -> Self {
        Self { task, is_due: Box::leak(Box::new(AtomicBool::new(false))) }
    }

    /// The device is to be polled. It takes the scheduler's lock only.
    pub fn wake(&self) {
        // What the caller wrote before is seen by the poll that follows `take`.
        self.is_due.store(true, Ordering::Release);
        schedule::wake(self.task);
    }

    /// The device is to be polled, by the task that runs already.
    pub fn note(&self) {
        self.is_due.store(true, Ordering::Release);
    }

    /// Whether the device is to be polled, since this was last asked.
    pub fn take(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::Acquire)
    }
}
