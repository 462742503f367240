// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table walk written from the manual (Arm ARM DDI 0487K.a, D8.2, D8.3) and not from the engine. Its only inputs are
//! the values of `VTTBR_EL2` and `VTCR_EL2`, and memory.

use std::collections::BTreeSet;

use twofold_stage2::{Access, Execute, Ipa, Memory, Pa, Shareability};

/// The stage-2 translation regime that the two registers set up.
#[derive(Clone, Copy, Debug)]
pub struct Mmu {
    root: Pa,
    root_level: u8,
    ipa_bits: u32,
    pa_bits: u32,
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

/// log2 of the bytes that an entry of a table at `level` covers.
fn span_shift(level: u8) -> u32 {
    [39, 30, 21, 12][usize::from(level)]
}

pub fn span(level: u8) -> u64 {
    1 << span_shift(level)
}

impl Mmu {
    pub fn new(vttbr: u64, vtcr: u64) -> Self {
        let ipa_bits = 64 - (vtcr & 0x3f) as u32;
        let root_level = [2, 1, 0][(vtcr >> 6 & 3) as usize];
        assert_eq!(vtcr >> 8 & 0xf, 0b0101, "walks are write-back, read- and write-allocate");
        assert_eq!(vtcr >> 12 & 3, 0b11, "walks are inner shareable");
        assert_eq!(vtcr >> 14 & 3, 0b00, "the granule is 4 KiB");
        assert_eq!(vtcr >> 31 & 1, 1, "RES1");
        let pa_bits = [32, 36, 40, 42, 44, 48][(vtcr >> 16 & 7) as usize];
        let root = Pa::new(vttbr & 0x0000_ffff_ffff_fffe);
        let this = Self { root, root_level, ipa_bits, pa_bits };
        assert!((1..=16 * 512).contains(&this.root_entries()), "at most 16 tables are concatenated");
        assert!(root.is_aligned((this.root_entries() * 8).max(64)), "the root is aligned to its size");
        this
    }

    fn root_entries(&self) -> u64 {
        1 << (self.ipa_bits - span_shift(self.root_level))
    }

    /// The leaf for `ipa`, or the level at which there is none.
    pub fn translate(&self, read: &dyn Fn(Pa) -> u64, ipa: Ipa) -> Result<Leaf, u8> {
        assert!(ipa.raw() >> self.ipa_bits == 0, "{ipa} is too wide for a walk");
        let (mut table, mut level) = (self.root, self.root_level);
        let mut index = ipa.raw() >> span_shift(level);
        loop {
            let entry = table + index * 8;
            let raw = read(entry);
            match raw & 3 {
                0b11 if level < 3 => {
                    table = self.next_table(raw);
                    level += 1;
                    index = ipa.raw() >> span_shift(level) & 511;
                }
                0b00 | 0b10 => return Err(level),
                _ => return Ok(self.leaf(Leaf { ipa: ipa.align_down(span(level)), level, raw, entry })),
            }
        }
    }

    /// Reads all tables, and checks that the architecture defines each entry and that the engine may make it.
    pub fn scan(&self, read: &dyn Fn(Pa) -> u64) -> Scan {
        let mut scan = Scan::default();
        let mut seen = BTreeSet::new();
        let mut todo = vec![(self.root, self.root_level, self.root_entries(), Ipa::new(0))];
        while let Some((table, level, entries, base)) = todo.pop() {
            for index in 0..entries {
                let entry = table + index * 8;
                let raw = read(entry);
                if raw == 0 {
                    continue;
                }
                let ipa = base + index * span(level);
                match raw & 3 {
                    0b11 if level < 3 => {
                        let child = self.next_table(raw);
                        assert!(seen.insert(child), "{child} is linked twice");
                        scan.links.push(Link { ipa, level, table: child });
                        todo.push((child, level + 1, 512, ipa));
                    }
                    0b00 | 0b10 => {}
                    _ => scan.leaves.push(self.leaf(Leaf { ipa, level, raw, entry })),
                }
            }
        }
        scan.leaves.sort_by_key(|leaf| leaf.ipa);
        scan
    }

    fn next_table(&self, raw: u64) -> Pa {
        assert_eq!(raw & !0x0000_ffff_ffff_f003, 0, "table entry {raw:#x} has bits that are reserved or ignored");
        Pa::new(raw & 0x0000_ffff_ffff_f000)
    }

    fn leaf(&self, leaf: Leaf) -> Leaf {
        let Leaf { level, raw, .. } = leaf;
        assert!(level >= 1, "no block of 512 GiB");
        assert_eq!(raw & 3, if level == 3 { 0b11 } else { 0b01 }, "page or block");
        assert_eq!(raw & 0xf817_0000_0000_0800, 0, "leaf {raw:#x} has reserved bits set");
        assert!(leaf.pa().is_aligned(span(level)), "leaf {raw:#x} is not aligned for level {level}");
        assert_eq!(leaf.pa().raw() >> self.pa_bits, 0, "output address of {raw:#x} is too wide");
        assert_ne!(raw >> 8 & 3, 0b01, "SH of {raw:#x} is reserved");
        leaf
    }
}

impl Leaf {
    pub fn pa(&self) -> Pa {
        Pa::new(self.raw & 0x0000_ffff_ffff_f000)
    }

    pub fn span(&self) -> u64 {
        span(self.level)
    }

    pub fn end(&self) -> Ipa {
        self.ipa + self.span()
    }

    /// The output address of `ipa`, which is in the leaf.
    pub fn output(&self, ipa: Ipa) -> Pa {
        self.pa() + (ipa - self.ipa)
    }

    /// S2AP and XN of a CPU with FEAT_XNX. Without it only 0b00 and 0b10 exist, with the same meaning.
    pub fn access(&self) -> Access {
        let (el1, el0) = match self.raw >> 53 & 3 {
            0b00 => (true, true),
            0b01 => (false, true),
            0b10 => (false, false),
            _ => (true, false),
        };
        let execute = Execute { el0, el1 };
        Access { read: self.raw >> 6 & 1 == 1, write: self.raw >> 7 & 1 == 1, execute }
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
