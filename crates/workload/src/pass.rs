// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pass: the accesses that one vCPU makes before it reports to the host that it is done.
//!
//! A pass accesses places of 8 bytes in order: `outer_count` groups, `outer_stride` bytes apart, of `inner_count`
//! places, `inner_stride` bytes apart. For each access a random number decides between write and read, as in
//! `dirty_log_perf_test`. With `random_order`, another number is drawn first and selects the place within the group, so
//! some places are accessed twice and some never.
//!
//! The generator is Park and Miller's (CACM 31, 1988) with the multiplier 48271. `dirty_log_perf_test` uses the same
//! one: with the same seed, the same pages are written.
//!
//! A [`Mailbox`] carries passes to a guest that shares no other memory with its host, and carries the results back.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One pass of one vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Pass {
    /// The guest virtual address of the first place, a multiple of 8.
    pub start: u64,
    /// Number of groups.
    pub outer_count: u64,
    /// Bytes from one group to the next.
    pub outer_stride: u64,
    /// Number of places in a group.
    pub inner_count: u64,
    /// Bytes from one place to the next.
    pub inner_stride: u64,
    /// The value that is written.
    pub value: u64,
    /// The generator's state: 1 to 2^31 - 2.
    pub random: u64,
    /// Percentage of accesses that write; the others read. 0 to 100.
    pub write_percent: u64,
    /// 0: places are accessed in order. 1: each access goes to a random place of the group.
    pub random_order: u64,
}

/// One access of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The guest virtual address.
    pub va: u64,
    /// Whether the access is a write.
    pub write: bool,
}

impl Pass {
    /// A pass that writes `count` places in order.
    pub const fn writes(start: u64, count: u64, stride: u64) -> Self {
        Self {
            start,
            outer_count: 1,
            outer_stride: 0,
            inner_count: count,
            inner_stride: stride,
            value: 1,
            random: 1,
            write_percent: 100,
            random_order: 0,
        }
    }

    /// A pass that reads `count` places in order.
    pub const fn reads(start: u64, count: u64, stride: u64) -> Self {
        Self { write_percent: 0, ..Self::writes(start, count, stride) }
    }

    /// The accesses of the pass, in order.
    pub const fn accesses(&self) -> Accesses {
        Accesses { pass: *self, outer: 0, inner: 0, random: Random(self.random % MODULUS) }
    }
}

/// The accesses of a pass, one by one.
#[derive(Clone, Debug)]
pub struct Accesses {
    pass: Pass,
    outer: u64,
    inner: u64,
    random: Random,
}

impl Accesses {
    /// The generator's present state, for a pass that continues from here.
    pub const fn random(&self) -> u64 {
        self.random.0
    }
}

impl Iterator for Accesses {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        let pass = &self.pass;
        if self.inner == pass.inner_count {
            self.inner = 0;
            self.outer += 1;
        }
        if self.outer >= pass.outer_count || pass.inner_count == 0 {
            return None;
        }
        let place = if pass.random_order == 0 { self.inner } else { self.random.draw() % pass.inner_count };
        let write = self.random.draw() % 100 < pass.write_percent;
        self.inner += 1;
        let offset = self.outer.wrapping_mul(pass.outer_stride).wrapping_add(place.wrapping_mul(pass.inner_stride));
        Some(Access { va: pass.start.wrapping_add(offset), write })
    }
}

/// Park and Miller's generator.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    #[inline]
    fn draw(&mut self) -> u64 {
        self.0 = self.0 * 48271 % MODULUS;
        self.0
    }
}

const MODULUS: u64 = (1 << 31) - 1;

/// The state that a guest and its host share, little-endian, in a guest page that no dirty log covers.
///
/// * M1: The guest reports that it is done. Under KVM the report is an exit with no other cause.
/// * M2: The host writes passes and their number, and resumes the guest.
/// * M3: The guest runs the passes in order, stores the generator's state in each, and goes to M1.
///
/// With `repeat`, the guest runs the passes again and again until `stop` is not 0. It reads `stop` after each group,
/// and at least at every 64th access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Mailbox {
    /// Number of passes: 1 to [`PASSES`].
    pub count: u64,
    /// 1: the guest repeats the passes until `stop` is set.
    pub repeat: u64,
    /// The host writes this while the guest runs.
    pub stop: u64,
    /// Accesses since the guest was last resumed. The guest counts while it runs.
    pub done: u64,
    /// The passes.
    pub passes: [Pass; PASSES],
}

/// The most passes that a guest runs in one go.
pub const PASSES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn places_are_accessed_in_order() {
        let pass = Pass { outer_count: 2, outer_stride: 0x1000, ..Pass::writes(0x8000, 3, 8) };
        let all: Vec<_> = pass.accesses().map(|access| access.va).collect();
        assert_eq!(all, [0x8000, 0x8008, 0x8010, 0x9000, 0x9008, 0x9010]);
        assert!(pass.accesses().all(|access| access.write));
        assert!(Pass::reads(0x8000, 3, 8).accesses().all(|access| !access.write));
        assert_eq!(Pass::writes(0, 0, 8).accesses().next(), None);
    }

    #[test]
    fn a_share_of_the_places_is_written() {
        let pass = Pass { write_percent: 25, ..Pass::writes(0, 100_000, 4096) };
        let written = pass.accesses().filter(|access| access.write).count();
        assert!((24_000..26_000).contains(&written), "{written}");
    }

    #[test]
    fn random_places_are_inside_and_go_everywhere() {
        let pass = Pass { random_order: 1, ..Pass::writes(0x8000, 1000, 16) };
        let mut places: Vec<_> = pass.accesses().map(|access| access.va).collect();
        assert_eq!(places.len(), 1000);
        assert!(places.iter().all(|va| (0x8000..0x8000 + 16_000).contains(va) && va % 16 == 0));
        places.sort_unstable();
        places.dedup();
        assert!((550..750).contains(&places.len()), "{}", places.len());
    }

    /// The generator's own check: number 10,000 from the seed 1 (CACM 36, 1993, for this multiplier).
    #[test]
    fn the_generator_is_park_and_millers() {
        let mut random = Random(1);
        let last = (0..10_000).map(|_| random.draw()).last();
        assert_eq!(last, Some(399_268_537));
    }

    #[test]
    fn a_pass_goes_on_where_the_one_before_ended() {
        let pass = Pass { write_percent: 50, ..Pass::writes(0, 64, 8) };
        let mut first = pass.accesses();
        first.by_ref().for_each(drop);
        let second = Pass { random: first.random(), ..pass };
        let long = Pass { inner_count: 128, ..pass };
        let writes = |pass: &Pass| pass.accesses().map(|access| access.write).collect::<Vec<_>>();
        assert_eq!(writes(&long)[64..], writes(&second));
    }
}
