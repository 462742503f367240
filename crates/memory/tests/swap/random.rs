// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random operations of a guest, devices, a log, a write-out task and a store, with a limit that changes: whatever is
//! read was written last, no write is missing from the log, and frames and places are kept as they should be at each
//! step.
//!
//! 40 runs, or `TWOFOLD_SWAP_RUNS`, with new seeds, or those from `TWOFOLD_SEED` on. A failure prints its seed;
//! `TWOFOLD_SWAP_SEED` repeats it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use twofold_memory::Pages;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Located, Peek, Peeked, Pinned, PinnedFor};
use twofold_stage2::fault::AccessKind;

use crate::machine::Host;
use crate::machine::platform::PLAIN;
use crate::rig::{FEATURES, Plan, Rig, ignore, ipa};
use crate::store::BROKEN;

/// Peeks at a time.
const PEEKS: usize = 4;
const COUNT: u64 = 600;
const STEPS: u64 = 4000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// A page that is read where it is: what it held before, and the writes until then.
struct Peeking<'w> {
    page: u64,
    peek: Peek<'w, Host>,
    before: u64,
    began: u64,
}

struct World {
    rig: Rig,
    random: RefCell<Random>,
    /// Pages that were written since they were last cleared, if a log runs.
    dirty: RefCell<BTreeSet<u64>>,
    logs: Cell<Option<Tracker>>,
    pinned: RefCell<Vec<Pinned>>,
    /// By how much the frames in use exceed a limit that is new.
    excess: Cell<u64>,
}

impl World {
    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    /// Most accesses are to few pages.
    fn page(&self) -> u64 {
        let all = self.below(3) == 0;
        self.below(if all { COUNT } else { 40 })
    }

    fn step(&self) {
        let (rig, page) = (&self.rig, self.page());
        match self.below(42) {
            0..8 => {
                if rig.try_write(page).is_ok() {
                    self.dirty.borrow_mut().insert(page);
                } else {
                    rig.bring(page, page % 16);
                }
            }
            8..14 if rig.try_read(page).is_err() => rig.bring(page, page % 16),
            14 => ignore(rig.access(page, AccessKind::Execute)),
            15 if rig.access(page, AccessKind::Write).is_ok() => {
                rig.write_zero(page);
                self.dirty.borrow_mut().insert(page);
            }
            16..18 if rig.try_device_write(page).is_ok() => {
                self.dirty.borrow_mut().insert(page);
            }
            18 => ignore(rig.try_device_read(page)),
            19..27 => ignore(rig.write_out(page)),
            27..32 => self.complete(),
            32 => {
                rig.store.get().waits = self.below(3) > 0;
                rig.store.get().at_once = self.below(3) == 0;
            }
            33 => rig.store.get().capacity = if self.below(4) == 0 { 3 } else { usize::MAX },
            34 => match rig.memory.set_limit(16 + self.below(30)) {
                Ok(excess) => self.excess.set(excess),
                refused => assert!(!self.pinned.borrow().is_empty(), "{refused:?}"),
            },
            35 => ignore(rig.memory.fail_waiting()),
            36 => rig.memory.unmap(rig.slot, ipa(page)..ipa((page + 20).min(COUNT))).unwrap(),
            37 => self.pin(page),
            38..40 => self.log(),
            40..42 => self.give_up(page),
            _ => {}
        }
        let used = rig.memory.frame_use();
        let excess = used.data.saturating_sub(used.limit);
        // It never grows.
        assert!(excess <= self.excess.replace(excess), "{used:?}");
        // A waiter that was notified is served, or asks again.
        rig.reports.arrived();
        rig.reports.failures();
    }

    fn complete(&self) {
        let (rig, fails) = (&self.rig, self.below(5) == 0);
        let result = if fails { Err(BROKEN) } else { Ok(()) };
        let (writes, reads) = (rig.store.writing() as u64, rig.store.reading() as u64);
        if writes > 0 && (reads == 0 || self.below(2) == 0) {
            rig.store.finish_write(&*rig.memory, self.below(writes) as usize, result);
        } else if reads > 0 {
            rig.store.finish_read(&*rig.memory, self.below(reads) as usize, result);
        }
    }

    /// The guest gives up some pages, or a huge page. What it gave up reads as zero.
    fn give_up(&self, page: u64) {
        let (rig, count) = (&self.rig, 1 + self.below(20));
        let pages = if self.below(4) == 0 { 0..512 } else { page..(page + count).min(COUNT) };
        let _ = rig.memory.give_up(ipa(pages.start)..ipa(pages.end));
        for page in pages.filter(|page| rig.located(*page) == Located::Zero && rig.expected(*page) != 0) {
            rig.expect(page, 0);
            self.dirty.borrow_mut().insert(page);
        }
    }

    fn pin(&self, page: u64) {
        let mut pinned = self.pinned.borrow_mut();
        if pinned.len() > 2 {
            let index = self.below(pinned.len() as u64) as usize;
            let over = pinned.swap_remove(index);
            let first = (over.range().start - ipa(0)) / crate::machine::PAGE;
            let last = (over.range().end - ipa(0)) / crate::machine::PAGE;
            self.dirty.borrow_mut().extend(first..last);
            self.rig.memory.unpin(over);
        } else if let Ok(new) = self.rig.memory.pin(ipa(page)..ipa((page + 2).min(COUNT)), PinnedFor::Writing) {
            pinned.push(new);
        }
    }

    /// Begins to read a page where it is, looks at one, or forgets it.
    fn peek<'w>(&'w self, peeks: &mut Vec<Peeking<'w>>) {
        let (rig, number) = (&self.rig, self.below(PEEKS as u64) as usize);
        match self.below(12) {
            0 if peeks.len() < PEEKS => {
                let page = self.page();
                let (peek, before) = (rig.memory.peek(ipa(page)).unwrap(), rig.expected(page));
                peeks.push(Peeking { page, peek, before, began: rig.writes() });
            }
            1..5 if number < peeks.len() => {
                let mut bytes = [0; 4096];
                let Peeking { page, peek, before, began } = &mut peeks[number];
                if peek.look(&mut bytes) == Peeked::Read {
                    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    let is_later = value > *began && value <= rig.writes();
                    assert!(value == *before || value == 0 || is_later, "page {page}: {value}, and {before} before");
                    if rig.expected(*page) <= *began && rig.expected(*page) != 0 {
                        assert_eq!(value, rig.expected(*page), "page {page}");
                    }
                    peeks.swap_remove(number);
                }
            }
            5 if number < peeks.len() => drop(peeks.swap_remove(number)),
            _ => {}
        }
    }

    /// Starts, reads and clears, or stops the log.
    fn log(&self) {
        let log = self.rig.memory.dirty_log(self.rig.slot).unwrap();
        let Some(tracker) = self.logs.get() else {
            let trackers = Tracker::ALL.into_iter();
            let has_dirty_state = self.rig.machine.features.hardware_dirty_state;
            let trackers: Vec<_> = trackers.filter(|tracker| has_dirty_state || !tracker.needs_dirty_state()).collect();
            let tracker = trackers[self.below(trackers.len() as u64) as usize];
            let all_dirty = tracker != Tracker::WriteProtect && self.below(2) == 0;
            log.start(&LogOptions { all_dirty, ..LogOptions::new(tracker) }).unwrap();
            self.logs.set(Some(tracker));
            self.dirty.borrow_mut().clear();
            return;
        };
        let mut reported = DirtyPages::new();
        log.get(&mut reported).unwrap();
        for page in &*self.dirty.borrow() {
            assert!(reported.contains(*page), "{tracker:?}: a write to page {page} is lost");
        }
        if tracker == Tracker::WriteProtect {
            self.dirty.borrow_mut().clear();
        } else if self.below(2) == 0 {
            log.clear_these(&reported).unwrap();
            self.dirty.borrow_mut().clear();
        }
        if self.below(4) == 0 {
            log.stop().unwrap();
            self.logs.set(None);
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let pages = if random.below(2) == 0 { Pages::Small } else { Pages::Largest };
    let features = if random.below(4) == 0 { PLAIN } else { FEATURES };
    let huge_pages = random.below(3);
    let singles = 40 + random.below(100);
    let rig =
        Rig::with(Plan { features, pages, count: COUNT, second: 0, huge_pages, singles, headroom: random.below(4) });
    let world = World {
        rig,
        random: RefCell::new(random),
        dirty: RefCell::default(),
        logs: Cell::new(None),
        pinned: RefCell::default(),
        excess: Cell::new(0),
    };
    let mut peeks = Vec::new();
    for step in 0..STEPS {
        world.step();
        world.peek(&mut peeks);
        if step % 64 == 0 {
            world.rig.check_frames();
        }
    }
    drop(peeks);
    world.pinned.take().into_iter().for_each(|pinned| world.rig.memory.unpin(pinned));
    world.rig.memory.set_limit(u64::MAX).unwrap();
    world.rig.store.get().capacity = usize::MAX;
    let _ = world.rig.memory.fail_waiting();
    world.rig.end();
}

#[test]
fn memory_is_what_was_written() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let runs = 0..number("TWOFOLD_SWAP_RUNS").unwrap_or(40);
    let seeds: Vec<u64> = match (number("TWOFOLD_SWAP_SEED"), number("TWOFOLD_SEED")) {
        (Some(seed), _) => vec![seed],
        (None, Some(first)) => runs.map(|run| first + run).collect(),
        (None, None) => runs.map(|run| RandomState::new().hash_one(run)).collect(),
    };
    for seed in seeds {
        println!("TWOFOLD_SWAP_SEED={seed}");
        run(seed);
    }
}
