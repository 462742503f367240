// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of a trace that concern tables: pages that become tables and leave the tree, locks, and writes of entries.

use twofold_abi::trace::{How, Order};

use super::debts::{Debt, Kind};
use super::entries::Entry;
use super::flush::EVERYWHERE;
use super::rules::Rule;
use super::state::{Checker, Lock};
use super::tables::{ENTRIES, Page, Position, State, Tree, index_of, page_of};

/// A write of an entry that is in a tree.
#[derive(Clone, Copy)]
struct Write {
    at: usize,
    cpu: u32,
    /// The entry's place in the tree.
    place: Position,
    /// The event that wrote the old value, if known.
    since: Option<usize>,
    old: Entry,
    new: Entry,
    order: Order,
}

impl Checker {
    pub(super) fn root_made(&mut self, at: usize, cpu: u32, pa: u64, entries: usize, vttbr: u64, vtcr: u64) {
        let tree = Tree { vttbr, vtcr, entries, made: (cpu, at), linked: None };
        for page in tree.page_addresses(pa) {
            self.is_no_guests(at, page);
            self.tables.pages.insert(page, Page::new(State::Own { since: Some(at) }));
        }
        if let Some(before) = self.tables.trees.insert(pa, tree) {
            self.breach(at, Some(before.made.1), Rule::LateWrite, "the root was made before and not freed");
        }
    }

    pub(super) fn root_freed(&mut self, at: usize, pa: u64) {
        let Some(tree) = self.tables.trees.remove(&pa) else { return };
        if let Some((cpu, since)) = self.guests.with_root(pa) {
            let what = format!("the root is freed while CPU {cpu} has it loaded");
            self.breach(at, Some(since), Rule::TableFreedTooEarly, what);
        }
        for page in tree.page_addresses(pa) {
            self.forget(at, page);
            self.tables.pages.remove(&page);
        }
        self.flushes.take(pa, &EVERYWHERE, |debt| debt.kind == Kind::Downgrade);
        if let Some(debt) = self.flushes.take(pa, &EVERYWHERE, |_| true) {
            let what = format!("the root is freed, and in its tree {debt}");
            self.breach(at, Some(debt.at), Rule::TableFreedTooEarly, what);
        }
    }

    /// Removes the leaves of a table, and of the tables below it, from the mapped memory.
    fn forget(&mut self, at: usize, table: u64) {
        for (place, entry) in self.tables.take_out(table, at) {
            self.frames.unmap(entry, place.level);
            if let Some(table) = entry.table_at(place.level) {
                self.forget(at, table);
            }
        }
    }

    pub(super) fn table_taken(&mut self, at: usize, pa: u64) {
        self.is_no_guests(at, pa);
        let page = Page::new(State::Own { since: Some(at) });
        match self.tables.pages.insert(pa, page).map(|page| page.state) {
            None | Some(State::Free { .. }) => {}
            Some(State::Own { since }) => {
                self.breach(at, since, Rule::LateWrite, "the page was taken already and not freed");
            }
            Some(State::InTree(_)) => self.breach(at, None, Rule::LateWrite, "the page is a table in use"),
        }
    }

    /// Checks that no guest can reach a page that becomes a table.
    fn is_no_guests(&mut self, at: usize, page: u64) {
        if let Some(level) = self.frames.leaf_over(page) {
            let what = format!("{page:#x} becomes a table while a leaf of level {level} maps it");
            self.breach(at, None, Rule::FrameReusedTooEarly, what);
        } else if let Some(debt) = self.flushes.over(page) {
            let what = format!("{page:#x} becomes a table, and {debt}");
            self.breach(at, Some(debt.at), Rule::FrameReusedTooEarly, what);
        }
    }

    pub(super) fn table_freed(&mut self, at: usize, pa: u64) {
        let page = Page::new(State::Free { since: at });
        match self.tables.pages.insert(pa, page).map(|page| page.state) {
            // `None`: the page was taken before the trace began.
            None | Some(State::Own { .. }) => {}
            Some(State::Free { since }) => {
                self.breach(at, Some(since), Rule::LateWrite, "the page was freed already");
            }
            Some(State::InTree(Position { gone: None, .. })) => {
                self.breach(at, None, Rule::TableFreedTooEarly, "the table is still in the tree");
            }
            Some(State::InTree(Position { gone: Some(group), .. })) => {
                if let Some(debt) = self.flushes.of_group(group) {
                    let what = format!("walks may still reach the table: {debt}");
                    self.breach(at, Some(debt.at), Rule::TableFreedTooEarly, what);
                }
            }
        }
    }

    pub(super) fn lock_taken(&mut self, at: usize, cpu: u32, pa: u64) {
        if let Some(lock) = self.locks.insert(pa, Lock { cpu, at }) {
            self.breach(at, Some(lock.at), Rule::LockOrder, format!("CPU {} holds that lock", lock.cpu));
        }
        // The root is linked when a CPU first locks it.
        let Some(tree) = self.tables.trees.get_mut(&pa) else { return };
        if tree.linked.is_some() {
            return;
        }
        tree.linked = Some((cpu, at));
        let tree = *tree;
        self.publication.made(at, cpu);
        for (number, page) in tree.page_addresses(pa).enumerate() {
            let place = Position { tree: pa, lock: pa, level: tree.level(), ipa: 0, gone: None };
            let first = number * ENTRIES;
            self.link(at, page, place.entry(first), (tree.entries - first).min(ENTRIES), Some(at));
        }
    }

    pub(super) fn lock_released(&mut self, at: usize, cpu: u32, pa: u64) {
        self.flushes.wrote(cpu);
        match self.locks.remove(&pa) {
            Some(lock) if lock.cpu == cpu => {}
            Some(lock) => {
                self.breach(at, Some(lock.at), Rule::LockOrder, format!("CPU {} holds that lock", lock.cpu));
            }
            None if !self.lost.is_empty() => {}
            None => self.breach(at, None, Rule::LockOrder, "no CPU holds that lock"),
        }
    }

    pub(super) fn write(&mut self, at: usize, cpu: u32, pa: u64, (old, new): (u64, u64), how: How, order: Order) {
        let (old, new) = (Entry(old), Entry(new));
        let waived = !self.unrecorded.is_empty() && self.unrecorded.remove(&cpu) == Some(pa);
        let Some(page) = self.tables.pages.get_mut(&page_of(pa)) else { return };
        if matches!(page.state, State::Free { .. }) {
            // A freed page may be used for anything.
            return;
        }
        let (state, last) = (page.state, page.set(index_of(pa), new, at));
        let since = last.map(|(_, since)| since);
        if let Some((known, _)) = last
            && known.differs_beyond_records(old)
        {
            self.breach(at, since, Rule::Contradiction, format!("according to the trace the old value is {known}"));
        }
        let State::InTree(place) = state else { return };
        self.needs_lock(at, cpu, place.lock);
        if let Some(table) = old.table_at(place.level)
            && new.table_at(place.level) != Some(table)
        {
            // Unlinking a table requires the lock of that table too, so no other CPU changes its entries meanwhile.
            self.needs_lock(at, cpu, table);
        }
        let is_tracked = old.is_tracked() && old.table_at(place.level).is_none();
        if how == How::Store
            && is_tracked
            && !waived
            && self.tables.trees.get(&place.tree).is_some_and(|tree| tree.records_writes())
        {
            let what = "a store over an entry with DBM: a write that hardware records at this moment is lost";
            self.breach(at, since, Rule::RecordLost, what);
        }
        self.flushes.wrote(cpu);
        self.changed(Write { at, cpu, place: place.entry(index_of(pa)), since, old, new, order });
    }

    fn needs_lock(&mut self, at: usize, cpu: u32, table: u64) {
        let lock = self.locks.get(&table);
        if lock.is_none_or(|lock| lock.cpu != cpu) {
            let since = lock.map(|lock| lock.at);
            let what = format!("CPU {cpu} does not hold the lock of the table {table:#x}");
            self.breach(at, since, Rule::NoLock, what);
        }
    }

    /// Checks a software change of an entry in a tree.
    fn changed(&mut self, write: Write) {
        let Write { at, place, old, new, .. } = write;
        if old.is_valid() && new.is_valid() {
            if !old.needs_break_before(new, place.level) {
                return self.downgraded(write);
            }
            let what = format!("a valid entry changed without a break: {old}, then {new}");
            self.breach(at, write.since, Rule::LiveChange, what);
        }
        // The entries of an unlinked table are already due to be flushed.
        if old.is_valid() && place.gone.is_none() {
            self.broken((at, Some(write.cpu)), place, old, at);
        }
        if new.is_valid() {
            self.made(write);
        }
    }

    /// Records a leaf that changed in place: a permission downgrade needs a flush.
    fn downgraded(&mut self, Write { at, cpu, place, old, new, .. }: Write) {
        let is_leaf = old.table_at(place.level).is_none();
        if is_leaf && place.gone.is_none() && old.allows_more_than(new) {
            self.owe(place, old, (at, Some(cpu)), Kind::Downgrade);
        }
    }

    /// Checks an entry that becomes valid.
    fn made(&mut self, write: Write) {
        let Write { at, cpu, place, old, new, order, .. } = write;
        let undone = self.flushes.take(place.tree, &place.range(), |debt| debt.is_undone_by(place, new));
        if let Some(debt) = undone {
            self.downgraded(Write { old: debt.entry, ..write });
        }
        // A CPU may still write entries of a table that was just unlinked. They are flushed with the rest of that
        // table.
        let remade = |debt: &Debt| debt.group().is_some_and(|group| Some(group) != place.gone);
        if !old.is_valid()
            && let Some(debt) = self.flushes.take(place.tree, &place.range(), remade)
        {
            let what = format!("the entry is made where something was broken, and {debt}");
            self.breach(at, Some(debt.at), Rule::MakeBeforeFlush, what);
        }
        let ordered = self.publication.ordered_before(at, cpu, order);
        self.publication.made(at, cpu);
        if let Some(table) = new.table_at(place.level) {
            self.is_well_formed(at, place, new);
            self.link(at, table, place.below(table), ENTRIES, ordered);
        } else {
            let locked = self.locks.get(&place.lock).map(|lock| lock.at);
            if ordered <= locked && locked.is_some() {
                self.breach(at, locked, Rule::FrameNotReady, "walks may see the leaf before the content of its frame");
            }
            self.mapped(at, place, new);
        }
        if let Some(group) = place.gone {
            self.broken((group, None), place, new, group);
        }
    }

    /// Records a leaf that walks may use. A leaf in an unlinked table is due to be flushed with it, and not recorded as
    /// mapped.
    fn mapped(&mut self, at: usize, place: Position, leaf: Entry) {
        self.is_well_formed(at, place, leaf);
        if place.gone.is_none() {
            self.frames.map(leaf, place.level);
        }
        let Some(output) = leaf.output_at(place.level) else { return };
        if let Some(table) = self.tables.table_in(output) {
            let what = format!("the leaf of level {} at IPA {:#x} maps the table {table:#x}", place.level, place.ipa);
            self.breach(at, None, Rule::FrameReusedTooEarly, what);
        }
    }

    fn is_well_formed(&mut self, at: usize, place: Position, entry: Entry) {
        let bits = self.tables.trees.get(&place.tree).map_or(48, |tree| tree.physical_bits());
        if let Some(flaw) = entry.flaw(place.level, bits) {
            self.breach(at, None, Rule::Malformed, format!("{entry} at IPA {:#x}: {flaw}", place.ipa));
        }
    }

    /// Records that the entry, and all entries below it, are due to be flushed. `group`: the event that broke the
    /// entry.
    fn broken(&mut self, (at, cpu): (usize, Option<u32>), place: Position, entry: Entry, group: usize) {
        self.owe(place, entry, (at, cpu), Kind::Broken { group });
        if place.gone.is_none() || cpu.is_some() {
            self.frames.unmap(entry, place.level);
        }
        let Some(table) = entry.table_at(place.level) else { return };
        for (place, entry) in self.tables.take_out(table, group) {
            self.broken((group, cpu), place, entry, group);
        }
    }

    fn owe(&mut self, place: Position, entry: Entry, (at, cpu): (usize, Option<u32>), kind: Kind) {
        let Some(tree) = self.tables.trees.get(&place.tree) else { return };
        self.flushes.owe(Debt::new(place, tree.vmid(), entry, at, cpu, kind));
    }

    /// Links a table, with all tables below it, into a tree. `count`: the number of its entries. `ordered`: walks see
    /// what was written up to this event.
    fn link(&mut self, at: usize, table: u64, place: Position, count: usize, ordered: Option<usize>) {
        let is_known = self.tables.pages.contains_key(&table);
        let page = self.tables.pages.entry(table).or_insert_with(|| Page::new(State::Own { since: None }));
        let before = std::mem::replace(&mut page.state, State::InTree(place));
        let (unwritten, written, below) = (page.unwritten(count), page.written, page.valid());
        match before {
            State::Own { since: Some(taken) } => {
                if let Some(index) = unwritten {
                    let what =
                        format!("entry {index} of the table {table:#x} was not written after the page was taken");
                    self.breach(at, Some(taken), Rule::TableNotReady, what);
                } else if written > ordered {
                    let what = format!("walks may see the table {table:#x} before its entries");
                    self.breach(at, written, Rule::TableNotReady, what);
                }
            }
            State::Own { since: None } => {
                if !is_known && self.lost.is_empty() {
                    self.breach(at, None, Rule::LateWrite, format!("no page was taken for the table {table:#x}"));
                }
            }
            State::Free { since } => {
                self.breach(at, Some(since), Rule::LateWrite, format!("the table {table:#x} is a free page"));
            }
            State::InTree(_) => {
                return self.breach(at, None, Rule::LateWrite, format!("the table {table:#x} is in use elsewhere"));
            }
        }
        for (index, entry) in below {
            let place = place.entry(index);
            if let Some(table) = entry.table_at(place.level) {
                self.is_well_formed(at, place, entry);
                self.link(at, table, place.below(table), ENTRIES, ordered);
            } else {
                self.mapped(at, place, entry);
            }
        }
    }

    pub(super) fn hardware(&mut self, at: usize, pa: u64, old: u64, new: u64) {
        let (old, new) = (Entry(old), Entry(new));
        let Some(page) = self.tables.pages.get_mut(&page_of(pa)) else { return };
        let (state, last) = (page.state, page.set(index_of(pa), new, at));
        match state {
            State::InTree(_) => {}
            State::Free { since } => {
                self.breach(at, Some(since), Rule::TableFreedTooEarly, "a walk reached a table that is freed");
            }
            State::Own { since } => {
                self.breach(at, since, Rule::TableFreedTooEarly, "a walk reached a table that is in no tree");
            }
        }
        if let Some((known, since)) = last
            && known != old
        {
            let what = format!("according to the trace the old value is {known}");
            self.breach(at, Some(since), Rule::Contradiction, what);
        }
        if !old.may_be_recorded_as(new) {
            let what = "hardware may set only the access flag, and S2AP[1] if DBM is set, of a valid entry";
            self.breach(at, None, Rule::HardwareWrite, what);
        }
    }

    pub(super) fn zeroed(&mut self, at: usize, pa: u64, size: u64) {
        let end = pa.saturating_add(size);
        let mut in_use = false;
        for (base, page) in self.tables.pages.range_mut(page_of(pa)..end) {
            if matches!(page.state, State::Free { .. }) {
                continue;
            }
            in_use |= matches!(page.state, State::InTree(_));
            for index in 0..ENTRIES {
                if (pa..end).contains(&(base + index as u64 * 8)) {
                    page.set(index, Entry(0), at);
                }
            }
        }
        if in_use {
            self.breach(at, None, Rule::NoLock, "a table in use was zeroed");
        }
    }
}
