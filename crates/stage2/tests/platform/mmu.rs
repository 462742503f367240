// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's table walk ([`twofold_machine::walk`]), with the engine's types for what it finds. Its only inputs are
//! the values of `VTTBR_EL2` and `VTCR_EL2`, the CPU's features, and memory.
//!
//! Beside what the architecture reserves, this view checks what the engine promises: it sets no bit that hardware
//! ignores, and links no table twice.

use std::collections::BTreeSet;

use twofold_machine::walk::stage2::{self, Entries, Regime};
use twofold_machine::walk::{Access as Attempt, AccessKind, El, FaultKind, Shape};
use twofold_stage2::{Access, Execute, Features, Ipa, Memory, Pa, Shareability};

pub use twofold_machine::walk::span;

/// The stage-2 translation regime that the two registers set up.
#[derive(Clone, Copy, Debug)]
pub struct Mmu {
    regime: Regime,
    features: Features,
}

/// A leaf in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub ipa: Ipa,
    pub level: u8,
    pub raw: u64,
    /// The address of the entry.
    pub entry: Pa,
}

/// A table that an entry of `level` points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub ipa: Ipa,
    pub level: u8,
    pub table: Pa,
}

/// All leaves in ascending order, and all tables except the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub leaves: Vec<Leaf>,
    pub links: Vec<Link>,
}

/// Memory, by a function that reads a word.
struct Words<'a>(&'a dyn Fn(Pa) -> u64);

impl Entries for Words<'_> {
    fn stage2(&mut self, pa: u64) -> u64 {
        (self.0)(Pa::new(pa))
    }

    fn update_stage2(&mut self, pa: u64, _: u64, _: u64) -> Result<(), u64> {
        unreachable!("a test's walk updates the entry at {pa:#x}")
    }
}

impl Mmu {
    pub fn new(vttbr: u64, vtcr: u64, features: &Features) -> Self {
        let regime = Regime::new(vttbr, vtcr, features).unwrap_or_else(|error| panic!("{error}"));
        // Some tests set DBM for a CPU that ignores it.
        Self { regime, features: features.with_hardware_dirty_state(true) }
    }

    /// The leaf for `ipa`, or the level at which there is none.
    pub fn translate(&self, read: &dyn Fn(Pa) -> u64, ipa: Ipa) -> Result<Leaf, u8> {
        match self.regime.look_up(ipa.raw(), &mut Words(read)) {
            Ok(leaf) => Ok(self.leaf(leaf.ipa, leaf.level, leaf.raw, leaf.entry)),
            Err(fault) => {
                assert_eq!(fault.kind, FaultKind::Translation, "{fault:x?}");
                Err(fault.level)
            }
        }
    }

    /// Reads all tables, and checks that the architecture defines each entry and that the engine may make it.
    pub fn scan(&self, read: &dyn Fn(Pa) -> u64) -> Scan {
        let mut scan = Scan::default();
        let mut seen = BTreeSet::new();
        self.regime.visit(&mut Words(read), &mut |found| {
            assert!(found.fits, "{found:x?} leads beyond the physical addresses");
            match found.shape {
                Shape::Table => {
                    assert_eq!(found.raw & !(ADDRESS | 3), 0, "{found:x?} has bits that are reserved or ignored");
                    let table = Pa::new(found.raw & ADDRESS);
                    assert!(seen.insert(table), "{table} is linked twice");
                    scan.links.push(Link { ipa: Ipa::new(found.ipa), level: found.level, table });
                }
                Shape::Leaf => scan.leaves.push(self.leaf(found.ipa, found.level, found.raw, found.entry)),
                Shape::Invalid => panic!("{found:x?} is reserved"),
            }
        });
        scan
    }

    fn leaf(&self, ipa: u64, level: u8, raw: u64, entry: u64) -> Leaf {
        let reserved = self.regime.format.reserved_bits(raw, level, &self.features) | raw & IGNORED;
        assert_eq!(reserved, 0, "leaf {raw:#x} of level {level} has bits that are reserved or ignored");
        assert_ne!(raw >> 8 & 3, 0b01, "SH of {raw:#x} is reserved");
        Leaf { ipa: Ipa::new(ipa), level, raw, entry: Pa::new(entry) }
    }
}

/// The address bits of a descriptor with the 4 KiB granule.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// Bits of a leaf that hardware ignores, and that the engine never sets.
const IGNORED: u64 = 0x1f << 59;

impl Leaf {
    pub fn pa(&self) -> Pa {
        Pa::new(self.raw & ADDRESS)
    }

    pub fn span(&self) -> u64 {
        span(self.level)
    }

    pub fn end(&self) -> Ipa {
        self.ipa + self.span()
    }

    /// The output address of `ipa`, which is in the leaf.
    pub fn output(&self, ipa: Ipa) -> Pa {
        Pa::new(stage2::output(self.raw, self.level, ipa.raw()))
    }

    /// What the machine's MMU lets a guest do.
    pub fn access(&self) -> Access {
        let allows = |kind, el| stage2::allows(self.raw, Attempt::new(kind, el));
        let execute = Execute { el0: allows(AccessKind::Execute, El::El0), el1: allows(AccessKind::Execute, El::El1) };
        Access { read: allows(AccessKind::Read, El::El1), write: allows(AccessKind::Write, El::El1), execute }
    }

    /// SH.
    pub fn shareability(&self) -> Shareability {
        match self.raw >> 8 & 3 {
            0b00 => Shareability::NonShareable,
            0b10 => Shareability::OuterShareable,
            _ => Shareability::InnerShareable,
        }
    }

    pub fn accessed(&self) -> bool {
        self.raw >> 10 & 1 == 1
    }

    pub fn dirty_by_hardware(&self) -> bool {
        self.raw >> 51 & 1 == 1
    }

    pub fn software(&self) -> u8 {
        (self.raw >> 55 & 0xf) as u8
    }

    /// MemAttr. Its meaning depends on `HCR_EL2.FWB`.
    pub fn memory(&self, forced_write_back: bool) -> Memory {
        match (self.raw >> 2 & 0xf, forced_write_back) {
            (0b1111, false) | (0b0110, true) => Memory::Normal,
            (0b0101, _) => Memory::NonCacheable,
            (0b0001, _) => Memory::Device,
            (other, _) => panic!("MemAttr {other:#b}"),
        }
    }
}
