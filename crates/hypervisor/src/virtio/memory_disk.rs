// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk in memory. It is zeroed when it is made, keeps its content over the guest's resets, and stays until the image ends.
//!
//! A flush and a discard have nothing to do.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_devices::virtio::block::{Block, DataError, Operation, SECTOR};
use twofold_devices::{GuestRam, RamError};
use twofold_stage2::{Features, Platform, Run};

use super::disk::{Counts, Extent, Moved, Request, Requests};
use crate::guest_ram::Ram;

/// Bytes that are copied between two looks for an interrupt: about 4,000 instructions.
const PIECE: usize = 4096;

/// Memory that is a disk.
pub(super) struct MemoryDisk {
    /// Each with the disk's byte at which it begins, which is a multiple of [`PIECE`].
    runs: Vec<(u64, Run)>,
    piece: Box<[u8; PIECE]>,
}

impl MemoryDisk {
    /// A disk in this memory, which is zeroed here.
    pub(super) fn new(memory: Vec<Run>, platform: &impl Platform, features: &Features) -> Self {
        let mut start = 0;
        let place = |run: Run| {
            run.zero(platform, features);
            let at = start;
            start += run.size();
            (at, run)
        };
        Self { runs: memory.into_iter().map(place).collect(), piece: Box::new([0; PIECE]) }
    }

    /// Works on all requests, piece by piece. One that meets an absent page does not hold up the others.
    pub(super) fn advance(
        &mut self,
        block: &mut Block,
        requests: &mut Requests,
        counts: &mut Counts,
        ram: &Ram<'_>,
    ) -> Moved {
        let mut moved = Moved::Nothing;
        for number in 0..twofold_devices::virtio::block::REQUESTS {
            let Some(request) = requests.get(number) else { continue };
            let is_over = loop {
                match self.piece(block, request, ram) {
                    Ok(true) => break true,
                    Ok(false) if !ram.should_pause() => {}
                    Ok(false) => return Moved::More,
                    Err(DataError::Ram(RamError::Absent(_))) => break false,
                    Err(_) => {
                        request.is_failed = true;
                        break true;
                    }
                }
            };
            if !is_over {
                continue;
            }
            requests.end(number, block, counts);
            moved = Moved::Ended;
            if ram.should_pause() {
                return moved;
            }
        }
        moved
    }

    /// Does the next piece of a request. Returns whether that was the last one.
    fn piece(&mut self, block: &Block, request: &mut Request, ram: &Ram<'_>) -> Result<bool, DataError> {
        let operation = request.operation;
        if matches!(operation, Operation::Flush | Operation::Discard { .. }) {
            return Ok(true);
        }
        let size = operation.sectors() * SECTOR;
        let at = operation.start() * SECTOR + u64::from(request.done);
        let place = self.runs.partition_point(|(start, _)| *start <= at).checked_sub(1);
        let (start, run) = place.and_then(|place| self.runs.get(place)).ok_or(DataError::Beyond)?;
        let inside = at - start;
        let count = (size - u64::from(request.done)).min(PIECE as u64).min(run.size() - inside);
        let (piece, platform) = (&mut self.piece[..count as usize], ram.memory().stage2().platform());
        match operation {
            Operation::Read { .. } => {
                run.read(platform, inside, piece);
                block.store(request.tag, ram, request.done, piece)?;
            }
            Operation::Write { .. } => {
                block.fetch(request.tag, ram, request.done, piece)?;
                run.write(platform, inside, piece);
            }
            _ => {
                piece.fill(0);
                run.write(platform, inside, piece);
            }
        }
        request.done += count as u32;
        Ok(u64::from(request.done) == size)
    }
}
