// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The free sectors of a file.
//!
//! Invariant: extents do not overlap, and none touches the next.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a sector: the unit in which the file is given out.
pub(super) const SECTOR: u64 = 512;
/// Sectors of a page that is not compressed.
pub(super) const PAGE_SECTORS: u64 = 8;

/// Sectors of the file.
pub(super) type Extent = Range<u64>;

#[derive(Debug)]
pub(super) struct Extents {
    /// The start and the end of each.
    free: BTreeMap<u64, u64>,
    count: u64,
}

impl Extents {
    pub(super) fn new(sectors: u64) -> Self {
        Self { free: BTreeMap::from([(0, sectors)]), count: sectors }
    }

    /// Free sectors.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Takes this many sectors in one extent, the first that is large enough.
    pub(super) fn take(&mut self, sectors: u64) -> Option<Extent> {
        let (start, end) =
            self.free.iter().map(|(start, end)| (*start, *end)).find(|(start, end)| end - start >= sectors)?;
        self.free.remove(&start);
        if start + sectors < end {
            self.free.insert(start + sectors, end);
        }
        self.count -= sectors;
        Some(start..start + sectors)
    }

    /// Takes this many sectors, in several extents if there is no other way. `None` if there are not as many.
    pub(super) fn take_pieces(&mut self, sectors: u64) -> Option<Vec<Extent>> {
        if let Some(extent) = self.take(sectors) {
            return Some(vec![extent]);
        }
        if self.count < sectors {
            return None;
        }
        let (mut pieces, mut left) = (Vec::new(), sectors);
        while left > 0 {
            let (start, end) = self.free.first_key_value().map(|(start, end)| (*start, *end))?;
            let piece = self.take_at(start, left.min(end - start));
            left -= piece.end - piece.start;
            pieces.push(piece);
        }
        Some(pieces)
    }

    fn take_at(&mut self, start: u64, sectors: u64) -> Extent {
        if let Some(end) = self.free.remove(&start)
            && start + sectors < end
        {
            self.free.insert(start + sectors, end);
        }
        self.count -= sectors;
        start..start + sectors
    }

    /// Takes back what was taken.
    pub(super) fn give(&mut self, extent: Extent) {
        let Extent { mut start, mut end } = extent;
        self.count += end - start;
        if let Some((before, _)) = self.free.range(..start).next_back().filter(|(_, end)| **end == start) {
            start = *before;
        }
        if let Some(behind) = self.free.remove(&end) {
            end = behind;
        }
        self.free.insert(start, end);
    }

    /// Removes the free sectors from `limit` on, which the file has no room for.
    pub(super) fn cut(&mut self, limit: u64) {
        let beyond = self.free.split_off(&limit);
        self.count -= beyond.iter().map(|(start, end)| end - start).sum::<u64>();
        if let Some((_, end)) = self.free.iter_mut().next_back().filter(|(_, end)| **end > limit) {
            self.count -= *end - limit;
            *end = limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_taken_and_joined_again() {
        let mut extents = Extents::new(24);
        let taken: Vec<_> = (0..3).map(|_| extents.take(8).unwrap()).collect();
        assert_eq!((taken[2].clone(), extents.take(1), extents.count()), (16..24, None, 0));
        extents.give(0..8);
        extents.give(16..24);
        assert_eq!((extents.take(9), extents.count()), (None, 16));
        assert_eq!(extents.take_pieces(12), Some(vec![0..8, 16..20]));
        assert_eq!(extents.take_pieces(5), None);
        extents.give(8..16);
        extents.give(0..8);
        extents.give(16..20);
        assert_eq!((extents.take(24), extents.count()), (Some(0..24), 0));
    }

    /// All that is left, to the last sector, and nothing that is taken.
    #[test]
    fn pieces_are_free_sectors() {
        let mut extents = Extents::new(24);
        assert_eq!(extents.take(24), Some(0..24));
        assert!(extents.free.is_empty());
        extents.give(4..8);
        extents.give(16..24);
        assert_eq!(extents.take_pieces(10), Some(vec![4..8, 16..22]));
        extents.give(4..8);
        assert_eq!((extents.take_pieces(5), extents.count()), (Some(vec![4..8, 22..23]), 1));
        extents.give(4..8);
        assert_eq!((extents.take_pieces(6), extents.count()), (None, 5));
        assert_eq!((extents.take_pieces(5), extents.count()), (Some(vec![4..8, 23..24]), 0));
        assert!(extents.free.is_empty());
    }

    #[test]
    fn a_file_that_is_smaller_has_less() {
        let mut extents = Extents::new(32);
        let taken = extents.take(8).unwrap();
        extents.cut(12);
        assert_eq!((extents.count(), extents.take_pieces(5)), (4, None));
        extents.give(taken);
        assert_eq!((extents.take(12), extents.count()), (Some(0..12), 0));
        extents.cut(0);
        assert_eq!(extents.count(), 0);
    }
}
