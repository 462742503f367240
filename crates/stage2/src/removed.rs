// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a change takes away, and who is told.
//!
//! A change that unmaps reports each leaf to a watcher ([`Removed`]). A single leaf is reported when it is broken, which is
//! before its flush. So a watcher gets a [`Broken`] leaf, whose memory opens with what the flush returns ([`Freed`]).
//! A change that takes access ([`Narrowed`]) remembers where it was asked to, for its flush.

use core::fmt;

use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::{Ipa, IpaRange, Leaf, Level, Pa, Stage2};

/// A leaf that was removed, and may still be in a TLB.
///
/// Where it was, and whether the guest wrote there, can be read at once. Which memory it mapped is known only with
/// the [`Freed`] of the same removal, when the guest cannot reach that memory any more:
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
/// Not while it is broken:
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
/// Nor with a flush that is pending:
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
/// Nor does it print:
///
/// ```
/// # use twofold_stage2::*;
/// fn shown(leaf: &Broken) -> String {
///     format!("{leaf:?}") // Its address and its level.
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Broken {
    leaf: Leaf,
    removal: Removal,
}

impl Broken {
    #[inline(always)]
    pub(crate) fn new(leaf: Leaf, removal: Removal) -> Self {
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

    /// Whether hardware had recorded a write.
    #[inline(always)]
    pub fn is_hardware_dirty(&self) -> bool {
        self.leaf.descriptor.is_hardware_dirty()
    }

    /// Whether the access flag was set.
    #[inline(always)]
    pub fn is_accessed(&self) -> bool {
        self.leaf.descriptor.is_accessed()
    }

    /// The leaf as it was; `None` where `freed` is that of another removal.
    #[inline]
    pub fn open(&self, freed: &Freed) -> Option<Leaf> {
        (self.removal == freed.removal).then_some(self.leaf)
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broken").field("ipa", &self.leaf.ipa).field("level", &self.leaf.level).finish_non_exhaustive()
    }
}

/// A removal that is watched: the root of its tree, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Removal {
    pub(crate) root: Pa,
    pub(crate) number: u64,
}

/// How many removals were watched.
#[derive(Debug, Default)]
pub(crate) struct Removals(Word);

impl<P: Platform> Stage2<P> {
    /// What names a removal that begins. One that nobody watches needs no name.
    #[inline(always)]
    pub(crate) fn removal<R: Removed>(&self) -> Removal {
        if !R::WATCHES {
            return Removal { root: Pa::new(0), number: 0 };
        }
        self.platform().on_atomic();
        Removal { root: self.root_pa(), number: 1 + self.removals.0.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A change that is over: it is flushed, and the tables that it took out are freed.
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
    pub(crate) removal: Removal,
}

impl Freed {
    /// Table pages that were given back.
    pub fn tables(&self) -> u64 {
        self.tables
    }
}

/// Who is told of each leaf that is removed: [`Unwatched`], or a closure that takes a [`Broken`] leaf.
///
/// A leaf of a table that goes as a whole is told of when the [`Flushed`](crate::Flushed) is spent, others at once.
pub trait Removed {
    /// Whether anybody is told.
    const WATCHES: bool;

    /// A leaf was removed.
    fn leaf(&mut self, leaf: Broken);

    /// What was taken, where it is access and no mapping.
    #[doc(hidden)]
    #[inline(always)]
    fn narrowed(&self) -> Option<&Narrowed> {
        None
    }
}

/// Nobody is told: what is removed need not be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Removed for Unwatched {
    const WATCHES: bool = false;

    fn leaf(&mut self, _: Broken) {}
}

impl<F: FnMut(Broken)> Removed for F {
    const WATCHES: bool = true;

    #[inline(always)]
    fn leaf(&mut self, leaf: Broken) {
        self(leaf);
    }
}

/// What a change took: access, in a range.
#[derive(Debug)]
pub struct Narrowed {
    /// How many such changes it is.
    pub(crate) count: u64,
    /// Where they were asked for.
    pub(crate) range: IpaRange,
}

impl Removed for Narrowed {
    const WATCHES: bool = false;

    fn leaf(&mut self, _: Broken) {}

    fn narrowed(&self) -> Option<&Narrowed> {
        Some(self)
    }
}

/// Changes that can be flushed together.
pub trait Join: Removed {
    /// Adds what another one took.
    fn join(&mut self, other: Self);
}

impl Join for Narrowed {
    fn join(&mut self, other: Self) {
        self.count += other.count;
        self.range = self.range.start.min(other.range.start)..self.range.end.max(other.range.end);
    }
}

impl Join for Unwatched {
    fn join(&mut self, _: Self) {}
}
