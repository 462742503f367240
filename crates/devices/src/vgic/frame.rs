// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which register an address is, and the accesses of the guest.

use twofold_abi::virt;

use super::Vgic;
use super::effects::{Effects, Here, Read, Retry};
use super::interface::CpuInterface;
use super::intid::VcpuId;
use crate::Width;

/// A place in the interrupt controller's registers. Its tag is as wide as an offset, so that it is copied by words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Frame {
    /// An offset in the distributor.
    Distributor(u32),
    /// An offset in a vCPU's redistributor: `RD_base`, and from 64 KiB `SGI_base`.
    Redistributor(VcpuId, u32),
}

impl Frame {
    /// The place of a guest's intermediate physical address, in the memory map of [`twofold_abi::virt`]. `None` if it is
    /// not the interrupt controller's. A redistributor that the guest does not have is not its either.
    #[must_use]
    #[inline]
    pub fn locate(ipa: u64, vcpus: usize) -> Option<Self> {
        let offset = ipa.wrapping_sub(virt::GICD_BASE);
        if offset < virt::GICD_SIZE {
            return Some(Self::Distributor(offset as u32));
        }
        let offset = ipa.wrapping_sub(virt::GICR_BASE);
        let (index, offset) = (offset / virt::GICR_SIZE, (offset % virt::GICR_SIZE) as u32);
        if index >= vcpus as u64 {
            return None;
        }
        Some(Self::Redistributor(VcpuId::new(index as u32)?, offset))
    }
}

/// What a register holds, or the vCPUs whose CPUs know it.
pub(super) type Found = Result<u64, super::VcpuSet>;

impl Vgic {
    /// The guest reads. What is reserved, unaligned, or of a width that the register does not have, reads as zero.
    pub fn read<I: CpuInterface>(&mut self, frame: Frame, width: Width, here: &mut Here<'_, I>) -> Read {
        match self.look(frame, width, here, u64::MAX) {
            Ok(value) => Read::Value(value),
            Err(vcpus) => {
                self.requests += 1;
                self.ask(Retry { vcpus, request: self.requests, frame, width })
            }
        }
    }

    /// The guest's read, after the vCPUs that it waited for have synchronized.
    pub fn retry<I: CpuInterface>(&mut self, retry: Retry, here: &mut Here<'_, I>) -> Read {
        match self.look(retry.frame, retry.width, here, retry.request) {
            Ok(value) => Read::Value(value),
            Err(vcpus) => self.ask(Retry { vcpus, ..retry }),
        }
    }

    fn ask(&mut self, retry: Retry) -> Read {
        for vcpu in retry.vcpus.iter() {
            if let Some(state) = self.vcpus.get_mut(vcpu.index()) {
                state.wanted = true;
            }
        }
        Read::Elsewhere(retry)
    }

    fn look<I: CpuInterface>(&self, frame: Frame, width: Width, here: &Here<'_, I>, request: u64) -> Found {
        match frame {
            Frame::Distributor(offset) => self.read_distributor(offset, width, here, request),
            Frame::Redistributor(vcpu, offset) => self.read_redistributor(vcpu, offset, width, here, request),
        }
    }

    /// The guest writes. What is reserved, unaligned, or of a width that the register does not have, is ignored.
    pub fn write<I: CpuInterface>(
        &mut self,
        frame: Frame,
        width: Width,
        value: u64,
        here: &mut Here<'_, I>,
    ) -> Effects {
        let value = value & width.mask();
        let mut effects = Effects::default();
        match frame {
            Frame::Distributor(offset) => self.write_distributor(offset, width, value, here, &mut effects),
            Frame::Redistributor(vcpu, offset) => {
                self.write_redistributor(vcpu, offset, width, value, here, &mut effects);
            }
        }
        effects
    }

    /// The guest's write of `ICC_DIR_EL1`, which traps ([`control::TDIR`](super::control::TDIR)): the interrupt is
    /// inactive. It is ignored with EOImode 0, as is an INTID that does not exist.
    pub fn deactivate<I: CpuInterface>(&mut self, vcpu: VcpuId, intid: u32, here: &mut Here<'_, I>) -> Effects {
        let mut effects = Effects::default();
        let split = here
            .of(vcpu)
            .is_some_and(|interface| super::interface::MachineControl(interface.machine_control()).is_split());
        let Some(intid) = super::Intid::new(intid).filter(|_| split) else { return effects };
        let bank = match intid.bank().checked_sub(1) {
            None => super::BankId::Private(vcpu),
            Some(n) => super::BankId::Shared(n),
        };
        self.touch(bank, intid.bit(), here, &mut effects);
        let Some(state) = self.bank_mut(bank) else { return effects };
        let released = state.deactivate(intid.bit());
        self.deactivate_physical(bank, released, here, &mut effects);
        self.offer(bank, intid.bit(), here, &mut effects);
        effects
    }
}
