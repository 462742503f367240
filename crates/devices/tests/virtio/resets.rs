// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resets in mid-flight: nothing of before reaches what comes after.

use twofold_devices::virtio::block::{DataError, DiskError, Operation};
use twofold_devices::virtio::{Fault, Next};

use crate::block::{ALL, Setup, request};
use crate::console::{Wire, console};
use crate::driver::{DATA, STATUS};

/// How a driver ends its use of a queue.
fn ends() -> [fn(&mut Setup); 4] {
    [
        |setup| setup.board.set(STATUS, 0),
        |setup| {
            setup.board.set(0x30, 0);
            setup.board.set(0x44, 0);
        },
        |setup| setup.board.device.reset(&mut setup.board.line),
        |setup| {
            setup.board.ram.poke16(setup.queue.driver() + 2, 1000);
            setup.board.set(0x50, 0);
            assert!(matches!(setup.poll(), Next::Broken(Fault::Index { .. })));
        },
    ]
}

#[test]
fn a_completion_after_a_reset_touches_nothing() {
    for end in ends() {
        for (kind, output, input) in [(0, vec![], 512), (1, vec![7; 512], 0), (4, vec![], 0)] {
            let mut setup = Setup::new(ALL);
            setup.ask(kind, 0, &output, input);
            assert_eq!(setup.poll(), Next::Idle);
            end(&mut setup);
            setup.board.acknowledge();
            setup.board.ram.forget();
            let before = setup.board.ram.peek(crate::ram::BASE, crate::ram::SIZE as usize);
            let (tag, ram) = (setup.disk.pending[0].tag, &setup.board.ram);
            assert_eq!(setup.board.device.fetch(tag, ram, 0, &mut [0; 512]), Err(DataError::Stale));
            assert_eq!(setup.board.device.store(tag, ram, 0, &[1; 512]), Err(DataError::Stale));
            assert_eq!(setup.board.device.complete(tag, Ok(())), Ok(()), "it frees the slot");
            assert!(setup.board.device.complete(tag, Err(DiskError)).is_err());
            setup.disk.pending.clear();
            assert_eq!(setup.poll(), Next::Idle);
            assert!(setup.board.ram.log.borrow().is_empty(), "{:?}", setup.board.ram.log.borrow());
            assert!(setup.board.ram.peek(crate::ram::BASE, crate::ram::SIZE as usize) == before);
            assert!(!setup.board.line);
        }
    }
}

/// A request that is done, and whose chain could not be given back for an absent page, is forgotten by a reset.
#[test]
fn what_could_not_be_given_back_is_forgotten() {
    let mut setup = Setup::new(ALL);
    setup.ask(4, 0, &[], 0);
    assert_eq!(setup.poll(), Next::Idle);
    let used = setup.queue.device();
    setup.board.ram.absent.borrow_mut().insert(used);
    setup.disk.finish(&mut setup.board.device, &setup.board.ram);
    assert_eq!(setup.poll(), Next::Absent(used + 4));
    setup.board.ram.bring_back(used);
    setup.queue = setup.board.start(ALL, &[16]).pop().unwrap();
    assert!(matches!(setup.poll(), Next::Idle));
    assert!(!setup.queue.has_more(&setup.board.ram));
}

/// A write of before the reset may still be on its way to the disk. No later one overtakes it.
#[test]
fn requests_wait_for_the_end_of_those_before_the_reset() {
    for end in ends() {
        let mut setup = Setup::new(ALL);
        setup.ask(1, 0, &[1; 512], 0);
        setup.ask(1, 8, &[1; 512], 0);
        assert_eq!(setup.poll(), Next::Idle);
        // The first one has all its data; the other has none.
        let Setup { board, disk, .. } = &mut setup;
        disk.step(0, 512, &mut board.device, &board.ram).unwrap();
        end(&mut setup);
        setup.queue = setup.board.start(ALL, &[16]).pop().unwrap();
        setup.ask(1, 0, &[2; 512], 0);
        assert_eq!((setup.poll(), setup.disk.begun), (Next::Idle, 2));
        let Setup { board, disk, .. } = &mut setup;
        assert_eq!(disk.step(0, 512, &mut board.device, &board.ram), Ok(true));
        assert_eq!((setup.poll(), setup.disk.begun), (Next::Idle, 2));
        let Setup { board, disk, .. } = &mut setup;
        assert_eq!(disk.step(0, 512, &mut board.device, &board.ram), Err(DataError::Stale));
        disk.fail(0, &mut board.device);
        assert_eq!((setup.poll(), setup.disk.begun), (Next::Idle, 3));
        setup.settle();
        assert_eq!(setup.disk.data[..512], [2; 512]);
        assert!(setup.board.collect(&mut setup.queue).is_some());
    }
}

/// A tag of before a reset is not that of a request in the same slot after it.
#[test]
fn tags_are_not_used_again() {
    let mut setup = Setup::new(ALL);
    setup.ask(0, 0, &[], 512);
    assert_eq!(setup.poll(), Next::Idle);
    let old = setup.disk.pending.pop().unwrap().tag;
    setup.queue = setup.board.start(ALL, &[16]).pop().unwrap();
    setup.board.device.complete(old, Ok(())).unwrap();
    setup.ask(1, 3, &[1; 512], 0);
    assert_eq!(setup.poll(), Next::Idle);
    let new = setup.disk.pending[0].tag;
    assert_ne!(old, new);
    assert!(setup.board.device.complete(old, Ok(())).is_err());
    assert_eq!(setup.board.device.fetch(old, &setup.board.ram, 0, &mut [0]), Err(DataError::Stale));
    let operation = Operation::Write { sector: 3, sectors: 1, is_durable: false };
    assert_eq!(setup.disk.pending[0].operation, operation);
}

/// A request for which the disk had no room is not begun after a reset.
#[test]
fn what_waits_for_room_is_forgotten() {
    let mut setup = Setup::new(ALL);
    setup.disk.room = 0;
    setup.ask(1, 0, &[1; 512], 0);
    assert_eq!(setup.poll(), Next::Idle);
    setup.disk.room = 100;
    setup.queue = setup.board.start(ALL, &[16]).pop().unwrap();
    assert_eq!((setup.poll(), setup.disk.begun), (Next::Idle, 0));
    assert_eq!(setup.done(0, 0, &[], 512).0, 0);
}

#[test]
fn a_chain_that_is_being_sent_ends_with_a_reset() {
    for whole in [true, false] {
        let mut board = console();
        let [_, mut transmit] = board.start(0, &[16, 16]).try_into().unwrap();
        board.ram.poke(DATA, &[7; 2000]);
        board.offer(&mut transmit, &[(DATA, 2000, false)], false);
        let mut wire = Wire { room: 500, ..Wire::new() };
        assert_eq!(board.device.poll(&board.ram, &mut wire, &mut board.line), Next::Idle);
        assert_eq!(wire.output.len(), 500);
        if whole {
            board.set(STATUS, 0);
        } else {
            board.set(0x30, 1);
            board.set(0x44, 0);
        }
        board.ram.forget();
        wire.room = 5000;
        assert_eq!(board.device.poll(&board.ram, &mut wire, &mut board.line), Next::Idle);
        assert_eq!((wire.output.len(), board.ram.log.borrow().len()), (500, 0));
        let [_, mut transmit] = board.start(0, &[16, 16]).try_into().unwrap();
        board.ram.poke(DATA, &[8; 10]);
        board.offer(&mut transmit, &[(DATA, 10, false)], false);
        assert_eq!(board.device.poll(&board.ram, &mut wire, &mut board.line), Next::Idle);
        assert_eq!(wire.output[500..], [8; 10]);
    }
}

/// A queue that the driver stops and starts again begins anew, while the other goes on.
#[test]
fn a_queue_alone_begins_anew() {
    let mut setup = Setup::new(ALL);
    for _ in 0..5 {
        setup.done(4, 0, &[], 0);
    }
    setup.board.set(0x44, 0);
    setup.queue = setup.board.add_queue(0, 8, ALL | crate::driver::VERSION_1);
    let buffers = request(&setup.board.ram, 0, 0, &[], 512);
    setup.board.offer(&mut setup.queue, &buffers, true).unwrap();
    setup.settle();
    assert!(setup.board.collect(&mut setup.queue).is_some());
}
