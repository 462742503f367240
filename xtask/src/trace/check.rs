// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the lines of a trace say, one after the other, and which rule each of them breaks.
//!
//! Invariant: after a breach, what was done is taken for done, so that one mistake is reported once.

use std::collections::HashMap;

use anyhow::bail;
use twofold_abi::trace::{Dc, Event, Line};

use super::flush::{Debt, Flushes};
use super::tables::{ENTRIES, Entry, Page, Place, State, Tables, Tree, index_of, page_of};

/// The state of everything that a trace speaks of.
#[derive(Default)]
pub struct Checker {
    tables: Tables,
    locks: HashMap<u64, Lock>,
    flushes: Flushes,
    /// What was wrong.
    pub breaches: Vec<Breach>,
    /// Where lines are missing.
    pub lost: Vec<usize>,
}

/// A rule was broken. Events are named by their number in order.
pub struct Breach {
    pub at: usize,
    pub what: String,
    /// The earlier event that it was broken with.
    pub since: Option<usize>,
}

struct Lock {
    cpu: u32,
    at: usize,
}

impl Checker {
    /// Looks at the next event, the one with number `at`.
    ///
    /// # Errors
    ///
    /// It is of a kind of tables that cannot be checked.
    pub fn event(&mut self, at: usize, line: &Line<'_>) -> anyhow::Result<()> {
        let cpu = line.cpu;
        match line.event {
            Event::RootMade { pa, entries, vttbr, vtcr } => self.root_made(pa, entries, vttbr, vtcr)?,
            Event::RootFreed { pa } => self.root_freed(at, pa),
            Event::TableTaken { pa } => self.table_taken(at, pa),
            Event::TableFreed { pa } => self.table_freed(at, pa),
            Event::LockTaken { pa } => self.lock_taken(at, cpu, pa),
            Event::LockReleased { pa } => self.lock_released(at, cpu, pa),
            Event::Write { pa, old, new, .. } => self.write(at, cpu, pa, Entry(old), Entry(new)),
            Event::Hardware { pa, old, new } => self.hardware(at, pa, Entry(old), Entry(new)),
            Event::Dc { operation: Dc::Zva, pa, size } => self.zeroed(at, pa, size),
            Event::Tlbi { operation, operand, vttbr } => self.flushes.issue(at, cpu, operation, operand, vttbr),
            Event::Dsb { domain } => self.flushes.barrier(at, cpu, domain),
            Event::Lost { .. } => {
                let (breaches, mut lost) = (std::mem::take(&mut self.breaches), std::mem::take(&mut self.lost));
                lost.push(at);
                *self = Self { breaches, lost, ..Self::default() };
            }
            _ => {}
        }
        Ok(())
    }

    fn breach(&mut self, at: usize, since: Option<usize>, what: impl Into<String>) {
        self.breaches.push(Breach { at, what: what.into(), since });
    }

    fn root_made(&mut self, pa: u64, entries: u32, vttbr: u64, vtcr: u64) -> anyhow::Result<()> {
        const MOST_TABLES: usize = 16;
        if vtcr >> 14 & 3 != 0 {
            bail!("the granule of these tables is not 4 KiB (VTCR_EL2.TG0)");
        }
        let pages = (entries as usize).div_ceil(ENTRIES);
        if pages > MOST_TABLES {
            bail!("a root has {MOST_TABLES} tables at most");
        }
        // SL0 counts the other way round; 3 is the last level (FEAT_TTST).
        let level = [2, 1, 0, 3][(vtcr >> 6 & 3) as usize];
        let tree = Tree { vmid: (vttbr >> 48) as u16, level, pages };
        for page in tree.page_addresses(pa) {
            self.tables.pages.insert(page, Page::new(State::Own { since: None }));
        }
        self.tables.trees.insert(pa, tree);
        Ok(())
    }

    fn root_freed(&mut self, at: usize, pa: u64) {
        let Some(tree) = self.tables.trees.remove(&pa) else { return };
        for page in tree.page_addresses(pa) {
            self.tables.pages.remove(&page);
        }
        if let Some(debt) = self.flushes.take(|debt| debt.tree == pa) {
            self.breach(at, Some(debt.at), format!("the root is freed, and of its tree {debt}"));
        }
    }

    fn table_taken(&mut self, at: usize, pa: u64) {
        let page = Page::new(State::Own { since: Some(at) });
        match self.tables.pages.insert(pa, page).map(|page| page.state) {
            None | Some(State::Free { .. }) => {}
            Some(State::Own { since }) => self.breach(at, since, "the page was taken already, and not freed"),
            Some(State::InTree(_)) => self.breach(at, None, "the page is a table that is in use"),
        }
    }

    fn table_freed(&mut self, at: usize, pa: u64) {
        let page = Page::new(State::Free { since: at });
        match self.tables.pages.insert(pa, page).map(|page| page.state) {
            // Taken before the trace began.
            None | Some(State::Own { .. }) => {}
            Some(State::Free { since }) => self.breach(at, Some(since), "the page was freed already"),
            Some(State::InTree(Place { gone: None, .. })) => self.breach(at, None, "the table is still in the tree"),
            Some(State::InTree(Place { gone: Some(group), .. })) => {
                if let Some(debt) = self.flushes.find(|debt| debt.group == group) {
                    let (since, what) = (debt.at, format!("walks may still reach the table: {debt}"));
                    self.breach(at, Some(since), what);
                }
            }
        }
    }

    fn lock_taken(&mut self, at: usize, cpu: u32, pa: u64) {
        if let Some(lock) = self.locks.insert(pa, Lock { cpu, at }) {
            self.breach(at, Some(lock.at), format!("CPU {} has that lock", lock.cpu));
        }
        // Whoever locks a root finds it ready.
        if let Some(&tree) = self.tables.trees.get(&pa)
            && self.tables.pages.get(&pa).is_some_and(|page| matches!(page.state, State::Own { .. }))
        {
            for (number, page) in tree.page_addresses(pa).enumerate() {
                let ipa = (number * ENTRIES) as u64 * Place::span_of(tree.level);
                self.link(at, page, Place { tree: pa, lock: pa, level: tree.level, ipa, gone: None });
            }
        }
    }

    fn lock_released(&mut self, at: usize, cpu: u32, pa: u64) {
        match self.locks.remove(&pa) {
            Some(lock) if lock.cpu == cpu => {}
            Some(lock) => self.breach(at, Some(lock.at), format!("CPU {} has that lock", lock.cpu)),
            None if !self.lost.is_empty() => {}
            None => self.breach(at, None, "nobody has that lock"),
        }
    }

    fn write(&mut self, at: usize, cpu: u32, pa: u64, old: Entry, new: Entry) {
        let Some(page) = self.tables.pages.get_mut(&page_of(pa)) else { return };
        let (state, last) = (page.state, page.set(index_of(pa), new, at));
        if matches!(state, State::Free { .. }) {
            // It may be anything by now.
            return;
        }
        if let Some((known, since)) = last
            && known.differs_beyond_records(old)
        {
            self.breach(at, Some(since), format!("the old value is {known}, as far as the trace tells"));
        }
        let State::InTree(place) = state else { return };
        self.needs_lock(at, cpu, place.lock);
        if let Some(table) = old.table_at(place.level)
            && new.table_at(place.level) != Some(table)
        {
            // Nobody may be inside a table that is taken out.
            self.needs_lock(at, cpu, table);
        }
        self.changed(at, place.entry(index_of(pa)), last.map(|(_, since)| since), old, new);
    }

    fn needs_lock(&mut self, at: usize, cpu: u32, table: u64) {
        let lock = self.locks.get(&table);
        if lock.is_none_or(|lock| lock.cpu != cpu) {
            let since = lock.map(|lock| lock.at);
            self.breach(at, since, format!("CPU {cpu} does not have the lock of the table {table:#x}"));
        }
    }

    /// Software changed an entry of a tree. `place`: what the entry covers.
    fn changed(&mut self, at: usize, place: Place, since: Option<usize>, old: Entry, new: Entry) {
        if old.is_valid() && new.is_valid() {
            if !old.needs_break_before(new, place.level) {
                return;
            }
            self.breach(at, since, format!("a valid entry became another without a break: {old}, then {new}"));
        }
        if old.is_valid() {
            self.broken(at, place, old, at);
        }
        self.flushes.take(|debt| debt.is_undone_by(place, new));
        if !old.is_valid()
            && new.is_valid()
            && let Some(debt) = self.flushes.take(|debt| {
                // Who was inside a table that was taken out does not know: what it does is flushed with the rest.
                debt.is_in(place.tree, place.range()) && Some(debt.group) != place.gone
            })
        {
            self.breach(at, Some(debt.at), format!("the entry is made where something was broken, and {debt}"));
        }
        if let Some(table) = new.table_at(place.level) {
            self.link(at, table, Place { lock: table, level: place.level + 1, gone: None, ..place });
        }
        if new.is_valid()
            && let Some(group) = place.gone
        {
            self.broken(at, place, new, group);
        }
    }

    /// What the entry, and all below it, told walks is to be flushed. `group`: the event that broke it.
    fn broken(&mut self, at: usize, place: Place, entry: Entry, group: usize) {
        let Some(tree) = self.tables.trees.get(&place.tree) else { return };
        let table = entry.table_at(place.level);
        self.flushes.owe(Debt::new(place, tree.vmid, entry, at, group));
        let Some(table) = table else { return };
        for (place, entry) in self.tables.take_out(table, group) {
            self.broken(at, place, entry, group);
        }
    }

    /// A table has become part of a tree, with all that hangs on it.
    fn link(&mut self, at: usize, table: u64, place: Place) {
        let page = self.tables.pages.entry(table).or_insert_with(|| Page::new(State::Own { since: None }));
        let (before, below) = (std::mem::replace(&mut page.state, State::InTree(place)), page.valid());
        match before {
            State::Own { .. } => {}
            State::Free { since } => self.breach(at, Some(since), format!("the table {table:#x} is a free page")),
            State::InTree(_) => return self.breach(at, None, format!("the table {table:#x} is in use elsewhere")),
        }
        for (index, entry) in below {
            if let Some(table) = entry.table_at(place.level) {
                let place = place.entry(index);
                self.link(at, table, Place { lock: table, level: place.level + 1, ..place });
            }
        }
    }

    fn hardware(&mut self, at: usize, pa: u64, old: Entry, new: Entry) {
        let Some(page) = self.tables.pages.get_mut(&page_of(pa)) else { return };
        let (state, last) = (page.state, page.set(index_of(pa), new, at));
        match state {
            State::InTree(_) => {}
            State::Free { since } => self.breach(at, Some(since), "a walk reached a table that is freed"),
            State::Own { since } => self.breach(at, since, "a walk reached a table that is in no tree"),
        }
        if let Some((known, since)) = last
            && known != old
        {
            self.breach(at, Some(since), format!("the old value is {known}, as far as the trace tells"));
        }
        if !old.may_be_recorded_as(new) {
            self.breach(at, None, "hardware sets the access flag, and S2AP[1] where DBM is, of valid entries; no more");
        }
    }

    fn zeroed(&mut self, at: usize, pa: u64, size: u64) {
        let end = pa.saturating_add(size);
        let mut in_use = false;
        for (base, page) in self.tables.pages.range_mut(page_of(pa)..end) {
            in_use |= matches!(page.state, State::InTree(_));
            for index in 0..ENTRIES {
                if (pa..end).contains(&(base + index as u64 * 8)) {
                    page.set(index, Entry(0), at);
                }
            }
        }
        if in_use {
            self.breach(at, None, "a table that is in use was zeroed");
        }
    }
}
