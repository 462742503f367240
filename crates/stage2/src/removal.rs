// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a change removes, and how it is reported.
//!
//! A change that unmaps reports each leaf to a watcher ([`RemovalWatcher`]). A single leaf is reported when it is broken,
//! which is before its flush. So the watcher gets a [`Broken`] leaf. It gives its output address only for the flush's
//! result ([`Freed`]).
//!
//! A permission downgrade ([`Downgrade`]) remembers its whole range for its flush.

use core::fmt;

use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::{Granule, Ipa, IpaRange, Kib4, Leaf, Level, Pa};

/// A leaf that was removed, and may still be in a TLB.
///
/// Its guest address, and whether the guest wrote there, can be read at once. Its output address can be read only with
/// the [`Freed`] of the same removal: the guest cannot reach that memory any more then.
///
/// ```
/// # use twofold_stage2::*;
/// fn take_back<P: Platform>(
///     stage2: &Stage2<P>, range: IpaRange, pool: &mut impl TableSource, mut reuse: impl FnMut(Pa),
/// ) -> Result<(), Error> {
///     let mut removed = Vec::new();
///     let freed = stage2.unmap(range, pool, |leaf| removed.push(leaf))?.complete().free(pool);
///     for leaf in removed.iter().filter_map(|leaf| leaf.open(&freed)) {
///         reuse(leaf.descriptor.address());
///     }
///     Ok(())
/// }
/// ```
///
/// Not from the broken leaf itself:
///
/// ```compile_fail,E0599
/// # use twofold_stage2::*;
/// fn early<P: Platform>(stage2: &Stage2<P>, range: IpaRange, pool: &mut impl TableSource, mut reuse: impl FnMut(Pa)) {
///     let _ = stage2.unmap(range, pool, |leaf: Broken| reuse(leaf.descriptor().address()));
/// }
/// ```
///
/// ```compile_fail,E0616
/// # use twofold_stage2::*;
/// fn early<P: Platform>(stage2: &Stage2<P>, range: IpaRange, pool: &mut impl TableSource, mut reuse: impl FnMut(Pa)) {
///     let _ = stage2.unmap(range, pool, |leaf: Broken| reuse(leaf.leaf.descriptor.address()));
/// }
/// ```
///
/// Not with a pending flush:
///
/// ```compile_fail,E0308
/// # use twofold_stage2::*;
/// fn early<P: Platform>(pending: &Pending<'_, P>, removed: &[Broken], mut reuse: impl FnMut(Pa)) {
///     for leaf in removed.iter().filter_map(|leaf| leaf.open(pending)) {
///         reuse(leaf.descriptor.address());
///     }
/// }
/// ```
///
/// And not by printing it:
///
/// ```
/// # use twofold_stage2::*;
/// fn shown(leaf: &Broken) -> String {
///     format!("{leaf:?}") // Its address and its level.
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Broken<G: Granule = Kib4> {
    leaf: Leaf<G>,
    removal: RemovalId,
}

impl<G: Granule> Broken<G> {
    #[inline(always)]
    pub(crate) fn new(leaf: Leaf<G>, removal: RemovalId) -> Self {
        Self { leaf, removal }
    }

    /// The first address that it mapped.
    #[inline(always)]
    pub fn ipa(&self) -> Ipa {
        self.leaf.ipa
    }

    /// Its level: 3 for a page.
    #[inline(always)]
    pub fn level(&self) -> Level {
        self.leaf.level
    }

    /// Whether hardware recorded a write in it.
    #[inline(always)]
    pub fn is_hardware_dirty(&self) -> bool {
        self.leaf.descriptor.is_hardware_dirty()
    }

    /// Whether the access flag was set.
    #[inline(always)]
    pub fn is_accessed(&self) -> bool {
        self.leaf.descriptor.is_accessed()
    }

    /// The leaf as it was; `None` if `freed` belongs to another removal.
    #[inline]
    pub fn open(&self, freed: &Freed) -> Option<Leaf<G>> {
        (self.removal == freed.removal).then_some(self.leaf)
    }
}

impl<G: Granule> fmt::Debug for Broken<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broken").field("ipa", &self.leaf.ipa).field("level", &self.leaf.level).finish_non_exhaustive()
    }
}

/// The name of a watched removal: the root of its tree, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemovalId {
    pub(crate) root: Pa,
    pub(crate) number: u64,
}

/// The number of watched removals so far.
#[derive(Debug, Default)]
pub(crate) struct RemovalCount(Word);

impl RemovalCount {
    /// A name for a removal that begins in the tree of this root. An unwatched removal needs none.
    #[inline(always)]
    pub(crate) fn next<R: RemovalWatcher<G>, P: Platform, G: Granule>(&self, root: Pa, platform: &P) -> RemovalId {
        if !R::WATCHES {
            return RemovalId { root: Pa::new(0), number: 0 };
        }
        platform.on_atomic();
        RemovalId { root, number: 1 + self.0.fetch_add(1, Ordering::Relaxed) }
    }
}

/// The proof that a change is over: it is flushed, and its unlinked tables are freed.
///
/// It cannot be made by hand:
///
/// ```compile_fail,E0451
/// # use twofold_stage2::*;
/// fn forged(other: Freed) -> Freed {
///     Freed { tables: 0, ..other }
/// }
/// ```
#[derive(Debug)]
pub struct Freed {
    pub(crate) tables: u64,
    pub(crate) removal: RemovalId,
}

impl Freed {
    /// The number of table pages that were given back.
    pub fn tables(&self) -> u64 {
        self.tables
    }
}

/// A watcher of removed leaves: [`Unwatched`], or a closure that takes a [`Broken`] leaf.
///
/// If a table is unlinked as a whole, its leaves are reported when the [`Flushed`](crate::Flushed) is freed. All other
/// leaves are reported at once.
pub trait RemovalWatcher<G: Granule = Kib4> {
    /// Whether leaves are reported.
    const WATCHES: bool;

    /// Whether the change is a permission downgrade and no unmap.
    #[doc(hidden)]
    const DOWNGRADES: bool = false;

    /// Reports that a leaf was removed.
    fn leaf(&mut self, leaf: Broken<G>);

    /// The downgrade, if the change is one.
    #[doc(hidden)]
    #[inline(always)]
    fn downgrade(&self) -> Option<&Downgrade> {
        None
    }
}

/// No watcher: removed leaves need not be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl<G: Granule> RemovalWatcher<G> for Unwatched {
    const WATCHES: bool = false;

    fn leaf(&mut self, _: Broken<G>) {}
}

impl<G: Granule, F: FnMut(Broken<G>)> RemovalWatcher<G> for F {
    const WATCHES: bool = true;

    #[inline(always)]
    fn leaf(&mut self, leaf: Broken<G>) {
        self(leaf);
    }
}

/// A permission downgrade, or several joined ones.
#[derive(Debug)]
pub struct Downgrade {
    /// A range that covers all that they were called for.
    pub(crate) range: IpaRange,
}

impl<G: Granule> RemovalWatcher<G> for Downgrade {
    const WATCHES: bool = false;
    const DOWNGRADES: bool = true;

    fn leaf(&mut self, _: Broken<G>) {}

    fn downgrade(&self) -> Option<&Downgrade> {
        Some(self)
    }
}

/// How many changes of a kind have begun and are not flushed yet.
///
/// *Permission downgrades.* A downgrade may find an access gone that another CPU removed and has not flushed yet. Its
/// caller still relies on the access being gone. So if other downgrades are pending, a downgrade flushes its whole
/// range, not only what it changed.
///
/// *Removals.* A CPU that maps where a counted removal was (`Descriptor::STALE_COUNTED`) flushes only if one is pending.
/// Without the count, each page that was unmapped once would cost a flush when it is mapped again.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct PendingChanges(Word);

impl PendingChanges {
    /// Counts one before its first change. Relaxed: a CPU that finds the change under the table's lock has taken that lock
    /// later, and so sees the count too.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn count<P: Platform>(&self, platform: &P) {
        platform.on_atomic();
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether more than the caller's `own` are pending. If not, the flushes of all that were counted before are complete:
    /// the count is 0 only if each of them was counted as done, and the load acquires that.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn others(&self, own: u64) -> bool {
        self.0.load(Ordering::Acquire) > own
    }

    /// Counts the caller's own as flushed. Release: their flush is complete before.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn done<P: Platform>(&self, count: u64, platform: &P) {
        platform.on_atomic();
        self.0.fetch_sub(count, Ordering::Release);
    }
}

/// Changes that can be flushed together.
pub trait Join<G: Granule = Kib4>: RemovalWatcher<G> {
    /// Adds another change.
    fn join(&mut self, other: Self);
}

impl<G: Granule> Join<G> for Downgrade {
    fn join(&mut self, other: Self) {
        self.range = self.range.start.min(other.range.start)..self.range.end.max(other.range.end);
    }
}

impl<G: Granule> Join<G> for Unwatched {
    fn join(&mut self, _: Self) {}
}
