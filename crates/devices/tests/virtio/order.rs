// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exact accesses of one request, in their order, with their barriers: the steps that head `queue.rs`.

use twofold_devices::Barrier;
use twofold_devices::virtio::Next;

use crate::block::{ALL, STATUS_AT, Setup};
use crate::driver::{DATA, EVENT_IDX};
use crate::ram::Access::{self, Barrier as Fence, Read, Write};

fn accesses(setup: &Setup) -> Vec<Access> {
    let log = setup.board.ram.log.borrow().clone();
    setup.board.ram.forget();
    log
}

#[test]
fn each_step_is_one_access_and_barriers_are_between() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let mut setup = Setup::new(features);
        let (table, driver, device) = (setup.queue.descriptors(), setup.queue.driver(), setup.queue.device());
        let has_events = features & EVENT_IDX != 0;
        setup.done(4, 0, &[], 0);
        setup.board.acknowledge();
        setup.queue.want_interrupt(&setup.board.ram, true);
        setup.ask(0, 0, &[], 512);
        setup.board.ram.forget();
        assert_eq!(setup.poll(), Next::Idle);
        // The head is where the free list put it.
        let head = setup.board.ram.peek16(driver + 4 + 2);
        let mut chain = Vec::new();
        let mut index = head;
        loop {
            let at = table + 16 * u64::from(index);
            chain.push(Read(at, 16));
            if setup.board.ram.peek16(at + 12) & 1 == 0 {
                break;
            }
            index = setup.board.ram.peek16(at + 14);
        }
        let take = [Read(driver + 2, 2), Fence(Barrier::Acquire), Read(driver + 4 + 2, 2)];
        let rest = match has_events {
            true => vec![Write(device + 4 + 8 * 16, 2), Fence(Barrier::Full), Read(driver + 2, 2)],
            false => vec![Read(driver + 2, 2)],
        };
        let header = [Read(DATA, 16)];
        let expected = [&take[..], &chain, &header, &[Read(driver + 2, 2)], &rest].concat();
        assert_eq!(accesses(&setup), expected);

        setup.disk.finish(&mut setup.board.device, &setup.board.ram);
        assert_eq!(accesses(&setup), [Write(DATA + 0x1000, 512)]);
        assert_eq!(setup.poll(), Next::Idle);
        let wish = if has_events { driver + 4 + 2 * 16 } else { driver };
        let give = [
            Write(STATUS_AT, 1),
            Write(device + 4 + 8, 8),
            Fence(Barrier::Release),
            Write(device + 2, 2),
            Fence(Barrier::Full),
            Read(wish, 2),
        ];
        assert_eq!(accesses(&setup), give);
        assert!(setup.board.line);
    }
}

/// A driver that makes a chain available between the device's last look and its rest is seen or notifies.
#[test]
fn a_rest_looks_again() {
    let mut setup = Setup::new(ALL);
    for round in 0..200_u16 {
        setup.ask(4, 0, &[], 0);
        assert_eq!(setup.board.ram.peek16(setup.queue.device() + 4 + 8 * 16), round, "what the device asked for");
        setup.settle();
        setup.board.collect(&mut setup.queue).unwrap();
    }
}

/// Each page that the device writes is in the dirty log, and no other.
#[test]
fn what_is_written_is_marked() {
    let mut setup = Setup::new(ALL);
    setup.board.ram.forget();
    setup.done(0, 0, &[], 512);
    let dirty: Vec<u64> = setup.board.ram.dirty.borrow().iter().copied().collect();
    assert_eq!(dirty, [setup.queue.device(), DATA + 0x1000, STATUS_AT]);
}
