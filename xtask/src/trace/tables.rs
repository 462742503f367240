// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages, the entries in them, and where they hang, as far as a trace tells (Arm ARM D8.3, 4 KiB granule).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

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
#[derive(Default)]
pub struct Tables {
    pub pages: BTreeMap<u64, Page>,
    /// By their roots.
    pub trees: HashMap<u64, Tree>,
}

impl Tables {
    /// Marks a table as taken out by the event `group`, and tells the valid entries that it had. None where it is no
    /// table of the tree.
    pub fn take_out(&mut self, table: u64, group: usize) -> Vec<(Place, Entry)> {
        let Some(page) = self.pages.get_mut(&table) else { return Vec::new() };
        let State::InTree(place @ Place { gone: None, .. }) = &mut page.state else { return Vec::new() };
        place.gone = Some(group);
        let place = *place;
        page.valid().into_iter().map(|(index, entry)| (place.entry(index), entry)).collect()
    }
}

/// A tree of tables.
#[derive(Clone, Copy)]
pub struct Tree {
    pub vmid: u16,
    /// The level of its root.
    pub level: u32,
    /// Concatenated tables.
    pub pages: usize,
}

impl Tree {
    /// Where the pages of the root at `pa` are.
    pub fn page_addresses(self, pa: u64) -> impl Iterator<Item = u64> {
        (0..self.pages as u64).map(move |number| pa.wrapping_add(number * 0x1000))
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
    /// Bytes that an entry of `level` covers.
    pub fn span_of(level: u32) -> u64 {
        1 << (12 + 9 * (3 - level))
    }

    /// The place of an entry of the table at this one.
    pub fn entry(self, index: usize) -> Self {
        Self { ipa: self.ipa + index as u64 * Self::span_of(self.level), ..self }
    }

    /// The addresses that the entry at this place translates.
    pub fn range(self) -> Range<u64> {
        self.ipa..self.ipa + Self::span_of(self.level)
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
pub struct Page {
    pub state: State,
    /// What is known of each entry, and the event that made it so.
    entries: Vec<Option<(Entry, usize)>>,
}

impl Page {
    /// A page of which nothing else is known.
    pub fn new(state: State) -> Self {
        Self { state, entries: Vec::new() }
    }

    /// Sets an entry, and tells what it was.
    pub fn set(&mut self, index: usize, entry: Entry, at: usize) -> Option<(Entry, usize)> {
        // Most pages that are freed are never looked at again: they take no room.
        self.entries.resize(ENTRIES, None);
        self.entries[index].replace((entry, at))
    }

    /// The entries that are known to be valid.
    pub fn valid(&self) -> Vec<(usize, Entry)> {
        let known = self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?.0)));
        known.filter(|(_, entry)| entry.is_valid()).collect()
    }
}

/// An entry's bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const ACCESS_FLAG: u64 = 1 << 10;
const WRITE: u64 = 1 << 7;
const DBM: u64 = 1 << 51;
/// What a leaf may change without a break (D8.16.1): S2AP, AF, DBM, XN, and what hardware ignores or software has.
const FREE: u64 = 3 << 6 | ACCESS_FLAG | DBM | 3 << 53 | 0x1ff << 55;

impl Entry {
    pub fn is_valid(self) -> bool {
        self.0 & 1 != 0
    }

    /// Where the table is that the entry, at `level`, leads to; `None` where it is a leaf or invalid.
    pub fn table_at(self, level: u32) -> Option<u64> {
        (level < 3 && self.0 & 3 == 3).then_some(self.0 & ADDRESS)
    }

    /// Whether two valid entries differ by more than may change in place.
    pub fn needs_break_before(self, new: Self, level: u32) -> bool {
        let fixed = match (self.table_at(level), new.table_at(level)) {
            (Some(_), Some(_)) => ADDRESS,
            _ => !FREE,
        };
        (self.0 ^ new.0) & fixed != 0
    }

    /// The bits that hardware may set at any time.
    fn records(self) -> u64 {
        match (self.is_valid(), self.0 & DBM != 0) {
            (false, _) => 0,
            (true, false) => ACCESS_FLAG,
            (true, true) => ACCESS_FLAG | WRITE,
        }
    }

    /// Whether two values of an entry differ by more than what hardware may have recorded in between.
    pub fn differs_beyond_records(self, other: Self) -> bool {
        (self.0 ^ other.0) & !self.records() != 0
    }

    /// Whether hardware may make this of it.
    pub fn may_be_recorded_as(self, new: Self) -> bool {
        let set = self.0 ^ new.0;
        set != 0 && set & !self.records() == 0 && set & new.0 == set
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
