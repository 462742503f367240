// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that works on requests in any order, and forgets what is not stable.

use twofold_devices::GuestRam;
use twofold_devices::virtio::Block;
use twofold_devices::virtio::block::{DataError, Disk, DiskConfig, DiskError, Full, Operation, Tag};

pub const SECTORS: u64 = 256;
pub const ID: [u8; 20] = *b"a disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[derive(Clone, Debug)]
pub struct FakeDisk {
    pub data: Vec<u8>,
    /// What a crash leaves.
    pub stable: Vec<u8>,
    pub pending: Vec<Pending>,
    pub room: usize,
    pub begun: usize,
}

/// A request in work.
#[derive(Clone, Debug)]
pub struct Pending {
    pub tag: Tag,
    pub operation: Operation,
    /// How many of its bytes are copied.
    pub done: usize,
    /// What a write brings. It is on the disk when the request ends.
    buffer: Vec<u8>,
}

pub fn config(is_read_only: bool) -> DiskConfig {
    DiskConfig { sectors: SECTORS, is_read_only, id: ID }
}

impl FakeDisk {
    pub fn new() -> Self {
        let data = vec![0; SECTORS as usize * 512];
        Self { stable: data.clone(), data, pending: Vec::new(), room: usize::MAX, begun: 0 }
    }

    /// Copies up to `piece` bytes of request `index`, or ends it if nothing is left to copy. True if it has ended.
    pub fn step(
        &mut self,
        index: usize,
        piece: usize,
        block: &mut Block,
        ram: &impl GuestRam,
    ) -> Result<bool, DataError> {
        let Pending { tag, operation, done, buffer } = &mut self.pending[index];
        let (sector, sectors) = range(*operation);
        let at = sector as usize * 512..(sector as usize + sectors as usize) * 512;
        let left = if buffer.is_empty() { 0 } else { (buffer.len() - *done).min(piece) };
        if left > 0 {
            let now = &mut buffer[*done..][..left];
            if let Operation::Read { .. } = operation {
                now.copy_from_slice(&self.data[at][*done..][..left]);
                block.store(*tag, ram, *done as u32, now)?;
            } else {
                block.fetch(*tag, ram, *done as u32, now)?;
            }
            *done += left;
            return Ok(false);
        }
        let is_stable = match *operation {
            Operation::Flush => {
                self.stable.clone_from(&self.data);
                false
            }
            Operation::Read { .. } => false,
            Operation::Write { is_durable, .. } => {
                self.data[at.clone()].copy_from_slice(buffer);
                is_durable
            }
            Operation::Discard { .. } => {
                self.data[at.clone()].fill(0xdd);
                false
            }
            Operation::WriteZeroes { is_durable, .. } => {
                self.data[at.clone()].fill(0);
                is_durable
            }
        };
        if is_stable {
            self.stable[at.clone()].copy_from_slice(&self.data[at]);
        }
        block.complete(*tag, Ok(())).expect("it was begun");
        self.pending.remove(index);
        Ok(true)
    }

    /// Gives up request `index`.
    pub fn fail(&mut self, index: usize, block: &mut Block) {
        let Pending { tag, .. } = self.pending.remove(index);
        block.complete(tag, Err(DiskError)).expect("it was begun");
    }

    /// Ends all requests, in order.
    pub fn finish(&mut self, block: &mut Block, ram: &impl GuestRam) {
        while !self.pending.is_empty() {
            self.step(0, usize::MAX, block, ram).unwrap();
        }
    }
}

impl Disk for FakeDisk {
    fn begin(&mut self, tag: Tag, operation: Operation) -> Result<(), Full> {
        assert!(self.pending.iter().all(|other| other.tag != tag), "a tag is used twice");
        if self.pending.len() >= self.room {
            return Err(Full);
        }
        let (sector, sectors) = range(operation);
        assert!(sector + u64::from(sectors) <= SECTORS, "{operation:?} is not on the disk");
        self.begun += 1;
        let has_data = matches!(operation, Operation::Read { .. } | Operation::Write { .. });
        let buffer = vec![0; if has_data { sectors as usize * 512 } else { 0 }];
        self.pending.push(Pending { tag, operation, done: 0, buffer });
        Ok(())
    }
}

pub fn range(operation: Operation) -> (u64, u32) {
    match operation {
        Operation::Flush => (0, 0),
        Operation::Read { sector, sectors }
        | Operation::Write { sector, sectors, .. }
        | Operation::Discard { sector, sectors }
        | Operation::WriteZeroes { sector, sectors, .. } => (sector, sectors),
    }
}
