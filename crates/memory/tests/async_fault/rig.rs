// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One vCPU's state machine, driven by hand: a host that records what it is asked for, and guest RAM with an area that
//! can leave and move.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use twofold_abi::async_fault::{ACKNOWLEDGE, DISABLE, ENABLE, SUCCESS, area, flags};
use twofold_memory::GuestFault;
use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt};
use twofold_memory::async_fault::{
    Absent, AbsentPage, AreaMemory, Arrival, Arrivals, Completion, Context, Host, Mode, Next, Ticket, VcpuFaults,
};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, FaultKind};

pub const PAGE: u64 = 4096;
/// The area is not at the start of its page.
pub const AREA_PAGE: Ipa = Ipa::new(0x4000_0000);
pub const AREA: u64 = AREA_PAGE.raw() + 0x1c0;

/// PSTATE of a user, and of EL1 with and without interrupts.
pub const USER: u64 = 0;
pub const KERNEL: u64 = 0b0101;
pub const MASKED: u64 = KERNEL | 1 << 7;

/// Guest RAM: the bytes of one area in each of two places, of which one is the slot's now.
pub struct Ram {
    pub bytes: [RefCell<[u8; 64]>; 2],
    pub here: Cell<usize>,
    pub generation: Cell<u64>,
    /// Whether the slot is gone.
    pub gone: Cell<bool>,
    pub absent: Cell<bool>,
    /// How often a place was looked for.
    pub translations: Cell<usize>,
    /// Every write, as offset and bytes.
    pub writes: RefCell<Vec<(usize, Vec<u8>)>>,
}

impl Ram {
    pub fn new() -> Self {
        let bytes = [[0; 64]; 2].map(RefCell::new);
        let (here, generation) = (Cell::new(0), Cell::new(7));
        let (gone, absent, writes) = (Cell::new(false), Cell::new(false), RefCell::default());
        Self { bytes, here, generation, gone, absent, translations: Cell::new(0), writes }
    }

    /// The slot goes, and another one comes in its place, with other memory.
    pub fn replace_slot(&self) {
        self.here.set(1 - self.here.get());
        self.generation.set(self.generation.get() + 1);
    }

    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes[self.here.get()].borrow()[offset..][..4].try_into().unwrap())
    }

    pub fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes[self.here.get()].borrow()[offset..][..8].try_into().unwrap())
    }

    /// The guest writes.
    pub fn set_u32(&self, offset: usize, value: u32) {
        self.bytes[self.here.get()].borrow_mut()[offset..][..4].copy_from_slice(&value.to_le_bytes());
    }

    fn reach(&self, place: usize) -> Result<(), Absent> {
        assert!(!self.gone.get() && place == self.here.get(), "an access by an old translation");
        if self.absent.get() { Err(Absent { page: AREA_PAGE }) } else { Ok(()) }
    }
}

impl AreaMemory for Ram {
    type Place = usize;

    fn generation(&self) -> u64 {
        self.generation.get()
    }

    fn place(&self, ipa: Ipa, size: u64) -> Option<usize> {
        assert_eq!(size, 64);
        self.translations.set(self.translations.get() + 1);
        (ipa.align_down(PAGE) == AREA_PAGE && !self.gone.get()).then(|| self.here.get())
    }

    fn read(&self, place: usize, offset: usize) -> Result<u32, Absent> {
        self.reach(place)?;
        Ok(self.u32(offset))
    }

    fn write(&self, place: usize, offset: usize, bytes: &[u8]) -> Result<(), Absent> {
        self.reach(place)?;
        self.bytes[place].borrow_mut()[offset..][..bytes.len()].copy_from_slice(bytes);
        self.writes.borrow_mut().push((offset, bytes.to_vec()));
        Ok(())
    }
}

/// What the vCPU's machine was asked for.
pub struct Recorder {
    pub ram: Rc<Ram>,
    pub arrivals: Rc<Arrivals>,
    pub started: Vec<(Ticket, Ipa)>,
    pub cancelled: Vec<Ticket>,
    pub mapped: Vec<Ipa>,
    pub raised: usize,
    pub lowered: usize,
    /// Whether the vCPU could take an interrupt now.
    pub interrupt: bool,
    /// How the store answers before `start` returns.
    pub at_once: Option<Arrival>,
}

impl Host for Recorder {
    type Memory = Ram;

    fn memory(&self) -> &Ram {
        &self.ram
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        self.started.push((ticket, absent.page));
        if let Some(arrival) = self.at_once {
            assert_eq!(self.arrivals.complete(ticket, arrival), Completion::Kick);
        }
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cancelled.push(ticket);
    }

    fn map(&mut self, fault: &GuestFault) {
        self.mapped.push(fault.ipa);
    }

    fn raise(&mut self) {
        self.raised += 1;
    }

    fn lower(&mut self) {
        self.lowered += 1;
    }

    fn can_take_interrupt(&mut self) -> bool {
        self.interrupt
    }
}

/// A vCPU with its host.
pub struct Rig {
    pub faults: VcpuFaults<Ram>,
    pub arrivals: Rc<Arrivals>,
    pub host: Recorder,
    pub context: Context,
}

impl Rig {
    /// A vCPU whose guest has enabled nothing.
    pub fn new(mode: Mode) -> Self {
        Self::around(VcpuFaults::new(mode), Rc::new(Ram::new()))
    }

    /// A vCPU whose guest has enabled announcements of its users' faults.
    pub fn enabled() -> Self {
        let mut rig = Self::new(Mode::Pv);
        assert_eq!(rig.call(ENABLE, AREA, 0), SUCCESS);
        rig
    }

    pub fn enabled_with_kernel() -> Self {
        let mut rig = Self::new(Mode::Pv);
        assert_eq!(rig.call(ENABLE, AREA, flags::KERNEL), SUCCESS);
        rig
    }

    pub fn around(faults: VcpuFaults<Ram>, ram: Rc<Ram>) -> Self {
        let arrivals = Rc::new(Arrivals::new());
        let host = Recorder {
            ram,
            arrivals: arrivals.clone(),
            started: Vec::new(),
            cancelled: Vec::new(),
            mapped: Vec::new(),
            raised: 0,
            lowered: 0,
            interrupt: false,
            at_once: None,
        };
        let interface = CpuInterface { enabled: [false, true], mask: 0xf0, running: 0xff, binary_point: [0, 1] };
        let ppi = Interrupt { group: Group::One, enabled: true, pending: false, active: false, priority: 0xa0 };
        let context = Context { pc: 0, pstate: USER, interface, ppi };
        Self { faults, arrivals, host, context }
    }

    pub fn call(&mut self, function: u32, first: u64, second: u64) -> i64 {
        let answer = self.faults.call(&self.arrivals, &mut self.host, [function.into(), first, second]);
        answer.expect("one of these calls")
    }

    pub fn acknowledge(&mut self, token: u32) -> i64 {
        self.call(ACKNOWLEDGE, token.into(), 0)
    }

    pub fn disable(&mut self) {
        assert_eq!(self.call(DISABLE, 0, 0), SUCCESS);
    }

    /// A fault on page `page`, by the instruction at `pc(page)`.
    pub fn fault(&mut self, page: u64) -> Next {
        self.fault_in(page, USER)
    }

    pub fn fault_in(&mut self, page: u64, pstate: u64) -> Next {
        let fault = GuestFault { ipa: ipa(page) + 8, kind: FaultKind::Translation, access: AccessKind::Write };
        let context = Context { pc: pc(page), pstate, ..self.context };
        self.faults.fault(&self.arrivals, &mut self.host, &AbsentPage { page: ipa(page), fault }, &context)
    }

    pub fn before_entry(&mut self) -> Next {
        self.faults.before_entry(&self.arrivals, &mut self.host)
    }

    pub fn off(&mut self) {
        self.faults.off(&self.arrivals, &mut self.host);
    }

    pub fn retry_failed(&mut self) {
        self.faults.retry_failed(&self.arrivals, &mut self.host);
    }

    /// The ticket of the last request for this page.
    pub fn ticket(&self, page: Ipa) -> Ticket {
        self.host.started.iter().rev().find(|(_, started)| *started == page).expect("it was asked for").0
    }

    /// The store brings a page. Returns whether anything happens.
    pub fn arrive(&mut self, page: u64) -> bool {
        self.complete(self.ticket(ipa(page)), Arrival::Present)
    }

    pub fn complete(&self, ticket: Ticket, arrival: Arrival) -> bool {
        self.arrivals.complete(ticket, arrival) != Completion::Stale
    }

    pub fn not_present(&self) -> u32 {
        self.host.ram.u32(area::NOT_PRESENT)
    }

    /// The guest consumes an announcement.
    pub fn consume(&self) -> u32 {
        let token = self.not_present();
        self.host.ram.set_u32(area::NOT_PRESENT, 0);
        token
    }

    /// A fault that is announced, whose announcement the guest consumes. Returns the token.
    pub fn announced(&mut self, page: u64) -> u32 {
        assert_eq!(self.fault(page), Next::Enter);
        let token = self.consume();
        assert_ne!(token, 0);
        token
    }

    pub fn ready(&self) -> u32 {
        self.host.ram.u32(area::READY)
    }

    /// The guest takes the token that is ready, and acknowledges it.
    pub fn take_ready(&mut self) -> u32 {
        let token = self.ready();
        self.host.ram.set_u32(area::READY, 0);
        assert_eq!(self.acknowledge(token), SUCCESS);
        token
    }
}

pub fn ipa(page: u64) -> Ipa {
    Ipa::new(0x5000_0000 + page * PAGE)
}

pub fn pc(page: u64) -> u64 {
    0x40_0000 + page * 4
}
