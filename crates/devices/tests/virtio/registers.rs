// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers: the order in which a driver has to do things, and what it cannot do.

use twofold_devices::virtio::{Block, Console, Net, Next, Rng};

use crate::block::{ALL, Setup};
use crate::console::console;
use crate::disk::{FakeDisk, config};
use crate::driver::{Board, STATUS, VERSION_1};

#[test]
fn each_device_says_what_it_is() {
    let identity = |get: &dyn Fn(u64) -> u32| [get(0), get(4), get(8), get(0x70), get(0x60), get(0xb0), get(0xbc)];
    let none = u32::MAX;
    let expected = |device| [0x7472_6976, 2, device, 0, 0, none, none];
    let board = Board::new(Net::new([2; 6]));
    assert_eq!(identity(&|offset| board.get(offset)), expected(1));
    let board = Board::new(Block::new(config(false)));
    assert_eq!(identity(&|offset| board.get(offset)), expected(2));
    let board = Board::new(Console::new(0, 0));
    assert_eq!(identity(&|offset| board.get(offset)), expected(3));
    let board = Board::new(Rng::new());
    assert_eq!(identity(&|offset| board.get(offset)), expected(4));
}

#[test]
fn features_must_be_offered_and_have_version_1() {
    let mut board = Board::new(Block::new(config(false)));
    for (features, accepted) in [
        (VERSION_1, true),
        (0, false),
        (VERSION_1 | 1 << 40, false),
        (VERSION_1 | 1 << 5, false),
        (VERSION_1 | ALL, true),
    ] {
        board.set(STATUS, 0);
        for half in 0..2 {
            board.set(0x24, half);
            board.set(0x20, (features >> (32 * half)) as u32);
        }
        // A selection that does not exist.
        board.set(0x24, 2);
        board.set(0x20, u32::MAX);
        board.set(STATUS, 11);
        assert_eq!(board.get(STATUS), if accepted { 11 } else { 3 }, "{features:#x}");
        board.set(STATUS, 15);
        assert_eq!(board.get(STATUS), if accepted { 15 } else { 3 }, "no DRIVER_OK without FEATURES_OK");
    }
    board.set(0x14, 2);
    assert_eq!(board.get(0x10), 0);
}

/// What is negotiated stays: features after FEATURES_OK, a queue while it is ready, bits of the status.
#[test]
fn what_is_agreed_stays() {
    let mut setup = Setup::new(0);
    let board = &mut setup.board;
    board.set(0x24, 0);
    board.set(0x20, u32::MAX);
    board.set(STATUS, 1);
    assert_eq!(board.get(STATUS), 15, "a driver cannot clear bits");
    board.set(STATUS, 0xffff_ff00 | 64);
    assert_eq!(board.get(STATUS), 15, "or set those that are not its own");
    for offset in [0x38, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4] {
        board.set(offset, 0xdead_0000);
    }
    assert_eq!(setup.done(4, 0, &[], 0).0, 2, "the old queue, and the old features");
    setup.board.set(STATUS, 128);
    assert_eq!(setup.board.get(STATUS), 143);
}

#[test]
fn a_queue_that_does_not_exist() {
    let mut board = console();
    board.start(0, &[16, 16]);
    for (number, most) in [(0, 64), (1, 64), (2, 0), (u32::MAX, 0)] {
        board.set(0x30, number);
        assert_eq!((board.get(0x34), board.get(0x44)), (most, u32::from(most > 0)));
        if most == 0 {
            board.set(0x38, 16);
            board.set(0x44, 1);
            assert_eq!(board.get(0x44), 0);
        }
        board.polls = false;
        board.set(0x50, number);
        assert_eq!(board.polls, most > 0);
    }
    let mut board = Board::new(Rng::new());
    board.start(0, &[16]);
    board.set(0x30, 1);
    assert_eq!(board.get(0x34), 0);
}

/// Before DRIVER_OK a device touches no queue. What was available by then is found when it comes.
#[test]
fn nothing_happens_before_driver_ok() {
    let mut setup = Setup::new(ALL);
    let features = setup.board.negotiate(ALL);
    setup.queue = setup.board.add_queue(0, 16, features);
    setup.board.polls = false;
    setup.ask(4, 0, &[], 0);
    assert!(!setup.board.polls);
    setup.board.ram.forget();
    assert_eq!((setup.poll(), setup.board.ram.log.borrow().len()), (Next::Idle, 0));
    setup.board.set(STATUS, 15);
    assert!(setup.board.polls, "the device wants to look");
    assert_eq!((setup.poll(), setup.disk.begun), (Next::Idle, 1));
}

#[test]
fn an_acknowledgement_lowers_the_line() {
    let mut setup = Setup::new(ALL);
    setup.done(4, 0, &[], 0);
    setup.board.device.resize(7, &mut setup.board.line);
    assert_eq!((setup.board.line, setup.board.get(0x60)), (true, 3));
    setup.board.set(0x64, 1);
    assert_eq!((setup.board.line, setup.board.get(0x60)), (true, 2));
    setup.board.set(0x64, 2);
    assert_eq!((setup.board.line, setup.board.get(0x60)), (false, 0));
}

/// Only a notification of a queue that is ready asks for a poll, and a poll without one does nothing.
#[test]
fn polls_are_asked_for() {
    let mut setup = Setup::new(ALL);
    assert_eq!(setup.poll(), Next::Idle);
    setup.board.polls = false;
    setup.board.set(0x64, 3);
    assert!(!setup.board.polls);
    setup.board.ram.forget();
    assert_eq!((setup.poll(), setup.board.ram.log.borrow().len()), (Next::Idle, 0));
    let mut disk = FakeDisk::new();
    let mut board = Board::new(Block::new(config(false)));
    board.set(0x50, 0);
    assert!(!board.polls);
    assert_eq!(board.device.poll(&board.ram, &mut disk, &mut board.line), Next::Idle);
}
