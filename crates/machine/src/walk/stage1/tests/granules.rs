// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walk with each granule: over tables written by hand, and over the tables of each guest mode.

use std::convert::Infallible;

use twofold_workload::mode::{MODES, Mode};
use twofold_workload::stage1::{self as built, Layout, Leaves, Memory, Stage1, TableMemory};

use super::*;

/// The walk of `VA` with one granule: tables for 48 bits, 1 MiB apart, the root first.
struct Tables48 {
    granule: Granule,
    /// The granule's value in TG0.
    tg0: u64,
    /// The first level, and the index of `VA` at each level from there on.
    first: u8,
    indices: &'static [u64],
}

const VA: u64 = 0x12_3456_7890;
const ALL: [Tables48; 3] = [
    Tables48 { granule: Granule::Kib4, tg0: 0b00, first: 0, indices: &[0, 72, 418, 359] },
    Tables48 { granule: Granule::Kib16, tg0: 0b10, first: 0, indices: &[0, 1, 282, 345] },
    Tables48 { granule: Granule::Kib64, tg0: 0b01, first: 1, indices: &[0, 145, 5206] },
];
/// 48 bits in the lower half and none in the upper, write-back and inner shareable walks, 40 bits of IPA.
const LOWER_48: u64 = 2 << 32 | 1 << 23 | 0x35 << 8 | 16;
const ROOT: u64 = 0x1_0000;

impl Tables48 {
    fn regime(&self, tcr: u64) -> Regime {
        let tcr = LOWER_48 | self.tg0 << 14 | tcr;
        Regime::new(&Stage1Registers { sctlr: 1, tcr, ttbr0: ROOT, ttbr1: 0, mair: 0xff }).unwrap()
    }

    fn levels(&self) -> impl Iterator<Item = u8> {
        self.first..4
    }

    /// The IPA of the table of `level`, and of the descriptor in it.
    fn table(&self, level: u8) -> u64 {
        ROOT + (u64::from(level - self.first) << 20)
    }

    fn entry(&self, level: u8) -> u64 {
        self.table(level) + self.indices[usize::from(level - self.first)] * 8
    }

    /// Tables that lead to `raw` at `level`.
    fn ram(&self, level: u8, raw: u64) -> Ram {
        let mut ram = Ram::default();
        for above in self.first..level {
            ram.words.insert(self.entry(above) + RAM, self.table(above + 1) | TABLE);
        }
        ram.words.insert(self.entry(level) + RAM, raw);
        ram
    }
}

#[test]
fn leaves_of_each_granule() {
    for (tables, leaves) in ALL.into_iter().zip([
        &[(1, BLOCK, 1 << 30), (2, BLOCK, 2 << 20), (3, PAGE, 4 << 10)][..],
        &[(2, BLOCK, 32 << 20), (3, PAGE, 16 << 10)],
        &[(2, BLOCK, 512 << 20), (3, PAGE, 64 << 10)],
    ]) {
        for &(level, shape, size) in leaves {
            // The bits below the block size are not part of the address.
            let (ipa, low) = (3 * size, (size / 2) & 0xffff_f000);
            let raw = ipa | low | shape | ACCESSED;
            let leaf = tables.regime(0).walk(VA, STORE, &mut tables.ram(level, raw)).unwrap();
            assert_eq!((leaf.va, leaf.ipa, leaf.size), (VA & !(size - 1), ipa, size), "level {level}");
            let at = tables.entry(level);
            assert_eq!(leaf.descriptor, Some(Descriptor1 { level, ipa: at, pa: at + RAM, raw }));
            let way: Vec<_> = leaf.tables.iter().map(|table| (table.level, table.ipa)).collect();
            let expected: Vec<_> = (tables.first..level).map(|level| (level, tables.entry(level))).collect();
            assert_eq!(way, expected);
        }
    }
}

#[test]
fn faults_at_each_level_of_each_granule() {
    use FaultKind::{AccessFlag, AddressSize, Permission, Translation};
    for tables in ALL {
        for level in tables.levels() {
            let has_blocks = level == 2 || level == 1 && tables.granule == Granule::Kib4;
            let leaf = if level == 3 { PAGE } else { BLOCK };
            let by_leaf = |kind| if level == 3 || has_blocks { kind } else { Translation };
            for (raw, kind) in [
                (0, Translation),
                (!1, Translation),
                (1 << 40 | 0b11, AddressSize),
                (1 << 47 | 0b11, AddressSize),
                (1 << 40 | leaf | ACCESSED, by_leaf(AddressSize)),
                (leaf, by_leaf(AccessFlag)),
                (leaf | ACCESSED | READ_ONLY, by_leaf(Permission)),
            ] {
                let mut ram = tables.ram(level, raw);
                let walked = tables.regime(0).walk(VA, STORE, &mut ram);
                assert_eq!(walked, Err(Fault::Stage1(kind, level)), "{:?}: {raw:#x}", tables.granule);
                assert_eq!(ram.updates, []);
            }
            // A stage-2 fault during the walk.
            let ipa = tables.entry(level);
            let mut absent = Ram { absent: Some(ipa), ..tables.ram(3, PAGE | ACCESSED) };
            let fault = Stage2Fault { kind: Translation, level: 3, ipa };
            let walk = STORE.with(Purpose::Stage1Walk);
            assert_eq!(tables.regime(0).walk(VA, STORE, &mut absent), Err(Fault::Stage2(fault, walk)));
        }
        let beyond = tables.regime(0).walk(1 << 48 | VA, LOAD, &mut tables.ram(3, PAGE | ACCESSED));
        assert_eq!(beyond, Err(Fault::Stage1(Translation, 0)), "level 0, though 64 KiB granules have none");
    }
}

#[test]
fn address_bits_of_a_table_are_those_from_the_granule_on() {
    for tables in ALL {
        let page = tables.granule.span(3);
        for level in tables.first..3 {
            let mut ram = tables.ram(3, PAGE | ACCESSED);
            // All bits that are ignored or below the address, except the table's attributes, which are not modelled.
            let ignored = 0xff << 51 | (page - 1) & !0b11;
            *ram.words.get_mut(&(tables.entry(level) + RAM)).unwrap() |= ignored;
            assert!(tables.regime(0).walk(VA, LOAD, &mut ram).is_ok(), "{:?}, level {level}", tables.granule);
            // The lowest address bit leads to another table.
            *ram.words.get_mut(&(tables.entry(level) + RAM)).unwrap() ^= page;
            let elsewhere = Err(Fault::Stage1(FaultKind::Translation, level + 1));
            assert_eq!(tables.regime(0).walk(VA, LOAD, &mut ram), elsewhere);
        }
    }
}

#[test]
fn hardware_updates_leaves_of_each_granule() {
    for tables in ALL {
        for (level, shape) in [(2, BLOCK), (3, PAGE)] {
            let raw = shape | READ_ONLY | DBM;
            let regime = tables.regime(HA | HD);
            let mut ram = tables.ram(level, raw);
            let read = regime.walk(VA, LOAD, &mut ram).unwrap();
            assert_eq!(read.descriptor.unwrap().raw, raw | ACCESSED);
            let written = regime.walk(VA, STORE, &mut ram).unwrap();
            assert_eq!(written.descriptor.unwrap().raw, shape | DBM | ACCESSED);
            assert_eq!(ram.updates, [raw | ACCESSED, shape | DBM | ACCESSED]);
            assert_eq!(ram.words[&(tables.entry(level) + RAM)], shape | DBM | ACCESSED);
            let refused = tables.regime(HA).walk(VA, STORE, &mut tables.ram(level, raw));
            assert_eq!(refused, Err(Fault::Stage1(FaultKind::Permission, level)));
        }
    }
}

#[test]
fn granules_that_registers_name() {
    let good = registers(0);
    let with = |tg0, tg1| {
        let tcr = good.tcr & !(3 << 30 | 3 << 14) | tg1 << 30 | tg0 << 14;
        // Aligned for every granule.
        Regime::new(&Stage1Registers { tcr, ttbr0: 0x1_0000, ttbr1: 0x2_0000, ..good })
    };
    for (tg0, lower) in [Some(Granule::Kib4), Some(Granule::Kib64), Some(Granule::Kib16), None].into_iter().enumerate()
    {
        for (tg1, upper) in
            [None, Some(Granule::Kib16), Some(Granule::Kib4), Some(Granule::Kib64)].into_iter().enumerate()
        {
            let regime = with(tg0 as u64, tg1 as u64);
            let (Some(lower), Some(upper)) = (lower, upper) else {
                assert!(regime.is_err(), "TG0 {tg0}, TG1 {tg1}");
                continue;
            };
            let halves = regime.unwrap().tables.unwrap().halves.map(|half| half.unwrap().granule);
            assert_eq!(halves, [lower, upper]);
        }
    }
}

#[test]
fn a_root_is_aligned_to_its_size() {
    for (tables, size) in ALL.into_iter().zip([4096, 16, 512]) {
        let root = |ttbr0| {
            let tcr = LOWER_48 | tables.tg0 << 14;
            Regime::new(&Stage1Registers { sctlr: 1, tcr, ttbr0, ttbr1: 0, mair: 0 })
        };
        assert!(root(ROOT + size).is_ok() && root(ROOT + size / 2).is_err(), "{:?}", tables.granule);
    }
}

/// Tables of a guest mode, in memory with nothing else.
struct Own {
    ram: Ram,
    next: u64,
}

impl TableMemory for Own {
    type Error = Infallible;

    fn take(&mut self, size: u64) -> Result<Option<u64>, Infallible> {
        let page = self.next.next_multiple_of(size);
        self.next = page + size;
        Ok(Some(page))
    }

    fn read(&mut self, ipa: u64) -> Result<u64, Infallible> {
        Ok(self.ram.words.get(&(ipa + RAM)).copied().unwrap_or(0))
    }

    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), Infallible> {
        self.ram.words.insert(ipa + RAM, entry);
        Ok(())
    }
}

/// The modes that have tables, for a guest with `ipa_bits` bits of physical address.
fn modes(ipa_bits: u32, leaves: Leaves) -> impl Iterator<Item = (Mode, Layout)> {
    MODES.into_iter().filter_map(move |mode| Some((mode, Layout::new(&mode, ipa_bits, leaves).ok()?)))
}

#[test]
fn tables_of_each_mode_lead_where_they_should() {
    for leaves in [Leaves::Pages, Leaves::Largest] {
        let mut seen = 0;
        for (mode, layout) in modes(48, leaves) {
            let page = mode.granule.size();
            let block = page << (mode.granule.shift() - 3);
            let mut own = Own { ram: Ram::default(), next: 0x4000_0000 };
            let stage1 = Stage1::new(layout, &mut own).unwrap();
            // At the upper end of both address spaces: a block, and a page on either side of it.
            let (va, ipa) = ((1 << mode.va_bits) - 2 * block - page, (1 << layout.pa_bits()) - 2 * block - page);
            let size = block + 2 * page;
            stage1.map(&mut own, va, ipa, size, Memory::Normal).unwrap();
            stage1.map(&mut own, 0, 0x900_0000, page, Memory::Device).unwrap();
            let built::Registers { sctlr, tcr, ttbr0, mair } = stage1.registers();
            let regime = Regime::new(&Stage1Registers { sctlr, tcr, ttbr0, ttbr1: 0, mair }).unwrap();
            for (offset, blocks) in [(0, false), (page, true), (block, true), (block + page, false)] {
                let leaf = regime.walk(va + offset + 8, FETCH, &mut own.ram).unwrap();
                let expected = if blocks && leaves == Leaves::Largest { block } else { page };
                assert_eq!(leaf.size, expected, "{mode}, at {offset:#x}");
                assert_eq!(leaf.ipa + (va + offset - leaf.va), ipa + offset, "{mode}");
                assert!(leaf.cacheable && leaf.global);
                assert!(regime.walk(va + offset, STORE, &mut own.ram).is_ok());
                let el0 = Access { el: El::El0, ..LOAD };
                let refused = regime.walk(va + offset, el0, &mut own.ram);
                assert!(matches!(refused, Err(Fault::Stage1(FaultKind::Permission, _))));
            }
            for beyond in [va - 1, va + size, 1 << mode.va_bits] {
                let nothing = regime.walk(beyond, LOAD, &mut own.ram);
                assert!(matches!(nothing, Err(Fault::Stage1(FaultKind::Translation, _))), "{mode}: {nothing:?}");
            }
            let device = regime.walk(8, STORE, &mut own.ram).unwrap();
            assert_eq!((device.ipa, device.size, device.cacheable), (0x900_0000, page, false));
            assert_eq!(regime.walk(8, FETCH, &mut own.ram), Err(Fault::Stage1(FaultKind::Permission, 3)));
            assert_eq!(own.ram.updates, []);
            seen += 1;
        }
        assert_eq!(seen, 11, "all but those of 52 bits, and of 64");
    }
}
