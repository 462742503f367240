// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The effect of a change in the use of a page: it becomes a table or a root, its lock is taken, or it gets another
//! use.
//!
//! Invariant: when a page gets another use, no TLB holds an entry that leads to it. Locks are taken from the root down.
//! Two tables side by side are locked only while the table above both is locked.

use twofold_abi::trace::Event;
use twofold_stage2::Pa;

use super::breach::Rule;
use super::clock::Moment;
use super::model::{Broken, Cpu, Model, Outcome};
use super::stale::{Kind, Stale};
use super::tables::{Page, Standing, TablePosition};
use crate::walk::{Format, Shape};

impl Model {
    pub(crate) fn page_taken(&mut self, page: u64) -> Outcome {
        self.trace.event(Event::TableTaken { pa: page });
        if let Some(Page { standing, .. }) = self.tables.of(page) {
            let what = format!("{page:#x} is taken for a table, and is one already: {standing:x?}");
            return Err(Broken::new(Rule::TableFreedTooEarly, what).at(0, &[page]));
        }
        self.check_frame_free(page, self.format.page())?;
        self.settle(page);
        self.tables.take(page, self.step);
        Ok(())
    }

    pub(crate) fn page_freed(&mut self, page: u64) -> Outcome {
        self.trace.event(Event::TableFreed { pa: page });
        if let Some(Page { standing: Standing::Linked(place), .. }) = self.tables.of(page) {
            let what = format!("the table at {page:#x} is freed while it is in the tree");
            return Err(Broken::new(Rule::TableFreedTooEarly, what).at(place.ipa, &[]));
        }
        let reaches = |stale: &&Stale| stale.kind == Kind::Table && self.format.address(stale.raw, stale.level) == page;
        if let Some(stale) = self.stale.iter().find(reaches) {
            let what = format!("the table at {page:#x} is freed while there may be a {}", stale.held());
            return Err(Broken::new(Rule::TableFreedTooEarly, what).at(stale.ipa, &[stale.entry]));
        }
        self.tables.free(page);
        self.settle(page);
        Ok(())
    }

    fn settle(&mut self, page: u64) {
        for index in 0..self.format.entries() {
            if let Some(word) = self.arena.word(Pa::new(page + index * 8)) {
                self.cells.settle(word);
            }
        }
    }

    /// Checks a frame before it gets another use: no TLB may hold an entry that leads to it.
    pub(crate) fn check_frame_free(&self, start: u64, size: u64) -> Outcome {
        let reaches = |stale: &&Stale| {
            let output = self.format.output_from(stale.raw, stale.level, stale.ipa, stale.ipa);
            stale.kind == Kind::Leaf && output < start + size && start < output + stale.size()
        };
        let Some(stale) = self.stale.iter().find(reaches) else { return Ok(()) };
        let what = format!("the frame at {start:#x} gets another use while there may be a {}", stale.held());
        Err(Broken::new(Rule::FrameReusedTooEarly, what).at(stale.ipa, &[stale.entry]))
    }

    /// Makes memory a root, or ends that.
    pub(crate) fn root(&mut self, start: u64, entries: Option<usize>, vttbr: u64, vtcr: u64) -> Outcome {
        let Some(entries) = entries else {
            self.trace.event(Event::RootFreed { pa: start });
            let loaded = |cpu: &Cpu| self.format.root(cpu.effective) == start;
            if let Some(cpu) = self.cpus.iter().position(loaded) {
                let what = format!("the root at {start:#x} is freed while VTTBR_EL2 of CPU {cpu} names it");
                return Err(Broken::new(Rule::TableFreedTooEarly, what));
            }
            self.abandon(start);
            self.tables.remove_root(start);
            return Ok(());
        };
        self.trace.event(Event::RootMade { pa: start, entries: entries as u32, vttbr, vtcr });
        let unusable = |error| Broken::new(Rule::Content, format!("a root with VTCR_EL2 {vtcr:#x}: {error}"));
        let format = Format::of(vtcr, &self.features).map_err(unusable)?;
        if self.tables.is_empty() {
            self.format = format;
            self.tables.set_format(format);
        } else if format != self.format {
            let what = format!("a root with VTCR_EL2 {vtcr:#x} beside tables of another format, which is not modelled");
            return Err(Broken::new(Rule::Content, what));
        }
        let level = format.root_level(vtcr).unwrap_or_default();
        self.tables.add_root((start, entries, level), self.vmid(vttbr), self.step);
        Ok(())
    }

    pub(crate) fn locked(&mut self, cpu: usize, page: u64) -> Outcome {
        self.trace.event(Event::LockTaken { pa: page });
        let place = |page: u64| match self.tables.of(page).map(|page| page.standing) {
            Some(Standing::Linked(place)) => Some((place, true)),
            Some(Standing::Unlinked(place, _) | Standing::Closed(place)) => Some((place, false)),
            _ => None,
        };
        if let Some((new, is_linked)) = place(page) {
            // A CPU that waits for the lock of an unlinked table has locked no table that led to it.
            let counts = |(held, linked): (_, bool)| (linked || !is_linked).then_some(held);
            let held = || self.cpus[cpu].locks.iter().filter_map(|held| place(*held).and_then(counts));
            let parent = held().find(|held| self.tables.leads_to(*held, new));
            let beside = |held: &TablePosition| parent.is_some_and(|parent| self.tables.leads_to(parent, *held));
            if let Some(held) = held().find(|held| held.level >= new.level && !beside(held)) {
                let (new, held) = (new.level, held.level);
                let what =
                    format!("a table of level {new} is locked by a CPU that has the lock of one of level {held}");
                return Err(Broken::new(Rule::LockOrder, what));
            }
        }
        self.cpus[cpu].locks.push(page);
        Ok(())
    }

    pub(crate) fn unlocked(&mut self, cpu: usize, page: u64) -> Outcome {
        self.trace.event(Event::LockReleased { pa: page });
        match self.cpus[cpu].locks.iter().rposition(|held| *held == page) {
            Some(at) => {
                self.cpus[cpu].locks.remove(at);
                self.check_groups(cpu, page)
            }
            None => {
                let what = format!("the lock of the table at {page:#x} is released by a CPU that does not hold it");
                Err(Broken::new(Rule::LockOrder, what))
            }
        }
    }

    /// Ends a tree. Entries left in it may be cached, as if unlinked. No walk reads them again.
    fn abandon(&mut self, start: u64) {
        let Some(number) = self.tables.find_root(start) else { return };
        let root = *self.tables.root(number);
        for index in 0..root.entries as u64 {
            let (at, here) = (start + index * 8, index * self.format.span(root.level));
            let raw = self.read(at);
            let (place, long_ago) = ((here, root.level, at), Moment::default());
            match self.format.shape(raw, root.level) {
                Shape::Invalid => {}
                Shape::Table => self.unlink((self.format.address(raw, root.level), root), place, raw, long_ago),
                Shape::Leaf => self.add_stale_leaf(&root, number, place, (raw, Kind::Leaf, true), long_ago),
            }
        }
    }
}
