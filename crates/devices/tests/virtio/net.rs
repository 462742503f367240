// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network card, its frames in both directions.

use std::collections::{BTreeMap, VecDeque};

use twofold_devices::Width;
use twofold_devices::virtio::net::{FRAME_MAX, FRAME_MIN, Port};
use twofold_devices::virtio::{Net, Next};

use crate::driver::{Board, DATA, EVENT_IDX, INDIRECT, NEEDS_RESET, STATUS};
use crate::ram::PAGE;
use crate::random::with_seeds;

/// What the card is plugged into.
#[derive(Clone, Debug)]
pub struct Cable {
    pub incoming: VecDeque<Vec<u8>>,
    pub sent: Vec<Vec<u8>>,
    pub room: usize,
}

impl Cable {
    pub fn new() -> Self {
        Self { incoming: VecDeque::new(), sent: Vec::new(), room: usize::MAX }
    }
}

impl Port for Cable {
    fn has_room(&self) -> bool {
        self.room > 0
    }

    fn send(&mut self, frame: &[u8]) {
        self.room = self.room.checked_sub(1).expect("there was room");
        self.sent.push(frame.to_vec());
    }

    fn incoming(&self) -> Option<&[u8]> {
        self.incoming.front().map(Vec::as_slice)
    }

    fn consume(&mut self) {
        self.incoming.pop_front().expect("there was a frame");
    }
}

#[test]
fn frames_arrive_once_and_in_order() {
    with_seeds(150, |random| {
        let mut board = Board::new(Net::new([2, 0, 0, 0, 0, 1]));
        let features = random.next() & (EVENT_IDX | INDIRECT);
        let size = 2 << random.below(6);
        let [mut receive, mut transmit] = board.start(features, &[size, size]).try_into().unwrap();
        let mut cable = Cable { room: 0, ..Cable::new() };
        let (mut sent, mut offered, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wanted, mut places) = (Vec::new(), BTreeMap::new());
        for round in 0..600 {
            match random.below(if round < 300 { 8 } else { 3 }) {
                0 => {
                    cable.room += random.below(4) as usize;
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
                    let frame = random.bytes(random.below(1600) as usize);
                    if (FRAME_MIN..=FRAME_MAX).contains(&frame.len()) {
                        offered.push(frame.clone());
                    }
                    cable.incoming.push_back(frame);
                    board.polls = true;
                }
                4 if transmit.outstanding() < 32 => {
                    let frame = random.bytes(random.below(1600) as usize);
                    let header = if random.one_in(10) { [random.below(2) as u8; 2] } else { [0; 2] };
                    let at = DATA + u64::from(transmit.next % 32) * 0x1000 + random.below(0x900);
                    let whole = [&header[..], &[0; 10], &frame].concat();
                    board.ram.poke(at, &whole);
                    let first = 1 + random.below(whole.len() as u64 - 1);
                    let second = whole.len() as u64 - first;
                    let buffers = [(at, first as u32, false), (at + first, second as u32, false)];
                    let offered = board.offer(&mut transmit, &buffers, random.one_in(2)).is_some();
                    if offered && (FRAME_MIN..=FRAME_MAX).contains(&frame.len()) && header == [0; 2] {
                        sent.push(frame);
                    }
                }
                5 if receive.outstanding() < 32 => {
                    let at = DATA + 0x4_0000 + u64::from(receive.next % 32) * 0x800;
                    if let Some(head) = board.offer(&mut receive, &[(at, 12, true), (at + 12, 1514, true)], true) {
                        places.insert(head, at);
                    }
                }
                6 => _ = board.ram.absent.borrow_mut().insert(crate::ram::BASE + random.below(256) * PAGE),
                7 => {
                    let state = board.state();
                    board.device = Net::new([2, 0, 0, 0, 0, 1]).with_state(&state).unwrap();
                    assert_eq!(board.state(), state);
                    board.polls = true;
                }
                _ => {}
            }
            while std::mem::take(&mut board.polls) {
                match board.device.poll(&board.ram, &mut cable, &mut board.line) {
                    Next::Idle => {}
                    Next::Again => board.polls = true,
                    Next::Absent(address) => wanted.push(address),
                    Next::Broken(fault) => panic!("{fault}"),
                }
            }
            while let Some((head, written)) = board.collect(&mut receive) {
                let bytes = board.ram.peek(places.remove(&head).unwrap(), written as usize);
                assert_eq!(bytes[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "one buffer, no offload");
                arrived.push(bytes[12..].to_vec());
            }
            while board.collect(&mut transmit).is_some() {}
            assert_eq!(board.get(STATUS) & NEEDS_RESET, 0);
        }
        assert_eq!(transmit.outstanding(), 0);
        assert!(cable.sent == sent, "{} frames left, {} were sent", cable.sent.len(), sent.len());
        assert!(arrived == offered[..arrived.len()]);
        assert!(cable.incoming.is_empty() || receive.outstanding() == 0, "frames wait, and so do buffers");
    });
}

#[test]
fn a_link_that_is_down_carries_nothing() {
    let mut board = Board::new(Net::new([2, 0, 0, 0, 0, 1]));
    let [mut receive, mut transmit] = board.start(u64::MAX, &[16, 16]).try_into().unwrap();
    assert_eq!(board.device.read(0x100, Width::Double), 0x0001_0100_0000_0002, "the address, and the link");
    assert_eq!(board.device.read(0x10a, Width::Half), 1500);
    board.device.set_link(false, &mut board.line);
    assert_eq!((board.device.read(0x106, Width::Half), board.get(0xfc), board.acknowledge()), (0, 1, 2));
    board.device.set_link(false, &mut board.line);
    assert_eq!((board.get(0xfc), board.line), (1, false));
    board.offer(&mut receive, &[(DATA, 1526, true)], false);
    board.offer(&mut transmit, &[(DATA + 0x1000, 72, false)], false);
    let mut cable = Cable::new();
    cable.incoming.push_back(vec![1; 60]);
    assert_eq!(board.device.poll(&board.ram, &mut cable, &mut board.line), Next::Idle);
    assert_eq!((cable.sent.len(), cable.incoming.len(), receive.has_more(&board.ram)), (0, 0, false));
    assert!(board.collect(&mut transmit).is_some());
}
