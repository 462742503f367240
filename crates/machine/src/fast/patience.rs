// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a thread waits for another: it yields at first, and sleeps if the wait goes on.
//!
//! There may be more vCPUs than host CPUs. A thread that waits for a lock, or for an entry that another thread is
//! making, waits only briefly if it lets others run. A thread that waits for a clean of a large block waits long. If
//! many such threads only yielded to each other, the thread that cleans would hardly run.
//!
//! Invariant: a thread that does anything but wait starts again with full patience.

use std::thread;
use std::time::Duration;

/// The number of waits in a row.
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
    /// No wait yet.
    pub(super) const NEW: Self = Self { waited: 0 };

    /// Waits once, and returns the patience left. `yields` is the engine's request: it is more than 1 where the engine
    /// waits for a table's lock, which is never held for long ([`Platform::pause`](twofold_stage2::Platform::pause)).
    /// Such a wait only yields, and is not counted.
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

/// A thread yields this often before it sleeps.
const SHORT: u32 = 32;
/// About the time that the system needs to wake a thread up.
const FIRST: Duration = Duration::from_micros(50);
/// The longest sleep, and so the longest delay after the awaited event.
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
    fn no_thread_sleeps_for_a_lock() {
        let patience = Patience { waited: SHORT + 3 };
        assert_eq!(patience.next(128), (Wait::GiveWay, patience));
    }
}
