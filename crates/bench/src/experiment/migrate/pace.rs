// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast a vCPU serves: requests come at a rate, and a vCPU that is slowed down gets fewer.
//!
//! Invariant: requests that came while the guest stood still are not made up for. Clients wait for an answer before they
//! ask again.

use std::time::{Duration, Instant};

/// The pace of one vCPU.
#[derive(Debug)]
pub struct Pace {
    /// Requests a second; 0: as many as it can serve.
    rate: u64,
    /// When the next request comes.
    due: Instant,
}

/// The requests that are served in one go take about this time.
const GO: Duration = Duration::from_millis(1);
/// The same, if there is no rate.
const MANY: u64 = 1000;
/// How much a vCPU may be late before requests are dropped.
const LATE: Duration = Duration::from_millis(5);

impl Pace {
    /// A pace of `rate` requests a second.
    pub fn new(rate: u64) -> Self {
        Self { rate, due: Instant::now() }
    }

    /// The guest goes on: what came while it stood still is not made up for.
    pub fn resume(&mut self) {
        self.due = self.due.max(Instant::now());
    }

    /// How long the vCPU has to wait for its next requests.
    pub fn early(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// The requests to serve in one go.
    pub fn requests(&self) -> u64 {
        if self.rate == 0 { MANY } else { (self.rate * GO.as_millis() as u64 / 1000).clamp(1, MANY) }
    }

    /// Notes that requests were served in some time, by a vCPU that is slowed down by a part in per mille.
    pub fn served(&mut self, requests: u64, took: Duration, slowed: u16) {
        let (slowed, now) = (u32::from(slowed.min(999)), Instant::now());
        if self.rate == 0 {
            self.due = now + took * slowed / (1000 - slowed);
            return;
        }
        let apart = Duration::from_nanos(requests * 1_000_000_000 / self.rate) * 1000 / (1000 - slowed);
        self.due = self.due.max(now.checked_sub(LATE).unwrap_or(now)) + apart;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_that_is_slowed_down_gets_fewer_requests() {
        for rate in [1000, 50_000] {
            let wait = |slowed| {
                let mut pace = Pace::new(rate);
                pace.due = Instant::now() + Duration::from_secs(5);
                let before = pace.due;
                pace.served(rate, Duration::ZERO, slowed);
                pace.due - before
            };
            assert_eq!(wait(0), Duration::from_secs(1));
            assert_eq!(wait(500), Duration::from_secs(2));
            assert_eq!(wait(990), Duration::from_secs(100));
        }
        let mut pace = Pace::new(0);
        pace.served(5, Duration::from_secs(10), 750);
        assert!(pace.early() > Duration::from_secs(25));
    }

    #[test]
    fn what_came_while_it_stood_still_is_not_made_up_for() {
        let mut pace = Pace::new(1000);
        pace.due = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        pace.served(10, Duration::ZERO, 0);
        assert!(pace.early() > Duration::ZERO, "10 ms are due, and at most 5 are made up for");
        pace.due = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let before = Instant::now();
        pace.resume();
        assert!(pace.due >= before);
    }
}
