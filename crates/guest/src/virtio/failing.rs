// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `failing=ROUNDS`: writes and reads all of each disk, piece by piece, and counts the requests that end with an I/O error.
//!
//! A request that fails is made once more. A piece of which both fail is gone, and so must be all that come after it: the
//! disk has become smaller. What is not gone must have what was written there, or the program fails.
//!
//! `shrinking`: waits without a request until each disk says another size; looks that the disk works up to there, and no further.

use twofold_abi::virt::{VIRTIO_BASE, VIRTIO_SIZE};
use virtio_drivers::Error;
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::MmioTransport;

use super::Failure;
use super::disk::{check, each_disk, fill};
use super::dma::{self, Dma};
use crate::devices::load;
use crate::memory::Memory;
use crate::uart::println;

/// Sectors of a piece.
const PIECE: usize = 2;

pub fn run(memory: &Memory, rounds: u64) -> Result<(), Failure> {
    each_disk(memory, |place, transport| use_disk(place, transport, rounds))
}

pub fn shrinking(memory: &Memory) -> Result<(), Failure> {
    each_disk(memory, until_smaller)
}

fn use_disk(place: usize, transport: MmioTransport<'static>, rounds: u64) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut disk = VirtIOBlk::<Dma, _>::new(transport).map_err(failed)?;
    let buffer = dma::pages(1).ok_or(Failure::NoMemory)?;
    let piece = &mut buffer[..PIECE * SECTOR_SIZE];
    let sectors = disk.capacity() as usize;
    let (mut failures, mut end) = (0, sectors);
    for round in 0..rounds as u8 {
        end = sectors;
        for sector in (0..sectors).step_by(PIECE) {
            fill(piece, sector, round);
            let mut is_there = attempt(&mut failures, || disk.write_blocks(sector, piece)).map_err(failed)?;
            piece.fill(0);
            is_there &= attempt(&mut failures, || disk.read_blocks(sector, piece)).map_err(failed)?;
            match is_there {
                true if end < sector => return Err(Failure::Content(place, sector)),
                true => check(place, piece, sector, round)?,
                false => end = end.min(sector),
            }
        }
        attempt(&mut failures, || disk.flush()).map_err(failed)?;
    }
    println!("virtio: {end} of {sectors} sectors are left, and {failures} requests failed");
    Ok(())
}

fn until_smaller(place: usize, transport: MmioTransport<'static>) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut disk = VirtIOBlk::<Dma, _>::new(transport).map_err(failed)?;
    let buffer = dma::pages(1).ok_or(Failure::NoMemory)?;
    let piece = &mut buffer[..PIECE * SECTOR_SIZE];
    let before = disk.capacity() as usize;
    let mut failures = 0;
    if !attempt(&mut failures, || disk.write_blocks(before - PIECE, piece)).map_err(failed)? {
        return Err(Failure::Content(place, before));
    }
    println!("virtio: the disk has {before} sectors");
    // The first word of the configuration. Reading it has the device do nothing.
    let capacity = VIRTIO_BASE + place as u64 * VIRTIO_SIZE + 0x100;
    while load(capacity) as usize == before {}
    let now = load(capacity) as usize;
    let mut works = |sector| attempt(&mut failures, || disk.read_blocks(sector, piece)).map_err(failed);
    if !works(0)? || !works(now - PIECE)? || works(now)? || works(before - PIECE)? {
        return Err(Failure::Content(place, now));
    }
    println!("virtio: the disk has {now} sectors now");
    Ok(())
}

/// Makes a request, and once more if it ends with an I/O error. Returns whether one was done.
fn attempt(failures: &mut u64, mut request: impl FnMut() -> Result<(), Error>) -> Result<bool, Error> {
    for _ in 0..2 {
        match request() {
            Ok(()) => return Ok(true),
            Err(Error::IoError) => *failures += 1,
            Err(other) => return Err(other),
        }
    }
    Ok(false)
}
