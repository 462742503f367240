// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The changes of a mapping's size that the CPUs allow without a break (FEAT_BBM), and what they may do meanwhile.
//!
//! Invariant: only the exchange of a block and a table that map the same is allowed here. Every other change that needs
//! a break needs one at each level of the feature (Arm ARM DDI 0487K.a, D8.16.1).

use twofold_stage2::Features;

/// The level of FEAT_BBM (`ID_AA64MMFR2_EL1.BBM`), and whether level 2 raises aborts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bbm {
    /// A block and a table replace each other only by break-before-make.
    #[default]
    Level0,
    /// As level 0, except for a block with nT set, which no TLB holds beside other entries.
    Level1,
    /// Neither a break nor nT is needed. Until the old entry is invalidated, an access may hit both entries and take a
    /// TLB conflict abort.
    Level2,
    /// As level 2, on a CPU that raises no TLB conflict abort for it.
    Level2WithoutAborts,
}

impl Bbm {
    /// What CPUs with these features allow.
    pub fn of(features: &Features) -> Self {
        match features.bbm {
            0 => Self::Level0,
            1 => Self::Level1,
            _ if features.no_conflict_abort => Self::Level2WithoutAborts,
            _ => Self::Level2,
        }
    }

    /// Whether this block may replace a table, or be replaced by one, without a break.
    pub(crate) fn allows(self, block: u64) -> bool {
        match self {
            Self::Level0 => false,
            Self::Level1 => block & NOT_TRANSLATED != 0,
            Self::Level2 | Self::Level2WithoutAborts => true,
        }
    }

    /// Whether leaves may get or lose the contiguous bit without a break. At level 1 they may not: nT is for blocks.
    pub(crate) fn allows_regrouping(self) -> bool {
        matches!(self, Self::Level2 | Self::Level2WithoutAborts)
    }

    /// Whether an access that hits entries of two sizes may take an abort.
    pub(crate) fn aborts(self) -> bool {
        self == Self::Level2
    }

    /// The bits in a block's address field that are not part of the address: nT, where it exists.
    pub(crate) fn flags(self) -> u64 {
        match self {
            Self::Level0 => 0,
            Self::Level1 | Self::Level2 | Self::Level2WithoutAborts => NOT_TRANSLATED,
        }
    }
}

/// nT, in blocks.
const NOT_TRANSLATED: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_blocks_change_size_without_a_break() {
        for (bbm, plain, marked, aborts) in [
            (Bbm::Level0, false, false, false),
            (Bbm::Level1, false, true, false),
            (Bbm::Level2, true, true, true),
            (Bbm::Level2WithoutAborts, true, true, false),
        ] {
            let block = 0x4000_07fd;
            assert_eq!([bbm.allows(block), bbm.allows(block | NOT_TRANSLATED), bbm.aborts()], [plain, marked, aborts]);
        }
        assert_eq!(Bbm::default(), Bbm::Level0);
    }
}
