// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `buffers=SIZE`: disks and cards whose buffers are spread over `SIZE` bytes of RAM. If the machine keeps only a part of the
//! RAM in memory, the device finds pages of them absent, and pages of its queue.
//!
//! A disk is written from all of the buffers, after all were filled, and then read into all of them, after all were filled
//! with something else. A card exchanges frames with another guest's, as in [`net`](super::net), and touches a part of
//! the buffers before each.

use twofold_abi::virt::VIRTIO_COUNT;
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

use super::dma::{self, Dma};
use super::{Failure, disk, net, transport};
use crate::memory::{Memory, PAGE};
use crate::uart::println;

/// Bytes of a request.
const REQUEST: usize = 64 << 10;
/// Frames that go there and back.
const FRAMES: u64 = 20;
/// Of the buffers, a part that is touched before each frame.
const PART: usize = 4;

/// Uses each disk that may be written, and each card.
pub fn run(memory: &Memory, size: u64) -> Result<(), Failure> {
    dma::begin(memory)?;
    let buffers = dma::pages((size / PAGE) as usize).ok_or(Failure::NoMemory)?;
    for place in 0..VIRTIO_COUNT {
        let Some(transport) = transport(place)? else { continue };
        match transport.device_type() {
            DeviceType::Block => whole_disk(place, transport, buffers)?,
            DeviceType::Network => frames(place, transport, buffers)?,
            _ => {}
        }
    }
    println!("guest check: ok");
    Ok(())
}

fn whole_disk(place: usize, transport: MmioTransport<'static>, buffers: &mut [u8]) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut disk = VirtIOBlk::<Dma, _>::new(transport).map_err(failed)?;
    let size = (disk.capacity() as usize * SECTOR_SIZE).min(buffers.len()) / REQUEST * REQUEST;
    let buffers = &mut buffers[..size];
    disk::fill(buffers, 0, WRITTEN);
    for (number, buffer) in buffers.chunks(REQUEST).enumerate() {
        disk.write_blocks(number * REQUEST / SECTOR_SIZE, buffer).map_err(failed)?;
    }
    disk::fill(buffers, 0, BETWEEN);
    for (number, buffer) in buffers.chunks_mut(REQUEST).enumerate() {
        disk.read_blocks(number * REQUEST / SECTOR_SIZE, buffer).map_err(failed)?;
    }
    disk::check(place, buffers, 0, WRITTEN)?;
    println!("virtio: {} KiB went to the disk of transport {place} and back", size >> 10);
    Ok(())
}

/// Contents of the buffers, as `disk` numbers them.
const WRITTEN: u8 = 1;
const BETWEEN: u8 = 2;

fn frames(place: usize, transport: MmioTransport<'static>, buffers: &mut [u8]) -> Result<(), Failure> {
    let mut parts = (0..PART).cycle();
    let size = buffers.len() / PART;
    net::run_with(place, transport, FRAMES, || {
        let part = parts.next().unwrap_or(0);
        for page in buffers[part * size..][..size].chunks_mut(PAGE as usize) {
            page[0] = page[0].wrapping_add(1);
        }
    })
}
