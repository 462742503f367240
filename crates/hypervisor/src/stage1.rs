// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A walk of a guest's stage 1 in software: the EL1&0 regime by the guest's registers (Arm ARM DDI 0487K.a, D8.2,
//! D8.3).
//!
//! It answers two questions that hardware does not answer for EL2: which page is behind an address that EL1 may not
//! read, and which level of a stage-1 walk read from a page that stage 2 refuses.
//!
//! The walk translates an address, but does not check the access: permissions, access flags and address sizes are not
//! checked. Hardware has checked them for the access that caused the exit.
//!
//! The walk supports all granules, both halves of the address space, 52-bit addresses (FEAT_LVA, FEAT_LPA, FEAT_LPA2),
//! and small tables (FEAT_TTST). It does not support 128-bit descriptors (FEAT_D128): `HCRX_EL2.D128En` is clear, so a
//! guest has none.
//!
//! Invariant: a walk reads at most five words, whatever the guest's tables hold.

/// The registers of EL1 that control stage 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage1 {
    /// SCTLR_EL1.
    pub sctlr: u64,
    /// TCR_EL1.
    pub tcr: u64,
    /// TTBR0_EL1 and TTBR1_EL1.
    pub ttbr: [u64; 2],
}

/// Why a walk found no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The descriptor of this level cannot be read.
    Unreadable(i8),
    /// The descriptor of this level maps nothing.
    Unmapped(i8),
}

impl Stop {
    /// The level at which the walk stopped.
    pub fn level(self) -> i8 {
        match self {
            Self::Unreadable(level) | Self::Unmapped(level) => level,
        }
    }
}

impl Stage1 {
    /// Translates `va` to a guest physical address. `read` returns the word at a guest physical address, as a
    /// little-endian CPU loads it, or `None` if the word cannot be read.
    ///
    /// # Errors
    ///
    /// See [`Stop`].
    pub fn walk(&self, va: u64, mut read: impl FnMut(u64) -> Option<u64>) -> Result<u64, Stop> {
        const MMU_ON: u64 = 1 << 0;
        const BIG_ENDIAN: u64 = 1 << 25;
        const VALID: u64 = 1 << 0;
        const TABLE_OR_PAGE: u64 = 1 << 1;
        if self.sctlr & MMU_ON == 0 {
            return Ok(va & !TOP_BYTE);
        }
        let half = self.half(va).ok_or(Stop::Unmapped(0))?;
        let mut level = half.first_level();
        let mut table = half.root();
        loop {
            let address = table + half.index(va, level) * 8;
            let word = read(address).ok_or(Stop::Unreadable(level))?;
            let descriptor = if self.sctlr & BIG_ENDIAN == 0 { word } else { word.swap_bytes() };
            let is_leaf = match (descriptor & VALID != 0, descriptor & TABLE_OR_PAGE != 0) {
                (false, _) => return Err(Stop::Unmapped(level)),
                (true, true) => level == 3,
                (true, false) if half.has_blocks(level) => true,
                (true, false) => return Err(Stop::Unmapped(level)),
            };
            if is_leaf {
                let offset = mask(half.shift(level));
                return Ok(half.output(descriptor) & !offset | va & offset);
            }
            table = half.output(descriptor);
            level += 1;
        }
    }

    /// The half of the address space that contains `va`; `None` if neither does.
    fn half(&self, va: u64) -> Option<Half> {
        let upper = va >> 55 & 1;
        // A field of TCR_EL1 that exists twice: for TTBR0_EL1 at `low`, for TTBR1_EL1 at `high`.
        let field = |low: u32, high: u32, bits: u32| self.tcr >> if upper == 0 { low } else { high } & mask(bits);
        let walks_disabled = field(7, 23, 1) == 1; // EPD0, EPD1
        let granule_bits = match (upper, field(14, 30, 2)) {
            (0, 0b00) | (1, 0b10) => 12,
            (0, 0b10) | (1, 0b01) => 14,
            (0, 0b01) | (1, 0b11) => 16,
            _ => return None,
        };
        let lpa2 = granule_bits < 16 && self.tcr >> 59 & 1 == 1; // DS
        let va_bits = 64 - field(0, 16, 6) as u32;
        let largest = if granule_bits == 16 || lpa2 { 52 } else { 48 };
        if walks_disabled || va_bits > largest || va_bits <= granule_bits {
            return None;
        }
        // Bits that are a tag (TBI0, TBI1; MTX0, MTX1), and bits that must equal bit 55.
        let tag = (field(37, 38, 1) * TOP_BYTE) | (field(60, 61, 1) * (0xf << 56));
        let above = !mask(va_bits) & !tag;
        if va & above != above * upper {
            return None;
        }
        Some(Half {
            ttbr: self.ttbr[upper as usize],
            va_bits,
            granule_bits,
            lpa2,
            lpa: granule_bits == 16 && self.tcr >> 32 & 7 == 0b110, // IPS: 52 bits
        })
    }
}

/// The parameters of one half: one of the two base registers.
struct Half {
    ttbr: u64,
    va_bits: u32,
    granule_bits: u32,
    /// FEAT_LPA2 is in use: 52-bit addresses in descriptors of the 4 KiB and 16 KiB granules.
    lpa2: bool,
    /// FEAT_LPA is in use: 52-bit addresses in descriptors of the 64 KiB granule.
    lpa: bool,
}

impl Half {
    /// Address bits that one level translates.
    fn stride(&self) -> u32 {
        self.granule_bits - 3
    }

    /// The lowest address bit that `level` translates.
    fn shift(&self, level: i8) -> u32 {
        self.granule_bits + self.stride() * (3 - level).unsigned_abs() as u32
    }

    fn first_level(&self) -> i8 {
        3 - ((self.va_bits - 1 - self.granule_bits) / self.stride()) as i8
    }

    fn index(&self, va: u64, level: i8) -> u64 {
        (va & mask(self.va_bits)) >> self.shift(level) & mask(self.stride())
    }

    /// The first table: BADDR, aligned to the table's size.
    fn root(&self) -> u64 {
        const BADDR: u64 = 0x0000_ffff_ffff_fffe;
        let size_bits = self.va_bits - self.shift(self.first_level()) + 3;
        if self.lpa || self.lpa2 {
            // BADDR[5:2] is the address's [51:48], and a table has at least 64 bytes.
            self.ttbr & BADDR & !mask(size_bits.max(6)) | (self.ttbr >> 2 & 0xf) << 48
        } else {
            self.ttbr & BADDR & !mask(size_bits)
        }
    }

    /// The output address in a descriptor. In a block, its bits below the size of the block are meaningless.
    fn output(&self, descriptor: u64) -> u64 {
        let page = !mask(self.granule_bits);
        if self.lpa2 {
            descriptor & mask(50) & page | (descriptor >> 8 & 3) << 50
        } else if self.lpa {
            descriptor & mask(48) & page | (descriptor >> 12 & 0xf) << 48
        } else {
            descriptor & mask(48) & page
        }
    }

    /// Whether a descriptor of `level` may be a block (Arm ARM DDI 0487K.a, pseudocode `AArch64.BlockDescSupported`).
    /// With 64 KiB and level 1 that depends on the CPU, which has already checked it.
    fn has_blocks(&self, level: i8) -> bool {
        match level {
            2 => true,
            1 => self.granule_bits != 14 || self.lpa2,
            0 => self.granule_bits == 12 && self.lpa2,
            _ => false,
        }
    }
}

const TOP_BYTE: u64 = 0xff << 56;

/// A mask of the low `bits` bits.
const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}
