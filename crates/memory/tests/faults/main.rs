// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves for each kind of fault which answer the guest gets, what the tables say then, and which maintenance was done,
//! in which order.

#[path = "../machine/mod.rs"]
mod machine;

mod clear;
mod dry;
mod execute;
mod first_touch;
mod frames;
mod granules;
mod interrupted;
mod maintenance;
mod pool;
mod preallocated;
mod refused;
mod shared;
mod size;
mod size_device;
mod stale;
mod write;

use machine::guest::RunningGuest;
use machine::platform::PLAIN;
use twofold_memory::{Answer, Done, Pages};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Features, Ipa, Level};

use AccessKind::{Execute, Read, Write};
use FaultKind::{Permission, Translation};

/// An address where a slot may be mapped by blocks of any size.
const BASE: Ipa = Ipa::new(4 << 30);

/// No cache maintenance on the data side.
const FORCED: Features = PLAIN.with_forced_write_back(true);
/// Instruction fetches see all data.
const COHERENT: Features = PLAIN.with_instruction_cache_coherent(true);

fn mapped(level: Level, first_touch: bool) -> Answer {
    Answer::Retry(Done::Mapped { level, first_touch })
}

const STALE: Answer = Answer::Retry(Done::Stale);
const WIDENED: Answer = Answer::Retry(Done::Widened);

/// A guest with `ram` bytes of RAM at [`BASE`], and twice as much memory.
fn guest(features: Features, pages: Pages, ram: u64) -> RunningGuest {
    let huge_pages = ram.div_ceil(machine::HUGE_PAGE);
    let mut guest = RunningGuest::new(features, pages, 2 * huge_pages + 1);
    guest.add_ram(BASE, ram);
    guest
}
