// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All valid descriptors of a guest's stage-2 tables, as walks reach them.

use super::Shape;
use super::stage2::{Entries, Regime};

/// A descriptor whose lowest bit is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The first address that it translates.
    pub ipa: u64,
    /// Its level.
    pub level: u8,
    /// The descriptor.
    pub raw: u64,
    /// The physical address of the descriptor.
    pub entry: u64,
    /// What hardware takes it for. [`Shape::Invalid`] is a reserved encoding.
    pub shape: Shape,
    /// Whether its address is one that `VTCR_EL2.PS` allows.
    pub fits: bool,
}

impl Regime {
    /// Visits each descriptor whose lowest bit is set, in the order of addresses, and a table's own descriptor before
    /// those in the table. Nothing is updated. A table that is linked below itself is visited at most four deep.
    pub fn visit(&self, entries: &mut impl Entries, each: &mut impl FnMut(Visited)) {
        let (root, level, count) = self.root_table();
        self.visit_table((root, level, count, 0), entries, each);
    }

    /// Visits a table: its address, level, number of descriptors, and the first address that it translates.
    fn visit_table(
        &self,
        (table, level, count, start): (u64, u8, u64, u64),
        entries: &mut impl Entries,
        each: &mut impl FnMut(Visited),
    ) {
        for index in 0..count {
            let (entry, ipa) = (table + index * 8, start + index * self.format.span(level));
            let raw = entries.stage2(entry);
            if raw & 1 == 0 {
                continue;
            }
            let (shape, address) = (self.format.shape(raw, level), self.format.address(raw, level));
            each(Visited { ipa, level, raw, entry, shape, fits: self.fits(address) });
            if shape == Shape::Table {
                self.visit_table((address, level + 1, self.format.entries(), ipa), entries, each);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use twofold_stage2::Features;

    use super::*;

    struct Ram(BTreeMap<u64, u64>);

    impl Entries for Ram {
        fn stage2(&mut self, pa: u64) -> u64 {
            self.0.get(&pa).copied().unwrap_or(0)
        }

        fn update_stage2(&mut self, pa: u64, _: u64, _: u64) -> Result<(), u64> {
            panic!("a visit updates {pa:#x}");
        }
    }

    #[test]
    fn each_valid_descriptor_is_visited_in_order() {
        const ROOT: u64 = 0x8000_0000;
        // 40 bits of IPA from level 1: the root is two tables.
        let vtcr = 1 << 31 | 2 << 16 | 0b11 << 12 | 0b0101 << 8 | 1 << 6 | 24;
        let regime = Regime::new(ROOT, vtcr, &Features::NONE).unwrap();
        let mut ram = Ram(BTreeMap::from([
            (ROOT + 3 * 8, 0x4000_0001),
            (ROOT + 4 * 8, 0b10),
            (ROOT + 1023 * 8, 0x8000_3003),
            (0x8000_3000, 0x8000_4003),
            (0x8000_4000 + 511 * 8, 1 << 40 | 0x9003),
            (0x8000_4000 + 8, 0x9001),
            (0x8000_3000 + 8, 0x20_0001),
        ]));
        let mut seen = Vec::new();
        regime.visit(&mut ram, &mut |visited| seen.push((visited.ipa, visited.level, visited.shape, visited.fits)));
        let last = 1023 << 30;
        assert_eq!(
            seen,
            [
                (3 << 30, 1, Shape::Leaf, true),
                (last, 1, Shape::Table, true),
                (last, 2, Shape::Table, true),
                (last + 0x1000, 3, Shape::Invalid, true),
                (last + 511 * 0x1000, 3, Shape::Leaf, false),
                (last + (2 << 20), 2, Shape::Leaf, true),
            ]
        );
    }
}
