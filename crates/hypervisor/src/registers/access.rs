// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trapped access of a guest to a system register.

/// One access, as ESR_EL2 describes it (exception class 0x18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Op0, op1, CRn, CRm and op2.
    pub encoding: [u64; 5],
    /// The general register; 31 stands for none.
    pub rt: usize,
    /// Whether the access is MRS or SYSL.
    pub is_read: bool,
}

impl Access {
    /// Reads the syndrome.
    pub const fn from_syndrome(syndrome: u64) -> Self {
        let [op0, op1, crn] = [syndrome >> 20 & 3, syndrome >> 14 & 7, syndrome >> 10 & 15];
        let [crm, op2] = [syndrome >> 1 & 15, syndrome >> 17 & 7];
        Self { encoding: [op0, op1, crn, crm, op2], rt: (syndrome >> 5 & 31) as usize, is_read: syndrome & 1 != 0 }
    }

    /// The encoding as 16 bits: op0 in the upper two, then op1, CRn, CRm and op2.
    pub const fn number(&self) -> u16 {
        let [op0, op1, crn, crm, op2] = self.encoding;
        (op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2) as u16
    }
}
