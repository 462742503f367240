// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks of tables in plain memory.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{AccessKind, Purpose, span};
use super::*;

const ALL: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_execute_per_el(true)
    .with_common_not_private(true);
/// 40 bits of IPA from level 1 (two tables), 40 bits of PA, write-back and inner shareable walks.
const VTCR: u64 = 1 << 31 | 2 << 16 | 0b11 << 12 | 0b0101 << 8 | 1 << 6 | 24;
const HA: u64 = 1 << 21;
const HD: u64 = 1 << 22;
const ROOT: u64 = 0x8000_0000;
const L2: u64 = 0x8000_3000;
const L3: u64 = 0x8000_4000;
const TABLE: u64 = 0b11;
const BLOCK: u64 = 0b01;
const PAGE: u64 = 0b11;
const DBM: u64 = DIRTY_BY_HARDWARE;
const FAR_FRAME: u64 = 1 << 41;
/// In the second root table.
const ADDRESS: u64 = 513 << 30 | 5 << 21 | 7 << 12 | 0x234;

const LOAD: Access = Access::new(AccessKind::Read, El::El1);
const STORE: Access = Access::new(AccessKind::Write, El::El1);
const FETCH: Access = Access::new(AccessKind::Execute, El::El1);

#[derive(Default)]
struct Ram {
    words: BTreeMap<u64, u64>,
    /// The value that another CPU writes just before the next update.
    race: Option<u64>,
    updates: Vec<(u64, u64)>,
}

impl Entries for Ram {
    fn stage2(&mut self, pa: u64) -> u64 {
        assert!(pa.is_multiple_of(8));
        self.words.get(&pa).copied().unwrap_or(0)
    }

    fn update_stage2(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        if let Some(now) = self.race.take() {
            self.words.insert(pa, now);
        }
        let now = self.stage2(pa);
        if now != old {
            return Err(now);
        }
        self.words.insert(pa, new);
        self.updates.push((old, new));
        Ok(())
    }
}

fn regime(bits: u64) -> Regime {
    Regime::new(ROOT, VTCR | bits, &ALL).unwrap()
}

/// The address of the descriptor of `level` for `ADDRESS`.
fn entry(level: u8) -> u64 {
    [0, ROOT + 513 * 8, L2 + 5 * 8, L3 + 7 * 8][usize::from(level)]
}

/// Tables that lead to `leaf` at `level`.
fn ram(level: u8, leaf: u64) -> Ram {
    let mut ram = Ram::default();
    for (above, table) in [(1, L2), (2, L3)].into_iter().take(usize::from(level) - 1) {
        ram.words.insert(entry(above), table | TABLE);
    }
    ram.words.insert(entry(level), leaf);
    ram
}

#[test]
fn the_shapes_that_registers_give() {
    // (T0SZ, SL0, root level, bytes of the root)
    for (t0sz, sl0, level, size) in [
        (39, 0, 2, 16 * 8),
        (32, 0, 2, 4 * 4096),
        (30, 0, 2, 16 * 4096),
        (33, 1, 1, 16),
        (25, 1, 1, 4096),
        (21, 1, 1, 16 * 4096),
        (24, 2, 0, 16),
        (16, 2, 0, 4096),
    ] {
        let vtcr = VTCR & !0xff | sl0 << 6 | t0sz;
        let regime = Regime::new(5 << 48 | size | 1, vtcr, &ALL).unwrap();
        assert_eq!((regime.vmid, regime.root, regime.root_level), (5, size, level), "T0SZ {t0sz}");
        // The root is aligned to its size, and no more.
        assert!(Regime::new(size / 2, vtcr, &ALL).is_err(), "T0SZ {t0sz}");
    }
}

/// The other granules, and FEAT_LPA2 (Arm ARM DDI 0487K.a, D8.2.2). The root's own address has up to 52 bits.
#[test]
fn the_shapes_of_other_granules() {
    const LARGE: Features = ALL.with_pa_bits(52).with_granule_16k(true).with_lpa2_4k(true).with_lpa2_16k(true);
    const DS: u64 = 1 << 32;
    let (kib_16, kib_64) = (0b10 << 14, 0b01 << 14);
    // (TG0 and DS, T0SZ, SL0, root level, bytes of the root)
    for (granule, t0sz, sl0, level, size) in [
        (DS, 12, 2, 0, 16 * 4096),
        (kib_16, 32, 1, 2, 128 * 8),
        (kib_16, 16, 2, 1, 2 * 16384),
        (kib_16 | DS, 12, 3, 0, 32 * 8),
        (kib_16 | DS, 13, 2, 1, 16 * 16384),
        (kib_64, 32, 1, 2, 8 * 8),
        (kib_64, 18, 1, 2, 16 * 65536),
        (kib_64, 12, 2, 1, 1024 * 8),
    ] {
        let vtcr = VTCR & !(7 << 16 | 0xff) | 6 << 16 | granule | sl0 << 6 | t0sz;
        // PS of 52 bits needs a format that holds them.
        let vtcr = if granule == kib_16 { vtcr & !(7 << 16) | 5 << 16 } else { vtcr };
        let regime = Regime::new(size, vtcr, &LARGE).unwrap_or_else(|error| panic!("{granule:#x} {t0sz}: {error}"));
        assert_eq!((regime.root, regime.root_level), (size, level), "{granule:#x}, T0SZ {t0sz}");
        if size > 64 {
            assert!(Regime::new(size / 2, vtcr, &LARGE).is_err(), "{granule:#x}, T0SZ {t0sz}");
        }
        let high = Regime::new(size | 0xa << 2, vtcr, &LARGE).map(|regime| regime.root);
        let is_held = granule == kib_64 || granule & DS != 0;
        assert_eq!(high, if is_held { Ok(size | 0xa << 48) } else { high }, "{granule:#x}, T0SZ {t0sz}");
    }
}

#[test]
fn registers_that_are_refused() {
    let low = |t0sz: u64, sl0: u64| VTCR & !0xff | sl0 << 6 | t0sz;
    for (vttbr, vtcr, features) in [
        (ROOT, VTCR & !(1 << 31), ALL),
        (ROOT, VTCR | 3 << 14, ALL),
        (ROOT, VTCR | 2 << 14, ALL),
        (ROOT, VTCR & !0xff | 1 << 14 | 16, ALL.with_pa_bits(52)),
        (ROOT, VTCR & !0xff | 2 << 14 | 2 << 6 | 24, ALL.with_pa_bits(40).with_granule_16k(true)),
        (ROOT, low(24, 2), ALL.with_pa_bits(42)),
        (ROOT, VTCR & !(0b01 << 10), ALL),
        (ROOT, VTCR & !(0b01 << 12), ALL),
        (ROOT, VTCR | 1 << 20, ALL),
        (ROOT, VTCR | 1 << 25, ALL),
        (ROOT, VTCR | 1 << 32, ALL),
        (ROOT, VTCR | 0b110 << 16, ALL),
        (ROOT, low(15, 2), ALL),
        (ROOT, low(40, 0), ALL),
        (ROOT, low(24, 3), ALL),
        (ROOT, low(25, 2), ALL),
        (ROOT, low(20, 1), ALL),
        (ROOT, low(34, 1), ALL),
        (ROOT, low(29, 0), ALL),
        (ROOT, VTCR, ALL.with_pa_bits(39)),
        (ROOT, VTCR | 1 << 19, ALL.with_vmid_bits(8)),
        (ROOT, VTCR | HA, ALL.with_hardware_access_flag(false)),
        (ROOT, VTCR | HA | HD, ALL.with_hardware_dirty_state(false)),
        (ROOT | 1, VTCR, ALL.with_common_not_private(false)),
        (ROOT | 0x100 << 48, VTCR, ALL),
        (ROOT | 0x1000, VTCR, ALL),
        (1 << 41, VTCR, ALL),
    ] {
        assert!(Regime::new(vttbr, vtcr, &features).is_err(), "{vttbr:#x} {vtcr:#x} {features:?}");
    }
    let error = Regime::new(ROOT | 0x1000, VTCR, &ALL).unwrap_err();
    assert_eq!(error.to_string(), "VTTBR_EL2 is 0x80001000: the root is not aligned to its size");
    assert!(Regime::new(ROOT | 0xabcd << 48 | 1, VTCR | 1 << 19 | HA | HD, &ALL).is_ok());
}

#[test]
fn leaves_of_every_level() {
    for (level, bits, pa) in [(1, BLOCK, 3 << 30), (2, BLOCK, 0x60_0000), (3, PAGE, 0x9000)] {
        let raw = pa | bits | ACCESSED | READ;
        let leaf = regime(0).walk(ADDRESS, LOAD, &mut ram(level, raw)).unwrap();
        assert_eq!((leaf.level, leaf.raw, leaf.entry), (level, raw, entry(level)));
        assert_eq!(leaf.ipa, ADDRESS & !(span(level) - 1));
        assert_eq!(output(raw, level, ADDRESS), pa + ADDRESS % span(level));
        let way: Vec<_> = leaf.tables.iter().map(|table| (table.level, table.entry, table.raw)).collect();
        let expected = [(1, entry(1), L2 | TABLE), (2, entry(2), L3 | TABLE)];
        assert_eq!(way, expected[..usize::from(level) - 1]);
    }
}

#[test]
fn faults_of_the_walk() {
    use FaultKind::{AccessFlag, AddressSize, Translation};
    let nothing = regime(0).walk(1 << 40, LOAD, &mut Ram::default());
    assert_eq!(nothing, Err(Stage2Fault { kind: Translation, level: 0, ipa: 1 << 40 }));
    for (level, raw, kind) in [
        (1, 0, Translation),
        (1, 0b10, Translation),
        (2, !1, Translation),
        (3, BLOCK | ACCESSED | READ, Translation),
        (1, FAR_FRAME | TABLE, AddressSize),
        (2, FAR_FRAME | BLOCK | ACCESSED, AddressSize),
        (3, FAR_FRAME | PAGE, AddressSize),
        (2, BLOCK | READ, AccessFlag),
        (3, PAGE, AccessFlag),
    ] {
        let fault = regime(0).walk(ADDRESS, LOAD, &mut ram(level, raw));
        assert_eq!(fault, Err(Stage2Fault { kind, level, ipa: ADDRESS }), "{raw:#x}");
    }
    // PS may exceed what the CPU implements.
    let narrow = Regime::new(ROOT, VTCR & !(7 << 16) | 5 << 16, &ALL.with_pa_bits(40)).unwrap();
    let wide = narrow.walk(ADDRESS, LOAD, &mut ram(3, FAR_FRAME | PAGE | ACCESSED | READ));
    assert_eq!(wide, Err(Stage2Fault { kind: AddressSize, level: 3, ipa: ADDRESS }));
    let level_0 = Regime::new(ROOT, VTCR & !0xff | 2 << 6 | 24, &ALL).unwrap();
    let mut block = Ram { words: BTreeMap::from([(ROOT, BLOCK | ACCESSED | READ)]), ..Ram::default() };
    assert_eq!(level_0.walk(0, LOAD, &mut block).unwrap_err().level, 0, "no blocks of 512 GiB");
}

#[test]
fn what_is_granted() {
    use FaultKind::{AccessFlag, Permission};
    const RW: u64 = READ | WRITE;
    let walk = STORE.with(Purpose::Stage1Walk);
    let update = LOAD.with(Purpose::Stage1Update);
    for (control, raw, access, expected) in [
        (0, ACCESSED | READ, LOAD, Ok(ACCESSED | READ)),
        (0, READ, LOAD, Err(AccessFlag)),
        (HA, READ, LOAD, Ok(ACCESSED | READ)),
        (HA, READ, STORE, Err(Permission)),
        (0, ACCESSED | WRITE, LOAD, Err(Permission)),
        (0, ACCESSED | WRITE, STORE, Ok(ACCESSED | WRITE)),
        (HA | HD, ACCESSED | READ | DBM, STORE, Ok(ACCESSED | RW | DBM)),
        (HA | HD, READ | DBM, STORE, Ok(ACCESSED | RW | DBM)),
        (HA | HD, DBM, STORE, Ok(ACCESSED | WRITE | DBM)),
        (HA | HD, READ | DBM, LOAD, Ok(ACCESSED | READ | DBM)),
        (HA | HD, READ | DBM, FETCH, Ok(ACCESSED | READ | DBM)),
        (HA | HD, READ | DBM, walk, Ok(ACCESSED | READ | DBM)),
        (HA | HD, READ | DBM, update, Ok(ACCESSED | RW | DBM)),
        (HA | HD, DBM, update, Err(Permission)),
        (HA | HD, READ, STORE, Err(Permission)),
        (HA, READ | DBM, STORE, Err(Permission)),
        // HD without HA has no effect.
        (HD, ACCESSED | READ | DBM, STORE, Err(Permission)),
        (0, ACCESSED | READ, update, Err(Permission)),
        (0, ACCESSED | WRITE, walk, Err(Permission)),
    ] {
        assert_eq!(regime(control).grant(raw, access), expected, "{control:#x} {raw:#x} {access:?}");
        // A walk does the same, and leaves a refused entry as it is.
        let mut ram = ram(3, raw | PAGE);
        let walked = regime(control).walk(ADDRESS, access, &mut ram);
        assert_eq!(walked.map(|leaf| leaf.raw).map_err(|fault| fault.kind), expected.map(|raw| raw | PAGE));
        assert_eq!(ram.words[&entry(3)], expected.unwrap_or(raw) | PAGE);
    }
}

#[test]
fn exception_levels_that_may_execute() {
    let el0 = Access { el: El::El0, ..FETCH };
    for (xn, at_el0, at_el1) in [(0b00, true, true), (0b01, true, false), (0b10, false, false), (0b11, false, true)] {
        // S2AP does not matter.
        assert_eq!((allows(xn << 53, el0), allows(xn << 53, FETCH)), (at_el0, at_el1), "{xn:#b}");
        assert!(allows(xn << 53 | READ, LOAD), "XN does not affect loads");
        assert!(allows(xn << 53 | READ, FETCH.with(Purpose::Stage1Walk)), "XN does not affect walks for a fetch");
    }
}

#[test]
fn an_entry_that_changes_meanwhile_is_walked_anew() {
    let raw = PAGE | READ | DBM;
    let regime = regime(HA | HD);
    // Another CPU made the same update first.
    let mut faster = Ram { race: Some(raw | ACCESSED | WRITE), ..ram(3, raw) };
    assert_eq!(regime.walk(ADDRESS, STORE, &mut faster).unwrap().raw, raw | ACCESSED | WRITE);
    assert_eq!(faster.updates, []);
    // Another CPU has read the page: this CPU's write still has to be recorded.
    let mut read = Ram { race: Some(raw | ACCESSED), ..ram(3, raw) };
    assert_eq!(regime.walk(ADDRESS, STORE, &mut read).unwrap().raw, raw | ACCESSED | WRITE);
    assert_eq!(read.updates, [(raw | ACCESSED, raw | ACCESSED | WRITE)]);
    // The page was unmapped.
    let mut gone = Ram { race: Some(0), ..ram(3, raw) };
    assert_eq!(regime.walk(ADDRESS, STORE, &mut gone).unwrap_err().kind, FaultKind::Translation);
    // A block became a table.
    let mut split = Ram { race: Some(L3 | TABLE), ..ram(2, BLOCK | READ) };
    split.words.insert(entry(3), raw | ACCESSED);
    let leaf = regime.walk(ADDRESS, LOAD, &mut split).unwrap();
    assert_eq!((leaf.level, leaf.tables.len(), leaf.raw), (3, 2, raw | ACCESSED));
}

#[test]
fn speculation_sets_the_access_flag_and_no_more() {
    let raw = PAGE | DBM;
    let mut tracked = ram(3, raw);
    assert_eq!(regime(HA | HD).speculate(ADDRESS, &mut tracked).unwrap().raw, raw | ACCESSED);
    assert_eq!(tracked.updates, [(raw, raw | ACCESSED)]);
    let mut old = ram(3, raw);
    assert_eq!(regime(0).speculate(ADDRESS, &mut old), None);
    assert_eq!(old.updates, []);
    assert_eq!(regime(HA).speculate(ADDRESS, &mut ram(2, 0)), None);
    assert_eq!(regime(HA).speculate(1 << 40, &mut Ram::default()), None);
}

#[test]
fn memory_types() {
    // (MemAttr, cached without FWB, cached with it), each for stage 1 saying no and yes
    for (memory, without, with) in [
        (0b0000, [false, false], [false, false]),
        (0b0001, [false, false], [false, false]),
        (0b0011, [false, false], [false, false]),
        (0b0101, [false, false], [false, false]),
        (0b0110, [false, false], [true, true]),
        (0b0111, [false, false], [false, true]),
        (0b1010, [false, true], [false, false]),
        (0b1111, [false, true], [false, false]),
    ] {
        let cached = |fwb| [false, true].map(|stage1| is_cached(memory << 2, fwb, stage1));
        assert_eq!((cached(false), cached(true)), (without, with), "{memory:#06b}");
    }
}

#[test]
fn bits_that_are_reserved() {
    let page = 0x1234_5000 | PAGE | ACCESSED | READ | 0xf << 55 | 1 << 63;
    for (raw, level, features, expected) in [
        (page, 3, ALL, 0),
        (page | 0b11 << 53 | DBM, 3, ALL, 0),
        (page | 0b11 << 53 | DBM, 3, Features::NONE, 1 << 53 | DBM),
        (page | 1 << 52 | 1 << 48 | 1 << 11, 3, ALL, 1 << 48 | 1 << 11),
        (0x4021_f000 | BLOCK, 2, ALL, 0x1_f000),
        (0x4020_0000 | BLOCK, 1, ALL, 0x20_0000),
        (L3 | TABLE | 0xff << 51 | 0x3ff << 2, 2, ALL, 0),
        (L3 | TABLE | 1 << 63 | 1 << 59 | 1 << 50, 2, ALL, 1 << 63 | 1 << 59 | 1 << 50),
        (!1, 2, ALL, 0),
    ] {
        assert_eq!(Format::KIB_4.reserved_bits(raw, level, &features), expected, "{raw:#x} at level {level}");
    }
}

/// Memory of pseudo-random words.
struct Noise(u64, BTreeMap<u64, u64>);

impl Entries for Noise {
    fn stage2(&mut self, pa: u64) -> u64 {
        let mut word = (self.0 ^ pa).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^= word >> 29;
        // Most addresses are small, and most words valid: otherwise walks end at once.
        *self.1.entry(pa).or_insert(word.wrapping_mul(0xbf58_476d_1ce4_e5b9) & !(0xf << 44) | 1)
    }

    fn update_stage2(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        assert_eq!(self.1.insert(pa, new), Some(old));
        assert_eq!((old ^ new) & !(ACCESSED | WRITE), 0, "{old:#x} became {new:#x}");
        Ok(())
    }
}

proptest! {
    #[test]
    fn registers_never_panic(vttbr: u64, vtcr: u64, low in 0u64..1 << 23) {
        let _ = Regime::new(vttbr, vtcr, &ALL);
        let _ = Regime::new(0, 1 << 31 | 0b11 << 12 | 0b0101 << 8 | low & 0x6f_00ff, &ALL);
    }

    #[test]
    fn a_walk_of_anything_ends_well(seed: u64, ipa in 0u64..1 << 41, flags in 0u64..4, kind in 0usize..3) {
        let kind = [AccessKind::Read, AccessKind::Write, AccessKind::Execute][kind];
        let access = Access::new(kind, if seed & 1 == 0 { El::El0 } else { El::El1 });
        let mut noise = Noise(seed, BTreeMap::new());
        let regime = Regime::new(ROOT, VTCR & !(7 << 16) | 5 << 16 | flags << 21, &ALL).unwrap();
        if let Ok(leaf) = regime.walk(ipa, access, &mut noise) {
            prop_assert!(allows(leaf.raw, access) && leaf.raw & ACCESSED != 0);
            prop_assert_eq!(noise.1[&leaf.entry], leaf.raw);
            prop_assert!((leaf.ipa..leaf.ipa + span(leaf.level)).contains(&ipa));
            prop_assert_eq!(output(leaf.raw, leaf.level, ipa) % span(leaf.level), ipa % span(leaf.level));
            prop_assert_eq!(leaf.tables.len(), usize::from(leaf.level) - 1);
            // A second walk has nothing to update.
            let count = noise.1.len();
            prop_assert_eq!(regime.walk(ipa, access, &mut noise), Ok(leaf));
            prop_assert_eq!(noise.1.len(), count);
        }
    }
}
