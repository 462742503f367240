// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with one slot, all of which is mapped by pages: with memory behind it, or tables alone.
//!
//! Invariant: after a [`reset`](Guest::reset) everything is as it was at first, the log included, which then is allocated by
//! its first start, as by a guest's that is to be migrated.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use twofold_machine::arena::{Arena, ArenaError, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform, FastVcpu};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_memory::dirty::DirtyLog;
use twofold_memory::{Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::fault::{AccessKind, Fault, FaultKind};
use twofold_stage2::{Access, Attributes, Geometry, Granule, Ipa, IpaRange, Level, Pa, Platform, Vmid, Window};

use crate::features::TODAY;

/// Bytes of a page.
pub const PAGE: u64 = 4 << 10;

const RAM: Ipa = Ipa::new(0x4000_0000);
const IPA_BITS: u32 = 40;
/// Where the slot's memory would be, if there were any.
const NOWHERE: Pa = Pa::new(0x10_0000_0000);
/// Table pages beside those of level 3: of level 2, the root, and what a buddy allocator cannot use.
const SPARE: u64 = 1 << 20;

/// The guest.
pub struct Guest {
    machine: Arc<FastMachine>,
    memory: GuestMemory<FastPlatform>,
    slot: SlotId,
    size: u64,
    /// Where its memory is.
    frames: Pa,
}

impl Guest {
    /// A slot of so many bytes, with nothing behind it: its tables are real, and nobody may access its pages.
    pub fn of_tables(size: u64) -> anyhow::Result<Self> {
        let arena = arena(ArenaOptions::new(table_bytes(size), Backing::AnonymousThp))?;
        Self::in_arena(arena, size, NOWHERE)
    }

    /// A slot of so many bytes of memory, all of which was touched.
    pub fn backed(size: u64) -> anyhow::Result<Self> {
        let tables = table_bytes(size).next_multiple_of(2 << 20);
        let options = ArenaOptions::new(tables + size, Backing::AnonymousThp);
        let arena = arena(ArenaOptions { tables: Some(tables), ..options })?;
        let frames = options.base + tables;
        for page in 0..size / PAGE {
            arena.store(frames + page * PAGE, 0).context("the arena is smaller than was asked for")?;
        }
        Self::in_arena(arena, size, frames)
    }

    fn in_arena(arena: Arena, size: u64, frames: Pa) -> anyhow::Result<Self> {
        let arena = Arc::new(arena);
        let machine = FastMachine::new(Arc::clone(&arena), TODAY, 1)?;
        let mut free = Frames::new(TODAY);
        free.add(arena.donate_part(0, table_bytes(size)).context("the arena is smaller than was asked for")?);
        let geometry = Geometry::new(Granule::KIB_4, IPA_BITS, &TODAY)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), free, Pages::Small)?;
        // As on a CPU that runs this guest.
        memory.stage2().platform().load_vttbr(memory.stage2().vttbr());
        let slot = memory.add_slot(slot(size))?;
        let guest = Self { machine, memory, slot, size, frames };
        guest.map()?;
        Ok(guest)
    }

    /// Back to the start: another slot takes the place of this one.
    pub fn reset(&mut self) -> anyhow::Result<()> {
        self.memory.remove_slot(self.slot)?;
        self.slot = self.memory.add_slot(slot(self.size))?;
        self.map()
    }

    fn map(&self) -> anyhow::Result<()> {
        let attributes = Attributes::ram(Access::READ_WRITE);
        let tables = &mut self.memory.tables();
        // SAFETY: it is what of the arena was not donated, or no vCPU runs: nothing is there.
        let window = unsafe { Window::new(self.frames, self.size) };
        Ok(self.memory.stage2().open(window, self.range().start).map_range(Level::L3, &attributes, tables)?)
    }

    /// The slot's log.
    pub fn log(&self) -> anyhow::Result<DirtyLog<'_, FastPlatform>> {
        Ok(self.memory.dirty_log(self.slot)?)
    }

    /// How many pages the slot has.
    pub fn pages(&self) -> u64 {
        self.size / PAGE
    }

    /// Lets the guest write to a page as it does itself: by hardware where that records it, by a fault otherwise.
    pub fn write(&self, page: u64) -> anyhow::Result<()> {
        let ipa = self.range().start + page * PAGE;
        let leaf = self.memory.stage2().look_up(ipa).context("a page is not mapped")?;
        if leaf.descriptor.is_armed() {
            let _ = self.memory.stage2().relax(ipa, Access::READ_WRITE)?;
        } else if !leaf.descriptor.access().write {
            let _ = self.memory.fault(&GuestFault { ipa, kind: FaultKind::Permission, access: AccessKind::Write })?;
        }
        Ok(())
    }

    /// How many pages may be written without hardware or a fault telling.
    pub fn writable(&self) -> anyhow::Result<u64> {
        let (mut writable, mut armed) = (0, 0);
        let stage2 = self.memory.stage2();
        stage2.written(self.range(), &mut |marked| writable += u64::from(marked.mask.count_ones()))?;
        stage2.dirty(self.range(), &mut |marked| armed += u64::from(marked.mask.count_ones()))?;
        Ok(writable - armed)
    }

    /// How many pages hardware records writes to.
    pub fn armed(&self) -> anyhow::Result<u64> {
        let is_armed = |page: &u64| {
            let leaf = self.memory.stage2().look_up(self.range().start + page * PAGE);
            leaf.is_some_and(|leaf| leaf.descriptor.is_armed())
        };
        Ok((0..self.pages()).filter(is_armed).count() as u64)
    }

    /// A CPU for it.
    pub fn vcpu(&self) -> anyhow::Result<FastVcpu> {
        let registers = (self.memory.stage2().vttbr(), self.memory.stage2().vtcr());
        Ok(FastVcpu::new(&self.machine, 0, registers, Arc::new(Interrupts::new()))?)
    }

    /// Has the guest write to these pages, and answers its faults; tells how many there were.
    pub fn run(&self, vcpu: &mut FastVcpu, pages: &[u32]) -> anyhow::Result<u64> {
        let mut stores = Stores { pages, at: 0 };
        let mut faults = 0;
        loop {
            match vcpu.run(&mut stores) {
                Ok(Ended) => return Ok(faults),
                Err(Exit::Abort(abort)) => {
                    let fault = Fault::from_syndrome(abort.esr).context("an abort that is no fault of the tables")?;
                    // Its stage 1 is off: its addresses are what the tables translate. HPFAR tells nothing of permissions.
                    let (ipa, Fault { kind, access, .. }) = (Ipa::new(abort.far), fault);
                    let _ = self.memory.fault(&GuestFault { ipa, kind, access })?;
                    faults += 1;
                    ensure!(faults <= 2 * pages.len() as u64, "the guest faults over and over at {ipa}");
                }
                Err(exit) => bail!("the guest was left: {exit:?}"),
            }
        }
    }

    fn range(&self) -> IpaRange {
        RAM..RAM + self.size
    }
}

/// The guest's program: a store to each page of a list.
struct Stores<'a> {
    pages: &'a [u32],
    at: usize,
}

impl Program for Stores<'_> {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while let Some(page) = self.pages.get(self.at) {
            // In each page another word, so that they are not all in one set of the host's cache.
            let word = (self.at as u64 * 72) & (PAGE - 8);
            cpu.store(RAM.raw() + u64::from(*page) * PAGE + word, self.at as u64)?;
            self.at += 1;
        }
        Ok(Ended)
    }
}

fn slot(size: u64) -> Slot {
    Slot { range: RAM..RAM + size, backing: twofold_memory::Backing::Ram, writable: true }
}

/// In huge pages, as tables at EL2 are; in small ones where the system has no others.
fn arena(options: ArenaOptions) -> Result<Arena, ArenaError> {
    match Arena::new(&options) {
        Err(ArenaError::NoTransparentHugePages { instead }) => {
            Arena::new(&ArenaOptions { backing: instead, ..options })
        }
        arena => arena,
    }
}

fn table_bytes(size: u64) -> u64 {
    size / 512 + SPARE
}
