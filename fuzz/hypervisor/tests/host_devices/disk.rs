// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that ends requests in any order, fails some, and shrinks.

use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_devices::virtio::Block;
use twofold_devices::virtio::block::{BlockModel, Disk as Far, DiskConfig, DiskError, Full, Operation, Tag};
use twofold_fuzz_hypervisor::host_devices::disk::{Disk, Range, Request, SLOTS, Work};
use twofold_fuzz_hypervisor::host_devices::negotiate::Unusable;

use crate::bus::{Bus, Machine, Memory, Registers};

const SECTORS: u64 = 64;
const ID: [u8; 20] = *b"twofold-0-0\0\0\0\0\0\0\0\0\0";

/// A disk of the machine.
pub struct Store {
    pub data: Vec<u8>,
    pub pending: Vec<(Tag, Operation)>,
    /// Zeroes whose place might be given up.
    pub unmapped: u32,
}

/// What discarded sectors have then.
const DISCARDED: u8 = 0xdd;

impl Far for Store {
    fn begin(&mut self, tag: Tag, operation: Operation) -> Result<(), Full> {
        self.pending.push((tag, operation));
        Ok(())
    }
}

impl Store {
    /// Ends a request, with an error if `fails`.
    fn end(&mut self, index: usize, fails: bool, block: &mut Block) {
        let (tag, operation) = self.pending.remove(index);
        let at = |sector: u64, sectors: u32| sector as usize * 512..(sector as usize + sectors as usize) * 512;
        if !fails {
            match operation {
                Operation::Read { sector, sectors } => {
                    block.store(tag, &Memory, 0, &self.data[at(sector, sectors)]).unwrap();
                }
                Operation::Write { sector, sectors, is_durable } => {
                    assert!(!is_durable, "the driver knows the cache");
                    block.fetch(tag, &Memory, 0, &mut self.data[at(sector, sectors)]).unwrap();
                }
                Operation::Flush => {}
                Operation::Discard { sector, sectors } => self.data[at(sector, sectors)].fill(DISCARDED),
                Operation::WriteZeroes { sector, sectors, may_unmap, is_durable } => {
                    assert!(!is_durable, "the driver knows the cache");
                    self.data[at(sector, sectors)].fill(0);
                    self.unmapped += u32::from(may_unmap);
                }
            }
        }
        block.complete(tag, if fails { Err(DiskError) } else { Ok(()) }).unwrap();
    }
}

type TheBus = Rc<Bus<BlockModel, Store>>;
type TheDisk = Disk<Machine, Registers<BlockModel, Store>, u32>;

fn work(bus: &TheBus) {
    bus.poll(|block, store, line| block.poll(&Memory, store, line));
}

fn disk(is_read_only: bool) -> (TheBus, TheDisk) {
    let block = Block::new(DiskConfig { sectors: SECTORS, is_read_only, id: ID });
    let bus = Bus::new(block, Store { data: vec![0; SECTORS as usize * 512], pending: Vec::new(), unmapped: 0 });
    let disk = Disk::new(Registers(bus.clone()), || {
        work(&bus);
        true
    });
    (bus, disk.expect("the disk is a good one"))
}

fn request(tag: u32, work: Work, sectors: usize, byte: u8) -> Request<u32> {
    Request { tag, work, length: sectors * 512, buffer: vec![byte; 8 * 512].into() }
}

#[derive(Clone, Debug)]
enum Step {
    Read {
        sector: u64,
        sectors: usize,
    },
    Write {
        sector: u64,
        sectors: usize,
        byte: u8,
    },
    Discard(Range),
    Zero(Range, bool),
    Flush,
    /// The device works, and ends a request.
    End {
        index: usize,
        fails: bool,
    },
    Take,
    Resize(u64),
}

fn range() -> impl Strategy<Value = Range> {
    (0..SECTORS + 4, 0..SECTORS as u32 + 4).prop_map(|(sector, sectors)| Range { sector, sectors })
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..SECTORS + 4, 1..9_usize);
    prop_oneof![
        3 => place().prop_map(|(sector, sectors)| Step::Read { sector, sectors }),
        3 => (place(), any::<u8>()).prop_map(|((sector, sectors), byte)| Step::Write { sector, sectors, byte }),
        1 => range().prop_map(Step::Discard),
        1 => (range(), any::<bool>()).prop_map(|(range, may_unmap)| Step::Zero(range, may_unmap)),
        1 => Just(Step::Flush),
        6 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(index, fails)| Step::End { index, fails }),
        6 => Just(Step::Take),
        1 => (SECTORS / 2..=SECTORS).prop_map(Step::Resize),
    ]
}

/// A request in flight: what was asked, and what the device did.
#[derive(Clone, Debug)]
struct Model {
    work: Work,
    is_possible: bool,
}

proptest! {
    /// Each request ends once, good if and only if the device did it, and a good read has the device's bytes.
    #[test]
    fn each_request_ends_as_the_device_says(steps in vec(step(), 0..400)) {
        let (bus, mut disk) = disk(false);
        assert_eq!((disk.id(), disk.sectors(), disk.is_read_only()), (ID, SECTORS, false));
        let mut flying = BTreeMap::new();
        let mut bad = 0;
        let (mut next, mut failures) = (0, 0);
        for step in steps {
            let (work_now, sectors, byte) = match step {
                Step::Read { sector, sectors } => (Work::Read(sector), sectors, 0),
                Step::Write { sector, sectors, byte } => (Work::Write(sector), sectors, byte),
                Step::Flush => (Work::Flush, 0, 0),
                Step::Discard(range) => (Work::Discard(range), 0, 0),
                Step::Zero(range, may_unmap) => (Work::Zero(range, may_unmap), 0, 0),
                Step::End { index, fails } => {
                    bus.is_notified.set(true);
                    work(&bus);
                    let pending = bus.far_end.borrow().pending.len();
                    if pending > 0 {
                        failures += u32::from(fails);
                        bus.far_end.borrow_mut().end(index % pending, fails, &mut bus.device.borrow_mut());
                        bus.is_notified.set(true);
                        work(&bus);
                    }
                    continue;
                }
                Step::Take => {
                    if let Some((request, is_good)) = disk.ended() {
                        let model: Model = flying.remove(&request.tag).expect("it ends once");
                        prop_assert_eq!(request.work, model.work);
                        prop_assert!(model.is_possible || !is_good);
                        bad += u32::from(model.is_possible && !is_good);
                        prop_assert!(bad <= failures, "an error that the device did not report");
                    }
                    continue;
                }
                Step::Resize(sectors) => {
                    // A request that the device has is one of the old size.
                    if flying.is_empty() {
                        let before = disk.sectors();
                        bus.device.borrow_mut().resize(sectors, &mut false);
                        prop_assert_eq!(disk.look_again(), before != sectors);
                        prop_assert_eq!(disk.sectors(), sectors);
                    }
                    continue;
                }
            };
            let end = match work_now {
                Work::Read(sector) | Work::Write(sector) => sector + sectors as u64,
                Work::Discard(Range { sectors: 0, .. }) | Work::Zero(Range { sectors: 0, .. }, _) => u64::MAX,
                Work::Discard(range) | Work::Zero(range, _) => range.sector + u64::from(range.sectors),
                _ => 0,
            };
            let model = Model { work: work_now, is_possible: end <= disk.sectors() };
            match disk.begin(request(next, work_now, sectors, byte)) {
                Ok(()) => {
                    flying.insert(next, model);
                    next += 1;
                }
                Err(_) => prop_assert_eq!(flying.len(), SLOTS),
            }
            disk.notify();
        }
        // Everything ends.
        for _ in 0..2 * SLOTS {
            bus.is_notified.set(true);
            work(&bus);
            while !bus.far_end.borrow().pending.is_empty() {
                bus.far_end.borrow_mut().end(0, false, &mut bus.device.borrow_mut());
            }
        }
        bus.is_notified.set(true);
        work(&bus);
        while let Some((request, is_good)) = disk.ended() {
            let model = flying.remove(&request.tag).expect("it ends once");
            prop_assert!(model.is_possible || !is_good);
        }
        prop_assert!(flying.is_empty());
    }
}

/// Does a request at once.
fn at_once(bus: &TheBus, disk: &mut TheDisk, request: Request<u32>, fails: bool) -> (Request<u32>, bool) {
    assert!(disk.begin(request).is_ok());
    disk.notify();
    work(bus);
    while !bus.far_end.borrow().pending.is_empty() {
        bus.far_end.borrow_mut().end(0, fails, &mut bus.device.borrow_mut());
    }
    bus.is_notified.set(true);
    work(bus);
    disk.ended().expect("it has ended")
}

#[test]
fn data_arrives_and_comes_back() {
    let (bus, mut disk) = disk(false);
    for round in 0..1000_u32 {
        let (sector, sectors, byte) = (u64::from(round * 7 % 56), 1 + round as usize % 8, round as u8);
        let (_, is_good) = at_once(&bus, &mut disk, request(round, Work::Write(sector), sectors, byte), false);
        assert!(is_good);
        assert!(bus.far_end.borrow().data[sector as usize * 512..][..sectors * 512].iter().all(|is| *is == byte));
        let (back, is_good) = at_once(&bus, &mut disk, request(round, Work::Read(sector), sectors, !byte), false);
        assert!(is_good && back.tag == round);
        assert!(back.buffer[..back.length].iter().all(|is| *is == byte));
        assert!(back.buffer[back.length..].iter().all(|is| *is == !byte), "nothing behind the request is written");
    }
    assert!(bus.line.get(), "it interrupts");
    assert!(at_once(&bus, &mut disk, request(0, Work::Flush, 0, 0), false).1);
}

#[test]
fn discards_and_zeroes_reach_their_sectors_alone() {
    let (bus, mut disk) = disk(false);
    for sector in (0..SECTORS).step_by(8) {
        assert!(at_once(&bus, &mut disk, request(0, Work::Write(sector), 8, 7), false).1);
    }
    let range = |sector, sectors| Range { sector, sectors };
    for work in [Work::Discard(range(1, 20)), Work::Zero(range(40, 1), false), Work::Zero(range(62, 2), true)] {
        assert!(at_once(&bus, &mut disk, request(0, work, 0, 0), false).1);
        assert!(!at_once(&bus, &mut disk, request(0, work, 0, 0), true).1);
    }
    let expected = |sector| match sector {
        1..21 => DISCARDED,
        40 | 62 | 63 => 0,
        _ => 7,
    };
    let store = bus.far_end.borrow();
    for (sector, bytes) in store.data.chunks(512).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == expected(sector)), "sector {sector} has {}", bytes[0]);
    }
    assert_eq!(store.unmapped, 1);
}

#[test]
fn an_error_is_of_one_request() {
    let (bus, mut disk) = disk(false);
    for (number, fails) in [false, true, false, true, false].into_iter().enumerate() {
        for work in [Work::Write(3), Work::Read(3), Work::Flush] {
            let sectors = usize::from(work != Work::Flush);
            let (_, is_good) = at_once(&bus, &mut disk, request(number as u32, work, sectors, 1), fails);
            assert_eq!(is_good, !fails);
        }
    }
}

#[test]
fn a_read_only_disk_fails_writes() {
    let (bus, mut disk) = disk(true);
    assert!(disk.is_read_only());
    assert!(!at_once(&bus, &mut disk, request(0, Work::Write(0), 1, 1), false).1);
    assert!(at_once(&bus, &mut disk, request(0, Work::Read(0), 1, 1), false).1);
    let all = Range { sector: 0, sectors: 1 };
    for work in [Work::Discard(all), Work::Zero(all, false)] {
        assert!(!at_once(&bus, &mut disk, request(0, work, 0, 0), false).1);
    }
    assert_eq!((disk.range_max().discard, disk.range_max().zero), (0, 0));
}

#[test]
fn requests_that_no_disk_can_do_fail_without_it() {
    let (bus, mut disk) = disk(false);
    for (work, length) in [
        (Work::Read(SECTORS), 512),
        (Work::Write(u64::MAX), 512),
        (Work::Read(SECTORS - 1), 1024),
        (Work::Read(0), 0),
        (Work::Read(0), 511),
        (Work::Write(0), 9 * 512),
    ] {
        let request = Request { tag: 1, work, length, buffer: vec![0; 8 * 512].into() };
        assert!(!at_once(&bus, &mut disk, request, false).1, "{work:?} of {length} bytes");
    }
}

#[test]
fn a_silent_disk_is_given_up() {
    let block = Block::new(DiskConfig { sectors: SECTORS, is_read_only: false, id: ID });
    let bus = Bus::new(block, Store { data: Vec::new(), pending: Vec::new(), unmapped: 0 });
    let mut waits = 0;
    let disk = Disk::<Machine, _, u32>::new(Registers(bus), || {
        waits += 1;
        waits < 10
    });
    assert_eq!(disk.err(), Some(Unusable::Silent));
}
