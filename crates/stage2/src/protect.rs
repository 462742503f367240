// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changing what the guest may do with memory that stays mapped.
//!
//! Permissions may change without a break (Arm ARM D8.16.1). Narrowing has to reach every CPU before it holds:
//! the caller gets a [`Pending`] flush. Widening is invalidated on this CPU only.

use crate::platform::Platform;
use crate::tlb::{Changed, Pending};
use crate::walk::{Entry, Visitor};
use crate::{Access, Descriptor, Error, Ipa, IpaRange, Leaf, Memory, Stage2, TableSource, cache};

/// What [`Stage2::relax`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Relaxed {
    /// The leaf allows more than before.
    Widened,
    /// The leaf allowed it already: this CPU's TLB was stale.
    Already,
}

impl<P: Platform> Stage2<P> {
    /// Sets the access of everything mapped in `range`. What is not mapped stays so. Blocks that reach beyond the
    /// range are split, which takes table pages.
    ///
    /// Without `access.write` hardware may not grant writes either: DBM goes.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map); nothing was protected then.
    pub fn protect(
        &mut self,
        range: IpaRange,
        access: Access,
        tables: &mut impl TableSource,
    ) -> Result<Pending<'_, P>, Error> {
        self.split_ends(&range, tables)?;
        let mut visitor = Protect { stage2: self, access, changed: Changed::default() };
        self.walk(range, &mut visitor)?;
        Ok(Pending::new(self.tlb(), visitor.changed))
    }

    /// Takes the recorded writes out of the leaves in `range` that hardware marks (DBM): each such leaf becomes
    /// clean, and `dirty` is told of it. Blocks are reported whole.
    ///
    /// Only after the flush is complete may the memory be read: until then a guest may write through its TLB
    /// without a record.
    pub fn clean(&mut self, range: IpaRange, dirty: &mut dyn FnMut(Leaf)) -> Result<Pending<'_, P>, Error> {
        let mut visitor = Clean { changed: Changed::default(), dirty };
        self.walk(range, &mut visitor)?;
        Ok(Pending::new(self.tlb(), visitor.changed))
    }

    /// Lets the guest do `access` too, and sets the access flag, at the leaf that maps `ipa`: the answer to a
    /// permission or access flag fault. This CPU's TLB is invalidated in any case, since it may be what was stale.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; the guest will fault for translation next.
    pub fn relax(&mut self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        let (cell, leaf) = self.find(ipa).ok_or(Error::NotMapped { ipa })?;
        self.before_access(leaf.descriptor, access, self.geometry().granule().span(leaf.level));
        let (old, new) = cell.update(|old| old.with_access(old.access().union(access)).with_accessed());
        self.tlb().invalidate_local(leaf.ipa, leaf.level);
        Ok(if old == new { Relaxed::Already } else { Relaxed::Widened })
    }

    /// Cache maintenance before a leaf of `size` bytes is given `access`.
    fn before_access(&self, leaf: Descriptor, access: Access, size: u64) {
        let memory = leaf.attributes(self.features()).memory;
        if access.execute && !leaf.access().execute && memory != Memory::Device {
            cache::before_execute(self.platform(), self.features(), (leaf.address(), size));
        }
    }

    /// Splits the blocks that reach across the ends of `range`.
    pub(crate) fn split_ends(&mut self, range: &IpaRange, tables: &mut impl TableSource) -> Result<(), Error> {
        self.geometry().check(range)?;
        self.split_before(range.start, tables)?;
        if range.end < self.geometry().end() {
            self.split_before(range.end, tables)?;
        }
        Ok(())
    }
}

fn protected(old: Descriptor, access: Access) -> Descriptor {
    let new = old.with_access(access);
    if access.write { new } else { new.without_hardware_dirty() }
}

/// Sets the access of each valid leaf.
struct Protect<'a, P: Platform> {
    stage2: &'a Stage2<P>,
    access: Access,
    changed: Changed,
}

impl<P: Platform> Visitor for Protect<'_, P> {
    type Error = Error;

    fn leaf(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        if entry.descriptor.is_valid() {
            self.stage2.before_access(entry.descriptor, self.access, entry.span);
            let (old, new) = entry.cell.update(|old| protected(old, self.access));
            if old != new {
                self.changed.leaf(entry.range(), entry.level);
            }
        }
        Ok(())
    }
}

/// Cleans each leaf that hardware has marked dirty.
struct Clean<'a> {
    changed: Changed,
    dirty: &'a mut dyn FnMut(Leaf),
}

impl Visitor for Clean<'_> {
    type Error = Error;

    fn leaf(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        if entry.descriptor.is_valid() && entry.descriptor.is_hardware_dirty() {
            let (old, _) = entry.cell.update(|old| old.with_access(Access { write: false, ..old.access() }));
            self.changed.leaf(entry.range(), entry.level);
            (self.dirty)(Leaf { ipa: entry.ipa, level: entry.level, descriptor: old });
        }
        Ok(())
    }
}
