// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine on which a guest's memory is tested. It proves one thing by itself: whenever a watched address gets
//! mapped, the guest reads there what the test expects, through its caches and past them.
//!
//! The record, the table walk and the decoding of TLB operands are those of `stage2`'s tests. The memory is not: here
//! all of it can be accessed, and it keeps track of cleaned lines ([`bank`]).
#![allow(dead_code, reason = "each test uses its own part")]

pub mod bank;
pub mod guest;
#[path = "../../../stage2/tests/platform/mod.rs"]
pub mod platform;

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use twofold_memory::Backing;
use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{Donated, Features, Ipa, Level, Pa, Platform, TableMetadata};

use bank::Bank;
use platform::mmu::Mmu;
use platform::tlb::Reach;
use platform::{Event, Sight};

pub const PAGE: u64 = 4096;
pub const HUGE_PAGE: u64 = 2 << 20;
pub const GIB: u64 = 1 << 30;

/// The RAM of most tests.
pub const RAM: Pa = Pa::new(0x8_4000_0000);
/// The preallocated memory of most tests.
pub const PREALLOCATED: Pa = Pa::new(0x40_0000_0000);

/// A device at `pa`. No guest accesses it.
pub fn device_at(pa: Pa) -> Backing {
    Backing::Device(platform::window::device(pa))
}

/// An address whose translation is observed.
struct Watched {
    ipa: Ipa,
    seen: Option<Sight>,
    /// The content that the guest must read in the page when it first sees it.
    expected: Option<Vec<u8>>,
}

/// One CPU, its memory, and the record of its instructions.
pub struct Machine {
    pub features: Features,
    banks: Vec<Bank>,
    vttbr: Cell<u64>,
    mmu: Cell<Option<Mmu>>,
    watched: RefCell<Vec<Watched>>,
    log: RefCell<Vec<Event>>,
    /// Atomic read-modify-writes so far: mostly locks that were taken.
    atomics: Cell<u64>,
    /// The value of `atomics` at each [`Event::Sees`].
    atomics_at_sights: RefCell<Vec<u64>>,
    /// What another CPU does before a later atomic, and in how many atomics that is.
    before_atomic: Cell<Option<(usize, Action)>>,
}

/// An action of another CPU.
type Action = Box<dyn FnOnce()>;

impl Machine {
    pub fn new(features: Features, banks: &[(Pa, u64)]) -> Rc<Self> {
        Rc::new(Self {
            features,
            banks: banks.iter().map(|(start, size)| Bank::new(*start, *size)).collect(),
            vttbr: Cell::new(0),
            mmu: Cell::new(None),
            watched: RefCell::default(),
            log: RefCell::default(),
            atomics: Cell::new(0),
            atomics_at_sights: RefCell::default(),
            before_atomic: Cell::new(None),
        })
    }

    /// Donates the range to guests and tables.
    pub fn donate(&self, start: Pa, size: u64) -> Donated {
        assert!(self.banks.iter().any(|bank| bank.has(start, size)));
        // SAFETY: a bank has the range. Only the engine accesses it, and the test copies it while the engine does not
        // run.
        unsafe { Donated::new(start, size) }
    }

    /// Preallocated RAM for one slot, which may be mapped by leaves of `largest`.
    pub fn give(&self, start: Pa, size: u64, largest: Level) -> Backing {
        Backing::Preallocated { frames: self.donate(start, size).into_run(), largest }
    }

    /// Loads the guest's tables, so that it can run.
    pub fn load(&self, vttbr: u64, vtcr: u64) {
        self.vttbr.set(vttbr);
        self.mmu.set(Some(Mmu::new(vttbr, vtcr, &self.features)));
    }

    pub fn mmu(&self) -> Mmu {
        self.mmu.get().expect("no guest is loaded")
    }

    pub fn is_ram(&self, pa: Pa) -> bool {
        self.banks.iter().any(|bank| bank.has(pa, 1))
    }

    pub fn bank(&self, pa: Pa) -> &Bank {
        self.banks.iter().find(|bank| bank.has(pa, 1)).unwrap_or_else(|| panic!("{pa} is not RAM"))
    }

    pub fn word(&self, pa: Pa) -> u64 {
        self.bank(pa).word(pa)
    }

    /// Records from now on each change of what a walk for `ipa` finds. `expected` is the content of its page when it
    /// gets mapped.
    pub fn watch(&self, ipa: Ipa, expected: Option<Vec<u8>>) {
        let mut watched = self.watched.borrow_mut();
        watched.retain(|old| old.ipa != ipa);
        watched.push(Watched { ipa, seen: self.sight(ipa), expected });
    }

    pub fn watch_nothing(&self) {
        self.watched.borrow_mut().clear();
    }

    /// The record since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.observe();
        self.log.take()
    }

    /// The number of locks and other atomics up to each [`Event::Sees`] since the last call.
    pub fn atomics_at_sights(&self) -> Vec<u64> {
        self.atomics_at_sights.take()
    }

    /// Has another CPU do something, once, before the next atomic: nothing was changed yet then.
    pub fn before_next_atomic(&self, action: impl FnOnce() + 'static) {
        self.before_atomic(1, action);
    }

    /// The same before the atomic with this number; the next one is 1.
    pub fn before_atomic(&self, number: usize, action: impl FnOnce() + 'static) {
        self.before_atomic.set(Some((number, Box::new(action))));
    }

    /// Checks that a guest reads `expected` in the page at `pa`, with its caches on or off.
    pub fn check_page(&self, pa: Pa, expected: &[u8]) {
        let bank = self.bank(pa);
        assert!(bank.load(pa, PAGE) == expected, "{pa}: the page's content is not what the guest should read");
        let past = || bank.load_past_caches(pa, PAGE);
        let clean = self.features.forced_write_back || past() == expected;
        assert!(clean, "{pa}: with its caches off, the guest reads something else");
    }

    fn sight(&self, ipa: Ipa) -> Option<Sight> {
        let leaf = self.mmu().translate(&|pa| self.word(pa), ipa).ok()?;
        Some(Sight { level: leaf.level, pa: leaf.output(ipa), access: leaf.access() })
    }

    /// Records which watched addresses translate differently now.
    fn observe(&self) {
        for watched in &mut *self.watched.borrow_mut() {
            let now = self.sight(watched.ipa);
            if let (None, Some(sight), Some(expected)) = (watched.seen, now, &watched.expected) {
                self.check_page(sight.pa.align_down(PAGE), expected);
            }
            if now != watched.seen {
                watched.seen = now;
                self.log.borrow_mut().push(Event::Sees(watched.ipa, now));
                self.atomics_at_sights.borrow_mut().push(self.atomics.get());
            }
        }
    }

    /// Makes room for `count` events, for tests in which recording one must not allocate.
    pub fn expect_events(&self, count: usize) {
        self.log.borrow_mut().reserve(count);
    }

    fn record(&self, event: Event) {
        self.observe();
        let mut log = self.log.borrow_mut();
        match (log.last_mut(), &event) {
            (Some(Event::Clean(start, size)), Event::Clean(pa, more))
            | (Some(Event::Zero(start, size)), Event::Zero(pa, more))
            | (Some(Event::InvalidateCode(start, size)), Event::InvalidateCode(pa, more))
                if *start + *size == *pa =>
            {
                *size += more;
            }
            _ => log.push(event),
        }
    }

    fn at(&self, address: usize) -> Pa {
        self.banks.iter().find_map(|bank| bank.at(address)).expect("a cache operation outside of RAM")
    }
}

/// The machine as the engine's platform.
#[derive(Clone)]
pub struct Host(pub Rc<Machine>);

// SAFETY: `pointer` is inside a bank, which lives as long as the machine; no reference covers its memory.
unsafe impl Platform for Host {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.0.record(Event::Tlbi(operation, Reach::decode(operation, operand, &self.0.features)));
    }

    fn dsb(&self, domain: Domain) {
        self.0.record(Event::Dsb(domain));
    }

    fn isb(&self) {
        self.0.record(Event::Isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        let pa = self.0.at(address);
        match operation {
            Dc::Civac => {
                let line = self.0.features.data_line;
                self.0.record(Event::Clean(pa.align_down(line), line));
                self.0.bank(pa).clean(pa.align_down(line), line);
            }
            Dc::Zva => {
                let block = self.0.features.zero_block;
                assert!(block > 0, "DC ZVA is prohibited on this CPU");
                self.0.record(Event::Zero(pa.align_down(block), block));
                self.0.bank(pa).zero(pa.align_down(block), block);
            }
        }
    }

    fn ic(&self, operation: Ic, address: usize) {
        match operation {
            Ic::Ivau => {
                let line = self.0.features.instruction_line;
                self.0.record(Event::InvalidateCode(self.0.at(address).align_down(line), line));
            }
            Ic::IallUis => {
                assert_eq!(address, 0, "IC IALLUIS takes no address");
                self.0.record(Event::InvalidateAllCode);
            }
        }
    }

    fn vttbr(&self) -> u64 {
        self.0.vttbr.get()
    }

    fn load_vttbr(&self, value: u64) {
        self.0.vttbr.set(value);
        self.0.record(Event::LoadVttbr(value));
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.0.bank(pa).pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.0.bank(pa).metadata(pa)
    }

    /// Does nothing: all memory is freed with the machine.
    fn abandoned(&self, _: Pa) {}

    fn on_atomic(&self) {
        match self.0.before_atomic.take() {
            Some((1, action)) => action(),
            Some((number, action)) => self.0.before_atomic.set(Some((number - 1, action))),
            None => {}
        }
        self.0.atomics.set(self.0.atomics.get() + 1);
    }
}
