// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The area: its cached translation, and the dirty log of its page.

#[path = "../machine/mod.rs"]
mod machine;

use std::cell::Cell;

use twofold_abi::async_fault::{ENABLE, NO_TOKEN, SUCCESS, area};
use twofold_memory::async_fault::{
    Absent, AbsentPage, AreaMemory, Arrival, Arrivals, Host as Faulting, Mode, Next, Ticket, VcpuFaults, Wait,
};
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::{Backing, GuestFault, GuestMemory, Pages, Slot};
use twofold_stage2::Ipa;

use crate::rig::{Rig, ipa};
use machine::guest::RunningGuest;
use machine::platform::PLAIN;

#[test]
fn a_translation_is_found_again_when_slots_change() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    rig.host.ram.replace_slot();
    let other = rig.announced(2);
    assert_ne!(token, other);
    assert!(rig.arrive(1));
    rig.host.ram.replace_slot();
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.take_ready(), token);
}

#[test]
fn a_translation_is_kept_until_slots_change() {
    let mut rig = Rig::enabled();
    for page in [1, 2] {
        rig.announced(page);
        assert!(rig.arrive(page));
        assert_eq!(rig.before_entry(), Next::Enter);
        rig.take_ready();
    }
    assert_eq!(rig.host.ram.translations.get(), 1, "the call that enabled announcements looked for it");
    rig.host.ram.replace_slot();
    rig.announced(3);
    rig.announced(4);
    assert_eq!(rig.host.ram.translations.get(), 2);
}

#[test]
fn an_area_whose_slot_is_gone_is_not_written() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    rig.host.ram.gone.set(true);
    rig.host.ram.generation.set(8);
    assert_eq!(rig.fault(2), Next::Wait(Wait::PageOrInterrupt));
    assert!(rig.arrive(1));
    assert!(rig.arrive(2));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.host.started.iter().map(|(_, page)| *page).collect::<Vec<_>>(), [ipa(1), ipa(2)]);
    // It comes back, and so does the token.
    rig.host.ram.gone.set(false);
    rig.host.ram.replace_slot();
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.take_ready(), token);
}

/// A real guest's memory. Its pages never leave, and its slots stay.
struct Real {
    memory: GuestMemory<machine::Host>,
    ticket: Cell<Option<Ticket>>,
}

impl AreaMemory for Real {
    type Place = Ipa;

    fn generation(&self) -> u64 {
        0
    }

    fn place(&self, ipa: Ipa, _size: u64) -> Option<Ipa> {
        self.memory.read(ipa, &mut [0]).is_ok().then_some(ipa)
    }

    fn read(&self, place: Ipa, offset: usize) -> Result<u32, Absent> {
        let mut bytes = [0; 4];
        self.memory.read(place + offset as u64, &mut bytes).unwrap();
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&self, place: Ipa, offset: usize, bytes: &[u8]) -> Result<(), Absent> {
        self.memory.write(place + offset as u64, bytes).unwrap();
        Ok(())
    }
}

impl Faulting for Real {
    type Memory = Self;

    fn memory(&self) -> &Self {
        self
    }

    fn start(&mut self, ticket: Ticket, _absent: &AbsentPage) {
        self.ticket.set(Some(ticket));
    }

    fn cancel(&mut self, _ticket: Ticket) {}

    fn map(&mut self, fault: &GuestFault) {
        assert!(self.memory.fault(fault).is_ok());
    }

    fn raise(&mut self) {}

    fn lower(&mut self) {}

    fn can_take_interrupt(&mut self) -> bool {
        false
    }
}

#[test]
fn writes_of_the_area_are_in_the_dirty_log() {
    const START: Ipa = Ipa::new(4 << 30);
    let mut guest = RunningGuest::new(PLAIN, Pages::Small, 4);
    let slot = Slot { range: START..START + 8 * 4096, backing: Backing::Ram, writable: true };
    let slot = guest.memory.add_slot(slot).unwrap();
    let mut host = Real { memory: guest.memory, ticket: Cell::new(None) };
    let (arrivals, mut faults) = (Arrivals::new(), VcpuFaults::new(Mode::Pv));
    let area = START + 3 * 4096 + 64;
    assert_eq!(faults.call(&arrivals, &mut host, [ENABLE.into(), area.raw(), 0]), Some(SUCCESS));
    let options = LogOptions::new(Tracker::WriteProtect);
    host.memory.dirty_log(slot).unwrap().start(&options).unwrap();
    // A get of this tracker clears the log, too.
    let dirty = |host: &Real| {
        let mut pages = DirtyPages::new();
        host.memory.dirty_log(slot).unwrap().get(&mut pages).unwrap();
        pages.words().iter().map(|word| (word.first_page, word.mask)).collect::<Vec<_>>()
    };
    let rig = Rig::new(Mode::Pv);
    let fault = GuestFault {
        ipa: START + 5 * 4096,
        kind: twofold_stage2::fault::FaultKind::Translation,
        access: twofold_stage2::fault::AccessKind::Read,
    };
    let absent = AbsentPage { page: fault.ipa, fault };
    assert_eq!(faults.fault(&arrivals, &mut host, &absent, &rig.context), Next::Enter);
    assert_eq!(dirty(&host), [(0, 1 << 3)], "the announcement");
    let mut token = [0; 4];
    host.memory.read(area + area::NOT_PRESENT as u64, &mut token).unwrap();
    assert_ne!(u32::from_le_bytes(token), NO_TOKEN);
    let _ = arrivals.complete(host.ticket.get().unwrap(), Arrival::Present);
    assert_eq!(faults.before_entry(&arrivals, &mut host), Next::Enter);
    assert_eq!(dirty(&host), [(0, 1 << 3)], "the token that is ready; the other page was only read");
    let mut ready = [0; 4];
    host.memory.read(area + area::READY as u64, &mut ready).unwrap();
    assert_eq!(ready, token);
    let Real { memory, .. } = host;
    memory.destroy(drop);
}
