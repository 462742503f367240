// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unmapping: leaves out first, then the tables that have become empty, then the flush, then the freeing.
//!
//! A frame or a table page is reused only after the flush: what is removed is handed over together with a
//! [`Pending`], and tables are freed only against the [`Flushed`] that completing it returns.

use crate::platform::Platform;
use crate::tlb::{Changed, Flushed, Pending};
use crate::walk::{Entry, Visitor};
use crate::{Descriptor, Error, IpaRange, Leaf, Pa, Root, Stage2, TablePage, TableSource};

/// Tables that were taken out of a tree, and may still be read by walks that began before.
///
/// They are not freed without the flush:
///
/// ```compile_fail,E0061
/// # use twofold_stage2::*;
/// fn at_once<P: Platform>(detached: Detached<'_, P>, pool: &mut impl TableSource) {
///     detached.free(pool);
/// }
/// ```
#[derive(Debug)]
#[must_use = "free() them after the flush, or their pages are lost"]
pub struct Detached<'a, P: Platform> {
    stage2: &'a Stage2<P>,
    /// The last one detached; each one's first entry is an invalid entry that holds the address of the next.
    chain: Option<Pa>,
}

impl<P: Platform> Detached<'_, P> {
    /// Gives the pages back to `tables`, and returns how many that were.
    ///
    /// # Panics
    ///
    /// Where the flush was another guest's.
    pub fn free(self, flushed: Flushed<'_>, tables: &mut impl TableSource) -> usize {
        assert_eq!(flushed.vttbr, self.stage2.vttbr(), "the flush was another guest's");
        let mut count = 0;
        let mut next = self.chain;
        while let Some(pa) = next {
            let link = self.stage2.table(Descriptor::table(pa)).entry(0).load();
            next = (link != Descriptor::INVALID).then_some(link.address());
            tables.give(TablePage::from_tree(pa, self.stage2.features()));
            count += 1;
        }
        count
    }
}

impl<P: Platform> Stage2<P> {
    /// Unmaps `range`. `removed` is told of each leaf that was mapped, with what hardware had recorded in it; its
    /// frame may be reused, or its content trusted not to change, only after the flush is complete.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), where blocks reach beyond the range; nothing was unmapped then.
    pub fn unmap(
        &mut self,
        range: IpaRange,
        tables: &mut impl TableSource,
        removed: &mut dyn FnMut(Leaf),
    ) -> Result<(Pending<'_, P>, Detached<'_, P>), Error> {
        self.split_ends(&range, tables)?;
        let mut visitor =
            Unmap { stage2: self, range: range.clone(), changed: Changed::default(), chain: None, removed };
        self.walk(range, &mut visitor)?;
        let (changed, chain) = (visitor.changed, visitor.chain);
        Ok((Pending::new(self.tlb(), changed), Detached { stage2: self, chain }))
    }

    /// Unmaps everything, gives all table pages back, and returns the root's memory.
    ///
    /// The guest must not be running: its `VTTBR_EL2` names the root until another is loaded.
    pub fn destroy(mut self, tables: &mut impl TableSource, removed: &mut dyn FnMut(Leaf)) -> Result<Root, Error> {
        let all = crate::Ipa::new(0)..self.geometry().end();
        let (pending, detached) = self.unmap(all, tables, removed)?;
        let flushed = pending.complete();
        detached.free(flushed, tables);
        Ok(self.into_root())
    }
}

struct Unmap<'a, 'b, P: Platform> {
    stage2: &'a Stage2<P>,
    range: IpaRange,
    changed: Changed,
    chain: Option<Pa>,
    removed: &'b mut dyn FnMut(Leaf),
}

impl<P: Platform> Visitor for Unmap<'_, '_, P> {
    const TABLE_AFTER: bool = true;
    type Error = Error;

    fn leaf(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        if entry.descriptor.is_valid() {
            let descriptor = entry.cell.take();
            self.changed.leaf(entry.range(), entry.level);
            (self.removed)(Leaf { ipa: entry.ipa, level: entry.level, descriptor });
        }
        Ok(())
    }

    /// A table that is wholly in the range holds nothing any more. Walks that are inside find invalid entries.
    fn table_after(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let covered = entry.range();
        if covered.start >= self.range.start && covered.end <= self.range.end {
            let table = entry.cell.take();
            self.changed.table(covered);
            self.stage2.table(table).entry(0).fill(Descriptor::link(self.chain));
            self.chain = Some(table.address());
        }
        Ok(())
    }
}
