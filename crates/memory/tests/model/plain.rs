// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model: what a guest's memory should be, without tables, frames or caches.

use std::collections::{BTreeMap, BTreeSet};

use twofold_memory::{Answer, Counts, Done, Pages};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Access, Execute, Features, Ipa, IpaRange, Level, Pa};

use crate::machine::bank::LEFT_IN_CACHE;
use crate::machine::{GIB, HUGE_PAGE, PAGE, PREALLOCATED};
use crate::scenario::{Address, From, Kind, Scenario};

/// An address that is aligned for any leaf.
const BASE: Ipa = Ipa::new(4 * GIB);
const DEVICES: Pa = Pa::new(0x20_0000_0000);

/// A slot, as it was added.
#[derive(Clone, Debug)]
pub struct Slot {
    pub range: IpaRange,
    pub backing: Backing,
    pub writable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Ram,
    Preallocated { start: Pa, largest: Level },
    Device(Pa),
}

pub struct Model {
    features: Features,
    pages: Pages,
    pub slots: Vec<Slot>,
    pub leaves: BTreeMap<Ipa, Leaf>,
    /// Pages that were written.
    contents: BTreeMap<Ipa, Vec<u8>>,
    /// Pages that were made ready.
    ready: BTreeSet<Ipa>,
    /// Huge pages that have frames, by the slot's number.
    pub backed: BTreeSet<(usize, Ipa)>,
    pub counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub level: u8,
    pub size: u64,
    pub access: Access,
    /// The output address. For RAM it is unknown until the leaf is first seen.
    pub pa: Option<Pa>,
    pub device: bool,
}

pub struct Expected {
    pub answer: Answer,
    /// The leaf that then maps the address.
    pub leaf: Option<Ipa>,
}

impl Slot {
    pub fn is_preallocated(&self) -> bool {
        matches!(self.backing, Backing::Preallocated { .. })
    }
}

impl Model {
    pub fn new(scenario: &Scenario) -> Self {
        let mut at = BASE + HUGE_PAGE;
        let mut slots = Vec::new();
        for (index, plan) in scenario.slots.iter().enumerate() {
            let start = at + plan.gap * PAGE;
            at = start + plan.size * PAGE;
            let place = |all: Pa, off: u64| all + index as u64 * 16 * GIB + (start - BASE) + off * PAGE;
            let backing = match plan.kind {
                Kind::Ram => Backing::Ram,
                Kind::Preallocated(off, largest) => Backing::Preallocated { start: place(PREALLOCATED, off), largest },
                Kind::Device(off) => Backing::Device(place(DEVICES, off)),
            };
            slots.push(Slot { range: start..at, backing, writable: plan.writable });
        }
        Self {
            features: scenario.features,
            pages: scenario.pages,
            slots,
            leaves: BTreeMap::new(),
            contents: BTreeMap::new(),
            ready: BTreeSet::new(),
            backed: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// How many huge pages all RAM takes.
    pub fn huge_pages(&self) -> u64 {
        let ram = self.slots.iter().filter(|slot| slot.backing == Backing::Ram).map(|slot| &slot.range);
        ram.map(|range| range.end.raw().div_ceil(HUGE_PAGE) - range.start.raw() / HUGE_PAGE).sum()
    }

    pub fn ipa_of(&self, address: Address) -> Ipa {
        let (page, offset) = match address {
            Address::Anywhere { page, offset } => (BASE + page * PAGE, offset),
            Address::In { slot, from, offset } => {
                let slot = &self.slots[slot % self.slots.len()].range;
                let pages = (slot.end - slot.start) / PAGE;
                let huge_page = slot.start.raw().next_multiple_of(HUGE_PAGE) - slot.start.raw();
                let page = match from {
                    From::Start(page) => page,
                    From::End(page) => (pages - 1).saturating_sub(page),
                    From::HugePage(page) => (huge_page / PAGE + page).saturating_sub(1),
                    From::Any(page) => page,
                };
                (slot.start + page % pages * PAGE, offset)
            }
        };
        page + u64::from(offset)
    }

    fn slot(&self, ipa: Ipa) -> Option<(usize, &Slot)> {
        self.slots.iter().enumerate().find(|(_, slot)| slot.range.contains(&ipa))
    }

    pub fn is_ram(&self, ipa: Ipa) -> bool {
        self.slot(ipa).is_some_and(|(_, slot)| !matches!(slot.backing, Backing::Device(_)))
    }

    /// The ranges of preallocated frames.
    pub fn preallocated(&self) -> impl Iterator<Item = (Pa, u64)> {
        self.slots.iter().filter_map(|slot| match slot.backing {
            Backing::Preallocated { start, .. } => Some((start, slot.range.end - slot.range.start)),
            _ => None,
        })
    }

    pub fn leaf_at(&self, ipa: Ipa) -> Option<Ipa> {
        let (start, leaf) = self.leaves.range(..=ipa).next_back()?;
        (ipa < *start + leaf.size).then_some(*start)
    }

    pub fn content(&self, page: Ipa) -> Vec<u8> {
        self.contents.get(&page).cloned().unwrap_or_else(|| vec![self.untouched(page); PAGE as usize])
    }

    /// The content of a page that was never written. Preallocated memory keeps what it held.
    fn untouched(&self, page: Ipa) -> u8 {
        let is_preallocated = self.slot(page).is_some_and(|(_, slot)| slot.is_preallocated());
        if is_preallocated { LEFT_IN_CACHE } else { 0 }
    }

    pub fn store(&mut self, at: Ipa, byte: u8) {
        let page = at.align_down(PAGE);
        let untouched = self.untouched(page);
        self.contents.entry(page).or_insert_with(|| vec![untouched; PAGE as usize])[(at - page) as usize] = byte;
    }

    /// Stores `bytes` up to the first address that is not RAM, and returns that address.
    pub fn load(&mut self, at: Ipa, bytes: &[u8]) -> Option<Ipa> {
        for (offset, byte) in bytes.iter().enumerate() {
            let ipa = at + offset as u64;
            if !self.is_ram(ipa) {
                return Some(ipa);
            }
            self.store(ipa, *byte);
            self.make_ready(ipa.align_down(PAGE), PAGE);
        }
        None
    }

    /// Returns how many frames were not ready. Preallocated memory always is.
    fn make_ready(&mut self, from: Ipa, size: u64) -> u64 {
        let (slot, Slot { backing: Backing::Ram, .. }) = self.slot(from).unwrap() else { return 0 };
        self.backed.insert((slot, from.align_down(HUGE_PAGE)));
        let pages = (0..size / PAGE).filter(|page| self.ready.insert(from + page * PAGE)).count() as u64;
        self.counts.frames_zeroed += pages;
        pages
    }

    pub fn fault(&mut self, ipa: Ipa, kind: FaultKind, access: AccessKind) -> Expected {
        let abort = Expected { answer: Answer::ExternalAbort, leaf: None };
        let skip = Expected { answer: Answer::Skip, leaf: None };
        let Some((_, slot)) = self.slot(ipa) else {
            return if access == AccessKind::Maintenance { skip } else { abort };
        };
        let slot = slot.clone();
        let ram = self.is_ram(ipa);
        match access {
            AccessKind::Write if !slot.writable => return abort,
            AccessKind::Execute if !ram => return abort,
            // `DC IVAC`.
            AccessKind::Maintenance if kind == FaultKind::Permission && !slot.writable => return abort,
            _ => {}
        }
        if let Some(start) = self.leaf_at(ipa) {
            let leaf = self.leaves.get_mut(&start).unwrap();
            let before = leaf.access;
            if kind != FaultKind::AccessFlag {
                leaf.access.read = true;
                leaf.access.write |=
                    access == AccessKind::Write || (access == AccessKind::Maintenance && kind == FaultKind::Permission);
                if access == AccessKind::Execute {
                    leaf.access.execute = Execute::ALWAYS;
                }
            }
            let done = if leaf.access == before { Done::Stale } else { Done::Widened };
            return Expected { answer: Answer::Retry(done), leaf: Some(start) };
        }
        if kind != FaultKind::Translation {
            return Expected { answer: Answer::Retry(Done::Stale), leaf: None };
        }
        self.map(ipa, &slot, access)
    }

    fn map(&mut self, ipa: Ipa, slot: &Slot, access: AccessKind) -> Expected {
        let inside = |size: u64| {
            let start = ipa.align_down(size);
            start >= slot.range.start && start + size <= slot.range.end
        };
        // If the difference of both addresses is aligned, one is aligned wherever the other is.
        let output = |to: Pa, start: Ipa| Pa::new(to.raw() + start.raw() - slot.range.start.raw());
        let fits = |to: Pa| inside(HUGE_PAGE) && output(to, ipa.align_down(HUGE_PAGE)).is_aligned(HUGE_PAGE);
        let at = |to: Pa, block: bool| {
            let (level, size) = if block { (2, HUGE_PAGE) } else { (3, PAGE) };
            (level, size, Some(output(to, ipa.align_down(size))))
        };
        let blocks = self.pages == Pages::Largest;
        let (level, size, pa) = match slot.backing {
            Backing::Ram if blocks && inside(HUGE_PAGE) => (2, HUGE_PAGE, None),
            Backing::Ram => (3, PAGE, None),
            Backing::Preallocated { start, largest } => at(start, blocks && largest < Level::L3 && fits(start)),
            Backing::Device(registers) => at(registers, fits(registers)),
        };
        let start = ipa.align_down(size);
        let device = matches!(slot.backing, Backing::Device(_));
        let code = !device && (access == AccessKind::Execute || self.features.instruction_cache_coherent);
        let execute = if code { Execute::ALWAYS } else { Execute::NEVER };
        let leaf = Leaf { level, size, access: Access { read: true, write: slot.writable, execute }, pa, device };
        assert_eq!(self.leaves.insert(start, leaf), None);
        let first_touch = !device && self.make_ready(start, size) > 0;
        self.counts.mapped[usize::from(level)] += 1;
        let answer = Answer::Retry(Done::Mapped { level: Level::new(level).unwrap(), first_touch });
        Expected { answer, leaf: Some(start) }
    }
}
