// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs with the state machine of asynchronous page faults, over a guest's memory with a store.

use std::rc::Rc;

use twofold_abi::async_fault::{ENABLE, SUCCESS, area};
use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt};
use twofold_memory::async_fault::{
    AbsentPage, AreaMemory, Arrival, Arrivals, Completion, Context, Host, Mode, Next, Ticket, VcpuFaults, Wait,
};
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::Waiter;
use twofold_memory::{Answer, GuestFault, GuestMemory};
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::machine;
use crate::rig::{Absent, Plan, Rig, ipa};
use crate::store::BROKEN;

/// One vCPU, and its machine.
struct Vcpu {
    faults: VcpuFaults<GuestMemory<machine::Host>>,
    arrivals: Arrivals,
    host: VcpuHost,
}

struct VcpuHost {
    number: u32,
    memory: Rc<GuestMemory<machine::Host>>,
    raised: usize,
}

impl Host for VcpuHost {
    type Memory = GuestMemory<machine::Host>;

    fn memory(&self) -> &Self::Memory {
        &self.memory
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        self.memory.bring(absent.page, Waiter::Vcpu { vcpu: self.number, ticket }).unwrap();
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.memory.forget(Waiter::Vcpu { vcpu: self.number, ticket });
    }

    fn map(&mut self, fault: &GuestFault) {
        let answer = self.memory.fault(fault).unwrap();
        assert!(matches!(answer, Answer::Retry(_)), "{answer:?}");
    }

    fn raise(&mut self) {
        self.raised += 1;
    }

    fn lower(&mut self) {}

    fn can_take_interrupt(&mut self) -> bool {
        false
    }
}

impl Vcpu {
    fn new(rig: &Rig, number: u32, mode: Mode) -> Self {
        let host = VcpuHost { number, memory: Rc::clone(&rig.memory), raised: 0 };
        Self { faults: VcpuFaults::new(mode), arrivals: Arrivals::new(), host }
    }

    /// The vCPU writes to a page.
    fn fault(&mut self, page: u64) -> Next {
        let fault = GuestFault { ipa: ipa(page), kind: FaultKind::Translation, access: AccessKind::Write };
        let absent = match self.host.memory.fault(&fault).unwrap() {
            Answer::Absent => AbsentPage::of(&fault),
            answer => panic!("{answer:?}"),
        };
        let interface = CpuInterface { enabled: [false, true], mask: 0xf0, running: 0xff, binary_point: [0, 1] };
        let ppi = Interrupt { group: Group::One, enabled: true, pending: false, active: false, priority: 0xa0 };
        let context = Context { pc: 0x1000, pstate: 0, interface, ppi };
        self.faults.fault(&self.arrivals, &mut self.host, &absent, &context)
    }

    /// What the embedder does with what has arrived.
    fn deliver(&self, rig: &Rig) -> Vec<Completion> {
        let arrived = rig.reports.arrived().into_iter().filter_map(|(waiter, arrival)| match waiter {
            Waiter::Vcpu { vcpu, ticket } if vcpu == self.host.number => Some(self.arrivals.complete(ticket, arrival)),
            _ => None,
        });
        arrived.collect()
    }

    fn enter(&mut self) -> Next {
        self.faults.before_entry(&self.arrivals, &mut self.host)
    }
}

/// Two vCPUs wait for one page: each ticket is completed, and the page is read once.
#[test]
fn each_vcpu_that_waits_is_notified() {
    let rig = Rig::with_vcpus(Plan::default(), 2);
    rig.write(1);
    rig.leave(1);
    rig.store.get().waits = true;
    let mut vcpus = [0, 1].map(|number| Vcpu::new(&rig, number, Mode::Off));
    for vcpu in &mut vcpus {
        assert_eq!(vcpu.fault(1), Next::Wait(Wait::Page));
    }
    assert_eq!(rig.store.reading(), 1);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    let arrived = rig.reports.arrived();
    assert_eq!(arrived.len(), 2);
    for (waiter, arrival) in arrived {
        let Waiter::Vcpu { vcpu, ticket } = waiter else { panic!() };
        assert_eq!(vcpus[vcpu as usize].arrivals.complete(ticket, arrival), Completion::Kick);
    }
    for vcpu in &mut vcpus {
        assert_eq!(vcpu.enter(), Next::Enter);
    }
    drop(vcpus);
    // The first entry has mapped it.
    assert!(rig.walk(1).is_some());
    rig.write(1);
    rig.end();
}

/// A vCPU that the store was not attached for has no room, also not that of others.
#[test]
fn a_vcpu_that_is_unknown_fails() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    let mut vcpu = Vcpu::new(&rig, 1, Mode::Halt);
    assert_eq!(vcpu.fault(1), Next::Wait(Wait::PageOrInterrupt));
    let arrived = rig.reports.arrived();
    assert!(matches!(arrived[..], [(Waiter::Vcpu { vcpu: 1, .. }, Arrival::Failed)]), "{arrived:?}");
    drop(vcpu);
    rig.end();
}

/// A page that cannot be read stops the vCPU with the page as the reason; it goes on when the store is mended.
#[test]
fn a_vcpu_stops_and_goes_on() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    let mut vcpu = Vcpu::new(&rig, 0, Mode::Halt);
    rig.store.get().waits = true;
    assert_eq!(vcpu.fault(1), Next::Wait(Wait::PageOrInterrupt));
    rig.store.finish_read(&*rig.memory, 0, Err(BROKEN));
    assert_eq!(vcpu.deliver(&rig), [Completion::Kick]);
    assert_eq!(vcpu.enter(), Next::Stop { page: ipa(1) });
    assert_eq!(rig.reports.failures().len(), 1);
    vcpu.faults.retry_failed(&vcpu.arrivals, &mut vcpu.host);
    assert_eq!(vcpu.enter(), Next::Wait(Wait::PageOrInterrupt));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(vcpu.deliver(&rig), [Completion::Kick]);
    assert_eq!(vcpu.enter(), Next::Enter);
    drop(vcpu);
    rig.write(1);
    rig.end();
}

/// A vCPU that is switched off while its page is on its way: the page comes, and its ticket means nothing.
#[test]
fn a_ticket_that_is_cancelled_is_forgotten() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    rig.store.get().waits = true;
    let mut vcpu = Vcpu::new(&rig, 0, Mode::Off);
    let _ = vcpu.fault(1);
    vcpu.faults.off(&vcpu.arrivals, &mut vcpu.host);
    assert_eq!(rig.memory.frame_use().waiting, 0);
    rig.finish_all();
    assert_eq!(rig.reports.arrived(), []);
    drop(vcpu);
    rig.read(1);
    rig.end();
}

/// A ticket that another of its slot has replaced is not waited for any more, and to forget it changes nothing.
#[test]
fn a_stale_ticket_that_is_forgotten_leaves_the_next_one() {
    let rig = Rig::new();
    (1..3).for_each(|page| rig.write(page));
    (1..3).for_each(|page| rig.leave(page));
    rig.store.get().waits = true;
    let mut vcpu = Vcpu::new(&rig, 0, Mode::Off);
    let _ = vcpu.fault(1);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    let [(stale, Arrival::Present)] = rig.reports.arrived()[..] else { panic!() };
    let Waiter::Vcpu { ticket, .. } = stale else { panic!() };
    assert_eq!((vcpu.arrivals.complete(ticket, Arrival::Present), vcpu.enter()), (Completion::Kick, Next::Enter));
    assert_eq!(vcpu.fault(2), Next::Wait(Wait::Page));
    rig.memory.forget(stale);
    assert_eq!(rig.memory.frame_use().waiting, 1);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(vcpu.deliver(&rig), [Completion::Kick]);
    assert_eq!(vcpu.enter(), Next::Enter);
    drop(vcpu);
    rig.end();
}

/// The area leaves: announcements bring it back, tokens are written when it is there, and its copy and the dirty log see
/// these writes.
#[test]
fn the_area_may_leave() {
    let rig = Rig::new();
    let area_page = 4;
    (1..6).for_each(|page| rig.write(page));
    for page in [1, 2, area_page] {
        rig.leave(page);
    }
    rig.bring(area_page, 1);
    rig.reports.arrived();
    let log = rig.memory.dirty_log(rig.slot).unwrap();
    log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) }).unwrap();
    let mut vcpu = Vcpu::new(&rig, 0, Mode::Pv);
    let area = ipa(area_page) + 64;
    let enabled = vcpu.faults.call(&vcpu.arrivals, &mut vcpu.host, [ENABLE.into(), area.raw(), 0]);
    assert_eq!(enabled, Some(SUCCESS));
    rig.store.get().waits = true;
    assert_eq!(vcpu.fault(1), Next::Enter);
    assert_eq!(vcpu.host.raised, 1);
    let mut token = [0; 4];
    rig.memory.read(area + area::NOT_PRESENT as u64, &mut token).unwrap();
    assert_ne!(token, [0; 4], "announced");
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty).unwrap();
    assert!(dirty.pages().eq([area_page]), "{dirty:?}");
    // The copy ended with the announcement, so the area is written when it leaves.
    assert_eq!(rig.write_out(area_page), Ok(twofold_memory::swap::WrittenOut::Started));
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    // The token is ready, and the area is not there.
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(vcpu.deliver(&rig), [Completion::Kick]);
    assert_eq!((vcpu.enter(), vcpu.host.raised), (Next::Enter, 1));
    assert_eq!(rig.store.reading(), 1, "the area is on its way");
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(vcpu.deliver(&rig), [Completion::Kick]);
    assert_eq!((vcpu.enter(), vcpu.host.raised), (Next::Enter, 2));
    let mut ready = [0; 4];
    rig.memory.read(area + area::READY as u64, &mut ready).unwrap();
    assert_eq!(ready, token);
    assert_eq!(rig.try_read(2), Err(Absent));
}

/// An area is found where a slot has RAM that the guest may write, and its translation is of one generation of slots.
#[test]
fn an_area_has_a_place_in_ram() {
    let mut rig = Rig::new();
    rig.write(1);
    let memory = Rc::get_mut(&mut rig.memory).unwrap();
    let generation = memory.generation();
    let place = memory.place(ipa(1), 64).unwrap();
    assert_eq!(AreaMemory::read(memory, place, 0), Ok(1));
    assert_eq!(AreaMemory::read(memory, place, 8), Ok(0));
    AreaMemory::write(memory, place, 8, &[1, 2, 3, 4]).unwrap();
    assert_eq!(AreaMemory::read(memory, place, 8), Ok(0x0403_0201));
    for (ipa, size) in [(ipa(1) + 4080, 64), (ipa(1024), 64), (ipa(1023) + 4080, 17)] {
        assert_eq!(memory.place(ipa, size), None, "{ipa}");
    }
    assert!(memory.place(ipa(1023) + 4080, 16).is_some());
    let slot = |writable, start| twofold_memory::Slot {
        range: start..start + machine::PAGE,
        backing: twofold_memory::Backing::Ram,
        writable,
    };
    let read_only = twofold_stage2::Ipa::new(0x1000);
    let added = memory.add_slot(slot(false, read_only)).unwrap();
    assert_eq!(memory.place(read_only, 64), None);
    let next = memory.generation();
    assert_ne!(next, generation);
    memory.remove_slot(added).unwrap();
    assert!(![generation, next].contains(&memory.generation()));
}

/// All entries of a vCPU are its own: a ticket of a slot that is used again replaces the one before.
#[test]
fn a_vcpu_always_has_room_to_wait() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    let mut vcpu = Vcpu::new(&rig, 0, Mode::Halt);
    // It takes an interrupt each time, and faults elsewhere: 64 slots, then the spare one again and again.
    for page in 0..200 {
        assert_eq!(vcpu.fault(100 + page), Next::Wait(Wait::PageOrInterrupt));
    }
    assert_eq!(rig.memory.frame_use().waiting, 65);
    assert_eq!(rig.memory.fail_waiting(), 65);
    let failed = rig.reports.arrived();
    assert!(failed.iter().all(|(_, arrival)| *arrival == Arrival::Failed));
    assert_eq!(failed.len(), 65);
}
