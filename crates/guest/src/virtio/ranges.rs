// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `ranges`: zeroes and a discard on each disk that may be written, which have exactly their effect. The driver of the crate
//! `virtio-drivers` has no such requests, so they are made here, on its queue.

use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceStatus, Transport};

use super::disk::{check, each_disk, fill};
use super::dma::{self, Dma};
use super::{Failure, transport};
use crate::memory::Memory;
use crate::uart::println;

/// Sectors of each range.
const RANGE: usize = 8;
/// Ranges that are written, one after the other.
const RANGES: usize = 8;
/// The ranges that become zero, that may be given up besides, and that is discarded.
const ZERO: usize = 1;
const UNMAPPED: usize = 3;
const DISCARDED: usize = 5;

/// Kinds of requests, and the flag of zeroes (VIRTIO 1.2, 5.2.6).
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const UNMAP: u32 = 1;
/// VERSION_1, DISCARD, WRITE_ZEROES; and FLUSH, without which each write is flushed.
const FEATURES: u64 = 1 << 32 | 1 << 13 | 1 << 14 | 1 << 9;
/// Statuses of requests.
const OK: u8 = 0;
const IO_ERROR: u8 = 1;

pub fn run(memory: &Memory) -> Result<(), Failure> {
    each_disk(memory, use_disk)
}

fn use_disk(place: usize, first: MmioTransport<'static>) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut disk = VirtIOBlk::<Dma, _>::new(first).map_err(failed)?;
    let sectors = disk.capacity();
    let buffer = dma::pages(RANGES * RANGE * SECTOR_SIZE / 4096).ok_or(Failure::NoMemory)?;
    fill(buffer, 0, 1);
    disk.write_blocks(0, buffer).map_err(failed)?;
    drop(disk);

    let again = || transport(place)?.ok_or(Failure::Content(place, 0));
    let mut raw = Raw::new(again()?).map_err(failed)?;
    let at = |range: usize| (range * RANGE) as u64;
    for (kind, sector, flags, expected) in [
        (WRITE_ZEROES, at(ZERO), 0, OK),
        (WRITE_ZEROES, at(UNMAPPED), UNMAP, OK),
        (DISCARD, at(DISCARDED), 0, OK),
        (WRITE_ZEROES, sectors, 0, IO_ERROR),
        (DISCARD, sectors - RANGE as u64 + 1, 0, IO_ERROR),
    ] {
        let status = raw.request(kind, sector, flags).map_err(failed)?;
        if status != expected {
            println!("virtio: request {kind} of sector {sector} ends with status {status}");
            return Err(Failure::Content(place, sector as usize));
        }
    }
    drop(raw);

    let mut disk = VirtIOBlk::<Dma, _>::new(again()?).map_err(failed)?;
    buffer.fill(0xff);
    disk.read_blocks(0, buffer).map_err(failed)?;
    for (range, bytes) in buffer.chunks(RANGE * SECTOR_SIZE).enumerate() {
        match range {
            ZERO | UNMAPPED if bytes.iter().any(|byte| *byte != 0) => {
                return Err(Failure::Content(place, range * RANGE));
            }
            ZERO | UNMAPPED | DISCARDED => {}
            _ => check(place, bytes, range * RANGE, 1)?,
        }
    }
    println!("virtio: zeroes and a discard on transport {place}");
    Ok(())
}

/// A disk without a driver.
struct Raw {
    // It goes first: its drop resets the device.
    transport: MmioTransport<'static>,
    queue: VirtQueue<Dma, 4>,
}

impl Raw {
    fn new(mut transport: MmioTransport<'static>) -> Result<Self, virtio_drivers::Error> {
        let driver = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
        transport.set_status(DeviceStatus::empty());
        transport.set_status(driver);
        let features = transport.read_device_features() & FEATURES;
        if features != FEATURES {
            return Err(virtio_drivers::Error::Unsupported);
        }
        transport.write_driver_features(features);
        transport.set_status(driver | DeviceStatus::FEATURES_OK);
        let queue = VirtQueue::new(&mut transport, 0, false, false)?;
        transport.finish_init();
        Ok(Self { transport, queue })
    }

    /// Makes a request for [`RANGE`] sectors, and returns its status.
    fn request(&mut self, kind: u32, sector: u64, flags: u32) -> Result<u8, virtio_drivers::Error> {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        let mut range = [0; 16];
        range[..8].copy_from_slice(&sector.to_le_bytes());
        range[8..12].copy_from_slice(&(RANGE as u32).to_le_bytes());
        range[12..].copy_from_slice(&flags.to_le_bytes());
        let mut status = [0xff];
        self.queue.add_notify_wait_pop(&[&header, &range], &mut [&mut status], &mut self.transport)?;
        Ok(status[0])
    }
}
