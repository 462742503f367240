// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The console: the PL011 at its fixed address, polled.
//!
//! It only sends, from one vCPU, without interrupts. Printed text is sent in order, and [`drain`] returns when all of
//! it is sent.

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

/// Enables sending: 8 bits, FIFOs on. If firmware has done so already, nothing changes.
pub fn start() {
    write(LINE_CONTROL, 0b11 << 5 | 1 << 4);
    write(CONTROL, 1 << 9 | 1 << 8 | 1);
}

/// The function that [`println!`] calls.
pub fn print_line(text: fmt::Arguments<'_>) {
    let mut console = Console;
    // `Console` never fails. A `Display` that fails loses only its own text.
    let _ = fmt::Write::write_fmt(&mut console, text);
    send(b'\n');
}

/// Waits until all printed text has been sent.
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

// The accesses are in assembly because the compiler may use a write-back form of load or store for a volatile access. A
// hypervisor cannot emulate that form from the syndrome alone.

fn read(register: u64) -> u32 {
    let value: u32;
    // SAFETY: the address is a register of the UART, mapped as device memory; the load reads no Rust object.
    unsafe {
        asm!("ldr {:w}, [{}]", out(reg) value, in(reg) UART_BASE + register,
            options(nostack, preserves_flags));
    }
    value
}

fn write(register: u64, value: u32) {
    // SAFETY: as in `read`; the store writes no Rust object.
    unsafe {
        asm!("str {:w}, [{}]", in(reg) value, in(reg) UART_BASE + register,
            options(nostack, preserves_flags));
    }
}
