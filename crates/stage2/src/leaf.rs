// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A leaf, with where it is.

use core::fmt;

use crate::{Descriptor, Granule, Ipa, IpaRange, Kib4, Level, Pa};

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

impl<G: Granule> Leaf<G> {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        G::default().span(self.level)
    }

    /// The addresses that it maps.
    pub fn range(&self) -> IpaRange {
        self.ipa.range(self.size())
    }

    /// Its first output address.
    pub const fn pa(&self) -> Pa {
        self.descriptor.address()
    }

    /// The output address of `ipa`; `None` if the leaf does not map it.
    pub fn translate(&self, ipa: Ipa) -> Option<Pa> {
        self.range().contains(&ipa).then(|| self.pa() + (ipa - self.ipa))
    }
}

/// For example `0x40000000..0x40200000 -> 0x80000000 rw- accessed`.
impl<G: Granule> fmt::Display for Leaf<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IpaRange { start, end } = self.range();
        write!(f, "{start}..{end} -> {} {}", self.pa(), self.descriptor.access())?;
        let flags = [
            (self.descriptor.is_accessed(), " accessed"),
            (self.descriptor.is_hardware_tracked(), " hardware-tracked"),
            (self.descriptor.is_contiguous(), " contiguous"),
        ];
        flags.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, name)| f.write_str(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Attributes, Features};

    #[test]
    fn a_leaf_translates_the_addresses_that_it_maps() {
        const MIB_2: u64 = 2 << 20;
        let ipa = Ipa::new(1 << 30);
        let ram = Attributes::ram(Access::READ);
        let descriptor = Descriptor::leaf(Pa::new(3 * MIB_2), Level::L2, &ram, &Features::NONE);
        let leaf: Leaf = Leaf { ipa, level: Level::L2, descriptor };
        assert_eq!(leaf.translate(ipa), Some(Pa::new(3 * MIB_2)));
        assert_eq!(leaf.translate(ipa + (MIB_2 - 1)), Some(Pa::new(4 * MIB_2 - 1)));
        assert_eq!(leaf.translate(ipa + MIB_2), None);
        assert_eq!(leaf.translate(Ipa::new((1 << 30) - 1)), None);
    }
}
