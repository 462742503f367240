// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One step of a CPU: an operation on a guest's tables. At times the guest's accesses come before it (module
//! `accesses`).

use std::cell::RefCell;
use std::ops::ControlFlow;

use twofold_machine::strict::{CpuHandle, Hosted, Withdrawn};
use twofold_stage2::{
    Access, Attributes, Broken, Coalesced, Error, Execute, Grant, Granule, Grouped, Ipa, IpaRange, Leaf, Level, Mapped,
    Marked, Relaxed, RemovalWatcher, Stage2, group_length,
};

use super::Scarce;
use super::counts::Counts;
use super::layout::{HUGE_PAGE_COUNT, Layout};
use super::lent::LentMemory;
use crate::window::window;
use crate::world::World;

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Map,
    Replace,
    MapRange,
    Unmap,
    Protect,
    WriteProtect,
    WriteProtectMask,
    Relax,
    MakeYoung,
    Age,
    Clean,
    ClearDbmAndWrite,
    SetDbm,
    SetDbmClean,
    SetDbmCleanMask,
    ClearDbm,
    Dirty,
    Written,
    RelaxPage,
    Split,
    Coalesce,
    Withdraw,
    MapGroup,
}

impl Kind {
    pub const ALL: [Self; 23] = [
        Self::Map,
        Self::Replace,
        Self::MapRange,
        Self::Unmap,
        Self::Protect,
        Self::WriteProtect,
        Self::WriteProtectMask,
        Self::Relax,
        Self::MakeYoung,
        Self::Age,
        Self::Clean,
        Self::ClearDbmAndWrite,
        Self::SetDbm,
        Self::SetDbmClean,
        Self::SetDbmCleanMask,
        Self::ClearDbm,
        Self::Dirty,
        Self::Written,
        Self::RelaxPage,
        Self::Split,
        Self::Coalesce,
        Self::Withdraw,
        Self::MapGroup,
    ];

    /// Whether it can have an effect on leaves of this level.
    pub fn applies(self, level: u8, dirty_by_hardware: bool) -> bool {
        match self {
            Self::Clean | Self::ClearDbmAndWrite | Self::ClearDbm | Self::Dirty => dirty_by_hardware,
            Self::SetDbm => level == 3 && !dirty_by_hardware,
            Self::RelaxPage => level == 3,
            Self::Split | Self::Coalesce => level < 3,
            Self::Withdraw => level > 1,
            Self::MapGroup => !dirty_by_hardware && level > 1,
            _ => true,
        }
    }
}

pub struct Worker<'a, G: Granule> {
    pub(super) cpu: &'a CpuHandle,
    pub(super) world: &'a World<G>,
    pub(super) layout: Layout<G>,
    pub(super) tables: &'a [Stage2<Hosted, G>],
    lent: &'a LentMemory,
    /// The vCPU of each guest that ran last on this CPU.
    pub(super) vcpus: Vec<Option<u32>>,
    pub(super) pages: Scarce<'a, G>,
    pub(super) counts: Counts,
    operations: u64,
}

/// Collects the removed leaves.
pub struct Collect<'a, G: Granule>(pub &'a RefCell<Vec<Broken<G>>>);

impl<G: Granule> RemovalWatcher<G> for Collect<'_, G> {
    const WATCHES: bool = true;

    fn leaf(&mut self, leaf: Broken<G>) {
        self.0.borrow_mut().push(leaf);
    }
}

impl<'a, G: Granule> Worker<'a, G> {
    pub fn new(
        cpu: &'a CpuHandle,
        world: &'a World<G>,
        layout: Layout<G>,
        tables: &'a [Stage2<Hosted, G>],
        lent: &'a LentMemory,
    ) -> Self {
        let (pages, counts) = (Scarce { pages: &world.pages, cpu, one_in: 40 }, Counts::default());
        Self { cpu, world, layout, tables, lent, vcpus: vec![None; tables.len()], pages, counts, operations: 0 }
    }

    pub fn end(self) -> Counts {
        self.cpu.load(0);
        self.counts
    }

    /// Does one operation after its preparation, and at times some of the guest's accesses. Returns the number of
    /// operations.
    pub fn step(&mut self) -> u64 {
        let guest = self.cpu.draw(2) as usize;
        if self.cpu.draw(6) == 0 {
            self.run_guest(guest);
        }
        // The last kind needs tables with contiguous groups.
        let kinds = Kind::ALL.len() - usize::from(group_length::<G>(Level::L3) == 1);
        let kind = Kind::ALL[self.cpu.draw(kinds as u64) as usize];
        let (level, page) = match self.layout.giant {
            Some(giant) => {
                let level = 1 + self.cpu.draw(3) as u8;
                (level, if level == 1 { giant + self.page() % span_of::<G>(1) } else { self.page() })
            }
            None => (2 + self.cpu.draw(2) as u8, self.page()),
        };
        let before = self.operations;
        // In one case of four, the operation meets the current state.
        if self.cpu.draw(4) != 0 {
            let prepared = self.prepare(kind, guest, level, page);
            self.tolerate(kind, prepared);
        }
        let done = self.operation(kind, guest, level, page);
        self.tolerate(kind, done);
        self.operations - before
    }

    fn tolerate(&mut self, kind: Kind, done: Result<(), Error>) {
        match done {
            Ok(()) | Err(Error::NoTablePage { .. } | Error::TableInTheWay { .. } | Error::NotMapped { .. }) => {}
            Err(Error::NotOneGroup { .. }) if kind == Kind::MapGroup => {}
            Err(Error::Withdrawn { .. }) => self.counts.withdrawn += 1,
            Err(other) => self.cpu.report(format!("{kind:?}: {other}")),
        }
    }

    /// Makes a leaf of this level there, in a state in which the operation has an effect.
    fn prepare(&mut self, kind: Kind, guest: usize, level: u8, page: u64) -> Result<(), Error> {
        let span = span_of::<G>(level);
        let start = Ipa::new(page & !(span - 1));
        if kind == Kind::Map || kind == Kind::MapRange && self.cpu.draw(2) == 0 {
            return self.unmap(guest, start..start + span);
        }
        if kind == Kind::Coalesce {
            return Ok(());
        }
        if kind == Kind::Withdraw {
            return self.map_lent(guest, level, page);
        }
        if kind == Kind::MapGroup {
            return self.prepare_group(guest, level, page);
        }
        let wanted = self.attributes();
        let is_there = self.tables[guest].look_up(start).is_some_and(|leaf| {
            leaf.level.raw() == level && leaf.descriptor.is_hardware_tracked() == wanted.dirty_by_hardware
        });
        if !is_there {
            let kind = if level < 3 { Kind::Coalesce } else { Kind::Map };
            self.put(kind, guest, Level::new(level).unwrap(), start.raw(), &wanted)?;
        }
        let tables = &self.tables[guest];
        match kind {
            Kind::Clean | Kind::ClearDbmAndWrite | Kind::Dirty | Kind::Written => self.store_once(guest, page),
            Kind::MakeYoung => {
                self.operations += 1;
                tables.age(start..start + span, &mut |_| ())?;
            }
            Kind::Relax | Kind::RelaxPage => {
                self.operations += 1;
                if wanted.dirty_by_hardware {
                    let _ = tables.protect(start..start + span, Access::READ_WRITE, &mut self.pages)?.complete();
                } else {
                    let _ = tables.write_protect(start..start + span)?.complete();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The contiguous group around a page: of this level if it fits into the guest's memory, else of pages.
    fn group(&self, level: u8, page: u64) -> (Level, IpaRange) {
        for level in [level, 3] {
            let at = Level::new(level).unwrap();
            let size = group_length::<G>(at) as u64 * span_of::<G>(level);
            let start = page & !(size - 1);
            let part = match self.layout.giant {
                Some(giant) if page >= giant => giant..giant + span_of::<G>(1),
                _ => self.layout.start..self.layout.end(),
            };
            if size > span_of::<G>(level) && part.start <= start && start + size <= part.end {
                return (at, Ipa::new(start)..Ipa::new(start + size));
            }
        }
        unreachable!("a group of pages fits")
    }

    /// Maps the leaves of a group one by one, all or some, or unmaps them.
    fn prepare_group(&mut self, guest: usize, level: u8, page: u64) -> Result<(), Error> {
        let (level, range) = self.group(level, page);
        let span = span_of::<G>(level.raw());
        match self.cpu.draw(3) {
            0 => self.unmap(guest, range),
            1 => {
                self.operations += 1;
                let grant = self.grant(Kind::MapRange, guest, range.start, range.end - range.start);
                let attributes = Attributes { dirty_by_hardware: false, ..self.attributes() };
                grant.map_range(level, &attributes, &mut self.pages)?;
                let half = range.start..range.start + span;
                let _ = self.tables[guest].protect(half, Access::READ, &mut self.pages)?.complete();
                Ok(())
            }
            _ => {
                let attributes = Attributes { dirty_by_hardware: false, ..self.attributes() };
                self.unmap(guest, range.clone())?;
                let some = range.start + self.cpu.draw(group_length::<G>(level) as u64) * span;
                self.put(Kind::Map, guest, level, some.raw(), &attributes)
            }
        }
    }

    /// Maps a contiguous group.
    fn map_group(&mut self, guest: usize, level: u8, page: u64) -> Result<(), Error> {
        self.operations += 1;
        let (level, range) = self.group(level, page);
        let grant = self.grant(Kind::MapGroup, guest, range.start, range.end - range.start);
        let attributes = Attributes { dirty_by_hardware: false, ..self.attributes() };
        match grant.map_group(level, &attributes, &mut self.pages, &mut |_| ())? {
            Grouped::New => self.counts.groups += 1,
            Grouped::Joined => self.counts.joined += 1,
            Grouped::Already(_) => return Ok(()),
        }
        self.counts.effect(Kind::MapGroup, level.raw(), false);
        Ok(())
    }

    pub(super) fn page(&self) -> u64 {
        let page = Layout::<G>::PAGES[self.cpu.draw(8) as usize] * G::SIZE;
        if let Some(giant) = self.layout.giant
            && self.cpu.draw(3) == 0
        {
            return giant + [0, 1, G::ENTRIES as u64 - 1][self.cpu.draw(3) as usize] * span_of::<G>(2) + page;
        }
        self.layout.start + self.cpu.draw(HUGE_PAGE_COUNT) * span_of::<G>(2) + page
    }

    fn range(&self) -> IpaRange {
        let page = self.page();
        let (start, size) = match self.cpu.draw(16) {
            0..8 => (page, G::SIZE * (1 + self.cpu.draw(3))),
            8..11 => (page & !(64 * G::SIZE - 1), 64 * G::SIZE),
            11..14 => (page & !(span_of::<G>(2) - 1), span_of::<G>(2)),
            _ if self.layout.is_giant(page) => (page & !(span_of::<G>(1) - 1), span_of::<G>(1)),
            _ => (self.layout.start, HUGE_PAGE_COUNT * span_of::<G>(2)),
        };
        let end = match self.layout.giant {
            Some(giant) if page >= giant => giant + span_of::<G>(1),
            _ => self.layout.end(),
        };
        Ipa::new(start)..Ipa::new((start + size).min(end))
    }

    /// The part of a mask of pages that is inside the IPA space: its first page at least.
    fn inside(&self, first: Ipa, mask: u64) -> u64 {
        let pages = ((1 << self.layout.ipa_bits) - first.raw()) / G::SIZE;
        let kept = mask & (u64::MAX >> (64 - pages.min(64)));
        if kept == 0 { 1 } else { kept }
    }

    /// A level, and the start of the leaf of that level around a page.
    pub(super) fn leaf_around(&self, page: u64) -> (Level, u64) {
        let level = match self.cpu.draw(4) {
            0 if self.layout.is_giant(page) => 1,
            0 | 1 => 2,
            _ => 3,
        };
        let span = span_of::<G>(level);
        (Level::new(level).unwrap(), page & !(span - 1))
    }

    fn access(&self) -> Access {
        match self.cpu.draw(5) {
            0 => Access::READ,
            1 => Access::ALL,
            2 => Access { execute: Execute::ALWAYS, ..Access::READ },
            _ => Access::READ_WRITE,
        }
    }

    pub(super) fn attributes(&self) -> Attributes {
        let dirty_by_hardware = self.world.features.hardware_dirty_state && self.cpu.draw(2) == 0;
        Attributes { dirty_by_hardware, ..Attributes::ram(self.access()) }
    }

    /// The right to map a leaf: of memory that is lent there, or of one of the two frames.
    pub(super) fn grant(&self, kind: Kind, guest: usize, ipa: Ipa, size: u64) -> Grant<'a, Hosted, G> {
        let (tables, choice) = (&self.tables[guest], self.cpu.draw(2));
        // A coalesce does not clean what is mapped, which must be the block's own memory. Here it may be another frame.
        let may_be_lent = kind != Kind::Coalesce || self.world.features.forced_write_back;
        let is_lent = self.cpu.draw(3) == 0 && may_be_lent;
        let lent = if is_lent { self.lent.grant(&self.layout, guest, tables, ipa, size) } else { None };
        lent.unwrap_or_else(|| tables.open(window(self.layout.frame(self.world, guest, ipa.raw(), choice), size), ipa))
    }

    /// Lends memory for the page, or for its huge page, if none is lent there, and maps it.
    fn map_lent(&mut self, guest: usize, level: u8, page: u64) -> Result<(), Error> {
        let Some(at) = lent_at(&self.layout, level, page) else { return Ok(()) };
        let tables = &self.tables[guest];
        if self.lent.grant(&self.layout, guest, tables, at.0, at.1).is_none() {
            self.lent.lend(self.world, &self.layout, guest, tables, at);
        }
        let Some(grant) = self.lent.grant(&self.layout, guest, tables, at.0, at.1) else { return Ok(()) };
        self.operations += 1;
        let (attributes, largest) = (self.attributes(), Level::new(level).unwrap());
        if level < 3 && self.world.features.forced_write_back && self.cpu.draw(2) == 0 {
            return grant.coalesce(largest, &attributes, &mut self.pages, &mut |_| ()).map(|_| ());
        }
        grant.map_range(largest, &attributes, &mut self.pages)
    }

    /// Takes lent memory away, while other CPUs map it.
    fn withdraw(&mut self, guest: usize, level: u8, page: u64) -> Result<(), Error> {
        let Some(at) = lent_at(&self.layout, level, page) else { return Ok(()) };
        self.operations += 1;
        let leaves = self.lent.withdraw((self.cpu, &self.layout), guest, &self.tables[guest], at, &mut self.pages)?;
        leaves.iter().take(4).for_each(|leaf| self.effect(Kind::Withdraw, leaf));
        Ok(())
    }

    /// Maps a leaf, which may replace smaller ones.
    fn put(&mut self, kind: Kind, guest: usize, level: Level, ipa: u64, attributes: &Attributes) -> Result<(), Error> {
        self.operations += 1;
        let grant = self.grant(kind, guest, Ipa::new(ipa), span_of::<G>(level.raw()));
        let kind = if kind == Kind::Coalesce {
            match grant.coalesce(level, attributes, &mut self.pages, &mut |_| ())? {
                Coalesced::Done { .. } => Kind::Coalesce,
                Coalesced::Mapped(Mapped::New) => Kind::Map,
                Coalesced::Mapped(Mapped::Replaced(_)) => Kind::Replace,
                Coalesced::Mapped(Mapped::Already(_)) => return Ok(()),
            }
        } else {
            match grant.map(level, attributes, &mut self.pages)? {
                Mapped::New => Kind::Map,
                Mapped::Replaced(_) => Kind::Replace,
                Mapped::Already(_) => return Ok(()),
            }
        };
        self.counts.effect(kind, level.raw(), attributes.dirty_by_hardware);
        Ok(())
    }

    fn unmap(&mut self, guest: usize, range: IpaRange) -> Result<(), Error> {
        self.operations += 1;
        let (cpu, tables, removed) = (self.cpu, &self.tables[guest], RefCell::default());
        let before_it = cpu.knowledge();
        let flushed = tables.unmap(range.clone(), &mut self.pages, Collect(&removed))?.complete();
        cpu.expect_flushed(tables.vttbr(), &range, &before_it, Withdrawn::Everything);
        let freed = flushed.free(&mut self.pages);
        let removed = removed.into_inner().into_iter().take(4).filter_map(|leaf: Broken<G>| leaf.open(&freed));
        removed.for_each(|leaf| self.effect(Kind::Unmap, &leaf));
        Ok(())
    }

    fn operation(&mut self, kind: Kind, guest: usize, level: u8, page: u64) -> Result<(), Error> {
        let (cpu, attributes) = (self.cpu, self.attributes());
        let span = span_of::<G>(level);
        // Mostly the leaf itself, or a part of it; at times any range.
        let leaf = Ipa::new(page & !(span - 1))..Ipa::new((page & !(span - 1)) + span);
        let range = match cpu.draw(4) {
            0 => self.range(),
            1 => Ipa::new(page)..Ipa::new(page + G::SIZE),
            _ => leaf.clone(),
        };
        match kind {
            Kind::Map | Kind::Replace | Kind::Coalesce => {
                let level = if kind == Kind::Coalesce { level.min(2) } else { level };
                let ipa = page & !(span_of::<G>(level) - 1);
                return self.put(kind, guest, Level::new(level).unwrap(), ipa, &attributes);
            }
            Kind::Unmap => return self.unmap(guest, range),
            Kind::Withdraw => return self.withdraw(guest, level, page),
            Kind::MapGroup => return self.map_group(guest, level, page),
            _ => self.operations += 1,
        }
        let tables = &self.tables[guest];
        match kind {
            Kind::Map | Kind::Replace | Kind::Coalesce | Kind::Unmap | Kind::Withdraw | Kind::MapGroup => {}
            Kind::MapRange => {
                let range = if range.end - range.start > 2 * span_of::<G>(2) { leaf } else { range };
                let largest = Level::new(if level == 1 { 1 } else { 1 + cpu.draw(3) as u8 }).unwrap();
                let size = (range.end - range.start).min(if largest == Level::L1 {
                    span_of::<G>(1)
                } else {
                    2 * span_of::<G>(2)
                });
                let before = tables.look_up(range.start);
                self.grant(kind, guest, range.start, size).map_range(largest, &attributes, &mut self.pages)?;
                match tables.look_up(range.start) {
                    Some(leaf) if before != Some(leaf) => self.effect(kind, &leaf),
                    _ => {}
                }
            }
            Kind::Protect => {
                let before = tables.look_up(range.start);
                let keep = if cpu.draw(2) == 0 { Access::READ } else { self.access() };
                let pending = tables.protect(range.clone(), keep, &mut self.pages)?;
                let any = !pending.is_empty();
                let seen = cpu.knowledge();
                let _ = pending.complete();
                if !keep.write {
                    cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Writes);
                }
                self.effect_if(any, kind, before);
            }
            Kind::WriteProtect | Kind::WriteProtectMask => {
                let before = tables.look_up(range.start);
                let (pending, range) = if kind == Kind::WriteProtect {
                    (tables.write_protect(range.clone())?, range)
                } else {
                    let mask = self.inside(range.start, 1 << cpu.draw(3) | 1 << cpu.draw(8));
                    let end = range.start + G::SIZE * u64::from(64 - u64::leading_zeros(mask));
                    (tables.write_protect_mask(range.start, mask)?, range.start..end)
                };
                let any = !pending.is_empty();
                let seen = cpu.knowledge();
                let _ = pending.complete();
                if kind == Kind::WriteProtect {
                    cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Writes);
                }
                self.effect_if(any, kind, before);
            }
            Kind::Relax => {
                let before = tables.look_up(Ipa::new(page));
                if tables.relax(Ipa::new(page), self.access())? == Relaxed::Widened {
                    self.effect_if(true, kind, before);
                }
            }
            Kind::MakeYoung => {
                let before = tables.look_up(Ipa::new(page));
                if tables.make_young(Ipa::new(page))? {
                    self.effect_if(true, kind, before);
                }
            }
            Kind::Age => {
                let mut marks = Vec::new();
                tables.age(range, &mut |marked| marks.push(marked))?;
                self.effects_of(kind, guest, &marks);
            }
            Kind::Clean => {
                let mut marks = Vec::new();
                let pending = tables.clean(range.clone(), &mut |marked| marks.push(marked))?;
                let seen = cpu.knowledge();
                let _ = pending.complete();
                cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Records);
                marks.iter().for_each(|marked| self.counts.effect(kind, marked.level.raw(), true));
            }
            Kind::ClearDbmAndWrite => {
                let before = tables.look_up(range.start);
                let pending = tables.clear_dbm_and_write(range.clone(), &mut |_| ())?;
                let any = !pending.is_empty();
                let seen = cpu.knowledge();
                let _ = pending.complete();
                cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Records);
                self.effect_if(any && before.is_some_and(|leaf| leaf.descriptor.is_hardware_tracked()), kind, before);
            }
            Kind::SetDbm => {
                let before = tables.look_up(range.start);
                tables.set_dbm(range.clone())?;
                let after = tables.look_up(range.start);
                self.effect_if(before != after, kind, before.filter(|leaf| leaf.level == Level::L3));
            }
            Kind::SetDbmClean | Kind::SetDbmCleanMask => {
                let before = tables.look_up(range.start);
                let pending = if kind == Kind::SetDbmClean {
                    tables.set_dbm_clean(range.clone())?
                } else {
                    tables.set_dbm_clean_mask(range.start, self.inside(range.start, 1 | 1 << cpu.draw(8)))?
                };
                let any = !pending.is_empty();
                let seen = cpu.knowledge();
                let _ = pending.complete();
                if kind == Kind::SetDbmClean {
                    cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Writes);
                }
                self.effect_if(any, kind, before);
            }
            Kind::ClearDbm => {
                let before = tables.look_up(range.start);
                let pending = tables.clear_dbm(range.clone())?;
                let any = !pending.is_empty();
                let seen = cpu.knowledge();
                let _ = pending.complete();
                cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Records);
                self.effect_if(any && before.is_some_and(|leaf| leaf.descriptor.is_hardware_tracked()), kind, before);
            }
            Kind::Dirty | Kind::Written => {
                let mut marks = Vec::new();
                if kind == Kind::Dirty {
                    tables.dirty(range, &mut |marked| marks.push(marked))?;
                } else {
                    tables.written(range, &mut |marked| marks.push(marked))?;
                }
                self.effects_of(kind, guest, &marks);
            }
            Kind::RelaxPage => {
                let before = tables.look_up(Ipa::new(page));
                match tables.relax_page(Ipa::new(page), self.access()) {
                    Ok(Relaxed::Already) | Err(Error::BlockInTheWay { .. }) => {}
                    Ok(Relaxed::Widened) => self.effect_if(true, kind, before),
                    Err(error) => return Err(error),
                }
            }
            Kind::Split => {
                let before = tables.look_up(range.start);
                // Splitting all of 1 GiB at once is much work, so it is rare.
                let is_all = range.end - range.start == span_of::<G>(1);
                let range =
                    if is_all && cpu.draw(256) != 0 { range.start..range.start + span_of::<G>(2) } else { range };
                let chunk = if is_all { span_of::<G>(1) } else { G::SIZE << cpu.draw(10) };
                let split = tables.split(range, chunk, &mut self.pages, |_, _| ControlFlow::Continue(()))?;
                self.effect_if(split.blocks > 0, kind, before.filter(|leaf| leaf.level < Level::L3));
            }
        }
        Ok(())
    }

    fn effect(&mut self, kind: Kind, leaf: &Leaf<G>) {
        self.counts.effect(kind, leaf.level.raw(), leaf.descriptor.is_hardware_tracked());
    }

    fn effect_if(&mut self, any: bool, kind: Kind, leaf: Option<Leaf<G>>) {
        if let (true, Some(leaf)) = (any, leaf) {
            self.effect(kind, &leaf);
        }
    }

    fn effects_of(&mut self, kind: Kind, guest: usize, marks: &[Marked]) {
        for marked in marks.iter().take(4) {
            let first = marked.ipa.raw() + u64::from(marked.mask.trailing_zeros()) * span_of::<G>(marked.level.raw());
            if let Some(leaf) = self.tables[guest].look_up(Ipa::new(first)) {
                self.effect(kind, &leaf);
            }
        }
    }
}

/// The span of a leaf, by its level.
pub(super) fn span_of<G: Granule>(level: u8) -> u64 {
    Layout::<G>::span(level)
}

/// Where memory is lent for a leaf of this level around a page. `None` at the block of level 1.
fn lent_at<G: Granule>(layout: &Layout<G>, level: u8, page: u64) -> Option<(Ipa, u64)> {
    let span = span_of::<G>(level.max(2));
    (!layout.is_giant(page)).then(|| (Ipa::new(page & !(span - 1)), span))
}
