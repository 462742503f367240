// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement of a logged guest, from the log's start to its stop.
//!
//! LoggedGuest and collector take turns on one thread: a round of writes, a get, a clear. So the time of each is known, and
//! neither contains a wait for the other. That the guest is paused during a get and a clear changes no figure: it
//! writes the same number of pages, and what it could have written meanwhile is not counted.

use anyhow::ensure;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};

use super::guest::LoggedGuest;
use crate::clock::Moment;

/// Nanoseconds of CPU time, the sum over all rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// The guest, with its faults.
    pub dirty: f64,
    /// The collector's gets.
    pub get: f64,
    /// The collector's clears.
    pub clear: f64,
    /// The log's start and stop.
    pub ends: f64,
    /// The last of the gets. The guest of a migration is stopped during this one.
    pub last_get: f64,
    /// Number of faults.
    pub faults: u64,
    /// Number of writes.
    pub writes: u64,
}

impl Span {
    /// Measures once, in a slot in its first state, with these writes in each round. With `check`, an error is returned
    /// if the log misses a written page.
    pub fn measure(guest: &LoggedGuest, tracker: Tracker, rounds: &[Vec<u32>], check: bool) -> anyhow::Result<Self> {
        let (mut span, mut vcpu, log) = (Self::default(), guest.vcpu()?, guest.log()?);
        let mut dirty = DirtyPages::new();
        timed(&mut span.ends, || Ok(log.start(&LogOptions::new(tracker))?))?;
        if tracker != Tracker::WriteProtect {
            timed(&mut span.get, || Ok(log.get(&mut dirty)?))?;
            timed(&mut span.clear, || Ok(log.clear_these(&dirty)?))?;
        }
        for round in rounds {
            span.writes += round.len() as u64;
            timed(&mut span.dirty, || {
                span.faults += guest.run(&mut vcpu, round)?;
                Ok(())
            })?;
            span.last_get = 0.0;
            timed(&mut span.last_get, || Ok(log.get(&mut dirty)?))?;
            span.get += span.last_get;
            if check {
                let lost = round.iter().find(|page| !dirty.contains(u64::from(**page)));
                ensure!(lost.is_none(), "{}: page {lost:?} was written and is in no log", tracker.name());
            }
            if tracker != Tracker::WriteProtect {
                timed(&mut span.clear, || Ok(log.clear_these(&dirty)?))?;
            }
        }
        timed(&mut span.ends, || Ok(log.stop()?))?;
        Ok(span)
    }

    /// Returns the CPU time of everything, if an exit and the return cost `exit_cost` nanoseconds more than here.
    pub fn cpu(&self, exit_cost: f64) -> f64 {
        self.dirty + self.get + self.clear + self.ends + self.faults as f64 * exit_cost
    }

    /// Returns the guest's writes per second of CPU time, its own and the collector's.
    pub fn work(&self, exit_cost: f64) -> f64 {
        self.writes as f64 / self.cpu(exit_cost) * 1e9
    }
}

/// Adds the CPU time of `body` to `sum`.
fn timed(sum: &mut f64, body: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let start = Moment::now();
    body()?;
    *sum += start.elapsed();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::workloads::Workload;

    #[test]
    fn no_tracker_loses_a_page_of_any_pattern() {
        let mut guest = LoggedGuest::backed(64 << 20).unwrap();
        for workload in [Workload::Sequential, Workload::Random, Workload::Sparse, Workload::Hot] {
            let rounds: Vec<_> = (0..4).map(|round| workload.round(round, guest.pages(), 3000)).collect();
            for tracker in Tracker::ALL {
                guest.reset().unwrap();
                let span = Span::measure(&guest, tracker, &rounds, true).unwrap();
                assert_eq!(span.writes, 12_000);
                assert_eq!(span.faults == 0, tracker == Tracker::Hardware, "{} {span:?}", tracker.name());
            }
        }
    }

    #[test]
    fn an_exit_costs_what_it_is_said_to() {
        let span = Span { dirty: 10.0, get: 20.0, clear: 30.0, ends: 40.0, last_get: 5.0, faults: 2, writes: 200 };
        assert_eq!((span.cpu(0.0), span.cpu(50.0)), (100.0, 200.0));
        assert_eq!(span.work(50.0), 1e9);
    }
}
