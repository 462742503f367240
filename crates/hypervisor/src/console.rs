// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's own serial port, a PL011, polled.
//!
//! It is for EL2's own text. [`serial`](crate::serial) has what the guest sends and receives by the same port. This driver
//! uses two registers and takes no lock, because a report must get out even if another CPU is writing. So lines of two
//! CPUs may mix.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Writes to the serial port, if the board has one. `\n` becomes `\r\n`.
#[derive(Clone, Copy, Debug)]
pub struct Console;

/// Prints a line on the serial port.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::console::Console, $($argument)*);
    }};
}

/// Prints text on the serial port.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => {{
        use core::fmt::Write as _;
        let _ = write!($crate::console::Console, $($argument)*);
    }};
}

/// Writes bytes to the serial port as they are.
pub fn write(bytes: &[u8]) {
    bytes.iter().copied().for_each(put);
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                put(b'\r');
            }
            put(byte);
        }
        Ok(())
    }
}

/// The data register.
const DR: usize = 0x00;
/// The flag register.
const FR: usize = 0x18;
/// FR: the transmit FIFO is full.
const TXFF: u32 = 1 << 5;
/// The control register.
const CR: usize = 0x30;
/// CR: the UART and its transmitter are on.
const ENABLE: u32 = 1 << 8 | 1 << 0;

/// 0: no UART.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Turns the transmitter on. Speed and format stay as the firmware set them.
///
/// # Safety
/// The registers of a PL011 must be mapped, as Device memory, at `base`, for ever.
pub(crate) unsafe fn init(base: u64) {
    let control = (base as usize + CR) as *mut u32;
    // SAFETY: the caller's promise.
    unsafe { control.write_volatile(control.read_volatile() | ENABLE) };
    BASE.store(base as usize, Ordering::Relaxed);
}

/// The address of the port's registers; `None` if the board has no port.
pub(crate) fn base() -> Option<usize> {
    let base = BASE.load(Ordering::Relaxed);
    (base != 0).then_some(base)
}

/// Sends a byte. If the port takes none for long, the byte is lost.
fn put(byte: u8) {
    let Some(base) = base() else { return };
    let (data, flags) = ((base + DR) as *mut u32, (base + FR) as *const u32);
    // SAFETY: `init` was called with this base, and its caller promised a mapped PL011.
    unsafe {
        // Bounded: a report must end even if the port has stopped.
        let mut patience = 1 << 20;
        while flags.read_volatile() & TXFF != 0 && patience != 0 {
            patience -= 1;
        }
        data.write_volatile(u32::from(byte));
    }
}
