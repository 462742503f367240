// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest under test: its memory, and where each of its pages is.
//!
//! Invariant: without a store all pages get their frames before the log starts, and keep them. So the oracle finds a page
//! without asking the memory that it judges. With a store, no page has a frame at first. While writers are held, the
//! oracle compares a page that is in memory by its frame, and an absent one as the store has it; a page is copied as a
//! migration copies it ([`peek`](GuestMemory::peek)).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Context;
use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::program::Stage1Registers;
use twofold_machine::vm::Vm;
use twofold_memory::dirty::DirtyLog;
use twofold_memory::{Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_oracle::{GuestPages, Page, Random};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Geometry, Ipa, Kib4, Pa, Vmid};

use super::store::{Shelf, StorePlan};
use crate::features::TODAY;

/// Bytes of a page.
pub const PAGE: u64 = 4 << 10;
/// Pages of the guest's RAM, about 16 MiB. They are few, so that each is written, cleared and compared many times. The
/// number is not a multiple of 64, so that the last word of a log is not full.
pub const PAGES: u64 = 4077;
/// vCPUs, each with a CPU and a thread of its own.
pub const VCPUS: usize = 4;

/// A guest on a machine.
pub struct JudgedGuest {
    /// The virtual machine.
    pub vm: Vm<FastPlatform>,
    /// The machine that it runs on.
    pub machine: Arc<FastMachine>,
    /// The address at which its RAM begins.
    pub start: Ipa,
    /// Where pages leave to, if they do.
    pub shelf: Option<Shelf>,
    slot: SlotId,
    /// The frames of a guest without a store.
    frames: Vec<Pa>,
}

/// The guest's pages, as the judge sees them from some moment on: none is older.
pub struct View<'a> {
    guest: &'a JudgedGuest,
    is_held: bool,
    /// How many pages are looked at together, so that the store reads those that are absent at the same time.
    window: u64,
    /// Absent pages that were read.
    absent: RefCell<BTreeMap<u64, Box<Page>>>,
}

/// The lowest address at which RAM begins.
const RAM: Ipa = Ipa::new(0x4000_0000);
/// A slot of its own for the guest's stage-1 tables, which the guest does not write to.
const TABLES: Ipa = Ipa::new(0x2000_0000);
const MIB_2: u64 = 2 << 20;

impl JudgedGuest {
    /// Makes a guest: without a store, with data in every page. In half of the cases its RAM begins on a boundary of 2
    /// MiB.
    pub fn new(store: Option<StorePlan>, random: &mut Random) -> anyhow::Result<Self> {
        let start = RAM + if random.once_in(2) { 0 } else { random.below(MIB_2 / PAGE) * PAGE };
        let arena = Arc::new(Arena::new(&ArenaOptions::new(24 * MIB_2, Backing::Anonymous))?);
        let machine = FastMachine::new(arena, TODAY, VCPUS)?;
        let mut frames = Frames::new(TODAY);
        frames.add(machine.arena().donate());
        let geometry = Geometry::new(Kib4, 40, &TODAY)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Largest)?;
        let ram = |range| Slot { range, backing: twofold_memory::Backing::Ram, writable: true };
        let slot = memory.add_slot(ram(start..start + PAGES * PAGE))?;
        memory.add_slot(ram(TABLES..TABLES + PAGE))?;
        write_stage1_tables(&memory)?;
        let (mut shelf, mut frames) = (None, Vec::new());
        match store {
            Some(plan) => shelf = Some(Shelf::attach(&mut memory, plan, random)?),
            None => {
                frames = (0..PAGES).map(|page| touch(&memory, start + page * PAGE)).collect::<anyhow::Result<_>>()?;
            }
        }
        Ok(Self { vm: Vm::new(memory), machine, start, shelf, slot, frames })
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &GuestMemory<FastPlatform> {
        self.vm.memory()
    }

    /// Returns the log of its RAM.
    pub fn log(&self) -> anyhow::Result<DirtyLog<'_, FastPlatform>> {
        Ok(self.memory().dirty_log(self.slot)?)
    }

    /// Some of its pages while it is written to. Those that were written are mostly in memory.
    pub fn running(&self) -> View<'_> {
        View { guest: self, is_held: false, window: 1, absent: RefCell::default() }
    }

    /// All of its pages while it is written to.
    pub fn running_all(&self) -> View<'_> {
        View { window: TOGETHER, ..self.running() }
    }

    /// Its pages while all writers are held. Only the caller's thread has pages leave meanwhile.
    pub fn held(&self) -> View<'_> {
        View { is_held: true, ..self.running_all() }
    }

    fn read_frame(&self, frame: Pa, into: &mut Page) {
        let words = self.machine.arena().words(frame, PAGE / 8);
        let words = words.expect("a page's frame is in the arena that the frames came from");
        for (bytes, word) in into.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
}

impl GuestPages for View<'_> {
    fn count(&self) -> u64 {
        PAGES
    }

    fn read(&self, page: u64, into: &mut Page) {
        let &Self { guest, is_held, .. } = self;
        let Some(shelf) = &guest.shelf else { return guest.read_frame(guest.frames[page as usize], into) };
        let mut absent = self.absent.borrow_mut();
        if let Some(bytes) = absent.remove(&page) {
            shelf.note_compared(is_held);
            return into.copy_from_slice(&*bytes);
        }
        let frame_of = |page| guest.memory().frame_of(guest.start + page * PAGE);
        match frame_of(page) {
            // Not while the guest runs: the page may leave, and the frame be another's.
            Ok(Some(frame)) if is_held => guest.read_frame(frame, into),
            Ok(None) if is_held => into.fill(0),
            _ => {
                let others = (page + 1..PAGES.min(page + self.window)).filter(|page| frame_of(*page).is_err());
                let pages: Vec<_> = [page].into_iter().chain(others).collect();
                absent.clear();
                let read = shelf.peek(guest.memory(), guest.start, &pages);
                absent.extend(pages.into_iter().zip(read));
                into.copy_from_slice(&*absent.remove(&page).expect("the page was read"));
                shelf.note_compared(is_held);
            }
        }
    }
}

/// Pages that are looked at together.
const TOGETHER: u64 = 64;

/// Writes to a page and maps it; returns its frame.
fn touch(memory: &GuestMemory<FastPlatform>, ipa: Ipa) -> anyhow::Result<Pa> {
    memory.write(ipa, &ipa.raw().to_ne_bytes())?;
    let _ = memory.fault(&GuestFault { ipa, kind: FaultKind::Translation, access: AccessKind::Read })?;
    let leaf = memory.stage2().look_up(ipa).with_context(|| format!("{ipa} is not mapped"))?;
    Ok(leaf.descriptor.address() + (ipa - leaf.ipa))
}

/// Returns the registers of a guest whose stage 1 maps the first 4 GiB to the same addresses: 39 bits of address in the
/// lower half, none in the upper, 48 bits of IPA. The TLB holds such translations as entries that combine both stages,
/// and an invalidation by IPA does not remove those.
pub fn stage1() -> Stage1Registers {
    const TCR: u64 = 25 | 0b0101 << 8 | 3 << 12 | 1 << 23 | 5 << 32;
    Stage1Registers { sctlr: 1, tcr: TCR, ttbr0: TABLES.raw(), ttbr1: 0, mair: 0xff }
}

/// Writes a table of level 1 with blocks that are inner shareable and accessed.
fn write_stage1_tables(memory: &GuestMemory<FastPlatform>) -> anyhow::Result<()> {
    const BLOCK: u64 = 0b01 | 3 << 8 | 1 << 10;
    for gib in 0..4 {
        memory.write(TABLES + gib * 8, &(gib << 30 | BLOCK).to_ne_bytes())?;
    }
    Ok(())
}
