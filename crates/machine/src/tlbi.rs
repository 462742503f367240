// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reach of a TLB invalidation, decoded bit by bit from the manual (Arm ARM DDI 0487K.a, C5.5 and D8.16) and not
//! from the engine.
//!
//! Invariant: a reach is exactly what every CPU has to invalidate. It leaves out entries that only some CPUs would also
//! drop. An operand that the architecture leaves to the CPU is an error.

use twofold_stage2::Features;
use twofold_stage2::platform::Tlbi;

use crate::walk::Format;

/// The entries that an operation invalidates, of the current VMID if it does not name all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The entries of stage 2 only.
    pub stage2: Option<Which>,
    /// Whether all entries of stage 1, and all that combine both stages, are invalidated.
    pub stage1_and_combined: bool,
    /// Whether it applies to all CPUs of the inner shareable domain, and not only to the CPU that executes it.
    pub broadcast: bool,
    /// Whether it applies to every VMID, and not only to the current one.
    pub every_vmid: bool,
}

/// The stage-2 entries that are invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Entries that translate an address in a range.
    Range {
        /// The first address, in bytes.
        start: u64,
        /// The end of the range. For an operation by one address: the end of its page.
        end: u64,
        /// The level of the leaf, where the operand gives it.
        level: Option<u8>,
        /// Whether only leaves are invalidated.
        last_level_only: bool,
    },
}

/// An operand that no CPU with these features has to interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLBI {operation:?}, {operand:#x}: {why}")]
pub struct OperandError {
    /// The operation.
    pub operation: Tlbi,
    /// The operand.
    pub operand: u64,
    /// The reason why it is wrong.
    pub why: Wrong,
}

/// The reason why an operand is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The operation takes no operand.
    #[error("the operation takes no operand")]
    Superfluous,
    /// The CPU does not have the operation.
    #[error("undefined without FEAT_TLBIRANGE")]
    Undefined,
    /// These bits are set although they are RES0.
    #[error("bits {0:#x} are reserved")]
    Reserved(u64),
    /// TG or TTL names another granule than the tables', or a level where it has no leaves: the CPU need not invalidate
    /// anything.
    #[error("not for the granule of the tables")]
    Granule,
    /// The start of a range is not aligned to the level that the operand gives, so the range is UNPREDICTABLE.
    #[error("{start:#x} is not aligned for level {level}")]
    Misaligned {
        /// The start of the range.
        start: u64,
        /// The level.
        level: u8,
    },
}

impl Reach {
    /// Decodes what a CPU with these features has to invalidate, while `VTCR_EL2` selects this format.
    pub fn decode(operation: Tlbi, operand: u64, features: &Features, format: Format) -> Result<Self, OperandError> {
        let wrong = |why| OperandError { operation, operand, why };
        let by_ipa =
            |last, broadcast| Ok(Self::stage2(single(operand, last, features, format).map_err(wrong)?, broadcast));
        let by_range = |last| Ok(Self::stage2(range(operand, last, features, format).map_err(wrong)?, true));
        let all = |stage2, broadcast, every_vmid| match operand {
            0 => Ok(Self { stage2, stage1_and_combined: true, broadcast, every_vmid }),
            _ => Err(wrong(Wrong::Superfluous)),
        };
        match operation {
            Tlbi::Ipas2E1 => by_ipa(false, false),
            Tlbi::Ipas2E1Is => by_ipa(false, true),
            Tlbi::Ipas2Le1Is => by_ipa(true, true),
            Tlbi::Ripas2E1Is => by_range(false),
            Tlbi::Ripas2Le1Is => by_range(true),
            Tlbi::VmallE1 => all(None, false, false),
            Tlbi::VmallE1Is => all(None, true, false),
            Tlbi::VmallS12E1Is => all(Some(Which::All), true, false),
            Tlbi::Alle1Is => all(Some(Which::All), true, true),
        }
    }

    /// The reach of an operation by IPA, which need not invalidate entries that combine both stages.
    fn stage2(which: Which, broadcast: bool) -> Self {
        Self { stage2: Some(which), stage1_and_combined: false, broadcast, every_vmid: false }
    }
}

impl Which {
    /// Whether the operation hits an entry that was found at `level`. The entry translates `span` bytes from `ipa` on;
    /// where `is_table`, it is a table descriptor on the walk to them.
    pub fn hits(&self, ipa: u64, span: u64, level: u8, is_table: bool) -> bool {
        match *self {
            Self::All => true,
            Self::Range { start, end, level: hint, last_level_only } => {
                // A hint names the level of the leaf, so the tables of the walk are above it.
                let named = match hint {
                    Some(hint) if is_table => level < hint,
                    Some(hint) => level == hint,
                    None => true,
                };
                named && !(is_table && last_level_only) && start < ipa.saturating_add(span) && ipa < end
            }
        }
    }
}

/// The operand of an operation by IPA: NS 63, RES0 62 to 48, TTL 47 to 44, RES0 43 to 40, IPA\[51:48\] 39 to 36 (RES0
/// without FEAT_LPA), IPA\[47:12\] 35 to 0.
fn single(operand: u64, last_level_only: bool, features: &Features, format: Format) -> Result<Which, Wrong> {
    let ttl = operand >> 44 & 0xf;
    // TTL is RES0 without FEAT_TTL. If its upper half is 0 it gives no hint, and its lower half is RES0.
    let ttl_reserved = match (features.tlbi_level_hint, ttl >> 2) {
        (false, _) => 0b1111,
        (true, 0) => 0b0011,
        (true, _) => 0,
    };
    // FEAT_LPA2 implies FEAT_LPA.
    let ipa_high = if features.pa_bits > 48 { 0 } else { 0xf };
    // NS is RES0 in Non-secure state.
    reserved(operand, !0 << 48 | ttl_reserved << 44 | 0xf << 40 | ipa_high << 36)?;
    let level = match ((ttl >> 2), (ttl & 3) as u8) {
        (0, _) => None,
        (granule, level) if granule == format.tg() && format.has_hint(level) => Some(level),
        // A granule that is not the tables', or a level where it has no leaves.
        _ => return Err(Wrong::Granule),
    };
    // An operand names a page, by any address of it.
    let start = (operand & 0xff_ffff_ffff) << 12 & !(format.page() - 1);
    Ok(Which::Range { start, end: start + format.page(), level, last_level_only })
}

/// The operand of an operation by range: NS 63, RES0 62 to 48, TG 47 to 46, SCALE 45 to 44, NUM 43 to 39, TTL 38 to 37,
/// BaseADDR 36 to 0 in units of the granule, or of 64 KiB with FEAT_LPA2. TTL is a part of FEAT_TLBIRANGE, and needs no FEAT_TTL.
fn range(operand: u64, last_level_only: bool, features: &Features, format: Format) -> Result<Which, Wrong> {
    if !features.tlbi_range {
        return Err(Wrong::Undefined);
    }
    reserved(operand, !0 << 48)?;
    if operand >> 46 & 3 != format.tg() {
        return Err(Wrong::Granule);
    }
    let (scale, num) = (operand >> 44 & 3, operand >> 39 & 0x1f);
    let start = (operand & 0x1f_ffff_ffff) << format.base_shift();
    let level = Some((operand >> 37 & 3) as u8).filter(|&level| level != 0);
    if let Some(level) = level
        && !format.has_hint(level)
    {
        return Err(Wrong::Granule);
    }
    if let Some(level) = level
        && !start.is_multiple_of(format.span(level))
    {
        return Err(Wrong::Misaligned { start, level });
    }
    let pages = (num + 1) << (5 * scale + 1);
    Ok(Which::Range { start, end: start.saturating_add(pages * format.page()), level, last_level_only })
}

fn reserved(operand: u64, mask: u64) -> Result<(), Wrong> {
    match operand & mask {
        0 => Ok(()),
        bits => Err(Wrong::Reserved(bits)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use twofold_stage2::tlb::{range_operand, single_operand};
    use twofold_stage2::{Ipa, Kib4, Level};

    use super::*;
    use crate::walk::span;

    const ALL: Features = Features::NONE.with_tlbi_range(true).with_tlbi_level_hint(true);
    const OPERATIONS: [Tlbi; 9] = [
        Tlbi::Ipas2E1,
        Tlbi::Ipas2E1Is,
        Tlbi::Ipas2Le1Is,
        Tlbi::Ripas2E1Is,
        Tlbi::Ripas2Le1Is,
        Tlbi::VmallE1,
        Tlbi::VmallE1Is,
        Tlbi::VmallS12E1Is,
        Tlbi::Alle1Is,
    ];

    fn decode(operation: Tlbi, operand: u64) -> Result<Reach, OperandError> {
        Reach::decode(operation, operand, &ALL, Format::KIB_4)
    }

    fn which(operation: Tlbi, operand: u64) -> Which {
        decode(operation, operand).unwrap().stage2.unwrap()
    }

    #[test]
    fn what_each_operation_is_for() {
        // (stage 2, stage 1 and combined, on all CPUs, leaves only)
        for (operation, operand, expected) in [
            (Tlbi::Ipas2E1, 5, (true, false, false, false)),
            (Tlbi::Ipas2E1Is, 5, (true, false, true, false)),
            (Tlbi::Ipas2Le1Is, 5, (true, false, true, true)),
            (Tlbi::Ripas2E1Is, 1 << 46, (true, false, true, false)),
            (Tlbi::Ripas2Le1Is, 1 << 46, (true, false, true, true)),
            (Tlbi::VmallE1, 0, (false, true, false, false)),
            (Tlbi::VmallE1Is, 0, (false, true, true, false)),
            (Tlbi::VmallS12E1Is, 0, (true, true, true, false)),
            (Tlbi::Alle1Is, 0, (true, true, true, false)),
        ] {
            let reach = decode(operation, operand).unwrap();
            let leaves = matches!(reach.stage2, Some(Which::Range { last_level_only: true, .. }));
            let seen = (reach.stage2.is_some(), reach.stage1_and_combined, reach.broadcast, leaves);
            assert_eq!(seen, expected, "{operation:?}");
            assert_eq!(reach.every_vmid, operation == Tlbi::Alle1Is);
        }
    }

    #[test]
    fn operands_spelled_out() {
        let range = |start, end, level| Which::Range { start, end, level, last_level_only: false };
        assert_eq!(which(Tlbi::Ipas2E1Is, 0x4_0201), range(0x4020_1000, 0x4020_2000, None));
        assert_eq!(which(Tlbi::Ipas2E1Is, 0x6000_0004_0200), range(0x4020_0000, 0x4020_1000, Some(2)));
        // TG 4 KiB, SCALE 1, NUM 7, TTL 3: 8 << 6 pages.
        let operand = 1 << 46 | 1 << 44 | 7 << 39 | 3 << 37 | 0x4_0000;
        assert_eq!(which(Tlbi::Ripas2E1Is, operand), range(0x4000_0000, 0x4020_0000, Some(3)));
        // SCALE 3, NUM 31: the largest range, 8 GiB.
        assert_eq!(which(Tlbi::Ripas2E1Is, 1 << 46 | 3 << 44 | 31 << 39), range(0, 8 << 30, None));
    }

    #[test]
    fn operands_that_are_none() {
        let plain = Features::NONE;
        for (operation, operand, features, why) in [
            (Tlbi::VmallE1, 1, ALL, Wrong::Superfluous),
            (Tlbi::VmallE1Is, 1 << 48, ALL, Wrong::Superfluous),
            (Tlbi::VmallS12E1Is, 0x4_0000, ALL, Wrong::Superfluous),
            (Tlbi::Alle1Is, 1, ALL, Wrong::Superfluous),
            (Tlbi::Ipas2E1, 1 << 63 | 5, ALL, Wrong::Reserved(1 << 63)),
            (Tlbi::Ipas2E1Is, 1 << 48 | 5, ALL, Wrong::Reserved(1 << 48)),
            (Tlbi::Ipas2Le1Is, 1 << 40, ALL, Wrong::Reserved(1 << 40)),
            (Tlbi::Ipas2Le1Is, 1 << 36, ALL, Wrong::Reserved(1 << 36)),
            (Tlbi::Ipas2Le1Is, 0b0011 << 44, ALL, Wrong::Reserved(0b0011 << 44)),
            (Tlbi::Ipas2Le1Is, 0b0111 << 44, plain, Wrong::Reserved(0b0111 << 44)),
            (Tlbi::Ipas2E1Is, 0b0100 << 44, ALL, Wrong::Granule),
            (Tlbi::Ipas2E1Is, 0b1011 << 44, ALL, Wrong::Granule),
            (Tlbi::Ipas2Le1Is, 0b1110 << 44, ALL, Wrong::Granule),
            (Tlbi::Ripas2E1Is, 1 << 62 | 1 << 46, ALL, Wrong::Reserved(1 << 62)),
            (Tlbi::Ripas2Le1Is, 1 << 48 | 1 << 46, ALL, Wrong::Reserved(1 << 48)),
            (Tlbi::Ripas2E1Is, 0, ALL, Wrong::Granule),
            (Tlbi::Ripas2E1Is, 0b10 << 46, ALL, Wrong::Granule),
            (Tlbi::Ripas2Le1Is, 0b11 << 46, ALL, Wrong::Granule),
            (Tlbi::Ripas2Le1Is, 1 << 46, plain, Wrong::Undefined),
            (Tlbi::Ripas2Le1Is, 1 << 46 | 2 << 37 | 0x201, ALL, Wrong::Misaligned { start: 0x20_1000, level: 2 }),
            (Tlbi::Ripas2E1Is, 1 << 46 | 1 << 37 | 0x200, ALL, Wrong::Misaligned { start: 0x20_0000, level: 1 }),
        ] {
            assert_eq!(
                Reach::decode(operation, operand, &features, Format::KIB_4),
                Err(OperandError { operation, operand, why })
            );
        }
        let range = plain.with_tlbi_range(true);
        assert!(
            Reach::decode(Tlbi::Ripas2E1Is, 1 << 46 | 3 << 37, &range, Format::KIB_4).is_ok(),
            "TTL of a range needs no FEAT_TTL"
        );
    }

    #[test]
    fn an_error_says_what_it_is_about() {
        let error = decode(Tlbi::Ipas2E1Is, 1 << 48 | 5).unwrap_err();
        assert_eq!(error.to_string(), "TLBI Ipas2E1Is, 0x1000000000005: bits 0x1000000000000 are reserved");
    }

    #[test]
    fn an_address_hits_what_translates_it() {
        let at = which(Tlbi::Ipas2E1Is, 0x4_0201);
        assert!(at.hits(0x4020_1000, span(3), 3, false));
        assert!(at.hits(0x4020_0000, span(2), 2, false), "a block, by an address in its middle");
        assert!(at.hits(0x4000_0000, span(1), 1, true), "a table on the walk");
        assert!(!at.hits(0x4020_0000, span(3), 3, false), "the page before");
        assert!(!at.hits(0x4020_2000, span(3), 3, false), "the page behind");
        assert!(!at.hits(0x4040_0000, span(2), 2, false));
    }

    #[test]
    fn a_hint_of_another_level_hits_nothing() {
        let at = which(Tlbi::Ipas2E1Is, 0x6000_0004_0200);
        assert!(at.hits(0x4020_0000, span(2), 2, false));
        assert!(at.hits(0x4000_0000, span(1), 1, true), "the table above");
        assert!(!at.hits(0x4020_0000, span(3), 3, false));
        assert!(!at.hits(0x4000_0000, span(1), 1, false));
        assert!(!at.hits(0x4020_0000, span(2), 2, true), "a table is no leaf of this level");
    }

    #[test]
    fn the_last_level_alone_hits_no_table() {
        for operation in [Tlbi::Ipas2Le1Is, Tlbi::Ripas2Le1Is] {
            let operand = if operation == Tlbi::Ripas2Le1Is { 1 << 46 | 0x4_0200 } else { 0x4_0200 };
            let at = which(operation, operand);
            assert!(at.hits(0x4020_0000, span(3), 3, false));
            assert!(!at.hits(0x4020_0000, span(2), 2, true));
        }
    }

    #[test]
    fn everything_is_everything() {
        assert!(Which::All.hits(0, span(3), 3, false) && Which::All.hits(1 << 47, span(0), 0, true));
    }

    proptest! {
        #[test]
        fn no_operand_panics(index in 0usize..9, operand: u64, low in 0u64..1 << 48, ranges: bool, hints: bool) {
            let features = Features::NONE.with_tlbi_range(ranges).with_tlbi_level_hint(hints);
            for operand in [operand, low] {
                if let Ok(Reach { stage2: Some(which), .. }) = Reach::decode(OPERATIONS[index], operand, &features, Format::KIB_4) {
                    which.hits(0, span(0), 0, true);
                    which.hits(!0xfff, span(3), 3, false);
                }
            }
        }

        /// A CPU decodes the engine's operands to what the engine means.
        #[test]
        fn the_engines_operands(page in 0u64..1 << 36, level in 0u8..=3, scale in 0u32..4, num in 0u32..32) {
            let hint = Level::new(level).filter(|level| *level != Level::L0);
            let level = (level != 0).then_some(level);
            let start = page << 12;
            let one = Which::Range { start, end: start + 4096, level, last_level_only: true };
            prop_assert_eq!(which(Tlbi::Ipas2Le1Is, single_operand(Ipa::new(start), hint, Kib4)), one);

            let start = start & !(span(level.unwrap_or(3)) - 1);
            let pages = u64::from(num + 1) << (5 * scale + 1);
            let operand = range_operand(Ipa::new(start), scale, num, hint, Kib4);
            let many = Which::Range { start, end: start + (pages << 12), level, last_level_only: false };
            prop_assert_eq!(which(Tlbi::Ripas2E1Is, operand), many);
        }

        /// A range hits a leaf if and only if one of its pages is a page of the leaf.
        #[test]
        fn a_range_hits_leaves_by_page(start in 0u64..2048, num in 0u64..32, leaf in 0u64..2048, level in 2u8..=3) {
            let operand = 1 << 46 | num << 39 | start;
            let size = span(level);
            let leaf = (leaf << 12) & !(size - 1);
            let common = (start..start + 2 * (num + 1)).any(|page| (leaf..leaf + size).contains(&(page << 12)));
            prop_assert_eq!(which(Tlbi::Ripas2E1Is, operand).hits(leaf, size, level, false), common);
        }
    }
}
