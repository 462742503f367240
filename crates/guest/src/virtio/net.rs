// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network card, and the frames that it exchanges with another guest's.
//!
//! A card calls for the other one, to all, until it hears it. Then the one with the lower address sends frame 1, the other
//! sends it back, and so on. Each frame has its number and a content by that number, and a length that goes up and down.
//! A frame of another kind is skipped. The last answer may find the other guest gone, so the one that answers ends first
//! by a frame of its own.

use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::transport::mmio::MmioTransport;

use super::Failure;
use super::dma::{self, Dma};
use crate::uart::println;

/// An experimental type of frame.
const KIND: [u8; 2] = [0x88, 0xb5];
pub(super) const ALL: [u8; 6] = [0xff; 6];
/// Bytes before a frame.
const HEADER: usize = 12;
/// Two addresses, the type, and the number.
const HEAD: usize = 14 + 8;
/// A call, which has no number.
const CALL: u64 = u64::MAX;
/// Rounds of looking for a frame before the call is repeated.
pub(super) const PATIENCE: u32 = 100_000;

type Net = VirtIONetRaw<Dma, MmioTransport<'static>, 16>;

pub(super) struct Card {
    net: Net,
    place: usize,
    pub(super) mac: [u8; 6],
    out: &'static mut [u8],
    input: &'static mut [u8],
    token: u16,
}

/// A frame that came.
pub(super) struct Came {
    pub(super) from: [u8; 6],
    pub(super) number: u64,
    pub(super) is_whole: bool,
}

pub fn run(place: usize, transport: MmioTransport<'static>, frames: u64) -> Result<(), Failure> {
    run_with(place, transport, frames, || ())
}

/// The same, with something else to do before each frame that is sent.
pub(super) fn run_with(
    place: usize,
    transport: MmioTransport<'static>,
    frames: u64,
    mut before: impl FnMut(),
) -> Result<(), Failure> {
    let mut card = Card::new(place, transport)?;
    let other = card.meet()?;
    println!("virtio: card {:x?} hears card {other:x?}", card.mac);
    if card.mac < other {
        for number in 1..=frames {
            before();
            card.send(other, number)?;
            card.next(number)?;
        }
    } else {
        for number in 1..=frames {
            card.next(number)?;
            before();
            card.send(other, number)?;
        }
    }
    println!("virtio: {frames} frames went there and back");
    Ok(())
}

impl Card {
    pub(super) fn new(place: usize, transport: MmioTransport<'static>) -> Result<Self, Failure> {
        let failed = |why| Failure::Driver(place, why);
        let mut net = Net::new(transport).map_err(failed)?;
        let out = dma::pages(1).ok_or(Failure::NoMemory)?;
        let input = dma::pages(1).ok_or(Failure::NoMemory)?;
        net.fill_buffer_header(out).map_err(failed)?;
        // SAFETY: the buffer is the card's alone, for ever.
        let token = unsafe { net.receive_begin(&mut input[..2048]) }.map_err(failed)?;
        let mac = net.mac_address();
        Ok(Self { net, place, mac, out, input, token })
    }

    /// Calls until another card is heard, and answers it once more, so that it hears this one, too.
    fn meet(&mut self) -> Result<[u8; 6], Failure> {
        loop {
            self.send(ALL, CALL)?;
            for _ in 0..PATIENCE {
                if let Some(came) = self.receive()?
                    && came.number == CALL
                {
                    self.send(ALL, CALL)?;
                    return Ok(came.from);
                }
            }
        }
    }

    /// Waits for the frame with this number.
    fn next(&mut self, number: u64) -> Result<(), Failure> {
        loop {
            match self.receive()? {
                // A call that was late.
                Some(Came { number: CALL, .. }) | None => {}
                Some(came) if came.number == number && came.is_whole => return Ok(()),
                Some(came) => return Err(Failure::Frame(came.number, number)),
            }
        }
    }

    pub(super) fn send(&mut self, to: [u8; 6], number: u64) -> Result<(), Failure> {
        let length = length(number);
        let frame = &mut self.out[HEADER..][..length];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&KIND);
        frame[14..HEAD].copy_from_slice(&number.to_be_bytes());
        for (place, byte) in frame[HEAD..].iter_mut().enumerate() {
            *byte = content(number, place);
        }
        let failed = |why| Failure::Driver(self.place, why);
        self.net.send(&self.out[HEADER..HEADER + length]).map_err(failed)
    }

    /// A frame of this program's, if one has come.
    pub(super) fn receive(&mut self) -> Result<Option<Came>, Failure> {
        let failed = |why| Failure::Driver(self.place, why);
        if self.net.poll_receive().is_none() {
            return Ok(None);
        }
        let buffer = &mut self.input[..2048];
        // SAFETY: the buffer is that of the token, and nothing else uses it.
        let (header, length) = unsafe { self.net.receive_complete(self.token, buffer) }.map_err(failed)?;
        let frame = &buffer[header..header + length];
        let came = (length >= HEAD && frame[12..14] == KIND).then(|| {
            let mut from = [0; 6];
            from.copy_from_slice(&frame[6..12]);
            let mut number = [0; 8];
            number.copy_from_slice(&frame[14..HEAD]);
            let number = u64::from_be_bytes(number);
            let mut rest = frame[HEAD..].iter().enumerate();
            let is_whole = frame.len() == self::length(number) && rest.all(|(at, byte)| *byte == content(number, at));
            Came { from, number, is_whole }
        });
        // SAFETY: as in `new`.
        self.token = unsafe { self.net.receive_begin(buffer) }.map_err(failed)?;
        Ok(came)
    }
}

/// The bytes of a frame: all lengths come, the shortest and the longest first.
fn length(number: u64) -> usize {
    const MOST: usize = 1514;
    match number {
        CALL => HEAD,
        1 => HEAD,
        2 => MOST,
        _ => HEAD + (number as usize * 97) % (MOST - HEAD + 1),
    }
}

fn content(number: u64, place: usize) -> u8 {
    (number as u8).wrapping_mul(31).wrapping_add(place as u8)
}
