// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with an agent, whose tables a test changes by the engine's operations.
//!
//! Invariant: the newest guest is loaded on this CPU, and the TLB holds nothing of its VMID at first.

use alloc::vec::Vec;

use twofold_hypervisor::sysreg::isb;
use twofold_hypervisor::write_sysreg;
use twofold_stage2::{
    Access, Attributes, Broken, Error, Execute, Geometry, Ipa, IpaRange, Kib4, Leaf, Level, Mapped, Marked, Pa,
    Relaxed, Stage2, Vmid, Window,
};

use crate::agent::{self, Agent};
use crate::check::{Failure, Outcome};
use crate::exit::Exit;
use crate::machine::{Frame, Machine, PAGE};
use crate::omit::{LeftOut, Omit};

/// A guest.
pub struct HandMappedGuest {
    pub stage2: Stage2<Omit>,
    pub agent: Agent,
}

/// The agent's place, far from everything that tests map.
pub const AGENT: Ipa = Ipa::new(0x1000_0000);
/// The place where tests map pages; a gigabyte boundary.
pub const HERE: Ipa = Ipa::new(0x4000_0000);
/// The VMID of a test's only guest.
pub const VMID: Vmid = Vmid::new(1);
/// The size of the IPA space for tests that do not depend on it.
pub const IPA_BITS: u32 = 40;

impl HandMappedGuest {
    /// A guest that has only its agent, loaded on this CPU.
    pub fn new(machine: &mut Machine, vmid: Vmid) -> Outcome<Self> {
        Self::with_ipa_bits(machine, vmid, IPA_BITS)
    }

    /// The same with an IPA space of `ipa_bits` bits.
    pub fn with_ipa_bits(machine: &mut Machine, vmid: Vmid, ipa_bits: u32) -> Outcome<Self> {
        let geometry = Geometry::new(Kib4, ipa_bits, &machine.features)?;
        let root = machine.frames.take_root(&geometry).ok_or_else(|| Failure::new("no memory for a root"))??;
        // SAFETY: EL2 maps all RAM one to one; the frames come from `memory::take_over`, and are only ever reused for
        // guests.
        let platform = unsafe { Omit::new(machine.metadata) };
        let stage2 = Stage2::new(platform, machine.features, geometry, vmid, root)?;
        let mut guest = Self { stage2, agent: Agent::new(AGENT.raw()) };
        let program = machine.page()?;
        program.fill(agent::program());
        let readable = Attributes::ram(Access { execute: Execute::ALWAYS, ..Access::READ });
        guest.map(machine, AGENT, program.pa, Level::L3, &readable)?;
        guest.load_tables();
        guest.stage2.invalidate_all();
        Ok(guest)
    }

    /// A guest with its own page at [`HERE`].
    pub fn with_page(machine: &mut Machine, access: Access) -> Outcome<(Self, Frame)> {
        let mut guest = Self::new(machine, VMID)?;
        let frame = machine.page()?;
        guest.page(machine, HERE, frame, access)?;
        Ok((guest, frame))
    }

    /// Loads the guest's tables on this CPU.
    pub fn load_tables(&self) {
        load_tables(self.stage2.vtcr(), self.stage2.vttbr());
    }

    /// Maps a page.
    pub fn page(&mut self, machine: &mut Machine, ipa: Ipa, frame: Frame, access: Access) -> Outcome {
        self.map(machine, ipa, frame.pa, Level::L3, &Attributes::ram(access))
    }

    /// Maps a leaf where nothing is mapped.
    pub fn map(&mut self, machine: &mut Machine, ipa: Ipa, pa: Pa, level: Level, attributes: &Attributes) -> Outcome {
        let mapped = self.map_over(machine, ipa, pa, level, attributes)?;
        check_eq!(mapped, Mapped::New, "mapping {ipa}");
        Ok(())
    }

    /// Maps a leaf over a present mapping.
    pub fn map_over(
        &mut self,
        machine: &mut Machine,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
    ) -> Outcome<Mapped> {
        Ok(self.try_map(machine, ipa, pa, level, attributes)?)
    }

    /// [`Grant::map`](twofold_stage2::Grant::map).
    pub fn try_map(
        &mut self,
        machine: &mut Machine,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
    ) -> Result<Mapped, Error> {
        // SAFETY: the memory belongs to the test, or surrounds that memory. The agent accesses only the memory that the
        // test selects, and EL2 accesses it only by volatile accesses.
        let window = unsafe { Window::new(pa, Kib4.span(level)) };
        self.stage2.open(window, ipa).map(level, attributes, &mut machine.frames)
    }

    /// [`Stage2::unmap`], the flush, and the freeing. Returns the removed leaves and the number of freed tables.
    pub fn unmap(&mut self, machine: &mut Machine, range: IpaRange) -> Outcome<(Vec<Leaf>, u64)> {
        let mut removed = Vec::new();
        let pending = self.stage2.unmap(range, &mut machine.frames, |leaf| removed.push(leaf))?;
        let freed = pending.complete().free(&mut machine.frames);
        let removed = removed.iter().filter_map(|leaf: &Broken| leaf.open(&freed)).collect();
        Ok((removed, freed.tables()))
    }

    /// [`Stage2::protect`] and the flush.
    pub fn protect(&mut self, machine: &mut Machine, range: IpaRange, access: Access) -> Outcome {
        let _ = self.stage2.protect(range, access, &mut machine.frames)?.complete();
        Ok(())
    }

    /// [`Stage2::clean`] and the flush. Returns the dirty leaves.
    pub fn clean(&mut self, range: IpaRange) -> Outcome<Vec<(Ipa, Level)>> {
        let granule = self.stage2.geometry().granule();
        let mut dirty = Vec::new();
        let tell = &mut |marked: Marked| {
            dirty.extend(marked.leaves(granule.span(marked.level)).map(|leaf| (leaf, marked.level)));
        };
        let _ = self.stage2.clean(range, tell)?.complete();
        Ok(dirty)
    }

    /// [`Stage2::relax`].
    pub fn relax(&mut self, ipa: Ipa, access: Access) -> Outcome<Relaxed> {
        Ok(self.stage2.relax(ipa, access)?)
    }

    /// Calls `change` with these instructions left out.
    pub fn without<T>(&mut self, left_out: LeftOut, change: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.stage2.platform().leave_out(left_out);
        let outcome = change(self);
        self.stage2.platform().leave_out(LeftOut::Nothing);
        outcome
    }

    /// The leaf at `ipa`; an error if there is none.
    pub fn leaf(&self, ipa: Ipa) -> Outcome<Leaf> {
        self.stage2.look_up(ipa).ok_or_else(|| Failure::new(alloc::format!("{ipa} is not mapped")))
    }

    /// A load of the guest, with its MMU off.
    pub fn load(&mut self, ipa: Ipa) -> Result<u64, Exit> {
        self.agent.load(ipa.raw())
    }

    /// A store of the guest, with its MMU off.
    pub fn store(&mut self, ipa: Ipa, value: u64) -> Result<(), Exit> {
        self.agent.store(ipa.raw(), value)
    }

    /// A call of the guest, with its MMU off.
    pub fn fetch(&mut self, ipa: Ipa) -> Result<u64, Exit> {
        self.agent.fetch(ipa.raw())
    }
}

/// The page at `ipa`.
pub fn page_at(ipa: Ipa) -> IpaRange {
    ipa..ipa + PAGE
}

/// Loads tables on this CPU.
pub fn load_tables(vtcr: u64, vttbr: u64) {
    // SAFETY: the registers affect only guests; EL2 has its own tables.
    unsafe {
        write_sysreg!(VTCR_EL2, vtcr);
        write_sysreg!(VTTBR_EL2, vttbr);
    }
    isb();
}
