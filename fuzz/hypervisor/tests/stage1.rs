// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the software walk of a guest's stage 1, for all granules, address sizes and output sizes. The tests build the
//! tables from the address bits that each level resolves.

use std::collections::HashMap;

use proptest::prelude::*;
use twofold_fuzz_hypervisor::stage1::{Stage1, Stop};

const MMU_ON: u64 = 1;
const BIG_ENDIAN: u64 = 1 << 25;
const TABLE: u64 = 0b11;
const PAGE: u64 = 0b11;
const BLOCK: u64 = 0b01;
/// Attributes that the walk ignores: a software bit, UXN, PXN, DBM, GP, nG, the access flag, AP, the attribute index.
const ATTRIBUTES: u64 = 1 << 60 | 3 << 53 | 3 << 50 | 1 << 11 | 1 << 10 | 3 << 6 | 5 << 2;
const TABLE_ATTRIBUTES: u64 = 0x1f << 59;
/// Fields of TCR_EL1 that the walk ignores: cacheability and shareability of both halves, A1, AS, HA, HD, HPD0 and
/// HPD1.
const TCR_ATTRIBUTES: u64 = 0x3f << 8 | 0x3f << 24 | 1 << 22 | 1 << 36 | 0xf << 39;

/// A translation regime.
#[derive(Clone, Copy, Debug)]
struct Regime {
    granule_bits: u32,
    va_bits: u32,
    upper: bool,
    /// Whether output addresses have 52 bits.
    wide: bool,
}

impl Regime {
    /// Returns the levels, from the initial level on: each with its lowest address bit and the number of its bits.
    fn levels(self) -> Vec<(i8, u32, u32)> {
        let stride = self.granule_bits - 3;
        let mut levels = Vec::new();
        let (mut level, mut low) = (3, self.granule_bits);
        while low < self.va_bits {
            levels.insert(0, (level, low, stride.min(self.va_bits - low)));
            (level, low) = (level - 1, low + stride);
        }
        levels
    }

    /// Makes an address in this half from any bits.
    fn va(self, bits: u64) -> u64 {
        let offset = bits & ((1 << self.va_bits) - 1);
        if self.upper { !0 << self.va_bits | offset } else { offset }
    }

    fn tcr(self) -> u64 {
        let size = 64 - u64::from(self.va_bits);
        let granule = match (self.granule_bits, self.upper) {
            (12, false) => 0b00 << 14,
            (14, false) => 0b10 << 14,
            (16, false) => 0b01 << 14,
            (12, true) => 0b10 << 30,
            (14, true) => 0b01 << 30,
            _ => 0b11 << 30,
        };
        let ips = if self.wide { 0b110 << 32 } else { 0b101 << 32 };
        // DS has no meaning with the 64 KiB granule.
        let ds = if self.granule_bits == 16 || self.wide { 1 << 59 } else { 0 };
        // The other half has a different size and granule, and is disabled.
        let (size, off) = if self.upper { (size << 16 | 20, 1 << 7) } else { (size | 20 << 16, 1 << 23) };
        let other = if self.upper { 0b01 << 14 } else { 0b11 << 30 };
        size | granule | other | off | ips | ds | TCR_ATTRIBUTES
    }

    fn ttbr(self, root: u64) -> u64 {
        // The register also has an ASID and CnP.
        let low = root & ((1 << 48) - 1);
        let high = if self.wide { root >> 48 << 2 } else { 0 };
        0xabcd << 48 | low | high | 1
    }

    /// Returns the descriptor bits of an address.
    fn descriptor(self, address: u64) -> u64 {
        match (self.wide, self.granule_bits) {
            (false, _) => address,
            (true, 16) => address & ((1 << 48) - 1) | address >> 48 << 12,
            (true, _) => address & ((1 << 50) - 1) | address >> 50 << 8,
        }
    }

    fn output_bits(self) -> u32 {
        if self.wide { 52 } else { 48 }
    }

    fn has_blocks(self, level: i8) -> bool {
        let lpa2 = self.wide && self.granule_bits != 16;
        match self.granule_bits {
            12 => level == 2 || level == 1 || level == 0 && lpa2,
            14 => level == 2 || level == 1 && lpa2,
            _ => level == 2 || level == 1,
        }
    }
}

/// Tables that translate one address by one leaf.
struct Tables {
    words: HashMap<u64, u64>,
    stage1: Stage1,
    /// The level and the address of each read of the walk.
    path: Vec<(i8, u64)>,
}

/// Makes tables at addresses derived from `seed`, with a leaf at level `leaf` that maps `output`.
fn tables(regime: Regime, va: u64, leaf: i8, output: u64, seed: u64) -> Tables {
    let mut random = seed | 1;
    let mut place = |size_bits: u32| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 8) & ((1 << regime.output_bits()) - 1) & !((1 << size_bits) - 1)
    };
    let (mut words, mut path) = (HashMap::new(), Vec::new());
    let levels = regime.levels();
    let first_size = (levels[0].2 + 3).max(6);
    let root = place(first_size);
    let mut table = root;
    for (level, low, bits) in levels {
        let at = table + (va >> low & ((1 << bits) - 1)) * 8;
        path.push((level, at));
        if level == leaf {
            let kind = if level == 3 { PAGE } else { BLOCK };
            words.insert(at, regime.descriptor(output & !((1 << low) - 1)) | kind | attributes(regime));
            break;
        }
        table = place(regime.granule_bits);
        words.insert(at, regime.descriptor(table) | TABLE | TABLE_ATTRIBUTES);
    }
    let mut ttbr = [!0; 2];
    ttbr[usize::from(regime.upper)] = regime.ttbr(root);
    Tables { words, stage1: Stage1 { sctlr: MMU_ON, tcr: regime.tcr(), ttbr }, path }
}

/// Bits 9:8 and 49:48 hold address bits with FEAT_LPA2, bits 15:12 with FEAT_LPA. Without the feature they are
/// attributes or are ignored.
fn attributes(regime: Regime) -> u64 {
    match (regime.granule_bits, regime.wide) {
        (16, true) => ATTRIBUTES | 3 << 8 | 3 << 48,
        (16, false) => ATTRIBUTES | 3 << 8 | 3 << 48 | 0xf << 12,
        (_, true) => ATTRIBUTES,
        (_, false) => ATTRIBUTES | 3 << 8 | 3 << 48,
    }
}

fn regimes() -> impl Strategy<Value = Regime> {
    let sizes = prop_oneof![Just(12_u32), Just(14), Just(16)];
    (sizes, any::<bool>(), any::<bool>()).prop_flat_map(|(granule_bits, upper, wide)| {
        let largest = if wide || granule_bits == 16 { 52 } else { 48 };
        (granule_bits + 1..=largest).prop_map(move |va_bits| Regime { granule_bits, va_bits, upper, wide })
    })
}

proptest! {
    #[test]
    fn an_address_is_found_by_each_kind_of_leaf(
        regime in regimes(), bits: u64, output: u64, seed: u64, big_endian: bool
    ) {
        let va = regime.va(bits);
        let output = output & ((1 << regime.output_bits()) - 1);
        for (leaf, low, _) in regime.levels() {
            if leaf < 3 && !regime.has_blocks(leaf) {
                continue;
            }
            let mut tables = tables(regime, va, leaf, output, seed);
            let mut path = Vec::new();
            if big_endian {
                tables.stage1.sctlr |= BIG_ENDIAN;
                tables.words.values_mut().for_each(|word| *word = word.swap_bytes());
            }
            let found = tables.stage1.walk(va, |at| {
                path.push(at);
                tables.words.get(&at).copied()
            });
            let offset = (1 << low) - 1;
            prop_assert_eq!(found, Ok(output & !offset | va & offset), "leaf of level {}", leaf);
            prop_assert_eq!(path, tables.path.iter().map(|(_, at)| *at).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_walk_that_is_stopped_says_at_which_level(regime in regimes(), bits: u64, seed: u64) {
        let va = regime.va(bits);
        let tables = tables(regime, va, 3, 0, seed);
        for (level, stop) in &tables.path {
            let unreadable = |at| (at != *stop).then(|| tables.words[&at]);
            prop_assert_eq!(tables.stage1.walk(va, unreadable), Err(Stop::Unreadable(*level)));
            let invalid = |at| Some(tables.words[&at] & if at == *stop { !1 } else { !0 });
            prop_assert_eq!(tables.stage1.walk(va, invalid), Err(Stop::Unmapped(*level)));
            // A block at a level that allows none; at level 3 the same bits are reserved.
            if *level == 3 || !regime.has_blocks(*level) {
                let block = |at| Some(tables.words[&at] & if at == *stop { !2 } else { !0 });
                prop_assert_eq!(tables.stage1.walk(va, block), Err(Stop::Unmapped(*level)));
            }
        }
    }

    #[test]
    fn whatever_the_registers_and_tables_hold_a_walk_ends(
        sctlr: u64, tcr: u64, ttbr: [u64; 2], va: u64, words: [u64; 5]
    ) {
        let mut words = words.into_iter();
        let end = Stage1 { sctlr, tcr, ttbr }.walk(va, |_| Some(words.next().expect("at most five reads")));
        if let Ok(ipa) = end {
            prop_assert!(ipa < 1 << 56);
        }
    }
}

/// 4 KiB pages, 39 bits in the lower half, the upper half disabled.
const PLAIN: Regime = Regime { granule_bits: 12, va_bits: 39, upper: false, wide: false };
const VA: u64 = 0x12_3456_7890;

fn walk(stage1: Stage1, tables: &Tables, va: u64) -> Result<u64, Stop> {
    stage1.walk(va, |at| tables.words.get(&at).copied())
}

#[test]
fn with_the_mmu_off_an_address_is_itself() {
    let off = Stage1 { sctlr: !MMU_ON, ..Stage1::default() };
    assert_eq!(off.walk(0xab00_1234_5678_9abc, |_| panic!("the walk must not read")), Ok(0x1234_5678_9abc));
}

#[test]
fn addresses_outside_both_halves_are_not_mapped() {
    let tables = tables(PLAIN, VA, 3, 0x8000_0000, 1);
    assert_eq!(walk(tables.stage1, &tables, VA), Ok(0x8000_0890));
    for va in [VA | 1 << 39, VA | 1 << 54, VA | 1 << 56, VA | 1 << 63, VA | !0 << 39] {
        assert_eq!(walk(tables.stage1, &tables, va), Err(Stop::Unmapped(0)), "{va:#x}");
    }
}

#[test]
fn a_half_of_an_impossible_size_is_not_walked() {
    let tables = tables(PLAIN, VA, 3, 0x8000_0000, 1);
    // 49 bits without FEAT_LPA2, 53 bits, and the size of one page.
    for size in [64 - 49, 64 - 53, 64 - 12] {
        let stage1 = Stage1 { tcr: tables.stage1.tcr & !0x3f | size, ..tables.stage1 };
        let unread = |_| panic!("the walk must not read with T0SZ {size}");
        assert_eq!(stage1.walk(0x890, unread), Err(Stop::Unmapped(0)));
    }
    const KIB_64: u64 = 0b01 << 14;
    let largest = Stage1 { sctlr: MMU_ON, tcr: KIB_64 | (64 - 52), ttbr: [0; 2] };
    assert_eq!(largest.walk(0x890, |_| None), Err(Stop::Unreadable(1)));
    let larger = Stage1 { tcr: KIB_64 | (64 - 53), ..largest };
    assert_eq!(larger.walk(0x890, |_| None), Err(Stop::Unmapped(0)));
}

#[test]
fn a_tag_is_no_part_of_an_address() {
    const TBI0: u64 = 1 << 37;
    const TBI1: u64 = 1 << 38;
    const MTX0: u64 = 1 << 60;
    const MTX1: u64 = 1 << 61;
    for upper in [false, true] {
        let regime = Regime { upper, ..PLAIN };
        let va = regime.va(VA);
        let tables = tables(regime, va, 3, 0x8000_0000, 1);
        let with = |bits: u64| Stage1 { tcr: tables.stage1.tcr | bits, ..tables.stage1 };
        let (tbi, other_tbi) = if upper { (TBI1, TBI0) } else { (TBI0, TBI1) };
        let (mtx, other_mtx) = if upper { (MTX1, MTX0) } else { (MTX0, MTX1) };
        let (top, low) = (va ^ 0x10 << 56, va ^ 0x0d << 56);
        for (bits, finds_top, finds_low) in [
            (0, false, false),
            (tbi, true, true),
            (mtx, false, true),
            (tbi | mtx, true, true),
            (other_tbi | other_mtx, false, false),
        ] {
            assert_eq!(walk(with(bits), &tables, top).is_ok(), finds_top, "upper {upper}, {bits:#x}");
            assert_eq!(walk(with(bits), &tables, low).is_ok(), finds_low, "upper {upper}, {bits:#x}");
        }
    }
}

#[test]
fn a_half_that_is_switched_off_is_not_walked() {
    for (upper, epd) in [(false, 1 << 7), (true, 1 << 23)] {
        let regime = Regime { upper, ..PLAIN };
        let va = regime.va(VA);
        let mut tables = tables(regime, va, 3, 0x8000_0000, 1);
        assert!(walk(tables.stage1, &tables, va).is_ok());
        tables.stage1.tcr |= epd;
        assert_eq!(walk(tables.stage1, &tables, va), Err(Stop::Unmapped(0)));
    }
}

/// Only SCTLR_EL1.EE sets the endianness of tables, not the bits beside it (E0E, UCI).
#[test]
fn tables_are_little_endian_whatever_el0s_data_are() {
    let mut tables = tables(PLAIN, VA, 3, 0x8000_0000, 1);
    tables.stage1.sctlr |= BIG_ENDIAN >> 1 | BIG_ENDIAN << 1;
    assert_eq!(walk(tables.stage1, &tables, VA), Ok(0x8000_0890));
}

/// If FEAT_LPA2 is not in use, TCR_EL1.IPS of 52 bits means 48 bits for the 4 KiB and 16 KiB granules.
#[test]
fn smaller_granules_have_48_bits_whatever_size_is_asked_for() {
    for granule_bits in [12, 14] {
        let regime = Regime { granule_bits, ..PLAIN };
        // The output has bits set at the positions that FEAT_LPA uses for address bits.
        let output = 0x8000_f000 & !((1 << granule_bits) - 1);
        let mut tables = tables(regime, VA, 3, output, 1);
        tables.stage1.tcr = tables.stage1.tcr & !(7 << 32) | 0b110 << 32;
        let offset = VA & ((1 << granule_bits) - 1);
        assert_eq!(walk(tables.stage1, &tables, VA), Ok(output | offset), "{granule_bits}");
    }
}
