// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One CPU's TLB, and the words by which other CPUs invalidate it.
//!
//! Invariants: only the CPU's own thread writes `inside`, `loaded` and the entries' pages. Other threads only clear
//! tags and increment `epoch`. Every page that an entry ever held lies in the machine's arena. The labels A, I, M and L
//! are those of the argument in [`super`].

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence, fence};

use crate::tlbi::{Reach, Which};
use crate::walk::span;

/// A CPU.
#[repr(align(128))]
pub(super) struct Cpu {
    /// The address of the access that is under way, with bit 0 set; 0 outside of accesses.
    inside: AtomicU64,
    /// Whether each access executes a full fence of its own (no `membarrier`).
    fenced: bool,
    shared: Shared,
    entries: [Entry; ENTRIES],
}

/// Rarely written words, in a cache line that accesses do not write.
#[repr(align(128))]
struct Shared {
    /// The number of invalidations so far.
    epoch: AtomicU64,
    /// The guest whose entries the TLB holds: [`LOADED`], [`COMBINED`] and the VMID; 0: none.
    loaded: AtomicU64,
    /// Whether a vCPU has this CPU.
    taken: AtomicBool,
}

/// A translation of one page.
struct Entry {
    /// The page's address, its leaf's level and the accesses it allows; 0: no entry.
    tag: AtomicU64,
    /// The host's address of the page.
    page: AtomicPtr<u8>,
}

/// A page, to be put into the TLB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// The host's address, inside the machine's arena.
    pub(super) at: NonNull<u8>,
    /// The level of the leaf, which decides whether a TLBI hits the entry.
    pub(super) level: u8,
    /// A combination of [`READ`], [`WRITE`] and [`EXECUTE`].
    pub(super) allows: u64,
}

/// About the size of a CPU's second-level TLB.
const ENTRIES: usize = 2048;

const PAGE: u64 = !0xfff;
/// Never set in a tag, so an unaligned address always misses.
const WITHIN_WORD: u64 = 0b111;
/// The page may be read.
pub(super) const READ: u64 = 1 << 3;
/// The page may be written.
pub(super) const WRITE: u64 = 1 << 4;
/// The page may be executed.
pub(super) const EXECUTE: u64 = 1 << 5;
const LEVEL_SHIFT: u32 = 6;
/// Never set in a tag: an access that asks for it misses.
pub(super) const NEVER: u64 = 1 << 8;

const LOADED: u64 = 1 << 17;
/// The entries combine both stages.
const COMBINED: u64 = 1 << 16;

impl Cpu {
    /// A CPU with nothing in its TLB.
    pub(super) fn new(fenced: bool) -> Self {
        let shared = Shared { epoch: AtomicU64::new(0), loaded: AtomicU64::new(0), taken: AtomicBool::new(false) };
        let entries = [const { Entry { tag: AtomicU64::new(0), page: AtomicPtr::new(ptr::null_mut()) } }; ENTRIES];
        Self { inside: AtomicU64::new(0), fenced, shared, entries }
    }

    /// Takes the CPU for a vCPU, if it is free.
    pub(super) fn take(&self) -> bool {
        !self.shared.taken.swap(true, Ordering::Acquire)
    }

    /// Gives the CPU back, with its TLB empty.
    pub(super) fn give(&self) {
        self.empty();
        self.shared.loaded.store(0, Ordering::Release);
        self.shared.taken.store(false, Ordering::Release);
    }

    /// Calls `act` with the word at `va` if the TLB has the page with all of `needed` allowed; `None` on a miss.
    #[inline(always)]
    pub(super) fn access<R>(&self, va: u64, needed: u64, act: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
        self.enter(va);
        let entry = self.entry(va);
        let tag = entry.tag.load(Ordering::Relaxed);
        let found = tag & (PAGE | WITHIN_WORD | needed) == va & (PAGE | WITHIN_WORD) | needed;
        let result = found.then(|| {
            let page = entry.page.load(Ordering::Relaxed);
            // SAFETY: a tag that allows any access has a page in the arena beside it, which this thread stored before
            // the tag. The arena lives as long as the machine, and the caller holds the machine. The word is aligned,
            // because bits 2 to 0 matched 0, and lies inside the page. All accesses to guest memory are atomic, or
            // volatile while the guest is not running.
            let word = unsafe { &*page.add((va & !PAGE) as usize).cast::<AtomicU64>() };
            act(word)
        });
        self.leave();
        result
    }

    /// Walks the tables, and puts the page found for `va` into the TLB.
    pub(super) fn fill<E>(&self, va: u64, mut walk: impl FnMut() -> Result<Page, E>) -> Result<(), E> {
        loop {
            self.enter(va); // M1
            fence(Ordering::SeqCst);
            let epoch = self.shared.epoch.load(Ordering::Acquire); // M2
            let found = walk(); // M3
            let still = match &found {
                Ok(page) => {
                    let entry = self.entry(va);
                    entry.page.store(page.at.as_ptr(), Ordering::Relaxed);
                    let tag = va & PAGE | u64::from(page.level) << LEVEL_SHIFT | page.allows;
                    entry.tag.store(tag, Ordering::Relaxed); // M4
                    fence(Ordering::SeqCst); // M5
                    let still = self.shared.epoch.load(Ordering::Acquire) == epoch; // M6
                    if !still {
                        entry.tag.store(0, Ordering::Relaxed);
                    }
                    still
                }
                Err(_) => true,
            };
            self.leave(); // M7
            if still {
                return found.map(|_| ());
            }
        }
    }

    /// Empties the TLB, which from now on is for this guest with its stage 1 on or off.
    pub(super) fn load(&self, vmid: u16, stage1: bool) {
        self.empty(); // L1
        let combined = if stage1 { COMBINED } else { 0 };
        self.shared.loaded.store(LOADED | combined | u64::from(vmid), Ordering::Release); // L2
        fence(Ordering::SeqCst); // L3
    }

    /// Empties the TLB. Only the CPU's own thread may call it.
    pub(super) fn empty(&self) {
        self.entries.iter().for_each(Entry::clear);
    }

    /// Removes what `reach` names of the guest. Returns `false` if the CPU has another guest, or cannot hold any such
    /// entry.
    pub(super) fn forget(&self, vmid: u16, reach: &Reach) -> bool {
        let loaded = self.shared.loaded.load(Ordering::Acquire);
        let is_named = if reach.every_vmid { loaded != 0 } else { loaded & !COMBINED == LOADED | u64::from(vmid) };
        if !is_named {
            return false;
        }
        let which = if loaded & COMBINED == 0 { reach.stage2 } else { reach.stage1_and_combined.then_some(Which::All) };
        let Some(which) = which else { return false };
        self.shared.epoch.fetch_add(1, Ordering::SeqCst); // I1
        fence(Ordering::SeqCst);
        let all = 0..ENTRIES as u64;
        let places = match which {
            Which::All => all,
            // Without a level, an entry may belong to a block that starts before the range or ends behind it.
            Which::Range { level: None, .. } => all,
            Which::Range { start, end, level: Some(level), .. } => {
                let first = (start & !(span(level) - 1)) >> PAGE_SHIFT;
                let pages = (end.next_multiple_of(span(level)) >> PAGE_SHIFT) - first;
                if pages < ENTRIES as u64 { first..first + pages } else { all }
            }
        };
        for place in places {
            self.entries[place as usize % ENTRIES].clear_if(&which); // I2
        }
        true
    }

    /// Waits until the access that is now under way, if any, is over (I4).
    pub(super) fn wait_until_out(&self) {
        let seen = self.inside.load(Ordering::Acquire);
        let mut looks = 0_u32;
        while seen != 0 && self.inside.load(Ordering::Acquire) == seen {
            looks += 1;
            // With more threads than host CPUs, the thread inside the access may need this one.
            if looks.is_multiple_of(1 << 10) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    #[inline(always)]
    fn enter(&self, va: u64) {
        self.inside.store(va | 1, Ordering::Release); // A1
        if self.fenced {
            fence(Ordering::SeqCst);
        }
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn leave(&self) {
        compiler_fence(Ordering::SeqCst);
        self.inside.store(0, Ordering::Release); // A4
    }

    #[inline(always)]
    fn entry(&self, va: u64) -> &Entry {
        &self.entries[(va >> PAGE_SHIFT) as usize % ENTRIES]
    }
}

const PAGE_SHIFT: u32 = 12;

impl Entry {
    fn clear(&self) {
        self.tag.store(0, Ordering::Relaxed);
    }

    /// Clears the tag if `which` hits the entry; a stage-2 entry's address is an IPA. If the CPU replaces the entry
    /// meanwhile, the new one is lost, which costs only another walk.
    fn clear_if(&self, which: &Which) {
        let tag = self.tag.load(Ordering::Relaxed);
        let level = (tag >> LEVEL_SHIFT & 3) as u8;
        let size = span(level);
        if tag != 0 && which.hits(tag & !(size - 1), size, level, false) {
            self.clear();
        }
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cached = self.entries.iter().filter(|entry| entry.tag.load(Ordering::Relaxed) != 0).count();
        f.debug_struct("Cpu").field("cached", &cached).finish_non_exhaustive()
    }
}
