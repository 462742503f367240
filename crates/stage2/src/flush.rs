// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The TLB flush that a change needs, as a type that cannot be forgotten.
//!
//! A change that removes a mapping or an access returns a [`Pending`]. Unlinked table pages are inside it. Only
//! [`complete`](Pending::complete) gives access to them: it flushes (step U6) and returns a [`Flushed`], which is
//! consumed to free them.

use crate::deferred_free::DeferFree;
use crate::platform::Platform;
use crate::primitive::{self, Claim};
use crate::removal::{Downgrade, Freed, Join, RemovalId, RemovalWatcher, Unwatched};
use crate::tlb::Changed;
use crate::unlinked::Chain;
use crate::{Granule, IpaRange, Kib4, Stage2, TableSource};

/// A change whose TLB invalidation is still to come.
///
/// [`complete`](Self::complete) it before anything that the old entries reached is reused. [`join`](Self::join) several
/// changes to invalidate them at once.
///
/// A `Pending` that is dropped, for example by a `?` after it, flushes as `complete` does. The tree keeps its table
/// pages, and gives them to the [`TableSource`] of the next operation that may free pages.
///
/// ```
/// # use twofold_stage2::*;
/// fn unmap<P: Platform>(tables: &Stage2<P>, range: IpaRange, pool: &mut impl TableSource) -> Result<(), Error> {
///     let pending = tables.unmap(range, pool, Unwatched)?;
///     let flushed = pending.complete();
///     flushed.free(pool);
///     Ok(())
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use twofold_stage2::*;
/// fn forgets<P: Platform>(tables: &Stage2<P>, range: IpaRange) -> Result<(), Error> {
///     tables.write_protect(range)?;
///     Ok(())
/// }
/// ```
///
/// Nothing is freed before the flush:
///
/// ```compile_fail,E0599
/// # use twofold_stage2::*;
/// fn early<P: Platform>(tables: &Stage2<P>, range: IpaRange, pool: &mut impl TableSource) -> Result<(), Error> {
///     tables.unmap(range, pool, Unwatched)?.free(pool);
///     Ok(())
/// }
/// ```
#[must_use = "call complete(): until then, guests may still use the old entries"]
pub struct Pending<'a, P: Platform, R: RemovalWatcher<G> = Unwatched, G: Granule = Kib4> {
    stage2: &'a Stage2<P, G>,
    changed: Changed,
    unlinked: Chain,
    removed: Option<R>,
    removal: RemovalId,
    /// How many changes are counted as pending until this is flushed: removals, or downgrades.
    changes: u64,
}

impl<P: Platform, G: Granule, R: Join<G>> Pending<'_, P, R, G> {
    /// Adds another change of the same tables, to be invalidated with this one. A change of other tables is invalidated at
    /// once, as if it were dropped.
    pub fn join(&mut self, other: Self) {
        if !core::ptr::eq(self.stage2, other.stage2) {
            return;
        }
        let mut other = core::mem::ManuallyDrop::new(other);
        self.changed.join(other.changed);
        self.changes += other.changes;
        self.unlinked.join(core::mem::take(&mut other.unlinked), self.stage2);
        if let (Some(removed), Some(other)) = (&mut self.removed, other.removed.take()) {
            removed.join(other);
        }
    }
}

impl<'a, P: Platform, G: Granule> Pending<'a, P, Downgrade, G> {
    /// A permission downgrade in `range`. [`Stage2::begin_downgrade`] counted it before it began.
    pub(crate) fn downgrade(stage2: &'a Stage2<P, G>, changed: Changed, range: IpaRange) -> Self {
        let removal = stage2.removal_id::<Downgrade>();
        Self { stage2, changed, unlinked: Chain::default(), removed: Some(Downgrade { range }), removal, changes: 1 }
    }
}

impl<'a, P: Platform, G: Granule, R: RemovalWatcher<G>> Pending<'a, P, R, G> {
    /// An unmap of no address, which was not counted.
    pub(crate) fn nothing(stage2: &'a Stage2<P, G>, removed: R) -> Self {
        let (changed, unlinked, removal) = (Changed::default(), Chain::default(), stage2.removal_id::<R>());
        Self { stage2, changed, unlinked, removed: Some(removed), removal, changes: 0 }
    }

    /// An unmap. If it has a watcher, [`Stage2::begin_removal`] counted it before it began.
    #[inline(always)]
    pub(crate) fn removal(
        stage2: &'a Stage2<P, G>,
        changed: Changed,
        unlinked: Chain,
        removed: R,
        removal: RemovalId,
    ) -> Self {
        let changes = u64::from(R::WATCHES);
        Self { stage2, changed, unlinked, removed: Some(removed), removal, changes }
    }

    /// Invalidates the changed addresses in the TLBs of all CPUs, and waits until that is complete.
    #[inline(always)]
    pub fn complete(mut self) -> Flushed<'a, P, R, G> {
        self.widen();
        self.stage2.flush_changed(&mut self.changed);
        self.end();
        let (unlinked, removed) = (core::mem::take(&mut self.unlinked), self.removed.take());
        Flushed { stage2: self.stage2, unlinked, removed, removal: self.removal }
    }

    /// Invalidates all TLB entries of the VMID, including those of stage 1 alone.
    pub(crate) fn flush_all(&mut self) {
        self.stage2.invalidate_all();
        if !self.changed.is_empty() {
            self.stage2.claim_flushed(self.changed.scope().range);
            self.changed = Changed::default();
        }
    }

    /// Counts the change as flushed: other CPUs need not flush for it any more.
    #[inline(always)]
    fn end(&self) {
        let Stage2 { pending_downgrades, pending_removals, .. } = self.stage2;
        if R::DOWNGRADES || R::WATCHES {
            let pending = if R::DOWNGRADES { pending_downgrades } else { pending_removals };
            pending.done(self.changes, self.stage2.platform());
        }
    }

    /// Whether there is anything to invalidate.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Adds what other downgrades may have changed.
    #[inline(always)]
    fn widen(&mut self) {
        let downgrade = self.removed.as_ref().and_then(RemovalWatcher::downgrade);
        if let Some(Downgrade { range }) = downgrade
            && self.stage2.pending_downgrades.others(self.changes)
        {
            self.changed.join(Changed::anything_in(range.clone()));
        }
    }
}

impl<'a, P: Platform, G: Granule, R: RemovalWatcher<G>> Pending<'a, P, R, G> {
    /// The flush of a `Pending` that is dropped.
    #[cold]
    fn complete_late(&mut self) -> Flushed<'a, P, R, G> {
        self.widen();
        self.stage2.flush_changed_out_of_line(&mut self.changed);
        self.end();
        let (unlinked, removed) = (core::mem::take(&mut self.unlinked), self.removed.take());
        Flushed { stage2: self.stage2, unlinked, removed, removal: self.removal }
    }
}

impl<P: Platform, G: Granule, R: RemovalWatcher<G>> Drop for Pending<'_, P, R, G> {
    #[inline(always)]
    fn drop(&mut self) {
        // `complete` has taken `removed`.
        if self.removed.is_some() {
            drop(self.complete_late());
        }
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    #[inline(always)]
    fn flush_changed(&self, changed: &mut Changed) {
        if !changed.is_empty() {
            let scope = changed.scope();
            self.tlb().invalidate(&scope);
            self.claim_flushed(scope.range);
            *changed = Changed::default();
        }
    }

    /// One function for all that are dropped.
    #[cold]
    #[inline(never)]
    fn flush_changed_out_of_line(&self, changed: &mut Changed) {
        self.flush_changed(changed);
    }

    /// States for a trace: from here on, no TLB holds anything that was removed in `range`.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn claim_flushed(&self, range: IpaRange) {
        primitive::claim(Claim::Flushed { range, vttbr: self.vttbr() });
    }
}

/// A change whose TLB invalidation is complete on all CPUs, with the tables that it unlinked. If it is dropped, the
/// tree keeps their pages, as it does for a [`Pending`].
///
/// It cannot be made by hand:
///
/// ```compile_fail,E0451
/// # use twofold_stage2::*;
/// fn forged<P: Platform>(stage2: &Stage2<P>) -> Flushed<'_, P> {
///     Flushed { stage2, detached: Default::default(), removed: None, ..todo!() }
/// }
/// ```
///
/// It cannot be used twice:
///
/// ```compile_fail,E0382
/// # use twofold_stage2::*;
/// fn twice<P: Platform>(flushed: Flushed<'_, P>, pool: &mut impl TableSource) {
///     flushed.free(pool);
///     flushed.free(pool);
/// }
/// ```
#[must_use = "free() the unlinked tables: until the next operation that frees some, the tree keeps them"]
pub struct Flushed<'a, P: Platform, R: RemovalWatcher<G> = Unwatched, G: Granule = Kib4> {
    stage2: &'a Stage2<P, G>,
    unlinked: Chain,
    removed: Option<R>,
    removal: RemovalId,
}

impl<P: Platform, G: Granule, R: RemovalWatcher<G>> Flushed<'_, P, R, G> {
    /// Reports the leaves of the unlinked tables, and gives the tables' pages to `tables`. The result opens the leaves
    /// that were removed ([`Broken`](crate::Broken)).
    #[inline(always)]
    pub fn free(mut self, tables: &mut impl TableSource<G>) -> Freed {
        let removal = self.removal;
        if self.unlinked.is_empty() {
            return Freed { tables: 0, removal };
        }
        self.stage2.give_deferred(tables);
        Freed { tables: self.free_unlinked(tables), removal }
    }

    fn free_unlinked(&mut self, tables: &mut impl TableSource<G>) -> u64 {
        let unlinked = core::mem::take(&mut self.unlinked);
        match &mut self.removed {
            Some(removed) if R::WATCHES => unlinked.free(self.stage2, tables, removed, self.removal),
            // One function for all that do not watch.
            _ => unlinked.free(self.stage2, tables, &mut Unwatched, self.removal),
        }
    }

    #[cold]
    fn defer(&mut self) {
        self.free_unlinked(&mut DeferFree { list: &self.stage2.deferred_free, platform: self.stage2.platform() });
    }
}

impl<P: Platform, G: Granule, R: RemovalWatcher<G>> Drop for Flushed<'_, P, R, G> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.unlinked.is_empty() {
            self.defer();
        }
    }
}
