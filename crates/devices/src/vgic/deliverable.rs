// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Can a vCPU take an interrupt?

use super::bank::Bank;
use super::effects::Here;
use super::interface::{CpuInterface, MachineControl, SavedInterface};
use super::intid::{VcpuId, bits};
use super::list_register::ListRegister;
use super::vcpu::Vcpu;
use super::{Vgic, deliver::BankId};

impl Vgic {
    /// Is an interrupt signalled to the vCPU: pending, enabled, of an enabled group, of a priority that the mask admits,
    /// and above that of the interrupt that is handled? PSTATE's masks do not count.
    ///
    /// For a vCPU that waits (WFI, a page that is absent) it says whether to wake it. The vCPU is loaded here, or not
    /// loaded; for one that is loaded elsewhere, what its list registers hold does not count. At WFI the embedder calls
    /// [`sync`](Self::sync) first.
    #[must_use]
    #[inline]
    pub fn has_deliverable<I: CpuInterface>(&self, vcpu: VcpuId, here: &Here<'_, I>) -> bool {
        (here.peek(vcpu).is_some() || self.has_waiting(vcpu)) && self.deliverable(vcpu, here) != [false; 2]
    }

    /// As [`has_deliverable`](Self::has_deliverable), for each group: of group 0 an FIQ is signalled, and of group 1 an
    /// IRQ, which PSTATE masks apart.
    #[must_use]
    #[inline(never)]
    pub fn deliverable<I: CpuInterface>(&self, vcpu: VcpuId, here: &Here<'_, I>) -> [bool; 2] {
        let Some(state) = self.vcpus.get(vcpu.index()) else { return [false; 2] };
        let interface = here.peek(vcpu);
        let mut first = First([0xff; 2]);
        // What is inside is often all there is, and one that can be taken decides.
        if let Some(interface) = interface {
            for slot in bits(state.slots.used.into()) {
                let register = ListRegister::from_raw(interface.list_register(slot));
                if register.is_pending() {
                    first.offer(register.is_group1(), register.priority());
                }
            }
        }
        self.waiting_first(vcpu, state, &mut first);
        if first.0 == [0xff; 2] {
            return [false; 2];
        }
        let saved = interface.map_or(state.saved, |interface| SavedInterface::read(interface));
        let machine = MachineControl(saved.machine_control);
        let running = saved.running();
        // Disabled groups do not compete.
        let [group0, group1] =
            [false, true].map(|group| if machine.is_enabled(group) { first.of(group) } else { 0xff });
        let best = group0.min(group1);
        let is_signalled =
            |priority, group1| priority == best && best != 0xff && machine.admits(priority, group1, running);
        [is_signalled(group0, false), is_signalled(group1, true)]
    }

    fn waiting_first(&self, vcpu: VcpuId, state: &Vcpu, first: &mut First) {
        first.offer_all(&state.private, state.private.waiting(self.control));
        for n in bits(self.busy) {
            if let Some(bank) = self.bank(BankId::Shared(n)) {
                first.offer_all(bank, self.waiting_of(vcpu, n));
            }
        }
    }
}

/// The highest priority of each group, or `0xff`.
struct First([u8; 2]);

impl First {
    fn offer(&mut self, group1: bool, priority: u8) {
        let kept = &mut self.0[usize::from(group1)];
        *kept = priority.min(*kept);
    }

    fn offer_all(&mut self, bank: &Bank, mask: u32) {
        for index in bits(mask) {
            self.offer(bank.group1 >> index & 1 == 1, bank.priority[index & 31]);
        }
    }

    const fn of(&self, group1: bool) -> u8 {
        self.0[group1 as usize]
    }
}
