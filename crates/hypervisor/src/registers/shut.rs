// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Emulates the guest's accesses to the registers of features that are shut.
//!
//! The guest's ID registers are the CPU's own, so they announce these features. A kernel that believes them must not
//! crash on its first access, so a register of a shut feature reads as zero and ignores writes. For each feature zero
//! means that there is nothing: no event counter (PMCR_EL0.N), no error record (ERRIDR_EL1), no LORegion (LORID_EL1),
//! no partition (MPAMIDR_EL1), an activity monitor that stands still. Any other access that traps is UNDEFINED.

/// Emulates a trapped MSR, MRS, SYS or SYSL of the guest on its general registers (`x`). Returns `false` if the
/// register is not one of these. The caller skips the instruction.
pub fn answer(syndrome: u64, x: &mut [u64; 31]) -> bool {
    let access = Access::from_syndrome(syndrome);
    if !is_shut(&access) {
        return false;
    }
    if access.is_read
        && let Some(register) = x.get_mut(access.rt)
    {
        *register = 0;
    }
    true
}

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
}

/// Whether the register belongs to a feature that is shut for the guest, or that EL2 has taken.
fn is_shut(access: &Access) -> bool {
    match access.encoding {
        // The PMU, which traps while EL2 counts: the counters by number, then the other registers.
        [3, 3, 14, 8..=15, _] | [3, 0 | 3, 9, 12..=14, _] | [3, 3, 9, 4 | 6, 0] | [2, 0, 14, 8..=15, _] => true,
        // FEAT_SPE and FEAT_TRBE.
        [3, 0, 9, 9..=11, _] => true,
        // FEAT_RAS: error records.
        [3, 0, 5, 3..=5, _] => true,
        // FEAT_LOR and FEAT_MPAM.
        [3, 0, 10, 4..=5, _] => true,
        // FEAT_AMUv1.
        [3, 3, 13, 2..=15, _] => true,
        // FEAT_TRF; the trace unit; FEAT_BRBE, with its two instructions.
        [3, 0, 1, 2, 1] | [2, 1, ..] | [1, 1, 7, 2, 4 | 5] => true,
        _ => false,
    }
}
