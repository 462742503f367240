// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splitting: a table that maps the same memory replaces a block, so that parts of it can be changed.
//!
//! Eager splitting does this before the guest's writes would fault for it one by one. The walk visits only tables that
//! have blocks (Bras 2026: level-skipping split): it never reads level 3 entries, and skips tables whose metadata counts
//! no blocks.
//!
//! The new table is filled before any walk sees it. Then one break-before-make replaces the block (Arm ARM DDI 0487K.a,
//! D8.16.1). No lock is held during the flush. Hardware may record in the block between the filling and the break; the
//! new table gets those records before it is linked.
//!
//! With FEAT_BBM level 2, and a CPU that raises no conflict abort, neither break nor flush is needed (module `resize`).

use core::ops::ControlFlow;

use crate::counts::Counts;
use crate::group::leaf_or_group;
use crate::lockless_walk::{Busy, EntryLocation, Retry};
use crate::platform::Platform;
use crate::sequence::Snapshot;
use crate::table::Table;
use crate::tlb::Scope;
use crate::unlinked::{Look, UnlinkedTable};
use crate::{Descriptor, Error, Granule, Ipa, IpaRange, Level, Stage2, TablePage, TableSource, frame};

/// What [`Stage2::split`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Split {
    /// The number of blocks that were replaced, and of contiguous groups.
    pub blocks: u64,
    /// Below this address, nothing in the range is left to split.
    pub done: Ipa,
    /// Why `done` is not the end of the range, if it is not.
    pub stopped: Option<Stopped>,
}

/// Why a split ended early. This is no error: a block that is left is split when the guest writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The [`TableSource`] was empty.
    Dry,
    /// The callback returned [`ControlFlow::Break`].
    Asked,
}

/// How a split took the entry of a block.
enum Took<'a, P: Platform, G: Granule> {
    /// It broke the block, and has to make the table.
    Busy(Busy<'a, P, G>),
    /// The table is there.
    Replaced,
    /// The entry does not hold this block any more.
    Nothing,
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Splits all blocks in `range` down to pages, and contiguous groups into their leaves.
    ///
    /// The range is split in chunks of `chunk` bytes, a power of two. 1 GiB fits most uses; 2 MiB keeps the time
    /// between two yields short. Before each chunk that has blocks, `between` is called without a lock. Its second
    /// argument is the most table pages that the chunk can need. The callback may fill `tables`, let other work run, or
    /// break off.
    ///
    /// A block of level 1 needs a table and one for each of its entries to be replaced at once: 513 pages for 1 GiB. With
    /// fewer it is split level by level, and so is a block of level 0. An empty
    /// `tables` is no error: the blocks that are left stay as they are ([`Stopped::Dry`]).
    ///
    /// # Errors
    ///
    /// `range` is not whole pages inside the IPA space; [`Error::Chunk`] if `chunk` is smaller than a page or no power of two.
    pub fn split<T: TableSource<G>>(
        &self,
        range: IpaRange,
        chunk: u64,
        tables: &mut T,
        mut between: impl FnMut(&mut T, usize) -> ControlFlow<()>,
    ) -> Result<Split, Error> {
        self.geometry().check(&range)?;
        let page = self.geometry().granule().size();
        if !chunk.is_power_of_two() || chunk < page {
            return Err(Error::Chunk { size: chunk, least: page });
        }
        let mut split = Split { blocks: 0, done: range.start, stopped: None };
        // `between` is not called where no block is left.
        while let Some(next) = self.next_to_split(split.done, range.end) {
            split.done = split.done.max(next);
            self.give_deferred(tables);
            let end = Ipa::new((split.done.raw() | (chunk - 1)).saturating_add(1)).min(range.end);
            if between(tables, self.pages_to_split(split.done, end)).is_break() {
                split.stopped = Some(Stopped::Asked);
                return Ok(split);
            }
            let start = split.done;
            let result = self.split_chunk(&mut split, end, tables);
            if G::GROUPS {
                split.blocks += self.ungroup_range(&(start..split.done));
            }
            if result.is_err() {
                split.stopped = Some(Stopped::Dry);
                return Ok(split);
            }
        }
        split.done = range.end;
        Ok(split)
    }

    /// The most table pages that splitting a range can need: one for each block that it touches, of every level above 3
    /// that the geometry has.
    fn pages_to_split(&self, start: Ipa, end: Ipa) -> usize {
        let touched = |level| {
            let shift = self.geometry().granule().span_shift(level);
            (((end.raw() - 1) >> shift) - (start.raw() >> shift) + 1) as usize
        };
        let mut pages = touched(Level::L2);
        for level in [Level::L1, Level::L0] {
            pages += if self.geometry().has_leaves(level) { touched(level) } else { 0 };
        }
        pages
    }

    fn split_chunk(&self, split: &mut Split, end: Ipa, tables: &mut impl TableSource<G>) -> Result<(), Error> {
        while split.done < end {
            match self.next_block(split.done, end) {
                None => split.done = end,
                Some((ipa, location)) => {
                    split.done = split.done.max(ipa);
                    // At once if the chunk contains the whole block.
                    let whole = ipa >= split.done && end - ipa >= self.geometry().granule().span(location.level);
                    let level = if whole { Level::L3 } else { location.level.below().unwrap_or(Level::L3) };
                    split.blocks += u64::from(self.split_block(ipa, &location, level, tables)?);
                }
            }
        }
        Ok(())
    }

    /// The address of the first block or contiguous group from `from` on that begins before `end`.
    fn next_to_split(&self, from: Ipa, end: Ipa) -> Option<Ipa> {
        let block = self.next_block(from, end).map(|(ipa, _)| ipa);
        if !G::GROUPS {
            return block;
        }
        let mut group = from;
        let end = block.unwrap_or(end).max(from);
        self.next_groups(&mut group, end).map(|_| group).or(block)
    }

    /// The first block from `from` on that begins before `end`. It may be a busy entry, which may become a block.
    fn next_block(&self, from: Ipa, end: Ipa) -> Option<(Ipa, EntryLocation<'_, G>)> {
        let mut at = from;
        while at < end {
            let then = self.sequence.now();
            let (table, level) = (self.root(), self.geometry().root_level());
            if let Ok(Some(found)) = self.next_block_in((table, level, then), &mut at, end) {
                return Some(found);
            }
        }
        None
    }

    fn next_block_in<'a>(
        &'a self,
        (table, level, then): (Table<'a, G>, Level, Snapshot),
        at: &mut Ipa,
        end: Ipa,
    ) -> Result<Option<(Ipa, EntryLocation<'a, G>)>, Retry> {
        let Some(below) = level.below() else { return Ok(None) };
        let span = self.geometry().granule().span(level);
        let mut index = self.geometry().index(*at, level);
        while index < table.len() && *at < end {
            let here = at.align_down(span);
            let cell = table.entry(index);
            let entry = cell.look();
            if !self.sequence.is_still(then) {
                return Err(Retry);
            }
            if entry.is_table(level) {
                if below < Level::L3
                    && self.may_hold_blocks(entry, below)
                    && let Some(found) = self.next_block_in((self.table(entry), below, then), at, end)?
                {
                    return Ok(Some(found));
                }
            } else if !entry.is_vacant() {
                return Ok(Some((here, EntryLocation { table, level, index, cell, entry, then })));
            }
            *at = here + span;
            index += 1;
        }
        Ok(None)
    }

    /// Whether the table of `level` that `entry` leads to may hold blocks, itself or in a table below. `level` is above
    /// 3.
    ///
    /// If the table was unlinked meanwhile, any answer will do: its blocks are gone.
    fn may_hold_blocks(&self, entry: Descriptor<G>, level: Level) -> bool {
        let counts = self.platform().metadata(entry.address()).peek();
        level < Level::L2 || counts.is_none_or(|counts| counts.leaves() > 0 || counts.busy() > 0)
    }

    /// Splits the blocks that reach across either end of `range`.
    pub(crate) fn split_ends(&self, range: &IpaRange, tables: &mut impl TableSource<G>) -> Result<(), Error> {
        self.geometry().check(range)?;
        self.give_deferred(tables);
        self.split_before(range.start, tables)?;
        self.split_before(range.end, tables)
    }

    /// Splits the block that maps `ipa` until a leaf begins at `ipa`, or nothing maps it. `ipa` may be the end of the
    /// IPA space.
    fn split_before(&self, ipa: Ipa, tables: &mut impl TableSource<G>) -> Result<(), Error> {
        if !G::GROUPS && ipa.is_aligned(self.geometry().granule().span(self.geometry().root_level())) {
            return Ok(());
        }
        if ipa >= self.geometry().end() {
            return Ok(());
        }
        loop {
            // No W3 for an entry of level 3. If its table was unlinked meanwhile, a block or a group may be there now. So it
            // may at any time after this: the caller meets it under its table's lock, and comes back.
            let location = self.lockless_walk_out_of_line(ipa, Level::L3);
            if leaf_or_group(location.entry, ipa, location.level).start != ipa {
                self.ungroup(&location, ipa);
                continue;
            }
            let start = ipa.align_down(self.geometry().granule().span(location.level));
            let Some(below) = location.level.below().filter(|_| start != ipa) else { return Ok(()) };
            if location.entry.is_vacant() {
                return Ok(());
            }
            // Also waits while the entry is busy.
            self.split_block(start, &location, below, tables)?;
        }
    }

    /// Replaces a block with tables down to `level`, or to the next level only if pages are short.
    ///
    /// Returns whether this CPU replaced it. Another CPU may have changed the entry, or be changing it.
    pub(crate) fn split_block(
        &self,
        ipa: Ipa,
        location: &EntryLocation<'_, G>,
        level: Level,
        tables: &mut impl TableSource<G>,
    ) -> Result<bool, Error> {
        let &EntryLocation { level: at, entry: block, .. } = location;
        let Some(below) = at.below().filter(|_| block.is_leaf(at)) else {
            self.platform().pause(1);
            return Ok(false);
        };
        if block.is_contiguous() {
            self.ungroup(location, ipa);
            return Ok(false);
        }
        // All levels at once, or else the next level only. A block of level 0 would take a quarter of a million pages.
        let level = if G::LARGEST == Level::L0 && at == Level::L0 { below } else { level };
        let built = self.build(block, at, level, tables).or_else(|| self.build(block, at, below, tables));
        let Some(new) = built else {
            let gone = location.cell.read() != block;
            return if gone { Ok(false) } else { Err(Error::NoTablePage { ipa, level: below }) };
        };
        let busy = match self.take_block(ipa, at, block, &new) {
            Took::Busy(busy) => busy,
            Took::Replaced => return Ok(true),
            Took::Nothing => {
                let in_vain = UnlinkedTable { table: new.pa(), level: below, ipa };
                let _ = self.free_tree(in_vain, Look::Nowhere, tables, &mut |_| ());
                return Ok(false);
            }
        };
        let range = ipa..ipa + self.geometry().granule().span(at);
        self.tlb().invalidate(&Scope { range, level: Some(at), tables: false });
        if busy.old != block {
            self.refill(self.table_in(&new), below, busy.old.part(below));
        }
        busy.make(Descriptor::table(new.pa()));
        self.publish();
        Ok(true)
    }

    /// Breaks a block and makes its entry busy, or replaces it with the table `new` at once, where the CPU allows that.
    ///
    /// Walks again: filling the new tables takes time, and other CPUs may have unlinked tables meanwhile.
    fn take_block(&self, ipa: Ipa, at: Level, block: Descriptor<G>, new: &TablePage<G>) -> Took<'_, P, G> {
        loop {
            let location = self.lockless_walk_out_of_line(ipa, at);
            let Ok(locked) = self.lock(&location) else { continue };
            if location.level != at || !location.cell.read().differs_by_records_only(block) {
                return Took::Nothing;
            }
            if self.features().resizes_live() {
                self.replace_block(locked, &location, block, new);
                return Took::Replaced;
            }
            if let Ok(busy) = locked.make_busy(location.cell) {
                return Took::Busy(busy);
            }
        }
    }

    /// Builds a table that maps what `block` of level `at` maps, with leaves of level `to`.
    ///
    /// Returns `None`, with all pages given back, if `tables` does not have enough.
    fn build(
        &self,
        block: Descriptor<G>,
        at: Level,
        to: Level,
        tables: &mut impl TableSource<G>,
    ) -> Option<TablePage<G>> {
        let below = at.below()?;
        let page = frame::take(tables)?;
        let (part, entries) = (block.part(below), self.geometry().granule().entries());
        let table = self.table_in(&page);
        let mut one = part;
        if below == to {
            table.fill(0, entries, part, self.geometry().granule().span(below));
        } else {
            let span = self.geometry().granule().span(below);
            for index in 0..entries {
                let Some(child) = self.build(part.advanced(index as u64 * span), below, to, tables) else {
                    let built = (0..index).map(|index| table.entry(index).read().address());
                    for child in built {
                        frame::give(tables, TablePage::from_tree(child, self.features()));
                    }
                    frame::give(tables, page);
                    return None;
                };
                one = Descriptor::table(child.pa());
                table.entry(index).set(one);
            }
        }
        let other_memory = !block.is_normal_memory(self.features());
        self.set_counts(&page, Counts::of(one, below).times(entries as u64), other_memory);
        Some(page)
    }

    /// Fills new tables again, with what hardware recorded in the block after they were built.
    #[cold]
    pub(crate) fn refill(&self, table: Table<'_, G>, level: Level, first: Descriptor<G>) {
        let span = self.geometry().granule().span(level);
        match level.below() {
            Some(below) if table.entry(0).read().is_table(level) => {
                for index in 0..table.len() {
                    let part = first.advanced(index as u64 * span).part(below);
                    self.refill(self.table(table.entry(index).read()), below, part);
                }
            }
            _ => table.fill(0, table.len(), first, span),
        }
    }
}
