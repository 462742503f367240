// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random bytes for a guest.

use twofold_devices::virtio::rng::{CHUNK, Entropy};
use twofold_devices::virtio::{Next, Rng};

use crate::driver::{Board, DATA, EVENT_IDX};

/// Bytes that count upwards, up to a limit.
#[derive(Clone, Debug)]
pub struct Source {
    pub given: usize,
    pub room: usize,
}

impl Source {
    pub fn new() -> Self {
        Self { given: 0, room: usize::MAX }
    }
}

impl Entropy for Source {
    fn fill(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.room);
        for byte in &mut bytes[..count] {
            *byte = self.given as u8;
            self.given += 1;
        }
        self.room -= count;
        count
    }
}

#[test]
fn buffers_are_filled_with_what_there_is() {
    let mut board = Board::new(Rng::new());
    let mut queue = board.start(EVENT_IDX, &[16]).pop().unwrap();
    let mut source = Source { given: 0, room: 0 };
    for (at, length) in [(DATA, 64), (DATA + 0x1000, 100_000), (DATA + 0x3_0000, 10)] {
        board.offer(&mut queue, &[(at, length, true)], false);
    }
    assert_eq!(board.device.poll(&board.ram, &mut source, &mut board.line), Next::Idle);
    assert_eq!(board.collect(&mut queue), None, "there was nothing to give");
    source.room = 64 + CHUNK + 4;
    assert_eq!(board.device.poll(&board.ram, &mut source, &mut board.line), Next::Idle);
    let came: Vec<_> = std::iter::from_fn(|| board.collect(&mut queue)).map(|(_, written)| written).collect();
    assert_eq!(came, [64, CHUNK as u32, 4]);
    let expected: Vec<u8> = (0..64).collect();
    assert_eq!(board.ram.peek(DATA, 64), expected);
    assert!(board.line);
}

/// A guest that asks for more than one poll gives gets it in further polls.
#[test]
fn a_poll_is_bounded() {
    let mut board = Board::new(Rng::new());
    let mut queue = board.start(0, &[64]).pop().unwrap();
    for _ in 0..64 {
        board.offer(&mut queue, &[(DATA, 256, true)], false);
    }
    let (mut source, mut polls) = (Source::new(), 1);
    while board.device.poll(&board.ram, &mut source, &mut board.line) == Next::Again {
        polls += 1;
        assert!(source.given <= polls * 8 * CHUNK);
    }
    assert_eq!((source.given, polls), (64 * CHUNK, 9));
}
