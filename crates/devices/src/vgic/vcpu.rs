// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the vGIC keeps of one vCPU: its private interrupts, and what its list registers hold while it is loaded.

extern crate alloc;

use alloc::vec::Vec;

use super::bank::Bank;
use super::interface::{CpuInterface, MOST_LIST_REGISTERS, SavedInterface, control};
use super::intid::{Intid, VcpuId};
use super::list_register::ListRegister;

/// One vCPU.
#[derive(Debug)]
pub(super) struct Vcpu {
    /// Aff3.Aff2.Aff1.Aff0, as in `GICR_TYPER`.
    pub affinity: u32,
    pub private: Bank,
    /// Which SPIs of each bank are routed here.
    pub routed: Vec<u32>,
    /// `GICR_WAKER.ProcessorSleep`.
    pub asleep: bool,
    /// Meaningful while it is not loaded.
    pub saved: SavedInterface,
    pub loaded: bool,
    pub slots: Slots,
    /// Physical interrupts that have to be deactivated on the CPU where it is loaded.
    pub owed: u32,
    /// A write that disables an interrupt waits for its CPU.
    pub unsettled: bool,
    /// A reader waits for this copy of the list registers.
    pub wanted: bool,
    /// The last request that `published` answers.
    pub answered: u64,
    pub published: [u64; MOST_LIST_REGISTERS],
}

impl Vcpu {
    pub fn new(affinity: u32, banks: usize) -> Self {
        Self {
            affinity,
            // SGIs are edge-triggered, and PPIs are level-sensitive until the guest changes that.
            private: Bank::new(0xffff),
            routed: alloc::vec![0; banks],
            asleep: true,
            saved: SavedInterface::RESET,
            loaded: false,
            slots: Slots::new(),
            owed: 0,
            unsettled: false,
            wanted: false,
            answered: 0,
            published: [0; MOST_LIST_REGISTERS],
        }
    }
}

impl Vcpu {
    /// D3: a private interrupt goes into a list register.
    #[inline]
    pub fn place<I: CpuInterface>(
        &mut self,
        vcpu: VcpuId,
        index: usize,
        slot: usize,
        physical: u16,
        interface: &mut I,
    ) {
        let intid = Intid::from_parts(0, index);
        let register = self.private.place(index, vcpu, slot, ListRegister::pending(intid), physical);
        self.slots.fill(slot, intid, register);
        interface.set_list_register(slot, register.raw());
    }
}

impl Vcpu {
    /// As [`place`](Self::place), of the interrupt with this bit, whose line is low, into the first list register, while
    /// all of them are empty. No physical interrupt is active for it, and its end needs no maintenance interrupt.
    #[inline(always)]
    pub fn place_latched<I: CpuInterface>(&mut self, vcpu: VcpuId, bit: u32, interface: &mut I) {
        let index = bit.trailing_zeros() as usize & 31;
        let register = self.private.place_latched(index, vcpu, ListRegister::pending(Intid::from_parts(0, index)));
        self.slots.fill_first(index);
        interface.set_list_register(0, register.raw());
    }

    /// S3, if only the first list register was written, with a private interrupt, while no physical interrupt is active for
    /// one of those: so there is none to deactivate. Returns `false`, and does nothing, if it is otherwise, or if the guest
    /// has not ended it.
    #[inline(always)]
    pub fn retire_first(&mut self, interface: &impl CpuInterface) -> bool {
        let bank = &mut self.private;
        let is_plain = self.slots.used == 1 && bank.resident != 0 && bank.activate | bank.deactivate == 0;
        let is_empty = is_plain && interface.empty() & 1 != 0;
        if is_empty {
            (bank.resident, bank.placed, self.slots.used) = (0, 0, 0);
        }
        is_empty
    }
}

/// What the list registers hold. Each mask has one bit for each list register.
#[derive(Debug)]
pub(super) struct Slots {
    pub count: usize,
    /// Written with an interrupt, and not yet taken out again. The guest may have deactivated it since.
    pub used: u16,
    /// Its deactivation asserts the maintenance interrupt.
    pub armed: u16,
    /// Its deactivation deactivates the physical interrupt.
    pub hardware: u16,
    /// To be taken out at the next [sync](super::Vgic::sync), because its interrupt changed in memory.
    pub dirty: u16,
    intid: [u16; MOST_LIST_REGISTERS],
    /// More interrupts wait than list registers can hold.
    pub overflow: bool,
    /// Interrupts that the guest handles may be in no list register, so `EOIcount` counts their ends. Kept while the vCPU
    /// is not loaded; conservative: the first end that finds none corrects it.
    pub outside: bool,
    /// `ICH_HCR_EL2` as it was last written, without `EOIcount`.
    pub control: u64,
}

impl Slots {
    const fn new() -> Self {
        Self {
            count: 1,
            used: 0,
            armed: 0,
            hardware: 0,
            dirty: 0,
            intid: [0; MOST_LIST_REGISTERS],
            overflow: false,
            outside: false,
            control: control::ALWAYS,
        }
    }

    /// A CPU with `count` list registers has the vCPU. They are empty.
    pub const fn clear(&mut self, count: usize) {
        *self = Self { outside: self.outside, ..Self::new() };
        self.count = if count == 0 {
            1
        } else if count > MOST_LIST_REGISTERS {
            MOST_LIST_REGISTERS
        } else {
            count
        };
    }

    const fn all(&self) -> u16 {
        (u32::MAX >> (32 - self.count)) as u16
    }

    /// The list registers that hold nothing.
    pub const fn free(&self) -> u16 {
        self.all() & !self.used
    }

    /// The interrupt that a list register holds.
    pub const fn intid(&self, slot: usize) -> Intid {
        let intid = self.intid[slot & 15];
        Intid::from_parts(intid as usize / 32, intid as usize % 32)
    }

    /// A list register was written.
    pub const fn fill(&mut self, slot: usize, intid: Intid, register: ListRegister) {
        let bit = 1 << (slot & 15);
        self.intid[slot & 15] = intid.raw() as u16;
        self.used |= bit;
        self.dirty &= !bit;
        self.armed = if register.has_maintenance() { self.armed | bit } else { self.armed & !bit };
        self.hardware = if register.physical().is_some() { self.hardware | bit } else { self.hardware & !bit };
    }

    /// The first list register was written with a private interrupt, and the others hold nothing.
    pub const fn fill_first(&mut self, index: usize) {
        self.intid[0] = index as u16;
        self.used = 1;
    }

    /// What a list register held was taken out.
    pub const fn release(&mut self, slot: usize) {
        let bit = 1 << (slot & 15);
        self.used &= !bit;
        self.dirty &= !bit;
        self.armed &= !bit;
    }
}
