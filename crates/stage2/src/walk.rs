// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks over a range, with a visitor: which entries the visitor sees, and in what order.
//!
//! The contract is that of Linux's page-table walker:
//!
//! * A leaf visit also sees invalid entries.
//! * An entry is read again after its visit. So a table that the visitor linked is entered, and a table that it
//!   unlinked is not.
//! * The address advances at leaves, and over skipped tables.
//! * A table's visit after its entries comes even if the table was skipped.
//! * An error ends the walk before any further visit.
//!
//! A walk holds no lock, and runs beside all other operations. A visitor may call any of them. If any table is
//! unlinked meanwhile, the walk starts again from the root, and continues at the address that it had reached. It may
//! find a block there that begins before that address, and visits it. In all other cases no entry is visited twice. A
//! table that was visited before its entries is also visited after them.
//!
//! The visitor, and the levels to skip (Bras 2026), are constants of a type, so a walk pays only for what it uses.

use crate::lockless_walk::Retry;
use crate::platform::Platform;
use crate::sequence::Snapshot;
use crate::table::{Cell, Table};
use crate::{Descriptor, Error, Granule, Ipa, IpaRange, Kib4, Level, Levels, Stage2};

/// The callbacks of a walk.
pub trait Visitor<G: Granule = Kib4> {
    /// Whether [`leaf`](Self::leaf) is called, for each entry that is no table, valid or not.
    const LEAF: bool = true;
    /// Whether [`table_before`](Self::table_before) is called.
    const TABLE_BEFORE: bool = false;
    /// Whether [`table_after`](Self::table_after) is called.
    const TABLE_AFTER: bool = false;
    /// Levels whose tables the walk skips: it reads neither their entries nor anything below.
    const SKIP: Levels = Levels::NONE;
    /// The visitor's error, which ends the walk.
    type Error;

    /// Visits a leaf or an invalid entry.
    fn leaf(&mut self, entry: &Entry<G>) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }

    /// Visits a table, before its entries.
    fn table_before(&mut self, entry: &Entry<G>) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }

    /// Whether the walk skips this table, as if its level were in [`SKIP`](Self::SKIP). Called after
    /// [`table_before`](Self::table_before), with the entry as it is then.
    #[inline(always)]
    fn passes_over(&self, entry: &Entry<G>) -> bool {
        let _ = entry;
        false
    }

    /// Visits a table, after its entries.
    fn table_after(&mut self, entry: &Entry<G>) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }
}

/// An entry that a visitor sees.
#[derive(Clone, Debug)]
pub struct Entry<G: Granule = Kib4> {
    /// The entry's value when it was read.
    pub descriptor: Descriptor<G>,
    /// The first address that the entry covers, even if the range starts after it.
    pub ipa: Ipa,
    /// The level of the entry's table.
    pub level: Level,
    /// The size in bytes of what the entry covers.
    pub span: u64,
}

impl<G: Granule> Entry<G> {
    /// The addresses that the entry covers.
    pub fn range(&self) -> IpaRange {
        self.ipa..self.ipa + self.span
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Walks over `range`. The visitor sees entries by ascending address, and may call any operation of the tree.
    ///
    /// # Errors
    ///
    /// `range` is not whole pages inside the IPA space, or the visitor returned an error.
    pub fn walk<V: Visitor<G>>(&self, range: IpaRange, visitor: &mut V) -> Result<(), V::Error>
    where
        V::Error: From<Error>,
    {
        self.geometry().check(&range)?;
        if V::SKIP.contains(self.geometry().root_level()) {
            return Ok(());
        }
        let mut walk = Walk { stage2: self, visitor, at: range.start, end: range.end, visited: [None; 4] };
        while walk.at < walk.end {
            let then = self.sequence.now();
            match walk.table(self.root(), self.geometry().root_level(), then) {
                Ok(()) | Err(Stop::Retry) => {}
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Why the walk leaves a table early.
enum Stop<E> {
    /// A table was unlinked since the snapshot: walk again from the root.
    Retry,
    /// The visitor returned an error.
    Error(E),
}

impl<E> From<Retry> for Stop<E> {
    fn from(_: Retry) -> Self {
        Self::Retry
    }
}

#[derive(Clone, Copy)]
struct Visited<G: Granule> {
    ipa: Ipa,
    /// Whether the entry led to a table, when it was visited or entered.
    table: bool,
    entered: Option<Descriptor<G>>,
}

struct Walk<'a, 'v, P: Platform, G: Granule, V> {
    stage2: &'a Stage2<P, G>,
    visitor: &'v mut V,
    at: Ipa,
    end: Ipa,
    /// For each level, the entry that the walk has visited and not left yet: its address, whether it led to a table,
    /// and the table that was entered there.
    visited: [Option<Visited<G>>; 4],
}

impl<P: Platform, G: Granule, V: Visitor<G>> Walk<'_, '_, P, G, V> {
    /// Walks the part of a table from `at` to `end`.
    fn table(&mut self, table: Table<'_, G>, level: Level, then: Snapshot) -> Result<(), Stop<V::Error>> {
        let mut index = self.stage2.geometry().index(self.at, level);
        while index < table.len() && self.at < self.end {
            self.entry(table.entry(index), level, then)?;
            index += 1;
        }
        Ok(())
    }

    #[inline]
    fn entry(&mut self, cell: Cell<'_, G>, level: Level, then: Snapshot) -> Result<(), Stop<V::Error>> {
        let (stage2, number) = (self.stage2, usize::from(level.raw()));
        let span = stage2.geometry().granule().span(level);
        let ipa = self.at.align_down(span);
        let read = || {
            let mut descriptor = cell.look();
            // A busy entry is neither mapped nor invalid: wait for its new value.
            while descriptor.is_busy() && stage2.sequence.is_still(then) {
                stage2.platform().pause(1);
                descriptor = cell.look();
            }
            if stage2.sequence.is_still(then) { Ok(descriptor) } else { Err(Stop::Retry) }
        };
        let entry = |descriptor| Entry { descriptor, ipa, level, span };
        let mut descriptor = read()?;
        // After a restart, the walk may come back to an entry that it visited, and continues below it. But if the entry
        // led to a table then and leads to none now, the visitor has not seen what is there: visit it again.
        let visited = self.visited[number].filter(|visited| visited.ipa == ipa);
        if visited.is_none_or(|visited| visited.table && !descriptor.is_table(level)) {
            let entered = visited.and_then(|visited| visited.entered);
            self.visited[number] = Some(Visited { ipa, table: descriptor.is_table(level), entered });
            if descriptor.is_table(level) {
                if V::TABLE_BEFORE {
                    self.visitor.table_before(&entry(descriptor)).map_err(Stop::Error)?;
                    descriptor = read()?;
                }
            } else if V::LEAF {
                self.visitor.leaf(&entry(descriptor)).map_err(Stop::Error)?;
                descriptor = read()?;
            }
        }
        if let Some(child) = level.below().filter(|_| descriptor.is_table(level)) {
            self.visited[number] = Some(Visited { ipa, table: true, entered: Some(descriptor) });
            if !V::SKIP.contains(child) && !self.visitor.passes_over(&entry(descriptor)) {
                self.table(stage2.table(descriptor), child, then)?;
            }
        }
        let after = self.visited[number].and_then(|visited| visited.entered);
        self.visited[number] = None;
        self.at = ipa + span;
        match after {
            Some(descriptor) if V::TABLE_AFTER => self.visitor.table_after(&entry(descriptor)).map_err(Stop::Error),
            _ => Ok(()),
        }
    }
}
