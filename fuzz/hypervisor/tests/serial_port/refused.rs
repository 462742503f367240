// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices that cannot be driven, and devices that break a rule: each is an error with a name.

use twofold_fuzz_hypervisor::serial_port::{
    DeviceError, MEMORY_SIZE, QueueError, SIZE, SendError, SetUpError, TooSmall,
};

use crate::console::{Device, Shared};

#[test]
fn what_cannot_be_driven_is_refused_by_name_and_left_reset() {
    type Change = fn(&mut Device);
    let cases: [(SetUpError, Change); 9] = [
        (SetUpError::Magic(1), |device| device.magic[0] = 1),
        (SetUpError::Version(1), |device| device.magic[1] = 1),
        (SetUpError::Device(2), |device| device.magic[2] = 2),
        (SetUpError::Features(2), |device| device.features &= !2),
        (SetUpError::Features(1 << 32), |device| device.features = 2),
        (SetUpError::Refused, |device| device.refuses = true),
        (SetUpError::Ports(1), |device| device.ports = 1),
        (SetUpError::Queue(TooSmall { queue: 2, most: 8 }), |device| device.queue_max = 8),
        (SetUpError::Memory(MEMORY_SIZE - 1), |device| _ = device.memory.pop()),
    ];
    for (error, change) in cases {
        let device = Shared::new(change);
        assert_eq!(device.set_up().err(), Some(error));
        assert_eq!(device.0.borrow().status, 0);
    }
}

#[test]
fn a_device_that_does_not_complete_its_reset_is_refused() {
    let device = Shared::new(|device| device.hangs = true);
    assert_eq!(device.set_up().err(), Some(SetUpError::Reset));
}

#[test]
fn a_queue_of_just_the_size_is_enough() {
    let device = Shared::new(|device| device.queue_max = SIZE.into());
    assert!(device.set_up().is_ok());
}

#[test]
fn a_dropped_driver_leaves_a_reset_device() {
    let device = Shared::new(|_| ());
    let port = device.set_up().unwrap();
    assert!(device.0.borrow().status != 0);
    drop(port);
    assert_eq!(device.0.borrow().status, 0);
}

#[test]
fn lies_have_names() {
    let lie = |queue: usize, at: u64, value: u64, size: usize| {
        let device = Shared::new(|device| device.host_open = true);
        let mut port = device.set_up().unwrap();
        device.settle(&mut port);
        let used = device.0.borrow().queues[queue].addresses[2];
        let index = device.0.borrow().number(used + 2, 2);
        let entry = used + 4 + 8 * (index % u64::from(SIZE));
        let mut model = device.0.borrow_mut();
        // One more buffer comes back, by a good number and with a length that fits.
        let id = model.queues[queue].held.front().copied().unwrap_or(0);
        model.set(entry, id.into(), 4);
        model.set(entry + 4, 8, 4);
        model.set(used + 2, index + 1, 2);
        model.set(if at == 2 { used + 2 } else { entry + at - 4 }, value, size);
        drop(model);
        let error = port.receive(&mut [0; 10]).err().or(port.poll().err());
        assert!(port.poll().err() == error && !port.is_open());
        error.unwrap()
    };
    let queue = DeviceError::Queue;
    assert_eq!(lie(4, 2, 500, 2), queue(QueueError::Index { queue: 4, returned: 500, lent: 16 }));
    assert_eq!(lie(4, 4, 16, 4), queue(QueueError::Buffer { queue: 4, id: 16 }));
    assert_eq!(lie(4, 8, 1025, 4), queue(QueueError::Length { queue: 4, length: 1025, buffer: 1024 }));
    assert_eq!(lie(2, 8, 7, 4), DeviceError::Message(7));
    assert_eq!(lie(5, 4, 3, 4), queue(QueueError::Index { queue: 5, returned: 1, lent: 0 }));
}

#[test]
fn a_buffer_that_is_not_lent_cannot_come_back() {
    let device = Shared::new(|device| device.host_open = true);
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    port.send(b"x").unwrap();
    let mut model = device.0.borrow_mut();
    model.look(5);
    let id = model.queues[5].held[0] + 1;
    model.queues[5].held[0] = id;
    model.give_back(5, &[0]);
    drop(model);
    assert_eq!(port.poll(), Err(DeviceError::Queue(QueueError::Buffer { queue: 5, id: id.into() })));
}

#[test]
fn a_device_that_gives_up_is_an_error() {
    let device = Shared::new(|device| device.host_open = true);
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    device.0.borrow_mut().status |= 64;
    assert_eq!(port.poll(), Err(DeviceError::NeedsReset));
    assert_eq!(port.send(b"x"), Err(SendError::Device(DeviceError::NeedsReset)));
}
