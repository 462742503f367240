// SPDX-License-Identifier: Apache-2.0 OR MIT
//! x86-64's translation tables, with pages of 4 KiB only, as the selftests' tables have. (arm64's are
//! `twofold_workload::stage1`.)
//!
//! Invariant: tables lie in the part of the guest's fixed memory that was reserved for them, and a mapped page never
//! changes. All writes are done before a vCPU runs.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::error::KvmError;
use crate::layout::Map;
use crate::mapping::Mapping;

/// Four levels of 512 entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape;

impl Shape {
    /// Bytes of a page.
    pub(crate) const fn granule(&self) -> u64 {
        PAGE
    }

    /// Returns the bits of a virtual address that the guest uses: its lower half.
    pub(crate) const fn va_bits(&self) -> u32 {
        47
    }

    /// Returns the most bytes of tables, root included, that it takes to map all of this.
    pub(crate) fn tables(&self, maps: &[Map]) -> Result<u64, KvmError> {
        let spans = |map: &Map, shift: u32| ((map.va + map.size - 1) >> shift) - (map.va >> shift) + 1;
        // A table spans as much as one entry of the level above.
        let below = |level: u32| maps.iter().map(|map| spans(map, shift(level))).sum::<u64>();
        Ok((1 + (1..LEVELS).map(below).sum::<u64>()) * PAGE)
    }

    /// Builds the tables in a part of `memory` that is still all zero; returns the root. `base` is the guest's address
    /// of `memory`, and `place` is the part, in the guest's addresses.
    pub(crate) fn build(&self, memory: &Mapping, base: u64, place: Range<u64>, maps: &[Map]) -> Result<u64, KvmError> {
        let mut tables = Tables { memory, base, root: place.start, next: place.start + PAGE, end: place.end };
        maps.iter().try_for_each(|map| tables.map(map))?;
        Ok(tables.root)
    }
}

/// Tables under construction.
struct Tables<'m> {
    memory: &'m Mapping,
    base: u64,
    root: u64,
    next: u64,
    end: u64,
}

impl Tables<'_> {
    fn map(&mut self, map: &Map) -> Result<(), KvmError> {
        for offset in (0..map.size).step_by(PAGE as usize) {
            let table = self.table_of(map.va + offset)?;
            // Accessed and dirty are set, so that no walk writes the entry.
            let page = (map.gpa + offset) | PRESENT | WRITABLE | ACCESSED | DIRTY;
            self.write(table, (map.va + offset) >> shift(0), page)?;
        }
        Ok(())
    }

    /// Returns the last table of the walk to `va`, and makes missing tables.
    fn table_of(&mut self, va: u64) -> Result<u64, KvmError> {
        let mut table = self.root;
        for level in (1..LEVELS).rev() {
            let index = va >> shift(level);
            let entry = self.read(table, index)?;
            table = if entry != 0 {
                entry & ADDRESS
            } else {
                let new = self.next;
                if new >= self.end {
                    return Err(lost(va));
                }
                self.next += PAGE;
                self.write(table, index, new | PRESENT | WRITABLE | ACCESSED)?;
                new
            };
        }
        Ok(table)
    }

    fn read(&self, table: u64, index: u64) -> Result<u64, KvmError> {
        Ok(self.memory.word(self.offset(table, index)).ok_or_else(|| lost(table))?.load(Ordering::Relaxed))
    }

    fn write(&self, table: u64, index: u64, entry: u64) -> Result<(), KvmError> {
        self.memory.word(self.offset(table, index)).ok_or_else(|| lost(table))?.store(entry, Ordering::Relaxed);
        Ok(())
    }

    fn offset(&self, table: u64, index: u64) -> u64 {
        table - self.base + index % 512 * 8
    }
}

fn lost(address: u64) -> KvmError {
    KvmError::Nowhere(format!("no room was reserved for a guest table at {address:#x}; please report this"))
}

/// Returns the first bit of a virtual address that indexes a table of `level`, counted from the last level up.
const fn shift(level: u32) -> u32 {
    12 + 9 * level
}

const PAGE: u64 = 4096;
const LEVELS: u32 = 4;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The bits of an address in an entry.
const ADDRESS: u64 = (1 << 52) - PAGE;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Backing;
    use crate::system::System;

    const BASE: u64 = 0x4000_0000;
    const REGION: u64 = 0xc000_0000;

    const fn map(va: u64, gpa: u64, size: u64) -> Map {
        Map { va, gpa, size, device: false }
    }

    /// Walks as hardware does, written from the manual: bits 47 to 39, 38 to 30, 29 to 21, 20 to 12.
    fn walk(memory: &Mapping, root: u64, va: u64) -> Option<u64> {
        let mut table = root;
        for first in [39, 30, 21, 12] {
            let entry = memory.word(table - BASE + (va >> first & 0x1ff) * 8)?.load(Ordering::Relaxed);
            table = (entry & 1 != 0).then_some(entry & 0x000f_ffff_ffff_f000)?;
        }
        Some(table | va & 0xfff)
    }

    #[test]
    fn what_is_mapped_is_found_and_nothing_else_is() {
        let maps = [map(BASE, BASE, 2 * PAGE), map(REGION, 0x8_0000_0000, 700 * PAGE)];
        let size = Shape.tables(&maps).unwrap();
        let memory = Mapping::new(size, PAGE, Backing::Anonymous, &System::this()).unwrap();
        let root = Shape.build(&memory, BASE, BASE..BASE + size, &maps).unwrap();
        assert_eq!(walk(&memory, root, BASE + PAGE + 8), Some(BASE + PAGE + 8));
        for page in [0, 1, 511, 512, 699] {
            assert_eq!(walk(&memory, root, REGION + page * PAGE), Some(0x8_0000_0000 + page * PAGE));
        }
        assert_eq!(walk(&memory, root, REGION + 700 * PAGE), None);
        assert_eq!(walk(&memory, root, BASE - 1), None);

        let memory = Mapping::new(size, PAGE, Backing::Anonymous, &System::this()).unwrap();
        let less = Shape.build(&memory, BASE, BASE..BASE + PAGE, &maps);
        assert!(matches!(less, Err(KvmError::Nowhere(_))), "{less:?}");
    }

    #[test]
    fn tables_are_counted() {
        // A root, a table for 512 GiB, one for 1 GiB, and 512 for 2 MiB.
        assert_eq!(Shape.tables(&[map(REGION, 0, 1 << 30)]), Ok((1 + 1 + 1 + 512) * PAGE));
    }
}
