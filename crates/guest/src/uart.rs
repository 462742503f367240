// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The console: the PL011 at its fixed address, polled.
//!
//! Only sending, by one vCPU, without interrupts: what is printed is on the wire in order, and [`drain`]
//! returns when all of it is.

use core::arch::asm;
use core::fmt;

use twofold_abi::virt::UART_BASE;

/// Prints one line to the console.
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::uart::print_line(format_args!($($argument)*))
    };
}
pub(crate) use println;

/// Makes the UART send: 8 bits, FIFOs on. Where firmware has done so already, nothing changes.
pub fn start() {
    write(LINE_CONTROL, 0b11 << 5 | 1 << 4);
    write(CONTROL, 1 << 9 | 1 << 8 | 1);
}

/// What [`println!`] calls.
pub fn print_line(text: fmt::Arguments<'_>) {
    let mut console = Console;
    // `Console` never fails; a `Display` that does has lost its own text and nothing else.
    let _ = fmt::Write::write_fmt(&mut console, text);
    send(b'\n');
}

/// Waits until everything printed has been sent.
pub fn drain() {
    while read(FLAGS) & BUSY != 0 {}
}

struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(send);
        Ok(())
    }
}

const DATA: u64 = 0x00;
const FLAGS: u64 = 0x18;
const LINE_CONTROL: u64 = 0x2c;
const CONTROL: u64 = 0x30;

const BUSY: u32 = 1 << 3;
const SEND_FIFO_FULL: u32 = 1 << 5;

fn send(byte: u8) {
    while read(FLAGS) & SEND_FIFO_FULL != 0 {}
    write(DATA, byte.into());
}

// The accesses are written out because the compiler may use the write-back form of a load or store for a
// volatile access, and a hypervisor cannot emulate that form from the syndrome alone.

fn read(register: u64) -> u32 {
    let value: u32;
    // SAFETY: the address is a register of the UART, mapped as device memory; no memory of Rust's is read.
    unsafe {
        asm!("ldr {:w}, [{}]", out(reg) value, in(reg) UART_BASE + register,
            options(nostack, preserves_flags));
    }
    value
}

fn write(register: u64, value: u32) {
    // SAFETY: as in `read`; no memory of Rust's is written.
    unsafe {
        asm!("str {:w}, [{}]", in(reg) value, in(reg) UART_BASE + register,
            options(nostack, preserves_flags));
    }
}
