// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The debug registers of a guest.
//!
//! The rule: every access of a guest to a debug register traps (MDCR_EL2.TDA, TDRA and TDOSA), and the registers live in
//! the vCPU's [`State`]. So they are never saved. They are written to hardware when the guest changes them and when its
//! vCPU is loaded: MDSCR_EL1 and the OS lock always, the pairs only if MDSCR_EL1.MDE is set, because without it no
//! breakpoint or watchpoint has an effect. A pair that another vCPU left in hardware is then neither seen nor used.
//!
//! The channel to an external debugger, the claim tags, and the power-down request are the machine's: they read as zero
//! and ignore writes. The OS double lock reads as zero because the guest's ID registers do not announce it.

use super::has::Has;
use super::state::State;
use super::table::{Part, Place, Registers, TABLE, debug, debug_pairs};
use crate::registers::access::Access;

/// Answers a trapped access to a debug register on the loaded vCPU. Returns `false` if it is none that the guest has:
/// it is UNDEFINED then. The caller skips the instruction otherwise.
///
/// # Safety
/// The vCPU is loaded on this CPU, and is not running.
pub(super) unsafe fn answer(has: Has, state: &mut State, access: &Access) -> bool {
    let is_shown = |at: &usize| {
        let row = &TABLE[*at];
        matches!(row.part, Part::debug | Part::debug_pairs) && has.has(row.group)
    };
    let x = &mut state.context.x;
    let written = x.get(access.rt).copied().unwrap_or(0);
    let read = match (access.encoding, access.is_read) {
        (OSLSR, true) => LOCK_IMPLEMENTED | state.registers[Place::OSLAR_EL1 as usize] << LOCKED,
        // OSLAR_EL1 is write-only, and OSLSR_EL1 read-only.
        (OSLSR, false) | (OSLAR, true) => return false,
        (encoding, is_read) => match super::table::find(access.number()).filter(is_shown) {
            Some(at) if is_read => state.registers[at],
            Some(at) => {
                state.registers[at] = written & TABLE[at].allowed;
                // SAFETY: these are the registers of the vCPU that this CPU runs next, the caller's promise.
                unsafe { restore(has, &state.registers) };
                return true;
            }
            None if is_the_machines(encoding) => 0,
            None => return false,
        },
    };
    if access.is_read
        && let Some(register) = x.get_mut(access.rt)
    {
        *register = read;
    }
    true
}

/// Writes the debug registers that have an effect.
///
/// # Safety
/// No guest may run on this CPU, and these must be the registers of the one that runs there next.
#[inline(always)]
pub(super) unsafe fn restore(has: Has, registers: &Registers) {
    // SAFETY: the caller's promise.
    unsafe {
        debug::restore(has, registers);
        if registers[Place::MDSCR_EL1 as usize] & MONITOR_EVENTS != 0 {
            restore_pairs(has, registers);
        }
    }
}

/// Out of line: most vCPUs never come here.
#[cold]
#[inline(never)]
unsafe fn restore_pairs(has: Has, registers: &Registers) {
    // SAFETY: the caller's promise.
    unsafe { debug_pairs::restore(has, registers) };
}

/// MDSCR_EL1.MDE.
const MONITOR_EVENTS: u64 = 1 << 15;
const OSLAR: [u64; 5] = [2, 0, 1, 0, 4];
const OSLSR: [u64; 5] = [2, 0, 1, 1, 4];
/// OSLSR_EL1.OSLM.
const LOCK_IMPLEMENTED: u64 = 1 << 3;
/// OSLSR_EL1.OSLK, a bit's number.
const LOCKED: u32 = 1;

/// Whether the register exists in every CPU, and what it does is not the guest's.
fn is_the_machines(encoding: [u64; 5]) -> bool {
    matches!(
        encoding,
        // OSDTRRX_EL1, MDCCINT_EL1, OSDTRTX_EL1, OSECCR_EL1; MDRAR_EL1; OSDLR_EL1, DBGPRCR_EL1.
        [2, 0, 0, 0 | 2 | 3 | 6, 2 | 0] | [2, 0, 1, 0, 0] | [2, 0, 1, 3 | 4, 4]
        // DBGCLAIMSET_EL1, DBGCLAIMCLR_EL1, DBGAUTHSTATUS_EL1.
        | [2, 0, 7, 8 | 9 | 14, 6]
        // MDCCSR_EL0; DBGDTR_EL0, DBGDTRRX_EL0 and DBGDTRTX_EL0.
        | [2, 3, 0, 1 | 4 | 5, 0]
    )
}
