// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that break the rules. The device needs a reset or the request fails; nothing panics, nothing is reached that
//! is not RAM, and a reset makes the device new.

use twofold_devices::virtio::{Block, Fault, Model, Net, Next, Rng};
use twofold_devices::{RamError, Width};

use crate::block::{ALL, STATUS_AT, Setup, request};
use crate::console::{Wire, console};
use crate::disk::{FakeDisk, config};
use crate::driver::{Board, Buffer, DATA, INDIRECT, NEEDS_RESET, NEXT, Queue, STATUS, TABLE, WRITE};
use crate::net::Cable;
use crate::ram::{BASE, SIZE};
use crate::random::{Random, with_seeds};
use crate::rng::Source;

const OUT: Buffer = (DATA, 16, false);
const IN: Buffer = (STATUS_AT, 1, true);

/// Writes descriptors `(buffer, flags, next)` to the queue's table, and makes the first one available.
fn broken_by(features: u64, descriptors: &[(Buffer, u16, u16)], indirect: &[(Buffer, u16, u16)]) -> Fault {
    let mut setup = Setup::new(features);
    let (ram, queue) = (&setup.board.ram, &mut setup.queue);
    for (table, descriptors) in [(queue.descriptors(), descriptors), (queue.table(0), indirect)] {
        for (index, (buffer, flags, next)) in (0..).zip(descriptors) {
            Queue::write_descriptor(ram, table + 16 * index, *buffer, *flags, *next);
        }
    }
    queue.publish(ram, 0);
    setup.board.set(0x50, 0);
    needs_reset(setup)
}

/// The fault that the next poll returns, after the checks that hold for each.
fn needs_reset(mut setup: Setup) -> Fault {
    let Next::Broken(fault) = setup.poll() else { panic!("it is not broken") };
    assert_eq!(setup.board.get(STATUS) & NEEDS_RESET, NEEDS_RESET);
    assert!(setup.board.line && setup.board.get(0x60) & 2 != 0, "the driver hears of it");
    assert_eq!(setup.poll(), Next::Idle, "it is said once");
    setup.board.set(0x50, 0);
    assert_eq!((setup.poll(), setup.disk.begun), (Next::Idle, 0));
    // The next driver finds a new device.
    setup.queue = setup.board.start(ALL, &[16]).pop().unwrap();
    assert_eq!(setup.done(0, 0, &[], 512).0, 0);
    fault
}

#[test]
fn chains_that_no_driver_may_make() {
    let table = |length: u32| (BASE + 0x4000, length, false);
    let long: Vec<_> = (0..16).map(|index| (OUT, NEXT, (index + 1) % 16)).collect();
    for (descriptors, indirect, fault) in [
        // A loop of one, a loop of all.
        (vec![(OUT, NEXT, 0)], vec![], Fault::Long(16)),
        (long, vec![], Fault::Long(16)),
        (vec![(OUT, NEXT, 16)], vec![], Fault::NoDescriptor { index: 16, count: 16 }),
        (vec![(OUT, NEXT, u16::MAX)], vec![], Fault::NoDescriptor { index: u16::MAX, count: 16 }),
        (vec![(IN, NEXT | WRITE, 1), (OUT, 0, 0)], vec![], Fault::Order),
        (vec![((DATA, 0, false), 0, 0)], vec![], Fault::Buffer { address: DATA, length: 0 }),
        (vec![((u64::MAX, 16, false), 0, 0)], vec![], Fault::Buffer { address: u64::MAX, length: 16 }),
        (vec![((u64::MAX - 14, 16, false), 0, 0)], vec![], Fault::Buffer { address: u64::MAX - 14, length: 16 }),
        (vec![((0, u32::MAX, false), NEXT, 1), ((0, 1, false), 0, 0)], vec![], Fault::Huge),
        (vec![(OUT, 0, 0)], vec![], Fault::Short { readable: 16, writable: 0 }),
        (vec![(IN, WRITE, 0)], vec![], Fault::Short { readable: 0, writable: 1 }),
        (vec![((DATA, 15, false), NEXT, 1), (IN, WRITE, 0)], vec![], Fault::Short { readable: 15, writable: 1 }),
        (vec![(table(16), TABLE | NEXT, 1)], vec![], Fault::Indirect),
        (vec![(table(0), TABLE, 0)], vec![], Fault::Table(0)),
        (vec![(table(17), TABLE, 0)], vec![], Fault::Table(17)),
        (vec![(table(65 * 16), TABLE, 0)], vec![], Fault::Table(65 * 16)),
        (vec![(table(u32::MAX), TABLE, 0)], vec![], Fault::Table(u32::MAX)),
        (vec![(table(32), TABLE, 0)], vec![(table(16), TABLE, 0)], Fault::Indirect),
        (vec![(table(32), TABLE, 0)], vec![(OUT, NEXT, 1), (table(16), TABLE, 0)], Fault::Indirect),
        (vec![(table(32), TABLE, 0)], vec![(OUT, NEXT, 0)], Fault::Long(2)),
        (vec![(table(32), TABLE, 0)], vec![(OUT, NEXT, 2)], Fault::NoDescriptor { index: 2, count: 2 }),
        (vec![((0, 16, false), TABLE, 0)], vec![], Fault::Ram(RamError::NotRam(0))),
        (vec![((BASE + SIZE - 16, 32, false), TABLE, 0)], vec![], Fault::Ram(RamError::NotRam(BASE + SIZE - 16))),
        (vec![((u64::MAX - 15, 32, false), TABLE, 0)], vec![], Fault::Buffer { address: u64::MAX - 15, length: 32 }),
    ] {
        assert_eq!(broken_by(ALL, &descriptors, &indirect), fault);
    }
    // An indirect table, where the driver has not accepted them. A chain may begin in the table and go on indirectly.
    assert_eq!(broken_by(0, &[(table(16), TABLE, 0)], &[(OUT, 0, 0)]), Fault::Indirect);
    let short = Fault::Short { readable: 32, writable: 0 };
    assert_eq!(broken_by(ALL, &[(OUT, NEXT, 1), (table(16), TABLE, 0)], &[(OUT, 0, 0)]), short);
}

#[test]
fn an_index_that_jumps_is_refused() {
    for (ahead, broken) in [(16, false), (17, true), (1000, true), (u16::MAX, true)] {
        let mut setup = Setup::new(ALL);
        let buffers = request(&setup.board.ram, 0, 0, &[], 512);
        setup.queue.add(&setup.board.ram, &buffers, false);
        setup.board.ram.poke16(setup.queue.driver() + 2, ahead);
        setup.board.set(0x50, 0);
        if broken {
            assert_eq!(needs_reset(setup), Fault::Index { queue: 0, ahead, size: 16 });
        } else {
            assert!(matches!(setup.poll(), Next::Again | Next::Idle));
            assert_eq!(setup.disk.begun, 16, "the same head, as often as it is available");
        }
    }
}

#[test]
fn a_head_beyond_the_queue_is_refused() {
    let mut setup = Setup::new(ALL);
    setup.queue.publish(&setup.board.ram, 16);
    setup.board.set(0x50, 0);
    assert_eq!(needs_reset(setup), Fault::NoDescriptor { index: 16, count: 16 });
}

/// Data outside of the RAM: the request fails, if its status byte is in the RAM.
#[test]
fn data_that_is_no_ram_is_an_error() {
    for (data, ok) in [(DATA + 0x1000, true), (0, false), (BASE + SIZE - 511, false), (u64::MAX - 512, false)] {
        let mut setup = Setup::new(ALL);
        let mut buffers = request(&setup.board.ram, 0, 0, &[], 512);
        buffers[1].0 = data;
        setup.board.offer(&mut setup.queue, &buffers, false).unwrap();
        assert_eq!(setup.poll(), Next::Idle);
        let result = setup.disk.step(0, 512, &mut setup.board.device, &setup.board.ram);
        assert_eq!(result.is_ok(), ok);
        if !ok {
            setup.disk.fail(0, &mut setup.board.device);
            assert_eq!(setup.poll(), Next::Idle);
            assert_eq!(setup.board.ram.peek(STATUS_AT, 1), [1]);
        }
    }
    // A header outside: the status byte says so. A status byte outside: the device needs a reset.
    for (index, address, broken) in [(0, 0, false), (2, 0, true), (0, BASE + SIZE - 15, false), (2, BASE + SIZE, true)]
    {
        let mut setup = Setup::new(ALL);
        let mut buffers = request(&setup.board.ram, 9, 0, &[], 512);
        buffers[index].0 = address;
        setup.board.offer(&mut setup.queue, &buffers, false).unwrap();
        let next = setup.poll();
        assert_eq!(matches!(next, Next::Broken(Fault::Ram(RamError::NotRam(_)))), broken, "{next:?}");
        assert_eq!(setup.board.ram.peek(STATUS_AT, 1), [u8::from(!broken)]);
    }
    let mut setup = Setup::new(ALL);
    setup.board.ram.read_only.borrow_mut().insert(STATUS_AT);
    setup.ask(9, 0, &[], 0);
    assert_eq!(setup.poll(), Next::Broken(Fault::Ram(RamError::ReadOnly(STATUS_AT))));
}

/// Rings that are no RAM, misaligned, or run past the last address.
#[test]
fn rings_that_are_no_ram() {
    for (offset, address) in [(0x80, 0), (0x90, 0), (0xa0, 0), (0x80, BASE + SIZE), (0xa0, BASE + SIZE - 8)] {
        let mut setup = Setup::new(ALL);
        let features = setup.board.negotiate(ALL);
        setup.queue = setup.board.add_queue(0, 16, features);
        setup.board.set(0x44, 0);
        setup.board.set(offset, address as u32);
        setup.board.set(0x44, 1);
        setup.board.set(STATUS, 15);
        setup.queue.add(&setup.board.ram, &request(&setup.board.ram, 9, 0, &[], 0), false);
        setup.queue.publish(&setup.board.ram, 0);
        assert!(matches!(needs_reset(setup), Fault::Ram(RamError::NotRam(_))), "{offset:#x} at {address:#x}");
    }
    for (offset, value) in [
        (0x80, 0x4000_0008),
        (0x90, 0x4000_1001),
        (0xa0, 0x4000_2002),
        (0x38, 0),
        (0x38, 3),
        (0x38, 65),
        (0x38, 128),
        (0x38, 0x1_0010),
        (0x84, u32::MAX),
    ] {
        let mut setup = Setup::new(ALL);
        let features = setup.board.negotiate(ALL);
        setup.queue = setup.board.add_queue(0, 16, features);
        setup.board.set(0x44, 0);
        setup.board.set(offset, value);
        if offset == 0x84 {
            setup.board.set(0x80, 0xffff_fff0);
        }
        setup.board.set(0x44, 1);
        assert_eq!(setup.board.get(0x44), 0, "{value:#x} at {offset:#x}");
        setup.board.set(STATUS, 15);
        assert_eq!(setup.board.get(STATUS) & NEEDS_RESET, NEEDS_RESET);
        assert_eq!(setup.poll(), Next::Idle);
    }
}

#[test]
fn buffers_that_a_device_cannot_use() {
    // A receive buffer without room; a frame without a header; a receive buffer that is too small for a frame.
    let mut board = console();
    let [mut receive, _] = board.start(0, &[16, 16]).try_into().unwrap();
    board.offer(&mut receive, &[OUT], false);
    let mut wire = Wire { input: b"x".to_vec(), ..Wire::new() };
    let next = board.device.poll(&board.ram, &mut wire, &mut board.line);
    assert_eq!(next, Next::Broken(Fault::Short { readable: 16, writable: 0 }));
    assert_eq!(wire.input, b"x", "nothing is lost");
    for (queue, buffer, fault) in [
        (1, (DATA, 11, false), Fault::Short { readable: 11, writable: 0 }),
        (0, (DATA, 71, true), Fault::Short { readable: 0, writable: 71 }),
    ] {
        let mut board = Board::new(Net::new([2; 6]));
        let mut queues = board.start(0, &[16, 16]);
        board.offer(&mut queues[queue], &[buffer], false);
        let mut cable = Cable::new();
        cable.incoming.push_back(vec![1; 60]);
        assert_eq!(board.device.poll(&board.ram, &mut cable, &mut board.line), Next::Broken(fault));
        assert_eq!(cable.incoming.len(), 1);
    }
    let mut board = Board::new(Rng::new());
    let mut queue = board.start(0, &[16]).pop().unwrap();
    board.offer(&mut queue, &[OUT], false);
    let next = board.device.poll(&board.ram, &mut Source::new(), &mut board.line);
    assert_eq!(next, Next::Broken(Fault::Short { readable: 16, writable: 0 }));
}

/// Rings and descriptors of any content, which changes with each read. The memory panics if an access overflows, and
/// counts, so no poll is without bound.
#[test]
fn any_bytes_in_the_queues() {
    with_seeds(600, |random| match random.below(4) {
        0 => {
            let mut disk = FakeDisk::new();
            chaos(random, Board::new(Block::new(config(false))), 1, |board| {
                let next = board.device.poll(&board.ram, &mut disk, &mut board.line);
                for index in (0..disk.pending.len()).rev() {
                    if disk.step(index, 4096, &mut board.device, &board.ram).is_err() {
                        disk.fail(index, &mut board.device);
                    }
                }
                next
            });
        }
        1 => {
            let mut wire = Wire { input: vec![7; 1000], ..Wire::new() };
            chaos(random, console(), 2, |board| board.device.poll(&board.ram, &mut wire, &mut board.line));
        }
        2 => {
            let mut cable = Cable::new();
            chaos(random, Board::new(Net::new([2; 6])), 2, |board| {
                cable.incoming.push_back(vec![1; 60]);
                board.device.poll(&board.ram, &mut cable, &mut board.line)
            });
        }
        _ => {
            let mut source = Source::new();
            chaos(random, Board::new(Rng::new()), 1, |board| {
                board.device.poll(&board.ram, &mut source, &mut board.line)
            });
        }
    });
}

fn chaos<M: Model>(random: &Random, mut board: Board<M>, queues: usize, mut poll: impl FnMut(&mut Board<M>) -> Next) {
    let mut live = Vec::new();
    for _ in 0..60 {
        if live.is_empty() || board.get(STATUS) & NEEDS_RESET != 0 {
            board.ram.is_unsteady.set(false);
            live = board.start(random.next() & ALL | INDIRECT, &vec![1 << random.below(7); queues]);
        }
        let queue = &live[random.below(queues as u64) as usize];
        let ram = &board.ram;
        for _ in 0..random.below(20) {
            let table = if random.one_in(2) { queue.descriptors() } else { queue.table(0) };
            let at = table + 16 * random.below(64);
            let address = match random.below(8) {
                0 => random.next(),
                1 => BASE + SIZE - random.below(64),
                2 => u64::MAX - random.below(64),
                _ => BASE + random.below(SIZE),
            };
            let length = match random.below(8) {
                0 => random.next() as u32,
                1 => 0,
                2 => 16 * random.below(70) as u32,
                _ => 1 + random.below(2000) as u32,
            };
            let flags = if random.one_in(8) { random.next() } else { random.below(8) } as u16;
            let next = if random.one_in(8) { random.next() } else { random.below(64) } as u16;
            Queue::write_descriptor(ram, at, (address, length, false), flags, next);
        }
        for place in 0..64 {
            let head = if random.one_in(30) { random.next() } else { random.below(queue.size.into()) };
            ram.poke16(queue.driver() + 4 + 2 * place, head as u16);
        }
        let index = ram.peek16(queue.driver() + 2);
        let jump = if random.one_in(20) { random.next() } else { random.below(u64::from(queue.size) + 1) };
        ram.poke16(queue.driver() + 2, index.wrapping_add(jump as u16));
        board.ram.is_unsteady.set(random.one_in(2));
        board.set(0x50, queue.number);
        for _ in 0..4 {
            board.ram.forget();
            let next = poll(&mut board);
            let accesses = board.ram.log.borrow().len();
            assert!(accesses < 10_000, "{accesses} accesses in one poll");
            if !matches!(next, Next::Again) {
                break;
            }
        }
        let state = board.state();
        assert!(state.len() <= twofold_devices::virtio::Virtio::<M>::STATE_MAX);
    }
    board.set(STATUS, 0);
    assert_eq!((board.get(STATUS), board.line), (0, false));
}

/// A register has a width and an offset. Any other access does nothing.
#[test]
fn every_offset_and_width_is_answered() {
    let mut board = Board::new(Block::new(config(false)));
    for offset in (0..0x240).chain(u64::MAX - 9..=u64::MAX) {
        for width in [Width::Byte, Width::Half, Width::Word, Width::Double] {
            for value in [0, 1, u64::MAX] {
                board.polls |= board.device.write(offset, width, value, &mut board.line);
                let _ = board.device.read(offset, width);
            }
            assert_eq!(board.line, board.device.interrupt());
        }
    }
}
