// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A balloon: pages in and out of it, and reported memory.

use std::collections::BTreeSet;

use twofold_devices::virtio::balloon::{BalloonModel, PAGE, Pages, feature};
use twofold_devices::virtio::{Balloon, Next};
use twofold_devices::{RamError, Width};

use crate::driver::{Board, DATA, EVENT_IDX, INDIRECT, NEEDS_RESET, Queue, STATUS};
use crate::random::with_seeds;

/// The pages that the guest has given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub pages: BTreeSet<u64>,
    /// Each page that went in (true) or out.
    pub moves: Vec<(u64, bool)>,
    /// Reported memory, page by page, in its order.
    pub reported: Vec<u64>,
    pub resets: u32,
    pub announced: Option<bool>,
    /// Calls until one is put off.
    pub patience: Option<u32>,
    /// A page that something else has.
    pub busy: Option<u64>,
}

impl Taken {
    fn is_put_off(&mut self) -> bool {
        self.patience = self.patience.map(|left| left.checked_sub(1).unwrap_or(3));
        self.patience == Some(3)
    }
}

impl Pages for Taken {
    fn inflate(&mut self, page: u64, is_announced: bool) -> Result<bool, RamError> {
        if self.busy == Some(page) {
            return Err(RamError::Absent(page));
        }
        if page >= 1 << 40 {
            return Err(RamError::NotRam(page));
        }
        self.announced = Some(is_announced);
        if self.is_put_off() {
            return Ok(false);
        }
        self.pages.insert(page);
        self.moves.push((page, true));
        Ok(true)
    }

    fn deflate(&mut self, page: u64) {
        self.pages.remove(&page);
        self.moves.push((page, false));
    }

    fn report(&mut self, address: u64, length: u32) -> Result<u32, RamError> {
        let count = if self.patience.is_some() { 1 } else { u64::from(length) / PAGE };
        if (0..count).any(|page| self.busy == Some(address + page * PAGE)) {
            return Err(RamError::Absent(address));
        }
        self.reported.extend((0..count).map(|page| address + page * PAGE));
        Ok((count * PAGE) as u32)
    }

    fn forget(&mut self) {
        self.pages.clear();
        self.resets += 1;
    }
}

pub fn balloon() -> Board<BalloonModel> {
    Board::new(Balloon::new())
}

/// The queues: in, out, and reports.
pub fn start(board: &mut Board<BalloonModel>, features: u64) -> [Queue; 3] {
    board.start(features, &[16, 16, 64]).try_into().unwrap()
}

/// The bytes of these pages' numbers.
pub fn numbers(pages: impl Iterator<Item = u64>) -> Vec<u8> {
    pages.flat_map(|page| ((page / PAGE) as u32).to_le_bytes()).collect()
}

fn settle(board: &mut Board<BalloonModel>, taken: &mut Taken) {
    for _ in 0..10_000 {
        match board.device.poll(&board.ram, taken, &mut board.line) {
            Next::Idle => return,
            Next::Again => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("it never rests");
}

#[test]
fn pages_go_in_and_out() {
    with_seeds(60, |random| {
        let mut board = balloon();
        let [mut inflate, mut deflate, _] = start(&mut board, random.next() & (EVENT_IDX | INDIRECT) | 1);
        let mut taken = Taken { patience: random.one_in(2).then_some(5), ..Taken::default() };
        let mut expected = Vec::new();
        for round in 0..20 {
            let pages: Vec<u64> = (0..1 + random.below(300)).map(|_| random.below(1 << 20) * PAGE).collect();
            let (bytes, is_in) = (numbers(pages.iter().copied()), round % 3 < 2);
            board.ram.poke(DATA, &bytes);
            let (length, first) = (bytes.len() as u32, 1 + random.below(bytes.len() as u64 - 1) as u32);
            let buffers = [(DATA, first, false), (DATA + u64::from(first), length - first, false)];
            let queue = if is_in { &mut inflate } else { &mut deflate };
            let head = board.offer(queue, &buffers, random.one_in(2)).unwrap();
            expected.extend(pages.into_iter().map(|page| (page, is_in)));
            if random.one_in(4) {
                let _ = board.device.poll(&board.ram, &mut taken, &mut board.line);
                let state = board.state();
                board.device = Balloon::new().with_state(&state).unwrap();
                assert_eq!(board.state(), state);
            }
            settle(&mut board, &mut taken);
            let queue = if is_in { &mut inflate } else { &mut deflate };
            assert_eq!(board.collect(queue), Some((head, 0)));
        }
        assert_eq!((taken.moves, taken.announced), (expected, Some(true)));
    });
}

/// All of each buffer is reported, in order, and nothing else.
#[test]
fn memory_is_reported_once() {
    let mut board = balloon();
    let [_, _, mut report] = start(&mut board, u64::MAX);
    let mut taken = Taken { patience: Some(3), ..Taken::default() };
    let buffers: Vec<_> = (0..30).map(|number| (DATA + number * 16 * PAGE, 4 * PAGE as u32, true)).collect();
    board.offer(&mut report, &buffers, true);
    assert_eq!(board.device.poll(&board.ram, &mut taken, &mut board.line), Next::Again);
    assert!(board.collect(&mut report).is_none(), "the guest may not use them yet");
    settle(&mut board, &mut taken);
    assert!(board.collect(&mut report).is_some());
    let expected: Vec<u64> = (0..120).map(|page| DATA + (page / 4 * 16 + page % 4) * PAGE).collect();
    assert_eq!(taken.reported, expected);
}

#[test]
fn a_page_that_comes_later_holds_up_its_own_queue_only() {
    let mut board = balloon();
    let [mut inflate, mut deflate, mut report] = start(&mut board, u64::MAX);
    let mut taken = Taken { busy: Some(5 * PAGE), ..Taken::default() };
    board.ram.poke(DATA, &numbers((3..8).map(|page| page * PAGE)));
    let head = board.offer(&mut inflate, &[(DATA, 20, false)], false).unwrap();
    board.offer(&mut deflate, &[(DATA, 4, false)], false);
    board.offer(&mut report, &[(DATA, PAGE as u32, true)], false);
    assert_eq!(board.device.poll(&board.ram, &mut taken, &mut board.line), Next::Absent(5 * PAGE));
    assert!(board.collect(&mut deflate).is_some() && board.collect(&mut report).is_some());
    assert_eq!(board.collect(&mut inflate), None);
    taken.busy = None;
    assert_eq!(board.device.poll(&board.ram, &mut taken, &mut board.line), Next::Idle);
    assert_eq!(board.collect(&mut inflate), Some((head, 0)));
    // Page 3 went out between, and was passed on once.
    assert_eq!(taken.pages, (4..8).map(|page| page * PAGE).collect());
}

#[test]
fn the_driver_sees_how_many_pages_are_wanted_and_says_how_many_there_are() {
    let mut board = balloon();
    board.negotiate(0);
    board.set(STATUS, 15);
    let generation = board.get(0xfc);
    board.device.ask_for(0x1234, &mut board.line);
    assert_eq!((board.get(0x100), board.get(0xfc), board.acknowledge()), (0x1234, generation + 1, 2));
    board.device.ask_for(0x1234, &mut board.line);
    assert!(!board.line, "nothing has changed");
    board.device.write(0x104, Width::Word, 0x0102_0304, &mut board.line);
    board.device.write(0x105, Width::Byte, 0xff, &mut board.line);
    // What the driver cannot change.
    board.device.write(0x100, Width::Word, 7, &mut board.line);
    board.device.write(0x108, Width::Double, 7, &mut board.line);
    assert_eq!((board.get(0x100), board.get(0x104), board.device.actual()), (0x1234, 0x0102_ff04, 0x0102_ff04));
    board.set(STATUS, 0);
    assert_eq!((board.get(0x100), board.device.actual()), (0x1234, 0), "a driver begins with no page");
}

#[test]
fn the_far_end_learns_of_a_reset_first() {
    let mut board = balloon();
    let mut taken = Taken::default();
    for resets in 1..3 {
        let [mut inflate, ..] = start(&mut board, EVENT_IDX);
        board.ram.poke(DATA, &numbers([PAGE * resets].into_iter()));
        board.offer(&mut inflate, &[(DATA, 4, false)], false);
        settle(&mut board, &mut taken);
        assert_eq!((taken.pages.clone(), u64::from(taken.resets)), (BTreeSet::from([PAGE * resets]), resets));
        assert_eq!(taken.announced, Some(false), "the driver did not accept to announce");
    }
}

#[test]
fn a_driver_that_breaks_the_rules_needs_a_reset() {
    for (pages, length) in [(vec![1 << 42], 4), (vec![PAGE, PAGE], 6), (vec![], 0)] {
        let mut board = balloon();
        let [mut inflate, ..] = start(&mut board, feature::MUST_TELL_HOST);
        board.ram.poke(DATA, &numbers(pages.into_iter()));
        let buffer = if length == 0 { (DATA, 4, true) } else { (DATA, length, false) };
        board.offer(&mut inflate, &[buffer], false);
        let next = board.device.poll(&board.ram, &mut Taken::default(), &mut board.line);
        assert!(matches!(next, Next::Broken(_)), "{next:?}");
        assert_ne!(board.get(STATUS) & NEEDS_RESET, 0);
    }
}
