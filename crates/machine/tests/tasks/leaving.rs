// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory whose pages leave in the simplest way: a page that is absent is unmapped, and keeps its frame. So the machine
//! and its guests are tested without the swap code, with a store that is late, out of order, failing or silent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use twofold_machine::tasks::{Nanos, Paged, Pager, Request};
use twofold_memory::async_fault::{Absent, AbsentPage, AreaMemory, Arrival};
use twofold_memory::{Answer, Error, GuestFault, GuestMemory, SlotId};
use twofold_stage2::{Ipa, IpaRange, Platform};

pub const PAGE: u64 = 4096;

/// When and how a request ends. `None`: never.
pub type Latency = Box<dyn FnMut(u64) -> Option<(Nanos, Arrival)>>;

pub struct Leaving<'m, H: Platform> {
    pub ram: Ram<'m, H>,
    slots: Vec<(IpaRange, SlotId)>,
    /// The most pages of the array in memory.
    limit: usize,
    array: IpaRange,
    resident: VecDeque<u64>,
    latency: Latency,
    asked: u64,
    /// By time and order.
    coming: BTreeMap<(Nanos, u64), (Request, u64, Arrival)>,
    pub cancelled: usize,
}

/// The guest's RAM, as its areas see it.
pub struct Ram<'m, H: Platform> {
    memory: &'m GuestMemory<H>,
    absent: Rc<std::cell::RefCell<BTreeSet<u64>>>,
}

impl<'m, H: Platform> Leaving<'m, H> {
    pub fn new(
        memory: &'m GuestMemory<H>,
        slots: Vec<(IpaRange, SlotId)>,
        array: &IpaRange,
        limit: usize,
        latency: Latency,
    ) -> Self {
        let ram = Ram { memory, absent: Rc::default() };
        let (resident, coming) = (VecDeque::new(), BTreeMap::new());
        Self { ram, slots, limit, array: array.clone(), resident, latency, asked: 0, coming, cancelled: 0 }
    }

    /// The page at this address leaves.
    pub fn leave(&mut self, page: u64) {
        let (_, slot) = self.slots.iter().find(|(range, _)| range.contains(&Ipa::new(page))).expect("RAM");
        self.ram.memory.unmap(*slot, Ipa::new(page)..Ipa::new(page + PAGE)).unwrap();
        self.ram.absent.borrow_mut().insert(page);
        self.resident.retain(|other| *other != page);
    }

    fn come(&mut self, page: u64) {
        self.ram.absent.borrow_mut().remove(&page);
        if self.array.contains(&Ipa::new(page)) && !self.resident.contains(&page) {
            if self.resident.len() == self.limit {
                self.leave(self.resident[0]);
            }
            self.resident.push_back(page);
        }
    }
}

impl<'m, H: Platform> Pager for Leaving<'m, H> {
    type Memory = Ram<'m, H>;

    fn memory(&self) -> &Ram<'m, H> {
        &self.ram
    }

    fn fault(&mut self, _: Nanos, fault: &GuestFault) -> Result<Paged, Error> {
        let page = fault.ipa.align_down(PAGE);
        if self.ram.absent.borrow().contains(&page.raw()) {
            return Ok(Paged::Absent(AbsentPage::of(fault)));
        }
        self.come(page.raw());
        Ok(match self.ram.memory.fault(fault)? {
            Answer::Retry(_) => Paged::Retry,
            _ => Paged::NoMemory,
        })
    }

    fn ask(&mut self, now: Nanos, request: Request, absent: &AbsentPage) -> Option<Arrival> {
        self.asked += 1;
        let (after, arrival) = (self.latency)(self.asked)?;
        let page = absent.page.raw();
        if (after, arrival) == (Nanos::ZERO, Arrival::Present) {
            self.come(page);
            return Some(arrival);
        }
        self.coming.insert((now + after, self.asked), (request, page, arrival));
        None
    }

    fn cancel(&mut self, _: Request) {
        self.cancelled += 1;
    }

    fn next(&self) -> Option<Nanos> {
        self.coming.first_key_value().map(|((at, _), _)| *at)
    }

    fn arrive(&mut self) -> Option<(Request, Arrival)> {
        let (_, (request, page, arrival)) = self.coming.pop_first()?;
        if arrival == Arrival::Present {
            self.come(page);
        }
        Some((request, arrival))
    }
}

impl<H: Platform> Ram<'_, H> {
    fn reach(&self, place: Ipa) -> Result<(), Absent> {
        let page = place.align_down(PAGE);
        if self.absent.borrow().contains(&page.raw()) { Err(Absent { page }) } else { Ok(()) }
    }
}

impl<H: Platform> AreaMemory for Ram<'_, H> {
    type Place = Ipa;

    fn generation(&self) -> u64 {
        0
    }

    fn place(&self, ipa: Ipa, _: u64) -> Option<Ipa> {
        self.memory.read(ipa, &mut [0]).is_ok().then_some(ipa)
    }

    fn read(&self, place: Ipa, offset: usize) -> Result<u32, Absent> {
        self.reach(place)?;
        let mut bytes = [0; 4];
        self.memory.read(place + offset as u64, &mut bytes).unwrap();
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&self, place: Ipa, offset: usize, bytes: &[u8]) -> Result<(), Absent> {
        self.reach(place)?;
        self.memory.write(place + offset as u64, bytes).unwrap();
        Ok(())
    }
}
