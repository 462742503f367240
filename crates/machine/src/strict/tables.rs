// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages that are tables, with their position in a tree.

use std::collections::HashMap;

use super::clock::Moment;
use crate::walk::Format;

/// The pages that are tables, and the roots of trees.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The format of all of them.
    format: Format,
    pages: HashMap<u64, Page>,
    roots: Vec<Root>,
}

/// A page that is a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The machine's step at which it was taken.
    pub(crate) taken: u64,
    pub(crate) standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In no tree yet.
    Loose,
    /// In a tree.
    Linked(TablePosition),
    /// Unlinked from a tree, by the break of an entry above.
    Unlinked(TablePosition, Moment),
    /// Unlinked, and its flush has begun: no CPU may be inside any more.
    Closed(TablePosition),
}

/// The position of a table in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TablePosition {
    pub(crate) root: usize,
    /// The address that its first entry translates.
    pub(crate) ipa: u64,
    pub(crate) level: u8,
}

/// The root of a tree. It is kept after the tree is gone, because its entries may be cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) pa: u64,
    pub(crate) entries: usize,
    pub(crate) level: u8,
    /// The VMID with which it was loaded last. A tree that is made with VMID 0 shares its VMIDs.
    pub(crate) vmid: u16,
    pub(crate) alive: bool,
    /// The CPUs that have had it loaded since the last invalidation of its whole VMID.
    pub(crate) exposed: u8,
    pub(crate) was_loaded: bool,
    /// Whether its VMID is given to it later, and may become another tree's.
    pub(crate) shares_vmids: bool,
}

/// The unit in which memory is accounted for; pages of tables may be larger.
pub(crate) const PAGE: u64 = 4096;

impl TablePosition {
    /// The first address that an entry of the table translates.
    pub(crate) fn ipa_of(self, entry: u64, format: Format) -> u64 {
        self.ipa + (entry % format.page() / 8) * format.span(self.level)
    }
}

impl Tables {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, pages: HashMap::new(), roots: Vec::new() }
    }

    /// Changes the format, while there is no table.
    pub(crate) fn set_format(&mut self, format: Format) {
        debug_assert!(self.pages.is_empty());
        self.format = format;
    }

    /// Whether there is no table, and was no root.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.roots.is_empty()
    }

    pub(crate) fn take(&mut self, page: u64, step: u64) {
        self.pages.insert(page, Page { taken: step, standing: Standing::Loose });
    }

    pub(crate) fn free(&mut self, page: u64) -> Option<Page> {
        self.pages.remove(&page)
    }

    /// The table that a word is in.
    pub(crate) fn of(&self, word: u64) -> Option<Page> {
        self.pages.get(&(word & !(self.format.page() - 1))).copied()
    }

    pub(crate) fn set(&mut self, page: u64, standing: Standing) {
        if let Some(page) = self.pages.get_mut(&page) {
            page.standing = standing;
        }
    }

    /// Adds a root.
    pub(crate) fn add_root(&mut self, (pa, entries, level): (u64, usize, u8), vmid: u16, step: u64) {
        let root = self.roots.len();
        self.roots.push(Root {
            pa,
            entries,
            level,
            vmid,
            alive: true,
            exposed: 0,
            was_loaded: false,
            shares_vmids: vmid == 0,
        });
        let (size, each) = (self.format.page(), self.format.entries() * self.format.span(level));
        for number in 0..(entries as u64 * 8).div_ceil(size) {
            let place = TablePosition { root, ipa: number * each, level };
            self.pages.insert(pa + number * size, Page { taken: step, standing: Standing::Linked(place) });
        }
    }

    /// Marks a root as no longer alive.
    pub(crate) fn remove_root(&mut self, pa: u64) {
        if let Some(root) = self.roots.iter_mut().find(|root| root.alive && root.pa == pa) {
            root.alive = false;
            let size = self.format.page();
            for number in 0..(root.entries as u64 * 8).div_ceil(size) {
                self.pages.remove(&(pa + number * size));
            }
        }
    }

    pub(crate) fn root(&self, root: usize) -> &Root {
        &self.roots[root]
    }

    pub(crate) fn roots_mut(&mut self) -> &mut [Root] {
        &mut self.roots
    }

    pub(crate) fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// Whether an entry of `one` leads to `other`.
    pub(crate) fn leads_to(&self, one: TablePosition, other: TablePosition) -> bool {
        // A root of several pages has one lock, that of its first page.
        let size = if one.level == self.root(one.root).level {
            u64::MAX
        } else {
            self.format.entries() * self.format.span(one.level)
        };
        one.root == other.root && one.level + 1 == other.level && (other.ipa).wrapping_sub(one.ipa) < size
    }

    /// The number of the tree whose root is at this address now.
    pub(crate) fn find_root(&self, pa: u64) -> Option<usize> {
        self.roots.iter().position(|root| root.alive && root.pa == pa)
    }

    /// The page whose metadata holds the lock for a page's table; for a root of several pages, the first.
    pub(crate) fn locked_by(&self, page: u64) -> u64 {
        let root = |root: &&Root| root.alive && (root.pa..root.pa + root.entries as u64 * 8).contains(&page);
        self.roots.iter().find(root).map_or(page, |root| root.pa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 0x4000_0000;

    /// A root of two tables at level 1.
    fn with_root() -> Tables {
        let mut tables = Tables::new(Format::KIB_4);
        tables.add_root((ROOT, 1024, 1), 3, 7);
        tables
    }

    #[test]
    fn the_second_table_of_a_root_goes_on_where_the_first_ends() {
        let tables = with_root();
        let place = |page| match tables.of(page).map(|page| page.standing) {
            Some(Standing::Linked(place)) => place,
            other => panic!("{other:?}"),
        };
        assert_eq!(place(ROOT).ipa_of(ROOT + 8, Format::KIB_4), 1 << 30);
        assert_eq!(place(ROOT + PAGE + 8).ipa_of(ROOT + PAGE + 8, Format::KIB_4), 513 << 30);
        assert!(tables.of(ROOT + 2 * PAGE).is_none());
    }

    #[test]
    fn a_table_leads_to_those_of_the_next_level_in_its_range() {
        let tables = with_root();
        let place = |ipa, level| TablePosition { root: 0, ipa, level };
        let leads = |one: TablePosition, other: TablePosition| tables.leads_to(one, other);
        let (root, above) = (place(0, 1), place(1 << 30, 2));
        assert!(leads(above, place(1 << 30, 3)) && leads(above, place((2 << 30) - (2 << 20), 3)));
        assert!(!leads(above, above) && !leads(above, root) && !leads(root, place(1 << 30, 3)));
        assert!(!leads(above, place(2 << 30, 3)) && !leads(above, place((1 << 30) - (2 << 20), 3)));
        assert!(leads(root, above) && leads(root, place(1000 << 30, 2)), "tables below its second page too");
    }

    #[test]
    fn all_tables_of_a_root_have_the_lock_of_the_first() {
        let tables = with_root();
        assert_eq!(
            [ROOT, ROOT + PAGE, ROOT + 2 * PAGE].map(|page| tables.locked_by(page)),
            [ROOT, ROOT, ROOT + 2 * PAGE]
        );
    }

    #[test]
    fn a_root_that_is_none_any_more_is_remembered_and_not_found() {
        let mut tables = with_root();
        tables.remove_root(ROOT);
        assert_eq!((tables.find_root(ROOT), tables.roots().len()), (None, 1));
        assert!(tables.of(ROOT).is_none() && tables.of(ROOT + PAGE).is_none());
        assert_eq!(tables.locked_by(ROOT + PAGE), ROOT + PAGE);
        tables.add_root((ROOT, 1024, 1), 4, 8);
        assert_eq!(tables.find_root(ROOT), Some(1));
        assert_eq!((tables.root(0).vmid, tables.root(1).vmid), (3, 4));
    }

    #[test]
    fn a_page_is_a_table_from_its_taking_to_its_freeing() {
        let mut tables = Tables::new(Format::KIB_4);
        let page = ROOT + 5 * PAGE;
        tables.take(page, 9);
        let taken = tables.of(page + 8).expect("a table");
        assert_eq!((taken.taken, taken.standing), (9, Standing::Loose));
        tables.set(page, Standing::Closed(TablePosition { root: 0, ipa: 0, level: 3 }));
        assert_ne!(tables.of(page).expect("a table").standing, Standing::Loose);
        assert!(tables.free(page).is_some() && tables.of(page).is_none() && tables.free(page).is_none());
    }
}
