// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `virtio=FRAMES`: uses each virtio device of the machine with the drivers of the crate `virtio-drivers`.
//!
//! Transports are looked for at all of their places. A disk that may be written is written and read back, and reset with
//! requests in flight. Random bytes have to differ. A card exchanges frames with that of another guest, which runs
//! the same program: the one whose address is lower asks, and the other answers ([`net`]). With 0 frames the cards are left
//! alone. [`buffers`] spreads buffers over much RAM, [`balloon`] gives RAM up, [`storm`] is a driver that breaks the rules, [`failing`] uses disks that report errors,
//! [`ranges`] discards, [`busy`] has several requests in flight, and [`exchange`] sends frames to a peer outside while the guest moves.

pub mod balloon;
pub mod buffers;
pub mod busy;
mod disk;
mod dma;
pub mod exchange;
pub mod failing;
mod net;
pub mod ranges;
pub mod storm;

use core::ptr::NonNull;

use twofold_abi::virt::{VIRTIO_BASE, VIRTIO_COUNT, VIRTIO_SIZE};
use virtio_drivers::device::rng::VirtIORng;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};

use crate::devices;
use crate::memory::Memory;
use crate::uart::println;
use dma::Dma;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("no RAM is free for queues")]
    NoMemory,
    #[error("transport {0} does not answer: {1}")]
    Transport(usize, virtio_drivers::transport::mmio::MmioError),
    #[error("transport {0}: {1}")]
    Driver(usize, virtio_drivers::Error),
    #[error("the disk of transport {0} has at sector {1} what was not written there")]
    Content(usize, usize),
    #[error("there is no balloon")]
    NoBalloon,
    #[error("the page at {0:#x} has {1:#x}")]
    Page(u64, u64),
    #[error("the random bytes are {0:x?}")]
    Random([u8; 16]),
    #[error("a frame came with the number {0}, and {1} is next")]
    Frame(u64, u64),
}

/// Uses each device.
pub fn run(memory: &Memory, frames: u64) -> Result<(), Failure> {
    dma::begin(memory)?;
    let mut found = 0;
    for place in 0..VIRTIO_COUNT {
        let Some(transport) = transport(place)? else { continue };
        found += 1;
        match transport.device_type() {
            DeviceType::Block => disk::run(place, transport)?,
            DeviceType::Network if frames == 0 => {}
            DeviceType::Network => net::run(place, transport, frames)?,
            DeviceType::EntropySource => random(place, transport)?,
            other => println!("virtio: transport {place} has a device of the kind {other:?}"),
        }
    }
    println!("virtio: {found} devices");
    println!("guest check: ok");
    Ok(())
}

/// The transport at a place, if a device is there.
fn transport(place: usize) -> Result<Option<MmioTransport<'static>>, Failure> {
    const DEVICE: u64 = 8;
    let base = (VIRTIO_BASE + place as u64 * VIRTIO_SIZE) as usize;
    let device = devices::load(base as u64 + DEVICE);
    let header = core::ptr::with_exposed_provenance_mut::<VirtIOHeader>(base);
    let Some(header) = NonNull::new(header).filter(|_| device != 0) else { return Ok(None) };
    // SAFETY: the registers of a transport, which nothing else uses while its device is used.
    unsafe { MmioTransport::new(header, VIRTIO_SIZE as usize) }.map(Some).map_err(|why| Failure::Transport(place, why))
}

fn random(place: usize, transport: MmioTransport<'static>) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut driver = VirtIORng::<Dma, _>::new(transport).map_err(failed)?;
    let mut both = [[0; 16]; 2];
    for bytes in &mut both {
        let count = driver.request_entropy(bytes).map_err(failed)?;
        if count != bytes.len() || *bytes == [0; 16] {
            return Err(Failure::Random(*bytes));
        }
    }
    if both[0] == both[1] {
        return Err(Failure::Random(both[0]));
    }
    println!("virtio: random bytes");
    Ok(())
}
