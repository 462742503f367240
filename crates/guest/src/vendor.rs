// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vendor calls of a guest that measures ([`twofold_abi::vendor`]); an ordinary guest has no use for them.
//!
//! No call changes the content of the guest's memory.

use core::arch::asm;

use twofold_abi::vendor::{LOG_CLEAR, LOG_COALESCE, LOG_GET, LOG_START, LOG_STOP, NO_PHASE, PHASE, PHASES, SWAP_OUT};

/// A call returned a negative number.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the hypervisor answered {call} with {answer}")]
pub struct Refused {
    call: &'static str,
    answer: i64,
}

/// Starts the dirty log with the tracker of this index. `all`: all pages are dirty at first. `chunk` bytes are split at
/// once.
pub fn start_log(tracker: usize, all: bool, chunk: u64) -> Result<(), Refused> {
    call("LOG_START", LOG_START, [tracker as u64, all.into(), chunk]).map(drop)
}

/// Returns how many pages are dirty by the log.
pub fn get_log() -> Result<u64, Refused> {
    call("LOG_GET", LOG_GET, [0; 3])
}

/// Clears the pages that the last get returned.
pub fn clear_log() -> Result<(), Refused> {
    call("LOG_CLEAR", LOG_CLEAR, [0; 3]).map(drop)
}

/// Stops the log.
pub fn stop_log() -> Result<(), Refused> {
    call("LOG_STOP", LOG_STOP, [0; 3]).map(drop)
}

/// Coalesces pages into blocks, after the log has stopped; returns the number of blocks.
pub fn coalesce() -> Result<u64, Refused> {
    call("LOG_COALESCE", LOG_COALESCE, [0; 3])
}

/// Has all pages leave to the store; returns how many did.
pub fn swap_out() -> Result<u64, Refused> {
    call("SWAP_OUT", SWAP_OUT, [0; 3])
}

/// Starts the phase of this name, or none that is counted.
pub fn phase(name: Option<&str>) -> Result<(), Refused> {
    let index = name.and_then(|name| PHASES.iter().position(|phase| *phase == name));
    call("PHASE", PHASE, [index.map_or(NO_PHASE, |index| index as u64), 0, 0]).map(drop)
}

fn call(name: &'static str, function: u32, [a, b, c]: [u64; 3]) -> Result<u64, Refused> {
    let answer: i64;
    // SAFETY: the call changes no guest memory, and the registers that SMCCC lets it change are declared.
    unsafe {
        asm!("hvc #0", inout("x0") u64::from(function) => answer, inout("x1") a => _, inout("x2") b => _,
            inout("x3") c => _, clobber_abi("C"), options(nostack));
    }
    u64::try_from(answer).map_err(|_| Refused { call: name, answer })
}
