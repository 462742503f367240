// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patterns that tests of isolation put where a hostile guest must not find them.

/// The upper half of each word that the guest `watch` keeps in its memory and its registers.
pub const GUEST: u32 = 0x5ec2_e7c3;
/// Each 32 bits of RAM before the machine starts, as the launcher fills it. So all that EL2 never wrote has it.
pub const MACHINE: u32 = 0xe1f2_c0d3;
