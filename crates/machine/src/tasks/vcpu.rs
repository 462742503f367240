// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One vCPU of the machine: its clock, its kernel, its interrupts, and the hypervisor's half of its asynchronous faults.
//!
//! Invariant: the clock never goes back, and the vCPU is in its guest at its clock and nowhere else.

use twofold_memory::GuestFault;
use twofold_memory::async_fault::{
    AbsentPage, AreaMemory, Arrivals, Completion, Context, Host, Mode, Next, Ticket, VcpuFaults, Wait,
};
use twofold_stage2::Ipa;

use super::kernel::Kernel;
use super::lines::{INTERFACE, Lines, interrupt};
use super::pager::{Pager, Request};
use super::time::Nanos;

/// A vCPU.
pub(super) struct TaskVcpu<M: AreaMemory> {
    pub number: usize,
    pub clock: Nanos,
    pub place: Place,
    /// A completion asks it to leave its guest.
    pub kicked: bool,
    pub lines: Lines,
    pub kernel: Kernel,
    pub counts: VcpuCounts,
    faults: VcpuFaults<M>,
    arrivals: Arrivals,
}

/// Where a vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In its guest.
    Guest,
    /// On its way into the guest.
    Entering,
    /// Outside, since this moment.
    Halted { wait: Wait, since: Nanos },
    /// In WFI, since this moment.
    Idle { since: Nanos },
    /// Stopped: the store cannot bring this page.
    Stopped { page: Ipa },
}

/// What a vCPU counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuCounts {
    /// Stage-2 faults.
    pub faults: u64,
    /// Other exits.
    pub exits: u64,
    /// Pages that arrived for it.
    pub pages: u64,
    /// Announcements of absent pages.
    pub announced: u64,
    /// Halts: it waited outside the guest for a page.
    pub halts: u64,
    /// The time of these.
    pub halted: Nanos,
    /// The time in which no task was ready.
    pub idle: Nanos,
}

impl<M: AreaMemory> TaskVcpu<M> {
    /// A vCPU that starts its kernel at this moment.
    pub fn new(number: usize, mode: Mode, kernel: Kernel, now: Nanos) -> Self {
        Self {
            number,
            clock: now,
            place: Place::Entering,
            kicked: false,
            lines: Lines::new(),
            kernel,
            counts: VcpuCounts::default(),
            faults: VcpuFaults::new(mode),
            arrivals: Arrivals::new(),
        }
    }

    /// When it has something to do; `None` if it waits for a kick.
    pub fn next(&self) -> Option<Nanos> {
        let timer = || self.lines.deadline().filter(|_| self.lines.would_take_timer(self.kernel.pstate()));
        match self.place {
            Place::Guest | Place::Entering => Some(self.clock),
            Place::Idle { .. } | Place::Halted { wait: Wait::PageOrInterrupt, .. } => {
                timer().map(|deadline| deadline.max(self.clock))
            }
            Place::Halted { wait: Wait::Page, .. } | Place::Stopped { .. } => None,
        }
    }

    /// Where completions are reported.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// A vCPU that waits goes on at this moment, or at its clock if that is later. `price`: of its wake-up.
    pub fn wake(&mut self, at: Nanos, price: Nanos) {
        let at = at.max(self.clock);
        match self.place {
            Place::Halted { since, .. } => self.counts.halted += at - since,
            Place::Idle { since } => self.counts.idle += at - since,
            Place::Guest | Place::Entering | Place::Stopped { .. } => return,
        }
        (self.clock, self.place) = (at + price, Place::Entering);
    }

    /// The hypervisor's answer to a fault on an absent page.
    pub fn fault<P: Pager<Memory = M>>(&mut self, pager: &mut P, absent: &AbsentPage) {
        let kernel = &self.kernel;
        let context = Context { pc: kernel.pc(), pstate: kernel.pstate(), interface: INTERFACE, ppi: interrupt(false) };
        let (faults, arrivals, mut outside) = self.outside(pager);
        let next = faults.fault(arrivals, &mut outside, absent, &context);
        let (raised, pages) = (outside.raised, outside.pages);
        self.counts.announced += u64::from(raised);
        self.counts.pages += pages;
        self.go(next);
    }

    /// What comes before each entry.
    pub fn enter<P: Pager<Memory = M>>(&mut self, pager: &mut P) {
        self.lines.fire(self.clock);
        let (faults, arrivals, mut outside) = self.outside(pager);
        let next = faults.before_entry(arrivals, &mut outside);
        self.go(next);
    }

    /// Answers a hypercall; `None` if there is none of that number.
    pub fn call<P: Pager<Memory = M>>(&mut self, pager: &mut P, arguments: [u64; 3]) -> Option<i64> {
        let (faults, arrivals, mut outside) = self.outside(pager);
        faults.call(arrivals, &mut outside, arguments)
    }

    /// The store works again: asks for the pages that failed.
    pub fn retry_failed<P: Pager<Memory = M>>(&mut self, pager: &mut P) {
        let (faults, arrivals, mut outside) = self.outside(pager);
        faults.retry_failed(arrivals, &mut outside);
        if matches!(self.place, Place::Stopped { .. }) {
            self.place = Place::Entering;
        }
    }

    /// The price of an exit that is no fault.
    pub fn exit(&mut self, price: Nanos) {
        self.counts.exits += 1;
        self.clock += price;
    }

    /// The kernel has scheduled: sets the timer for the slice, and charges a switch if there was one.
    pub fn switched(&mut self, switched: bool, price: Nanos) {
        self.lines.set_timer(self.kernel.scheduler().deadline());
        if switched {
            self.clock += price;
        }
    }

    fn go(&mut self, next: Next) {
        self.place = match next {
            Next::Enter => Place::Guest,
            Next::Wait(wait) => {
                self.counts.halts += 1;
                Place::Halted { wait, since: self.clock }
            }
            Next::Stop { page } => Place::Stopped { page },
        };
    }

    fn outside<'a, P: Pager<Memory = M>>(
        &'a mut self,
        pager: &'a mut P,
    ) -> (&'a mut VcpuFaults<M>, &'a Arrivals, Outside<'a, P>) {
        let pstate = self.kernel.pstate();
        let Self { number: vcpu, clock: now, lines, faults, arrivals, .. } = self;
        (faults, arrivals, Outside { pager, arrivals, vcpu: *vcpu, now: *now, lines, pstate, raised: false, pages: 0 })
    }
}

/// The machine around a vCPU that is not in its guest.
struct Outside<'a, P> {
    pager: &'a mut P,
    arrivals: &'a Arrivals,
    vcpu: usize,
    now: Nanos,
    lines: &'a mut Lines,
    pstate: u64,
    raised: bool,
    /// Pages that arrived when they were asked for.
    pages: u64,
}

impl<P: Pager> Host for Outside<'_, P> {
    type Memory = P::Memory;

    fn memory(&self) -> &P::Memory {
        self.pager.memory()
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        if let Some(arrival) = self.pager.ask(self.now, Request { vcpu: self.vcpu, ticket }, absent) {
            // The state machine looks after each start, so the vCPU needs no kick.
            self.pages += u64::from(self.arrivals.complete(ticket, arrival) != Completion::Stale);
        }
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.pager.cancel(Request { vcpu: self.vcpu, ticket });
    }

    fn map(&mut self, fault: &GuestFault) {
        // The guest repeats the access. If the page has left again, or there is no frame, it faults and asks again.
        let _ = self.pager.fault(self.now, fault);
    }

    fn raise(&mut self) {
        self.raised = true;
        self.lines.set_ppi(true);
    }

    fn lower(&mut self) {
        self.lines.set_ppi(false);
    }

    fn can_take_interrupt(&mut self) -> bool {
        self.lines.can_take(self.pstate)
    }
}
