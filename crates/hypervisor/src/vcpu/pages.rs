// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU whose guest's pages may be absent. `twofold_memory::async_fault` decides what it does; this module is the machine
//! around it. The steps W1 to W5 and V1 are those of [`swap`](crate::swap).
//!
//! Invariant: a vCPU enters its guest only after the state machine has said so since its turn began, since the last kick,
//! and since its last fault on an absent page. A guest without a store pays a turn and a kick one load and one branch.

use alloc::boxed::Box;

use twofold_memory::GuestFault;
use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt};
use twofold_memory::async_fault::{
    AbsentPage, Arrival, Context, Host, Mode, Next, Refused, Snapshot, Ticket, VcpuFaults, Wait,
};
use twofold_memory::swap::Waiter;
use twofold_vmm::scheduler::Decision;

use super::state::Vcpu;
use super::time::Look;
use crate::granule::Memory;
use crate::schedule;
use crate::schedule::cpu::ThisCpu;
use crate::schedule::deadlines::Due;
use crate::swap::Swap;
use crate::swap::figures::Waits;
use crate::vm::{VcpuSlot, Vm};

/// The absent pages of one vCPU.
pub(super) struct Pages {
    faults: VcpuFaults<Memory>,
    /// What it waits for, if its turn has ended for that.
    wait: Wait,
    /// Whether the guest was started with a store, and so has this wherever it goes.
    is_own: bool,
}

impl Pages {
    /// Those of a vCPU that has asked for nothing.
    pub(super) fn new(swap: &Swap) -> Box<Self> {
        Box::new(Self { faults: VcpuFaults::new(swap.mode()), wait: Wait::Page, is_own: swap.is_own() })
    }

    /// What travels with the vCPU, which is not in its guest. Its requests stay. `None`: the guest was started without a store.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        self.is_own.then(|| self.faults.snapshot())
    }

    /// Becomes those of a vCPU that comes from elsewhere. On an error nothing has changed.
    pub(super) fn restore(&mut self, mode: Mode, memory: &Memory, snapshot: &Snapshot) -> Result<(), Refused> {
        self.faults = VcpuFaults::restore(mode, memory, snapshot)?;
        Ok(())
    }

    /// W1: a fault on an absent page, at this PC.
    pub(super) fn fault(&mut self, around: &mut Around<'_>, fault: &GuestFault, pc: u64) -> Next {
        let arrivals = around.swap.arrivals(around.index);
        let context = if self.faults.is_enabled() { around.context(pc) } else { around.closed(pc) };
        let waits = around.swap.waits(around.index);
        let next = self.faults.fault(arrivals, around, &AbsentPage::of(fault), &context);
        waits.announced(self.faults.announced());
        self.noted(next, waits)
    }

    /// V1.
    pub(super) fn before_entry(&mut self, around: &mut Around) -> Next {
        let waits = around.swap.waits(around.index);
        let next = self.faults.before_entry(around.swap.arrivals(around.index), around);
        self.noted(next, waits)
    }

    /// Answers a call of the guest's; `None` if it is not one of these.
    pub(super) fn call(&mut self, around: &mut Around<'_>, arguments: [u64; 3]) -> Option<i64> {
        let answer = self.faults.call(around.swap.arrivals(around.index), around, arguments);
        // The area's page may be on its way. The task sets the deadline.
        if answer.is_some() && around.swap.next_end().is_some() {
            schedule::wake(around.swap.task());
        }
        answer
    }

    /// The vCPU is switched off, or its guest begins anew.
    pub(super) fn off(&mut self, around: &mut Around) {
        self.faults.off(around.swap.arrivals(around.index), around);
        around.swap.waits(around.index).end();
    }

    fn noted(&mut self, next: Next, waits: &Waits) -> Next {
        match next {
            Next::Wait(wait) => {
                self.wait = wait;
                waits.begin();
            }
            Next::Enter | Next::Stop { .. } => waits.end(),
        }
        next
    }
}

/// W4 and W5, for a vCPU that was unloaded because it waits. `look` is what its timers were then.
#[cold]
#[inline(never)]
pub(super) fn wait(vm: &Vm, slot: &VcpuSlot, cpu: &mut ThisCpu, look: Look) -> Decision {
    // The turn has not ended, so no other CPU has run the vCPU.
    if has_reason(vm, slot, cpu, &mut slot.state.lock(), look) {
        return schedule::pick(cpu.number);
    }
    cpu.block_out_of_line()
}

/// R5, for a vCPU that was unloaded. It has been blocked or in a queue for a while, so another CPU may run it by now: that one
/// has its lock, and has looked.
#[cold]
#[inline(never)]
pub(super) fn rested(vm: &Vm, slot: &VcpuSlot, cpu: &mut ThisCpu, look: Look) -> Decision {
    let has_reason = slot.state.try_lock().is_some_and(|mut vcpu| has_reason(vm, slot, cpu, &mut vcpu, look));
    if has_reason {
        schedule::wake(slot.entity);
    }
    cpu.next
}

/// W4: whether the vCPU, which is not loaded, need not wait. If it has to, its timers become deadlines.
fn has_reason(vm: &Vm, slot: &VcpuSlot, cpu: &mut ThisCpu, vcpu: &mut Vcpu, look: Look) -> bool {
    let (index, Vcpu { registers, own }) = (slot.id.index(), vcpu);
    let (Some(swap), Some(pages)) = (vm.swap(), &own.pages) else { return true };
    let wakes_for_interrupts = pages.wait == Wait::PageOrInterrupt;
    let has_reason = swap.arrivals(index).has_any()
        || wakes_for_interrupts && vm.devices().gic.can_take(index, registers.context.pstate, false);
    if !has_reason
        && wakes_for_interrupts
        && let Some(rise) = own.timers.next_rise(registers, look, vm.counter_offset())
    {
        cpu.deadlines.set(Due::Vcpu(slot.entity.index()), rise);
    }
    has_reason
}

/// Whether a page has arrived for a vCPU that is not loaded any more, since it looked last.
#[cold]
#[inline(never)]
pub(super) fn have_arrived(vm: &Vm, index: usize) -> bool {
    vm.swap().is_some_and(|swap| swap.arrivals(index).has_any())
}

/// W2: this CPU ends the first transfer when its time has come. The caller arms EL2's timer afterwards.
pub(crate) fn set_deadline(cpu: &mut ThisCpu, swap: &Swap) {
    if let Some(end) = swap.next_end() {
        cpu.deadlines.set(Due::Alarm(swap.task().index()), end);
    }
}

/// The machine around a vCPU that is not in its guest.
pub(super) struct Around<'a> {
    pub(super) vm: &'a Vm,
    pub(super) swap: &'a Swap,
    pub(super) index: usize,
    /// SPSR_EL2.
    pub(super) pstate: u64,
    /// The vCPU is loaded on this CPU; else it is loaded nowhere.
    pub(super) is_loaded: bool,
}

impl<'a> Around<'a> {
    /// Around a vCPU that is loaded on this CPU.
    pub(super) fn loaded(vm: &'a Vm, swap: &'a Swap, index: usize, pstate: u64) -> Self {
        Self { vm, swap, index, pstate, is_loaded: true }
    }

    /// Around one that is loaded nowhere.
    pub(super) fn unloaded(vm: &'a Vm, swap: &'a Swap, index: usize) -> Self {
        Self { vm, swap, index, pstate: 0, is_loaded: false }
    }

    /// That of a vCPU that takes no interrupt.
    fn closed(&self, pc: u64) -> Context {
        let interface = CpuInterface { enabled: [false; 2], mask: 0, running: 0, binary_point: [0; 2] };
        let ppi = Interrupt { group: Group::One, enabled: false, pending: false, active: false, priority: 0xff };
        Context { pc, pstate: self.pstate, interface, ppi }
    }

    #[inline(never)]
    fn context(&self, pc: u64) -> Context {
        // A vCPU without an interface takes nothing.
        self.vm.devices().gic.look(self.index).map_or_else(
            || self.closed(pc),
            |look| {
                let interface = CpuInterface {
                    enabled: look.groups,
                    mask: look.mask,
                    running: look.running,
                    binary_point: look.binary_point,
                };
                let ppi = Interrupt {
                    group: if look.is_group1 { Group::One } else { Group::Zero },
                    enabled: look.is_enabled,
                    pending: look.is_pending,
                    active: look.is_active,
                    priority: look.priority,
                };
                Context { pc, pstate: self.pstate, interface, ppi }
            },
        )
    }

    fn waiter(&self, ticket: Ticket) -> Waiter {
        Waiter::Vcpu { vcpu: self.index as u32, ticket }
    }
}

impl Host for Around<'_> {
    type Memory = Memory;

    fn memory(&self) -> &Self::Memory {
        self.vm.memory()
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        if self.memory().bring(absent.page, self.waiter(ticket)).is_err() {
            let _stale = self.swap.arrivals(self.index).complete(ticket, Arrival::Failed);
        }
        self.swap.asked(absent.page);
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.memory().forget(self.waiter(ticket));
    }

    fn map(&mut self, fault: &GuestFault) {
        // If the page has left again, the guest's repeated access asks for it.
        self.memory().map_arrived(fault);
    }

    fn raise(&mut self) {
        self.vm.devices().gic.announce(self.index, true, self.is_loaded);
    }

    fn lower(&mut self) {
        self.vm.devices().gic.announce(self.index, false, self.is_loaded);
    }

    fn can_take_interrupt(&mut self) -> bool {
        self.vm.devices().gic.can_take(self.index, self.pstate, self.is_loaded)
    }
}
