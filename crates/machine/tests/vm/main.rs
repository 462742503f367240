// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines in the fast mode.

mod alone;
mod key_value;
mod modes;
mod passes;
mod programs;
mod scenarios;
mod single;
mod threads;
mod together;

use std::sync::Arc;

use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::interrupts::Interrupts;
use twofold_stage2::Features;

use scenarios::{PART, Room};

/// The features that make most TLB and cache maintenance unnecessary.
const FEATURES: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_zero_block(64);

/// A machine with memory for `parts` virtual machines.
fn machine(cpus: usize, parts: u64) -> Arc<FastMachine> {
    let arena = Arena::new(&ArenaOptions::new(parts * PART, Backing::Anonymous)).unwrap();
    FastMachine::new(Arc::new(arena), FEATURES, cpus).unwrap()
}

fn room(machine: &Arc<FastMachine>) -> Room<'_, FastPlatform> {
    let platform = FastPlatform(Arc::clone(machine));
    Room { arena: machine.arena(), platform, features: FEATURES, interrupts: Interrupts::new }
}
