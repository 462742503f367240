// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench oracle`: checks that a dirty log loses no write.
//!
//! The judge is [`twofold_oracle`], whose front page says what counts and what is lost. The collector drives it on a
//! guest of the hosted machine, while vCPUs and a device write without pause; every few rounds all writers are held for
//! the comparison. With `--store`, pages leave and come back meanwhile. Invariant: the output has a line with the counts for each tracker that ran, also if the run was
//! interrupted.

mod collector;
mod crew;
mod guest;
mod store;
mod writer;

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use indicatif::ProgressBar;
use twofold_memory::dirty::Tracker;
use twofold_oracle::{Found, Lost, Random, Tally, Unproven};

use crate::estimate;
use crate::options::OracleOptions;
use crate::output;
use crate::stop::Stop;

use collector::{Collector, Order};
use crew::Crew;
use guest::JudgedGuest;
use store::{Moved, Shelf};

pub use store::StorePlan;

/// Runs `twofold bench oracle`.
pub fn command(options: &OracleOptions) -> anyhow::Result<()> {
    let stop = Stop::on_signal()?;
    let seed = options.seed.map_or_else(any_seed, Ok)?;
    let trackers = Tracker::ALL.into_iter().filter(|tracker| options.tracker.is_none_or(|chosen| chosen == *tracker));
    let mut lost = 0;
    for tracker in trackers {
        let (tally, moved) = judge(tracker, options, seed, &stop)?;
        output::line(&Found { tracker, tally }.to_string())?;
        if let Some(moved) = moved {
            output::line(&format!("store: {}: {moved}", tracker.name()))?;
        }
        lost += tally.lost;
        if stop.is_requested() {
            bail!("stopped");
        }
    }
    if lost > 0 {
        bail!("{}; --seed {seed} repeats the choices, but not the timing", Unproven::Lost);
    }
    Ok(())
}

/// Runs one tracker on a new guest.
fn judge(tracker: Tracker, options: &OracleOptions, seed: u64, stop: &Stop) -> anyhow::Result<(Tally, Option<Moved>)> {
    let order = if options.copy_first { Order::CopyFirst } else { Order::ClearFirst };
    let mut random = Random::new(seed, COLLECTOR);
    let guest = JudgedGuest::new(options.store_plan(), &mut random)?;
    let progress = progress(options.comparisons, tracker)?;
    let said = Cell::new(0);
    let report = |lost: &Lost| {
        said.set(said.get() + 1);
        if said.get() <= SAID {
            let tracker = tracker.name();
            progress.suspend(|| output::error(&format!("{tracker}: {lost} (seed {seed})")));
        }
    };
    let tally = Crew::with(&guest, seed, |crew| {
        let collector = Collector::new((&guest, crew), (tracker, order), random, &report)?;
        collector.run(options.comparisons, stop, |compared| progress.set_position(compared))
    });
    progress.finish_and_clear();
    Ok((tally?, guest.shelf.as_ref().map(Shelf::moved)))
}

/// Lost pages beyond this number are only counted.
const SAID: u64 = 20;

/// The collector's stream of random numbers.
const COLLECTOR: u64 = 0;

/// Returns the environment's seed, or a new one.
fn any_seed() -> anyhow::Result<u64> {
    match std::env::var("TWOFOLD_SEED") {
        Ok(seed) => Ok(seed.parse()?),
        // Only the nanoseconds, because they differ from run to run.
        Err(_) => Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos().into()),
    }
}

/// Returns a bar that is drawn on a terminal and silent elsewhere.
fn progress(comparisons: u64, tracker: Tracker) -> anyhow::Result<ProgressBar> {
    let style = estimate::style("{msg:13} {bar:40} {pos}/{len} compared ({elapsed} gone{left})")?;
    Ok(ProgressBar::new(comparisons).with_style(style).with_message(tracker.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tracker: Tracker, order: Order, store: Option<StorePlan>, comparisons: u64) -> (Tally, Option<Moved>) {
        let seed = any_seed().unwrap();
        println!("TWOFOLD_SEED={seed}");
        let mut random = Random::new(seed, COLLECTOR);
        let guest = JudgedGuest::new(store, &mut random).unwrap();
        let print = |lost: &Lost| println!("{lost}");
        let collect = |crew: &Crew| {
            let collector = Collector::new((&guest, crew), (tracker, order), random, &print)?;
            collector.run(comparisons, &Stop::never(), |_| {})
        };
        let tally = Crew::with(&guest, seed, collect).unwrap();
        (tally, guest.shelf.as_ref().map(Shelf::moved))
    }

    #[test]
    fn no_tracker_loses_a_page() {
        for tracker in Tracker::ALL {
            let (tally, _) = run(tracker, Order::ClearFirst, None, 20_000);
            assert!(tally.compared >= 20_000 && tally.redirtied > 0, "{tracker:?}: {tally:?}");
            assert_eq!(tally.lost, 0, "{tracker:?}: {tally:?}");
        }
    }

    /// Few frames, and a store that often fails.
    const STORE: StorePlan = StorePlan { limit: 2 << 20, fails: 20 };

    #[test]
    #[ignore = "half a minute for each tracker on a busy machine; `bench oracle --store` does the same"]
    fn no_tracker_loses_a_page_that_leaves() {
        for tracker in Tracker::ALL {
            let (tally, moved) = run(tracker, Order::ClearFirst, Some(STORE), 2_000);
            let moved = moved.unwrap();
            println!("{}: {tally:?}: {moved}", tracker.name());
            assert_eq!(tally.lost, 0, "{tracker:?}: {tally:?}");
            assert!(tally.compared >= 2_000, "{tracker:?}: {tally:?}");
            let Moved { left, brought, failed, compared, .. } = moved;
            assert!(left > 100 && brought > 100 && failed > 0 && compared > 100, "{tracker:?}: {moved}");
        }
    }

    #[test]
    #[ignore = "as above; `bench oracle --store --copy-first` does the same"]
    fn a_copy_before_the_clear_loses_pages_that_leave() {
        assert!((0..20).any(|_| run(Tracker::Manual, Order::CopyFirst, Some(STORE), 2_000).0.lost > 0));
    }

    #[test]
    fn a_limit_that_is_too_small_is_refused_with_the_least() {
        let store = StorePlan { limit: 63 * guest::PAGE, fails: 20 };
        let refused = JudgedGuest::new(Some(store), &mut Random::new(1, COLLECTOR)).err().unwrap();
        assert!(refused.to_string().contains("needs 64"), "{refused}");
    }

    #[test]
    fn a_copy_before_the_clear_loses_pages() {
        // A page must be written between copy and clear; repeat until it is.
        assert!((0..20).any(|_| run(Tracker::Manual, Order::CopyFirst, None, 20_000).0.lost > 0));
    }
}
