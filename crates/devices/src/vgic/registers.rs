// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers that the distributor and each redistributor have in the same form: a fixed number of bits for each interrupt.

use super::Vgic;
use super::bank::PRIORITY_BITS;
use super::deliver::BankId;
use super::effects::{Effects, Here};
use super::frame::Found;
use super::interface::{CpuInterface, control};
use super::intid::{VcpuId, VcpuSet, bits};
use super::list_register::ListRegister;
use crate::Width;

/// A register of one bit for each interrupt, by its offset (Arm IHI 0069H, chapter 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Group,
    SetEnable,
    ClearEnable,
    SetPending,
    ClearPending,
    SetActive,
    ClearActive,
}

impl Kind {
    /// The registers from 0x80 to 0x3ff.
    pub const fn of(offset: u32) -> Option<Self> {
        Some(match offset >> 7 {
            1 => Self::Group,
            2 => Self::SetEnable,
            3 => Self::ClearEnable,
            4 => Self::SetPending,
            5 => Self::ClearPending,
            6 => Self::SetActive,
            7 => Self::ClearActive,
            _ => return None,
        })
    }
}

impl Vgic {
    pub(super) fn read_bits<I: CpuInterface>(
        &self,
        bank: BankId,
        kind: Kind,
        here: &Here<'_, I>,
        request: u64,
    ) -> Found {
        let Some(state) = self.bank(bank) else { return Ok(0) };
        let word = match kind {
            Kind::Group => state.group1,
            Kind::SetEnable | Kind::ClearEnable => state.enabled,
            Kind::SetPending | Kind::ClearPending => self.states(bank, here, request)?[0],
            Kind::SetActive | Kind::ClearActive => self.states(bank, here, request)?[1],
        };
        Ok(word.into())
    }

    /// Pending and active, list registers included. `request`: what other CPUs have published for it counts.
    fn states<I: CpuInterface>(&self, bank: BankId, here: &Here<'_, I>, request: u64) -> Result<[u32; 2], VcpuSet> {
        let Some(state) = self.bank(bank) else { return Ok([0; 2]) };
        let (mut pending, mut active, mut missing) = (state.pending(), state.active, VcpuSet::EMPTY);
        // While a physical interrupt is active for the guest, only the CPU of its vCPU sees the line change.
        if let BankId::Private(vcpu) = bank
            && state.held != 0
            && here.peek(vcpu).is_none()
            && self.vcpus.get(vcpu.index()).is_some_and(|vcpu| vcpu.loaded && vcpu.answered < request)
        {
            missing.insert(vcpu);
        }
        for index in bits(state.resident) {
            let bit = 1_u32 << index;
            let (home, slot) = (VcpuId::from_index(state.home[index & 31].into()), usize::from(state.slot[index & 31]));
            let Some(vcpu) = self.vcpus.get(home.index()) else { continue };
            let raw = match here.peek(home) {
                Some(interface) => interface.list_register(slot),
                None if vcpu.answered >= request => vcpu.published[slot & 15],
                None => {
                    missing.insert(home);
                    continue;
                }
            };
            let register = ListRegister::from_raw(raw);
            if register.is_pending() {
                pending |= state.placed & bit;
            }
            if register.is_active() {
                active |= bit;
            }
            active = (active | state.activate & bit) & !(state.deactivate & bit);
        }
        // An end may be counted, and not yet settled.
        for index in bits(state.active & state.acknowledged) {
            let handler = VcpuId::from_index(state.handler[index & 31].into());
            let Some(vcpu) = self.vcpus.get(handler.index()).filter(|vcpu| vcpu.loaded) else { continue };
            let settled = match here.peek(handler) {
                Some(interface) => interface.control() >> control::EOI_COUNT & 31 == 0,
                None => vcpu.answered >= request,
            };
            if !settled {
                missing.insert(handler);
            }
        }
        if missing.is_empty() { Ok([pending, active]) } else { Err(missing) }
    }

    pub(super) fn write_bits<I: CpuInterface>(
        &mut self,
        bank: BankId,
        kind: Kind,
        value: u32,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        let Some(state) = self.bank(bank) else { return };
        let changed = match kind {
            Kind::Group => value ^ state.group1,
            Kind::SetEnable => value & !state.enabled,
            Kind::ClearEnable => value & state.enabled,
            _ => value,
        };
        if changed == 0 {
            return;
        }
        // What the guest ended before its write ends first.
        if matches!(kind, Kind::SetActive | Kind::ClearActive)
            && let Some((vcpu, interface)) = here.both()
        {
            self.settle(vcpu, interface, effects);
        }
        // What is enabled now was in no list register as pending.
        if kind != Kind::SetEnable {
            self.touch(bank, changed, here, effects);
        }
        if kind == Kind::ClearEnable {
            self.unsettle(bank, changed);
        }
        let mut released = 0;
        let Some(state) = self.bank_mut(bank) else { return };
        match kind {
            Kind::Group => state.group1 ^= changed,
            Kind::SetEnable => state.enabled |= changed,
            Kind::ClearEnable => state.enabled &= !changed,
            Kind::SetPending => state.pend(changed),
            Kind::ClearPending => state.unpend(changed),
            Kind::SetActive => state.activate(changed),
            Kind::ClearActive => released = state.deactivate(changed),
        }
        self.deactivate_physical(bank, released, here, effects);
        self.offer(bank, changed, here, effects);
    }

    /// Interrupts that other CPUs still have in list registers were disabled: RWP is set until these CPUs have taken
    /// them out.
    fn unsettle(&mut self, bank: BankId, mask: u32) {
        let Some(resident) = self.bank(bank).map(|state| state.resident & mask) else { return };
        for index in bits(resident) {
            let home = self.bank(bank).map(|state| state.home[index & 31]);
            if let Some(vcpu) = home.and_then(|home| self.vcpus.get_mut(usize::from(home))) {
                vcpu.unsettled = true;
            }
        }
    }

    /// `IPRIORITYR`: bytes and words.
    pub(super) fn read_priority(&self, bank: BankId, first: u32, width: Width) -> u64 {
        let Some(state) = self.bank(bank) else { return 0 };
        let byte = |n: u32| u64::from(state.priority[(first + n) as usize & 31]);
        match width {
            Width::Byte => byte(0),
            Width::Word => byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24,
            _ => 0,
        }
    }

    pub(super) fn write_priority<I: CpuInterface>(
        &mut self,
        bank: BankId,
        first: u32,
        width: Width,
        value: u64,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        if !matches!(width, Width::Byte | Width::Word) {
            return;
        }
        let Some(state) = self.bank(bank) else { return };
        let bytes = value.to_le_bytes();
        let mut changed = 0;
        for n in 0..width.bytes() as usize {
            let index = (first as usize + n) & 31;
            if state.priority[index] != bytes[n & 7] & PRIORITY_BITS {
                changed |= 1_u32 << index;
            }
        }
        if changed == 0 {
            return;
        }
        self.touch(bank, changed, here, effects);
        let Some(state) = self.bank_mut(bank) else { return };
        for n in 0..width.bytes() as usize {
            state.priority[(first as usize + n) & 31] = bytes[n & 7] & PRIORITY_BITS;
        }
        self.offer(bank, changed, here, effects);
    }

    /// `ICFGR`: two bits for each of 16 interrupts, of which the higher says edge.
    pub(super) fn read_config(&self, bank: BankId, high: bool) -> u64 {
        let Some(state) = self.bank(bank) else { return 0 };
        let mut word = 0;
        for index in bits(state.edge >> if high { 16 } else { 0 } & 0xffff) {
            word |= 2 << (2 * index);
        }
        word
    }

    pub(super) fn write_config<I: CpuInterface>(
        &mut self,
        bank: BankId,
        high: bool,
        value: u32,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        let Some(state) = self.bank(bank) else { return };
        let mut edge = 0;
        for index in bits(value & 0xaaaa_aaaa) {
            edge |= 1_u32 << (index / 2 + if high { 16 } else { 0 });
        }
        // SGIs are always edge-triggered, and linked PPIs always level-sensitive.
        let fixed = state.linked | if matches!(bank, BankId::Private(_)) { 0xffff } else { 0 };
        let changed = (edge ^ state.edge) & if high { 0xffff_0000 } else { 0xffff } & !fixed;
        if changed == 0 {
            return;
        }
        self.touch(bank, changed, here, effects);
        if let Some(state) = self.bank_mut(bank) {
            state.edge ^= changed;
        }
        self.offer(bank, changed, here, effects);
    }
}
