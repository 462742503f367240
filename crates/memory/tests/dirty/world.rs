// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with one slot of RAM and its log, and a copy of the slot as a migration would have it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use twofold_memory::dirty::{DirtyLog, DirtyPages, LogOptions, Tracker};
use twofold_memory::{Answer, Backing, Error, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::platform::Tlbi;
use twofold_stage2::{Features, Ipa, Level, Pa};

use crate::machine::guest::{IPA_BITS, RunningGuest};
use crate::machine::platform::{Event, PLAIN};
use crate::machine::{HUGE_PAGE, Host, Machine, PAGE, PREALLOCATED, RAM};

/// A CPU that records accesses and writes.
pub const FEATURES: Features =
    PLAIN.with_hardware_access_flag(true).with_hardware_dirty_state(true).with_forced_write_back(true);

/// An address where a slot may be mapped by blocks.
pub const BASE: Ipa = Ipa::new(4 << 30);
/// The start of most slots. Neither a block nor an aligned run of 64 pages starts there.
pub const START: Ipa = Ipa::new(BASE.raw() + 3 * PAGE);
/// Pages in most slots: in three huge pages, and not a multiple of 64.
pub const PAGES: u64 = 1100;
/// Pages at the edges of the slot, of a word and of a table, and their neighbours.
pub const EDGES: [u64; 13] = [0, 1, 62, 63, 64, 127, 128, 508, 509, 510, 1020, 1098, 1099];

/// Frames that tests donate later.
pub const SPARE: Pa = Pa::new(0xa_0000_0000);
/// The first single frame.
const SINGLES: Pa = Pa::new(0x9_0000_0000);

pub struct World {
    pub guest: RunningGuest,
    pub slot: SlotId,
    pub start: Ipa,
    pub pages: u64,
    /// The slot's frames and the largest leaf that may map them, if they are preallocated.
    preallocated: Option<(Pa, Level)>,
    /// The content of each page that was ever written.
    contents: BTreeMap<u64, u64>,
    /// The content of each page when it was last read.
    copy: BTreeMap<u64, u64>,
    writes: u64,
}

impl World {
    /// A world with more than enough memory.
    pub fn new(pages: Pages) -> Self {
        Self::with(FEATURES, pages, START, PAGES, 64)
    }

    /// A world with a slot of `count` pages at `start`, and `tables` frames for tables below the root.
    pub fn with(features: Features, pages: Pages, start: Ipa, count: u64, tables: u64) -> Self {
        let huge_pages = (start + count * PAGE).raw().div_ceil(HUGE_PAGE) - start.raw() / HUGE_PAGE;
        let singles = (2 + tables) * PAGE;
        let machine = Machine::new(features, &[(SINGLES, singles), (RAM, huge_pages * HUGE_PAGE), (SPARE, 8 * PAGE)]);
        let mut frames = Frames::new(features);
        frames.add(machine.donate(SINGLES, singles));
        frames.add(machine.donate(RAM, huge_pages * HUGE_PAGE));
        let mut guest = RunningGuest::on(machine, frames, pages, IPA_BITS);
        let slot = Slot { range: start..start + count * PAGE, backing: Backing::Ram, writable: true };
        let slot = guest.memory.add_slot(slot).unwrap();
        let (contents, copy) = (BTreeMap::new(), BTreeMap::new());
        Self { guest, slot, start, pages: count, preallocated: None, contents, copy, writes: 0 }
    }

    /// A world with a preallocated slot, which may be mapped by leaves of `largest`, and `tables` frames for tables
    /// below the root.
    pub fn preallocated(features: Features, pages: Pages, start: Ipa, count: u64, largest: Level, tables: u64) -> Self {
        let (singles, preallocated) = ((2 + tables) * PAGE, PREALLOCATED + (start - BASE));
        let machine = Machine::new(features, &[(SINGLES, singles), (preallocated, count * PAGE)]);
        let mut frames = Frames::new(features);
        frames.add(machine.donate(SINGLES, singles));
        machine.bank(preallocated).make_zero();
        let mut guest = RunningGuest::on(machine, frames, pages, IPA_BITS);
        let backing = guest.machine.give(preallocated, count * PAGE, largest);
        let slot = Slot { range: start..start + count * PAGE, backing, writable: true };
        let slot = guest.memory.add_slot(slot).unwrap();
        let (contents, copy) = (BTreeMap::new(), BTreeMap::new());
        Self {
            guest,
            slot,
            start,
            pages: count,
            preallocated: Some((preallocated, largest)),
            contents,
            copy,
            writes: 0,
        }
    }

    /// The machine, the guest's memory and its slot, for tests that start one operation inside another.
    pub fn into_parts(self) -> (Rc<Machine>, Rc<GuestMemory<Host>>, SlotId) {
        (self.guest.machine, Rc::new(self.guest.memory), self.slot)
    }

    /// Replaces the slot by a new one of the same place and size.
    pub fn replace_slot(&mut self) {
        let back = self.guest.memory.remove_slot(self.slot).unwrap();
        let range = self.start..self.start + self.pages * PAGE;
        let backing = match (self.preallocated, back) {
            (None, None) => Backing::Ram,
            (Some((start, largest)), Some(frames)) => {
                assert_eq!((frames.pa(), frames.size()), (start, self.pages * PAGE));
                self.guest.machine.bank(start).make_zero();
                Backing::Preallocated { frames, largest }
            }
            (preallocated, back) => panic!("{preallocated:?} was preallocated, but {back:?} came back"),
        };
        self.slot = self.guest.memory.add_slot(Slot { range, backing, writable: true }).unwrap();
        self.contents.clear();
    }

    pub fn log(&self) -> DirtyLog<'_, Host> {
        self.guest.memory.dirty_log(self.slot).unwrap()
    }

    pub fn ipa(&self, page: u64) -> Ipa {
        self.start + page * PAGE
    }

    /// The guest writes a new value to a page, on a CPU that records the write if DBM is set. Returns the number of
    /// faults.
    pub fn write(&mut self, page: u64) -> usize {
        self.try_write(page).unwrap()
    }

    pub fn try_write(&mut self, page: u64) -> Result<usize, Error> {
        let ipa = self.ipa(page);
        let mut faults = 0;
        let pa = loop {
            let kind = match self.guest.walk(ipa) {
                Some(leaf) if leaf.access().write => break leaf.output(ipa),
                Some(leaf) if leaf.dirty_by_hardware() => {
                    assert_eq!(leaf.level, 3, "a block's record does not say which page was written");
                    self.guest.machine.bank(leaf.entry).set_word(leaf.entry, leaf.raw | 1 << 7);
                    continue;
                }
                Some(_) => FaultKind::Permission,
                None => FaultKind::Translation,
            };
            assert!(faults < 2, "page {page} faults for {kind:?} again");
            let answer = self.guest.fault(ipa, kind, AccessKind::Write)?;
            assert!(matches!(answer, Answer::Retry(_)), "{answer:?}");
            faults += 1;
        };
        self.writes += 1;
        self.guest.machine.bank(pa).set_word(pa, self.writes);
        self.contents.insert(page, self.writes);
        Ok(faults)
    }

    /// The guest reads or executes a page.
    pub fn touch(&mut self, page: u64, access: AccessKind) {
        self.guest.reach(self.ipa(page), access);
    }

    pub fn write_all(&mut self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| {
            self.write(page);
        });
    }

    /// A device writes to a page, past the guest's tables.
    pub fn device_writes(&mut self, page: u64) {
        self.writes += 1;
        self.guest.memory.write(self.ipa(page), &self.writes.to_le_bytes()).unwrap();
        self.contents.insert(page, self.writes);
    }

    /// Starts a log with these options, and copies the whole slot.
    pub fn start(&mut self, options: LogOptions) {
        self.log().start(&options).unwrap();
        if options.all_dirty {
            assert_eq!(self.get(), (0..self.pages).collect());
            self.clear_and_copy(0..self.pages);
        } else {
            self.copy_pages(0..self.pages);
            assert_eq!(self.get(), [].into());
        }
    }

    /// The pages that the log reports. If the tracker clears by reporting, they are copied.
    pub fn get(&mut self) -> BTreeSet<u64> {
        let reported = self.reported();
        if self.log().tracker() == Some(Tracker::WriteProtect) {
            self.copy_pages(reported.iter().copied());
        }
        reported
    }

    fn reported(&self) -> BTreeSet<u64> {
        let mut dirty = DirtyPages::new();
        self.log().get(&mut dirty).unwrap();
        let reported: BTreeSet<_> = dirty.pages().collect();
        assert!(reported.last().is_none_or(|page| *page < self.pages));
        assert_eq!((dirty.count(), dirty.is_empty()), (reported.len() as u64, reported.is_empty()));
        reported
    }

    /// Clears pages, with a mask over the whole slot.
    pub fn clear(&self, pages: impl IntoIterator<Item = u64>) {
        let mut mask = vec![0; self.pages.div_ceil(64) as usize];
        pages.into_iter().for_each(|page| mask[page as usize / 64] |= 1 << (page % 64));
        self.log().clear(0, self.pages, &mask).unwrap();
    }

    /// Clears pages, unless the tracker has cleared them by reporting, and copies them then.
    pub fn clear_and_copy(&mut self, pages: impl IntoIterator<Item = u64>) {
        let pages: Vec<_> = pages.into_iter().collect();
        if self.log().tracker() != Some(Tracker::WriteProtect) {
            self.clear(pages.iter().copied());
        }
        self.copy_pages(pages);
    }

    /// Copies pages, and checks that each has what was last written.
    pub fn copy_pages(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            let mut word = [0; 8];
            self.guest.memory.read(self.ipa(page), &mut word).unwrap();
            let word = u64::from_le_bytes(word);
            assert_eq!(word, self.contents.get(&page).copied().unwrap_or(0), "page {page}");
            self.copy.insert(page, word);
        }
    }

    /// Checks that all pages but `dirty` are as they were when they were last copied.
    pub fn check_copy(&self, dirty: &BTreeSet<u64>) {
        for (page, word) in self.contents.iter().filter(|(page, _)| !dirty.contains(page)) {
            let copied = self.copy.get(page).copied().unwrap_or(0);
            assert_eq!(copied, *word, "page {page} was written, and is in no log");
        }
    }

    /// Checks that the log reports exactly `written`, and that all other pages are as they were when they were last
    /// copied.
    pub fn check_reported(&mut self, written: impl IntoIterator<Item = u64>) {
        let reported = self.reported();
        self.check_copy(&reported);
        assert_eq!(reported, written.into_iter().collect());
        if self.log().tracker() == Some(Tracker::WriteProtect) {
            self.copy_pages(reported);
        }
    }

    /// Does `action`, and counts its flushes: each ends with the invalidation of combined entries of both stages.
    pub fn flushes<R>(&mut self, action: impl FnOnce(&mut Self) -> R) -> (R, usize) {
        self.guest.machine.events();
        let result = action(self);
        let events = self.guest.machine.events();
        let ends = |event: &Event| matches!(event, Event::Tlbi(Tlbi::VmallE1Is | Tlbi::VmallS12E1Is, _));
        (result, events.into_iter().filter(ends).count())
    }

    /// The level of the leaf that maps a page.
    pub fn level(&self, page: u64) -> Option<u8> {
        self.guest.level(self.ipa(page))
    }

    pub fn may_write(&self, page: u64) -> bool {
        self.guest.access(self.ipa(page)).is_some_and(|access| access.write)
    }

    pub fn is_hardware_tracked(&self, page: u64) -> bool {
        self.guest.walk(self.ipa(page)).is_some_and(|leaf| leaf.dirty_by_hardware())
    }
}

/// Calls `body` with every way to start a log, and every way in which memory may be mapped before.
pub fn all_starts(mut body: impl FnMut(LogOptions, Mapped)) {
    for tracker in Tracker::ALL {
        for all_dirty in [false, true].into_iter().filter(|all| !all || tracker != Tracker::WriteProtect) {
            for mapped in [Mapped::Nothing, Mapped::Pages, Mapped::Blocks, Mapped::Both] {
                // Without blocks, the chunk makes no difference.
                let chunks: &[u64] =
                    if mapped == Mapped::Blocks { &[0, 4 << 10, 2 << 20, 1 << 30] } else { &[2 << 20] };
                for &chunk in chunks {
                    body(LogOptions { all_dirty, chunk, ..LogOptions::new(tracker) }, mapped);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    Nothing,
    Pages,
    /// Blocks where they fit, pages elsewhere.
    Blocks,
    /// One huge page in pages, another as a block.
    Both,
}

impl World {
    /// A world with a slot of three whole huge pages and 70 pages, mapped as `mapped` says, and all written if mapped.
    pub fn mapped(mapped: Mapped) -> Self {
        let pages = if mapped == Mapped::Pages { Pages::Small } else { Pages::Largest };
        let mut world = Self::with(FEATURES, pages, BASE, 3 * 512 + 70, 64);
        if mapped == Mapped::Both {
            // The second huge page is split by an earlier log.
            world.log().start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) }).unwrap();
            world.write_all(512..1024);
            world.log().stop().unwrap();
        }
        if mapped != Mapped::Nothing {
            world.write_all(0..world.pages);
            let level = if mapped == Mapped::Pages { 3 } else { 2 };
            let expected = [level, if mapped == Mapped::Both { 3 } else { level }, level, 3].map(Some);
            assert_eq!([0, 512, 1024, 1536].map(|page| world.level(page)), expected);
        }
        world
    }
}
