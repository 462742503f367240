// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a change takes away, and who is told.
//!
//! A change that unmaps tells whoever watches ([`Removed`]) of each leaf; one that takes access ([`Narrowed`]) remembers where
//! it was asked to, for its flush.

use crate::{IpaRange, Leaf};

/// Who is told of each leaf that is removed: [`Unwatched`], or a closure that takes a [`Leaf`], with what hardware had
/// recorded in it. The frame may be reused, or its content trusted not to change, only after the flush.
///
/// A leaf of a table that goes as a whole is told of when the [`Flushed`](crate::Flushed) is spent, others at once.
pub trait Removed {
    /// Whether anybody is told.
    const WATCHES: bool;

    /// A leaf was removed.
    fn leaf(&mut self, leaf: Leaf);

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

    fn leaf(&mut self, _: Leaf) {}
}

impl<F: FnMut(Leaf)> Removed for F {
    const WATCHES: bool = true;

    #[inline(always)]
    fn leaf(&mut self, leaf: Leaf) {
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

    fn leaf(&mut self, _: Leaf) {}

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
