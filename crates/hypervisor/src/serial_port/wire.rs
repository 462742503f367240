// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers and layouts of virtio 1.2: its registers over MMIO (4.2.2), split virtqueues (2.7), the console (5.3).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offsets of registers.
pub mod register {
    /// "virt".
    pub const MAGIC: usize = 0x000;
    /// 2; 1 is a legacy device.
    pub const VERSION: usize = 0x004;
    /// The kind of device.
    pub const DEVICE_ID: usize = 0x008;
    /// Features that the device offers, 32 bits of them.
    pub const DEVICE_FEATURES: usize = 0x010;
    /// Which 32 bits.
    pub const DEVICE_FEATURES_SELECT: usize = 0x014;
    /// Features that the driver accepts.
    pub const DRIVER_FEATURES: usize = 0x020;
    /// Which 32 bits.
    pub const DRIVER_FEATURES_SELECT: usize = 0x024;
    /// The queue that the registers up to [`QUEUE_DEVICE`] concern.
    pub const QUEUE_SELECT: usize = 0x030;
    /// The most descriptors; 0: there is no such queue.
    pub const QUEUE_SIZE_MAX: usize = 0x034;
    /// The number of descriptors.
    pub const QUEUE_SIZE: usize = 0x038;
    /// 1: the queue is in use.
    pub const QUEUE_READY: usize = 0x044;
    /// The number of a queue that has new buffers.
    pub const QUEUE_NOTIFY: usize = 0x050;
    /// Why the device interrupts.
    pub const INTERRUPT_STATUS: usize = 0x060;
    /// Which of these reasons were handled.
    pub const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
    /// See [`status`](super::status).
    pub const STATUS: usize = 0x070;
    /// The descriptors' address: low word; the high one follows, here and below.
    pub const QUEUE_DESCRIPTORS: usize = 0x080;
    /// The available ring's address.
    pub const QUEUE_DRIVER: usize = 0x090;
    /// The used ring's address.
    pub const QUEUE_DEVICE: usize = 0x0a0;
    /// The console's configuration: the number of ports that it can have.
    pub const PORTS_MAX: usize = 0x104;
}

/// [`register::MAGIC`].
pub const MAGIC: u32 = u32::from_le_bytes(*b"virt");
/// [`register::VERSION`].
pub const VERSION: u32 = 2;
/// [`register::DEVICE_ID`] of a console.
pub const CONSOLE: u32 = 3;

/// Bits of [`register::STATUS`].
pub mod status {
    /// The device was found.
    pub const ACKNOWLEDGE: u32 = 1;
    /// It has a driver.
    pub const DRIVER: u32 = 2;
    /// The driver runs.
    pub const DRIVER_OK: u32 = 4;
    /// The features are agreed.
    pub const FEATURES_OK: u32 = 8;
    /// The device can go on only after a reset.
    pub const NEEDS_RESET: u32 = 64;
}

/// Feature bits.
pub mod feature {
    /// The console has more than one port.
    pub const MULTIPORT: u64 = 1 << 1;
    /// Not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
}

/// A descriptor's flag: the device writes the buffer.
pub const WRITE: u16 = 2;
/// Flag of the available ring: no interrupt for used buffers, please.
pub const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: no notification of available buffers, please.
pub const NO_NOTIFY: u16 = 1;

/// A descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Descriptor {
    /// The buffer's address.
    pub address: U64,
    /// Its bytes.
    pub length: U32,
    /// [`WRITE`] or 0.
    pub flags: U16,
    /// Unused: each buffer has one descriptor.
    pub next: U16,
}

/// An entry of the used ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Used {
    /// The descriptor's number.
    pub id: U32,
    /// The bytes that the device wrote.
    pub length: U32,
}

/// A message of a control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Control {
    /// The port's number.
    pub port: U32,
    /// One of [`event`].
    pub event: U16,
    /// What it says depends on the event.
    pub value: U16,
}

/// Values of [`Control::event`].
pub mod event {
    /// From the driver: send me messages. Value 1.
    pub const DEVICE_READY: u16 = 0;
    /// To the driver: there is this port.
    pub const PORT_ADD: u16 = 1;
    /// To the driver: this port goes.
    pub const PORT_REMOVE: u16 = 2;
    /// From the driver: the port can be used. Value 1.
    pub const PORT_READY: u16 = 3;
    /// Both ways: this side has opened (1) or closed (0) the port.
    pub const PORT_OPEN: u16 = 6;
}

/// The queue of messages to the driver. The next one is for those from it.
pub const CONTROL_IN: u16 = 2;

/// The queue of a port's bytes to the driver. The next one is for those from it.
#[must_use]
pub const fn input_queue(port: u16) -> u16 {
    if port == 0 { 0 } else { 2 * port + 2 }
}
