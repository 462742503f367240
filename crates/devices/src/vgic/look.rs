// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU's interface and one of its PPIs, as they are now: for a caller that decides by itself whether the vCPU would
//! take the PPI.

use super::Vgic;
use super::effects::Here;
use super::interface::{CpuInterface, MachineControl, SavedInterface};
use super::intid::{Intid, VcpuId};
use super::list_register::ListRegister;

/// An interface and a PPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether distributor and interface let group 0 and group 1 through.
    pub groups: [bool; 2],
    /// `ICC_PMR_EL1`.
    pub mask: u8,
    /// `ICC_RPR_EL1`: 0xff if no interrupt is handled.
    pub running: u8,
    /// `ICC_BPR0_EL1`, and `ICC_BPR1_EL1` as a read returns it.
    pub binary_point: [u8; 2],
    /// The PPI is of group 1.
    pub is_group1: bool,
    /// It is enabled.
    pub is_enabled: bool,
    /// It is pending.
    pub is_pending: bool,
    /// It is active.
    pub is_active: bool,
    /// Its priority.
    pub priority: u8,
}

impl Vgic {
    /// The interface of a vCPU, and its interrupt `ppi`. The vCPU is loaded here, or not loaded. `None` if there is no such
    /// vCPU, or the interrupt is shared.
    #[must_use]
    pub fn look_at<I: CpuInterface>(&self, vcpu: VcpuId, ppi: Intid, here: &Here<'_, I>) -> Option<Look> {
        let state = self.vcpus.get(vcpu.index()).filter(|_| !ppi.is_shared())?;
        let (bank, bit, index) = (&state.private, ppi.bit(), ppi.index() & 31);
        let interface = here.peek(vcpu);
        let saved = interface.map_or(state.saved, |interface| SavedInterface::read(interface));
        let machine = MachineControl(saved.machine_control);
        let register = interface.filter(|_| bank.resident & bit != 0).map_or(ListRegister::default(), |interface| {
            ListRegister::from_raw(interface.list_register(bank.slot[index].into()))
        });
        Some(Look {
            groups: [false, true]
                .map(|group1| machine.is_enabled(group1) && self.control >> u32::from(group1) & 1 == 1),
            mask: machine.mask(),
            running: saved.running(),
            binary_point: machine.binary_points(),
            is_group1: bank.group1 & bit != 0,
            is_enabled: bank.enabled & bit != 0,
            is_pending: bank.pending() & bit != 0 || register.is_pending(),
            is_active: bank.active & bit != 0 || register.is_active(),
            priority: bank.priority[index],
        })
    }
}
