// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A console, its bytes in both directions.

use twofold_devices::Width;
use twofold_devices::virtio::console::{ConsoleModel, Terminal};
use twofold_devices::virtio::{Console, Next};

use crate::driver::{Board, DATA, EVENT_IDX, INDIRECT, NEEDS_RESET, STATUS};
use crate::ram::PAGE;
use crate::random::with_seeds;

/// A terminal with a bounded amount of room.
#[derive(Clone, Debug)]
pub struct Wire {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    pub room: usize,
}

impl Wire {
    pub fn new() -> Self {
        Self { input: Vec::new(), output: Vec::new(), room: usize::MAX }
    }
}

impl Terminal for Wire {
    fn output(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        self.output.extend(&bytes[..taken]);
        taken
    }

    fn input(&self) -> &[u8] {
        // A ring buffer shows a part at a time.
        &self.input[..self.input.len().min(100)]
    }

    fn consume(&mut self, count: usize) {
        self.input.drain(..count);
    }
}

pub fn console() -> Board<ConsoleModel> {
    Board::new(Console::new(80, 25))
}

/// All bytes arrive once and in order, whatever the buffers, the room, the absent pages and the restores.
#[test]
fn bytes_arrive_once_and_in_order() {
    with_seeds(150, |random| {
        let mut board = console();
        let features = random.next() & (EVENT_IDX | INDIRECT);
        let size = 2 << random.below(6);
        let [mut receive, mut transmit] = board.start(features, &[size, size]).try_into().unwrap();
        let mut wire = Wire { room: 0, ..Wire::new() };
        let (mut sent, mut typed, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wanted, mut places) = (Vec::new(), std::collections::BTreeMap::new());
        for round in 0..600 {
            let is_last = round >= 300;
            match random.below(if is_last { 3 } else { 8 }) {
                0 => {
                    wire.room += if is_last { 100_000 } else { random.below(700) as usize };
                    board.polls = true;
                }
                1 => {
                    if let Some(address) = wanted.pop() {
                        board.ram.bring_back(address);
                        board.polls = true;
                    }
                }
                2 => {}
                3 => {
                    let bytes = random.bytes(1 + random.below(300) as usize);
                    typed.extend(&bytes);
                    wire.input.extend(bytes);
                    board.polls = true;
                }
                4 => {
                    let length = 1 + random.below(if random.one_in(5) { 20_000 } else { 500 }) as usize;
                    let bytes = random.bytes(length);
                    let at = DATA + u64::from(transmit.next % 20) * 0x5000;
                    let half = length / 2;
                    let mut buffers = vec![(at, half as u32, false), (at + half as u64, (length - half) as u32, false)];
                    buffers.retain(|buffer| buffer.1 > 0);
                    if transmit.outstanding() < 20 {
                        board.ram.poke(at, &bytes);
                        if board.offer(&mut transmit, &buffers, random.one_in(2)).is_some() {
                            sent.extend(bytes);
                        }
                    }
                }
                5 => {
                    let at = DATA + 0xa_0000 + u64::from(receive.next % size) * 64;
                    let length = 1 + random.below(60) as u32;
                    if let Some(head) = board.offer(&mut receive, &[(at, length, true)], random.one_in(2)) {
                        places.insert(head, (at, length));
                    }
                }
                6 => {
                    let page = crate::ram::BASE + random.below(256) * PAGE;
                    board.ram.absent.borrow_mut().insert(page);
                }
                _ => {
                    let state = board.state();
                    board.device = Console::new(80, 25).with_state(&state).unwrap();
                    assert_eq!(board.state(), state);
                    board.polls = true;
                }
            }
            while std::mem::take(&mut board.polls) {
                match board.device.poll(&board.ram, &mut wire, &mut board.line) {
                    Next::Idle => {}
                    Next::Again => board.polls = true,
                    Next::Absent(address) => wanted.push(address),
                    Next::Broken(fault) => panic!("{fault}"),
                }
            }
            while let Some((head, written)) = board.collect(&mut receive) {
                let (at, length) = places.remove(&head).unwrap();
                assert!(0 < written && written <= length);
                arrived.extend(board.ram.peek(at, written as usize));
            }
            while let Some((_, written)) = board.collect(&mut transmit) {
                assert_eq!(written, 0);
            }
            assert_eq!(board.get(STATUS) & NEEDS_RESET, 0);
        }
        assert_eq!(transmit.outstanding(), 0, "all was sent");
        assert!(wire.output == sent, "{} bytes left, {} were sent", wire.output.len(), sent.len());
        assert_eq!([&arrived[..], &wire.input].concat(), typed);
        assert!(wire.input.is_empty() || receive.outstanding() == 0, "input waits, and so do buffers");
    });
}

#[test]
fn a_long_buffer_is_sent_in_bounded_polls() {
    let mut board = console();
    let [_, mut transmit] = board.start(0, &[16, 16]).try_into().unwrap();
    board.offer(&mut transmit, &[(DATA, 0x8_0000, false)], false);
    let (mut wire, mut polls) = (Wire::new(), 0);
    loop {
        polls += 1;
        let before = wire.output.len();
        let next = board.device.poll(&board.ram, &mut wire, &mut board.line);
        assert!(wire.output.len() - before <= 4096);
        if next == Next::Idle {
            break;
        }
        assert_eq!(next, Next::Again);
    }
    assert_eq!((wire.output.len(), board.collect(&mut transmit)), (0x8_0000, Some((0, 0))));
    assert!(polls >= 128);
}

#[test]
fn the_screens_size_is_configuration() {
    let mut board = console();
    board.start(1, &[16, 16]);
    assert_eq!(board.device.read(0x100, Width::Word), 25 << 16 | 80);
    assert_eq!(board.device.read(0x104, Width::Word), 1);
    board.device.resize(200, 50, &mut board.line);
    assert_eq!((board.device.read(0x100, Width::Half), board.device.read(0x102, Width::Half)), (200, 50));
    assert_eq!((board.line, board.acknowledge()), (true, 2));
    assert!(!board.line);
}
