// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Granting access: the answers to permission faults and access flag faults.
//!
//! More access needs no invalidation on other CPUs: an old entry there causes at most one more fault, which ends here
//! again. On this CPU the leaf is always invalidated, even if it allowed the access already. Otherwise the guest would
//! fault for ever on what this CPU's TLB holds.
//!
//! No TLB holds an entry without access flag, so setting the flag needs no invalidation (Arm ARM DDI 0487K.a, D8.5.1).

use crate::lockless_walk::{EntryLocation, Locked, Retry};
use crate::platform::Platform;
use crate::primitive::{self, Claim};
use crate::{Access, Descriptor, Error, Granule, Ipa, Leaf, Level, Memory, Stage2, cache};

/// What [`Stage2::relax`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Relaxed {
    /// The leaf allows more than before.
    Widened,
    /// The leaf allowed the access already: this CPU's TLB was stale.
    Already,
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Adds `access` to the leaf that maps `ipa`, and sets its access flag: the answer to a permission fault. A leaf of a
    /// contiguous group is changed with its whole group.
    ///
    /// Invalidates the leaf on this CPU before it returns.
    ///
    /// # Errors
    ///
    /// * [`Error::NotMapped`] if no leaf maps `ipa`. The guest's next access causes a translation fault.
    /// * [`Error::ExecuteNeedsXnx`] if `access` needs FEAT_XNX.
    #[inline(always)]
    pub fn relax(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        self.allow::<false>(ipa, access)
    }

    /// [`relax`](Self::relax) for pages only: the answer to a permission fault while writes are tracked by page, when
    /// no block may become writable. A page of a contiguous group leaves the group, if it is to allow more.
    ///
    /// # Errors
    ///
    /// As [`relax`](Self::relax), and [`Error::BlockInTheWay`] if a block maps `ipa`. The block is not changed:
    /// [`split`](Self::split) it.
    #[inline(always)]
    pub fn relax_page(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        self.allow::<true>(ipa, access)
    }

    #[inline(always)]
    fn allow<const PAGES_ONLY: bool>(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        access.check(self.features())?;
        let widen = |old: Descriptor<G>| old.with_more(access, self.features()).with_accessed();
        let changed =
            self.change_leaf::<PAGES_ONLY>(ipa, access, widen).inspect_err(|error| self.forget_gone(error))?;
        let (changed, at, level) = changed;
        self.flush_here(at, Some(level));
        Ok(if changed { Relaxed::Widened } else { Relaxed::Already })
    }

    /// Invalidates `ipa` on this CPU if nothing maps it any more.
    ///
    /// The leaf was removed, and the remover's flush may still be pending. Until then this CPU's TLB may hold the leaf,
    /// or a table's entry, and the guest would fault on it again and again.
    #[cold]
    fn forget_gone(&self, error: &Error) {
        if let Error::NotMapped { ipa } = *error
            && ipa < self.geometry().end()
        {
            self.flush_here(ipa, None);
        }
    }

    /// Invalidates the leaf at `ipa` on this CPU. The caller relies on it from here on, which a trace states.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn flush_here(&self, ipa: Ipa, level: Option<Level>) {
        self.tlb().invalidate_local(ipa, level);
        primitive::claim(Claim::FlushedHere { ipa, level, vttbr: self.vttbr() });
    }

    /// Sets the access flag of the leaf that maps `ipa`: the answer to an access flag fault. Returns whether the flag
    /// was clear.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] if no leaf maps `ipa`. The guest's next access causes a translation fault.
    #[inline(always)]
    pub fn make_young(&self, ipa: Ipa) -> Result<bool, Error> {
        self.change_leaf::<false>(ipa, Access::NONE, Descriptor::with_accessed).map(|(changed, ..)| changed)
    }

    /// Changes the leaf that maps `ipa`. Returns whether it changed, its first address and its level.
    #[inline(always)]
    fn change_leaf<const PAGES_ONLY: bool>(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> Result<(bool, Ipa, Level), Error> {
        let changed = self.change_leaf_once::<PAGES_ONLY>(ipa, access, &change);
        changed.unwrap_or_else(|Retry| self.change_leaf_again::<PAGES_ONLY>(ipa, access, change))
    }

    /// The retries, in a function of their own so that the fast path has no loop.
    #[cold]
    #[inline(never)]
    fn change_leaf_again<const PAGES_ONLY: bool>(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> Result<(bool, Ipa, Level), Error> {
        loop {
            if let Ok(changed) = self.change_leaf_once::<PAGES_ONLY>(ipa, access, &change) {
                return changed;
            }
        }
    }

    #[inline(always)]
    fn change_leaf_once<const PAGES_ONLY: bool>(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> Result<Result<(bool, Ipa, Level), Error>, Retry> {
        let Some((location, Leaf { ipa, level, descriptor: old })) = self.find(ipa) else {
            return Ok(Err(Error::NotMapped { ipa }));
        };
        if PAGES_ONLY && level < Level::L3 {
            return Ok(Err(Error::BlockInTheWay { ipa, level }));
        }
        let new = change(old);
        if new == old {
            return Ok(Ok((false, ipa, level)));
        }
        if old.is_contiguous() {
            self.change_group::<PAGES_ONLY>(&location, (ipa, old), access)?;
            return Ok(Ok((true, ipa, level)));
        }
        let mut locked = self.lock(&location)?;
        if access.execute.any() && !old.access().execute.any() {
            return self.make_executable(locked, &location, (ipa, level), change);
        }
        locked.replace_in(location.cell, old, new)?;
        Ok(Ok((true, ipa, level)))
    }

    /// Makes a leaf executable, with the cache maintenance before.
    ///
    /// The leaf is locked or busy during the maintenance. Otherwise another CPU could unmap it and map the same frame
    /// again with new content, and the guest would execute old content.
    #[cold]
    fn make_executable(
        &self,
        mut locked: Locked<'_, P, G>,
        location: &EntryLocation<'_, G>,
        (ipa, level): (Ipa, Level),
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> Result<Result<(bool, Ipa, Level), Error>, Retry> {
        let old = location.cell.read();
        if !old.differs_by_records_only(location.entry) {
            return Err(Retry);
        }
        // As in `map`: cleaning one page takes little time, so the table stays locked.
        if level == Level::L3 {
            self.before_execute(old, level);
            locked.replace_in(location.cell, old, change(old))?;
        } else {
            // Broken, and made again with more access only: that needs no invalidation in between (Arm ARM DDI 0487K.a,
            // D8.16.1).
            let busy = locked.make_busy(location.cell)?;
            self.before_execute(busy.old, level);
            let new = change(busy.old);
            busy.make(new);
            self.publish();
        }
        Ok(Ok((true, ipa, level)))
    }

    /// Cache maintenance before a leaf becomes executable.
    fn before_execute(&self, leaf: Descriptor<G>, level: Level) {
        if leaf.attributes(self.features()).memory != Memory::Device {
            let size = self.geometry().granule().span(level);
            cache::before_execute(self.platform(), self.features(), (leaf.address(), size));
        }
    }
}
