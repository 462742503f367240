// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random events: bytes arrive once and in order, and a device that lies makes nothing panic.

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_fuzz_hypervisor::serial_port::{MEMORY_SIZE, SEND_MAX, SIZE, SendError};

use crate::console::Shared;

#[derive(Clone, Debug)]
enum Event {
    /// The device does its work.
    Step,
    HostOpens(bool),
    HostWrites(usize),
    HostReads(usize),
    Poll,
    Send(usize),
    Receive(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Step),
        1 => any::<bool>().prop_map(Event::HostOpens),
        2 => (0_usize..5000).prop_map(Event::HostWrites),
        2 => (0_usize..5000).prop_map(Event::HostReads),
        2 => Just(Event::Poll),
        6 => (0_usize..=SEND_MAX).prop_map(Event::Send),
        3 => (0_usize..3000).prop_map(Event::Receive),
    ]
}

/// Numbers that repeat with no short period.
fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|index| (index % 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn bytes_arrive_once_and_in_order(eager in any::<bool>(), reverses in any::<bool>(), events in vec(event(), 0..150)) {
        let device = Shared::new(|device| (device.eager, device.reverses) = (eager, reverses));
        let mut port = device.set_up().unwrap();
        let (mut sends, mut received): (Vec<Vec<u8>>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut written = 0;
        for event in events {
            match event {
                Event::Step => device.0.borrow_mut().step(),
                Event::HostOpens(open) => device.0.borrow_mut().open(open),
                Event::HostWrites(count) => {
                    device.0.borrow_mut().to_guest.extend(pattern(written, count));
                    written += count;
                }
                Event::HostReads(count) => device.0.borrow_mut().room += count,
                Event::Poll => port.poll().unwrap(),
                Event::Send(count) => {
                    let bytes = pattern(sends.len() * 7, count);
                    let open = port.is_open();
                    match port.send(&bytes) {
                        Ok(()) if count == 0 => {}
                        Ok(()) => sends.push(bytes),
                        Err(SendError::Closed) => prop_assert!(!open),
                        Err(SendError::Full) => {
                            let lent = sends.len() - device.0.borrow().sent.len();
                            prop_assert_eq!(lent, usize::from(SIZE));
                            // Room raises an interrupt, which the caller may count on.
                            device.0.borrow_mut().interrupt = false;
                            device.0.borrow_mut().room += SEND_MAX;
                            device.0.borrow_mut().step();
                            prop_assert!(device.0.borrow().interrupt);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                Event::Receive(count) => {
                    let mut bytes = vec![0; count];
                    let count = port.receive(&mut bytes).unwrap();
                    received.extend(&bytes[..count]);
                }
            }
        }
        // Both sides come to rest with the port open.
        device.0.borrow_mut().open(true);
        device.0.borrow_mut().room = usize::MAX / 2;
        let mut bytes = [0; 999];
        loop {
            device.settle(&mut port);
            match port.receive(&mut bytes).unwrap() {
                0 => break,
                count => received.extend(&bytes[..count]),
            }
        }
        prop_assert!(port.is_open());
        prop_assert_eq!(received, pattern(0, written));
        port.send(b"last").unwrap();
        sends.push(b"last".to_vec());
        device.settle(&mut port);
        let device = device.0.borrow();
        let sent: Vec<_> = device.sent.iter().map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(sent, sends);
        prop_assert!(device.sent.last().unwrap().1);
    }

    /// A device that writes anything anywhere: errors, no panic, no access beyond the memory, and an error stays.
    #[test]
    fn a_device_that_lies_is_an_error(
        events in vec(event(), 1..40),
        lies in vec((0_usize..MEMORY_SIZE, any::<u8>()), 1..60),
        rings in vec((0_usize..4, 0_usize..200, 0_u8..40), 1..60),
    ) {
        let device = Shared::new(|device| (device.host_open, device.room) = (true, 1 << 20));
        let mut port = device.set_up().unwrap();
        device.settle(&mut port);
        let mut failed = None;
        let (mut lies, mut rings) = (lies.into_iter(), rings.into_iter());
        for event in events {
            let mut buffer = [0; 1500];
            let result = match event {
                Event::Send(count) => match port.send(&buffer[..count.min(1500)]) {
                    Err(SendError::Device(error)) => Err(error),
                    _ => Ok(()),
                },
                Event::Receive(count) => port.receive(&mut buffer[..count.min(1500)]).map(|_| ()),
                _ => port.poll(),
            };
            prop_assert!(failed.is_none() || result.err() == failed, "{:?} after {:?}", result, failed);
            failed = result.err();
            prop_assert!(failed.is_none() || !port.is_open());
            let mut device = device.0.borrow_mut();
            if let Some((at, byte)) = lies.next() {
                device.memory[at] = byte;
            }
            if let Some((queue, at, byte)) = rings.next() {
                let used = device.at(device.queues[2 + queue].addresses[2], 0);
                device.memory[used + at] = byte;
            }
        }
    }
}
