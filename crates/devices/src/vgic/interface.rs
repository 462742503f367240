// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hardware's virtual CPU interface: what the vGIC needs of it, and what is saved of it.

/// The most list registers that a CPU may have.
pub const MOST_LIST_REGISTERS: usize = 16;

/// The virtual CPU interface of one CPU: `ICH_*_EL2` (Arm IHI 0069H, chapters 6 and 12).
///
/// At EL2 it is the system registers of the CPU that executes; in tests it is a fake that is as strict as the
/// architecture. A vCPU that is not loaded needs none: its list registers are empty, and the rest is in
/// [`SavedInterface`].
///
/// The vGIC calls it under the guest's lock, on the CPU whose registers they are. The embedder synchronizes (`isb`)
/// before it returns to the guest, as the return from an exception does.
pub trait CpuInterface {
    /// The number of list registers, from `ICH_VTR_EL2.ListRegs`: 1 to 16, and always the same.
    fn list_registers(&self) -> usize;

    /// `ICH_LR<n>_EL2`.
    fn list_register(&self, n: usize) -> u64;

    /// Writes `ICH_LR<n>_EL2`.
    fn set_list_register(&mut self, n: usize, value: u64);

    /// The bits of a priority that decide about preemption, from `ICH_VTR_EL2.PREbits`: 5 to 7, and always the same.
    fn preemption_bits(&self) -> u32;

    /// `ICH_ELRSR_EL2`: list registers that are empty, and owe no maintenance interrupt.
    fn empty(&self) -> u16;

    /// `ICH_EISR_EL2`: list registers that are empty, and owe a maintenance interrupt.
    fn ended(&self) -> u16;

    /// `ICH_HCR_EL2`.
    fn control(&self) -> u64;

    /// Writes `ICH_HCR_EL2`. [`control`] names its bits.
    fn set_control(&mut self, value: u64);

    /// `ICH_VMCR_EL2`.
    fn machine_control(&self) -> u64;

    /// Writes `ICH_VMCR_EL2`.
    fn set_machine_control(&mut self, value: u64);

    /// `ICH_AP0R<n>_EL2` (`group1` false) or `ICH_AP1R<n>_EL2`. `n` is 0 with 5 [bits](Self::preemption_bits), up to 1
    /// with 6, up to 3 with 7.
    fn active_priorities(&self, group1: bool, n: usize) -> u32;

    /// Writes one of these.
    fn set_active_priorities(&mut self, group1: bool, n: usize, value: u32);
}

/// No interface: for calls from a CPU on which no vCPU of the guest is loaded.
#[derive(Debug)]
pub enum NoInterface {}

impl CpuInterface for NoInterface {
    fn list_registers(&self) -> usize {
        match *self {}
    }

    fn preemption_bits(&self) -> u32 {
        match *self {}
    }

    fn list_register(&self, _: usize) -> u64 {
        match *self {}
    }

    fn set_list_register(&mut self, _: usize, _: u64) {
        match *self {}
    }

    fn empty(&self) -> u16 {
        match *self {}
    }

    fn ended(&self) -> u16 {
        match *self {}
    }

    fn control(&self) -> u64 {
        match *self {}
    }

    fn set_control(&mut self, _: u64) {
        match *self {}
    }

    fn machine_control(&self) -> u64 {
        match *self {}
    }

    fn set_machine_control(&mut self, _: u64) {
        match *self {}
    }

    fn active_priorities(&self, _: bool, _: usize) -> u32 {
        match *self {}
    }

    fn set_active_priorities(&mut self, _: bool, _: usize, _: u32) {
        match *self {}
    }
}

/// Bits of `ICH_HCR_EL2`.
pub mod control {
    /// The virtual CPU interface is on.
    pub const EN: u64 = 1 << 0;
    /// Maintenance interrupt: an EOI or a deactivation found no list register.
    pub const LRENPIE: u64 = 1 << 2;
    /// Maintenance interrupt: no list register is pending.
    pub const NPIE: u64 = 1 << 3;
    /// Maintenance interrupt: group 0 is enabled.
    pub const VGRP0EIE: u64 = 1 << 4;
    /// Maintenance interrupt: group 0 is disabled.
    pub const VGRP0DIE: u64 = 1 << 5;
    /// Maintenance interrupt: group 1 is enabled.
    pub const VGRP1EIE: u64 = 1 << 6;
    /// Maintenance interrupt: group 1 is disabled.
    pub const VGRP1DIE: u64 = 1 << 7;
    /// A guest's write to `ICC_DIR_EL1` traps. Only a CPU with `ICH_VTR_EL2.TDS` has it.
    pub const TDIR: u64 = 1 << 14;
    /// The first bit of `EOIcount`.
    pub(in super::super) const EOI_COUNT: u32 = 27;

    /// What is always on while a vCPU is loaded.
    pub const ALWAYS: u64 = EN | LRENPIE | TDIR;
}

/// `ICH_VMCR_EL2`, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MachineControl(pub u64);

impl MachineControl {
    /// After a reset: priorities masked, groups disabled, the least binary points that five bits of priority allow.
    /// `VFIQEn` is RES1 where the system registers are used.
    pub const RESET: u64 = 3 << 18 | 2 << 21 | 1 << 3;
    /// Bits that the architecture defines.
    pub const DEFINED: u64 = 0xfffc_021f;

    pub const fn is_enabled(self, group1: bool) -> bool {
        self.0 >> group1 as u32 & 1 == 1
    }

    /// An EOI only drops the priority; the deactivation is a write of its own.
    pub const fn is_split(self) -> bool {
        self.0 >> 9 & 1 == 1
    }

    pub const fn mask(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// What reads of `ICC_BPR0_EL1` and `ICC_BPR1_EL1` return: with a common binary point, the second is one more than the
    /// first, up to 7.
    pub const fn binary_points(self) -> [u8; 2] {
        let (zero, own) = ((self.0 >> 21 & 7) as u8, (self.0 >> 18 & 7) as u8);
        let common = if zero == 7 { 7 } else { zero + 1 };
        [zero, if self.0 >> 4 & 1 == 1 { common } else { own }]
    }

    /// The group priority's bits (Arm IHI 0069H, chapter 4, priority grouping): of group 1, the binary point is one less than the register's
    /// value, unless both groups share that of group 0.
    const fn group_mask(self, group1: bool) -> u8 {
        let common = self.0 >> 4 & 1 == 1;
        let point = if group1 && !common { (self.0 >> 18 & 7).saturating_sub(1) } else { self.0 >> 21 & 7 };
        (0xff_u32 << (point + 1)) as u8
    }

    /// Can an interrupt of this priority, of an enabled group, be taken while one of the priority `running` is handled
    /// (`0xff`: none)?
    pub const fn admits(self, priority: u8, group1: bool, running: u8) -> bool {
        let group = self.group_mask(group1);
        priority < self.mask() && (running == 0xff || priority & group < running & group)
    }
}

/// What is kept of the virtual CPU interface of a vCPU that is not loaded. Its list registers are drained: what they
/// held is in the interrupts' own state. So a vCPU can move to a CPU that has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedInterface {
    /// `ICH_VMCR_EL2`.
    pub machine_control: u64,
    /// The active priorities of group 0 and of group 1. Bit `n` is the priority `2 * n`, however many bits of a
    /// priority the CPU has.
    pub active_priorities: [u128; 2],
}

impl SavedInterface {
    /// After a reset.
    pub const RESET: Self = Self { machine_control: MachineControl::RESET, active_priorities: [0; 2] };

    pub(super) fn read(interface: &impl CpuInterface) -> Self {
        let active_priorities = [false, true].map(|group1| widened(interface, group1));
        Self { machine_control: interface.machine_control(), active_priorities }
    }

    /// As [`read`](Self::read), with five bits of priorities and no interrupt that is handled. Returns `false` if it is
    /// otherwise: then nothing has changed.
    #[inline(always)]
    pub(super) fn read_quiet(&mut self, interface: &impl CpuInterface) -> bool {
        let is_quiet = interface.preemption_bits() <= 5
            && interface.active_priorities(false, 0) | interface.active_priorities(true, 0) == 0;
        if is_quiet {
            *self = Self { machine_control: interface.machine_control(), active_priorities: [0; 2] };
        }
        is_quiet
    }

    /// As [`write`](Self::write), with five bits of priorities and no interrupt that is handled. Returns `false` if it is
    /// otherwise: then nothing was written.
    #[inline(always)]
    pub(super) fn write_quiet(&self, interface: &mut impl CpuInterface) -> bool {
        let is_quiet = interface.preemption_bits() <= 5 && self.active_priorities[0] | self.active_priorities[1] == 0;
        if is_quiet {
            interface.set_machine_control(self.machine_control);
            interface.set_active_priorities(false, 0, 0);
            interface.set_active_priorities(true, 0, 0);
        }
        is_quiet
    }

    pub(super) fn write(&self, interface: &mut impl CpuInterface) {
        interface.set_machine_control(self.machine_control);
        let step = 7 - interface.preemption_bits().clamp(5, 7);
        for (mut wide, group1) in self.active_priorities.into_iter().zip([false, true]) {
            let mut words = [0_u32; 4];
            while wide != 0 {
                let bit = wide.trailing_zeros() >> step;
                words[(bit >> 5) as usize & 3] |= 1 << (bit & 31);
                wide &= wide - 1;
            }
            for (n, word) in words.into_iter().enumerate().take(1 << (2 - step)) {
                interface.set_active_priorities(group1, n, word);
            }
        }
    }

    /// The priority of the interrupt that is handled: the highest of the active priorities, or `0xff` if there is none.
    pub(super) fn running(&self) -> u8 {
        let both = self.active_priorities[0] | self.active_priorities[1];
        if both == 0 { 0xff } else { (both.trailing_zeros() << 1) as u8 }
    }
}

/// One group's active priorities, with one bit for each priority of seven bits.
fn widened(interface: &impl CpuInterface, group1: bool) -> u128 {
    let step = 7 - interface.preemption_bits().clamp(5, 7);
    let mut wide = 0;
    for n in 0..1 << (2 - step) {
        let mut word = interface.active_priorities(group1, n);
        while word != 0 {
            wide |= 1 << ((n as u32 * 32 + word.trailing_zeros()) << step);
            word &= word - 1;
        }
    }
    wide
}
