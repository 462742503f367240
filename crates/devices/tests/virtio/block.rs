// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single requests of a disk.

use twofold_devices::virtio::block::{BlockModel, DataError, DiskConfig, DiskError, Operation};
use twofold_devices::virtio::{Block, Next};
use twofold_devices::{RamError, Width};

use crate::disk::{FakeDisk, SECTORS, config};
use crate::driver::{Board, Buffer, DATA, EVENT_IDX, INDIRECT, Queue};
use crate::model_disk::FLUSH;
use crate::ram::{PAGE, Ram};

pub const STATUS_AT: u64 = DATA + 0x3000;
pub const DISCARD: u64 = 1 << 13;
pub const ZEROES: u64 = 1 << 14;
pub const ALL: u64 = EVENT_IDX | INDIRECT | FLUSH | DISCARD | ZEROES;

/// A disk that is ready.
pub struct Setup {
    pub board: Board<BlockModel>,
    pub queue: Queue,
    pub disk: FakeDisk,
}

impl Setup {
    pub fn new(features: u64) -> Self {
        Self::with(config(false), features)
    }

    pub fn with(config: DiskConfig, features: u64) -> Self {
        let mut board = Board::new(Block::new(config));
        let queue = board.start(features, &[16]).pop().unwrap();
        Self { board, queue, disk: FakeDisk::new() }
    }

    /// Makes a request available: header at `DATA`, data at `DATA + 0x1000`, status at [`STATUS_AT`].
    pub fn ask(&mut self, kind: u32, sector: u64, output: &[u8], input: u32) -> u16 {
        let buffers = request(&self.board.ram, kind, sector, output, input);
        self.board.offer(&mut self.queue, &buffers, false).unwrap()
    }

    pub fn poll(&mut self) -> Next {
        let Board { device, ram, line, .. } = &mut self.board;
        device.poll(ram, &mut self.disk, line)
    }

    /// Polls and lets the disk work until nothing is left.
    pub fn settle(&mut self) {
        loop {
            let next = self.poll();
            let is_idle = self.disk.pending.is_empty();
            self.disk.finish(&mut self.board.device, &self.board.ram);
            match next {
                Next::Idle if is_idle => return,
                Next::Idle | Next::Again => {}
                Next::Absent(address) => self.board.ram.bring_back(address),
                Next::Broken(fault) => panic!("{fault}"),
            }
        }
    }

    /// Does a request; returns its status and what was read.
    pub fn done(&mut self, kind: u32, sector: u64, output: &[u8], input: u32) -> (u8, Vec<u8>) {
        self.board.ram.poke(STATUS_AT, &[0xaa]);
        let head = self.ask(kind, sector, output, input);
        self.settle();
        assert_eq!(self.board.collect(&mut self.queue), Some((head, input + 1)));
        (self.board.ram.peek(STATUS_AT, 1)[0], self.board.ram.peek(DATA + 0x1000, input as usize))
    }
}

pub fn request(ram: &Ram, kind: u32, sector: u64, output: &[u8], input: u32) -> Vec<Buffer> {
    ram.poke(DATA, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
    let mut buffers = vec![(DATA, 16, false)];
    if !output.is_empty() {
        ram.poke(DATA + 0x1000, output);
        buffers.push((DATA + 0x1000, output.len() as u32, false));
    }
    if input > 0 {
        buffers.push((DATA + 0x1000, input, true));
    }
    buffers.push((STATUS_AT, 1, true));
    buffers
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn what_a_disk_does_with_each_request() {
    let mut setup = Setup::new(ALL);
    assert_eq!(setup.done(1, 3, &[7; 1024], 0).0, 0);
    assert_eq!(setup.done(0, 4, &[], 512), (0, vec![7; 512]));
    assert_eq!(setup.done(4, 0, &[], 0).0, 0);
    assert_eq!(setup.disk.stable, setup.disk.data);
    assert_eq!(setup.done(8, 0, &[], 20), (0, crate::disk::ID.to_vec()));
    assert_eq!(setup.done(13, 0, &range(4, 1, 1), 0).0, 0);
    assert_eq!(setup.done(0, 3, &[], 1024), (0, [[7; 512], [0; 512]].concat()));
    assert_eq!(setup.done(11, 0, &range(3, 2, 0), 0).0, 0);
    assert_eq!(setup.done(0, 3, &[], 512), (0, vec![0xdd; 512]));
    let begun = setup.disk.begun;
    for (kind, sector, output, input, status) in [
        (0, SECTORS, vec![], 512, 1),
        (0, SECTORS - 1, vec![], 1024, 1),
        (0, u64::MAX, vec![], 512, 1),
        (0, 0, vec![], 511, 1),
        (0, 0, vec![], 0, 1),
        (0, 0, vec![1; 512], 512, 1),
        (1, 0, vec![], 0, 1),
        (1, 0, vec![1; 513], 0, 1),
        (1, SECTORS - 1, vec![1; 1024], 0, 1),
        (1, 0, vec![1; 512], 1, 1),
        (4, 0, vec![], 1, 1),
        (8, 0, vec![], 19, 1),
        (8, 0, vec![], 21, 1),
        (11, 0, range(0, 1, 1), 0, 2),
        (11, 0, range(0, 1, 2), 0, 2),
        (13, 0, range(0, 1, 2), 0, 2),
        (11, 0, range(SECTORS, 1, 0), 0, 1),
        (11, 0, range(0, 0, 0), 0, 1),
        (13, 0, range(0, u32::MAX, 0), 0, 1),
        (13, 0, vec![0; 15], 0, 1),
        (13, 0, vec![0; 32], 0, 1),
        (2, 0, vec![], 0, 2),
        (14, 0, range(0, 1, 0), 0, 2),
        (u32::MAX, 0, vec![], 0, 2),
    ] {
        assert_eq!(setup.done(kind, sector, &output, input).0, status, "kind {kind}, sector {sector:#x}");
    }
    assert_eq!(setup.disk.begun, begun, "no request that fails its checks reaches the disk");
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let mut setup = Setup::with(config(true), u64::MAX);
    assert_eq!(setup.queue.features & (DISCARD | ZEROES | 1 << 5), 1 << 5);
    assert_eq!(setup.done(1, 0, &[1; 512], 0).0, 1);
    assert_eq!(setup.done(13, 0, &range(0, 1, 0), 0).0, 2);
    assert_eq!(setup.done(11, 0, &range(0, 1, 0), 0).0, 2);
    assert_eq!(setup.done(0, 0, &[], 512).0, 0);
    assert_eq!(setup.done(4, 0, &[], 0).0, 0);
    assert_eq!((setup.disk.begun, setup.disk.data.iter().any(|byte| *byte != 0)), (2, false));
}

#[test]
fn without_flush_each_write_is_durable() {
    let mut setup = Setup::new(ZEROES);
    assert_eq!(setup.done(4, 0, &[], 0).0, 2, "the driver has not accepted FLUSH");
    assert_eq!(setup.done(1, 0, &[5; 512], 0).0, 0);
    assert_eq!(setup.done(1, 1, &[6; 512], 0).0, 0);
    assert_eq!(setup.done(13, 0, &range(0, 1, 0), 0).0, 0);
    assert_eq!(setup.disk.stable[..1024], [[0; 512], [6; 512]].concat());
    let mut setup = Setup::new(ALL);
    setup.done(1, 0, &[5; 512], 0);
    assert_eq!(setup.disk.stable[0], 0);
    setup.done(4, 0, &[], 0);
    assert_eq!(setup.disk.stable[0], 5);
}

#[test]
fn an_error_of_the_disk_is_an_error_of_that_request() {
    let mut setup = Setup::new(ALL);
    setup.ask(0, 0, &[], 512);
    assert_eq!(setup.poll(), Next::Idle);
    let tag = setup.disk.pending.pop().unwrap().tag;
    setup.board.device.complete(tag, Err(DiskError)).unwrap();
    assert_eq!(setup.poll(), Next::Idle);
    assert_eq!(setup.board.ram.peek(STATUS_AT, 1), [1]);
    assert!(setup.board.device.complete(tag, Ok(())).is_err(), "it is no longer there");
    setup.board.collect(&mut setup.queue);
    assert_eq!(setup.done(0, 0, &[], 512).0, 0);
}

/// A disk reaches no more of the guest's memory than the data of its request, in the request's direction.
#[test]
fn data_is_inside_its_request() {
    let mut setup = Setup::new(ALL);
    setup.ask(1, 0, &[9; 512], 0);
    assert_eq!(setup.poll(), Next::Idle);
    let tag = setup.disk.pending[0].tag;
    let (block, ram) = (&setup.board.device, &setup.board.ram);
    let mut bytes = [0; 512];
    block.fetch(tag, ram, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 512]);
    for (offset, length) in [(1, 512), (512, 1), (u32::MAX, 512), (0, 513)] {
        assert_eq!(block.fetch(tag, ram, offset, &mut vec![0; length]), Err(DataError::Beyond));
    }
    assert_eq!(block.store(tag, ram, 0, &[1]), Err(DataError::Beyond), "a write reads memory");
    setup.board.ram.absent.borrow_mut().insert(DATA + PAGE);
    let absent = Err(DataError::Ram(RamError::Absent(DATA + PAGE)));
    assert_eq!(setup.board.device.fetch(tag, &setup.board.ram, 0, &mut bytes), absent);
}

/// More requests than slots wait in the queue, and none is lost when the disk has no room.
#[test]
fn requests_wait_for_slots_and_room() {
    let mut setup = Setup::new(INDIRECT | FLUSH);
    setup.queue = setup.board.start(INDIRECT | FLUSH, &[64]).pop().unwrap();
    for number in 0..40 {
        let buffers = request(&setup.board.ram, 4, 0, &[], 0);
        setup.disk.room = number as usize % 3;
        assert!(setup.board.offer(&mut setup.queue, &buffers, true).is_some());
    }
    setup.disk.room = 5;
    assert_eq!(setup.poll(), Next::Idle);
    assert_eq!(setup.disk.begun, 5);
    setup.disk.room = 100;
    assert_eq!(setup.poll(), Next::Idle);
    assert_eq!(setup.disk.begun, twofold_devices::virtio::block::REQUESTS);
    setup.settle();
    let mut came = 0;
    while setup.board.collect(&mut setup.queue).is_some() {
        came += 1;
    }
    assert_eq!((came, setup.disk.begun), (40, 40));
}

#[test]
fn the_configuration_is_the_disks() {
    let mut setup = Setup::new(ALL);
    let read = |setup: &Setup, offset: u64, width| setup.board.device.read(0x100 + offset, width);
    assert_eq!(read(&setup, 0, Width::Double), SECTORS);
    assert_eq!(read(&setup, 12, Width::Word), 62, "two segments are header and status");
    assert_eq!(read(&setup, 20, Width::Word), 512);
    assert_eq!(read(&setup, 34, Width::Half), 1);
    assert_eq!([36, 40, 44, 48, 52].map(|offset| read(&setup, offset, Width::Word)), [1 << 22, 1, 1, 1 << 22, 1]);
    assert_eq!(read(&setup, 56, Width::Byte), 1);
    assert_eq!(read(&setup, 60, Width::Double), 0);
    let generation = setup.board.get(0xfc);
    setup.board.device.resize(100, &mut setup.board.line);
    assert_eq!((read(&setup, 0, Width::Word), setup.board.line), (100, true));
    assert_eq!((setup.board.get(0xfc), setup.board.acknowledge()), (generation + 1, 2));
    assert_eq!(setup.done(0, 100, &[], 512).0, 1);
}

#[test]
fn the_disk_learns_what_it_may_do() {
    for features in [ALL, DISCARD | ZEROES] {
        let is_durable = features & FLUSH == 0;
        for (kind, output, operation) in [
            (13, range(1, 2, 1), Operation::WriteZeroes { sector: 1, sectors: 2, may_unmap: true, is_durable }),
            (13, range(1, 2, 0), Operation::WriteZeroes { sector: 1, sectors: 2, may_unmap: false, is_durable }),
            (11, range(7, 1, 0), Operation::Discard { sector: 7, sectors: 1 }),
            (1, vec![0; 512], Operation::Write { sector: 9, sectors: 1, is_durable }),
        ] {
            let mut setup = Setup::new(features);
            setup.ask(kind, 9, &output, 0);
            assert_eq!(setup.poll(), Next::Idle);
            assert_eq!(setup.disk.pending[0].operation, operation);
        }
    }
}
