// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a thread waits for another: soon it gives way, and later it sleeps.
//!
//! There are more vCPUs than the system has CPUs. Who waits for a lock or for an entry that somebody is making has what it
//! waits for in a moment, if it lets others run. Who waits for one that cleans a large block waits for long, and with many
//! of them giving way to each other nobody else would get anything done.
//!
//! Invariant: whoever does anything but wait begins anew, with little patience lost.

use std::thread;
use std::time::Duration;

/// How often a thread has waited in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    waited: u32,
}

/// What a thread does while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    GiveWay,
    Sleep(Duration),
}

impl Patience {
    /// Nothing was waited for yet.
    pub(super) const NEW: Self = Self { waited: 0 };

    /// Waits. `yields` is what the engine asks for: more than one where it waits for a table's lock, which nobody has for
    /// long ([`Platform::pause`](twofold_stage2::Platform::pause)).
    ///
    /// What is left of it afterwards.
    pub(super) fn wait(self, yields: u32) -> Self {
        let (wait, left) = self.next(yields);
        match wait {
            Wait::GiveWay => thread::yield_now(),
            Wait::Sleep(time) => thread::sleep(time),
        }
        left
    }

    fn next(self, yields: u32) -> (Wait, Self) {
        if yields > 1 {
            return (Wait::GiveWay, self);
        }
        let left = Self { waited: self.waited.saturating_add(1) };
        let wait = match self.waited.checked_sub(SHORT) {
            None => Wait::GiveWay,
            Some(long) => Wait::Sleep((FIRST * (1 << long.min(16))).min(LONGEST)),
        };
        (wait, left)
    }
}

/// So often a thread gives way before it sleeps.
const SHORT: u32 = 32;
/// As long as the system takes at least to wake a thread up again.
const FIRST: Duration = Duration::from_micros(50);
/// What the end of a wait is noticed late by, at most.
const LONGEST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_stay_short_and_long_ones_cost_little() {
        let mut patience = Patience::NEW;
        let mut waits = Vec::new();
        for _ in 0..SHORT + 20 {
            let (wait, left) = patience.next(1);
            waits.push(wait);
            patience = left;
        }
        let (short, long) = waits.split_at(SHORT as usize);
        assert!(short.iter().all(|wait| *wait == Wait::GiveWay));
        let sleep = |micros| Wait::Sleep(Duration::from_micros(micros));
        assert_eq!(long[..7], [50, 100, 200, 400, 800, 1000, 1000].map(sleep));
        assert!(long[7..].iter().all(|wait| *wait == sleep(1000)));
        assert_eq!(Patience { waited: u32::MAX }.next(1), (sleep(1000), Patience { waited: u32::MAX }));
    }

    #[test]
    fn for_a_lock_nobody_sleeps() {
        let patience = Patience { waited: SHORT + 3 };
        assert_eq!(patience.next(128), (Wait::GiveWay, patience));
    }
}
