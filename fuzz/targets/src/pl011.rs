// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The UART under any accesses of a guest, any input, and a sink that is full at any time.

use arbitrary::{Result, Unstructured};
use twofold_devices::pl011::{ByteSink, Full};
use twofold_devices::{Pl011, Width};

use crate::any;

const DR: u64 = 0x00;
const FR: u64 = 0x18;
const CR: u64 = 0x30;
const IMSC: u64 = 0x38;
const RIS: u64 = 0x3c;
const MIS: u64 = 0x40;
const TXFF: u64 = 1 << 5;
const LBE: u64 = 1 << 7;

/// Bytes are refused as a state, or are the state of the UART that they make. No access panics. A byte that was written
/// while TXFF was clear leaves once, in order. The line follows RIS and IMSC. Saved and restored, the UART goes on.
pub fn pl011(data: &[u8]) {
    if let Ok(uart) = Pl011::from_state(data) {
        assert_eq!(uart.state(), data);
    }
    let _ = run(&mut Unstructured::new(data));
}

#[derive(Default)]
struct Sink {
    room: usize,
    taken: Vec<u8>,
}

impl ByteSink for Sink {
    fn put(&mut self, byte: u8) -> core::result::Result<(), Full> {
        self.room = self.room.checked_sub(1).ok_or(Full)?;
        self.taken.push(byte);
        Ok(())
    }
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let (mut uart, mut sink, mut line) = (Pl011::new(), Sink::default(), false);
    // What the guest may count on. In loopback, bytes go elsewhere.
    let (mut written, mut looped) = (Vec::new(), false);
    if u.arbitrary()? {
        uart = Pl011::from_state(u.bytes(Pl011::STATE_SIZE)?).unwrap_or_default();
        line = uart.interrupt();
        looped = uart.waiting() > 0 || uart.read(CR, Width::Word, &mut line) & LBE != 0;
    }
    // A guest that turns loopback on counts on less.
    let loops: bool = u.arbitrary()?;
    while !u.is_empty() {
        match u.int_in_range(0..=6)? {
            0 => _ = uart.read(any::register(u)?, any::width(u)?, &mut line),
            1 => {
                let (offset, width, value) = (any::register(u)?, any::width(u)?, u.arbitrary::<u64>()?);
                let value = if loops { value } else { value & !(LBE | LBE << 32) };
                let free = uart.read(FR, Width::Word, &mut line) & TXFF == 0;
                if offset == DR && free {
                    written.push(value as u8);
                }
                uart.write(offset, width, value, &mut sink, &mut line);
                looped |= uart.read(CR, Width::Word, &mut line) & LBE != 0;
                // A second byte, or one that TXFF forbade: it may be lost.
                looped |= offset == DR && !free || offset == DR.wrapping_sub(4) && width == Width::Double;
            }
            2 => {
                let bytes = u.arbitrary::<&[u8]>()?;
                assert_eq!(uart.room().min(bytes.len()), uart.receive(bytes, &mut line));
            }
            3 => uart.receive_character(u.arbitrary()?, &mut line),
            4 => sink.room = u.int_in_range(0..=40)?,
            5 => uart.transmit(&mut sink, &mut line),
            _ if uart.read(FR, Width::Word, &mut line) & TXFF == 0 => {
                let byte = u.arbitrary()?;
                written.push(byte);
                uart.write(DR, Width::Byte, byte.into(), &mut sink, &mut line);
            }
            _ => {}
        }
        let mut read = |offset| uart.read(offset, Width::Word, &mut line);
        let (raw, mask, masked) = (read(RIS), read(IMSC), read(MIS));
        assert_eq!((raw & mask, masked != 0), (masked, line));
        assert_eq!(uart.interrupt(), line);
        uart = Pl011::from_state(&uart.state()).expect("a UART's state is one");
    }
    if !looped {
        assert_eq!(uart.waiting() + sink.taken.len(), written.len());
        sink.room = usize::MAX / 2;
        uart.transmit(&mut sink, &mut line);
        assert_eq!(sink.taken, written);
    }
    Ok(())
}
