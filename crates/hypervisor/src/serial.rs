// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's UART as the far end of the guest's: what it receives, and when it asks for EL2.
//!
//! [`console`] sends EL2's own text through the same port, so that may come between the guest's. The
//! receiver is the guest's alone. A byte that has come stays in the FIFO, and the receive interrupt is off, while the
//! guest's UART has no room. A byte that does not go out stays in the guest's UART, and the transmit interrupt is on.

use core::ptr;

use crate::console;

/// Turns the port, its FIFOs, and the receive interrupt on.
pub fn start_receiving() {
    const ENABLE: u32 = 1 << 0;
    const TRANSMITTER: u32 = 1 << 8;
    const RECEIVER: u32 = 1 << 9;
    const FIFOS: u32 = 1 << 4;
    if read(LCR_H).is_some_and(|line| line & FIFOS == 0) {
        // The line control may change only while the port is off.
        modify(CR, |control| control & !ENABLE);
        modify(LCR_H, |line| line | FIFOS);
    }
    modify(CR, |control| control | ENABLE | RECEIVER | TRANSMITTER);
    set_receive_interrupt(true);
}

/// Turns the receive interrupt on or off.
pub fn set_receive_interrupt(is_on: bool) {
    modify(IMSC, |mask| if is_on { mask | RECEIVED } else { mask & !RECEIVED });
}

/// Turns the transmit interrupt on or off.
#[cold]
pub fn set_transmit_interrupt(is_on: bool) {
    modify(IMSC, |mask| if is_on { mask | SENT } else { mask & !SENT });
}

/// Sends a byte, or returns `false` if the port has no room. Without a port every byte is lost.
#[inline]
pub fn try_send(byte: u8) -> bool {
    const TXFF: u32 = 1 << 5;
    match (read(FR), register(DR)) {
        (Some(flags), _) if flags & TXFF != 0 => false,
        (_, Some(data)) => {
            // SAFETY: as in `read`.
            unsafe { data.write_volatile(u32::from(byte)) };
            true
        }
        _ => true,
    }
}

/// Takes a byte that was received; `None` if there is none.
pub fn receive() -> Option<u8> {
    const RXFE: u32 = 1 << 4;
    let flags = read(FR)?;
    if flags & RXFE != 0 { None } else { read(DR).map(|data| data as u8) }
}

/// The data register.
const DR: usize = 0x00;
/// The flag register.
const FR: usize = 0x18;
/// The line control register.
const LCR_H: usize = 0x2c;
/// The control register.
const CR: usize = 0x30;
/// The interrupt mask.
const IMSC: usize = 0x38;
/// IMSC: the transmit FIFO is at its level or below.
const SENT: u32 = 1 << 5;
/// IMSC: the receive FIFO has reached its level, or a byte has waited for some time.
const RECEIVED: u32 = 1 << 4 | 1 << 6;

fn register(offset: usize) -> Option<*mut u32> {
    console::base().map(|base| ptr::with_exposed_provenance_mut(base + offset))
}

fn read(offset: usize) -> Option<u32> {
    // SAFETY: `console::base` is that of a PL011, mapped as Device memory for ever, and `offset` is a register of it.
    register(offset).map(|register| unsafe { register.read_volatile() })
}

fn modify(offset: usize, change: impl FnOnce(u32) -> u32) {
    let (Some(register), Some(value)) = (register(offset), read(offset)) else { return };
    // SAFETY: as in `read`.
    unsafe { register.write_volatile(change(value)) };
}
