// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk: small and large requests, each sector with a content of its own; a flush; and a reset with requests in flight.

use twofold_abi::virt::VIRTIO_COUNT;
use virtio_drivers::device::blk::{BlkReq, BlkResp, SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

use super::dma::{self, Dma};
use super::{Failure, transport};
use crate::memory::Memory;
use crate::uart::println;

/// Sectors of the largest request.
const LARGE: usize = 256;

/// Runs a program of its own on each disk: `run` gets its place among the transports, and its transport.
pub fn each_disk(
    memory: &Memory,
    mut run: impl FnMut(usize, MmioTransport<'static>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    dma::begin(memory)?;
    for place in 0..VIRTIO_COUNT {
        match transport(place)? {
            Some(transport) if transport.device_type() == DeviceType::Block => run(place, transport)?,
            _ => {}
        }
    }
    println!("guest check: ok");
    Ok(())
}

pub fn run(place: usize, first: MmioTransport<'static>) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut disk = VirtIOBlk::<Dma, _>::new(first).map_err(failed)?;
    let (sectors, is_read_only) = (disk.capacity() as usize, disk.readonly());
    let mut id = [0; 20];
    let length = disk.device_id(&mut id).map_err(failed)?;
    let name = core::str::from_utf8(&id[..length]).unwrap_or("?");
    println!("virtio: disk {name:?} has {sectors} sectors, read-only: {is_read_only}");
    let buffer = dma::pages(LARGE * SECTOR_SIZE / 4096).ok_or(Failure::NoMemory)?;
    if is_read_only {
        disk.read_blocks(0, buffer).map_err(failed)?;
        if disk.write_blocks(0, &buffer[..SECTOR_SIZE]).is_ok() {
            return Err(Failure::Content(place, 0));
        }
        return Ok(());
    }
    // The ends, one sector at a time, and requests of all sizes between.
    let mut count = 1;
    for round in 0..2 {
        for sector in [0, 1, 7, sectors / 2, sectors - LARGE, sectors - 1] {
            let count = count.min(sectors - sector);
            fill(&mut buffer[..count * SECTOR_SIZE], sector, round);
            disk.write_blocks(sector, &buffer[..count * SECTOR_SIZE]).map_err(failed)?;
            buffer.fill(0);
            disk.read_blocks(sector, &mut buffer[..count * SECTOR_SIZE]).map_err(failed)?;
            check(place, &buffer[..count * SECTOR_SIZE], sector, round)?;
        }
        disk.flush().map_err(failed)?;
        count = LARGE;
    }
    if disk.read_blocks(sectors, &mut buffer[..SECTOR_SIZE]).is_ok() {
        return Err(Failure::Content(place, sectors));
    }
    for round in 2..ROUNDS {
        disk = reset_in_flight(place, disk, buffer, round)?;
    }
    println!("virtio: disk {name:?} was reset {} times with requests in flight", ROUNDS - 2);
    Ok(())
}

/// Rounds of which each has a content of its own.
const ROUNDS: u8 = 20;

/// Begins requests, resets the device, and looks that it works anew and has lost nothing that was complete.
fn reset_in_flight(
    place: usize,
    mut disk: VirtIOBlk<Dma, MmioTransport<'static>>,
    buffer: &mut [u8],
    round: u8,
) -> Result<VirtIOBlk<Dma, MmioTransport<'static>>, Failure> {
    let failed = |why| Failure::Driver(place, why);
    let (written, rest) = buffer.split_at_mut(4 * SECTOR_SIZE);
    fill(written, 8, round);
    disk.write_blocks(8, written).map_err(failed)?;
    let mut requests: [(BlkReq, BlkResp); 4] = Default::default();
    for (number, (request, response)) in requests.iter_mut().enumerate() {
        let part = &mut rest[number * 8192..][..8192];
        // SAFETY: the buffers live until the device is reset, and nothing else uses them until then.
        unsafe { disk.read_blocks_nb(64 * number, request, part, response) }.map_err(failed)?;
    }
    drop(disk);
    // The new driver begins with a reset.
    let again = transport(place)?.ok_or(Failure::Content(place, 0))?;
    let mut disk = VirtIOBlk::<Dma, _>::new(again).map_err(failed)?;
    written.fill(0);
    disk.read_blocks(8, written).map_err(failed)?;
    check(place, written, 8, round)?;
    Ok(disk)
}

pub(super) fn fill(bytes: &mut [u8], first: usize, round: u8) {
    for (number, sector) in bytes.chunks_mut(SECTOR_SIZE).enumerate() {
        for (place, byte) in sector.iter_mut().enumerate() {
            *byte = value(first + number, place, round);
        }
    }
}

pub(super) fn check(place: usize, bytes: &[u8], first: usize, round: u8) -> Result<(), Failure> {
    for (number, sector) in bytes.chunks(SECTOR_SIZE).enumerate() {
        let is_good = sector.iter().enumerate().all(|(at, byte)| *byte == value(first + number, at, round));
        if !is_good {
            return Err(Failure::Content(place, first + number));
        }
    }
    Ok(())
}

fn value(sector: usize, place: usize, round: u8) -> u8 {
    (sector as u8).wrapping_mul(31).wrapping_add(place as u8).wrapping_add(round.wrapping_mul(101))
        ^ (sector >> 8) as u8
}
