// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network card with a pair of queues (VIRTIO 1.2, 5.1), without offloads.
//!
//! Invariants:
//!
//! * A frame that the guest sends leaves by [`Port::send`] once, in order, unless the guest resets the device. Frames
//!   that are no Ethernet frames ([`FRAME_MIN`] to [`FRAME_MAX`] bytes), or that ask for an offload, are dropped.
//! * A frame of [`Port::incoming`] is consumed when it is in a buffer that the device is bound to give back.
//!
//! The model keeps no frame. A frame for which the port has no room stays in the guest's queue, so a slow port slows
//! the guest instead of losing its frames. The model's part of a state is the link: 1 byte, 1 if it is up.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::chain::Chain;
use super::device::{Model, Virtio};
use super::next::{Fault, Next, Stop, both};
use super::queue::{Queue, Used};
use super::state::{Reader, Writer, refuse};
use crate::line::InterruptLine;
use crate::ram::GuestRam;
use crate::state::StateError;

/// A virtio-net device.
pub type Net = Virtio<NetModel>;

/// What a card is plugged into.
pub trait Port {
    /// Is there room for a frame? If not, the embedder polls the device when there is.
    fn has_room(&self) -> bool;

    /// Takes a frame of the guest. It is called only when there is room.
    fn send(&mut self, frame: &[u8]);

    /// The oldest frame for the guest. When the first one comes, the embedder polls the device.
    fn incoming(&self) -> Option<&[u8]>;

    /// The oldest frame is the guest's, or was dropped.
    fn consume(&mut self);
}

/// Features of a network card.
pub mod feature {
    /// The configuration has the largest frame's payload.
    pub const MTU: u64 = 1 << 3;
    /// The configuration has the card's address.
    pub const MAC: u64 = 1 << 5;
    /// The configuration says whether the link is up.
    pub const STATUS: u64 = 1 << 16;
}

/// The shortest frame: two addresses and a type.
pub const FRAME_MIN: usize = 14;
/// The longest frame: the shortest, and [`MTU`] bytes.
pub const FRAME_MAX: usize = FRAME_MIN + MTU as usize;
/// The most bytes behind a frame's header.
pub const MTU: u16 = 1500;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Frames of one poll, in each direction.
const BUDGET: usize = 16;
/// Configuration: the link is up.
const LINK_UP: u16 = 1;
/// A header: the driver left a checksum to the device.
const NEEDS_CHECKSUM: u8 = 1;

/// The model behind the registers.
#[derive(Clone, Copy, Debug)]
pub struct NetModel {
    mac: [u8; 6],
    is_up: bool,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    mac: [u8; 6],
    status: U16,
    pairs: U16,
    mtu: U16,
}

/// What precedes each frame.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    flags: u8,
    segmentation: u8,
    header_length: U16,
    segment_size: U16,
    checksum_start: U16,
    checksum_offset: U16,
    buffers: U16,
}

const HEADER: usize = size_of::<Header>();

/// Bytes that are copied by words.
#[repr(align(8))]
struct Aligned([u8; HEADER + FRAME_MAX]);

impl Net {
    /// The card after a reset, with its link up.
    #[must_use]
    pub const fn new(mac: [u8; 6]) -> Self {
        Self::with_model(NetModel { mac, is_up: true })
    }

    /// Is the link up? A card whose link is down drops what the guest sends and receives nothing.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.model.is_up
    }

    /// The link comes up or goes down.
    pub fn set_link(&mut self, is_up: bool, line: &mut impl InterruptLine) {
        if self.model.is_up != is_up {
            self.change_config(line, |model| model.is_up = is_up);
        }
    }

    /// Moves frames in both directions.
    pub fn poll(&mut self, ram: &impl GuestRam, port: &mut impl Port, line: &mut impl InterruptLine) -> Next {
        self.work(ram, line, |model, [receive, transmit, ..], features| {
            // A page that one direction waits for does not stop the other.
            let sent = model.send(transmit, features, ram, port);
            let received = model.receive(receive, features, ram, port);
            both(sent, received)
        })
    }
}

impl NetModel {
    fn send(&self, queue: &mut Queue, features: u64, ram: &impl GuestRam, port: &mut impl Port) -> Result<Next, Stop> {
        queue.pay(ram)?;
        let mut chain = Chain::EMPTY;
        for step in 0..BUDGET {
            if step > 0 && ram.should_pause() {
                return Ok(Next::Again);
            }
            if !queue.is_notified || self.is_up && !port.has_room() {
                return Ok(Next::Idle);
            }
            if !queue.take(TRANSMIT as u8, ram, features, &mut chain)? {
                queue.rest(TRANSMIT as u8, ram, features)?;
                continue;
            }
            let (readable, writable) = (chain.readable(), chain.writable());
            let Some(length) = (readable as usize).checked_sub(HEADER) else {
                return Err(Fault::Short { readable, writable }.into());
            };
            let Aligned(mut bytes) = Aligned([0; HEADER + FRAME_MAX]);
            let is_frame = (FRAME_MIN..=FRAME_MAX).contains(&length) && self.is_up;
            if is_frame {
                let bytes = &mut bytes[..readable as usize];
                chain.read(ram, 0, bytes)?;
                if let Ok((header, frame)) = Header::read_from_prefix(bytes)
                    && header.flags & NEEDS_CHECKSUM == 0
                    && header.segmentation == 0
                {
                    port.send(frame);
                }
            }
            queue.advance();
            queue.finish(ram, Used { head: chain.head(), written: 0 })?;
        }
        Ok(Next::Again)
    }

    fn receive(
        &self,
        queue: &mut Queue,
        features: u64,
        ram: &impl GuestRam,
        port: &mut impl Port,
    ) -> Result<Next, Stop> {
        queue.pay(ram)?;
        let mut chain = Chain::EMPTY;
        for step in 0..BUDGET {
            if step > 0 && ram.should_pause() {
                return Ok(Next::Again);
            }
            let Some(frame) = port.incoming() else { return Ok(Next::Idle) };
            if !self.is_up || !(FRAME_MIN..=FRAME_MAX).contains(&frame.len()) {
                port.consume();
                continue;
            }
            if !queue.is_notified {
                return Ok(Next::Idle);
            }
            if !queue.take(RECEIVE as u8, ram, features, &mut chain)? {
                queue.rest(RECEIVE as u8, ram, features)?;
                continue;
            }
            let written = (HEADER + frame.len()) as u32;
            let (readable, writable) = (chain.readable(), chain.writable());
            if writable < written {
                return Err(Fault::Short { readable, writable }.into());
            }
            let header = Header { buffers: 1.into(), ..Header::new_zeroed() };
            chain.write(ram, 0, header.as_bytes())?;
            chain.write(ram, HEADER as u32, frame)?;
            port.consume();
            queue.advance();
            queue.finish(ram, Used { head: chain.head(), written })?;
        }
        Ok(Next::Again)
    }
}

impl Model for NetModel {
    const DEVICE: u32 = 1;
    const QUEUES: usize = 2;
    const STATE_MAX: usize = 1;

    fn features(&self) -> u64 {
        feature::MTU | feature::MAC | feature::STATUS
    }

    fn config(&self, offset: u64) -> u8 {
        let status = if self.is_up { LINK_UP } else { 0 };
        let config = Config { mac: self.mac, status: status.into(), pairs: 1.into(), mtu: MTU.into() };
        usize::try_from(offset).ok().and_then(|at| config.as_bytes().get(at).copied()).unwrap_or(0)
    }

    fn abandon(&mut self, _: usize) {}

    fn held(&self, _: usize) -> usize {
        0
    }

    fn save(&self, to: &mut Writer<'_>) -> Result<(), StateError> {
        to.put(&u8::from(self.is_up))
    }

    fn load(&mut self, from: &mut Reader<'_>, _: u64) -> Result<(), StateError> {
        let is_up: u8 = from.take()?;
        self.is_up = is_up == 1;
        refuse([(is_up > 1, "a link that is neither up nor down")])
    }
}
