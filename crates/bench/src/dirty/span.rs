// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that is logged, from the log's start to its stop, once.
//!
//! Guest and collector take turns on one thread: a round of writes, a get, a clear. So what each of them takes is known, and
//! nothing that one waits for the other is in it. That the guest stands meanwhile makes no difference to what is told: it
//! writes as much, and what it would write more in that time is not counted.

use anyhow::ensure;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};

use super::guest::Guest;
use crate::clock::Moment;

/// What it took: nanoseconds of CPU time, all rounds together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// The guest's own, with the faults that it took.
    pub dirty: f64,
    /// What the collector took to find out.
    pub get: f64,
    /// What it took to clear.
    pub clear: f64,
    /// The log's start and stop.
    pub ends: f64,
    /// Of `get` the last: the guest of a migration waits for this one.
    pub last_get: f64,
    /// Faults that the guest took.
    pub faults: u64,
    /// Writes that it did.
    pub writes: u64,
}

impl Span {
    /// One more, of a slot to which nothing was done yet, with these writes in each round. With `check` each page that was
    /// written has to be told.
    pub fn measure(guest: &Guest, tracker: Tracker, rounds: &[Vec<u32>], check: bool) -> anyhow::Result<Self> {
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

    /// All of it, where a fault's way out of the guest and back takes so many nanoseconds more than here.
    pub fn cpu(&self, exit_cost: f64) -> f64 {
        self.dirty + self.get + self.clear + self.ends + self.faults as f64 * exit_cost
    }

    /// Writes of the guest's per second of CPU, its own and the collector's.
    pub fn work(&self, exit_cost: f64) -> f64 {
        self.writes as f64 / self.cpu(exit_cost) * 1e9
    }
}

/// Adds what it takes.
fn timed(sum: &mut f64, body: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let start = Moment::now();
    body()?;
    *sum += start.elapsed();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::patterns::Pattern;

    #[test]
    fn no_tracker_loses_a_page_of_any_pattern() {
        let mut guest = Guest::backed(64 << 20).unwrap();
        for pattern in [Pattern::Sequential, Pattern::Random, Pattern::Sparse, Pattern::Hot] {
            let rounds: Vec<_> = (0..4).map(|round| pattern.round(round, guest.pages(), 3000)).collect();
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
