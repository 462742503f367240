// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least slowing-down of vCPUs with which pre-copy converges.

use alloc::vec::Vec;

use super::forecast::{Outcome, follow};
use super::measured::{Measured, Wanted};

/// A vCPU's speed when it is not slowed down, in per mille.
pub const FULL_SPEED: u16 = 1000;

/// How much each vCPU is slowed down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// In per mille of a vCPU's speed, in the order of [`Measured::writes`]; 0 for a vCPU at full speed.
    pub slowed: Vec<u16>,
    /// The pages a second that the guest then writes at most.
    pub rate: u64,
}

/// Returns the least throttle with which pre-copy converges; `None` if the most that is allowed is not enough.
///
/// The vCPUs that write most are slowed down to one common rate. A vCPU that writes less than that keeps its speed.
pub fn throttle(measured: &Measured<'_>, wanted: &Wanted) -> Option<Throttle> {
    // That it is forced to end is another outcome.
    let converges = |rate| follow(measured, wanted, rate).outcome == Outcome::Converges;
    let most = last(measured.rate(), converges)?;
    let slowest = |rate: u64| per_mille(rate, FULL_SPEED - wanted.throttle.min(FULL_SPEED - 1)).1;
    let capped = |rate: u64, cap: u64| rate.min(cap).max(slowest(rate));
    let sum = |cap| measured.writes.iter().fold(0_u64, |sum, &rate| sum.saturating_add(capped(rate, cap)));
    let cap = last(measured.writes.iter().copied().max()?, |cap| sum(cap) <= most)?;
    let mut all = Throttle { slowed: Vec::with_capacity(measured.writes.len()), rate: 0 };
    for &rate in measured.writes {
        // Rounded to more throttle.
        let speed = match rate {
            0 => FULL_SPEED,
            _ => (u128::from(capped(rate, cap)) * u128::from(FULL_SPEED) / u128::from(rate)) as u16,
        };
        all.slowed.push(FULL_SPEED - speed);
        all.rate = all.rate.saturating_add(per_mille(rate, speed).0);
    }
    Some(all)
}

/// Returns a rate's part in per mille, rounded down and up.
fn per_mille(rate: u64, part: u16) -> (u64, u64) {
    let (part, full) = (u128::from(rate) * u128::from(part), u128::from(FULL_SPEED));
    ((part / full) as u64, part.div_ceil(full) as u64)
}

/// Returns the last number up to `end` with which `holds`, which holds up to some number and not beyond.
fn last(end: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    if !holds(0) {
        return None;
    }
    let (mut good, mut bad) = (0, end);
    if holds(end) {
        return Some(end);
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if holds(middle) { good = middle } else { bad = middle }
    }
    Some(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_found() {
        for end in [0, 1, 2, 10] {
            assert_eq!(last(end, |_| false), None);
            for good in 0..=end {
                assert_eq!(last(end, |number| number <= good), Some(good), "of {end}");
            }
        }
    }
}
