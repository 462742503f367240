// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of virtio over MMIO, version 2 (VIRTIO 1.2, 4.2.2).
//!
//! Invariants:
//!
//! * FEATURES_OK is set only while the accepted features are some of the offered ones and have VERSION_1. From then on
//!   they stay as they are.
//! * DRIVER_OK is set only with FEATURES_OK. A device touches queues only while it [is live](Transport::is_live).
//! * Size and addresses of a queue stay as they are while it is ready.
//! * The line's level is that of InterruptStatus: high if a bit is set.
//!
//! # Where this device decides
//!
//! * A register takes aligned accesses of 32 bits. Others read as 0 and write nothing. (The configuration space takes
//!   any.)
//! * The driver can set bits of the status, and clear them by a reset only.
//! * A reset is complete when the write of 0 returns.
//! * A queue that is made ready with an impossible size or address is a fault: DEVICE_NEEDS_RESET.
//! * There is no shared memory and no reset of one queue alone. A queue that is made unready forgets what it did.

use super::layout::{feature, interrupt, status};
use super::queue::{Queue, SIZE_MAX};
use crate::access::Width;

/// The most queues of a device.
pub(super) const QUEUES: usize = 3;

/// Where the configuration space begins.
pub(super) const CONFIG: u64 = 0x100;

/// The registers of a device, and its queues.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    /// What the driver accepted.
    pub features: u64,
    pub device_features_select: u32,
    pub driver_features_select: u32,
    pub queue_select: u32,
    pub status: u8,
    pub interrupt: u8,
    /// Counts the changes of the configuration space.
    pub generation: u32,
    pub queues: [Queue; QUEUES],
}

/// What a device is, for its registers.
#[derive(Clone, Copy)]
pub(super) struct Identity {
    pub device: u32,
    pub offered: u64,
    pub queues: usize,
}

/// What a guest's write leaves for the model to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Nothing,
    /// Queues that the device may touch have work.
    Notified,
    /// The guest has reset the device.
    Reset,
    /// This queue is no longer ready.
    Stopped(usize),
    /// The device needs a reset.
    Failed,
}

impl Transport {
    pub const fn new() -> Self {
        Self {
            features: 0,
            device_features_select: 0,
            driver_features_select: 0,
            queue_select: 0,
            status: 0,
            interrupt: 0,
            generation: 0,
            queues: [const { Queue::new() }; QUEUES],
        }
    }

    /// The device may touch its queues.
    pub const fn is_live(&self) -> bool {
        self.status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK
    }

    /// The level of the line.
    pub const fn line(&self) -> bool {
        self.interrupt != 0
    }

    /// The driver broke a rule. Only a reset helps.
    pub fn fail(&mut self) {
        self.status |= status::NEEDS_RESET;
        if self.status & status::DRIVER_OK != 0 {
            self.interrupt |= interrupt::CONFIG;
        }
    }

    /// The configuration space has changed.
    pub fn change_config(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if self.status & status::DRIVER_OK != 0 {
            self.interrupt |= interrupt::CONFIG;
        }
    }

    /// As after a reset, but for the generation of the configuration space.
    pub fn reset(&mut self) {
        *self = Self { generation: self.generation, ..Self::new() };
    }

    /// The guest reads. `config` returns a byte of the configuration space.
    pub fn read(&self, of: Identity, offset: u64, width: Width, config: impl Fn(u64) -> u8) -> u64 {
        if let Some(first) = offset.checked_sub(CONFIG) {
            let byte = |index| u64::from(config(first.saturating_add(index))) << (8 * index);
            return (0..width.bytes()).map(byte).sum();
        }
        if width != Width::Word || !offset.is_multiple_of(4) {
            return 0;
        }
        let queue = self.selected(of);
        u64::from(match offset {
            register::MAGIC => u32::from_le_bytes(*b"virt"),
            register::VERSION => 2,
            register::DEVICE_ID => of.device,
            register::VENDOR_ID => VENDOR,
            register::DEVICE_FEATURES => part(of.offered, self.device_features_select),
            register::QUEUE_SIZE_MAX => queue.map_or(0, |_| SIZE_MAX.into()),
            register::QUEUE_READY => queue.map_or(0, |index| self.queues[index].is_ready.into()),
            register::INTERRUPT_STATUS => self.interrupt.into(),
            register::STATUS => self.status.into(),
            // Shared memory that does not exist has the length and the address -1.
            register::SHARED_LENGTH_LOW..=register::SHARED_BASE_HIGH => u32::MAX,
            register::CONFIG_GENERATION => self.generation,
            _ => 0,
        })
    }

    /// The guest writes a register.
    pub fn write(&mut self, of: Identity, offset: u64, width: Width, value: u64) -> Written {
        if width != Width::Word {
            return Written::Nothing;
        }
        let value = value as u32;
        match offset {
            register::DEVICE_FEATURES_SELECT => self.device_features_select = value,
            register::DRIVER_FEATURES_SELECT => self.driver_features_select = value,
            register::DRIVER_FEATURES if self.status & status::FEATURES_OK == 0 => {
                set_part(&mut self.features, self.driver_features_select, value);
            }
            register::QUEUE_SELECT => self.queue_select = value,
            register::QUEUE_READY => return self.set_ready(of, value),
            register::QUEUE_NOTIFY => {
                // Before DRIVER_OK this is a note for later.
                let queue = self.queues.iter_mut().take(of.queues).nth(value as usize);
                if let Some(queue) = queue.filter(|queue| queue.is_ready) {
                    queue.is_notified = true;
                    return if self.is_live() { Written::Notified } else { Written::Nothing };
                }
            }
            register::INTERRUPT_ACK => self.interrupt &= !(value as u8),
            register::STATUS => return self.set_status(of, value),
            _ => self.write_queue(of, offset, value),
        }
        Written::Nothing
    }

    /// A size or an address of the selected queue.
    fn write_queue(&mut self, of: Identity, offset: u64, value: u32) {
        let Some(queue) = self.selected(of).map(|index| &mut self.queues[index]) else { return };
        if queue.is_ready {
            return;
        }
        match offset {
            // A size that does not fit is impossible, whatever its upper half.
            register::QUEUE_SIZE => queue.size = u16::try_from(value).unwrap_or(u16::MAX),
            register::QUEUE_DESCRIPTORS_LOW => set_part(&mut queue.descriptors, 0, value),
            register::QUEUE_DESCRIPTORS_HIGH => set_part(&mut queue.descriptors, 1, value),
            register::QUEUE_DRIVER_LOW => set_part(&mut queue.driver, 0, value),
            register::QUEUE_DRIVER_HIGH => set_part(&mut queue.driver, 1, value),
            register::QUEUE_DEVICE_LOW => set_part(&mut queue.device, 0, value),
            register::QUEUE_DEVICE_HIGH => set_part(&mut queue.device, 1, value),
            _ => {}
        }
    }

    fn set_ready(&mut self, of: Identity, value: u32) -> Written {
        let Some(index) = self.selected(of) else { return Written::Nothing };
        let queue = &mut self.queues[index];
        if value & 1 == 0 {
            if !queue.is_ready {
                return Written::Nothing;
            }
            queue.stop();
            return Written::Stopped(index);
        }
        if queue.is_ready || queue.start() {
            return Written::Nothing;
        }
        self.fail();
        Written::Failed
    }

    fn set_status(&mut self, of: Identity, value: u32) -> Written {
        if value == 0 {
            self.reset();
            return Written::Reset;
        }
        let before = self.status;
        self.status |= value as u8 & status::BY_DRIVER;
        let acceptable = self.features & !of.offered == 0 && self.features & feature::VERSION_1 != 0;
        if before & status::FEATURES_OK == 0 && !acceptable {
            self.status &= !status::FEATURES_OK;
        }
        if self.status & status::FEATURES_OK == 0 {
            self.status &= !status::DRIVER_OK;
        }
        if before & status::DRIVER_OK == 0 && self.status & status::DRIVER_OK != 0 {
            // The driver may have made buffers available before.
            for queue in self.queues.iter_mut().filter(|queue| queue.is_ready) {
                queue.is_notified = true;
            }
            return if self.is_live() { Written::Notified } else { Written::Nothing };
        }
        Written::Nothing
    }

    fn selected(&self, of: Identity) -> Option<usize> {
        Some(self.queue_select as usize).filter(|index| *index < of.queues)
    }
}

/// Half `select` of a number of 64 bits.
fn part(whole: u64, select: u32) -> u32 {
    match select {
        0 => whole as u32,
        1 => (whole >> 32) as u32,
        _ => 0,
    }
}

/// Sets half `select` of a number of 64 bits.
fn set_part(whole: &mut u64, select: u32, value: u32) {
    let value = u64::from(value);
    match select {
        0 => *whole = *whole & !0xffff_ffff | value,
        1 => *whole = *whole & 0xffff_ffff | value << 32,
        _ => {}
    }
}

/// "2FLD": any number, for information.
const VENDOR: u32 = u32::from_le_bytes(*b"2FLD");

mod register {
    pub(super) const MAGIC: u64 = 0x000;
    pub(super) const VERSION: u64 = 0x004;
    pub(super) const DEVICE_ID: u64 = 0x008;
    pub(super) const VENDOR_ID: u64 = 0x00c;
    pub(super) const DEVICE_FEATURES: u64 = 0x010;
    pub(super) const DEVICE_FEATURES_SELECT: u64 = 0x014;
    pub(super) const DRIVER_FEATURES: u64 = 0x020;
    pub(super) const DRIVER_FEATURES_SELECT: u64 = 0x024;
    pub(super) const QUEUE_SELECT: u64 = 0x030;
    pub(super) const QUEUE_SIZE_MAX: u64 = 0x034;
    pub(super) const QUEUE_SIZE: u64 = 0x038;
    pub(super) const QUEUE_READY: u64 = 0x044;
    pub(super) const QUEUE_NOTIFY: u64 = 0x050;
    pub(super) const INTERRUPT_STATUS: u64 = 0x060;
    pub(super) const INTERRUPT_ACK: u64 = 0x064;
    pub(super) const STATUS: u64 = 0x070;
    pub(super) const QUEUE_DESCRIPTORS_LOW: u64 = 0x080;
    pub(super) const QUEUE_DESCRIPTORS_HIGH: u64 = 0x084;
    pub(super) const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub(super) const QUEUE_DRIVER_HIGH: u64 = 0x094;
    pub(super) const QUEUE_DEVICE_LOW: u64 = 0x0a0;
    pub(super) const QUEUE_DEVICE_HIGH: u64 = 0x0a4;
    pub(super) const SHARED_LENGTH_LOW: u64 = 0x0b0;
    pub(super) const SHARED_BASE_HIGH: u64 = 0x0bc;
    pub(super) const CONFIG_GENERATION: u64 = 0x0fc;
}
