// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state machine of one vCPU. The steps F1 to F7 and E1 to E4 are those of [`super`].

use twofold_abi::async_fault::{NO_TOKEN, WAKE_ALL};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, FaultKind};

use super::area::{Absent, Announcement, Area, AreaMemory, Unreachable};
use super::arrivals::{Arrivals, Ticket};
use super::interrupts::{self, CpuInterface, Interrupt};
use super::requests::{AREA, AbsentPage, Requests, SPARE, State};
use crate::guest_fault::GuestFault;

/// What a vCPU does while a page is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It waits for the page.
    Off,
    /// It waits for the page, or for an interrupt that it can take.
    Halt,
    /// It runs on, if the guest has enabled announcements.
    Pv,
}

/// The guest at the moment of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The address of the instruction that made the access (ELR_EL2).
    pub pc: u64,
    /// The guest's PSTATE (SPSR_EL2).
    pub pstate: u64,
    /// The vCPU's interface to its GIC.
    pub interface: CpuInterface,
    /// The PPI of announcements.
    pub ppi: Interrupt,
}

/// What the vCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// It enters the guest.
    Enter,
    /// It stays out of the guest. At the event, the embedder calls [`VcpuFaults::before_entry`] again.
    Wait(Wait),
    /// The guest is stopped: the store cannot bring this page. [`VcpuFaults::retry_failed`] goes on.
    Stop {
        /// The start of what has to arrive.
        page: Ipa,
    },
}

/// The event that a vCPU waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A kick.
    Page,
    /// A kick, or an interrupt that becomes pending for the vCPU.
    PageOrInterrupt,
}

/// What the state machine needs of the machine that runs the vCPU. Each call is for this vCPU.
pub trait Host {
    /// The guest's RAM.
    type Memory: AreaMemory;

    /// The guest's RAM.
    fn memory(&self) -> &Self::Memory;

    /// Asks the store for a page. The store completes the ticket ([`Arrivals::complete`]) when the page's content is in
    /// memory, on any CPU, and possibly before this returns.
    fn start(&mut self, ticket: Ticket, absent: &AbsentPage);

    /// This ticket's completion is not needed any more. The store may bring the page all the same. If it completes the
    /// ticket, nothing happens.
    fn cancel(&mut self, ticket: Ticket);

    /// Repeats a fault whose page has arrived. If that fails, the guest will fault again.
    fn map(&mut self, fault: &GuestFault);

    /// Makes the PPI pending. It is edge-triggered.
    fn raise(&mut self);

    /// Makes the PPI not pending.
    fn lower(&mut self);

    /// Whether the vCPU takes an interrupt as its next step if it is entered now ([`interrupts::can_take`] of any).
    fn can_take_interrupt(&mut self) -> bool;
}

/// The asynchronous page faults of one vCPU.
pub struct VcpuFaults<M: AreaMemory> {
    pub(super) mode: Mode,
    pub(super) enabled: Option<Enabled<M>>,
    pub(super) requests: Requests,
    /// The slot that the vCPU waits for. It says nothing of the guest's own state (WFI).
    halted: Option<usize>,
    /// Announcements so far.
    pub(super) sequence: u64,
    /// What was written to the area and not acknowledged, or [`NO_TOKEN`].
    pub(super) unacknowledged: u32,
    /// Whether wake-all is to be delivered.
    pub(super) wake_all: bool,
}

/// What the guest has enabled.
pub(super) struct Enabled<M: AreaMemory> {
    pub area: Area<M>,
    /// Whether EL1's own faults are announced.
    pub kernel: bool,
}

impl<M: AreaMemory> VcpuFaults<M> {
    /// A vCPU that has asked for nothing, and has announcements disabled.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            enabled: None,
            requests: Requests::default(),
            halted: None,
            sequence: 0,
            unacknowledged: NO_TOKEN,
            wake_all: false,
        }
    }

    /// Whether the guest has enabled announcements. Only then a fault's [`Context`] matters.
    pub fn is_enabled(&self) -> bool {
        self.enabled.is_some()
    }

    /// Pages that were announced so far.
    pub fn announced(&self) -> u64 {
        self.sequence
    }

    /// Answers a fault on an absent page (F1 to F7).
    pub fn fault(
        &mut self,
        arrivals: &Arrivals,
        host: &mut impl Host<Memory = M>,
        absent: &AbsentPage,
        context: &Context,
    ) -> Next {
        let in_flight = self.requests.find(absent.page);
        let slot = in_flight.unwrap_or_else(|| self.requests.choose());
        self.halted = Some(slot);
        if in_flight.is_none() {
            if let Some(ticket) = self.requests.cancel(arrivals, slot) {
                host.cancel(ticket);
            }
            self.start(arrivals, host, slot, absent);
        }
        self.take(arrivals, host);
        if in_flight.is_none() && self.is_in_flight(slot) && self.announce(arrivals, host, slot, context) {
            self.halted = None;
        }
        self.next(host)
    }

    /// What the vCPU does before it enters the guest, or instead (E1 to E4).
    pub fn before_entry(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>) -> Next {
        self.take(arrivals, host);
        if self.deliver(arrivals, host) {
            host.raise();
        }
        self.next(host)
    }

    /// Asks again for the pages that failed. The caller then goes on as before any entry.
    pub fn retry_failed(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>) {
        while let Some((slot, request)) = self.requests.failed() {
            let absent = request.absent;
            let ticket = self.requests.reopen(arrivals, slot);
            host.start(ticket, &absent);
        }
    }

    /// Disables announcements, and cancels everything: for a vCPU that is switched off, for each vCPU at a reset, and
    /// when the guest asks for it.
    pub fn off(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>) {
        self.enabled = None;
        self.unacknowledged = NO_TOKEN;
        self.wake_all = false;
        for slot in 0..=AREA {
            if let Some(ticket) = self.requests.cancel(arrivals, slot) {
                host.cancel(ticket);
            }
        }
        host.lower();
    }

    /// Writes wake-all or a token into the area, if one is due. Returns whether it did.
    pub(super) fn deliver(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>) -> bool {
        if self.unacknowledged != NO_TOKEN {
            return false;
        }
        let token = if self.wake_all { Some(WAKE_ALL) } else { self.requests.oldest_ready() };
        let (Some(token), Some(enabled)) = (token, &mut self.enabled) else { return false };
        match enabled.area.ready(host.memory(), token) {
            Ok(()) => {
                self.unacknowledged = token;
                self.wake_all &= token != WAKE_ALL;
                true
            }
            Err(unreachable) => {
                self.want_area(arrivals, host, unreachable);
                false
            }
        }
    }

    /// F6 and F7. Returns whether the page was announced.
    fn announce(
        &mut self,
        arrivals: &Arrivals,
        host: &mut impl Host<Memory = M>,
        slot: usize,
        context: &Context,
    ) -> bool {
        let Context { pc, pstate, ref interface, ref ppi } = *context;
        let user = interrupts::is_user(pstate);
        let Some(enabled) = &mut self.enabled else { return false };
        if slot == SPARE || !(user || enabled.kernel) || !interrupts::would_take(pstate, interface, ppi) {
            return false;
        }
        let sequence = self.sequence + 1;
        let token = self.requests.token_for(sequence, self.unacknowledged);
        let announced = enabled.area.announce(host.memory(), &Announcement { token, user, pc, sequence });
        let is_announced = match announced {
            Ok(written) => written,
            Err(unreachable) => {
                self.want_area(arrivals, host, unreachable);
                false
            }
        };
        if is_announced && let Some(request) = self.requests.get_mut(slot) {
            (request.token, request.sequence) = (token, sequence);
            self.sequence = sequence;
            host.raise();
        }
        is_announced
    }

    /// Asks for the area's page, if that is what is missing and nothing has asked for it.
    fn want_area(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>, unreachable: Unreachable) {
        let (Unreachable::Absent(Absent { page }), Some(enabled)) = (unreachable, &self.enabled) else { return };
        if self.requests.get(AREA).is_none() {
            let ipa = enabled.area.ipa();
            let fault = GuestFault { ipa, kind: FaultKind::Translation, access: AccessKind::Write };
            let absent = AbsentPage { page, fault };
            self.start(arrivals, host, AREA, &absent);
        }
    }

    fn start(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>, slot: usize, absent: &AbsentPage) {
        let ticket = self.requests.open(arrivals, slot, *absent);
        host.start(ticket, absent);
    }

    fn take(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>) {
        self.requests.take(arrivals, self.halted, |fault| host.map(fault));
    }

    fn is_in_flight(&self, slot: usize) -> bool {
        self.requests.get(slot).is_some_and(|request| request.state == State::InFlight)
    }

    /// E3 and E4. A halt ends where this returns [`Next::Enter`].
    fn next(&mut self, host: &mut impl Host<Memory = M>) -> Next {
        if let Some((_, failed)) = self.requests.failed() {
            return Next::Stop { page: failed.absent.page };
        }
        if self.halted.is_some_and(|slot| self.is_in_flight(slot)) {
            if self.mode == Mode::Off {
                return Next::Wait(Wait::Page);
            }
            if !host.can_take_interrupt() {
                return Next::Wait(Wait::PageOrInterrupt);
            }
        }
        self.halted = None;
        Next::Enter
    }
}
