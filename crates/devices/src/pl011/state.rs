// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A UART's whole state, as bytes.
//!
//! All numbers are little-endian.
//!
//! | offset | type | content |
//! |---|---|---|
//! | 0 | u16 | version: 1 |
//! | 2 | u16 | CR |
//! | 4 | u16 | IMSC |
//! | 6 | u16 | RIS |
//! | 8 | u16 | IBRD |
//! | 10 | u8 | FBRD |
//! | 11 | u8 | LCR_H |
//! | 12 | u8 | IFLS |
//! | 13 | u8 | DMACR |
//! | 14 | u8 | ILPR |
//! | 15 | u8 | RSR |
//! | 16 | u8 | 1 if a character was lost since the last one that entered the receive FIFO, else 0 |
//! | 17 | u8 | characters in the receive FIFO |
//! | 18 | u8 | bytes in the transmit FIFO |
//! | 19 | u8 | 0 |
//! | 20 | u16 x 32 | the receive FIFO, the oldest character first, as DR returns it; unused places are 0 |
//! | 84 | u8 x 32 | the transmit FIFO, the oldest byte first; unused places are 0 |

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DMACR_BITS, FBRD_BITS, IFLS_BITS, OVERRUN, Pl011, STATUS_OE, control, error, interrupt};
use crate::fifo::{DEPTH, Fifo};
use crate::state::StateError;

const VERSION: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    version: U16,
    control: U16,
    mask: U16,
    raw: U16,
    baud_integer: U16,
    baud_fraction: u8,
    line_control: u8,
    levels: u8,
    dma: u8,
    low_power: u8,
    status: u8,
    overrun: u8,
    received: u8,
    waiting: u8,
    reserved: u8,
    receive: [U16; DEPTH],
    transmit: [u8; DEPTH],
}

impl Pl011 {
    /// Bytes of a state.
    pub const STATE_SIZE: usize = size_of::<Row>();

    /// The whole state. The line is not part of it: its level is [`interrupt`](Self::interrupt).
    #[must_use]
    pub fn state(&self) -> [u8; Self::STATE_SIZE] {
        let mut row = Row {
            version: VERSION.into(),
            control: self.control.into(),
            mask: self.mask.into(),
            raw: self.raw.into(),
            baud_integer: self.baud_integer.into(),
            baud_fraction: self.baud_fraction,
            line_control: self.line_control,
            levels: self.levels,
            dma: self.dma,
            low_power: self.low_power,
            status: self.status,
            overrun: self.overrun.into(),
            received: self.receive.len() as u8,
            waiting: self.transmit.len() as u8,
            reserved: 0,
            receive: [U16::ZERO; DEPTH],
            transmit: [0; DEPTH],
        };
        for (place, character) in row.receive.iter_mut().zip(self.receive.iter()) {
            *place = character.into();
        }
        for (place, byte) in row.transmit.iter_mut().zip(self.transmit.iter()) {
            *place = byte;
        }
        zerocopy::transmute!(row)
    }

    /// The UART that had this state. The embedder then sets the line to [`interrupt`](Self::interrupt).
    pub fn from_state(bytes: &[u8]) -> Result<Self, StateError> {
        let length = StateError::Length { found: bytes.len(), wanted: Self::STATE_SIZE };
        let row = Row::read_from_bytes(bytes).map_err(|_| length)?;
        if row.version != VERSION {
            return Err(StateError::Version(row.version.get()));
        }
        let (received, waiting) = (usize::from(row.received), usize::from(row.waiting));
        let mut uart = Self {
            receive: Fifo::new(),
            transmit: Fifo::new(),
            overrun: row.overrun != 0,
            status: row.status,
            low_power: row.low_power,
            baud_integer: row.baud_integer.get(),
            baud_fraction: row.baud_fraction,
            line_control: row.line_control,
            control: row.control.get(),
            levels: row.levels,
            mask: row.mask.get(),
            raw: row.raw.get(),
            dma: row.dma,
        };
        let waits = uart.raw & (interrupt::RX | interrupt::RT) != 0;
        let character = error::ALL | OVERRUN | 0xff;
        for (impossible, why) in [
            (uart.control & !control::ALL != 0, "reserved bits of CR"),
            ((uart.mask | uart.raw) & !interrupt::ALL != 0, "reserved bits of IMSC or RIS"),
            (uart.baud_fraction & !FBRD_BITS != 0, "reserved bits of FBRD"),
            (uart.levels & !IFLS_BITS != 0, "reserved bits of IFLS"),
            (uart.dma & !DMACR_BITS != 0, "reserved bits of DMACR"),
            (uart.status > (STATUS_OE << 1) - 1, "reserved bits of RSR"),
            (row.overrun > 1, "an overrun that is neither 0 nor 1"),
            (row.reserved != 0, "a reserved byte"),
            (received > uart.depth(), "more characters than the receive FIFO has places"),
            (waiting > DEPTH, "more bytes than the transmit FIFO has places"),
            (waits && received == 0, "a receive interrupt without a character"),
            (row.receive.iter().any(|place| place.get() & !character != 0), "reserved bits of a character"),
            (row.receive.iter().skip(received).any(|&place| place != 0), "a character in an unused place"),
            (row.transmit.iter().skip(waiting).any(|&place| place != 0), "a byte in an unused place"),
        ] {
            if impossible {
                return Err(StateError::Impossible(why));
            }
        }
        for place in &row.receive[..received] {
            uart.receive.push(place.get());
        }
        for &place in &row.transmit[..waiting] {
            uart.transmit.push(place);
        }
        Ok(uart)
    }
}
