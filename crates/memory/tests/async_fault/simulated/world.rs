// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two vCPUs with their guests, and a store that answers in any order. A vCPU that waits runs only at the event that it
//! waits for. So a lost kick leaves tasks asleep.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::rc::Rc;

use twofold_abi::async_fault::{ACKNOWLEDGE, DISABLE, ENABLE, NO_TOKEN, SUCCESS, WAKE_ALL, area, flags};
use twofold_memory::GuestFault;
use twofold_memory::async_fault::{
    AbsentPage, Arrival, Arrivals, Completion, Context, Host, Mode, Next, Ticket, VcpuFaults, Wait,
};
use twofold_stage2::fault::{AccessKind, FaultKind};

use super::guest::{Access, Act, Guest, Kind, Task};
use crate::rig::{self, AREA, AREA_PAGE, PAGE, Ram, Rig};

/// What a random order is made of.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Run {
        vcpu: usize,
        steps: u8,
    },
    /// The store brings one of the pages that it was asked for.
    Complete {
        which: usize,
    },
    Fail {
        which: usize,
    },
    /// The store completes a ticket that was completed or cancelled before.
    CompleteAgain {
        which: usize,
    },
    /// The store answers the next request before it returns.
    AnswerAtOnce,
    /// The store works again.
    Mend,
    Evict {
        page: u64,
    },
    EvictArea {
        vcpu: usize,
    },
    /// Another slot comes in the place of the area's, with the same content.
    ReplaceSlot {
        vcpu: usize,
    },
    Timer {
        vcpu: usize,
        first: bool,
        page: Option<u64>,
    },
    /// The guest disables announcements and enables them again.
    Restart {
        vcpu: usize,
    },
    /// The vCPU is switched off, or reset, and starts again.
    Reset {
        vcpu: usize,
    },
    /// Both vCPUs move to another machine, where no page is present.
    Migrate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Waiting(Wait),
    Stopped,
}

struct Vcpu {
    faults: VcpuFaults<Ram>,
    arrivals: Rc<Arrivals>,
    ram: Rc<Ram>,
    guest: Guest,
    state: State,
    /// An event makes the vCPU leave the guest or its sleep.
    kicked: bool,
    interrupted: bool,
    /// Tokens that are out, and whether they were delivered.
    tokens: BTreeMap<u32, bool>,
    /// The last fault, and how much had happened by then.
    last_fault: Option<(Option<u64>, Access, u64)>,
}

/// A request that the store has, or had.
struct Request {
    vcpu: usize,
    arrivals: Rc<Arrivals>,
    ticket: Ticket,
    page: Option<u64>,
}

/// What happened, to see that the orders are not idle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub announced: usize,
    pub parked: usize,
    pub declined: usize,
    pub woken_by_all: usize,
    pub halts: usize,
    pub stops: usize,
    pub stale: usize,
}

pub struct World {
    mode: Mode,
    flags: u64,
    vcpus: Vec<Vcpu>,
    present: BTreeSet<u64>,
    in_flight: Vec<Request>,
    old: Vec<Request>,
    at_once: bool,
    /// Completions, interrupts and all else that can make an access worth repeating.
    events: u64,
    pub seen: Seen,
}

/// The host of one vCPU during one call.
struct Machine<'a> {
    vcpu: usize,
    ram: Rc<Ram>,
    arrivals: Rc<Arrivals>,
    guest: &'a mut Guest,
    in_flight: &'a mut Vec<Request>,
    old: &'a mut Vec<Request>,
    present: &'a mut BTreeSet<u64>,
    at_once: bool,
}

impl Host for Machine<'_> {
    type Memory = Ram;

    fn memory(&self) -> &Ram {
        &self.ram
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        let page = (absent.page != AREA_PAGE).then(|| (absent.page - rig::ipa(0)) / PAGE);
        let request = Request { vcpu: self.vcpu, arrivals: self.arrivals.clone(), ticket, page };
        if !mem::take(&mut self.at_once) {
            return self.in_flight.push(request);
        }
        bring(self.present, &self.ram, page);
        assert_ne!(self.arrivals.complete(ticket, Arrival::Present), Completion::Stale);
        self.old.push(request);
    }

    fn cancel(&mut self, ticket: Ticket) {
        let own = |request: &Request| request.vcpu == self.vcpu && request.ticket == ticket;
        let at = self.in_flight.iter().position(own).expect("the store has what is cancelled");
        self.old.push(self.in_flight.remove(at));
    }

    fn map(&mut self, _fault: &GuestFault) {}

    fn raise(&mut self) {
        self.guest.ppi = true;
    }

    fn lower(&mut self) {
        self.guest.ppi = false;
    }

    fn can_take_interrupt(&mut self) -> bool {
        self.guest.can_take_interrupt()
    }
}

fn bring(present: &mut BTreeSet<u64>, ram: &Ram, page: Option<u64>) {
    match page {
        Some(page) => drop(present.insert(page)),
        None => ram.absent.set(false),
    }
}

impl World {
    pub fn new(mode: Mode, kernel: bool, tasks: [Vec<Task>; 2]) -> Self {
        let flags = if kernel { flags::KERNEL } else { 0 };
        let vcpus = tasks.map(|tasks| Vcpu {
            faults: VcpuFaults::new(mode),
            arrivals: Rc::new(Arrivals::new()),
            ram: Rc::new(Ram::new()),
            guest: Guest::new(tasks),
            state: State::Running,
            kicked: true,
            interrupted: false,
            tokens: BTreeMap::new(),
            last_fault: None,
        });
        let mut world = Self {
            mode,
            flags,
            vcpus: vcpus.into(),
            present: BTreeSet::new(),
            in_flight: Vec::new(),
            old: Vec::new(),
            at_once: false,
            events: 0,
            seen: Seen::default(),
        };
        (0..2).for_each(|vcpu| world.enable(vcpu));
        world
    }

    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Run { vcpu, steps } => (0..steps).for_each(|_| self.step(vcpu)),
            Event::Complete { which } => self.complete(which, Arrival::Present),
            Event::Fail { which } => self.complete(which, Arrival::Failed),
            Event::CompleteAgain { which } => {
                if let Some(request) = which.checked_rem(self.old.len()).map(|at| &self.old[at]) {
                    assert_eq!(request.arrivals.complete(request.ticket, Arrival::Present), Completion::Stale);
                    self.seen.stale += 1;
                }
            }
            Event::AnswerAtOnce => self.at_once = true,
            Event::Mend => self.mend(),
            Event::Evict { page } => {
                self.present.remove(&page);
                self.events += 1;
            }
            Event::EvictArea { vcpu } => {
                self.vcpus[vcpu].ram.absent.set(true);
                self.events += 1;
            }
            Event::ReplaceSlot { vcpu } => {
                let ram = &self.vcpus[vcpu].ram;
                let bytes = *ram.bytes[ram.here.get()].borrow();
                ram.replace_slot();
                *ram.bytes[ram.here.get()].borrow_mut() = bytes;
            }
            Event::Timer { vcpu, first, page } => {
                let vcpu = &mut self.vcpus[vcpu];
                (vcpu.guest.timer, vcpu.guest.timer_first, vcpu.guest.timer_page) = (true, first, page);
                vcpu.interrupted = true;
            }
            Event::Restart { vcpu } => self.restart(vcpu),
            Event::Reset { vcpu } => self.reset(vcpu),
            Event::Migrate => self.migrate(),
        }
    }

    /// The tasks of a vCPU that sleep.
    pub fn asleep(&self, vcpu: usize) -> Vec<usize> {
        let tasks = self.vcpus[vcpu].guest.tasks.iter().enumerate();
        tasks.filter(|(_, task)| task.parked.is_some()).map(|(task, _)| task).collect()
    }

    /// The store brings all that it is asked for, and no other event comes. Every task ends.
    pub fn drain(&mut self) {
        self.at_once = false;
        for _ in 0..2_000 {
            self.mend();
            while !self.in_flight.is_empty() {
                self.complete(0, Arrival::Present);
            }
            for vcpu in 0..2 {
                (0..20).for_each(|_| self.step(vcpu));
            }
            if self.in_flight.is_empty() && self.vcpus.iter().all(|vcpu| vcpu.guest.is_done() && !vcpu.kicked) {
                break;
            }
        }
        for (vcpu, Vcpu { guest, tokens, state, .. }) in self.vcpus.iter().enumerate() {
            let asleep: Vec<_> = guest.tasks.iter().filter(|task| task.parked.is_some()).collect();
            assert!(asleep.is_empty(), "vCPU {vcpu}, {state:?}: asleep {asleep:?}");
            assert!(guest.is_done(), "vCPU {vcpu}, {state:?}: {:?} {:?}", guest.kernel, guest.current);
            assert!(tokens.is_empty(), "vCPU {vcpu}: tokens never delivered or acknowledged: {tokens:?}");
            self.seen.parked += guest.parked;
            self.seen.declined += guest.declined;
            self.seen.woken_by_all += guest.woken_by_all;
        }
    }

    fn complete(&mut self, which: usize, arrival: Arrival) {
        let Some(at) = which.checked_rem(self.in_flight.len()) else { return };
        let request = self.in_flight.remove(at);
        if arrival == Arrival::Present {
            bring(&mut self.present, &self.vcpus[request.vcpu].ram, request.page);
        }
        match request.arrivals.complete(request.ticket, arrival) {
            Completion::Kick => self.vcpus[request.vcpu].kicked = true,
            Completion::Noted => {}
            Completion::Stale => panic!("the store had {:?}, and nothing had ended it", request.ticket),
        }
        self.events += 1;
        self.old.push(request);
    }

    fn mend(&mut self) {
        for vcpu in 0..2 {
            if self.vcpus[vcpu].state == State::Stopped {
                self.with(vcpu, |faults, arrivals, machine| faults.retry_failed(arrivals, machine));
                self.enter(vcpu);
            }
        }
    }

    /// One step of a vCPU: an event that it waits for, or a step of its guest.
    fn step(&mut self, vcpu: usize) {
        let this = &self.vcpus[vcpu];
        let is_awaited = match this.state {
            State::Stopped => return,
            State::Running | State::Waiting(Wait::PageOrInterrupt) => this.kicked || this.interrupted,
            State::Waiting(Wait::Page) => this.kicked,
        };
        if is_awaited {
            return self.enter(vcpu);
        }
        if this.state == State::Running {
            self.run(vcpu);
        }
    }

    fn enter(&mut self, vcpu: usize) {
        (self.vcpus[vcpu].kicked, self.vcpus[vcpu].interrupted) = (false, false);
        let next = self.with(vcpu, |faults, arrivals, machine| faults.before_entry(arrivals, machine));
        self.go(vcpu, next);
    }

    fn go(&mut self, vcpu: usize, next: Next) {
        self.vcpus[vcpu].state = match next {
            Next::Enter => State::Running,
            Next::Wait(wait) => {
                self.seen.halts += 1;
                State::Waiting(wait)
            }
            Next::Stop { .. } => {
                self.seen.stops += 1;
                State::Stopped
            }
        };
    }

    fn run(&mut self, vcpu: usize) {
        let Vcpu { guest, ram, .. } = &mut self.vcpus[vcpu];
        match guest.act(ram, |page| self.present.contains(&page)) {
            Act::Inside | Act::Idle => {}
            Act::TakeInterrupt => self.events += 1,
            Act::Acknowledge(token) => {
                assert_eq!(self.call(vcpu, ACKNOWLEDGE, token.into(), 0), SUCCESS, "{token:#x}");
                self.vcpus[vcpu].tokens.remove(&token);
                self.enter(vcpu);
            }
            Act::Touch(page, access) => self.fault(vcpu, page, access),
        }
    }

    fn fault(&mut self, vcpu: usize, page: Option<u64>, access: Access) {
        let fault = (page, access, self.events);
        assert_ne!(self.vcpus[vcpu].last_fault, Some(fault), "vCPU {vcpu} spins");
        self.vcpus[vcpu].last_fault = Some(fault);
        let pstate = match access.kind {
            Kind::User => rig::USER,
            Kind::Kernel => rig::KERNEL,
            Kind::Masked => rig::MASKED,
        };
        let page = page.map_or(AREA_PAGE, rig::ipa);
        let fault = GuestFault { ipa: page, kind: FaultKind::Translation, access: AccessKind::Write };
        let context = Context { pc: access.pc, pstate, ..Rig::new(Mode::Off).context };
        let next = self.with(vcpu, |faults, arrivals, machine| {
            faults.fault(arrivals, machine, &AbsentPage { page, fault }, &context)
        });
        self.go(vcpu, next);
    }

    fn call(&mut self, vcpu: usize, function: u32, first: u64, second: u64) -> i64 {
        self.with(vcpu, |faults, arrivals, machine| {
            faults.call(arrivals, machine, [function.into(), first, second]).expect("one of these calls")
        })
    }

    /// Calls the state machine, and checks what it wrote for the guest.
    fn with<T>(&mut self, vcpu: usize, call: impl FnOnce(&mut VcpuFaults<Ram>, &Arrivals, &mut Machine<'_>) -> T) -> T {
        let Self { vcpus, present, in_flight, old, at_once, .. } = self;
        let Vcpu { faults, arrivals, ram, guest, kicked, tokens, .. } = &mut vcpus[vcpu];
        let mut machine = Machine {
            vcpu,
            ram: ram.clone(),
            arrivals: arrivals.clone(),
            guest,
            in_flight,
            old,
            present,
            at_once: *at_once,
        };
        let result = call(faults, arrivals, &mut machine);
        if *at_once && !machine.at_once {
            // The store kicked from inside `start`.
            (*at_once, *kicked) = (false, true);
            self.events += 1;
        }
        for (offset, bytes) in ram.writes.take() {
            let token = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            if offset == area::NOT_PRESENT {
                assert_ne!((token, bytes.len()), (NO_TOKEN, 0));
                assert_eq!(tokens.insert(token, false), None, "token {token} is out twice");
                self.seen.announced += 1;
            } else if token != WAKE_ALL {
                assert_eq!(offset, area::READY);
                assert_eq!(
                    tokens.insert(token, true),
                    Some(false),
                    "token {token} is delivered twice or was never out"
                );
            }
        }
        result
    }

    fn enable(&mut self, vcpu: usize) {
        if self.mode != Mode::Pv {
            return;
        }
        let ram = &self.vcpus[vcpu].ram;
        ram.absent.set(false);
        *ram.bytes[ram.here.get()].borrow_mut() = [0; 64];
        assert_eq!(self.call(vcpu, ENABLE, AREA, self.flags), SUCCESS);
    }

    fn restart(&mut self, vcpu: usize) {
        let this = &self.vcpus[vcpu];
        if self.mode != Mode::Pv || this.state != State::Running || this.guest.is_masked() {
            return;
        }
        assert_eq!(self.call(vcpu, DISABLE, 0, 0), SUCCESS);
        self.vcpus[vcpu].guest.wake(WAKE_ALL);
        self.vcpus[vcpu].tokens.clear();
        self.enable(vcpu);
        self.events += 1;
    }

    fn reset(&mut self, vcpu: usize) {
        self.with(vcpu, |faults, arrivals, machine| faults.off(arrivals, machine));
        let this = &mut self.vcpus[vcpu];
        this.guest.reset();
        this.tokens.clear();
        (this.state, this.kicked) = (State::Running, true);
        self.enable(vcpu);
        self.events += 1;
    }

    fn migrate(&mut self) {
        self.old.append(&mut self.in_flight);
        self.present.clear();
        self.events += 1;
        for this in &mut self.vcpus {
            let snapshot = this.faults.snapshot();
            let faults = VcpuFaults::restore(self.mode, &*this.ram, &snapshot);
            this.faults = faults.unwrap_or_else(|error| panic!("{snapshot:?} is refused: {error}"));
            this.arrivals = Rc::new(Arrivals::new());
            this.ram.absent.set(true);
            // The source's tokens are out no more, but for the one in the area.
            this.tokens.retain(|token, _| *token == snapshot.unacknowledged);
            (this.state, this.kicked) = (State::Running, true);
        }
        for request in &self.old {
            // What the source's store still does is of no concern here.
            let _ = request.arrivals.complete(request.ticket, Arrival::Present);
        }
    }
}

impl std::ops::Add for Seen {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            announced: self.announced + other.announced,
            parked: self.parked + other.parked,
            declined: self.declined + other.declined,
            woken_by_all: self.woken_by_all + other.woken_by_all,
            halts: self.halts + other.halts,
            stops: self.stops + other.stops,
            stale: self.stale + other.stale,
        }
    }
}
