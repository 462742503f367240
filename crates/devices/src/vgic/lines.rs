// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interrupts' inputs: devices' lines, and physical interrupts that are linked to virtual ones.

use super::deliver::BankId;
use super::effects::{Effects, Here};
use super::interface::CpuInterface;
use super::intid::{Intid, VcpuId};
use super::list_register::ListRegister;
use super::{Vgic, bank::Bank};

impl Vgic {
    /// Sets the level of an SPI's line. An INTID that is not an SPI of this GIC is ignored.
    pub fn set_spi<I: CpuInterface>(&mut self, spi: Intid, asserted: bool, here: &mut Here<'_, I>) -> Effects {
        match spi.bank().checked_sub(1) {
            Some(n) => self.set_line(BankId::Shared(n), spi.index(), asserted, here),
            None => Effects::default(),
        }
    }

    /// Sets the level of a vCPU's PPI. An INTID that is not a PPI is ignored.
    ///
    /// Of a [linked](super::Config::linked) PPI, the embedder reports the physical line's level before it loads the vCPU,
    /// after it has unloaded it and whenever the level changes while it is not loaded. While the vCPU is loaded the
    /// interrupt [fires](Self::fire) by itself. But so that the guest reads the level of the moment, the vCPU's CPU
    /// reports it
    ///
    /// * before it forwards an access of this vCPU to its own redistributor, and before a retry of such a read;
    /// * before a [`sync`](Self::sync) of a vCPU that is not [quiet](Self::is_quiet): another vCPU's read may wait for it.
    pub fn set_ppi<I: CpuInterface>(
        &mut self,
        vcpu: VcpuId,
        ppi: Intid,
        asserted: bool,
        here: &mut Here<'_, I>,
    ) -> Effects {
        if ppi.raw() < 16 || ppi.is_shared() {
            return Effects::default();
        }
        self.set_line(BankId::Private(vcpu), ppi.index(), asserted, here)
    }

    /// Whether the lines of these PPIs of a vCPU, a bit for each INTID, are low, and none is held: reports of low lines
    /// would change nothing.
    #[must_use]
    pub fn is_quiet(&self, vcpu: VcpuId, ppis: u32) -> bool {
        self.vcpus.get(vcpu.index()).is_none_or(|state| (state.private.line | state.private.held) & ppis == 0)
    }

    /// The physical interrupt that is linked to `ppi` was taken on the CPU where `vcpu` is loaded. The embedder has
    /// dropped its priority (`ICC_EOIR1_EL1` with EOImode 1) and left it active: it fires again only when the guest has
    /// deactivated the virtual one.
    pub fn fire<I: CpuInterface>(&mut self, vcpu: VcpuId, ppi: Intid, here: &mut Here<'_, I>) -> Effects {
        let mut effects = Effects::default();
        let (bit, index) = (ppi.bit(), ppi.index());
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return effects };
        if ppi.is_shared() || state.private.linked & bit == 0 {
            return effects;
        }
        let Some(interface) = here.of(vcpu) else { return effects };
        let slot = usize::from(state.private.slot[index]);
        let empty = interface.empty();
        // The usual case: the list register of the last time is empty, and holds it again.
        if state.private.resident & bit != 0 && empty >> slot & 1 == 1 {
            state.private.retire(index, state.slots.hardware >> slot & 1 == 1, &mut effects);
            state.slots.release(slot);
            effects.deactivate &= !bit;
        }
        hold(&mut state.private, bit);
        if state.private.resident & bit != 0 {
            // The guest handles one that was not held. Its end has to be seen.
            if (state.slots.hardware | state.slots.armed) >> slot & 1 == 0 {
                self.settle(vcpu, interface, &mut effects);
                self.take(vcpu, slot, interface, &mut effects);
                self.fill(vcpu, interface, &mut effects);
            }
            return effects;
        }
        let free = state.slots.free();
        if state.private.waiting(self.control) & bit != 0 && free != 0 && !state.slots.overflow {
            let slot = if free >> slot & 1 == 1 { slot } else { free.trailing_zeros() as usize };
            self.place(vcpu, ppi, slot, interface);
        } else {
            self.fill(vcpu, interface, &mut effects);
        }
        effects
    }

    fn set_line<I: CpuInterface>(
        &mut self,
        bank: BankId,
        index: usize,
        asserted: bool,
        here: &mut Here<'_, I>,
    ) -> Effects {
        let mut effects = Effects::default();
        let bit = 1_u32 << index;
        let Some(state) = self.bank_mut(bank) else { return effects };
        if asserted == (state.line & bit != 0) {
            return effects;
        }
        let (resident, edge) = (state.resident & bit != 0, state.edge & bit != 0);
        if edge && !asserted {
            state.drive(bit, false);
            return effects;
        }
        if resident && !self.keeps(bank, index, asserted, here) {
            self.touch(bank, bit, here, &mut effects);
        }
        let Some(state) = self.bank_mut(bank) else { return effects };
        state.drive(bit, asserted);
        // The physical interrupt has no reason to stay active.
        let done = bit & state.held & !state.line & !state.active & !state.resident;
        state.held &= !done;
        self.deactivate_physical(bank, done, here, &mut effects);
        self.offer(bank, bit, here, &mut effects);
        effects
    }

    /// May a resident level-sensitive interrupt stay where it is, although its line changes?
    fn keeps<I: CpuInterface>(&mut self, bank: BankId, index: usize, asserted: bool, here: &mut Here<'_, I>) -> bool {
        let Some(state) = self.bank(bank) else { return false };
        let bit = 1_u32 << index;
        if state.edge & bit != 0 {
            return false;
        }
        let (home, slot) = (VcpuId::from_index(state.home[index & 31].into()), usize::from(state.slot[index & 31]));
        let latched = state.latch & bit != 0;
        let Some(vcpu) = self.vcpus.get_mut(home.index()) else { return false };
        let armed = vcpu.slots.armed >> slot & 1 == 1;
        if asserted {
            // Its end is a maintenance interrupt, which finds the line; or it lets the physical interrupt fire again.
            return armed || vcpu.slots.hardware >> slot & 1 == 1;
        }
        let Some(interface) = here.of(home) else { return false };
        let register = ListRegister::from_raw(interface.list_register(slot));
        if register.is_pending() || !register.is_active() {
            return false;
        }
        // The end of an interrupt that the guest handles needs no maintenance interrupt any more, unless it is pending
        // by its latch.
        if armed && !latched {
            vcpu.slots.armed &= !(1 << slot);
            interface.set_list_register(slot, register.without_maintenance().raw());
        }
        true
    }

    /// Physical interrupts of a vCPU have to be deactivated: on its CPU, if it has one.
    pub(super) fn deactivate_physical<I: CpuInterface>(
        &mut self,
        bank: BankId,
        mask: u32,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        let BankId::Private(vcpu) = bank else { return };
        let Some(state) = self.vcpus.get_mut(vcpu.index()).filter(|state| state.loaded && mask != 0) else { return };
        // A line that is still asserted fires again. That of a vCPU that is not loaded is as the embedder says.
        state.private.line &= !mask;
        if here.of(vcpu).is_some() {
            effects.deactivate |= mask;
        } else {
            state.owed |= mask;
            effects.kick.insert(vcpu);
        }
    }
}

/// The physical interrupt is active for this one.
const fn hold(bank: &mut Bank, bit: u32) {
    bank.line |= bit;
    bank.held |= bit;
}
