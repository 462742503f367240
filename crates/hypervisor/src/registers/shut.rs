// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers the guest's accesses to registers that trap although the guest may have them.
//!
//! A register of a feature that is hidden from the guest is UNDEFINED. Few registers trap and are not: error records
//! belong to the machine, but the guest's ID registers announce FEAT_RAS, so it has the registers and finds no record
//! (ERRIDR_EL1.NUM is zero). And one trap control covers two ID registers beside that of SME, which is hidden.

use super::access::Access;
use crate::read_sysreg;

/// Emulates a trapped MSR, MRS, SYS or SYSL of the guest on its general registers (`x`). Returns `false` if the
/// register is not one of these: it is UNDEFINED. The caller skips the instruction.
pub fn answer(access: &Access, x: &mut [u64; 31]) -> bool {
    let value = match (access.encoding, access.is_read) {
        // FEAT_RAS: error records.
        ([3, 0, 5, 3..=5, _], _) => 0,
        (REVIDR, true) => read_sysreg!(REVIDR_EL1),
        (AIDR, true) => read_sysreg!(AIDR_EL1),
        _ => return false,
    };
    if access.is_read
        && let Some(register) = x.get_mut(access.rt)
    {
        *register = value;
    }
    true
}

const REVIDR: [u64; 5] = [3, 0, 0, 0, 6];
const AIDR: [u64; 5] = [3, 1, 0, 0, 7];
