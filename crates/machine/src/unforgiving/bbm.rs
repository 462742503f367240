// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which changes of a mapping's size the CPUs take without a break (FEAT_BBM), and what they may do about it.
//!
//! Invariant: what is allowed here is a block and a table that map the same, one in the place of the other. All else
//! that needs a break needs one at every level of the feature (Arm ARM D8.16.1).

/// The level of FEAT_BBM (`ID_AA64MMFR2_EL1.BBM`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bbm {
    /// A block or a table takes the other's place by break-before-make only.
    #[default]
    Level0,
    /// The same, but for a block that has nT set: such a block is in no TLB beside other entries.
    Level1,
    /// Neither break nor nT is needed. Until the old entry is invalidated, an access may hit both and end as a TLB
    /// conflict abort.
    Level2,
}

impl Bbm {
    /// Whether this block may take a table's place, or give it to one, without a break.
    pub(crate) fn allows(self, block: u64) -> bool {
        match self {
            Self::Level0 => false,
            Self::Level1 => block & NOT_TRANSLATED != 0,
            Self::Level2 => true,
        }
    }

    /// Whether an access that hits two sizes may end as an abort.
    pub(crate) fn aborts(self) -> bool {
        self == Self::Level2
    }

    /// The bits of a block's address field that say something else: nT, where there is one.
    pub(crate) fn flags(self) -> u64 {
        match self {
            Self::Level0 => 0,
            Self::Level1 | Self::Level2 => NOT_TRANSLATED,
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
        for (bbm, plain, marked, aborts) in
            [(Bbm::Level0, false, false, false), (Bbm::Level1, false, true, false), (Bbm::Level2, true, true, true)]
        {
            let block = 0x4000_07fd;
            assert_eq!([bbm.allows(block), bbm.allows(block | NOT_TRANSLATED), bbm.aborts()], [plain, marked, aborts]);
        }
        assert_eq!(Bbm::default(), Bbm::Level0);
    }
}
