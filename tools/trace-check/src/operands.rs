// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decodes the operands of TLB invalidations (Arm ARM DDI 0487K.a, C5.5).

use std::ops::Range;

use twofold_abi::trace::Tlbi;

/// The effect of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub what: What,
    /// Whether it reaches all CPUs, or only the CPU that issues it.
    pub broadcast: bool,
}

/// The entries of the VMID that it invalidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Stage-2 entries that translate an address of `range`.
    ByIpa { range: Range<u64>, last_level: bool, level: Option<u32> },
    /// Stage-1 entries, and entries that combine both stages.
    Combined,
    /// All entries of both stages.
    All,
}

/// The features of the traced CPUs that determine an operand's format. A feature that the trace does not mention is
/// present.
#[derive(Clone, Copy)]
pub struct Formats {
    pub ranges: bool,
    pub level_hints: bool,
}

impl Default for Formats {
    fn default() -> Self {
        Self { ranges: true, level_hints: true }
    }
}

impl Formats {
    /// Applies a line `feature`.
    pub fn feature(&mut self, name: &str, value: u64) {
        match name {
            "tlbi_range" => self.ranges = value != 0,
            "tlbi_level_hint" => self.level_hints = value != 0,
            _ => {}
        }
    }

    /// Decodes an operation.
    ///
    /// # Errors
    ///
    /// The operand is not valid for the operation or for these CPUs.
    pub fn decode(self, operation: Tlbi, operand: u64) -> Result<Named, String> {
        let broadcast = !matches!(operation, Tlbi::Ipas2E1 | Tlbi::VmallE1);
        let last_level = matches!(operation, Tlbi::Ipas2Le1Is | Tlbi::Ripas2Le1Is);
        let what = match operation {
            Tlbi::Ipas2E1 | Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => self.single(operand, last_level)?,
            Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is => self.range(operand, last_level)?,
            _ if operand != 0 => return Err(format!("the operation takes no operand, and has {operand:#x}")),
            Tlbi::VmallE1 | Tlbi::VmallE1Is => What::Combined,
            Tlbi::VmallS12E1Is | Tlbi::Alle1Is => What::All,
        };
        Ok(Named { what, broadcast })
    }

    fn single(self, operand: u64, last_level: bool) -> Result<What, String> {
        // IPA[47:12] is in bits 35:0, TTL in 47:44.
        let ttl = if self.level_hints { 0xf << 44 } else { 0 };
        reserved(operand & !(0xf_ffff_ffff | ttl))?;
        let ipa = (operand & 0xf_ffff_ffff) << 12;
        // TTL[3:2]: 0b01 is the 4 KiB granule, with the level in TTL[1:0]; 0b00 is no hint.
        let level = match (operand >> 46 & 3, operand >> 44 & 3) {
            (0b01, level @ 1..) => Some(level as u32),
            (0b00, 0) => None,
            _ => return Err(format!("TTL {:#x} names no level of the 4 KiB granule", operand >> 44 & 0xf)),
        };
        Ok(What::ByIpa { range: ipa..ipa + 0x1000, last_level, level })
    }

    fn range(self, operand: u64, last_level: bool) -> Result<What, String> {
        if !self.ranges {
            return Err("the CPUs do not have FEAT_TLBIRANGE".to_owned());
        }
        reserved(operand & !0xffff_ffff_ffff)?;
        // TG: 0b01 is the 4 KiB granule.
        if operand >> 46 & 3 != 0b01 {
            return Err(format!("TG {:#b} is not the 4 KiB granule", operand >> 46 & 3));
        }
        let (scale, num, hint) = (operand >> 44 & 3, operand >> 39 & 0x1f, operand >> 37 & 3);
        let ipa = (operand & 0x1f_ffff_ffff) << 12;
        let size = (num + 1) << (5 * scale + 1 + 12);
        let level = (hint != 0).then_some(hint as u32);
        if let Some(level) = level
            && ipa & (super::entries::span_of(level) - 1) != 0
        {
            return Err(format!("a range of leaves of level {level} cannot begin at {ipa:#x}"));
        }
        Ok(What::ByIpa { range: ipa..ipa + size, last_level, level })
    }
}

fn reserved(bits: u64) -> Result<(), String> {
    if bits == 0 { Ok(()) } else { Err(format!("the bits {bits:#x} of the operand are reserved")) }
}
