// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `semihosting=PATH`: tries to create a file of the host's by a semihosting call (Arm "Semihosting for AArch32 and
//! AArch64").
//!
//! Success is an UNDEFINED instruction: then no debugger or emulator serves the call.

use core::ffi::CStr;

use crate::features::trial::execute_with;
use crate::uart::println;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the path has more than {} bytes", PATH_MAX - 1)]
    Path,
    #[error("SYS_OPEN was served, and returned {0:#x}")]
    Served(u64),
}

/// Runs the program.
pub fn run(path: &str) -> Result<(), Failure> {
    /// `HLT #0xf000`.
    const CALL: u32 = 0xd45e_0000;
    const SYS_OPEN: u64 = 0x01;
    /// "wb" of ISO C: the file is created, or truncated.
    const WRITE: u64 = 5;
    let mut bytes = [0; PATH_MAX];
    let room = bytes[..PATH_MAX - 1].get_mut(..path.len()).ok_or(Failure::Path)?;
    room.copy_from_slice(path.as_bytes());
    let path = CStr::from_bytes_until_nul(&bytes).map_err(|_| Failure::Path)?;
    let block = [path.as_ptr().expose_provenance() as u64, WRITE, path.count_bytes() as u64];
    let tried = execute_with(CALL, SYS_OPEN, block.as_ptr().expose_provenance() as u64);
    if !tried.is_undefined() {
        return Err(Failure::Served(tried.x0));
    }
    println!("semihosting: UNDEFINED");
    Ok(())
}

/// The most bytes of a path with its end.
const PATH_MAX: usize = 512;
