// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A UART: Arm's PrimeCell PL011, revision r1p5 (Arm DDI 0183G).
//!
//! The wire is the embedder's. What the guest sends goes to a [`ByteSink`], which may be full. What comes from outside
//! is offered by [`Pl011::receive`], which takes as much as fits.
//!
//! Invariant: a byte that the guest wrote while FR.TXFF was clear leaves by the sink once, in order (in loopback: it
//! arrives at the receiver). A byte that [`Pl011::receive`] took is read by the guest, or the guest cleared the FIFO.
//!
//! # Where this model decides
//!
//! * The model has no baud rate. A byte leaves as soon as the sink takes it, so a guest sees an infinitely fast wire. A
//!   driver may rely on a slow one: it fills the FIFO and waits for the transmit interrupt, which needs the FIFO to
//!   pass its level. So each byte that leaves sets RIS.TX if the FIFO is then at or below the level.
//! * The receive timeout (32 bit times without a byte) is over as soon as the embedder has no more bytes to offer.
//! * The transmitter sends whatever CR and LCR_H say, as QEMU's does: a guest that starts without firmware expects a
//!   port that works. The receiver takes nothing until CR has UARTEN and RXE, so input that comes early waits.
//! * The modem inputs are those of a cable with a peer: CTS, DSR and DCD asserted, RI not.
//! * A change of LCR_H.FEN clears the receive FIFO. Bytes that wait to be sent stay.
//! * The FIFOs have 32 places, as PeriphID2's revision 3 says to drivers. (Revisions before r1p5 have 16.)
//! * Word length, parity, break, baud rate, SIR mode, flow control and DMA are registers without a function. The test
//!   registers (0x080 to 0x08c) read as 0.

mod state;

use crate::access::Width;
use crate::fifo::{DEPTH, Fifo};
use crate::line::InterruptLine;
use crate::primecell;

/// Where the guest's bytes go.
pub trait ByteSink {
    /// Takes a byte, or refuses it. After a refusal, the embedder calls [`Pl011::transmit`] when there is room.
    fn put(&mut self, byte: u8) -> Result<(), Full>;
}

/// A sink has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A UART.
#[derive(Clone, Debug)]
pub struct Pl011 {
    receive: Fifo<u16>,
    transmit: Fifo<u8>,
    /// A character was lost. The next one that enters the FIFO says so.
    overrun: bool,
    status: u8,
    low_power: u8,
    baud_integer: u16,
    baud_fraction: u8,
    line_control: u8,
    control: u16,
    levels: u8,
    mask: u16,
    raw: u16,
    dma: u8,
}

impl Default for Pl011 {
    fn default() -> Self {
        Self::new()
    }
}

impl Pl011 {
    /// The UART after a reset.
    #[must_use]
    pub fn new() -> Self {
        Self {
            receive: Fifo::new(),
            transmit: Fifo::new(),
            overrun: false,
            status: 0,
            low_power: 0,
            baud_integer: 0,
            baud_fraction: 0,
            line_control: 0,
            control: control::TXE | control::RXE,
            levels: 0x12,
            mask: 0,
            raw: 0,
            dma: 0,
        }
    }

    /// The guest reads.
    pub fn read(&mut self, offset: u64, width: Width, line: &mut impl InterruptLine) -> u64 {
        let raw = self.raw;
        let value = primecell::read(offset, width, |register| self.register(register));
        if self.raw != raw {
            line.set(self.interrupt());
        }
        value
    }

    /// The guest writes. A byte for a sink with room takes the short way.
    #[inline]
    pub fn write(
        &mut self,
        offset: u64,
        width: Width,
        value: u64,
        sink: &mut impl ByteSink,
        line: &mut impl InterruptLine,
    ) {
        let short = offset == register::DR && width != Width::Double;
        if short && self.transmit.is_empty() && self.control & control::LBE == 0 && sink.put(value as u8).is_ok() {
            if self.raw & interrupt::TX == 0 {
                self.raw |= interrupt::TX;
                line.set(self.interrupt());
            }
            return;
        }
        self.write_register(offset, width, value, sink, line);
    }

    /// The guest writes, and the write changes nothing but the sink: it is a byte that goes out at once, and the interrupt
    /// stays as it is. Returns `false` if it is not such a write: then nothing is done.
    #[inline(always)]
    pub fn send_at_once(&mut self, offset: u64, width: Width, value: u64, sink: &mut impl ByteSink) -> bool {
        offset == register::DR
            && width != Width::Double
            && self.transmit.is_empty()
            && self.control & control::LBE == 0
            && self.raw & interrupt::TX != 0
            && sink.put(value as u8).is_ok()
    }

    /// Takes bytes that come from outside, and returns how many. The rest has no room now: [`room`](Self::room) says
    /// when, after the guest's next access. The bytes of one call come without a pause, and one follows.
    pub fn receive(&mut self, bytes: &[u8], line: &mut impl InterruptLine) -> usize {
        let taken = bytes.len().min(self.room());
        for &byte in &bytes[..taken] {
            self.arrive(u16::from(byte));
        }
        self.pause();
        line.set(self.interrupt());
        taken
    }

    /// A character comes from outside whether there is room or not, as on a wire without flow control: a byte, and any
    /// of [`error`]. If the FIFO is full, the character is lost and the guest reads an overrun. It is lost silently if
    /// the receiver is off or the UART is in loopback.
    pub fn receive_character(&mut self, character: u16, line: &mut impl InterruptLine) {
        if self.control & control::LBE == 0 {
            self.arrive(character & (error::ALL | 0xff));
            self.pause();
        }
        line.set(self.interrupt());
    }

    /// How many bytes [`receive`](Self::receive) would take now.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.control & control::LBE != 0 || !self.is_receiving() { 0 } else { self.depth() - self.receive.len() }
    }

    /// Sends what waits. The embedder calls this when a sink that was full has room.
    pub fn transmit(&mut self, sink: &mut impl ByteSink, line: &mut impl InterruptLine) {
        self.drain(sink);
        line.set(self.interrupt());
    }

    /// How many bytes wait for the sink.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.transmit.len()
    }

    /// The level of the line (UARTINTR).
    #[must_use]
    pub fn interrupt(&self) -> bool {
        self.raw & self.mask != 0
    }

    fn register(&mut self, offset: u64) -> u32 {
        u32::from(match offset {
            register::DR => self.take(),
            register::RSR => self.status.into(),
            register::FR => self.flags(),
            register::ILPR => self.low_power.into(),
            register::IBRD => self.baud_integer,
            register::FBRD => self.baud_fraction.into(),
            register::LCR_H => self.line_control.into(),
            register::CR => self.control,
            register::IFLS => self.levels.into(),
            register::IMSC => self.mask,
            register::RIS => self.raw,
            register::MIS => self.raw & self.mask,
            register::DMACR => self.dma.into(),
            _ => return primecell::id(PERIPHERAL, offset),
        })
    }

    #[cold]
    fn write_register(
        &mut self,
        offset: u64,
        width: Width,
        value: u64,
        sink: &mut impl ByteSink,
        line: &mut impl InterruptLine,
    ) {
        primecell::write(offset, width, value, |offset, value| match offset {
            register::DR => {
                // The sink may have got room, and this byte may be the one that has none here.
                self.drain(sink);
                if self.transmit.push(value as u8) && self.transmit.len() > self.transmit_level() {
                    self.raw &= !interrupt::TX;
                }
                self.drain(sink);
            }
            register::RSR => self.status = 0,
            register::ILPR => self.low_power = value as u8,
            register::IBRD => self.baud_integer = value as u16,
            register::FBRD => self.baud_fraction = value as u8 & FBRD_BITS,
            register::LCR_H => self.set_line_control(value as u8),
            register::CR => {
                let inputs = self.modem();
                self.control = value as u16 & control::ALL;
                self.raw |= modem_interrupts(inputs ^ self.modem());
                self.drain(sink);
            }
            register::IFLS => self.levels = value as u8 & IFLS_BITS,
            register::IMSC => self.mask = value as u16 & interrupt::ALL,
            register::ICR => self.raw &= !(value as u16),
            register::DMACR => self.dma = value as u8 & DMACR_BITS,
            _ => {}
        });
        line.set(self.interrupt());
    }

    /// The oldest character leaves the receive FIFO.
    fn take(&mut self) -> u16 {
        let Some(character) = self.receive.pop() else { return 0 };
        self.status = self.status & STATUS_OE | ((character >> 8) as u8 & !STATUS_OE);
        if self.receive.len() < self.receive_level() {
            self.raw &= !interrupt::RX;
        }
        if self.receive.is_empty() {
            self.raw &= !interrupt::RT;
        }
        character
    }

    /// A character reaches the receiver.
    fn arrive(&mut self, character: u16) {
        if !self.is_receiving() {
            return;
        }
        if self.receive.len() >= self.depth() {
            self.overrun = true;
            self.status |= STATUS_OE;
            self.raw |= interrupt::OE;
            return;
        }
        let overrun = if core::mem::take(&mut self.overrun) { OVERRUN } else { 0 };
        self.receive.push(character | overrun);
        self.raw |= (character & error::ALL) >> 1;
        if self.receive.len() >= self.receive_level() {
            self.raw |= interrupt::RX;
        }
    }

    /// No character has come for a while.
    fn pause(&mut self) {
        if !self.receive.is_empty() {
            self.raw |= interrupt::RT;
        }
    }

    /// Sends what waits, until the sink is full.
    fn drain(&mut self, sink: &mut impl ByteSink) {
        let looped = self.control & control::LBE != 0 && !self.transmit.is_empty();
        while let Some(byte) = self.transmit.peek() {
            if looped {
                self.arrive(u16::from(byte));
            } else if sink.put(byte).is_err() {
                break;
            }
            self.transmit.pop();
            if self.transmit.len() <= self.transmit_level() {
                self.raw |= interrupt::TX;
            }
        }
        if looped {
            self.pause();
        }
    }

    fn set_line_control(&mut self, value: u8) {
        if (self.line_control ^ value) & FEN != 0 {
            self.receive.clear();
            self.overrun = false;
            self.raw &= !(interrupt::RX | interrupt::RT);
        }
        self.line_control = value;
    }

    fn flags(&self) -> u16 {
        let mut flags = self.modem();
        let transmit = self.transmit.len();
        let receive = self.receive.len();
        for (flag, set) in [
            (flag::BUSY, transmit > 0),
            (flag::RXFE, receive == 0),
            (flag::TXFF, transmit >= self.depth()),
            (flag::RXFF, receive >= self.depth()),
            (flag::TXFE, transmit == 0),
        ] {
            flags |= if set { flag } else { 0 };
        }
        flags
    }

    /// The modem inputs, as bits of FR. In loopback they are the modem outputs.
    fn modem(&self) -> u16 {
        if self.control & control::LBE == 0 {
            return flag::CTS | flag::DSR | flag::DCD;
        }
        [(control::RTS, flag::CTS), (control::DTR, flag::DSR), (control::OUT1, flag::DCD), (control::OUT2, flag::RI)]
            .into_iter()
            .fold(0, |inputs, (output, input)| inputs | if self.control & output != 0 { input } else { 0 })
    }

    fn is_receiving(&self) -> bool {
        self.control & (control::UARTEN | control::RXE) == control::UARTEN | control::RXE
    }

    /// The places of each FIFO.
    fn depth(&self) -> usize {
        if self.line_control & FEN == 0 { 1 } else { DEPTH }
    }

    /// The transmit interrupt comes when no more bytes than this wait.
    fn transmit_level(&self) -> usize {
        if self.line_control & FEN == 0 { 0 } else { level(self.levels & 7) }
    }

    /// The receive interrupt comes when as many characters wait.
    fn receive_level(&self) -> usize {
        if self.line_control & FEN == 0 { 1 } else { level(self.levels >> 3) }
    }
}

/// The errors that a character can have, as bits of DR.
pub mod error {
    /// No stop bit.
    pub const FRAMING: u16 = 1 << 8;
    /// The parity is wrong.
    pub const PARITY: u16 = 1 << 9;
    /// The line was low for longer than a character. The byte is 0.
    pub const BREAK: u16 = 1 << 10;
    /// All of them.
    pub const ALL: u16 = FRAMING | PARITY | BREAK;
}

/// DR: a character was lost before this one.
const OVERRUN: u16 = 1 << 11;
/// RSR: a character was lost.
const STATUS_OE: u8 = 1 << 3;
/// LCR_H: the FIFOs are on. Without them each has one place.
const FEN: u8 = 1 << 4;
const FBRD_BITS: u8 = 0x3f;
const IFLS_BITS: u8 = 0x3f;
const DMACR_BITS: u8 = 7;
/// PeriphID0 to PeriphID3: part 0x011, designed by Arm, revision 3 (r1p5).
const PERIPHERAL: [u8; 4] = [0x11, 0x10, 0x34, 0x00];

mod register {
    pub(super) const DR: u64 = 0x000;
    pub(super) const RSR: u64 = 0x004;
    pub(super) const FR: u64 = 0x018;
    pub(super) const ILPR: u64 = 0x020;
    pub(super) const IBRD: u64 = 0x024;
    pub(super) const FBRD: u64 = 0x028;
    pub(super) const LCR_H: u64 = 0x02c;
    pub(super) const CR: u64 = 0x030;
    pub(super) const IFLS: u64 = 0x034;
    pub(super) const IMSC: u64 = 0x038;
    pub(super) const RIS: u64 = 0x03c;
    pub(super) const MIS: u64 = 0x040;
    pub(super) const ICR: u64 = 0x044;
    pub(super) const DMACR: u64 = 0x048;
}

mod flag {
    pub(super) const CTS: u16 = 1 << 0;
    pub(super) const DSR: u16 = 1 << 1;
    pub(super) const DCD: u16 = 1 << 2;
    pub(super) const BUSY: u16 = 1 << 3;
    pub(super) const RXFE: u16 = 1 << 4;
    pub(super) const TXFF: u16 = 1 << 5;
    pub(super) const RXFF: u16 = 1 << 6;
    pub(super) const TXFE: u16 = 1 << 7;
    pub(super) const RI: u16 = 1 << 8;
}

mod control {
    pub(super) const UARTEN: u16 = 1 << 0;
    pub(super) const LBE: u16 = 1 << 7;
    pub(super) const TXE: u16 = 1 << 8;
    pub(super) const RXE: u16 = 1 << 9;
    pub(super) const DTR: u16 = 1 << 10;
    pub(super) const RTS: u16 = 1 << 11;
    pub(super) const OUT1: u16 = 1 << 12;
    pub(super) const OUT2: u16 = 1 << 13;
    /// Bits 6 to 3 are reserved.
    pub(super) const ALL: u16 = 0xff87;
}

/// Bits of IMSC, RIS, MIS and ICR.
mod interrupt {
    pub(super) const RI: u16 = 1 << 0;
    pub(super) const CTS: u16 = 1 << 1;
    pub(super) const DCD: u16 = 1 << 2;
    pub(super) const DSR: u16 = 1 << 3;
    pub(super) const RX: u16 = 1 << 4;
    pub(super) const TX: u16 = 1 << 5;
    pub(super) const RT: u16 = 1 << 6;
    pub(super) const OE: u16 = 1 << 10;
    pub(super) const ALL: u16 = 0x7ff;
}

/// The interrupts of modem inputs that changed.
fn modem_interrupts(changed: u16) -> u16 {
    [(flag::RI, interrupt::RI), (flag::CTS, interrupt::CTS), (flag::DCD, interrupt::DCD), (flag::DSR, interrupt::DSR)]
        .into_iter()
        .fold(0, |raised, (input, interrupt)| raised | if changed & input != 0 { interrupt } else { 0 })
}

/// A level of IFLS: 1/8, 1/4, 1/2, 3/4, 7/8. The reserved values are 7/8.
const fn level(select: u8) -> usize {
    match select {
        0 => DEPTH / 8,
        1 => DEPTH / 4,
        2 => DEPTH / 2,
        3 => DEPTH / 4 * 3,
        _ => DEPTH / 8 * 7,
    }
}
