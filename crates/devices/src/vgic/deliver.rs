// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interrupts on their way into list registers, and out of them.
//!
//! The labels are those of the protocol in the [module's page](super).

use super::Vgic;
use super::bank::Bank;
use super::best::Best;
use super::effects::{Effects, Here};
use super::interface::{CpuInterface, MachineControl, SavedInterface, control};
use super::intid::{Intid, VcpuId, bits};
use super::list_register::ListRegister;
use super::vcpu::{Slots, Vcpu};

impl Vgic {
    /// The vCPU's CPU does what is outstanding for its list registers: after a [kick](Effects::kick), at a maintenance
    /// interrupt, and at WFI. It costs little if nothing is outstanding.
    pub fn sync<I: CpuInterface>(&mut self, vcpu: VcpuId, here: &mut Here<'_, I>) -> Effects {
        let mut effects = Effects::default();
        let Some(interface) = here.of(vcpu) else { return effects };
        self.settle(vcpu, interface, &mut effects);
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return effects };
        effects.deactivate |= core::mem::take(&mut state.owed);
        state.unsettled = false;
        let slots = &state.slots;
        let used = slots.used;
        let out = used & (slots.dirty | if slots.armed != 0 { interface.ended() } else { 0 });
        self.take_all(vcpu, out, interface, &mut effects);
        self.retire_all(vcpu, interface.empty() & used & !out, &mut effects);
        self.fill(vcpu, interface, &mut effects);
        self.publish(vcpu, interface);
        effects
    }

    /// The vCPU starts to run on this CPU: its interface and as many of its interrupts as possible go into the hardware.
    ///
    /// Returns the PPIs, a bit for each INTID, whose physical interrupt has to be active while it runs. The embedder
    /// makes those active, and the other linked ones inactive (`GICR_ISACTIVER0`, `GICR_ICACTIVER0` of this CPU).
    #[must_use = "a physical interrupt that is inactive fires again at once, one that stays active never fires"]
    pub fn load<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I) -> u32 {
        if self.load_quiet(vcpu, interface) {
            return 0;
        }
        let count = interface.list_registers();
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return 0 };
        // The list registers are empty: whatever was loaded here before has left them so.
        state.slots.clear(count);
        state.loaded = true;
        state.owed = 0;
        let bank = &mut state.private;
        bank.held |= bank.line & bank.linked & !bank.edge;
        let held = bank.held;
        state.saved.write(interface);
        interface.set_control(control::ALWAYS);
        if state.slots.outside {
            self.arrange(vcpu, interface, &mut Effects::default());
        } else {
            self.fill(vcpu, interface, &mut Effects::default());
        }
        held
    }

    /// The vCPU leaves this CPU: its interface is saved, its list registers are drained, and the hardware's virtual
    /// interface is off. All list registers of the CPU are empty then, for whichever vCPU is [loaded](Self::load) next.
    pub fn unload<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I) -> Effects {
        if self.unload_quiet(vcpu, interface) {
            return Effects::default();
        }
        let mut effects = Effects::default();
        let Some(state) = self.vcpus.get(vcpu.index()) else { return effects };
        if state.slots.used != 0 || interface.control() >> control::EOI_COUNT != 0 {
            self.drain(vcpu, interface, &mut effects);
        }
        interface.set_control(0);
        if let Some(state) = self.vcpus.get_mut(vcpu.index()) {
            state.saved = SavedInterface::read(interface);
            state.loaded = false;
            state.unsettled = false;
            state.wanted = false;
            effects.deactivate |= core::mem::take(&mut state.owed);
        }
        effects
    }

    /// [`load`](Self::load) of a vCPU that handles no interrupt, whose PPIs' lines are low, and for which one interrupt waits
    /// at most. Returns `false` if it is another one: then nothing was done.
    #[inline(always)]
    #[must_use = "the vCPU is not loaded if this is false"]
    pub fn load_quiet<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I) -> bool {
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return false };
        let bank = &mut state.private;
        let waiting = bank.waiting_latched(self.control);
        let is_quiet = bank.line | bank.held | self.busy | waiting & waiting.wrapping_sub(1) == 0;
        if !is_quiet || state.slots.outside || !state.saved.write_quiet(interface) {
            return false;
        }
        interface.set_control(control::ALWAYS);
        state.slots.clear(interface.list_registers());
        state.loaded = true;
        state.owed = 0;
        if waiting != 0 {
            state.place_latched(vcpu, waiting, interface);
        }
        true
    }

    /// [`unload`](Self::unload) of a vCPU whose PPIs' lines are low, and which neither handles an interrupt nor has one that
    /// waits. At most the first list register was written, and the guest has ended what it held: a vCPU that takes one SGI
    /// and then waits is like this. Returns `false` if it is another one: then it is still loaded.
    #[inline(always)]
    #[must_use = "the vCPU is still loaded if this is false"]
    pub fn unload_quiet<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I) -> bool {
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return false };
        let bank = &state.private;
        let outstanding = bank.line | bank.held | self.busy | state.owed;
        // No line is high, so what does not wait in a latch does not wait.
        if outstanding | bank.latch & bank.enabled != 0
            || interface.control() >> control::EOI_COUNT != 0
            || !state.saved.read_quiet(interface)
            || state.slots.used != 0 && !state.retire_first(interface)
        {
            return false;
        }
        interface.set_control(0);
        (state.loaded, state.unsettled, state.wanted) = (false, false, false);
        true
    }

    /// Takes all list registers back into memory.
    #[inline(never)]
    fn drain<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I, effects: &mut Effects) {
        self.settle(vcpu, interface, effects);
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        self.take_all(vcpu, state.slots.used, interface, effects);
    }

    /// The PPIs, a bit for each INTID, whose physical interrupt is active on behalf of the vCPU.
    #[must_use]
    pub fn held(&self, vcpu: VcpuId) -> u32 {
        self.vcpus.get(vcpu.index()).map_or(0, |state| state.private.held)
    }

    /// Is there work for [`sync`](Self::sync) where the vCPU is loaded? Also while more interrupts wait than list
    /// registers can hold.
    #[must_use]
    pub fn needs_sync(&self, vcpu: VcpuId) -> bool {
        self.vcpus.get(vcpu.index()).is_some_and(|state| {
            let outstanding = state.slots.dirty != 0 || state.owed != 0 || state.unsettled || state.wanted;
            state.loaded && (outstanding || self.has_waiting(vcpu))
        })
    }

    /// D1: the interrupts of `bank` in `mask` have changed in memory. Those that list registers hold are taken out, here
    /// or, marked, by the CPU that has them.
    pub(super) fn touch<I: CpuInterface>(
        &mut self,
        bank: BankId,
        mask: u32,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        let Some(resident) = self.bank(bank).map(|state| state.resident & mask) else { return };
        for index in bits(resident) {
            let Some(state) = self.bank(bank) else { return };
            let (home, slot) = (VcpuId::from_index(state.home[index & 31].into()), state.slot[index & 31].into());
            if let Some(interface) = here.of(home) {
                self.settle(home, interface, effects);
                self.take(home, slot, interface, effects);
            } else if let Some(vcpu) = self.vcpus.get_mut(home.index()) {
                vcpu.slots.dirty |= 1 << (slot & 15);
                effects.kick.insert(home);
            }
        }
    }

    /// D2: interrupts of `bank` in `mask` may wait for a list register. Fills those of this CPU, and reports the vCPUs
    /// that others have.
    pub(super) fn offer<I: CpuInterface>(
        &mut self,
        bank: BankId,
        mask: u32,
        here: &mut Here<'_, I>,
        effects: &mut Effects,
    ) {
        match bank {
            BankId::Private(vcpu) => {
                let Some(state) = self.vcpus.get(vcpu.index()) else { return };
                let waits = state.private.waiting(self.control) & mask != 0;
                self.notify(vcpu, waits, here, effects);
            }
            BankId::Shared(n) => {
                self.refresh(n);
                let Some(state) = self.spis.get(n) else { return };
                let mut waiting = state.bank.waiting(self.control) & mask;
                while waiting != 0 {
                    let target = state.target[waiting.trailing_zeros() as usize & 31];
                    waiting &= waiting - 1;
                    if target != super::bank::NONE {
                        effects.kick.insert(VcpuId::from_index(target.into()));
                    }
                }
                self.settle_here(here, effects);
            }
        }
    }

    /// Of the vCPUs in `kick`, the one that is loaded here is served at once.
    pub(super) fn settle_here<I: CpuInterface>(&mut self, here: &mut Here<'_, I>, effects: &mut Effects) {
        if let Some((vcpu, interface)) = here.both() {
            effects.kick.remove(vcpu);
            self.fill(vcpu, interface, effects);
        }
    }

    fn notify<I: CpuInterface>(&mut self, vcpu: VcpuId, waits: bool, here: &mut Here<'_, I>, effects: &mut Effects) {
        match here.of(vcpu) {
            Some(interface) => self.fill(vcpu, interface, effects),
            None if waits => effects.kick.insert(vcpu),
            None => {}
        }
        // What was taken out of this CPU's list registers for another vCPU's sake goes back.
        if here.of(vcpu).is_none() {
            self.settle_here(here, effects);
        }
    }

    /// S1: deactivates what the guest's EOIs of interrupts outside the list registers ended.
    ///
    /// This comes before any list register is taken: what is taken afterwards was not yet ended.
    pub(super) fn settle<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I, effects: &mut Effects) {
        let count = interface.control() >> control::EOI_COUNT & 31;
        if count == 0 {
            return;
        }
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        interface.set_control(state.slots.control);
        // With EOImode 1, an EOI deactivates nothing, and a write of DIR traps.
        if MachineControl(interface.machine_control()).is_split() {
            return;
        }
        for _ in 0..count {
            self.end_outside(vcpu, effects);
        }
    }

    /// The guest ended the interrupt of the highest priority of those that it handles outside the list registers: EOIs
    /// come in the reverse order of acknowledges, and each acknowledge has a higher priority than the one before.
    #[cold]
    fn end_outside(&mut self, vcpu: VcpuId, effects: &mut Effects) {
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return };
        if !state.slots.outside {
            return;
        }
        let private = state.private.first_acknowledged(vcpu).map(|(priority, index)| (priority, None, index));
        let shared = self.spis.iter().enumerate().filter_map(|(n, shared)| {
            shared.bank.first_acknowledged(vcpu).map(|(priority, index)| (priority, Some(n), index))
        });
        let Some((_, n, index)) = shared.chain(private).min() else {
            state.slots.outside = false;
            return;
        };
        match n {
            None => state.private.end_of_interrupt(index, effects),
            Some(n) => {
                if let Some(shared) = self.spis.get_mut(n) {
                    shared.bank.end_of_interrupt(index, effects);
                }
                self.pass_on(vcpu, Intid::from_parts(n + 1, index), effects);
            }
        }
    }

    fn take_all<I: CpuInterface>(&mut self, vcpu: VcpuId, slots: u16, interface: &mut I, effects: &mut Effects) {
        for slot in bits(slots.into()) {
            self.take(vcpu, slot, interface, effects);
        }
    }

    /// S2: takes what a list register holds back into memory.
    pub(super) fn take<I: CpuInterface>(
        &mut self,
        vcpu: VcpuId,
        slot: usize,
        interface: &mut I,
        effects: &mut Effects,
    ) {
        let register = ListRegister::from_raw(interface.list_register(slot));
        interface.set_list_register(slot, 0);
        // With EOImode 1, the guest's deactivation names the interrupt.
        let counts = register.is_active() && !MachineControl(interface.machine_control()).is_split();
        let Some((bank, slots, intid)) = self.held_by(vcpu, slot) else { return };
        slots.release(slot);
        slots.outside |= counts;
        bank.leave(intid.index(), vcpu, register, counts, effects);
        self.pass_on(vcpu, intid, effects);
    }

    /// S3: list registers of the mask are empty, and owe nothing.
    pub(super) fn retire_all(&mut self, vcpu: VcpuId, slots: u16, effects: &mut Effects) {
        for slot in bits(slots.into()) {
            let Some((bank, slots, intid)) = self.held_by(vcpu, slot) else { return };
            slots.release(slot);
            bank.retire(intid.index(), slots.hardware >> slot & 1 == 1, effects);
            self.pass_on(vcpu, intid, effects);
        }
    }

    fn held_by(&mut self, vcpu: VcpuId, slot: usize) -> Option<(&mut Bank, &mut Slots, Intid)> {
        let Vcpu { private, slots, .. } = self.vcpus.get_mut(vcpu.index())?;
        let intid = slots.intid(slot);
        let bank = if intid.is_private() { private } else { &mut self.spis.get_mut(intid.bank() - 1)?.bank };
        Some((bank, slots, intid))
    }

    /// F1: puts interrupts that wait into list registers that are free.
    #[inline]
    pub(super) fn fill<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I, effects: &mut Effects) {
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return };
        if state.slots.overflow || self.busy != 0 {
            return self.fill_busy(vcpu, interface, effects);
        }
        let waiting = state.private.waiting(self.control);
        if waiting == 0 {
            return;
        }
        let free = state.slots.free();
        // The usual case: one interrupt, and room for it.
        if waiting & (waiting - 1) == 0 && free != 0 {
            let index = waiting.trailing_zeros() as usize;
            let physical = self.physical[index & 31];
            return state.place(vcpu, index, free.trailing_zeros() as usize, physical, interface);
        }
        self.fill_shared(vcpu, interface, effects);
    }

    /// F1, while SPIs wait for whichever vCPU, or more interrupts than list registers can hold.
    #[inline(never)]
    fn fill_busy<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I, effects: &mut Effects) {
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        if state.slots.overflow || self.has_waiting(vcpu) {
            self.fill_shared(vcpu, interface, effects);
        }
    }

    /// F2: as [`fill`](Self::fill), with SPIs, or when list registers are short.
    #[inline(never)]
    fn fill_shared<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I, effects: &mut Effects) {
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        let used = state.slots.used;
        // What ended makes room, and may itself be pending again.
        let ended = if state.slots.armed != 0 { interface.ended() & used } else { 0 };
        if ended != 0 {
            self.settle(vcpu, interface, effects);
            self.take_all(vcpu, ended, interface, effects);
        }
        self.retire_all(vcpu, interface.empty() & used & !ended, effects);
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        let mut free = state.slots.free();
        if state.slots.overflow || !self.fits(vcpu, free.count_ones()) {
            return self.arrange(vcpu, interface, effects);
        }
        let waiting = state.private.waiting(self.control);
        for index in bits(waiting) {
            self.place(vcpu, Intid::from_parts(0, index), free.trailing_zeros() as usize, interface);
            free &= free.wrapping_sub(1);
        }
        for n in bits(self.busy) {
            for index in bits(self.waiting_of(vcpu, n)) {
                self.place(vcpu, Intid::from_parts(n + 1, index), free.trailing_zeros() as usize, interface);
                free &= free.wrapping_sub(1);
            }
        }
    }

    /// Do all interrupts that wait for the vCPU fit into `free` list registers?
    fn fits(&self, vcpu: VcpuId, free: u32) -> bool {
        let Some(state) = self.vcpus.get(vcpu.index()) else { return false };
        let mut count = state.private.waiting(self.control).count_ones();
        for n in bits(self.busy) {
            count += self.waiting_of(vcpu, n).count_ones();
        }
        count <= free
    }

    /// F3: list registers are short, or the vCPU is new here. All are taken out; then the most urgent go in.
    #[inline(never)]
    pub(super) fn arrange<I: CpuInterface>(&mut self, vcpu: VcpuId, interface: &mut I, effects: &mut Effects) {
        self.settle(vcpu, interface, effects);
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        let (used, count) = (state.slots.used, state.slots.count);
        self.take_all(vcpu, used, interface, effects);
        let machine = MachineControl(interface.machine_control());
        let (mut waiting, mut handled) = (Best::new(), Best::new());
        self.collect(vcpu, machine, &mut waiting, &mut handled);
        // One at least is for an interrupt that can be taken next, so that NP does not fire at once.
        let active = handled.len().min(count - usize::from(!waiting.is_empty()));
        let pending = waiting.len().min(count - active);
        for (slot, intid) in waiting.iter().take(pending).enumerate() {
            self.place(vcpu, intid, slot, interface);
        }
        for (slot, intid) in handled.iter().take(active).enumerate() {
            self.place_active(vcpu, intid, pending + slot, interface);
        }
        let overflow = waiting.offered() > pending;
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return };
        state.slots.overflow = overflow;
        state.slots.outside = handled.offered() > active;
        let control = if overflow { control::ALWAYS | refill(machine) } else { control::ALWAYS };
        if state.slots.control != control {
            state.slots.control = control;
            interface.set_control(control);
        }
    }

    fn collect(&self, vcpu: VcpuId, machine: MachineControl, waiting: &mut Best, handled: &mut Best) {
        let Some(state) = self.vcpus.get(vcpu.index()) else { return };
        let groups = [machine.is_enabled(false), machine.is_enabled(true)];
        let mut offer = |bank: &Bank, n: usize, words: [u32; 2]| {
            for index in bits(words[0]) {
                let enabled = groups[(bank.group1 >> index & 1) as usize];
                waiting.offer(!enabled, bank.priority[index & 31], Intid::from_parts(n, index));
            }
            for index in bits(words[1]) {
                handled.offer(false, bank.acknowledged_priority[index & 31], Intid::from_parts(n, index));
            }
        };
        // With EOImode 1 a deactivation traps, so an active interrupt needs no list register.
        let active = if machine.is_split() { 0 } else { u32::MAX };
        let bank = &state.private;
        offer(bank, 0, [bank.waiting(self.control), bank.active & bank.acknowledged & active]);
        for (n, shared) in self.spis.iter().enumerate() {
            let bank = &shared.bank;
            let mut mine = bank.active & bank.acknowledged & active;
            for index in bits(mine) {
                if bank.handler[index & 31] != vcpu.byte() {
                    mine &= !(1 << index);
                }
            }
            offer(bank, n + 1, [self.waiting_of(vcpu, n), mine]);
        }
    }

    /// D3: an interrupt goes into a list register.
    #[inline]
    pub(super) fn place<I: CpuInterface>(&mut self, vcpu: VcpuId, intid: Intid, slot: usize, interface: &mut I) {
        let physical = self.physical[intid.index()];
        if intid.is_private() {
            if let Some(state) = self.vcpus.get_mut(vcpu.index()) {
                state.place(vcpu, intid.index(), slot, physical, interface);
            }
            return;
        }
        let Some((bank, slots)) = self.parts(vcpu, intid) else { return };
        let register = bank.place(intid.index(), vcpu, slot, ListRegister::pending(intid), physical);
        slots.fill(slot, intid, register);
        interface.set_list_register(slot, register.raw());
        self.refresh_of(intid);
    }

    fn place_active<I: CpuInterface>(&mut self, vcpu: VcpuId, intid: Intid, slot: usize, interface: &mut I) {
        let physical = self.physical[intid.index()];
        let Some((bank, slots)) = self.parts(vcpu, intid) else { return };
        let register = bank.place_active(intid.index(), vcpu, slot, ListRegister::active(intid), physical);
        slots.fill(slot, intid, register);
        interface.set_list_register(slot, register.raw());
    }

    fn parts(&mut self, vcpu: VcpuId, intid: Intid) -> Option<(&mut Bank, &mut Slots)> {
        let Vcpu { private, slots, .. } = self.vcpus.get_mut(vcpu.index())?;
        let bank = if intid.is_private() { private } else { &mut self.spis.get_mut(intid.bank() - 1)?.bank };
        Some((bank, slots))
    }

    /// The SPIs of bank `n` that wait for this vCPU.
    pub(super) fn waiting_of(&self, vcpu: VcpuId, n: usize) -> u32 {
        let routed = self.vcpus.get(vcpu.index()).and_then(|state| state.routed.get(n));
        let waiting = self.spis.get(n).map(|shared| shared.bank.waiting(self.control));
        routed.zip(waiting).map_or(0, |(routed, waiting)| routed & waiting)
    }

    fn has_waiting_spi(&self, state: &Vcpu) -> bool {
        bits(self.busy).any(|n| {
            let waiting = self.spis.get(n).map_or(0, |shared| shared.bank.waiting(self.control));
            state.routed.get(n).is_some_and(|routed| routed & waiting != 0)
        })
    }

    pub(super) fn has_waiting(&self, vcpu: VcpuId) -> bool {
        let state = self.vcpus.get(vcpu.index());
        state.is_some_and(|state| {
            state.private.waiting(self.control) != 0 || self.busy != 0 && self.has_waiting_spi(state)
        })
    }

    /// An SPI left a list register of `vcpu`, or ended there. It may wait for another vCPU now.
    fn pass_on(&mut self, vcpu: VcpuId, intid: Intid, effects: &mut Effects) {
        let Some(n) = intid.bank().checked_sub(1) else { return };
        self.refresh(n);
        let Some(shared) = self.spis.get(n) else { return };
        let target = shared.target[intid.index()];
        if shared.bank.waiting(self.control) & intid.bit() != 0 && target != super::bank::NONE && target != vcpu.byte()
        {
            effects.kick.insert(VcpuId::from_index(target.into()));
        }
    }

    fn refresh_of(&mut self, intid: Intid) {
        if intid.is_shared() {
            self.refresh(intid.bank() - 1);
        }
    }

    /// Recomputes whether an SPI of bank `n` waits.
    pub(super) fn refresh(&mut self, n: usize) {
        let Some(shared) = self.spis.get(n) else { return };
        let bit = 1 << (n & 31);
        if shared.bank.waiting(self.control) == 0 { self.busy &= !bit } else { self.busy |= bit }
    }

    fn publish(&mut self, vcpu: VcpuId, interface: &impl CpuInterface) {
        let Some(state) = self.vcpus.get_mut(vcpu.index()) else { return };
        if !state.wanted {
            return;
        }
        state.wanted = false;
        state.answered = self.requests;
        for slot in bits(state.slots.used.into()) {
            state.published[slot & 15] = interface.list_register(slot);
        }
    }
}

/// The maintenance interrupts that say when an interrupt outside the list registers may be the next to be taken: none
/// inside is pending, or the guest enabled or disabled a group.
///
/// Only when both groups are enabled does it matter that the guest disables one: if the last one is disabled, none can
/// be taken until it is enabled again, and then the list registers still hold the most urgent of it. So `VGRP0DIE` is
/// never on while group 1 is disabled, where QEMU (7.2 and later) asserts it for as long as that lasts: the guest would
/// never run again.
fn refill(machine: MachineControl) -> u64 {
    let groups = match (machine.is_enabled(false), machine.is_enabled(true)) {
        (true, true) => control::VGRP0DIE | control::VGRP1DIE,
        (true, false) => control::VGRP1EIE,
        (false, true) => control::VGRP0EIE,
        (false, false) => control::VGRP0EIE | control::VGRP1EIE,
    };
    control::NPIE | groups
}

/// 32 interrupts: the private ones of a vCPU, or SPIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BankId {
    Private(VcpuId),
    /// The `n`th 32 SPIs.
    Shared(usize),
}
