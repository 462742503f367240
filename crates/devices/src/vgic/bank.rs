// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of 32 interrupts, as words with one bit for each: a register of the guest is one word.

use super::effects::Effects;
use super::intid::{VcpuId, bits};
use super::list_register::ListRegister;

/// No vCPU.
pub(super) const NONE: u8 = 0xff;
/// The bits of a priority that are implemented: five, which is what each CPU's list registers have at least.
pub(super) const PRIORITY_BITS: u8 = 0xf8;

/// 32 interrupts.
///
/// An interrupt is *resident* while a list register holds it. Then the list register has its pending and active state,
/// and the words here mean what came after it was placed:
///
/// | word | not resident | resident |
/// |---|---|---|
/// | `latch` | the pending latch | pended again since |
/// | `placed` | 0 | the latch that went into the list register; cleared if the guest takes it back |
/// | `active` | active | 0 |
/// | `activate`, `deactivate` | 0 | to be made active, inactive, when it is next taken out |
/// | `line` | the input | the input |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bank {
    pub enabled: u32,
    pub group1: u32,
    pub edge: u32,
    pub line: u32,
    pub latch: u32,
    pub active: u32,
    /// The guest acknowledged it, and its EOI is to come, but no list register holds it.
    pub acknowledged: u32,
    /// Its group when it was acknowledged.
    pub acknowledged_group1: u32,
    pub resident: u32,
    pub placed: u32,
    pub activate: u32,
    pub deactivate: u32,
    /// Linked to a physical interrupt.
    pub linked: u32,
    /// The physical interrupt is active on behalf of this one, and cannot fire again until this one is deactivated.
    pub held: u32,
    pub priority: [u8; 32],
    /// Its priority when it was acknowledged.
    pub acknowledged_priority: [u8; 32],
    /// The vCPU that acknowledged it.
    pub handler: [u8; 32],
    /// The vCPU that has it in a list register, and which.
    pub home: [u8; 32],
    pub slot: [u8; 32],
}

impl Bank {
    pub const fn new(edge: u32) -> Self {
        Self {
            enabled: 0,
            group1: 0,
            edge,
            line: 0,
            latch: 0,
            active: 0,
            acknowledged: 0,
            acknowledged_group1: 0,
            resident: 0,
            placed: 0,
            activate: 0,
            deactivate: 0,
            linked: 0,
            held: 0,
            priority: [0; 32],
            acknowledged_priority: [0; 32],
            handler: [NONE; 32],
            home: [NONE; 32],
            slot: [0; 32],
        }
    }

    /// Pending, as far as memory knows.
    pub const fn pending(&self) -> u32 {
        self.latch | self.line & !self.edge
    }

    /// Interrupts that wait for a list register, of the groups that `control` (`GICD_CTLR`) enables.
    pub const fn waiting(&self, control: u32) -> u32 {
        self.pending() & self.may_wait(control)
    }

    /// As [`waiting`](Self::waiting), while no line is high.
    pub const fn waiting_latched(&self, control: u32) -> u32 {
        self.latch & self.may_wait(control)
    }

    /// What waits if it is pending.
    const fn may_wait(&self, control: u32) -> u32 {
        let group0 = if control & 1 != 0 { !self.group1 } else { 0 };
        let group1 = if control & 2 != 0 { self.group1 } else { 0 };
        self.enabled & !self.active & !self.resident & (group0 | group1)
    }

    /// The input changes.
    pub const fn drive(&mut self, bit: u32, asserted: bool) {
        if asserted {
            if self.line & bit == 0 {
                self.latch |= self.edge & bit;
            }
            self.line |= bit;
        } else {
            self.line &= !bit;
        }
    }

    /// The guest's ISPENDR.
    pub const fn pend(&mut self, mask: u32) {
        self.latch |= mask;
    }

    /// The guest's ICPENDR.
    pub const fn unpend(&mut self, mask: u32) {
        self.latch &= !mask;
        self.placed &= !mask;
    }

    /// The guest's ISACTIVER.
    pub const fn activate(&mut self, mask: u32) {
        self.active |= mask & !self.resident;
        self.activate |= mask & self.resident;
        self.deactivate &= !mask;
    }

    /// The guest's ICACTIVER, or a deactivation that names the interrupt.
    ///
    /// Returns those whose physical interrupt is not held any more.
    pub const fn deactivate(&mut self, mask: u32) -> u32 {
        let ended = mask & self.active;
        self.active &= !mask;
        self.deactivate |= mask & self.resident;
        self.activate &= !mask;
        self.release(ended)
    }

    /// These interrupts are inactive now: their physical ones may fire again. Returns those that software has to
    /// deactivate.
    const fn release(&mut self, ended: u32) -> u32 {
        let released = ended & self.held;
        self.held &= !released;
        released
    }

    /// These interrupts ended while their vCPU is loaded: a line that is still asserted fires again.
    const fn end(&mut self, ended: u32) -> u32 {
        let released = self.release(ended);
        self.line &= !released;
        released
    }

    /// The content of a list register for an interrupt that waits. It is resident from here on.
    pub fn place(
        &mut self,
        index: usize,
        vcpu: VcpuId,
        slot: usize,
        plain: ListRegister,
        physical: u16,
    ) -> ListRegister {
        let bit = 1_u32 << index;
        let register = plain.with_priority(self.priority[index & 31], self.group1 & bit != 0);
        self.placed = self.placed & !bit | self.latch & bit;
        self.latch &= !bit;
        self.reside(index, vcpu, slot);
        if self.held & bit != 0 {
            register.with_physical(physical)
        } else if self.line & !self.edge & bit != 0 {
            register.with_maintenance()
        } else {
            register
        }
    }

    /// As [`place`](Self::place), into list register 0, while no line is high and nothing is held.
    #[inline(always)]
    pub fn place_latched(&mut self, index: usize, vcpu: VcpuId, plain: ListRegister) -> ListRegister {
        let bit = 1_u32 << (index & 31);
        self.placed |= bit;
        self.latch &= !bit;
        self.reside(index, vcpu, 0);
        plain.with_priority(self.priority[index & 31], self.group1 & bit != 0)
    }

    /// The content of a list register for an interrupt that was acknowledged, and taken out of one.
    pub fn place_active(
        &mut self,
        index: usize,
        vcpu: VcpuId,
        slot: usize,
        plain: ListRegister,
        physical: u16,
    ) -> ListRegister {
        let bit = 1_u32 << index;
        let register = plain.with_priority(self.acknowledged_priority[index & 31], self.acknowledged_group1 & bit != 0);
        self.active &= !bit;
        self.acknowledged &= !bit;
        self.reside(index, vcpu, slot);
        if self.held & !self.latch & bit != 0 {
            register.with_physical(physical)
        } else if self.pending() & bit != 0 {
            register.with_maintenance()
        } else {
            register
        }
    }

    const fn reside(&mut self, index: usize, vcpu: VcpuId, slot: usize) {
        self.resident |= 1 << index;
        self.home[index & 31] = vcpu.byte();
        self.slot[index & 31] = slot as u8;
    }

    /// Its list register is empty: the guest has deactivated it. `by_hardware`: and so the physical interrupt.
    pub const fn retire(&mut self, index: usize, by_hardware: bool, effects: &mut Effects) {
        let bit = 1_u32 << index;
        self.resident &= !bit;
        self.placed &= !bit;
        let released = self.end(bit);
        if !by_hardware {
            effects.deactivate |= released;
        }
        self.late(bit, effects);
    }

    /// Its list register was read and cleared.
    /// `counts`: `EOIcount` counts its end from here on.
    pub fn leave(&mut self, index: usize, vcpu: VcpuId, register: ListRegister, counts: bool, effects: &mut Effects) {
        let bit = 1_u32 << index;
        if !register.is_pending() && !register.is_active() {
            return self.retire(index, register.physical().is_some(), effects);
        }
        self.resident &= !bit;
        if register.is_pending() {
            self.latch |= self.placed & bit;
        }
        self.placed &= !bit;
        if register.is_active() {
            self.active |= bit;
        }
        if counts {
            self.acknowledged |= bit;
            let group1 = if register.is_group1() { bit } else { 0 };
            self.acknowledged_group1 = self.acknowledged_group1 & !bit | group1;
            self.acknowledged_priority[index & 31] = register.priority();
            self.handler[index & 31] = vcpu.byte();
        }
        self.late(bit, effects);
        // The line fell while the list register was another CPU's.
        let idle = bit & self.held & !self.line & !self.active;
        effects.deactivate |= self.end(idle);
    }

    /// Applies what the guest wrote while the list register was another CPU's.
    const fn late(&mut self, bit: u32, effects: &mut Effects) {
        if (self.activate | self.deactivate) & bit == 0 {
            return;
        }
        self.active |= self.activate & bit;
        self.activate &= !bit;
        let ended = self.active & self.deactivate & bit;
        self.deactivate &= !bit;
        self.active &= !ended;
        effects.deactivate |= self.end(ended);
    }

    /// Of the acknowledged ones of `vcpu`, the one with the highest priority.
    pub fn first_acknowledged(&self, vcpu: VcpuId) -> Option<(u8, usize)> {
        let mine = bits(self.acknowledged).filter(|&index| self.handler[index & 31] == vcpu.byte());
        mine.map(|index| (self.acknowledged_priority[index & 31], index)).min()
    }

    /// `vcpu` will not end what it acknowledged.
    pub fn forget(&mut self, vcpu: VcpuId) {
        for index in bits(self.acknowledged) {
            if self.handler[index & 31] == vcpu.byte() {
                self.acknowledged &= !(1 << index);
            }
        }
    }

    /// The guest's EOI of an interrupt that no list register held.
    pub const fn end_of_interrupt(&mut self, index: usize, effects: &mut Effects) {
        let bit = 1_u32 << index;
        self.acknowledged &= !bit;
        let ended = self.active & bit;
        self.active &= !bit;
        effects.deactivate |= self.end(ended);
    }
}
