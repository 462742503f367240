// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A loaded vCPU that needs a page which is not in memory. While the page is on its way and the CPU has nothing else to do,
//! the vCPU stays loaded: neither its registers nor its interrupt controller are put away and loaded again. The steps W1 to W5,
//! D1 to D5 and V1 are those of [`swap`](crate::swap).
//!
//! # The steps
//!
//! - R1. The scheduler blocks the vCPU if nothing else is to run, and notes that the CPU is idle. Otherwise the turn ends (W3).
//! - R2. EL2's timer is set to what comes first, and the CPU waits for an interrupt.
//! - R3. It takes all interrupts, as those of a loaded vCPU.
//! - R4. It looks for a reason to go on: an arrival, an interrupt that the vCPU can take if its mode lets one end the wait, or
//!   the end of its guest. With a reason it wakes the vCPU, and does V1 if the scheduler gives it the CPU again. Without one,
//!   and with nothing else to run, it goes back to R2.
//! - R5. Otherwise the vCPU leaves, blocked or in a queue: T5 and T6, and W4 again. What is found there wakes it. Its timers
//!   become deadlines as in W5.
//!
//! # Why no wake-up is lost
//!
//! From R1 to R5 the vCPU is loaded: what kicks it interrupts this CPU, which is at EL2 with interrupts masked. So the kick
//! ends R2, and R4 looks after that. A kick that finds the vCPU loaded nowhere came after U of R5, and wakes it. What came
//! before U is found by the look that follows U. A wake-up through the scheduler finds that this CPU is idle, and interrupts
//! it; `pick` in R4 then finds the vCPU in the queue.
//!
//! Another CPU may take the vCPU out of the queue first. It waits for the vCPU's lock, which this CPU gives back in R5: it was
//! interrupted, and finds that the vCPU is not blocked any more. The look that follows U needs the lock, too. If it is taken
//! again, the other CPU has loaded the vCPU after U, and looks by V1. A deadline that is set although the vCPU has run
//! elsewhere meanwhile wakes it once without a reason.
//!
//! A kick of the vCPU by its own CPU in R3 need not interrupt anything, since R4 looks ([`cpus::will_look`]).

use core::arch::asm;

use twofold_memory::GuestFault;
use twofold_memory::async_fault::{Next, Wait};
use twofold_stage2::Ipa;
use twofold_stage2::fault::Fault;

use super::exits::Loaded;
use super::pages::{self, Around};
use super::state::Leave;
use crate::gic::{interface, physical};
use crate::schedule::deadlines::NEVER;
use crate::stats::Purpose;
use crate::swap::Swap;
use crate::{cpus, schedule};

/// What R4 has found.
enum Looked {
    /// The vCPU waits.
    Waits,
    /// It does V1.
    GoesOn,
    /// It leaves, for this reason.
    Leaves(Leave),
}

impl Loaded<'_> {
    /// The page of this fault is not in memory.
    pub(super) fn absent(&mut self, fault: &Fault, ipa: Ipa) -> Option<Leave> {
        let (pc, pstate) = (self.running.context().pc, self.running.context().pstate);
        let (vm, index) = (self.vm, self.index);
        let (Some(pages), Some(swap)) = (&mut self.own.pages, vm.swap()) else {
            return self.fail(format_args!("{ipa:x?} is absent, and there is no page store"));
        };
        let fault = GuestFault { ipa, kind: fault.kind, access: fault.access };
        let next = pages.fault(&mut Around::loaded(vm, swap, index, pstate), &fault, pc);
        self.obey_pages(next, swap)
    }

    /// V1: takes what has arrived. Returns the reason to leave, if the vCPU still waits.
    #[cold]
    #[inline(never)]
    pub(super) fn look_for_pages(&mut self) -> Option<Leave> {
        let pstate = self.running.context().pstate;
        let (vm, index) = (self.vm, self.index);
        let (Some(pages), Some(swap)) = (&mut self.own.pages, vm.swap()) else { return None };
        let next = pages.before_entry(&mut Around::loaded(vm, swap, index, pstate));
        self.obey_pages(next, swap)
    }

    /// Does what the state machine says, until the vCPU goes on (V1) or leaves.
    fn obey_pages(&mut self, mut next: Next, swap: &Swap) -> Option<Leave> {
        loop {
            pages::set_deadline(self.cpu, swap);
            match next {
                Next::Enter => {
                    self.arm();
                    return None;
                }
                Next::Wait(wait) => {
                    if let Some(leave) = self.rest(swap, wait) {
                        return Some(leave);
                    }
                }
                Next::Stop { page } => {
                    let why = swap.why(Some(page));
                    return self.fail(format_args!("the page at {page} is in the store, and cannot be brought{why}"));
                }
            }
            let (pstate, vm, index) = (self.running.context().pstate, self.vm, self.index);
            let Some(pages) = &mut self.own.pages else { return None };
            next = pages.before_entry(&mut Around::loaded(vm, swap, index, pstate));
        }
    }

    /// R1 to R4. Returns the reason to leave; `None`: V1 comes next.
    #[cold]
    #[inline(never)]
    fn rest(&mut self, swap: &Swap, wait: Wait) -> Option<Leave> {
        if !schedule::rest(self.cpu.number) {
            return Some(Leave::Page);
        }
        self.cpu.meter.is_for(Purpose::Switch);
        self.cpu.until = NEVER;
        self.arm();
        let mut is_silent = false;
        let leave = loop {
            // SAFETY: waiting changes nothing. The barrier lets what this CPU has written be seen before it waits.
            unsafe { asm!("dsb ish", "wfi", options(nostack, preserves_flags)) };
            if !self.take_interrupts() {
                // A virtual interrupt that the vCPU cannot take yet may end each wait.
                interface::ThisCpu.signal(false);
                is_silent = true;
            }
            match self.look(swap, wait) {
                Looked::Waits => {}
                Looked::GoesOn => break None,
                Looked::Leaves(leave) => break Some(leave),
            }
        };
        if is_silent {
            interface::ThisCpu.signal(true);
        }
        self.in_pieces();
        leave
    }

    /// R3. Returns whether there was one.
    fn take_interrupts(&mut self) -> bool {
        cpus::will_look(true);
        let mut has_any = false;
        loop {
            cpus::looks().look();
            let Some(intid) = physical::acknowledge() else { break };
            self.take(intid);
            has_any = true;
        }
        cpus::will_look(false);
        has_any
    }

    /// R4.
    fn look(&mut self, swap: &Swap, wait: Wait) -> Looked {
        let (number, entity) = (self.cpu.number, self.vm.vcpus[self.index].entity);
        let has_stopped = self.vm.has_stopped();
        let has_reason = has_stopped || self.has_reason(swap, wait);
        let is_due = schedule::is_due(number);
        if !has_reason && !is_due {
            return Looked::Waits;
        }
        let goes_on = if has_stopped { Looked::Leaves(Leave::Stop) } else { Looked::GoesOn };
        if !is_due && schedule::resume(entity, number) {
            return goes_on;
        }
        if has_reason {
            schedule::wake(entity);
        }
        let decision = schedule::pick(number);
        if decision.run == Some(entity) {
            self.cpu.until = decision.until;
            // It has waited in a queue.
            self.own.stolen.turn_begins(self.vm.memory(), self.vm.counter_offset());
            return goes_on;
        }
        if decision.run.is_none() && !has_reason && schedule::is_blocked(entity) {
            return Looked::Waits;
        }
        self.cpu.next = decision;
        Looked::Leaves(Leave::Rested)
    }

    /// R4: whether the vCPU, which is loaded here, need not wait any longer.
    fn has_reason(&mut self, swap: &Swap, wait: Wait) -> bool {
        swap.arrivals(self.index).has_any()
            || wait == Wait::PageOrInterrupt
                && self.vm.devices().gic.can_take(self.index, self.running.context().pstate, true)
    }
}
