// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with a store, and what each page should hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::panic::{set_hook, take_hook};
use std::rc::Rc;
use std::sync::{Arc, Once};

use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Located, Peeked, SwapOptions, Waiter, WriteOutError, WrittenOut};
use twofold_memory::{Answer, Backing, Error, Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Pa, Vmid};

use crate::machine::guest::IPA_BITS;
use crate::machine::platform::mmu::Leaf;
use crate::machine::platform::{PLAIN, VMID};
use crate::machine::{HUGE_PAGE, Host, Machine, PAGE, RAM};
use crate::store::{Reports, Store, transfers_on};

/// A CPU that records accesses and writes.
pub const FEATURES: Features =
    PLAIN.with_hardware_access_flag(true).with_hardware_dirty_state(true).with_forced_write_back(true);
/// The start of the slot, where a block may be.
pub const START: Ipa = Ipa::new(4 << 30);
/// The first single frame.
const SINGLES: Pa = Pa::new(0x9_0000_0000);

pub struct Rig {
    pub machine: Rc<Machine>,
    pub memory: Rc<GuestMemory<Host>>,
    pub slot: SlotId,
    pub store: Arc<Store>,
    pub reports: Arc<Reports>,
    donated: u64,
    pages: u64,
    /// The word at the start of each page that was written.
    contents: RefCell<BTreeMap<u64, u64>>,
    writes: Cell<u64>,
}

/// What a rig is made of.
#[derive(Clone, Copy)]
pub struct Plan {
    pub features: Features,
    pub pages: Pages,
    /// Pages of the slot.
    pub count: u64,
    /// Pages of a second slot, right behind it.
    pub second: u64,
    pub huge_pages: u64,
    /// Single frames beside the root's.
    pub singles: u64,
    pub headroom: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            features: FEATURES,
            pages: Pages::Largest,
            count: 1024,
            second: 0,
            huge_pages: 2,
            singles: 64,
            headroom: 0,
        }
    }
}

/// How many frames a [`Rig`] has in use, by what its pages say.
fn has_frame(located: Located) -> bool {
    !matches!(located, Located::Absent(_) | Located::Zero)
}

impl Rig {
    pub fn new() -> Self {
        Self::with(Plan::default())
    }

    pub fn with(plan: Plan) -> Self {
        Self::with_vcpus(plan, 1)
    }

    pub fn with_vcpus(plan: Plan, vcpus: u32) -> Self {
        let singles = (2 + plan.singles) * PAGE;
        let mut banks = vec![(SINGLES, singles)];
        banks.extend((plan.huge_pages > 0).then_some((RAM, plan.huge_pages * HUGE_PAGE)));
        let machine = Machine::new(plan.features, &banks);
        let mut frames = Frames::new(plan.features);
        for (start, size) in banks {
            frames.add(machine.donate(start, size));
        }
        let donated = frames.free();
        let geometry = Geometry::new(Kib4, IPA_BITS, &plan.features).unwrap();
        let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(VMID), frames, plan.pages).unwrap();
        machine.enter(memory.stage2().vttbr(), memory.stage2().vtcr());
        let range = START..START + plan.count * PAGE;
        let slot = memory.add_slot(Slot { range, backing: Backing::Ram, writable: true }).unwrap();
        let pages = plan.count + plan.second;
        if plan.second > 0 {
            let range = START + plan.count * PAGE..START + pages * PAGE;
            memory.add_slot(Slot { range, backing: Backing::Ram, writable: true }).unwrap();
        }
        transfers_on(&machine);
        let (store, reports) = (Store::new(), Arc::new(Reports::default()));
        let options = SwapOptions { vcpus, others: 16, headroom: plan.headroom };
        memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&reports)), &options).unwrap();
        let (memory, contents) = (Rc::new(memory), RefCell::default());
        Self { machine, memory, slot, store, reports, donated, pages, contents, writes: Cell::new(0) }
    }

    pub fn walk(&self, page: u64) -> Option<Leaf> {
        self.machine.mmu().translate(&|pa| self.machine.read(pa), ipa(page)).ok()
    }

    /// The guest's access, with its faults; the physical address that it reaches. `Err` if the page is not in memory.
    pub fn access(&self, page: u64, access: AccessKind) -> Result<Pa, Absent> {
        for _ in 0..6 {
            let kind = match self.walk(page) {
                Some(leaf) if leaf.raw >> 10 & 1 == 0 && !self.machine.features.hardware_access_flag => {
                    FaultKind::AccessFlag
                }
                Some(leaf) if leaf.raw >> 10 & 1 == 0 => {
                    // The hardware's record of an access.
                    self.machine.bank(leaf.entry).set_word(leaf.entry, leaf.raw | 1 << 10);
                    continue;
                }
                Some(leaf) if access != AccessKind::Write || leaf.access().write => return Ok(leaf.output(ipa(page))),
                Some(leaf) if leaf.dirty_by_hardware() => {
                    // The hardware's record.
                    self.machine.bank(leaf.entry).set_word(leaf.entry, leaf.raw | 1 << 7);
                    continue;
                }
                Some(_) => FaultKind::Permission,
                None => FaultKind::Translation,
            };
            match self.memory.fault(&GuestFault { ipa: ipa(page) + 8, kind, access }).unwrap() {
                Answer::Retry(_) => {}
                Answer::Absent => return Err(Absent),
                answer => panic!("{answer:?}"),
            }
        }
        panic!("{access:?} of page {page} makes no progress");
    }

    /// The guest writes a new value.
    pub fn try_write(&self, page: u64) -> Result<(), Absent> {
        let pa = self.access(page, AccessKind::Write)?;
        self.writes.set(self.writes.get() + 1);
        self.machine.bank(pa).set_word(pa, self.writes.get());
        self.contents.borrow_mut().insert(page, self.writes.get());
        Ok(())
    }

    pub fn write(&self, page: u64) {
        self.try_write(page).unwrap();
    }

    /// The guest writes zero.
    pub fn write_zero(&self, page: u64) {
        let pa = self.access(page, AccessKind::Write).unwrap();
        self.machine.bank(pa).set_word(pa, 0);
        self.contents.borrow_mut().insert(page, 0);
    }

    /// The guest reads, and finds what was written last.
    pub fn try_read(&self, page: u64) -> Result<(), Absent> {
        let pa = self.access(page, AccessKind::Read)?;
        assert_eq!(self.machine.bank(pa).word(pa), self.expected(page), "page {page}");
        let rest = self.machine.bank(pa).load(pa + 8, PAGE - 8);
        assert!(rest.iter().all(|byte| *byte == 0), "page {page} has foreign bytes");
        Ok(())
    }

    pub fn read(&self, page: u64) {
        self.try_read(page).unwrap();
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    pub fn expected(&self, page: u64) -> u64 {
        self.contents.borrow().get(&page).copied().unwrap_or(0)
    }

    /// A page holds this value, and zeroes behind it.
    pub fn expect(&self, page: u64, value: u64) {
        self.contents.borrow_mut().insert(page, value);
    }

    /// A device writes a new value.
    pub fn try_device_write(&self, page: u64) -> Result<(), Absent> {
        // Before the write: what happens within it finds the new value or leaves it.
        let value = self.writes.get() + 1;
        self.writes.set(value);
        match self.memory.write(ipa(page), &value.to_le_bytes()) {
            Ok(()) => {
                self.contents.borrow_mut().insert(page, value);
                Ok(())
            }
            Err(Error::Absent { page: absent, done: 0 }) if absent == ipa(page) => Err(Absent),
            Err(error) => panic!("{error}"),
        }
    }

    /// A device reads, and finds what was written last.
    pub fn try_device_read(&self, page: u64) -> Result<(), Absent> {
        let mut bytes = [0; 8];
        match self.memory.read(ipa(page), &mut bytes) {
            Ok(()) => assert_eq!(u64::from_le_bytes(bytes), self.expected(page), "page {page}"),
            Err(Error::Absent { page: absent, done: 0 }) if absent == ipa(page) => return Err(Absent),
            Err(error) => panic!("{error}"),
        }
        Ok(())
    }

    pub fn write_out(&self, page: u64) -> Result<WrittenOut, WriteOutError> {
        self.memory.write_out(ipa(page))
    }

    /// Writes a page out, at once.
    pub fn leave(&self, page: u64) {
        let written = self.write_out(page).unwrap();
        assert!(matches!(written, WrittenOut::Started | WrittenOut::Freed), "{written:?}");
        assert!(!has_frame(self.located(page)), "{:?}", self.located(page));
    }

    /// Writes a page out, which may take until the store has it.
    pub fn leave_later(&self, page: u64) {
        let _ = self.write_out(page).unwrap();
        self.finish_all();
        assert!(!has_frame(self.located(page)), "{:?}", self.located(page));
    }

    pub fn bring(&self, page: u64, number: u64) {
        self.memory.bring(ipa(page), Waiter::Other(number)).unwrap();
    }

    pub fn located(&self, page: u64) -> Located {
        self.memory.locate(ipa(page)).unwrap()
    }

    /// Starts a log of the first slot, in which no page is dirty.
    pub fn start_log(&self, tracker: Tracker) {
        let log = self.memory.dirty_log(self.slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
    }

    pub fn stop_log(&self) {
        self.memory.dirty_log(self.slot).unwrap().stop().unwrap();
    }

    /// The pages that the log reports. They are clean from then on.
    pub fn take_dirty(&self, tracker: Tracker) -> Vec<u64> {
        let (log, mut dirty) = (self.memory.dirty_log(self.slot).unwrap(), DirtyPages::new());
        log.get(&mut dirty).unwrap();
        if tracker != Tracker::WriteProtect {
            log.clear_these(&dirty).unwrap();
        }
        dirty.pages().collect()
    }

    /// The guest goes on at the least limit, in a working set that is larger: each access is done after at most
    /// `attempts` calls of `make_room`, for this many pages.
    pub fn works_at_the_least_limit(&self, attempts: u32, mut make_room: impl FnMut(u64)) {
        for step in 0..3000_u64 {
            let page = step * 389 % self.pages;
            let is_write = step % 3 == 0;
            for attempt in 0.. {
                assert!(attempt < attempts, "page {page}");
                let done = if is_write { self.try_write(page) } else { self.try_read(page) };
                if done.is_ok() {
                    break;
                }
                self.bring(page, 1);
                let wanted = self.memory.wants_frames();
                if wanted > 0 {
                    make_room(wanted);
                }
                assert_eq!(self.reports.arrived(), [(Waiter::Other(1), Arrival::Present)]);
            }
            let used = self.memory.frame_use();
            assert!(used.data <= used.limit, "{used:?}");
        }
        self.check();
    }

    /// Reads a page where it is, with `between` two looks. What is found was there last.
    pub fn peek_now(&self, page: u64, between: impl FnOnce(&Self)) {
        // A panic that shows that it would wait leaves it as it is: dropping it would wait, too.
        let mut peek = ManuallyDrop::new(self.memory.peek(ipa(page)).unwrap());
        let before = self.expected(page);
        let mut bytes = [0; 4096];
        let mut found = peek.look(&mut bytes);
        if found != Peeked::Read {
            between(self);
            found = peek.look(&mut bytes);
        }
        drop(ManuallyDrop::into_inner(peek));
        let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let known = [before, self.expected(page), 0];
        assert!(found != Peeked::Read || known.contains(&value), "page {page}: {value} of {known:?}");
    }

    /// What a page holds.
    pub fn bytes(&self, page: u64) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        bytes[..8].copy_from_slice(&self.expected(page).to_le_bytes());
        bytes
    }

    /// Completes what the store has.
    pub fn finish_all(&self) {
        loop {
            let (writes, reads) = (self.store.writing(), self.store.reading());
            match (writes, reads) {
                (0, 0) => return,
                (0, _) => self.store.finish_read(&*self.memory, 0, Ok(())),
                _ => self.store.finish_write(&*self.memory, 0, Ok(())),
            }
        }
    }

    /// Checks frames and places: none is lost, none has two uses, and the limit holds.
    pub fn check(&self) {
        let used = self.memory.frame_use();
        assert!(used.data <= used.limit, "{used:?}");
        self.check_frames();
    }

    /// The same without the limit, which may be new.
    pub fn check_frames(&self) {
        let used = self.memory.frame_use();
        assert_eq!(used.free + used.data + used.tables, self.donated, "{used:?}: frames are lost");
        let inner = self.store.get();
        let in_flight = inner.writes.iter().map(|request| (request.frame().pa(), request.page()));
        let in_flight: Vec<_> =
            in_flight.chain(inner.reads.iter().map(|request| (request.frame().pa(), request.page()))).collect();
        let scan = self.machine.mmu().scan(&|pa| self.machine.read(pa));
        let mut frames: BTreeMap<Pa, Ipa> = in_flight.iter().copied().collect();
        assert_eq!(frames.len(), in_flight.len());
        for leaf in &scan.leaves {
            for offset in (0..leaf.span()).step_by(PAGE as usize) {
                let other = frames.insert(leaf.pa() + offset, leaf.ipa + offset);
                assert_eq!(other, None, "{leaf:x?} maps a frame that another has");
                assert_eq!(self.memory.locate(leaf.ipa + offset), Ok(Located::Present), "{leaf:x?}");
            }
        }
        for page in 0..self.pages {
            if let Located::Absent(place) | Located::Arriving(place) = self.located(page) {
                assert!(inner.live.contains(&place), "page {page} is at {place:?}, which is not in use");
            }
        }
    }

    /// Checks each page's content, as a device reads it, and brings what is absent. Then destroys the guest: no frame
    /// and no place is left.
    pub fn end(self) {
        self.finish_all();
        self.store.get().waits = false;
        for page in 0..self.pages {
            if self.try_device_read(page).is_err() {
                self.bring(page, 99);
                self.finish_all();
                if self.try_device_read(page).is_err() {
                    // No frame is free for it.
                    self.make_room_for(page);
                }
                self.try_device_read(page).unwrap();
            }
        }
        self.check();
        self.machine.set_atomic_hook(|| ());
        self.machine.set_hook(|_, _| ());
        let memory = Rc::try_unwrap(self.memory).ok().expect("a hook has the memory");
        assert_eq!(memory.destroy(drop).free(), self.donated, "frames are lost");
        assert!(self.store.get().live.is_empty(), "{:?}: places are lost", self.store.get().live);
    }

    fn make_room_for(&self, page: u64) {
        let others = (0..self.pages).filter(|other| *other != page);
        for other in others {
            if self.located(page) == Located::Present {
                return;
            }
            let _ = self.write_out(other).unwrap();
        }
    }
}

/// The page is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

pub fn ipa(page: u64) -> Ipa {
    START + page * PAGE
}

/// For what may end in any way.
pub fn ignore<T>(_: T) {}

/// Leaves a rig of which a call has left locks: dropping it would wait for them. Its memory is freed.
pub fn abandon(rig: Rc<Rig>) {
    rig.machine.memory.forget();
    std::mem::forget(rig);
}

/// The panics by which a case shows that it would wait are not printed from now on.
pub fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let printed = take_hook();
        set_hook(Box::new(move |panic| {
            let waits =
                panic.payload().downcast_ref::<&str>().is_some_and(|what| what.contains("waits for another CPU"));
            if !waits {
                printed(panic);
            }
        }));
    });
}
