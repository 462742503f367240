// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each byte that a device depends on is read once. So a guest that changes it afterwards changes nothing, and one that
//! changes it meanwhile gets what it would have got by writing the new bytes at first.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use twofold_devices::virtio::Block;
use twofold_devices::{GuestRam, RamError};

use crate::block::{ALL, Setup, request};
use crate::disk::{FakeDisk, config};
use crate::driver::{Board, DATA, NEEDS_RESET, STATUS};
use crate::ram::{BASE, PAGE};
use crate::random::{Random, with_seeds};

#[test]
fn descriptors_tables_headers_and_data_are_read_once() {
    for indirect in [false, true] {
        for (kind, output, input) in [(1, vec![7; 1024], 0), (0, vec![], 1024), (13, vec![1; 16], 0), (99, vec![], 0)] {
            let mut setup = Setup::new(ALL);
            let buffers = request(&setup.board.ram, kind, 0, &output, input);
            setup.board.ram.forget();
            setup.board.offer(&mut setup.queue, &buffers, indirect).unwrap();
            setup.settle();
            let (driver, reads) = (setup.queue.driver(), setup.board.ram.reads.borrow().clone());
            for (address, count) in &reads {
                // The index is what a device looks at again and again.
                if !(driver + 2..driver + 4).contains(address) {
                    assert_eq!(*count, 1, "{address:#x} of kind {kind}");
                }
            }
            assert!(reads.contains_key(&DATA) && !reads.contains_key(&(DATA + 0x3000)));
            assert_eq!(reads.contains_key(&setup.queue.table(0)) || indirect, indirect);
        }
    }
}

/// The same requests over memory that changes with each read, and over memory that does not: the disk is the same.
#[test]
fn memory_that_changes_behind_each_read_changes_nothing() {
    with_seeds(200, |random| {
        let seed = random.next();
        let run = |is_unsteady: bool| {
            let random = &Random::new(seed);
            let mut setup = Setup::new(ALL);
            let mut statuses = Vec::new();
            // The index is what a device looks at again and again.
            *setup.board.ram.steady.borrow_mut() = setup.queue.driver() + 2..setup.queue.driver() + 4;
            for _ in 0..30 {
                let (sector, sectors) = (random.below(260), 1 + random.below(4));
                let output = match random.below(3) {
                    0 => vec![],
                    _ => random.bytes(sectors as usize * 512),
                };
                let kind = u32::from(!output.is_empty());
                let input = if output.is_empty() { sectors as u32 * 512 } else { 0 };
                let mut buffers = request(&setup.board.ram, kind, sector, &output, input);
                // A header in pieces: each is one read.
                buffers.splice(0..1, [(DATA, 7, false), (DATA + 7, 9, false)]);
                setup.board.offer(&mut setup.queue, &buffers, random.one_in(2)).unwrap();
                setup.board.ram.is_unsteady.set(is_unsteady);
                setup.settle();
                setup.board.ram.is_unsteady.set(false);
                setup.board.collect(&mut setup.queue).unwrap();
                statuses.push(setup.board.ram.peek(crate::block::STATUS_AT, 1)[0]);
            }
            (statuses, setup.disk.data)
        };
        assert!(run(false) == run(true));
    });
}

/// Memory that another thread writes while the device works.
struct Shared(Vec<AtomicU8>);

impl Shared {
    fn at(&self, address: u64, length: usize) -> Result<&[AtomicU8], RamError> {
        let first = address.checked_sub(BASE).ok_or(RamError::NotRam(address))? as usize;
        let end = first.checked_add(length).expect("the device adds beyond the last address");
        self.0.get(first..end).ok_or(RamError::NotRam(address))
    }
}

impl GuestRam for Shared {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError> {
        let places = self.at(address, bytes.len())?;
        bytes.iter_mut().zip(places).for_each(|(byte, place)| *byte = place.load(Ordering::Relaxed));
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        let places = self.at(address, bytes.len())?;
        bytes.iter().zip(places).for_each(|(byte, place)| place.store(*byte, Ordering::Relaxed));
        Ok(())
    }
}

/// Another vCPU writes any bytes to rings, descriptors, headers and tables while the device reads them.
#[test]
fn a_vcpu_that_writes_meanwhile_gains_nothing() {
    with_seeds(4, |random| {
        let ram = Shared((0..64 * PAGE).map(|_| AtomicU8::new(0)).collect());
        let (stop, seed) = (AtomicBool::new(false), random.next());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let random = Random::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    // Mostly where descriptors and rings are, and mostly small numbers.
                    let page = random.below(6) * PAGE;
                    let byte = if random.one_in(3) { random.next() as u8 } else { random.below(8) as u8 };
                    ram.0[(page + random.below(0x120)) as usize].store(byte, Ordering::Relaxed);
                    // An address of RAM in the upper bytes of a descriptor.
                    let descriptor = (random.below(16) * 16) as usize;
                    let address = (BASE + random.below(64 * PAGE)).to_le_bytes();
                    for (place, byte) in ram.0[descriptor..].iter().zip(address) {
                        place.store(byte, Ordering::Relaxed);
                    }
                }
            });
            let mut board = Board::new(Block::new(config(false)));
            let (mut disk, mut resets) = (FakeDisk::new(), 0);
            for _ in 0..20_000 {
                if board.get(STATUS) & 4 == 0 || board.get(STATUS) & NEEDS_RESET != 0 {
                    // `Board` has a memory of its own for the driver's zeros; the addresses are the same.
                    board.start(ALL, &[16]);
                    resets += 1;
                }
                board.set(0x50, 0);
                let _ = board.device.poll(&ram, &mut disk, &mut board.line);
                for index in (0..disk.pending.len()).rev() {
                    if disk.step(index, 4096, &mut board.device, &ram).is_err() {
                        disk.fail(index, &mut board.device);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(resets > 0);
        });
    });
}
