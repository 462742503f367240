// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `exchange`: each card sends frames with numbers that rise, and a peer outside sends each one back, until it sends the last
//! number that there is. Both may be somewhere else meanwhile, so frames may be lost. What comes must be whole, must
//! have been sent, and must come once, in order.

use twofold_abi::virt::VIRTIO_COUNT;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

use super::net::{ALL, Card, PATIENCE};
use super::{Failure, dma, transport};
use crate::memory::Memory;
use crate::uart::println;

/// The peer has had enough.
const END: u64 = u64::MAX;

pub fn run(memory: &Memory) -> Result<(), Failure> {
    dma::begin(memory)?;
    for place in 0..VIRTIO_COUNT {
        match transport(place)? {
            Some(transport) if transport.device_type() == DeviceType::Network => exchange(place, transport)?,
            _ => {}
        }
    }
    println!("guest check: ok");
    Ok(())
}

fn exchange(place: usize, transport: MmioTransport<'static>) -> Result<(), Failure> {
    let mut card = Card::new(place, transport)?;
    println!("exchange: card {:x?} begins", card.mac);
    let (mut sent, mut came, mut last) = (0, 0_u64, 0);
    loop {
        sent += 1;
        card.send(ALL, sent)?;
        // A frame that is lost is not sent again: the next one takes its place.
        for _ in 0..10 * PATIENCE {
            match card.receive()? {
                None => continue,
                Some(frame) if frame.number == END => {
                    println!("exchange: {came} frames of {sent} came back");
                    return Ok(());
                }
                Some(frame) if frame.is_whole && frame.number > last && frame.number <= sent => last = frame.number,
                Some(frame) => return Err(Failure::Frame(frame.number, last + 1)),
            }
            came += 1;
            if last == sent {
                break;
            }
        }
    }
}
