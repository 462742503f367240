// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages about ports, and the memory of all queues.

use twofold_fuzz_hypervisor::serial_port::wire;
use twofold_fuzz_hypervisor::serial_port::{MEMORY_SIZE, SEND_MAX, SIZE, SendError};

use crate::console::{BASE, QUEUES, Shared};

#[test]
fn the_port_opens_as_qemu_opens_it() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    assert_eq!(port.send(b"x"), Err(SendError::Closed));
    assert!(!port.is_there());
    device.settle(&mut port);
    assert!(device.0.borrow().guest_open && port.is_there() && !port.is_open(), "the host has not connected");
    // QEMU ignores a notification of the input queue that comes before the port is open.
    assert_eq!(device.0.borrow().notifications.iter().rfind(|&&queue| queue >= 3), Some(&4));
    device.0.borrow_mut().open(true);
    device.settle(&mut port);
    assert!(port.is_open());
    assert_eq!(port.send(&[0; SEND_MAX + 1]), Err(SendError::TooLong(SEND_MAX + 1)));
    assert_eq!(port.send(b""), Ok(()), "nothing to send");
    port.send(b"one").unwrap();
    device.0.borrow_mut().open(false);
    device.settle(&mut port);
    assert!(port.is_there() && !port.is_open());
    assert_eq!(device.0.borrow().sent, [(b"one".to_vec(), false)], "the host had gone");
    // The port goes for good, as by a monitor's device_del.
    device.0.borrow_mut().open(true);
    device.settle(&mut port);
    device.0.borrow_mut().messages.push_back((1, 2, 0, b""));
    device.settle(&mut port);
    assert!(!port.is_there() && !port.is_open());
}

#[test]
fn messages_for_other_ports_are_ignored() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    for event in 0..9 {
        device.0.borrow_mut().messages.extend([(0, event, 1, &b""[..]), (2, event, 1, b""), (u32::MAX, event, 1, b"")]);
    }
    device.settle(&mut port);
    assert!(!port.is_open());
}

/// More events than there are buffers, each answered by two messages, from a device that takes these late. A driver
/// that looks only when it is interrupted answers all of them.
#[test]
fn a_storm_of_messages_is_answered_in_full() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    device.0.borrow_mut().mute = true;
    for _ in 0..100 {
        device.0.borrow_mut().messages.push_back((1, 1, 0, b""));
    }
    for _ in 0..100 {
        device.0.borrow_mut().step();
        while device.0.borrow().interrupt {
            port.poll().unwrap();
        }
    }
    assert_eq!(device.0.borrow().ready, 1 + 100);
}

/// Each event is answered by two messages. The device returns the buffers of messages only once it has all of them.
#[test]
fn as_many_events_are_answered_as_there_is_room_for() {
    let device = Shared::new(|_| ());
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    device.0.borrow_mut().mute = true;
    for round in 0..3 {
        device.0.borrow_mut().add_port(SIZE / 2);
        port.poll().unwrap();
        let mut model = device.0.borrow_mut();
        model.look(3);
        assert_eq!(model.queues[3].held.len(), usize::from(SIZE), "round {round}");
        model.give_back(3, &[0; SIZE as usize]);
    }
}

/// All buffers are in use at once: a whole one for each send, and one for each message.
#[test]
fn no_two_queues_share_memory() {
    let device = Shared::new(|device| device.host_open = true);
    let mut port = device.set_up().unwrap();
    device.settle(&mut port);
    for _ in 0..SIZE {
        assert_eq!(port.send(&[0; SEND_MAX]), Ok(()));
    }
    device.0.borrow_mut().add_port(SIZE / 2);
    port.poll().unwrap();
    let mut parts: Vec<_> = (2..QUEUES).flat_map(|number| device.0.borrow().parts(number)).collect();
    assert!(parts.iter().all(|part| !part.is_empty() && part.start >= BASE && part.end <= BASE + MEMORY_SIZE as u64));
    parts.sort_by_key(|part| part.start);
    for pair in parts.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:x?}");
    }
}

#[test]
fn the_queues_of_a_port_have_virtios_numbers() {
    // Virtio 1.2, 5.3.2: queues 2 and 3 are for control.
    assert_eq!([0, 1, 2, 30].map(wire::input_queue), [0, 4, 6, 62]);
}
