// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An access of a guest to a device's registers.

/// The width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
}

impl Width {
    /// The width of a data abort's access, from ESR_EL2.ISS.SAS (Arm ARM DDI 0487K.a, ESR_EL2).
    #[must_use]
    pub const fn from_sas(sas: u64) -> Self {
        match sas & 3 {
            0 => Self::Byte,
            1 => Self::Half,
            2 => Self::Word,
            _ => Self::Double,
        }
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self as u64
    }

    /// A mask of the bits that the access carries.
    #[must_use]
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }
}
