// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine of few frames, whose words are the model checker's.
//!
//! No instruction does anything: a barrier or an invalidation that happened to order what software does would hide that
//! software has to do so by its own accesses. (What hardware sees is judged elsewhere, by a model of hardware.)

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::sync::Mutex;

use crate::platform::{Dc, Domain, Ic, Platform, Tlbi};
use crate::primitive::{Ordering, Word};
use crate::{Descriptor, Donated, Features, Granule, Pa, Record, TablePage, TableSource};

/// Where tables are.
const TABLES: Pa = Pa::new(0x10_0000);

/// What memory may hold that is no table: what looks like a table where none is, or a page that no test maps.
pub(super) const WILD: Descriptor = Descriptor::from_raw(0xbad_bad_0000 | 0x7c3);
/// What may be there too, and for ever: what looks like an entry that somebody is changing.
pub(super) const BUSY: Descriptor = Descriptor::BUSY;

/// Who has waited so often gets to the end by one order only.
const MOST_PAUSES: usize = 6;

const ENTRIES: usize = Granule::KIB_4.entries();

#[derive(Default)]
struct Frame {
    entries: [Word; ENTRIES],
    record: Record,
}

/// The frames, and what a test wants to know of invalidations.
pub(super) struct Memory {
    frames: Vec<Frame>,
    /// How many have begun.
    pub(super) flushes: Option<Word>,
    /// Whether what a TLB holds is not to be used any more. Held while it is used: an invalidation waits for that.
    invalidated: Option<Mutex<bool>>,
    /// How many bytes of cache lines were cleaned. Not the checker's: the engine learns nothing from it.
    pub(super) cleaned: Option<AtomicUsize>,
    /// How often somebody waited. Not the checker's: who waits learns nothing from it.
    pauses: AtomicUsize,
}

/// What there is beside software; each costs the checker something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Nothing,
    Flushes,
    Hardware,
    /// Cleaning takes its time: other CPUs go on meanwhile.
    Cleaning,
}

/// A CPU, as [`Stage2`](crate::Stage2) sees it.
#[derive(Clone)]
pub(super) struct Machine(pub(super) Arc<Memory>);

impl Machine {
    pub(super) fn new(frames: usize, watch: Watch) -> Self {
        Self(Arc::new(Memory {
            frames: (0..frames).map(|_| Frame::default()).collect(),
            flushes: (watch == Watch::Flushes).then(Word::default),
            invalidated: (watch == Watch::Hardware).then(|| Mutex::new(false)),
            cleaned: (watch == Watch::Cleaning).then(AtomicUsize::default),
            pauses: AtomicUsize::new(0),
        }))
    }

    fn frame(&self, pa: Pa) -> Option<&Frame> {
        let offset = pa.raw().checked_sub(TABLES.raw()).filter(|offset| offset.is_multiple_of(TablePage::SIZE))?;
        self.0.frames.get((offset / TablePage::SIZE) as usize)
    }

    /// All frames as pages, the first of them for the root. A test cuts each of them once.
    pub(super) fn donated(&self) -> Donated {
        // SAFETY: the frames live as long as the machine, and are reached as `Word`s alone.
        unsafe { Donated::new(TABLES, self.0.frames.len() as u64 * TablePage::SIZE) }
    }

    /// An entry, for who is alone.
    pub(super) fn read(&self, table: Pa, index: usize) -> Descriptor {
        Descriptor::from_raw(self.frame(table).expect("a table").entries[index].load(Ordering::Relaxed))
    }

    /// A guest's write by an entry that a TLB holds, and that says that it is clean: hardware records it, and the guest
    /// writes, unless the entry is another one by now. Whether it was.
    pub(super) fn hardware_writes(&self, table: Pa, index: usize) -> bool {
        let invalidated = self.0.invalidated.as_ref().expect("hardware").lock().expect("no panic");
        let entry = &self.frame(table).expect("a table").entries[index];
        let old = Descriptor::from_raw(entry.load(Ordering::Relaxed));
        let clean = !*invalidated && old.is_armed() && !old.is_writable();
        clean && entry.compare_exchange(old.raw(), old.raw() | Descriptor::WRITE, Ordering::Relaxed).is_ok()
    }

    /// Somebody else's now: anything is written there. What comes after a flush is behind its barriers.
    fn spoil(&self, page: &TablePage, junk: Descriptor) {
        for entry in &self.frame(page.pa()).expect("a frame").entries {
            entry.store(junk.raw(), Ordering::Release);
        }
    }
}

// SAFETY: frames stay where they are while the machine lives, are reached as atomics alone, and have a record each.
unsafe impl Platform for Machine {
    fn tlbi(&self, _: Tlbi, _: u64) {
        if let Some(flushes) = &self.0.flushes {
            flushes.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(invalidated) = &self.0.invalidated {
            *invalidated.lock().expect("no panic") = true;
        }
    }

    fn dsb(&self, _: Domain) {}

    fn isb(&self) {}

    unsafe fn dc(&self, _: Dc, _: usize) {}

    unsafe fn dc_lines(&self, _: Dc, _: usize, size: u64, _: u64) {
        if let Some(cleaned) = &self.0.cleaned {
            cleaned.fetch_add(size as usize, std::sync::atomic::Ordering::Relaxed);
            loom::thread::yield_now();
        }
    }

    fn ic(&self, _: Ic, _: usize) {}

    fn vttbr(&self) -> u64 {
        0
    }

    fn load_vttbr(&self, _: u64) {}

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        match self.frame(pa) {
            Some(frame) => NonNull::from(&frame.entries).cast(),
            // A guest's, of which only the address is asked for.
            None => NonNull::without_provenance((pa.raw() as usize).try_into().expect("an address")),
        }
    }

    fn record(&self, pa: Pa) -> &Record {
        &self.frame(pa).expect("a table's address").record
    }

    /// All memory goes with the machine.
    fn abandoned(&self, _: Pa) {}

    fn pause(&self, _: u32) {
        let pauses = self.0.pauses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Two that wait for a third could take turns for ever: no order is as fair as that, but each would be tried.
        if pauses == MOST_PAUSES {
            loom::skip_branch();
        }
        // To the checker, who has waited sees what is new. That is not so, so somebody looks again at once.
        if pauses > 0 {
            loom::thread::yield_now();
        }
    }
}

/// A thread's own pages, the last one given the first one taken: what was freed is used again at once.
pub(super) struct Pages {
    machine: Machine,
    pub(super) free: Vec<TablePage>,
    /// What others write to a page between its being given and taken.
    junk: Option<Descriptor>,
}

impl Pages {
    /// These pages of a machine.
    pub(super) fn new(machine: &Machine, numbers: std::ops::Range<usize>, junk: Option<Descriptor>) -> Self {
        let page = |number| {
            let pa = TABLES + number as u64 * TablePage::SIZE;
            let (_, rest) = machine.donated().into_run().split_at(pa - TABLES).expect("a page");
            let (page, _) = rest.split_at(TablePage::SIZE).expect("a page");
            page.into_table(&Features::NONE).expect("a page")
        };
        let mut pages = Self { machine: machine.clone(), free: Vec::new(), junk };
        numbers.rev().map(page).for_each(|page| pages.give(page));
        pages
    }
}

impl TableSource for Pages {
    fn take(&mut self) -> Option<TablePage> {
        self.free.pop()
    }

    fn give(&mut self, page: TablePage) {
        if let Some(junk) = self.junk {
            self.machine.spoil(&page, junk);
        }
        self.free.push(page);
    }
}
