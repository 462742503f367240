// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walk over a range: which entries a visitor sees, and in what order.
//!
//! The contract is Linux's (source S0): a leaf visit also sees invalid entries; an entry is read again after a
//! visit, so that a table which the visitor installed is entered, and one which it removed is not; the
//! address advances at leaves, and over tables that are passed over; a table's post visit comes even where its
//! child was passed over; an error ends the walk before anything else happens.
//!
//! Visitor and levels to skip are constants of a type: what a walk does not use costs nothing.

use crate::platform::Platform;
use crate::table::Cell;
use crate::{Descriptor, Error, Ipa, IpaRange, Level, Levels, Stage2};

/// What a walk calls.
pub trait Visitor {
    /// Whether [`leaf`](Self::leaf) is called: for each entry that is no table, valid or not.
    const LEAF: bool = true;
    /// Whether [`table_before`](Self::table_before) is called.
    const TABLE_BEFORE: bool = false;
    /// Whether [`table_after`](Self::table_after) is called.
    const TABLE_AFTER: bool = false;
    /// Levels whose tables are not even read, nor anything below them.
    const SKIP: Levels = Levels::NONE;
    /// What ends the walk.
    type Error;

    /// A leaf or an invalid entry.
    fn leaf(&mut self, entry: &Entry<'_>) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }

    /// A table, before its entries.
    fn table_before(&mut self, entry: &Entry<'_>) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }

    /// A table, after its entries.
    fn table_after(&mut self, entry: &Entry<'_>) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }
}

/// An entry that a visitor is shown.
pub struct Entry<'a> {
    pub(crate) cell: Cell<'a>,
    /// What was read there.
    pub descriptor: Descriptor,
    /// The first address that the entry covers, whether the range starts there or later.
    pub ipa: Ipa,
    /// The level of the table it is in.
    pub level: Level,
    /// The bytes it covers.
    pub span: u64,
}

impl Entry<'_> {
    /// The addresses that the entry covers.
    pub fn range(&self) -> IpaRange {
        self.ipa..self.ipa + self.span
    }
}

impl<P: Platform> Stage2<P> {
    /// Walks over `range`, whole pages inside the IPA space.
    pub fn walk<V: Visitor>(&self, range: IpaRange, visitor: &mut V) -> Result<(), V::Error>
    where
        V::Error: From<Error>,
    {
        self.geometry().check(&range)?;
        let root_level = self.geometry().root_level();
        if V::SKIP.contains(root_level) {
            return Ok(());
        }
        let mut at = range.start;
        self.walk_table(None, root_level, &mut at, range.end, visitor)
    }

    /// Walks the part before `end` of a table; `parent` is the entry that points to it, `None` for the root.
    fn walk_table<V: Visitor>(
        &self,
        parent: Option<Descriptor>,
        level: Level,
        at: &mut Ipa,
        end: Ipa,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let table = match parent {
            Some(entry) => self.table(entry),
            None => self.root(),
        };
        let mut index = self.geometry().index(*at, level);
        while index < table.len() && *at < end {
            self.walk_entry(table.entry(index), level, at, end, visitor)?;
            index += 1;
        }
        Ok(())
    }

    #[inline]
    fn walk_entry<V: Visitor>(
        &self,
        cell: Cell<'_>,
        level: Level,
        at: &mut Ipa,
        end: Ipa,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let span = self.geometry().granule().span(level);
        let ipa = at.align_down(span);
        let mut descriptor = cell.load();
        let entry = |descriptor| Entry { cell, descriptor, ipa, level, span };
        if descriptor.is_table(level) {
            if V::TABLE_BEFORE {
                visitor.table_before(&entry(descriptor))?;
                descriptor = cell.load();
            }
        } else if V::LEAF {
            visitor.leaf(&entry(descriptor))?;
            descriptor = cell.load();
        }
        let child = match level.below() {
            Some(child) if descriptor.is_table(level) => child,
            _ => {
                *at = ipa + span;
                return Ok(());
            }
        };
        if V::SKIP.contains(child) {
            *at = ipa + span;
        } else {
            self.walk_table(Some(descriptor), child, at, end, visitor)?;
        }
        if V::TABLE_AFTER {
            visitor.table_after(&entry(descriptor))?;
        }
        Ok(())
    }
}
