// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that move while they run, on the hosted machine: with each tracker, over one stream and several, with links
//! that are cut and targets that refuse. Before the target's first entry, each page's digest is compared with the
//! stopped source's.
//!
//! `TWOFOLD_MOVES` is the number of moves with each tracker, and `TWOFOLD_CUTS` the number of links that are cut.
//! `TWOFOLD_SEED` is the seed.

mod arriving;
mod back_and_forth;
mod cancelled;
mod controls;
mod cut;
mod guest;
mod link;
mod memories;
mod moved;
mod noted;
mod peer;
mod peer_alone;
mod planned;
mod postcopied;
mod program;
mod refused;
mod rounds;
mod sides;
mod slow;
mod snapshots;
mod steps;
mod store;
mod streams;
mod swapped;
mod threads;

/// A generator of random numbers (Steele and others' SplitMix64, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Returns a number that the environment may set.
fn setting(name: &str, quick: u64) -> u64 {
    std::env::var(name).ok().and_then(|count| count.parse().ok()).unwrap_or(quick)
}
