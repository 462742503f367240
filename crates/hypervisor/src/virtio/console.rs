// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtio console: a second way to the guest's one console, beside the UART.
//!
//! What the guest sends by either goes out in the order in which it was sent. Input goes to the one by which the guest has
//! sent last, so to the one on which there is a prompt; to the UART, until the guest has used the other. Without a control
//! channel, the machine's UART has the console, and its input is the UART's.

use twofold_devices::InterruptLine;
use twofold_devices::virtio::{Console, Next};

use crate::guest_ram::Ram;
use crate::vm::Vm;

/// Moves bytes in both directions. The UART's lock is held meanwhile.
pub(super) fn work(console: &mut Console, vm: &Vm, ram: &Ram<'_>, line: &mut impl InterruptLine) -> Next {
    vm.devices().terminal(|terminal| console.poll(ram, terminal, line))
}
