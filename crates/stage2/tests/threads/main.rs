// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that operations may run side by side: with real threads at random, and, for two operations, at every step
//! that one of them can be interrupted at.
//!
//! Random runs print their seed. `TWOFOLD_SEED` takes it, for the same operations, but not for the same timing.

#[path = "../platform/mmu.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
mod mmu;
#[path = "../platform/window.rs"]
mod window;

// Thousands of guests with their threads take too long where each step is interpreted.
#[cfg(not(miri))]
mod duel;
mod faults;
mod maintenance;
mod shared;

use std::hash::{BuildHasher, RandomState};

use shared::{Crew, Guest, home};
use twofold_stage2::{Access, Attributes, Features, Ipa, IpaRange, Level};

const KIB_4: u64 = 4 << 10;
const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// Features that need no cache maintenance.
const FWB: Features = LINES.with_forced_write_back(true).with_tlbi_range(true);
/// Features with long cache lines.
const LINES: Features = Features::NONE.with_data_line(2048).with_instruction_cache_coherent(true);
const READ: Attributes = Attributes::ram(Access::READ);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
const BASE: Ipa = Ipa::new(4 * GIB);

/// Pseudo-random numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

fn seed() -> u64 {
    let seed = std::env::var("TWOFOLD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("TWOFOLD_SEED={seed}");
    seed
}

/// Runs `body` in `count` threads. Each gets its number and random numbers of its own.
fn in_threads(count: u64, seed: u64, body: impl Fn(u64, &mut Random, &Crew) + Sync) {
    let crew = Crew::new(count);
    std::thread::scope(|scope| {
        for number in 0..count {
            let (body, crew) = (&body, &crew);
            scope.spawn(move || {
                let _member = crew.join();
                let mut random = Random(seed.wrapping_mul(2 * number + 3) | 1);
                shared::jitter(random.below(u64::from(u32::MAX)));
                body(number, &mut random, crew);
            });
        }
    });
}

fn range(start: Ipa, size: u64) -> IpaRange {
    start..start + size
}

/// A smaller amount of work where each step is interpreted.
const fn volume(natively: u64, by_miri: u64) -> u64 {
    if cfg!(miri) { by_miri } else { natively }
}
