// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A leaf, with where it is.

use crate::{Descriptor, Granule, Ipa, Kib4, Level};

/// A leaf of the tables: a page or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf<G: Granule = Kib4> {
    /// The first address that it maps.
    pub ipa: Ipa,
    /// Its level: 3 for a page.
    pub level: Level,
    /// The entry's value.
    pub descriptor: Descriptor<G>,
}
