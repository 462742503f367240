// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The distributor's registers, `GICD_*` (Arm IHI 0069H, chapter 12).

use super::Vgic;
use super::deliver::BankId;
use super::effects::{Effects, Here};
use super::frame::Found;
use super::interface::CpuInterface;
use super::intid::VcpuId;
use super::registers::Kind;
use crate::Width;

const CTLR: u32 = 0x0;
const TYPER: u32 = 0x4;
const IIDR: u32 = 0x8;
const CONFIG: u32 = 0xc00;
const ROUTER: u32 = 0x6000;

/// `GICD_CTLR`: affinity routing is always on, and there is one security state.
const ALWAYS: u32 = 1 << 6 | 1 << 4;
/// `GICD_CTLR.RWP`.
const WRITE_PENDING: u32 = 1 << 31;
/// `GICD_IROUTER`: the bits of an affinity. The mode "any vCPU" is not implemented (`GICD_TYPER.No1N`).
const AFFINITY: u64 = 0xff_00ff_ffff;

/// `IIDR`: the product and the implementer.
pub(super) const IMPLEMENTER: u32 = 0x5400_043b;

/// The identification registers from 0xffd0 to 0xffff: those of an Arm component, of version 3 of the architecture.
pub(super) fn identification(offset: u32) -> u64 {
    const BYTES: [u8; 12] = [0x44, 0, 0, 0, 0x92, 0xb4, 0x3b, 0, 0x0d, 0xf0, 0x05, 0xb1];
    BYTES.get((offset.wrapping_sub(0xffd0) / 4) as usize).map_or(0, |&byte| byte.into())
}

/// `GICD_TYPER`: the number of interrupts; INTIDs of 10 bits; affinity 3 may be nonzero; no "any vCPU"; no LPIs, no
/// extended ranges, no messages, one security state. SGIs' range selector if a vCPU's affinity 0 needs it.
pub(super) fn typer(banks: usize, affinities: &[u32]) -> u32 {
    let range_selector = affinities.iter().any(|affinity| affinity & 0xff > 15);
    banks as u32 | 9 << 19 | 1 << 24 | 1 << 25 | u32::from(range_selector) << 26
}

impl Vgic {
    pub(super) fn read_distributor<I: CpuInterface>(
        &self,
        offset: u32,
        width: Width,
        here: &Here<'_, I>,
        request: u64,
    ) -> Found {
        if !is_aligned(offset, width) {
            return Ok(0);
        }
        if let 0x400..0x800 = offset {
            return Ok(shared(offset - 0x400).map_or(0, |bank| self.read_priority(bank, offset & 31, width)));
        }
        if let 0x6100..0x8000 = offset {
            return Ok(self.read_route(offset, width));
        }
        if width != Width::Word {
            return Ok(0);
        }
        Ok(match offset {
            CTLR => {
                let pending = self.vcpus.iter().any(|state| state.unsettled);
                (self.control | ALWAYS | if pending { WRITE_PENDING } else { 0 }).into()
            }
            TYPER => self.typer.into(),
            IIDR => IMPLEMENTER.into(),
            0x80..0x400 => match (Kind::of(offset), shared((offset & 0x7f) * 8)) {
                (Some(kind), Some(bank)) => return self.read_bits(bank, kind, here, request),
                _ => 0,
            },
            CONFIG..0xd00 => {
                let first = (offset - CONFIG) * 4;
                shared(first).map_or(0, |bank| self.read_config(bank, first & 16 != 0))
            }
            0xffd0..0x1_0000 => identification(offset),
            _ => 0,
        })
    }

    pub(super) fn write_distributor<I: CpuInterface>(
        &mut self,
        offset: u32,
        width: Width,
        value: u64,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        if !is_aligned(offset, width) {
            return;
        }
        match offset {
            0x400..0x800 => {
                if let Some(bank) = shared(offset - 0x400) {
                    self.write_priority(bank, offset & 31, width, value, here, effects);
                }
            }
            0x6100..0x8000 => self.write_route(offset, width, value, here, effects),
            _ if width != Width::Word => {}
            CTLR => self.write_control(value as u32 & 3, here, effects),
            0x80..0x400 => {
                if let (Some(kind), Some(bank)) = (Kind::of(offset), shared((offset & 0x7f) * 8)) {
                    self.write_bits(bank, kind, value as u32, here, effects);
                }
            }
            CONFIG..0xd00 => {
                let first = (offset - CONFIG) * 4;
                if let Some(bank) = shared(first) {
                    self.write_config(bank, first & 16 != 0, value as u32, here, effects);
                }
            }
            _ => {}
        }
    }

    fn write_control<I: CpuInterface>(&mut self, value: u32, here: &mut Here<'_, I>, effects: &mut Effects) {
        if value == self.control {
            return;
        }
        let disabled = self.control & !value != 0;
        self.control = value;
        for n in 0..self.spis.len() {
            self.refresh(n);
        }
        for index in 0..self.vcpus.len() {
            let vcpu = VcpuId::from_index(index);
            if here.of(vcpu).is_some() {
                continue;
            }
            let waits = self.has_waiting(vcpu);
            let Some(state) = self.vcpus.get_mut(index) else { continue };
            // What a list register of another CPU holds may be of a group that was disabled.
            let withdraw = disabled && state.loaded && state.slots.used != 0;
            if withdraw {
                state.slots.dirty |= state.slots.used;
                state.unsettled = true;
            }
            if withdraw || waits {
                effects.kick.insert(vcpu);
            }
        }
        if let Some((vcpu, interface)) = here.both() {
            self.arrange(vcpu, interface, effects);
        }
    }

    fn read_route(&self, offset: u32, width: Width) -> u64 {
        let intid = (offset - ROUTER) / 8;
        let route = match shared(intid) {
            Some(BankId::Shared(n)) => self.spis.get(n).map_or(0, |state| state.route[intid as usize & 31]),
            _ => 0,
        };
        let route = u64::from(route >> 24) << 32 | u64::from(route & 0xff_ffff);
        match width {
            Width::Double => route,
            Width::Word if offset & 4 != 0 => route >> 32,
            Width::Word => route & 0xffff_ffff,
            _ => 0,
        }
    }

    fn write_route<I: CpuInterface>(
        &mut self,
        offset: u32,
        width: Width,
        value: u64,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        let old = self.read_route(offset & !7, Width::Double);
        let new = AFFINITY
            & match width {
                Width::Double => value,
                Width::Word if offset & 4 != 0 => old & 0xffff_ffff | value << 32,
                Width::Word => old & !0xffff_ffff | value,
                _ => return,
            };
        let intid = (offset - ROUTER) / 8;
        let Some(bank @ BankId::Shared(n)) = shared(intid) else { return };
        if new == old || n >= self.spis.len() {
            return;
        }
        let index = intid as usize & 31;
        self.touch(bank, 1 << index, here, effects);
        if let Some(state) = self.spis.get_mut(n) {
            state.route[index] = ((new >> 32) as u32 & 0xff) << 24 | new as u32 & 0xff_ffff;
        }
        self.route(n, index);
        self.offer(bank, 1 << index, here, effects);
    }
}

/// An access that is not aligned to its width reads as zero, and writes nothing.
pub(super) const fn is_aligned(offset: u32, width: Width) -> bool {
    offset as u64 & (width.bytes() - 1) == 0
}

/// The bank of an SPI. The private interrupts' registers are the redistributors'.
fn shared(intid: u32) -> Option<BankId> {
    (intid / 32).checked_sub(1).map(|n| BankId::Shared(n as usize))
}
