// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages, the entries in them, and where they hang, as far as a trace tells (Arm ARM D8.3, 4 KiB granule).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::entries::{Entry, span_of};

/// Entries of a page.
pub const ENTRIES: usize = 512;

/// Where the page of an entry begins.
pub fn page_of(pa: u64) -> u64 {
    pa & !0xfff
}

/// The number of an entry in its page.
pub fn index_of(pa: u64) -> usize {
    (pa & 0xfff) as usize / 8
}

/// All of them.
#[derive(Clone, Default)]
pub struct Tables {
    pub pages: BTreeMap<u64, Page>,
    /// By their roots.
    pub trees: HashMap<u64, Tree>,
}

impl Tables {
    /// Marks a table as taken out by the event `group`, and returns the valid entries that it had. None where it is no
    /// table of the tree.
    pub fn take_out(&mut self, table: u64, group: usize) -> Vec<(Place, Entry)> {
        let Some(page) = self.pages.get_mut(&table) else { return Vec::new() };
        let State::InTree(place @ Place { gone: None, .. }) = &mut page.state else { return Vec::new() };
        place.gone = Some(group);
        let place = *place;
        page.valid().into_iter().map(|(index, entry)| (place.entry(index), entry)).collect()
    }

    /// A page in this memory that is a table, or was taken for one.
    pub fn table_in(&self, memory: Range<u64>) -> Option<u64> {
        let mut pages = self.pages.range(memory);
        pages.find(|(_, page)| !matches!(page.state, State::Free { .. })).map(|(pa, _)| *pa)
    }
}

/// A tree of tables.
#[derive(Clone, Copy)]
pub struct Tree {
    pub vttbr: u64,
    pub vtcr: u64,
    pub entries: usize,
    /// The CPU that made the root, and the event.
    pub made: (u32, usize),
    /// The CPU that locked it first, and the event: from there on walks may use it.
    pub linked: Option<(u32, usize)>,
}

impl Tree {
    pub fn vmid(self) -> u16 {
        (self.vttbr >> 48) as u16
    }

    /// The level of its root. SL0 counts the other way round; 3 is the last level (FEAT_TTST).
    pub fn level(self) -> u32 {
        [2, 1, 0, 3][(self.vtcr >> 6 & 3) as usize]
    }

    /// The bits of a physical address: VTCR_EL2.PS.
    pub fn physical_bits(self) -> u32 {
        [32, 36, 40, 42, 44, 48, 52, 52][(self.vtcr >> 16 & 7) as usize]
    }

    /// Whether hardware records writes: VTCR_EL2.HD.
    pub fn records_writes(self) -> bool {
        self.vtcr >> 22 & 1 != 0
    }

    /// Where the pages of the root at `pa` are.
    pub fn page_addresses(self, pa: u64) -> impl Iterator<Item = u64> {
        (0..self.entries.div_ceil(ENTRIES) as u64).map(move |number| pa.wrapping_add(number * 0x1000))
    }
}

/// Where something is in a tree: a table, or one of its entries.
#[derive(Clone, Copy)]
pub struct Place {
    /// The root.
    pub tree: u64,
    /// The table that has the lock: for all of a root it is the first.
    pub lock: u64,
    pub level: u32,
    /// The first address that it translates.
    pub ipa: u64,
    /// The event that took the table out of the tree.
    pub gone: Option<usize>,
}

impl Place {
    /// The place of an entry of the table at this one.
    pub fn entry(self, index: usize) -> Self {
        Self { ipa: self.ipa + index as u64 * span_of(self.level), ..self }
    }

    /// The place of the table that the entry at this one leads to.
    pub fn below(self, table: u64) -> Self {
        Self { lock: table, level: self.level + 1, ..self }
    }

    /// The addresses that the entry at this place translates.
    pub fn range(self) -> Range<u64> {
        self.ipa..self.ipa + span_of(self.level)
    }
}

/// A page that is a table, is going to be one, or was one. The event that made it so, where it is known.
#[derive(Clone, Copy)]
pub enum State {
    Free { since: usize },
    Own { since: Option<usize> },
    InTree(Place),
}

/// A page.
#[derive(Clone)]
pub struct Page {
    pub state: State,
    /// The last event that wrote to it.
    pub written: Option<usize>,
    /// What is known of each entry, and the event that made it so.
    entries: Vec<Option<(Entry, usize)>>,
}

impl Page {
    /// A page of which nothing else is known.
    pub fn new(state: State) -> Self {
        Self { state, written: None, entries: Vec::new() }
    }

    /// Sets an entry, and returns what it was.
    pub fn set(&mut self, index: usize, entry: Entry, at: usize) -> Option<(Entry, usize)> {
        // Most pages that are freed are never looked at again: they take no room.
        self.entries.resize(ENTRIES, None);
        self.written = Some(at);
        self.entries[index].replace((entry, at))
    }

    /// The first of so many entries that was not written since the page was taken.
    pub fn unwritten(&self, count: usize) -> Option<usize> {
        (0..count).find(|index| self.entries.get(*index).is_none_or(Option::is_none))
    }

    /// The entries that are known to be valid.
    pub fn valid(&self) -> Vec<(usize, Entry)> {
        let known = self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?.0)));
        known.filter(|(_, entry)| entry.is_valid()).collect()
    }
}
