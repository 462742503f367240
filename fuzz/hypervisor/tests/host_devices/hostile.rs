// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices that break the rules: registers and used rings of random values. Nothing panics, and each request ends.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_fuzz_hypervisor::host_devices::card::Card;
use twofold_fuzz_hypervisor::host_devices::disk::{Disk, Request, Work};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::bus::{Machine, Memory};
use twofold_devices::GuestRam;

/// A device whose registers say anything, and which knows where its used rings are.
#[derive(Default)]
struct Wild {
    kind: u32,
    status: u32,
    /// The value of each register and each byte of the configuration.
    value: u32,
    rings: Vec<u64>,
    used: [u16; 2],
}

#[derive(Clone)]
struct Registers(Rc<RefCell<Wild>>);

impl Wild {
    /// Returns a request that may never have been made.
    fn finish(&mut self, queue: usize, id: u32, length: u32, size: u64) {
        let Some(&ring) = self.rings.get(queue) else { return };
        let index = self.used[queue];
        let at = ring + 4 + 8 * (u64::from(index) % size);
        Memory.write(at, &id.to_le_bytes()).unwrap();
        Memory.write(at + 4, &length.to_le_bytes()).unwrap();
        self.used[queue] = index.wrapping_add(1);
        Memory.write(ring + 2, &self.used[queue].to_le_bytes()).unwrap();
    }
}

impl Transport for Registers {
    fn device_type(&self) -> DeviceType {
        DeviceType::try_from(self.0.borrow().kind).unwrap()
    }

    fn read_device_features(&mut self) -> u64 {
        // Without the event index, whose numbers the driver reads from the device's memory; and with sectors of 512 bytes.
        u64::from(self.0.borrow().value) << 3 & !(1 << 6 | 1 << 29) | 1 << 32
    }

    fn write_driver_features(&mut self, _: u64) {}

    fn max_queue_size(&mut self, _: u16) -> u32 {
        1024
    }

    fn notify(&mut self, _: u16) {}

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_truncate(self.0.borrow().status)
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.0.borrow_mut().status = status.bits();
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, queue: u16, _: u32, _: PhysAddr, _: PhysAddr, device: PhysAddr) {
        let mut wild = self.0.borrow_mut();
        wild.rings.resize(2, 0);
        wild.rings[usize::from(queue)] = device;
    }

    fn queue_unset(&mut self, _: u16) {
        self.0.borrow_mut().rings.clear();
    }

    fn queue_used(&mut self, _: u16) -> bool {
        false
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, _: usize) -> virtio_drivers::Result<T> {
        let mut value = T::new_zeroed();
        value.as_mut_bytes().fill(self.0.borrow().value as u8);
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> virtio_drivers::Result<()> {
        Err(Error::Unsupported)
    }
}

fn wild(kind: u32, value: u32) -> (Rc<RefCell<Wild>>, Registers) {
    let wild = Rc::new(RefCell::new(Wild { kind, value, ..Wild::default() }));
    (wild.clone(), Registers(wild))
}

proptest! {
    /// A step is a request, or an entry of the used ring.
    #[test]
    fn a_disk(value in any::<u32>(), steps in vec((any::<bool>(), 0..70_u32, any::<u32>()), 0..200)) {
        let (device, registers) = wild(2, value);
        let mut first = true;
        let disk = Disk::<Machine, _, u32>::new(registers, || {
            // The serial number: the head of the first chain is 0.
            if core::mem::take(&mut first) {
                device.borrow_mut().finish(0, 0, 21, 64);
            }
            true
        });
        let Ok(mut disk) = disk else { return Ok(()) };
        let (mut begun, mut ended) = (0, 0);
        for (is_request, number, value) in steps {
            if is_request {
                let work = [Work::Read(number.into()), Work::Write(number.into()), Work::Flush][number as usize % 3];
                let request = Request { tag: number, work, length: 512, buffer: vec![0; 512].into() };
                begun += u32::from(disk.begin(request).is_ok());
                disk.notify();
            } else {
                device.borrow_mut().finish(0, if value % 3 == 0 { value } else { number }, value, 64);
                device.borrow_mut().value = value;
            }
            if value % 2 == 0 {
                ended += u32::from(disk.ended().is_some());
            }
            if value % 64 == 0 {
                disk.look_again();
            }
        }
        // A token that is wrong ends all.
        device.borrow_mut().finish(0, 1 << 15, 0, 64);
        while disk.ended().is_some() {
            ended += 1;
        }
        prop_assert_eq!(begun, ended);
    }

    #[test]
    fn a_card(value in any::<u32>(), steps in vec((0..3_u8, 0..40_u32, any::<u32>()), 0..200)) {
        let (device, registers) = wild(1, value);
        let Ok(mut card) = Card::<Machine, _>::new(registers) else { return Ok(()) };
        for (kind, number, value) in steps {
            match kind {
                0 => drop(card.send(&[0; 60])),
                1 => drop(card.receive(|frame| assert!(frame.len() <= 1514))),
                _ => {
                    let length = if value % 2 == 0 { value % 2000 } else { value };
                    device.borrow_mut().finish(value as usize % 2, number, length, 32);
                }
            }
        }
    }
}
