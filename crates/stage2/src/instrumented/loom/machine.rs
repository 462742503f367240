// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine of few frames, whose words are the model checker's.
//!
//! No instruction has an effect. If a barrier or an invalidation ordered what software does, it would hide a missing
//! ordering of software's own accesses. (A model of hardware checks elsewhere what hardware sees.)

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::sync::Mutex;

use crate::platform::{Dc, Domain, Ic, Platform, Tlbi};
use crate::primitive::{Ordering, Word};
use crate::{Descriptor, Donated, Features, Kib4, Pa, TableMetadata, TablePage, TableSource};

/// The address of the first frame.
const TABLES: Pa = Pa::new(0x10_0000);

/// Content of memory that is no table: it looks like a table where none is, or like a page that no test maps.
pub(super) const WILD: Descriptor = <Descriptor>::from_raw(0xbad_bad_0000 | 0x7c3);
/// Content that looks like a busy entry, for ever.
pub(super) const BUSY: Descriptor = Descriptor::BUSY;

/// After this many pauses, only one order is followed to the end.
const MOST_PAUSES: usize = 6;

const ENTRIES: usize = Kib4.entries();

#[derive(Default)]
struct Frame {
    entries: [Word; ENTRIES],
    metadata: TableMetadata,
}

/// The frames, and what a test wants to know of invalidations.
pub(super) struct Memory {
    frames: Vec<Frame>,
    /// The number of invalidations that have begun.
    pub(super) flushes: Option<Word>,
    /// Whether the TLB's entry was invalidated. Locked while the entry is used, so an invalidation waits for the use.
    invalidated: Option<Mutex<bool>>,
    /// The bytes of cache lines cleaned. Not a word of the model checker: the engine reads nothing of it.
    pub(super) cleaned: Option<AtomicUsize>,
    /// The number of pauses. Not a word of the model checker: a CPU that pauses reads nothing of it.
    pauses: AtomicUsize,
}

/// What the machine models beside software. Each costs the model checker time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Nothing,
    Flushes,
    Hardware,
    /// Cleaning takes time, in which other CPUs go on.
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

    /// All frames. The first is for the root, the others for table pages. A test cuts each of them once.
    pub(super) fn donated(&self) -> Donated {
        // SAFETY: the frames live as long as the machine, and are accessed only as `Word`s.
        unsafe { Donated::new(TABLES, self.0.frames.len() as u64 * TablePage::SIZE) }
    }

    /// Reads an entry, while no other thread runs.
    pub(super) fn read(&self, table: Pa, index: usize) -> Descriptor {
        <Descriptor>::from_raw(self.frame(table).expect("a table").entries[index].load(Ordering::Relaxed))
    }

    /// A guest's write through a TLB entry that is clean with DBM: hardware records the write in memory's entry, and
    /// the guest writes. Hardware does neither if memory's entry has changed, or the TLB's was invalidated. Returns
    /// whether the guest wrote.
    pub(super) fn hardware_writes(&self, table: Pa, index: usize) -> bool {
        let invalidated = self.0.invalidated.as_ref().expect("hardware").lock().expect("no panic");
        let entry = &self.frame(table).expect("a table").entries[index];
        let old = <Descriptor>::from_raw(entry.load(Ordering::Relaxed));
        let clean = !*invalidated && old.is_hardware_tracked() && !old.is_writable();
        clean && entry.compare_exchange(old.raw(), old.raw() | Descriptor::WRITE, Ordering::Relaxed).is_ok()
    }

    /// The page belongs to another user now, which writes anything. Release: such writes come after the flush, so after
    /// its barriers.
    fn spoil(&self, page: &TablePage, junk: Descriptor) {
        for entry in &self.frame(page.pa()).expect("a frame").entries {
            entry.store(junk.raw(), Ordering::Release);
        }
    }
}

// SAFETY: frames stay where they are while the machine lives, are accessed only as atomics, and have metadata each.
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
            // A guest's frame, of which only the address is used.
            None => NonNull::without_provenance((pa.raw() as usize).try_into().expect("an address")),
        }
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        &self.frame(pa).expect("a table's address").metadata
    }

    /// The memory is freed with the machine.
    fn abandoned(&self, _: Pa) {}

    fn pause(&self, _: u32) {
        let pauses = self.0.pauses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Two threads that wait for a third could take turns for ever. No real order is that unfair, but the model
        // checker would try each.
        if pauses == MOST_PAUSES {
            loom::skip_branch();
        }
        // After a yield, the model checker shows a thread the newest values. Real hardware need not, so the first pause
        // retries without one.
        if pauses > 0 {
            loom::thread::yield_now();
        }
    }
}

/// A thread's own pages. The page given last is taken first, so that a freed page is reused at once.
pub(super) struct Pages {
    machine: Machine,
    pub(super) free: Vec<TablePage>,
    /// What other users write to a page between `give` and `take`.
    junk: Option<Descriptor>,
}

impl Pages {
    /// A pool of these pages of a machine.
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
