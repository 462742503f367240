// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of a vCPU that a CPU has, as one bit for each group of the table.

use crate::registers::Cpu;
use crate::sysreg::id_field;

/// The groups that a CPU has beside [`Group::ALWAYS`]. A group is one test of one bit in the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has(u128);

/// A group of registers that exist together. Its number is a bit of [`Has`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u32);

#[allow(missing_docs, reason = "the functions of `Has` that set them say what they are")]
impl Group {
    pub const ALWAYS: Self = Self(0);
    pub const PAUTH: Self = Self(1);
    pub const SCXTNUM: Self = Self(2);
    pub const RAS: Self = Self(3);
    pub const TCR2: Self = Self(4);
    pub const SCTLR2: Self = Self(5);
    pub const S1PIE: Self = Self(6);
    pub const S1POE: Self = Self(7);
    pub const SME: Self = Self(8);
    pub const GIC: Self = Self(9);

    /// Breakpoint `n`.
    pub const fn breakpoint(n: u32) -> Self {
        Self(32 + n)
    }

    /// Watchpoint `n`.
    pub const fn watchpoint(n: u32) -> Self {
        Self(48 + n)
    }
}

impl Has {
    /// The groups of this CPU.
    pub fn read() -> Self {
        Self::of(&Cpu::read())
    }

    /// The groups of a CPU with these ID registers.
    pub fn of(cpu: &Cpu) -> Self {
        let mut has = Self::default();
        has.add(Group::PAUTH, cpu.has_pauth());
        has.add(Group::SCXTNUM, cpu.has_scxtnum());
        has.add(Group::RAS, cpu.has_ras());
        has.add(Group::TCR2, cpu.has_tcr2());
        has.add(Group::SCTLR2, cpu.has_sctlr2());
        has.add(Group::S1PIE, cpu.has_s1pie());
        has.add(Group::S1POE, cpu.has_s1poe());
        // With FEAT_FGT its registers trap: HFGRTR_EL2 is shut.
        has.add(Group::SME, cpu.has_sme() && !cpu.has_fgt());
        has.add(Group::GIC, cpu.has_gic_registers());
        // ID_AA64DFR0_EL1.BRPs and WRPs: both are one less than the number. FEAT_Debugv8p9 has more than 16, of which
        // the guest sees 16.
        let [breakpoints, watchpoints] = [12, 20].map(|low| id_field(cpu.id_aa64dfr0, low) as u32);
        (0..=breakpoints).for_each(|n| has.add(Group::breakpoint(n), true));
        (0..=watchpoints).for_each(|n| has.add(Group::watchpoint(n), true));
        has
    }

    /// Whether the CPU has the group.
    #[inline(always)]
    pub const fn has(self, group: Group) -> bool {
        // Without a test where the group is a constant.
        group.0 == Group::ALWAYS.0 || self.0 & (1 << group.0) != 0
    }

    fn add(&mut self, group: Group, is_there: bool) {
        if is_there {
            self.0 |= 1 << group.0;
        }
    }
}
