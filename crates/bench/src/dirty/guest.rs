// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with one slot that is mapped by pages, with or without memory behind it.
//!
//! Invariant: a [`reset`](LoggedGuest::reset) restores the first state. That includes the log: the next start allocates it
//! again, as for a guest that is about to migrate.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use twofold_machine::arena::{Arena, ArenaError, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform, FastVcpu};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_memory::dirty::DirtyLog;
use twofold_memory::{Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::fault::{AccessKind, Fault, FaultKind};
use twofold_stage2::{Access, Attributes, Geometry, Ipa, IpaRange, Kib4, Level, Pa, Platform, Vmid, Window};

use crate::features::TODAY;

/// Bytes of a page.
pub const PAGE: u64 = 4 << 10;

const RAM: Ipa = Ipa::new(0x4000_0000);
const IPA_BITS: u32 = 40;
/// The output address of a slot without memory.
const NOWHERE: Pa = Pa::new(0x10_0000_0000);
/// Bytes of table pages beside level 3: level 2, the root, and what a buddy allocator cannot use.
const SPARE: u64 = 1 << 20;

/// A guest whose one slot has a dirty log.
pub struct LoggedGuest {
    machine: Arc<FastMachine>,
    memory: GuestMemory<FastPlatform>,
    slot: SlotId,
    size: u64,
    /// The physical address of its memory.
    frames: Pa,
}

impl LoggedGuest {
    /// A slot of `size` bytes without memory behind it. Its tables are real; its pages must not be accessed.
    pub fn of_tables(size: u64) -> anyhow::Result<Self> {
        let arena = arena(ArenaOptions::new(table_bytes(size), Backing::AnonymousThp))?;
        Self::in_arena(arena, size, NOWHERE)
    }

    /// A slot of `size` bytes of memory, every page of which was touched.
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
        let geometry = Geometry::new(Kib4, IPA_BITS, &TODAY)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), free, Pages::Small)?;
        // As on a CPU that runs this guest.
        memory.stage2().platform().load_vttbr(memory.stage2().vttbr());
        let slot = memory.add_slot(slot(size))?;
        let guest = Self { machine, memory, slot, size, frames };
        guest.map()?;
        Ok(guest)
    }

    /// Restores the first state: replaces the slot by a new one.
    pub fn reset(&mut self) -> anyhow::Result<()> {
        self.memory.remove_slot(self.slot)?;
        self.slot = self.memory.add_slot(slot(self.size))?;
        self.map()
    }

    fn map(&self) -> anyhow::Result<()> {
        let attributes = Attributes::ram(Access::READ_WRITE);
        let tables = &mut self.memory.tables();
        // SAFETY: the range is the part of the arena that was not donated; or it has no memory, and no vCPU accesses
        // it.
        let window = unsafe { Window::new(self.frames, self.size) };
        Ok(self.memory.stage2().open(window, self.range().start).map_range(Level::L3, &attributes, tables)?)
    }

    /// Returns the slot's log.
    pub fn log(&self) -> anyhow::Result<DirtyLog<'_, FastPlatform>> {
        Ok(self.memory.dirty_log(self.slot)?)
    }

    /// Returns the number of pages of the slot.
    pub fn pages(&self) -> u64 {
        self.size / PAGE
    }

    /// Does what a guest's write to `page` does to the tables: hardware records it if DBM is set, otherwise it faults.
    pub fn write(&self, page: u64) -> anyhow::Result<()> {
        let ipa = self.range().start + page * PAGE;
        let leaf = self.memory.stage2().look_up(ipa).context("a page is not mapped")?;
        if leaf.descriptor.is_hardware_tracked() {
            let _ = self.memory.stage2().relax(ipa, Access::READ_WRITE)?;
        } else if !leaf.descriptor.access().write {
            let _ = self.memory.fault(&GuestFault { ipa, kind: FaultKind::Permission, access: AccessKind::Write })?;
        }
        Ok(())
    }

    /// Returns how many pages are writable with neither hardware nor a fault recording the write.
    pub fn writable(&self) -> anyhow::Result<u64> {
        let (mut writable, mut tracked) = (0, 0);
        let stage2 = self.memory.stage2();
        stage2.written(self.range(), &mut |marked| writable += u64::from(marked.mask.count_ones()))?;
        stage2.dirty(self.range(), &mut |marked| tracked += u64::from(marked.mask.count_ones()))?;
        Ok(writable - tracked)
    }

    /// Returns how many pages have DBM set, so that hardware records writes to them.
    pub fn hardware_tracked(&self) -> anyhow::Result<u64> {
        let is_hardware_tracked = |page: &u64| {
            let leaf = self.memory.stage2().look_up(self.range().start + page * PAGE);
            leaf.is_some_and(|leaf| leaf.descriptor.is_hardware_tracked())
        };
        Ok((0..self.pages()).filter(is_hardware_tracked).count() as u64)
    }

    /// Returns a vCPU for this guest.
    pub fn vcpu(&self) -> anyhow::Result<FastVcpu> {
        let registers = (self.memory.stage2().vttbr(), self.memory.stage2().vtcr());
        Ok(FastVcpu::new(&self.machine, 0, registers, Arc::new(Interrupts::new()))?)
    }

    /// Runs the guest's stores to `pages` and answers its faults. Returns the number of faults.
    pub fn run(&self, vcpu: &mut FastVcpu, pages: &[u32]) -> anyhow::Result<u64> {
        let mut stores = Stores { pages, at: 0 };
        let mut faults = 0;
        loop {
            match vcpu.run(&mut stores) {
                Ok(Ended) => return Ok(faults),
                Err(Exit::Abort(abort)) => {
                    let fault = Fault::from_syndrome(abort.esr).context("an abort that is no fault of the tables")?;
                    // Stage 1 is off, so FAR holds the IPA. HPFAR is not valid for a permission fault.
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

/// The guest's program: one store to each page of a list.
struct Stores<'a> {
    pages: &'a [u32],
    at: usize,
}

impl Program for Stores<'_> {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while let Some(page) = self.pages.get(self.at) {
            // Each page's store goes to another word, so that the stores do not share one set of the host's cache.
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

/// Maps the arena in huge pages, as the tables of EL2 are; in small pages if the system has no huge ones.
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
