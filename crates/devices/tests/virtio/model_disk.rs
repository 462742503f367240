// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver's random requests against a naive disk: any splitting of buffers, order of completion, absent page, reset,
//! and saved and restored state. The device is polled only when it said so: a lost notification is a request that never
//! comes back.

use twofold_devices::RamError;
use twofold_devices::virtio::block::{BlockModel, DataError};
use twofold_devices::virtio::{Block, Next};

use crate::disk::{FakeDisk, ID, SECTORS, config};
use crate::driver::{Board, Buffer, DATA, EVENT_IDX, INDIRECT, NEEDS_RESET, Queue, STATUS};
use crate::ram::PAGE;
use crate::random::{Random, with_seeds};

pub const FLUSH: u64 = 1 << 9;
const PLACES: usize = 32;
const PLACE: u64 = 0x4000;

struct World<'r> {
    board: Board<BlockModel>,
    disk: FakeDisk,
    queue: Queue,
    /// What the disk should have, and whether that is known.
    sectors: Vec<(Vec<u8>, bool)>,
    requests: Vec<Request>,
    random: &'r Random,
    wanted: Vec<u64>,
    is_read_only: bool,
    restores: usize,
    size: u16,
    features: u64,
}

struct Request {
    head: u16,
    place: usize,
    sectors: std::ops::Range<u64>,
    /// What is to come back: data, and the status.
    input: Vec<Buffer>,
    data: Option<Vec<u8>>,
    status: u8,
    kind: u32,
}

#[test]
fn random_requests_agree_with_a_naive_disk() {
    with_seeds(400, |random| {
        let size = 1 << random.below(7);
        let features = random.next() & (EVENT_IDX | INDIRECT | FLUSH) | 1 << 13 | 1 << 14;
        let is_read_only = random.one_in(8);
        let mut board = Board::new(Block::new(config(is_read_only)));
        let queue = board.start(features, &[size]).pop().unwrap();
        let sectors = vec![(vec![0; 512], true); SECTORS as usize];
        let mut world = World {
            board,
            disk: FakeDisk::new(),
            queue,
            sectors,
            requests: Vec::new(),
            random,
            wanted: Vec::new(),
            is_read_only,
            restores: 0,
            size,
            features,
        };
        world.run();
    });
}

impl World<'_> {
    fn run(&mut self) {
        let (pages, resets) = (self.random.one_in(2), self.random.one_in(3));
        for _ in 0..400 {
            match self.random.below(16) {
                0..=4 => self.ask(),
                5..=8 => self.work(),
                9 if pages => self.lose_page(),
                10 => self.page_comes(),
                11 => {
                    self.disk.room = self.random.below(20) as usize;
                    self.board.polls = true;
                }
                12 => self.queue.want_interrupt(&self.board.ram, self.random.one_in(2)),
                13 if self.random.one_in(4) => self.restore(),
                14 if resets && self.random.one_in(10) => self.reset(),
                _ => self.poll(),
            }
            self.collect();
        }
        self.finish();
    }

    /// All that is outstanding comes back, without further requests.
    fn finish(&mut self) {
        self.disk.room = usize::MAX;
        self.board.polls = true;
        for _ in 0..5000 {
            if self.queue.outstanding() == 0 && self.disk.pending.is_empty() {
                break;
            }
            self.page_comes();
            self.poll();
            self.work();
            self.collect();
        }
        assert!(self.requests.is_empty(), "{} requests are lost", self.requests.len());
        for (number, (expected, known)) in self.sectors.iter().enumerate() {
            if *known {
                assert_eq!(&self.disk.data[number * 512..][..512], expected, "sector {number}");
            }
        }
    }

    fn ask(&mut self) {
        let Some(place) = (0..PLACES).find(|place| self.requests.iter().all(|request| request.place != *place)) else {
            return;
        };
        let count = 1 + self.random.below(8);
        let first = self.random.below(SECTORS + 4);
        let sectors = first..first + count;
        let overlaps = |other: &Request| other.sectors.start < sectors.end && sectors.start < other.sectors.end;
        if self.requests.iter().any(overlaps) {
            return;
        }
        let inside = sectors.end <= SECTORS;
        let kind = [0, 0, 1, 1, 1, 4, 8, 11, 13, 99][self.random.below(10) as usize];
        let changes = matches!(kind, 1 | 11 | 13);
        let known = kind != 4 || self.queue.has(FLUSH);
        let offered = !(matches!(kind, 11 | 13) && self.is_read_only);
        let status = if !known || kind == 99 || !offered {
            2
        } else if matches!(kind, 0 | 1 | 11 | 13) && !inside || changes && self.is_read_only {
            1
        } else {
            0
        };
        let mut output = [&u32::to_le_bytes(kind)[..], &[0; 4], &first.to_le_bytes()].concat();
        let mut data = None;
        let bytes = match kind {
            0 => {
                if status == 0 {
                    let all_known = self.sectors[first as usize..][..count as usize].iter().all(|(_, known)| *known);
                    let content = self.sectors[first as usize..][..count as usize].iter();
                    data = all_known.then(|| content.flat_map(|(bytes, _)| bytes.clone()).collect());
                }
                count * 512
            }
            1 => {
                let written = self.random.bytes(count as usize * 512);
                if status == 0 {
                    for (number, bytes) in (first as usize..).zip(written.chunks(512)) {
                        self.sectors[number] = (bytes.to_vec(), true);
                    }
                }
                output.extend(written);
                0
            }
            8 => {
                data = Some(ID.to_vec());
                20
            }
            11 | 13 => {
                let flags = if kind == 13 { self.random.below(2) as u32 } else { 0 };
                output.extend([&first.to_le_bytes()[..], &(count as u32).to_le_bytes(), &flags.to_le_bytes()].concat());
                if status == 0 {
                    for number in sectors.clone() {
                        self.sectors[number as usize] = (vec![0; 512], kind == 13);
                    }
                }
                0
            }
            _ => 0,
        };
        let mut at = DATA + place as u64 * PLACE + self.random.below(64);
        let mut buffers = Vec::new();
        let mut left = &output[..];
        while !left.is_empty() {
            let (now, later) = left.split_at(self.piece(left.len()));
            self.board.ram.poke(at, now);
            buffers.push((at, now.len() as u32, false));
            at += now.len() as u64 + self.random.below(100);
            left = later;
        }
        let mut input = Vec::new();
        let mut left = bytes as usize + 1;
        while left > 0 {
            let now = self.piece(left);
            self.board.ram.poke(at, &vec![0xaa; now]);
            input.push((at, now as u32, true));
            at += now as u64 + self.random.below(100);
            left -= now;
        }
        assert!(at <= DATA + (place as u64 + 1) * PLACE);
        buffers.extend(&input);
        let indirect = self.random.one_in(2) && buffers.len() <= 16;
        let sectors = if matches!(kind, 0 | 1 | 11 | 13) { sectors } else { 0..0 };
        if let Some(head) = self.board.offer(&mut self.queue, &buffers, indirect) {
            self.requests.push(Request { head, place, sectors, input, data, status, kind });
        } else if status == 0 && changes {
            // There was no room for the chain, so nothing changes.
            for number in sectors {
                let bytes = self.disk.data[number as usize * 512..][..512].to_vec();
                self.sectors[number as usize] = (bytes, false);
            }
        }
    }

    /// The length of the next buffer, if `left` bytes are left.
    fn piece(&mut self, left: usize) -> usize {
        match self.random.below(3) {
            0 => left,
            1 => left.min(1 + self.random.below(20) as usize),
            _ => left.min(1 + self.random.below(3000) as usize),
        }
    }

    fn poll(&mut self) {
        if !std::mem::take(&mut self.board.polls) {
            return;
        }
        let (before, used) = (self.board.line, self.board.ram.peek16(self.queue.device() + 2));
        let Board { device, ram, line, .. } = &mut self.board;
        match device.poll(ram, &mut self.disk, line) {
            Next::Idle => {}
            Next::Again => self.board.polls = true,
            Next::Absent(address) => self.wanted.push(address),
            Next::Broken(fault) => panic!("{fault}"),
        }
        assert_eq!(
            self.board.line,
            before || self.wants_interrupt(used),
            "the interrupt of what was given since {used}"
        );
    }

    /// Should the driver be interrupted because the used index was `before`? A driver whose ring is away cannot say.
    fn wants_interrupt(&self, before: u16) -> bool {
        let (ram, at) = (&self.board.ram, self.queue.driver());
        let now = ram.peek16(self.queue.device() + 2);
        let mut given = (0..now.wrapping_sub(before)).map(|count| before.wrapping_add(count));
        if ram.absent.borrow().contains(&at) {
            return given.next().is_some();
        }
        if self.queue.has(EVENT_IDX) {
            let event = ram.peek16(at + 4 + 2 * u64::from(self.queue.size));
            given.any(|index| index == event)
        } else {
            ram.peek16(at) == 0 && given.next().is_some()
        }
    }

    fn work(&mut self) {
        if self.disk.pending.is_empty() {
            return;
        }
        let index = self.random.below(self.disk.pending.len() as u64) as usize;
        let piece = 1 + self.random.below(3000) as usize;
        match self.disk.step(index, piece, &mut self.board.device, &self.board.ram) {
            Ok(ended) => self.board.polls |= ended,
            Err(DataError::Ram(RamError::Absent(address))) => self.board.ram.bring_back(address),
            Err(DataError::Stale) => {
                self.disk.fail(index, &mut self.board.device);
                self.board.polls = true;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn lose_page(&mut self) {
        let page = self.random.below(64 + PLACES as u64 * PLACE / PAGE) * PAGE;
        self.board.ram.absent.borrow_mut().insert(crate::ram::BASE + page);
    }

    fn page_comes(&mut self) {
        if let Some(address) = self.wanted.pop() {
            self.board.ram.bring_back(address);
            self.board.polls = true;
        }
    }

    fn restore(&mut self) {
        let state = self.board.state();
        self.board.device = Block::new(config(self.is_read_only)).with_state(&state).expect("it is a state");
        assert_eq!(self.board.state(), state);
        assert_eq!(self.board.device.interrupt(), self.board.line);
        // The disk of before is gone. What it had in work is begun again.
        self.disk.pending.clear();
        self.board.polls = true;
        self.restores += 1;
    }

    /// The guest resets the device in mid-flight, and starts anew.
    fn reset(&mut self) {
        for request in self.requests.drain(..) {
            for number in request.sectors.filter(|number| *number < SECTORS) {
                self.sectors[number as usize].1 = false;
            }
        }
        self.queue = self.board.start(self.features, &[self.size]).pop().unwrap();
        assert!(!self.board.line);
        self.board.ram.dirty.borrow_mut().clear();
    }

    fn collect(&mut self) {
        while let Some((head, written)) = self.board.collect(&mut self.queue) {
            let index = self.requests.iter().position(|request| request.head == head).expect("it was made available");
            let request = self.requests.remove(index);
            assert_eq!(written, request.input.iter().map(|buffer| buffer.1).sum::<u32>());
            let read = |&(at, length, _): &Buffer| self.board.ram.peek(at, length as usize);
            let mut input: Vec<u8> = request.input.iter().flat_map(read).collect();
            assert_eq!(input.pop(), Some(request.status), "the status of a request of kind {}", request.kind);
            if let Some(data) = request.data {
                assert!(input == data, "data of a request of kind {}", request.kind);
            }
            if request.status == 0 && request.kind == 1 && !self.queue.has(FLUSH) {
                for number in request.sectors {
                    let stable = &self.disk.stable[number as usize * 512..][..512];
                    assert_eq!(stable, self.sectors[number as usize].0, "sector {number} is not stable");
                }
            }
        }
        if self.random.one_in(2) {
            self.board.acknowledge();
        }
        assert_eq!(self.board.get(STATUS) & NEEDS_RESET, 0);
    }
}
