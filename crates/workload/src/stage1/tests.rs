// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests against tables written out by hand, and of any range against a minimal table walk.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::mode::{MODES, Mode};

/// `left` pages from the IPA `next` on.
struct Ram {
    next: u64,
    left: u64,
    words: BTreeMap<u64, u64>,
    taken: u64,
}

impl TableMemory for Ram {
    type Error = Infallible;

    fn take(&mut self, size: u64) -> Result<Option<u64>, Infallible> {
        if self.left == 0 {
            return Ok(None);
        }
        let page = self.next;
        (self.next, self.left, self.taken) = (page + size, self.left - 1, self.taken + 1);
        Ok(Some(page))
    }

    fn read(&mut self, ipa: u64) -> Result<u64, Infallible> {
        Ok(self.words.get(&ipa).copied().unwrap_or(0))
    }

    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), Infallible> {
        self.words.insert(ipa, entry);
        Ok(())
    }
}

const ROOT: u64 = 0x40_0000;

fn ram(left: u64) -> Ram {
    Ram { next: ROOT, left, words: BTreeMap::new(), taken: 0 }
}

fn mode(name: &str) -> Mode {
    Mode::find(name).unwrap()
}

fn layout(name: &str, leaves: Leaves) -> Layout {
    Layout::new(&mode(name), 48, leaves).unwrap()
}

/// Walks the tables to `va`, using only the mode's numbers. Returns the output address and the size of the leaf.
fn walk(mode: &Mode, words: &BTreeMap<u64, u64>, va: u64) -> Option<(u64, u64)> {
    let page = mode.granule.shift();
    let mut table = ROOT;
    let mut below = mode.va_bits;
    loop {
        // Address bits below this level's index: the indices of the levels below, and the page offset.
        below = page + (below - page).div_ceil(page - 3).saturating_sub(1) * (page - 3);
        let entry = words.get(&(table + (va >> below & ((1 << (page - 3)) - 1)) * 8)).copied().unwrap_or(0);
        let address = entry & 0xffff_ffff_f000;
        match entry & 3 {
            0b11 if below > page => table = address,
            0b11 | 0b01 => return Some((address + va % (1 << below), 1 << below)),
            _ => return None,
        }
    }
}

#[test]
fn pages_spelled_out() {
    // The indices of VA 0x12_3456_0000 in each table, root first.
    for (name, indices) in [
        ("p40v48-4k", &[0, 72, 418, 352][..]),
        ("p40v48-16k", &[0, 1, 282, 344]),
        ("p36v47-16k", &[1, 282, 344]),
        ("p40v48-64k", &[0, 145, 5206]),
    ] {
        let (mode, mut ram) = (mode(name), ram(4));
        let stage1 = Stage1::new(layout(name, Leaves::Pages), &mut ram).unwrap();
        let size = mode.granule.size();
        stage1.map(&mut ram, 0x12_3456_0000, 0x8_0000_0000, size, Memory::Normal).unwrap();
        let mut expected = BTreeMap::new();
        for (number, index) in (0..).zip(indices) {
            let last = number + 1 == indices.len() as u64;
            let entry = if last { 0x0040_0008_0000_0000 | 0x707 } else { (ROOT + (number + 1) * size) | 0b11 };
            expected.insert(ROOT + number * size + index * 8, entry);
        }
        assert_eq!(ram.words, expected, "{name}");
        assert_eq!(ram.taken, indices.len() as u64);
    }
}

#[test]
fn devices_are_not_executed_and_not_cached() {
    let mut ram = ram(4);
    let stage1 = Stage1::new(layout("p40v48-4k", Leaves::Pages), &mut ram).unwrap();
    stage1.map(&mut ram, 0, 0x900_0000, 4096, Memory::Device).unwrap();
    assert_eq!(ram.words.values().max(), Some(&(0x0060_0000_0900_0000 | 0x403)));
}

#[test]
fn registers_spelled_out() {
    for (name, tcr) in [
        ("p40v48-4k", 0x2_b590_3510),
        ("p36v48-16k", 0x1_7590_b510),
        ("p48v48-64k", 0x5_f590_7510),
        ("p36v47-16k", 0x1_7591_b511),
        ("pxxv48-4k", 0x5_b590_3510),
    ] {
        let stage1 = Stage1::new(layout(name, Leaves::Pages), &mut ram(1)).unwrap();
        let expected = Registers { sctlr: 0x30d0_180d, tcr, ttbr0: ROOT, mair: 0xff04 };
        assert_eq!(stage1.registers(), expected, "{name}: {:#x}", stage1.registers().tcr);
    }
    let of = |bits| Layout::new(&mode("pxxv48-4k"), bits, Leaves::Pages).unwrap();
    let ips = [32, 36, 39, 40, 42, 44, 48, 52].map(|bits| (of(bits).tcr() >> 32, of(bits).pa_bits()));
    assert_eq!(ips, [(0, 32), (1, 36), (2, 39), (2, 40), (3, 42), (4, 44), (5, 48), (5, 48)]);
}

#[test]
fn modes_that_are_refused() {
    let mut refused = std::vec::Vec::new();
    for mode in MODES {
        match Layout::new(&mode, 40, Leaves::Pages) {
            Ok(layout) => assert!(layout.pa_bits() <= 40),
            Err(error) => refused.push((mode.number, core::mem::discriminant(&error))),
        }
    }
    let kind = |error| core::mem::discriminant(&error);
    let mode = MODES[0];
    let wide = kind(Unsupported::PhysicalAddresses { mode });
    let more = kind(Unsupported::TooWide { mode, pa_bits: 0, ipa_bits: 0 });
    let other = kind(Unsupported::VirtualAddresses { mode });
    let expected = [(0, wide), (1, wide), (2, wide), (3, more), (4, more), (5, more), (10, other), (11, other)];
    assert_eq!(refused, expected);
    let text = Layout::new(&MODES[3], 40, Leaves::Pages).unwrap_err().to_string();
    assert_eq!(
        text,
        "p48v48-4k: needs 48 bits of guest physical address; the limit is 40; use a mode with fewer, or pxx"
    );
}

#[test]
fn ranges_that_are_refused() {
    for (name, page) in [("p36v48-4k", 0x1000), ("p36v47-16k", 0x4000), ("p36v48-64k", 0x1_0000)] {
        let bits = mode(name).va_bits;
        let (layout, end, ipa_end) = (layout(name, Leaves::Largest), 1 << bits, 1 << 36);
        let mut memory = ram(9);
        let stage1 = Stage1::new(layout, &mut memory).unwrap();
        let mut map = |va, ipa, size| stage1.map(&mut memory, va, ipa, size, Memory::Normal);
        let misaligned = |va, ipa, size| Err(Error::Range(RangeError::Misaligned { va, ipa, size, granule: page }));
        assert_eq!(map(page / 2, 0, page), misaligned(page / 2, 0, page));
        assert_eq!(map(0, page / 2, page), misaligned(0, page / 2, page));
        assert_eq!(map(0, 0, page / 2), misaligned(0, 0, page / 2));
        for (va, size) in [(end, page), (end - page, 2 * page), (!0 << 16, page), (page, !0 << 16)] {
            assert_eq!(map(va, 0, size), Err(Error::Range(RangeError::BeyondVa { va, size, bits })));
        }
        let beyond = RangeError::BeyondPa { ipa: ipa_end - page, size: 2 * page, bits: 36 };
        assert_eq!(map(0, ipa_end - page, 2 * page), Err(Error::Range(beyond)));
        assert_eq!(map(end - page, ipa_end - page, page), Ok(()));
        assert_eq!(map(end - page, 0, page), Err(Error::Mapped { va: end - page }));
        assert_eq!(layout.tables(0, ipa_end, page), Err(RangeError::BeyondPa { ipa: ipa_end, size: page, bits: 36 }));
    }
}

#[test]
fn a_block_is_not_mapped_twice() {
    let mut ram = ram(9);
    let stage1 = Stage1::new(layout("p40v48-64k", Leaves::Largest), &mut ram).unwrap();
    let size = 512 << 20;
    stage1.map(&mut ram, size, 0, size, Memory::Normal).unwrap();
    assert_eq!(ram.taken, 2, "a block of 512 MiB");
    for (va, size) in [(size, size), (size + 0x1_0000, 0x1_0000)] {
        assert_eq!(stage1.map(&mut ram, va, 0, size, Memory::Normal), Err(Error::Mapped { va }));
    }
}

#[test]
fn pages_for_tables_that_are_none() {
    let layout = layout("p36v48-16k", Leaves::Pages);
    assert_eq!(Stage1::new(layout, &mut ram(0)), Err(Error::NoTable { va: 0 }));
    for next in [0x1000, 1 << 36] {
        let bad = Stage1::new(layout, &mut Ram { next, ..ram(1) });
        assert_eq!(bad, Err(Error::BadTable { ipa: next, size: 0x4000 }));
    }
    let mut short = ram(3);
    let stage1 = Stage1::new(layout, &mut short).unwrap();
    assert_eq!(stage1.map(&mut short, 0x4000, 0, 0x4000, Memory::Normal), Err(Error::NoTable { va: 0x4000 }));
    assert_eq!(short.words, BTreeMap::new(), "no table is linked with nothing in it");
}

/// The number of tables is known before any table exists.
#[test]
fn tables_that_a_size_takes() {
    const GIB: u64 = 1 << 30;
    for (name, pages, largest) in [
        // Levels 3, 2, 1 and 0.
        ("p40v48-4k", 20 * 512 + 20 + 1 + 1, 1 + 1),
        ("p40v48-16k", 20 * 32 + 1 + 1 + 1, 1 + 1 + 1),
        ("p36v47-16k", 20 * 32 + 1 + 1, 1 + 1),
        ("p40v48-64k", 20 * 2 + 1 + 1, 1 + 1),
    ] {
        let tables = |leaves| layout(name, leaves).tables(64 * GIB, 2 * GIB, 20 * GIB);
        assert_eq!((tables(Leaves::Pages), tables(Leaves::Largest)), (Ok(pages), Ok(largest)), "{name}");
        assert_eq!(layout(name, Leaves::Pages).tables(0, 0, 0), Ok(1));
    }
}

/// Any supported mode, and a range that fits into it.
fn any_range() -> impl Strategy<Value = (Mode, Leaves, [u64; 3])> {
    let modes: std::vec::Vec<_> =
        MODES.into_iter().filter(|mode| Layout::new(mode, 48, Leaves::Pages).is_ok()).collect();
    let mode = prop::sample::select(modes);
    (mode, any::<bool>(), any::<[u64; 2]>(), 0u32..8, 0u64..3000).prop_map(|(mode, large, [va, ipa], align, pages)| {
        let (page, pa_bits) = (mode.granule.size(), mode.pa_bits.unwrap_or(48));
        let size = pages * page;
        // Most ranges begin near the start of a block, and VA and IPA are often congruent.
        let shift = mode.granule.shift() + align.min(3) * (mode.granule.shift() - 3) / 3;
        let start = |address: u64, bits: u32| {
            let most = (1 << bits) - size;
            ((address % (1 << bits)) >> shift << shift).min(most)
        };
        let leaves = if large { Leaves::Largest } else { Leaves::Pages };
        (mode, leaves, [start(va, mode.va_bits), start(ipa, pa_bits), size])
    })
}

proptest! {
    #[test]
    fn every_page_leads_where_it_should_and_no_other((mode, leaves, [va, ipa, size]) in any_range()) {
        let mut ram = ram(u64::MAX);
        let layout = Layout::new(&mode, 48, leaves).unwrap();
        let stage1 = Stage1::new(layout, &mut ram).unwrap();
        stage1.map(&mut ram, va, ipa, size, Memory::Normal).unwrap();
        prop_assert_eq!(ram.taken, layout.tables(va, ipa, size).unwrap());
        let page = mode.granule.size();
        let mut at = 0;
        while at < size {
            let (found, leaf) = walk(&mode, &ram.words, va + at).expect("mapped");
            prop_assert_eq!(found, ipa + at);
            prop_assert!(leaf == page || leaves == Leaves::Largest);
            at += page;
        }
        prop_assert_eq!(walk(&mode, &ram.words, va.wrapping_sub(page) % (1 << mode.va_bits)).filter(|_| va > 0), None);
        prop_assert_eq!(walk(&mode, &ram.words, va + size).filter(|_| va + size < 1 << mode.va_bits), None);
    }
}
