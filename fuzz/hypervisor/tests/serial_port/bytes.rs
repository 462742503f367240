// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a send and a receive cost in notifications and interrupts, and what a receive looks at.

use twofold_fuzz_hypervisor::serial_port::{DeviceError, QueueError, SIZE};

use crate::console::Shared;

/// A notification is an exit to the host.
#[test]
fn a_receive_gives_notice_only_of_buffers() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    let mut receive = |count: usize, expected: Result<usize, DeviceError>, notices: usize| {
        device.0.borrow_mut().notifications.clear();
        assert_eq!(port.receive(&mut vec![0; count]), expected);
        assert_eq!(device.0.borrow().notifications, vec![4; notices], "after {count} bytes");
    };
    receive(10, Ok(0), 0);
    assert!(device.0.borrow_mut().put(4, &[0; 10]));
    receive(4, Ok(4), 0);
    receive(10, Ok(6), 1);
}

#[test]
fn a_receive_takes_the_bytes_of_all_buffers() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    (0..SIZE as u8).for_each(|byte| assert!(device.0.borrow_mut().put(4, &[byte])));
    let mut bytes = [0xff; 20];
    assert_eq!(port.receive(&mut bytes), Ok(SIZE.into()));
    assert!(bytes[..SIZE.into()].iter().copied().eq(0..SIZE as u8));
}

/// A caller that has what it wants does not lose it to a lie about what comes next.
#[test]
fn a_receive_looks_at_no_buffer_that_it_does_not_need() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    let mut model = device.0.borrow_mut();
    assert!(model.put(4, b"good"));
    model.give_back(4, &[1025]);
    drop(model);
    assert_eq!(port.receive(&mut [0; 4]), Ok(4));
    let lie = QueueError::Length { queue: 4, length: 1025, buffer: 1024 };
    assert_eq!(port.receive(&mut [0; 4]), Err(DeviceError::Queue(lie)));
}

/// A byte sent costs no interrupt while there is room.
#[test]
fn what_was_sent_comes_back_without_an_interrupt() {
    let device = Shared::new(|device| (device.host_open, device.room) = (true, usize::MAX));
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    for _ in 0..100 {
        port.send(b"x").unwrap();
        device.0.borrow_mut().step();
        assert!(!device.0.borrow().interrupt);
    }
    // No send waits for room after the last of these.
    for _ in 0..SIZE {
        port.send(b"x").unwrap();
    }
    device.0.borrow_mut().step();
    assert!(!device.0.borrow().interrupt);
    device.0.borrow_mut().room = 0;
    assert_eq!(port.unsent(), Ok(0));
    while port.send(b"x").is_ok() {}
    device.0.borrow_mut().step();
    assert_eq!(port.unsent(), Ok(SIZE.into()), "the host takes nothing");
    device.0.borrow_mut().room = 3;
    device.0.borrow_mut().step();
    assert_eq!(port.unsent(), Ok(u32::from(SIZE) - 3), "the host has taken three");
    while port.send(b"x").is_ok() {}
    device.0.borrow_mut().room = usize::MAX;
    device.0.borrow_mut().step();
    assert!(device.0.borrow().interrupt, "there is room again");
    assert_eq!(port.unsent(), Ok(0));
    for sent in 0..40 {
        port.poll().unwrap();
        port.send(b"x").unwrap();
        device.0.borrow_mut().step();
        assert!(!device.0.borrow().interrupt, "{sent}");
    }
}
