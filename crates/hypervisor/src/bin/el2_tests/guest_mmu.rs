// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's own tables: stage 1 of EL1, made by the test in frames of the guest.
//!
//! They translate the first 2 MiB of virtual addresses by pages, in three tables that are contiguous in the guest's
//! memory. The last table maps the pages.

use twofold_hypervisor::sysreg::isb;
use twofold_hypervisor::{read_sysreg, write_sysreg};
use twofold_stage2::{Access, Attributes, Features, Ipa, Level};

use crate::check::Outcome;
use crate::hand_mapped_guest::{AGENT, HandMappedGuest};
use crate::machine::{Frame, Machine, PAGE};

/// A guest's tables.
pub struct GuestTables {
    /// The guest physical address of the first table.
    pub root: Ipa,
    tables: [Frame; 3],
}

/// The agent's virtual address with the MMU on.
pub const AGENT_VA: u64 = 0x1_0000;

/// Bits of an entry.
pub mod entry {
    /// Access flag.
    pub const ACCESSED: u64 = 1 << 10;
    /// AP\[2\]: stores fault.
    pub const READ_ONLY: u64 = 1 << 7;
    /// DBM: hardware may clear `READ_ONLY`, which records a store.
    pub const DIRTY_BY_HARDWARE: u64 = 1 << 51;
    /// Valid, a page, inner shareable, attribute 0.
    pub const PAGE: u64 = 3 << 8 | 0b11;
    /// Valid, a table.
    pub const TABLE: u64 = 0b11;
}

impl GuestTables {
    /// Makes tables at `root` that map the agent; stage 2 maps the tables with `attributes`.
    pub fn new(
        machine: &mut Machine,
        guest: &mut HandMappedGuest,
        root: Ipa,
        attributes: &Attributes,
    ) -> Outcome<Self> {
        let tables = [empty(machine)?, empty(machine)?, empty(machine)?];
        let this = Self { root, tables };
        for (index, table) in this.tables.iter().enumerate() {
            guest.map(machine, this.table(index), table.pa, Level::L3, attributes)?;
        }
        for above in [0, 1] {
            this.tables[above].write(0, this.table(above + 1).raw() | entry::TABLE);
        }
        this.map(AGENT_VA, AGENT, entry::ACCESSED | entry::READ_ONLY);
        Ok(this)
    }

    /// The same with tables in readable and writable memory.
    pub fn in_ram(machine: &mut Machine, guest: &mut HandMappedGuest, root: Ipa) -> Outcome<Self> {
        Self::new(machine, guest, root, &Attributes::ram(Access::READ_WRITE))
    }

    /// Maps the tables from `start` on again, except the last one.
    pub fn map_again(&self, machine: &mut Machine, guest: &mut HandMappedGuest, start: Ipa) -> Outcome {
        for index in (0..2).filter(|index| self.table(*index) >= start) {
            guest.page(machine, self.table(index), self.tables[index], Access::READ_WRITE)?;
        }
        Ok(())
    }

    /// Maps a page.
    pub fn map(&self, va: u64, ipa: Ipa, bits: u64) {
        self.pages().write(index(va), ipa.raw() | bits | entry::PAGE);
    }

    /// The present entry that maps `va`, with any update by hardware.
    pub fn entry(&self, va: u64) -> u64 {
        self.pages().read(index(va))
    }

    /// The guest physical address of the last table.
    pub fn pages_at(&self) -> Ipa {
        self.table(2)
    }

    /// The frame of the last table.
    pub fn pages(&self) -> Frame {
        self.tables[2]
    }

    /// The same tables with a copy of the last one, which the guest does not use yet.
    pub fn with_other_pages(&self, machine: &mut Machine) -> Outcome<Self> {
        let copy = machine.page()?;
        for word in 0..PAGE / 8 {
            copy.write(word * 8, self.pages().read(word * 8));
        }
        Ok(Self { root: self.root, tables: [self.tables[0], self.tables[1], copy] })
    }

    /// Turns the guest's MMU on with these tables, on this CPU. Hardware manages access flags and dirty state if it
    /// can.
    pub fn turn_on(&self, guest: &mut HandMappedGuest) {
        turn_on(guest.stage2.features());
        self.switch_to();
        guest.agent.move_to(AGENT_VA);
        guest.stage2.invalidate_all();
    }

    /// Turns the guest's MMU off again, on this CPU.
    pub fn turn_off(&self, guest: &mut HandMappedGuest) {
        turn_off();
        guest.agent.move_to(AGENT.raw());
        guest.stage2.invalidate_all();
    }

    /// Makes the guest use these tables, like another vCPU's registers would: the ASID stays 0, and nothing is
    /// invalidated.
    pub fn switch_to(&self) {
        // SAFETY: as above.
        unsafe { write_sysreg!(TTBR0_EL1, self.root.raw()) };
        isb();
    }

    fn table(&self, index: usize) -> Ipa {
        self.root + index as u64 * PAGE
    }
}

/// Turns the MMU of this CPU's guest on; the caller must still set the base registers. `TTBR1_EL1` translates nothing.
pub fn turn_on(features: &Features) {
    /// 39 bits of VA, 4 KiB, walks write-back and inner shareable; the same for the upper half, but with EPD1.
    const TCR: u64 = EPD1 | 2 << 30 | 25 << 16 | 3 << 12 | 1 << 10 | 1 << 8 | 25;
    /// 40 bits of IPA.
    const IPS: u64 = 2 << 32;
    const HARDWARE_ACCESSED: u64 = 1 << 39;
    const HARDWARE_DIRTY: u64 = 1 << 40;
    const WRITE_BACK: u64 = 0xff;
    const MMU_AND_CACHES: u64 = 1 << 12 | 1 << 2 | 1;
    let accessed = if features.hardware_access_flag { HARDWARE_ACCESSED } else { 0 };
    let dirty = if features.hardware_dirty_state { HARDWARE_DIRTY } else { 0 };
    // SAFETY: these registers belong to the guest, which is not running.
    unsafe {
        write_sysreg!(MAIR_EL1, WRITE_BACK);
        write_sysreg!(TCR_EL1, TCR | IPS | accessed | dirty);
        write_sysreg!(SCTLR_EL1, MMU_AND_CACHES_OFF | MMU_AND_CACHES);
    }
    isb();
}

/// Turns the MMU of this CPU's guest off.
pub fn turn_off() {
    // SAFETY: as above.
    unsafe { write_sysreg!(SCTLR_EL1, MMU_AND_CACHES_OFF) };
    isb();
}

/// Makes `TTBR1_EL1` translate the upper half of the guest's addresses, by tables at `root`.
pub fn turn_upper_half_on(root: Ipa) {
    // SAFETY: as above.
    unsafe {
        write_sysreg!(TTBR1_EL1, root.raw());
        write_sysreg!(TCR_EL1, read_sysreg!(TCR_EL1) & !EPD1);
    }
    isb();
}

/// TCR_EL1.EPD1.
const EPD1: u64 = 1 << 23;

/// The value of SCTLR_EL1 after `registers::set_for`.
const MMU_AND_CACHES_OFF: u64 = 0x30d0_0800;

fn empty(machine: &mut Machine) -> Outcome<Frame> {
    let frame = machine.page()?;
    (0..PAGE / 8).for_each(|word| frame.write(word * 8, 0));
    Ok(frame)
}

/// The offset of the entry for `va` in the last table.
fn index(va: u64) -> u64 {
    assert!(va < 2 << 20, "the tables translate 2 MiB");
    va / PAGE * 8
}
