// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush that may not be forgotten, and what it keeps until it is complete.
//!
//! A change that takes something away returns a [`Pending`]. Table pages that left the tree are inside it, and there
//! is no way to them but to [`complete`](Pending::complete) it: that gives a [`Flushed`], which is spent to free them.

use crate::detached::Chain;
use crate::kept::Keep;
use crate::platform::Platform;
use crate::primitive::{self, Claim, Ordering, Word};
use crate::removed::{Freed, Join, Narrowed, Removal, Removed, Unwatched};
use crate::tlb::Changed;
use crate::{IpaRange, Stage2, TableSource};

/// A change whose TLB invalidation is still to come.
///
/// [`complete`](Self::complete) it before anything that the old entries reached is reused. Several changes are
/// [`joined`](Self::join) to be invalidated at once. A `Pending` that is dropped, as by a `?` behind it, is flushed as
/// `complete` would flush it. The tree keeps the table pages that were inside, and gives them to the next
/// [`TableSource`] that an operation brings and that may free pages.
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
pub struct Pending<'a, P: Platform, R: Removed = Unwatched> {
    stage2: &'a Stage2<P>,
    changed: Changed,
    detached: Chain,
    removed: Option<R>,
    removal: Removal,
}

impl<P: Platform, R: Join> Pending<'_, P, R> {
    /// Adds another change of the same tables, to be invalidated with this one.
    ///
    /// # Panics
    ///
    /// Where it is a change of other tables.
    pub fn join(&mut self, other: Self) {
        assert!(core::ptr::eq(self.stage2, other.stage2), "a flush is of one guest's tables");
        let mut other = core::mem::ManuallyDrop::new(other);
        self.changed.join(other.changed);
        self.detached.join(core::mem::take(&mut other.detached), self.stage2);
        if let (Some(removed), Some(other)) = (&mut self.removed, other.removed.take()) {
            removed.join(other);
        }
    }
}

impl<'a, P: Platform> Pending<'a, P, Narrowed> {
    /// A change of access in `range`, which [`PendingChanges::count`] counted before it began.
    pub(crate) fn narrowed(stage2: &'a Stage2<P>, changed: Changed, range: IpaRange) -> Self {
        let removed = Some(Narrowed { count: 1, range });
        let removal = stage2.removal::<Narrowed>();
        Self { stage2, changed, detached: Chain::default(), removed, removal }
    }
}

impl<'a, P: Platform, R: Removed> Pending<'a, P, R> {
    #[inline(always)]
    pub(crate) fn with_tables(
        stage2: &'a Stage2<P>,
        changed: Changed,
        detached: Chain,
        removed: R,
        removal: Removal,
    ) -> Self {
        Self { stage2, changed, detached, removed: Some(removed), removal }
    }

    /// Invalidates what has changed, on all CPUs, and waits until that is complete.
    #[inline(always)]
    pub fn complete(mut self) -> Flushed<'a, P, R> {
        self.flush();
        self.end();
        let (detached, removed) = (core::mem::take(&mut self.detached), self.removed.take());
        Flushed { stage2: self.stage2, detached, removed, removal: self.removal }
    }

    /// Invalidates all entries of the VMID, those of stage 1 alone included.
    pub(crate) fn flush_all(&mut self) {
        self.stage2.invalidate_all();
        if !self.changed.is_empty() {
            self.stage2.claim_flushed(self.changed.scope().range);
            self.changed = Changed::default();
        }
    }

    /// A change of access is flushed: others need not flush for it.
    #[inline(always)]
    fn end(&self) {
        if let Some(Narrowed { count, .. }) = self.removed.as_ref().and_then(Removed::narrowed) {
            self.stage2.pending.done(*count, self.stage2.platform());
        }
    }

    /// Whether there is anything to invalidate.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    #[inline(always)]
    fn flush(&mut self) {
        let narrowed = self.removed.as_ref().and_then(Removed::narrowed);
        if let Some(Narrowed { count, range }) = narrowed
            && self.stage2.pending.others(*count)
        {
            self.changed.join(Changed::anything_in(range.clone()));
        }
        if !self.changed.is_empty() {
            let scope = self.changed.scope();
            self.stage2.tlb().invalidate(&scope);
            self.stage2.claim_flushed(scope.range);
            self.changed = Changed::default();
        }
    }
}

impl<'a, P: Platform, R: Removed> Pending<'a, P, R> {
    /// The flush of one that is dropped.
    #[cold]
    fn complete_late(&mut self) -> Flushed<'a, P, R> {
        self.flush();
        self.end();
        let (detached, removed) = (core::mem::take(&mut self.detached), self.removed.take());
        Flushed { stage2: self.stage2, detached, removed, removal: self.removal }
    }
}

impl<P: Platform, R: Removed> Drop for Pending<'_, P, R> {
    #[inline(always)]
    fn drop(&mut self) {
        // One that was completed has given it away.
        if self.removed.is_some() {
            drop(self.complete_late());
        }
    }
}

impl<P: Platform> Stage2<P> {
    /// From here on, nothing that was taken away in `range` is in a TLB.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn claim_flushed(&self, range: IpaRange) {
        primitive::claim(Claim::Flushed { range, vttbr: self.vttbr() });
    }

    /// A change of access is about to begin, and ends with its [`Pending`].
    pub(crate) fn begin_to_narrow(&self) {
        self.pending.count(self.platform());
    }
}

/// How many changes of access have begun and are not flushed yet.
///
/// One that finds an access gone already did not change it, but may be asked to vouch for it: where the one that did is
/// still to be flushed, it flushes all that it was asked for. (What is unmapped is marked instead: `Descriptor::STALE`.)
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct PendingChanges(Word);

impl PendingChanges {
    /// One is about to begin: whoever sees what it does, by the lock of the table, finds it counted.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn count<P: Platform>(&self, platform: &P) {
        platform.on_atomic();
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there are others than these.
    #[cfg_attr(feature = "checked", track_caller)]
    fn others(&self, own: u64) -> bool {
        self.0.load(Ordering::Acquire) > own
    }

    #[cfg_attr(feature = "checked", track_caller)]
    fn done<P: Platform>(&self, count: u64, platform: &P) {
        platform.on_atomic();
        self.0.fetch_sub(count, Ordering::Release);
    }
}

/// A change whose TLB invalidation has completed on all CPUs, with the tables that it took out. If it is dropped, the
/// tree keeps their pages, as those of a [`Pending`].
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
#[must_use = "free() the tables that were taken out: until the next operation that frees some, the tree keeps them"]
pub struct Flushed<'a, P: Platform, R: Removed = Unwatched> {
    stage2: &'a Stage2<P>,
    detached: Chain,
    removed: Option<R>,
    removal: Removal,
}

impl<P: Platform, R: Removed> Flushed<'_, P, R> {
    /// Tells what was in the tables that were taken out, and gives their pages to `tables`. What is returned opens the
    /// leaves that were removed ([`Broken`](crate::Broken)).
    #[inline(always)]
    pub fn free(mut self, tables: &mut impl TableSource) -> Freed {
        let removal = self.removal;
        if self.detached.is_empty() {
            return Freed { tables: 0, removal };
        }
        self.stage2.give_kept(tables);
        Freed { tables: self.free_detached(tables), removal }
    }

    fn free_detached(&mut self, tables: &mut impl TableSource) -> u64 {
        let detached = core::mem::take(&mut self.detached);
        match &mut self.removed {
            Some(removed) => detached.free(self.stage2, tables, removed, self.removal),
            None => detached.free(self.stage2, tables, &mut Unwatched, self.removal),
        }
    }

    #[cold]
    fn keep(&mut self) {
        self.free_detached(&mut Keep(self.stage2));
    }
}

impl<P: Platform, R: Removed> Drop for Flushed<'_, P, R> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.detached.is_empty() {
            self.keep();
        }
    }
}
