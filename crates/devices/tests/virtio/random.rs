// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers from a seed that a failing test prints.

use std::cell::Cell;

/// Runs `test` with the seeds `0..seeds`, or with the one in `TWOFOLD_SEED`.
pub fn with_seeds(seeds: u64, test: impl Fn(&Random)) {
    let one = std::env::var("TWOFOLD_SEED").ok().map(|seed| seed.parse().expect("TWOFOLD_SEED is a number"));
    for seed in one.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        let _printer = Printer(seed);
        test(&Random::new(seed));
    }
}

struct Printer(u64);

impl Drop for Printer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to reproduce this failure: TWOFOLD_SEED={}", self.0);
        }
    }
}

/// SplitMix64.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ 0x1234_5678_9abc_def1))
    }

    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub fn bytes(&self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}
