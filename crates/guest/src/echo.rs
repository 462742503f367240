// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `echo=BYTES`: sends back this number of bytes by the UART as they come, and then powers off. `emit=BYTES` sends as many
//! without being asked.
//!
//! The first drives the UART as a driver does: it sleeps until the UART interrupts, and goes on by what the FIFOs have. So a byte or
//! an interrupt that is lost is a guest that never ends. Interrupts stay masked, as everywhere here: the program takes them
//! from the CPU interface by itself. It prints nothing but what it echoes and its last line.

use core::arch::asm;

use twofold_abi::virt::{UART_BASE, UART_INTERRUPT};

use crate::devices::{self, load, store};
use crate::uart::println;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("interrupt {0}, and not the UART's")]
    Interrupt(u64),
    #[error("the UART lost a byte: {0:#x}")]
    Lost(u32),
}

/// Echoes.
pub fn run(count: u64) -> Result<(), Failure> {
    devices::controller();
    let mut ring = [0u8; RING];
    let (mut received, mut sent) = (0, 0);
    while sent < count {
        received += receive(&mut ring, received, RING - (received - sent) as usize)?;
        sent += send(&ring, sent, (received.min(count) - sent) as usize);
        let has_room = ((received - sent) as usize) < RING;
        // Before the mask, so that the interrupt is not one of what was just sent.
        let mask = if has_room { RECEIVED } else { 0 } | if received == sent { 0 } else { SENT };
        store(UART_BASE + MASK, mask);
        if sent < count {
            wait()?;
        }
    }
    store(UART_BASE + MASK, 0);
    println!("");
    println!("guest check: ok");
    Ok(())
}

/// Sends lines of dots.
pub fn emit(count: u64) -> Result<(), Failure> {
    devices::controller();
    let ring = core::array::from_fn(|place| if place % 64 == 63 { b'\n' } else { b'.' });
    let mut sent = send(&ring, 0, count as usize);
    while sent < count {
        store(UART_BASE + MASK, SENT);
        wait()?;
        store(UART_BASE + MASK, 0);
        sent += send(&ring, sent, (count - sent) as usize);
    }
    println!("");
    println!("guest check: ok");
    Ok(())
}

/// Takes what has come, as far as there is room. Returns how many bytes.
fn receive(ring: &mut [u8; RING], position: u64, room: usize) -> Result<u64, Failure> {
    let mut count = 0;
    while count < room && load(UART_BASE + FLAGS) & RECEIVE_EMPTY == 0 {
        // If the FIFO is as full as the interrupt says, that many need no look at the flags.
        let is_half_full = load(UART_BASE + RAW) & HALF_FULL != 0;
        for _ in 0..if is_half_full { HALF.min(room - count) } else { 1 } {
            let character = load(UART_BASE);
            if character & !0xff != 0 {
                return Err(Failure::Lost(character));
            }
            ring[(position as usize + count) % RING] = character as u8;
            count += 1;
        }
    }
    Ok(count as u64)
}

/// Sends what there is, as far as the FIFO has room. Returns how many bytes.
fn send(ring: &[u8; RING], position: u64, left: usize) -> u64 {
    let mut count = 0;
    while count < left {
        let flags = load(UART_BASE + FLAGS);
        if flags & SEND_FULL != 0 {
            break;
        }
        // As long as the FIFO is empty after each byte, the sink takes them.
        for _ in 0..if flags & SEND_EMPTY != 0 { (2 * HALF).min(left - count) } else { 1 } {
            store(UART_BASE, ring[(position as usize + count) % RING].into());
            count += 1;
        }
    }
    count as u64
}

/// Sleeps until the UART interrupts.
fn wait() -> Result<(), Failure> {
    const NONE: u64 = 1023;
    loop {
        let intid: u64;
        // SAFETY: interrupts are masked: one ends the sleep, and is taken here. The barrier completes the store of the mask
        // before the sleep.
        unsafe { asm!("dsb sy", "wfi", "mrs {}, icc_iar1_el1", out(reg) intid, options(nostack, preserves_flags)) };
        match intid {
            NONE => {}
            intid if intid == UART_INTERRUPT.into() => {
                // SAFETY: ends the interrupt that was just taken.
                unsafe { asm!("msr icc_eoir1_el1, {}", "isb", in(reg) intid, options(nostack, preserves_flags)) };
                return Ok(());
            }
            other => return Err(Failure::Interrupt(other)),
        }
    }
}

const RING: usize = 1024;
const FLAGS: u64 = 0x18;
const MASK: u64 = 0x38;
const RAW: u64 = 0x3c;
const RECEIVE_EMPTY: u32 = 1 << 4;
const SEND_FULL: u32 = 1 << 5;
const SEND_EMPTY: u32 = 1 << 7;
/// The receive interrupt, by its level or by time.
const RECEIVED: u32 = HALF_FULL | 1 << 6;
const HALF_FULL: u32 = 1 << 4;
const SENT: u32 = 1 << 5;
/// Half of a FIFO: the level of its interrupt after a reset.
const HALF: usize = 16;
