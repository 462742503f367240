// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose tables a test changes by the engine's operations, and its agent.
//!
//! Invariant: a new guest is the one that is loaded on this CPU, and its VMID has nothing in the TLB.

use alloc::vec::Vec;

use twofold_hypervisor::sysreg::isb;
use twofold_hypervisor::write_sysreg;
use twofold_stage2::{
    Access, Attributes, Broken, Error, Execute, Geometry, Granule, Ipa, IpaRange, Leaf, Level, Mapped, Marked, Pa,
    Relaxed, Stage2, Vmid, Window,
};

use crate::agent::{self, Agent};
use crate::check::{Failure, Outcome};
use crate::exit::Exit;
use crate::machine::{Frame, Machine, PAGE};
use crate::omit::{LeftOut, Omit};

/// A guest.
pub struct Guest {
    pub stage2: Stage2<Omit>,
    pub agent: Agent,
}

/// Where the agent is, far from everything that tests map.
pub const AGENT: Ipa = Ipa::new(0x1000_0000);
/// Where tests map pages; a gigabyte boundary.
pub const HERE: Ipa = Ipa::new(0x4000_0000);
/// The VMID of a guest that is alone.
pub const VMID: Vmid = Vmid::new(1);
/// The size of the IPA space where it does not matter.
pub const IPA_BITS: u32 = 40;

impl Guest {
    /// A guest with nothing but its agent, loaded on this CPU.
    pub fn new(machine: &mut Machine, vmid: Vmid) -> Outcome<Self> {
        Self::with_ipa_bits(machine, vmid, IPA_BITS)
    }

    /// The same with an IPA space of this size.
    pub fn with_ipa_bits(machine: &mut Machine, vmid: Vmid, ipa_bits: u32) -> Outcome<Self> {
        let geometry = Geometry::new(Granule::KIB_4, ipa_bits, &machine.features)?;
        let root = machine.frames.take_root(&geometry).ok_or_else(|| Failure::new("no memory for a root"))??;
        // SAFETY: EL2 maps all RAM one to one; the frames come from `memory::take_over`, and none is ever reused for
        // anything but guests.
        let platform = unsafe { Omit::new(machine.records) };
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

    /// A guest with a page of its own at [`HERE`].
    pub fn with_page(machine: &mut Machine, access: Access) -> Outcome<(Self, Frame)> {
        let mut guest = Self::new(machine, VMID)?;
        let frame = machine.page()?;
        guest.page(machine, HERE, frame, access)?;
        Ok((guest, frame))
    }

    /// Loads the tables on this CPU.
    pub fn load_tables(&self) {
        load_tables(self.stage2.vtcr(), self.stage2.vttbr());
    }

    /// Maps a page.
    pub fn page(&mut self, machine: &mut Machine, ipa: Ipa, frame: Frame, access: Access) -> Outcome {
        self.map(machine, ipa, frame.pa, Level::L3, &Attributes::ram(access))
    }

    /// Maps a leaf where nothing is.
    pub fn map(&mut self, machine: &mut Machine, ipa: Ipa, pa: Pa, level: Level, attributes: &Attributes) -> Outcome {
        let mapped = self.map_over(machine, ipa, pa, level, attributes)?;
        check_eq!(mapped, Mapped::New, "mapping {ipa}");
        Ok(())
    }

    /// Maps a leaf over what is there.
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
        // SAFETY: the memory is the test's, or what is around that; of it the agent accesses what the test asks for, and EL2
        // reaches that by volatile accesses alone.
        let window = unsafe { Window::new(pa, Granule::KIB_4.span(level)) };
        self.stage2.open(window, ipa).map(level, attributes, &mut machine.frames)
    }

    /// [`Stage2::unmap`], the flush, the freeing. Returns what was mapped and how many tables were freed.
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

    /// [`Stage2::clean`] and the flush. Returns which leaves were dirty.
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

    /// Does `change` with something left out.
    pub fn without<T>(&mut self, left_out: LeftOut, change: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.stage2.platform().leave_out(left_out);
        let outcome = change(self);
        self.stage2.platform().leave_out(LeftOut::Nothing);
        outcome
    }

    /// The leaf that is to be there.
    pub fn leaf(&self, ipa: Ipa) -> Outcome<Leaf> {
        self.stage2.look_up(ipa).ok_or_else(|| Failure::new(alloc::format!("{ipa} is not mapped")))
    }

    /// The guest's load, its MMU being off.
    pub fn load(&mut self, ipa: Ipa) -> Result<u64, Exit> {
        self.agent.load(ipa.raw())
    }

    /// The guest's store, its MMU being off.
    pub fn store(&mut self, ipa: Ipa, value: u64) -> Result<(), Exit> {
        self.agent.store(ipa.raw(), value)
    }

    /// The guest's call, its MMU being off.
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
    // SAFETY: the registers decide what guests see; EL2 has tables of its own.
    unsafe {
        write_sysreg!(VTCR_EL2, vtcr);
        write_sysreg!(VTTBR_EL2, vttbr);
    }
    isb();
}
