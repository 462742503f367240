// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walk over a range: which entries a visitor sees, and in what order.
//!
//! The contract is Linux's (source S0): a leaf visit also sees invalid entries; an entry is read again after a
//! visit, so that a table which the visitor had installed is entered, and one which it had removed is not; the
//! address advances at leaves, and over tables that are passed over; a table's post visit comes even where its
//! child was passed over; an error ends the walk before anything else happens.
//!
//! A walk holds no lock and goes on beside all other operations. A visitor may call any of them. Where a table is taken
//! out while the walk is in it, the walk comes down again from the root and goes on at the address it had reached; what
//! it finds there by then may be a block that began before, which is visited. No entry is visited twice otherwise, and a
//! table whose visit before was made gets its visit after.
//!
//! Visitor and levels to skip are constants of a type: what a walk does not use costs nothing.

use crate::descent::{Moment, Moved};
use crate::platform::Platform;
use crate::table::Table;
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
    fn leaf(&mut self, entry: &Entry) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }

    /// A table, before its entries.
    fn table_before(&mut self, entry: &Entry) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }

    /// Whether a table is passed over as if its level were skipped. Asked after the visit, for what is there by then.
    #[inline(always)]
    fn passes_over(&self, entry: &Entry) -> bool {
        let _ = entry;
        false
    }

    /// A table, after its entries.
    fn table_after(&mut self, entry: &Entry) -> Result<(), Self::Error> {
        let _ = entry;
        Ok(())
    }
}

/// An entry that a visitor is shown.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What was read there.
    pub descriptor: Descriptor,
    /// The first address that the entry covers, whether the range starts there or later.
    pub ipa: Ipa,
    /// The level of the table it is in.
    pub level: Level,
    /// The bytes it covers.
    pub span: u64,
}

impl Entry {
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
        if V::SKIP.contains(self.geometry().root_level()) {
            return Ok(());
        }
        let mut walk = Walk { stage2: self, visitor, at: range.start, end: range.end, visited: [None; 4] };
        while walk.at < walk.end {
            let then = self.unlinked.now();
            match walk.table(self.root(), self.geometry().root_level(), then) {
                Ok(()) | Err(Stop::Moved) => {}
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Why a table is left early.
enum Stop<E> {
    /// It may not be in the tree any more.
    Moved,
    /// The visitor wants no more.
    Error(E),
}

impl<E> From<Moved> for Stop<E> {
    fn from(_: Moved) -> Self {
        Self::Moved
    }
}

#[derive(Clone, Copy)]
struct Visited {
    ipa: Ipa,
    /// Whether it was a table, before or when it was entered.
    table: bool,
    entered: Option<Descriptor>,
}

struct Walk<'a, 'v, P: Platform, V> {
    stage2: &'a Stage2<P>,
    visitor: &'v mut V,
    at: Ipa,
    end: Ipa,
    /// For each level, where the entry is that was visited and is not left yet; whether a table was visited; the table that
    /// was entered there.
    visited: [Option<Visited>; 4],
}

impl<P: Platform, V: Visitor> Walk<'_, '_, P, V> {
    /// Walks the part from `at` to `end` of a table.
    fn table(&mut self, table: Table<'_>, level: Level, then: Moment) -> Result<(), Stop<V::Error>> {
        let mut index = self.stage2.geometry().index(self.at, level);
        while index < table.len() && self.at < self.end {
            self.entry(table, index, level, then)?;
            index += 1;
        }
        Ok(())
    }

    #[inline]
    fn entry(&mut self, table: Table<'_>, index: usize, level: Level, then: Moment) -> Result<(), Stop<V::Error>> {
        let (stage2, number) = (self.stage2, usize::from(level.raw()));
        let span = stage2.geometry().granule().span(level);
        let ipa = self.at.align_down(span);
        let read = || {
            let mut descriptor = table.entry(index).look();
            // What somebody is changing is neither there nor gone.
            while descriptor == Descriptor::BUSY && stage2.unlinked.is_still(then) {
                stage2.platform().pause(1);
                descriptor = table.entry(index).look();
            }
            if stage2.unlinked.is_still(then) { Ok(descriptor) } else { Err(Stop::Moved) }
        };
        let entry = |descriptor| Entry { descriptor, ipa, level, span };
        let mut descriptor = read()?;
        // Where the walk has come back to an entry that it visited, it goes on from there; but what was a table when it
        // was visited or entered, and is none now, was not seen as it is.
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
