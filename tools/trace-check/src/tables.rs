// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table pages, their entries, and their places in the trees, as far as the trace shows them (Arm ARM DDI 0487K.a,
//! D8.3; 4 KiB granule).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::entries::{Entry, span_of};

/// The number of entries of a page.
pub const ENTRIES: usize = 512;

/// Returns the address of the page that holds an entry.
pub fn page_of(pa: u64) -> u64 {
    pa & !0xfff
}

/// Returns the index of an entry in its page.
pub fn index_of(pa: u64) -> usize {
    (pa & 0xfff) as usize / 8
}

/// All pages and trees.
#[derive(Clone, Default)]
pub struct Tables {
    pub pages: BTreeMap<u64, Page>,
    /// Trees, by root address.
    pub trees: HashMap<u64, Tree>,
}

impl Tables {
    /// Marks a table as unlinked by the event `group`, and returns its valid entries. Returns none if the page is not a
    /// table of the tree.
    pub fn take_out(&mut self, table: u64, group: usize) -> Vec<(Position, Entry)> {
        let Some(page) = self.pages.get_mut(&table) else { return Vec::new() };
        let State::InTree(place @ Position { gone: None, .. }) = &mut page.state else { return Vec::new() };
        place.gone = Some(group);
        let place = *place;
        page.valid().into_iter().map(|(index, entry)| (place.entry(index), entry)).collect()
    }

    /// Returns a page in this memory that is a table, or was taken for one.
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
    /// The CPU that locked the root first, and the event: walks may use the root from then on.
    pub linked: Option<(u32, usize)>,
}

impl Tree {
    pub fn vmid(self) -> u16 {
        (self.vttbr >> 48) as u16
    }

    /// Returns the level of the root. VTCR_EL2.SL0 counts in reverse; 3 is level 3 (FEAT_TTST).
    pub fn level(self) -> u32 {
        [2, 1, 0, 3][(self.vtcr >> 6 & 3) as usize]
    }

    /// Returns the size of a physical address in bits, from VTCR_EL2.PS.
    pub fn physical_bits(self) -> u32 {
        [32, 36, 40, 42, 44, 48, 52, 52][(self.vtcr >> 16 & 7) as usize]
    }

    /// Returns whether hardware records writes, from VTCR_EL2.HD.
    pub fn records_writes(self) -> bool {
        self.vtcr >> 22 & 1 != 0
    }

    /// Returns the addresses of the pages of the root at `pa`.
    pub fn page_addresses(self, pa: u64) -> impl Iterator<Item = u64> {
        (0..self.entries.div_ceil(ENTRIES) as u64).map(move |number| pa.wrapping_add(number * 0x1000))
    }
}

/// The place of a table, or of one of its entries, in a tree.
#[derive(Clone, Copy)]
pub struct Position {
    /// The root.
    pub tree: u64,
    /// The table that has the lock; for all tables of a root it is the first one.
    pub lock: u64,
    pub level: u32,
    /// The first address that the table or entry translates.
    pub ipa: u64,
    /// The event that unlinked the table from the tree.
    pub gone: Option<usize>,
}

impl Position {
    /// Returns the place of an entry of the table at this place.
    pub fn entry(self, index: usize) -> Self {
        Self { ipa: self.ipa + index as u64 * span_of(self.level), ..self }
    }

    /// Returns the place of the table that the entry at this place points to.
    pub fn below(self, table: u64) -> Self {
        Self { lock: table, level: self.level + 1, ..self }
    }

    /// Returns the addresses that the entry at this place translates.
    pub fn range(self) -> Range<u64> {
        self.ipa..self.ipa + span_of(self.level)
    }
}

/// The state of a page that is a table, becomes one, or was one, with the event that put it in this state, if known.
#[derive(Clone, Copy)]
pub enum State {
    Free { since: usize },
    Own { since: Option<usize> },
    InTree(Position),
}

/// A table page.
#[derive(Clone)]
pub struct Page {
    pub state: State,
    /// The last event that wrote to the page.
    pub written: Option<usize>,
    /// The known value of each entry, and the event that wrote it.
    entries: Vec<Option<(Entry, usize)>>,
}

impl Page {
    /// Creates a page with unknown entries.
    pub fn new(state: State) -> Self {
        Self { state, written: None, entries: Vec::new() }
    }

    /// Sets an entry, and returns its old value and event.
    pub fn set(&mut self, index: usize, entry: Entry, at: usize) -> Option<(Entry, usize)> {
        // The entries are allocated on the first write: most freed pages are never used again.
        self.entries.resize(ENTRIES, None);
        self.written = Some(at);
        self.entries[index].replace((entry, at))
    }

    /// Returns the first of `count` entries that was not written since the page was taken.
    pub fn unwritten(&self, count: usize) -> Option<usize> {
        (0..count).find(|index| self.entries.get(*index).is_none_or(Option::is_none))
    }

    /// Returns the entries that are known to be valid.
    pub fn valid(&self) -> Vec<(usize, Entry)> {
        let known = self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?.0)));
        known.filter(|(_, entry)| entry.is_valid()).collect()
    }
}
