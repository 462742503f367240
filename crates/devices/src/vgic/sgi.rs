// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interrupts that vCPUs send to each other.

use super::Vgic;
use super::effects::{Effects, Here};
use super::interface::CpuInterface;
use super::intid::{VcpuId, bits};

/// The register by which a vCPU sent an SGI. The guest's write traps, because `HCR_EL2` routes interrupts to EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgiRegister {
    /// `ICC_SGI1R_EL1`: an SGI of group 1.
    Group1,
    /// `ICC_SGI0R_EL1`: an SGI of group 0.
    Group0,
    /// `ICC_ASGI1R_EL1`: an SGI of Secure group 1, which a distributor with `GICD_CTLR.DS` treats as group 0.
    Alias,
}

impl Vgic {
    /// `from` wrote `value` to a register that sends an SGI (Arm IHI 0069H, `ICC_SGI1R_EL1`).
    ///
    /// A target gets it only if the SGI belongs to the register's group there. A target that does not exist is ignored.
    pub fn send<I: CpuInterface>(
        &mut self,
        from: VcpuId,
        register: SgiRegister,
        value: u64,
        here: &mut Here<'_, I>,
    ) -> Effects {
        let mut effects = Effects::default();
        let bit = 1_u32 << (value >> 24 & 15);
        let group1 = register == SgiRegister::Group1;
        if value >> 40 & 1 == 1 {
            for index in 0..self.vcpus.len() {
                if index != from.index() {
                    self.receive(index, bit, group1, here, &mut effects);
                }
            }
            return effects;
        }
        let cluster = (value >> 48 & 0xff) << 24 | (value >> 32 & 0xff) << 16 | (value >> 16 & 0xff) << 8;
        let first = cluster as u32 | (((value >> 44) & 15) as u32) << 4;
        for n in bits(value as u32 & 0xffff) {
            if let Some(index) = self.find(first + n as u32) {
                self.receive(index, bit, group1, here, &mut effects);
            }
        }
        effects
    }

    /// The vCPU with an affinity (Aff3.Aff2.Aff1.Aff0).
    pub(super) fn find(&self, affinity: u32) -> Option<usize> {
        // The usual numbering: 16 in a cluster.
        let guess = (affinity >> 4 & 0xf0 | affinity & 15) as usize;
        if self.vcpus.get(guess).is_some_and(|state| state.affinity == affinity) {
            return Some(guess);
        }
        self.vcpus.iter().position(|state| state.affinity == affinity)
    }

    fn receive<I: CpuInterface>(
        &mut self,
        index: usize,
        bit: u32,
        group1: bool,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        let vcpu = VcpuId::from_index(index);
        let Some(state) = self.vcpus.get_mut(index) else { return };
        let bank = &mut state.private;
        if (bank.group1 & bit != 0) != group1 {
            return;
        }
        let Some(interface) = here.of(vcpu) else {
            bank.pend(bit);
            if bank.resident & bit != 0 {
                state.slots.dirty |= 1 << (bank.slot[bit.trailing_zeros() as usize & 31] & 15);
                effects.kick.insert(vcpu);
            } else if bank.waiting(self.control) & bit != 0 {
                effects.kick.insert(vcpu);
            }
            return;
        };
        if bank.resident & bit != 0 {
            let slot = usize::from(bank.slot[bit.trailing_zeros() as usize & 31]);
            if interface.empty() >> slot & 1 == 1 {
                self.retire_all(vcpu, 1 << (slot & 15), effects);
            } else {
                self.settle(vcpu, interface, effects);
                self.take(vcpu, slot, interface, effects);
            }
        }
        if let Some(state) = self.vcpus.get_mut(index) {
            state.private.pend(bit);
        }
        self.fill(vcpu, interface, effects);
    }
}
