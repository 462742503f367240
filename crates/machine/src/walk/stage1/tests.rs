// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stage-1 walk over tables written by hand, with races, stage-2 faults, and memory of pseudo-random words.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::AccessKind;
use super::*;

mod granules;

const HA: u64 = 1 << 39;
const HD: u64 = 1 << 40;
const AS: u64 = 1 << 36;
const A1: u64 = 1 << 22;
/// 39 bits in the lower half, 25 in the upper, 4 KiB, write-back and inner shareable walks, 40 bits of IPA.
const TCR: u64 = 2 << 32 | 0b10 << 30 | 0x35 << 24 | 39 << 16 | 0x35 << 8 | 25;
const LOWER: u64 = 0x1000;
/// 16 descriptors.
const UPPER: u64 = 0x2080;
const L2: u64 = 0x3000;
const L3: u64 = 0x4000;
const TABLE: u64 = 0b11;
const BLOCK: u64 = 0b01;
const PAGE: u64 = 0b11;
const DBM: u64 = DIRTY_BY_HARDWARE;
/// The guest's memory in the physical address space: PA = IPA + this.
const RAM: u64 = 0x8000_0000;
const ADDRESS: u64 = 3 << 30 | 5 << 21 | 7 << 12 | 0x234;

const LOAD: Access = Access::new(AccessKind::Read, El::El1);
const STORE: Access = Access::new(AccessKind::Write, El::El1);
const FETCH: Access = Access::new(AccessKind::Execute, El::El1);

/// The guest's memory, by PA.
#[derive(Default)]
struct Ram {
    words: BTreeMap<u64, u64>,
    /// The value that another vCPU writes just before the next update.
    race: Option<u64>,
    /// The IPA that stage 2 does not map.
    absent: Option<u64>,
    /// The IPA that stage 2 maps read-only.
    read_only: Option<u64>,
    updates: Vec<u64>,
}

impl GuestTables for Ram {
    fn translate(&mut self, ipa: u64, access: Access) -> Result<u64, Stage2Fault> {
        assert_ne!(access.purpose, Purpose::Own);
        if self.absent == Some(ipa) {
            return Err(Stage2Fault { kind: FaultKind::Translation, level: 3, ipa });
        }
        if self.read_only == Some(ipa) && access.purpose == Purpose::Stage1Update {
            return Err(Stage2Fault { kind: FaultKind::Permission, level: 3, ipa });
        }
        Ok(ipa + RAM)
    }

    fn stage1(&mut self, pa: u64) -> u64 {
        assert!(pa >= RAM && pa.is_multiple_of(8), "{pa:#x}");
        self.words.get(&pa).copied().unwrap_or(0)
    }

    fn update_stage1(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        if let Some(now) = self.race.take() {
            self.words.insert(pa, now);
        }
        let now = self.stage1(pa);
        if now != old {
            return Err(now);
        }
        self.words.insert(pa, new);
        self.updates.push(new);
        Ok(())
    }
}

fn registers(tcr: u64) -> Stage1Registers {
    // Attributes 0: write-back; 1: device; 2: non-cacheable; 3: write-through; 4: only outer non-cacheable.
    let mair = 0x4f_bb_44_04_ff;
    Stage1Registers { sctlr: 1, tcr: TCR | tcr, ttbr0: 0x105 << 48 | LOWER, ttbr1: 0x207 << 48 | UPPER, mair }
}

fn regime(tcr: u64) -> Regime {
    Regime::new(&registers(tcr)).unwrap()
}

/// The IPA of the descriptor of `level` for `ADDRESS`.
fn entry(level: u8) -> u64 {
    [0, LOWER + 3 * 8, L2 + 5 * 8, L3 + 7 * 8][usize::from(level)]
}

/// Tables that lead to `leaf` at `level`.
fn ram(level: u8, leaf: u64) -> Ram {
    let mut ram = Ram::default();
    for (above, table) in [(1, L2), (2, L3)].into_iter().take(usize::from(level) - 1) {
        ram.words.insert(entry(above) + RAM, table | TABLE);
    }
    ram.words.insert(entry(level) + RAM, leaf);
    ram
}

#[test]
fn registers_that_are_refused() {
    let good = registers(0);
    assert!(Regime::new(&good).is_ok());
    assert!(Regime::new(&Stage1Registers::default()).is_ok(), "off");
    let tcr = |tcr| Stage1Registers { tcr, ..good };
    for bad in [
        tcr(TCR | 1 << 59),
        tcr(TCR | 1 << 37),
        tcr(TCR | 1 << 14),
        tcr(TCR | 1 << 30),
        tcr(TCR & !(0xf << 8)),
        tcr(TCR & !(0b11 << 28)),
        tcr(TCR & !0x3f | 15),
        tcr(TCR & !0x3f | 40),
        tcr(TCR | 7 << 32),
        Stage1Registers { sctlr: 1 | 1 << 19, ..good },
        Stage1Registers { sctlr: 1 | 1 << 25, ..good },
        Stage1Registers { ttbr0: LOWER | 0x800, ..good },
        Stage1Registers { ttbr1: UPPER | 0x40, ..good },
    ] {
        assert!(Regime::new(&bad).is_err(), "{bad:x?}");
    }
    let off = Stage1Registers { ttbr0: 0x123, ..tcr(TCR | 1 << 7 | 1 << 14) };
    assert!(Regime::new(&off).is_ok(), "EPD0: TTBR0 does not matter");
}

#[test]
fn leaves_of_every_level() {
    for (level, bits, ipa) in [(1, BLOCK, 9 << 30), (2, BLOCK, 0x60_0000), (3, PAGE, 0x9000)] {
        let raw = ipa | bits | ACCESSED;
        let leaf = regime(0).walk(ADDRESS, STORE, &mut ram(level, raw)).unwrap();
        assert_eq!(
            (leaf.va, leaf.ipa, leaf.size),
            (ADDRESS & !(Granule::Kib4.span(level) - 1), ipa, Granule::Kib4.span(level))
        );
        let descriptor = Descriptor1 { level, ipa: entry(level), pa: entry(level) + RAM, raw };
        assert_eq!(leaf.descriptor, Some(descriptor));
        let way: Vec<_> = leaf.tables.iter().map(|table| (table.level, table.ipa, table.pa, table.raw)).collect();
        let expected = [(1, entry(1), entry(1) + RAM, L2 | TABLE), (2, entry(2), entry(2) + RAM, L3 | TABLE)];
        assert_eq!(way, expected[..usize::from(level) - 1]);
    }
}

#[test]
fn both_halves_and_nothing_between() {
    let mut ram = ram(1, 9 << 30 | BLOCK | ACCESSED);
    // 25 bits take one table of level 2, whose last descriptor is for the last 2 MiB.
    ram.words.insert(UPPER + 15 * 8 + RAM, 0x40_0000 | BLOCK | ACCESSED);
    let both = regime(0);
    let leaf = both.walk(!0x7, LOAD, &mut ram).unwrap();
    assert_eq!((leaf.va, leaf.ipa, leaf.size), (!0x1f_ffff, 0x40_0000, 2 << 20));
    let nothing = Err(Fault::Stage1(FaultKind::Translation, 0));
    for va in [1 << 39, 1 << 48, 1 << 56 | ADDRESS, !0 << 26, !(1 << 60), 1 << 63] {
        assert_eq!(both.walk(va, LOAD, &mut ram), nothing, "{va:#x}");
    }
    let off = regime(1 << 7);
    assert_eq!(off.walk(ADDRESS, LOAD, &mut ram), nothing, "EPD0");
    assert!(off.walk(!0x7, LOAD, &mut ram).is_ok());
}

#[test]
fn faults_of_the_walk() {
    use FaultKind::{AccessFlag, AddressSize, Permission, Translation};
    for (level, raw, kind) in [
        (1, 0, Translation),
        (2, !1, Translation),
        (3, BLOCK | ACCESSED, Translation),
        (1, 1 << 40 | TABLE, AddressSize),
        (3, 1 << 40 | PAGE, AddressSize),
        (2, BLOCK | READ_ONLY, AccessFlag),
        (3, PAGE | ACCESSED | READ_ONLY, Permission),
    ] {
        let mut ram = ram(level, raw);
        assert_eq!(regime(0).walk(ADDRESS, STORE, &mut ram), Err(Fault::Stage1(kind, level)), "{raw:#x}");
        assert_eq!(ram.updates, []);
    }
    let wide = Regime::new(&Stage1Registers { ttbr0: 1 << 40, ..registers(0) }).unwrap();
    assert_eq!(wide.walk(0, LOAD, &mut Ram::default()), Err(Fault::Stage1(AddressSize, 0)));
    let hierarchical = regime(0).walk(ADDRESS, LOAD, &mut ram(1, L2 | TABLE | 1 << 59));
    assert!(matches!(hierarchical, Err(Fault::Unmodelled(_))));
}

#[test]
fn what_is_allowed() {
    let el0 = |access: Access| Access { el: El::El0, ..access };
    // For AP[2:1], then PXN and UXN: loads, stores and fetches of EL1, then of EL0.
    for (raw, el1, user) in [
        (0, [true, true, true], [false, false, true]),
        (EL0, [true, true, false], [true, true, true]),
        (READ_ONLY, [true, false, true], [false, false, true]),
        (READ_ONLY | EL0, [true, false, true], [true, false, true]),
        (READ_ONLY | EL0 | EL1_EXECUTE_NEVER, [true, false, false], [true, false, true]),
        (READ_ONLY | EL0 | EL0_EXECUTE_NEVER, [true, false, true], [true, false, false]),
    ] {
        let seen = [LOAD, STORE, FETCH].map(|access| allows(raw, access));
        let seen_by_user = [LOAD, STORE, FETCH].map(|access| allows(raw, el0(access)));
        assert_eq!((seen, seen_by_user), (el1, user), "{raw:#x}");
    }
}

#[test]
fn hardware_updates() {
    use FaultKind::{AccessFlag, Permission};
    for (tcr, raw, access, expected) in [
        (0, 0, LOAD, Err(AccessFlag)),
        (HA, 0, LOAD, Ok(ACCESSED)),
        (HA, READ_ONLY, STORE, Err(Permission)),
        (HA, READ_ONLY | DBM, STORE, Err(Permission)),
        (HA | HD, READ_ONLY | DBM, STORE, Ok(ACCESSED | DBM)),
        (HA | HD, READ_ONLY | DBM, LOAD, Ok(ACCESSED | READ_ONLY | DBM)),
        (HA | HD, READ_ONLY | DBM, FETCH, Ok(ACCESSED | READ_ONLY | DBM)),
        // EL1 does not execute what EL0 may make writable.
        (HA | HD, READ_ONLY | DBM | EL0, FETCH, Err(Permission)),
        (HD, ACCESSED | READ_ONLY | DBM, STORE, Err(Permission)),
    ] {
        let mut ram = ram(3, raw | PAGE);
        let walked = regime(tcr).walk(ADDRESS, access, &mut ram);
        let seen = walked.map(|leaf| leaf.descriptor.unwrap().raw);
        let expected = expected.map(|raw| raw | PAGE).map_err(|kind| Fault::Stage1(kind, 3));
        assert_eq!(seen, expected, "{tcr:#x} {raw:#x} {access:?}");
        assert_eq!(ram.words[&(entry(3) + RAM)], expected.unwrap_or(raw | PAGE));
    }
}

#[test]
fn a_cached_leaf_is_asked_again() {
    let regime = regime(HA | HD);
    let leaf = regime.walk(ADDRESS, LOAD, &mut ram(3, PAGE | READ_ONLY | DBM)).unwrap();
    assert_eq!(regime.grant(&leaf, LOAD), Ok(Some(leaf.descriptor.unwrap().raw)));
    assert_eq!(regime.grant(&leaf, STORE), Ok(Some(PAGE | ACCESSED | DBM)));
    assert_eq!(regime.grant(&leaf, Access { el: El::El0, ..LOAD }), Err(FaultKind::Permission));
}

#[test]
fn faults_of_stage_2() {
    let walk = STORE.with(Purpose::Stage1Walk);
    for level in 1..=3 {
        let ipa = entry(level);
        let mut absent = Ram { absent: Some(ipa), ..ram(3, PAGE) };
        let fault = Stage2Fault { kind: FaultKind::Translation, level: 3, ipa };
        assert_eq!(regime(HA).walk(ADDRESS, STORE, &mut absent), Err(Fault::Stage2(fault, walk)));
    }
    let ipa = entry(3);
    let mut fixed = Ram { read_only: Some(ipa), ..ram(3, PAGE) };
    let fault = Stage2Fault { kind: FaultKind::Permission, level: 3, ipa };
    let update = LOAD.with(Purpose::Stage1Update);
    assert_eq!(regime(HA).walk(ADDRESS, LOAD, &mut fixed), Err(Fault::Stage2(fault, update)));
    assert_eq!(fixed.updates, []);
    let mut fixed = Ram { read_only: Some(ipa), ..ram(3, PAGE | ACCESSED) };
    assert!(regime(HA).walk(ADDRESS, STORE, &mut fixed).is_ok(), "nothing to update");
}

#[test]
fn an_entry_that_changes_meanwhile_is_walked_anew() {
    let raw = PAGE | READ_ONLY | DBM;
    let regime = regime(HA | HD);
    let mut faster = Ram { race: Some(PAGE | DBM | ACCESSED), ..ram(3, raw) };
    assert_eq!(regime.walk(ADDRESS, STORE, &mut faster).unwrap().descriptor.unwrap().raw, PAGE | DBM | ACCESSED);
    assert_eq!(faster.updates, []);
    let mut gone = Ram { race: Some(0), ..ram(3, raw) };
    assert_eq!(regime.walk(ADDRESS, STORE, &mut gone), Err(Fault::Stage1(FaultKind::Translation, 3)));
    let mut split = Ram { race: Some(L3 | TABLE), ..ram(2, BLOCK) };
    split.words.insert(entry(3) + RAM, raw);
    let leaf = regime.walk(ADDRESS, LOAD, &mut split).unwrap();
    assert_eq!((leaf.size, leaf.tables.len()), (4096, 2));
}

#[test]
fn address_spaces() {
    for (tcr, asid) in [(0, 0x05), (AS, 0x105), (A1, 0x07), (AS | A1, 0x207)] {
        for (bits, global) in [(0, true), (NOT_GLOBAL, false)] {
            let leaf = regime(tcr).walk(ADDRESS, LOAD, &mut ram(3, PAGE | ACCESSED | bits)).unwrap();
            assert_eq!((leaf.asid, leaf.global), (asid, global), "{tcr:#x}");
        }
    }
}

#[test]
fn memory_types() {
    for (index, cacheable) in [(0, true), (1, false), (2, false), (3, true), (4, false), (5, false)] {
        let leaf = regime(0).walk(ADDRESS, LOAD, &mut ram(3, PAGE | ACCESSED | index << 2)).unwrap();
        assert_eq!(leaf.cacheable, cacheable, "attributes {index}");
    }
}

#[test]
fn without_the_mmu_an_address_stays_what_it_is() {
    let off = Regime::new(&Stage1Registers { sctlr: 0, ..registers(0) }).unwrap();
    let leaf = off.walk(0x4020_1234, FETCH, &mut Ram::default()).unwrap();
    assert_eq!((leaf.va, leaf.ipa, leaf.size), (0x4020_1000, 0x4020_1000, 4096));
    assert_eq!((leaf.descriptor, leaf.cacheable, leaf.global), (None, false, true));
    assert_eq!(off.grant(&leaf, STORE), Ok(None));
    let wide = off.walk(1 << 48, LOAD, &mut Ram::default());
    assert_eq!(wide, Err(Fault::Stage1(FaultKind::AddressSize, 0)));
}

/// Memory of pseudo-random words.
struct Noise(u64, BTreeMap<u64, u64>);

impl GuestTables for Noise {
    fn translate(&mut self, ipa: u64, _: Access) -> Result<u64, Stage2Fault> {
        assert_eq!(ipa >> 40, 0, "{ipa:#x} is wider than IPS");
        Ok(ipa + RAM)
    }

    fn stage1(&mut self, pa: u64) -> u64 {
        let mut word = (self.0 ^ pa).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^= word >> 29;
        // Most addresses are small, and most words valid: otherwise walks end at once.
        *self.1.entry(pa).or_insert(word.wrapping_mul(0xbf58_476d_1ce4_e5b9) & !(0x1ff << 39 | 0xf << 59) | 1)
    }

    fn update_stage1(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        assert_eq!(self.1.insert(pa, new), Some(old));
        assert_eq!((old ^ new) & !(ACCESSED | READ_ONLY), 0, "{old:#x} became {new:#x}");
        Ok(())
    }
}

proptest! {
    #[test]
    fn registers_never_panic(sctlr: u64, tcr: u64, low in 0u64..1 << 43, ttbr0: u64, ttbr1: u64) {
        let _ = Regime::new(&Stage1Registers { sctlr, tcr, ttbr0, ttbr1, mair: 0 });
        let tcr = low & !(3 << 37 | 1 << 35 | 1 << 6 | 0xff << 24 | 0xff << 8) | 0x35 << 8 | 0xb5 << 24;
        let _ = Regime::new(&Stage1Registers { sctlr: 1, tcr, ttbr0: 0, ttbr1: 0, mair: 0 });
    }

    #[test]
    fn a_walk_of_anything_ends_well(seed: u64, va in 0u64..1 << 39, flags in 0u64..4, kind in 0usize..3, el0: bool) {
        let kind = [AccessKind::Read, AccessKind::Write, AccessKind::Execute][kind];
        let access = Access::new(kind, if el0 { El::El0 } else { El::El1 });
        let mut noise = Noise(seed, BTreeMap::new());
        let regime = regime(flags << 39);
        if let Ok(leaf) = regime.walk(va, access, &mut noise) {
            let descriptor = leaf.descriptor.unwrap();
            prop_assert_eq!(noise.1[&descriptor.pa], descriptor.raw);
            prop_assert_eq!(regime.grant(&leaf, access), Ok(Some(descriptor.raw)));
            prop_assert!((leaf.va..leaf.va + leaf.size).contains(&va) && leaf.ipa.is_multiple_of(leaf.size));
            prop_assert_eq!(leaf.tables.len(), usize::from(descriptor.level) - 1);
            // A second walk has nothing to update.
            let count = noise.1.len();
            prop_assert_eq!(regime.walk(va, access, &mut noise), Ok(leaf));
            prop_assert_eq!(noise.1.len(), count);
        }
    }
}
