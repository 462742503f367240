// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A redistributor's registers, `GICR_*` (Arm IHI 0069H, chapter 12).

use super::Vgic;
use super::deliver::BankId;
use super::distributor::{IMPLEMENTER, identification, is_aligned};
use super::effects::{Effects, Here};
use super::frame::Found;
use super::interface::CpuInterface;
use super::intid::VcpuId;
use super::registers::Kind;
use crate::Width;

const CTLR: u32 = 0x0;
const IIDR: u32 = 0x4;
const TYPER: u32 = 0x8;
const WAKER: u32 = 0x14;
/// The second frame, `SGI_base`.
const SGI: u32 = 0x1_0000;

/// `GICR_CTLR.RWP`.
const WRITE_PENDING: u64 = 1 << 3;

impl Vgic {
    pub(super) fn read_redistributor<I: CpuInterface>(
        &self,
        vcpu: VcpuId,
        offset: u32,
        width: Width,
        here: &Here<'_, I>,
        request: u64,
    ) -> Found {
        let Some(state) = self.vcpus.get(vcpu.index()) else { return Ok(0) };
        if !is_aligned(offset, width) {
            return Ok(0);
        }
        let bank = BankId::Private(vcpu);
        match offset.wrapping_sub(SGI) {
            inner @ 0x400..0x420 => return Ok(self.read_priority(bank, inner & 31, width)),
            inner @ 0x80..0x400 if inner & 0x7f == 0 && width == Width::Word => {
                return Kind::of(inner).map_or(Ok(0), |kind| self.read_bits(bank, kind, here, request));
            }
            inner @ (0xc00 | 0xc04) if width == Width::Word => return Ok(self.read_config(bank, inner == 0xc04)),
            _ => {}
        }
        let last = vcpu.index() + 1 == self.vcpus.len();
        let typer = u64::from(state.affinity) << 32 | (vcpu.index() as u64) << 8 | u64::from(last) << 4;
        Ok(match (offset, width) {
            (TYPER, Width::Double) => typer,
            (TYPER, Width::Word) => typer & 0xffff_ffff,
            (0xc, Width::Word) => typer >> 32,
            (CTLR, Width::Word) if state.unsettled => WRITE_PENDING,
            (IIDR, Width::Word) => IMPLEMENTER.into(),
            (WAKER, Width::Word) if state.asleep => 6,
            (0xffd0..SGI, Width::Word) => identification(offset),
            _ => 0,
        })
    }

    pub(super) fn write_redistributor<I: CpuInterface>(
        &mut self,
        vcpu: VcpuId,
        offset: u32,
        width: Width,
        value: u64,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        if vcpu.index() >= self.vcpus.len() || !is_aligned(offset, width) {
            return;
        }
        let bank = BankId::Private(vcpu);
        match offset.wrapping_sub(SGI) {
            inner @ 0x400..0x420 => self.write_priority(bank, inner & 31, width, value, here, effects),
            _ if width != Width::Word => {}
            inner @ 0x80..0x400 if inner & 0x7f == 0 => {
                if let Some(kind) = Kind::of(inner) {
                    self.write_bits(bank, kind, value as u32, here, effects);
                }
            }
            0xc04 => self.write_config(bank, true, value as u32, here, effects),
            _ if offset == WAKER => {
                // It never withholds an interrupt: ChildrenAsleep only follows ProcessorSleep.
                if let Some(state) = self.vcpus.get_mut(vcpu.index()) {
                    state.asleep = value & 2 != 0;
                }
            }
            _ => {}
        }
    }
}
