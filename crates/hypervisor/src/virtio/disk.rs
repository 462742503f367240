// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk: the model, the requests that it has begun, and the backing that works on them.
//!
//! Invariant: a request of the model that has begun (B2 of the model's steps) is in one place of [`Requests`], until the
//! backing has completed it (B4). That holds for orphans, too, so the model begins anew after a reset once the backing has
//! let go of them.

use alloc::boxed::Box;
use twofold_devices::virtio::Next;

use twofold_devices::virtio::block::{self, Block, DiskConfig, DiskError, Full, Operation, REQUESTS, SECTOR, Tag};
use twofold_devices::{GuestRam, InterruptLine};

use twofold_vmm::saved;

use super::machine_disk::MachineBacking;
use super::memory_disk::MemoryDisk;
use crate::guest_ram::Ram;

/// A guest's disk.
pub struct Disk {
    pub(super) block: Block,
    requests: Requests,
    backing: Backing,
    sectors: u64,
    is_read_only: bool,
    id: [u8; 20],
    pub(super) counts: Counts,
}

/// What a disk keeps its sectors in.
pub(super) enum Backing {
    Memory(MemoryDisk),
    Machine(Box<MachineBacking>),
}

/// What the guest has done.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) read: u64,
    pub(super) written: u64,
    pub(super) errors: u64,
}

/// The requests that have begun.
pub(super) struct Requests([Option<Request>; REQUESTS]);

/// A request that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) tag: Tag,
    pub(super) operation: Operation,
    /// Bytes that the backing has worked on, or begun to.
    pub(super) done: u32,
    /// Pieces that a disk of the machine works on.
    pub(super) in_flight: u8,
    /// A piece has failed, or the request is an orphan: the rest is not done.
    pub(super) is_failed: bool,
    /// The flush that ends a durable write has begun.
    pub(super) is_flushing: bool,
}

/// How far a backing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Nothing has ended, and nothing can go on before the backing's next event.
    Nothing,
    /// A request has ended.
    Ended,
    /// It has stopped in the middle.
    More,
}

impl Disk {
    pub(super) fn new(config: DiskConfig, backing: Backing) -> Self {
        let requests = Requests([None; REQUESTS]);
        let DiskConfig { sectors, is_read_only, id } = config;
        let block = Block::new(config);
        Self { block, requests, backing, sectors, is_read_only, id, counts: Counts::default() }
    }

    /// What it is for its guest.
    pub(super) fn identity(&self) -> saved::Disk {
        let Self { sectors, is_read_only, id, .. } = *self;
        saved::Disk { sectors, is_read_only, id }
    }

    /// Whether it can be saved: its content has to be where another machine reaches it.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Machine(_))
    }

    /// Whether the machine works on nothing of this disk's. Without a turn of the I/O task that stays so.
    pub(super) fn is_idle(&self) -> bool {
        match &self.backing {
            Backing::Memory(_) => true,
            Backing::Machine(machine) => machine.is_idle(),
        }
    }

    /// Begins, moves and gives back requests, until nothing is left or this CPU is needed elsewhere.
    pub(super) fn work(&mut self, ram: &Ram<'_>, line: &mut impl InterruptLine) -> Next {
        if let Backing::Machine(machine) = &mut self.backing
            && let Some(sectors) = machine.resized()
        {
            self.sectors = sectors;
            self.block.resize(sectors, line);
        }
        loop {
            let next = self.block.poll(ram, &mut self.requests, line);
            if let Next::Broken(_) = next {
                return next;
            }
            let (block, requests, counts) = (&mut self.block, &mut self.requests, &mut self.counts);
            let moved = match &mut self.backing {
                Backing::Memory(memory) => memory.advance(block, requests, counts, ram),
                Backing::Machine(machine) => machine.advance(block, requests, counts, ram),
            };
            match moved {
                Moved::Nothing => return next,
                Moved::More => return Next::Again,
                Moved::Ended if ram.should_pause() => return Next::Again,
                Moved::Ended => {}
            }
        }
    }
}

impl block::Disk for Requests {
    fn begin(&mut self, tag: Tag, operation: Operation) -> Result<(), Full> {
        let place = self.0.iter_mut().find(|place| place.is_none()).ok_or(Full)?;
        *place = Some(Request { tag, operation, done: 0, in_flight: 0, is_failed: false, is_flushing: false });
        Ok(())
    }
}

impl Requests {
    /// The request with this number.
    pub(super) fn get(&mut self, number: usize) -> Option<&mut Request> {
        self.0.get_mut(number)?.as_mut()
    }

    /// B4: the request with this number is complete.
    pub(super) fn end(&mut self, number: usize, block: &mut Block, counts: &mut Counts) {
        let Some(request) = self.0.get_mut(number).and_then(Option::take) else { return };
        let bytes = request.operation.sectors() * SECTOR;
        counts.requests += 1;
        match request.operation {
            _ if request.is_failed => counts.errors += 1,
            Operation::Read { .. } => counts.read += bytes,
            Operation::Write { .. } => counts.written += bytes,
            _ => {}
        }
        let result = if request.is_failed { Err(DiskError) } else { Ok(()) };
        // The model knows every request that is here.
        let _ = block.complete(request.tag, result);
    }
}

/// What backings ask of an operation.
pub(super) trait Extent {
    /// The first sector.
    fn start(&self) -> u64;
    /// How many sectors.
    fn sectors(&self) -> u64;
}

impl Extent for Operation {
    fn start(&self) -> u64 {
        match *self {
            Self::Read { sector, .. }
            | Self::Write { sector, .. }
            | Self::Discard { sector, .. }
            | Self::WriteZeroes { sector, .. } => sector,
            Self::Flush => 0,
        }
    }

    fn sectors(&self) -> u64 {
        match *self {
            Self::Read { sectors, .. }
            | Self::Write { sectors, .. }
            | Self::Discard { sectors, .. }
            | Self::WriteZeroes { sectors, .. } => sectors.into(),
            Self::Flush => 0,
        }
    }
}
