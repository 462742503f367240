// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a run of the benchmark, and of all runs together.
//!
//! The time in which the guest was compared is left out of all of them: it stood still, and a migration without a judge has no
//! such time.

use std::collections::BTreeMap;
use std::time::Duration;

use twofold_abi::virt::STOLEN_TIME_SIZE;

use super::guest::Ended;
use super::hop::Hop;
use super::plan::{NAME, Plan, Way};
use super::watcher::Sample;
use crate::experiment::host_clock::Moment;
use crate::readable;
use crate::results::{Kind, Measurement, Platform, Quantity, Results, Series};

/// A run of the benchmark.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its requests.
    pub requests: u64,
    /// When it was ordered.
    pub begin: Moment,
    /// Its end.
    pub ended: Ended,
    /// If the guest moved meanwhile.
    pub moved: Option<Moved>,
    /// What Redis had served, over the time of the benchmark.
    pub samples: Vec<Sample>,
}

/// A move during a run.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// What both sides saw of it.
    pub hop: Hop,
    /// The longest time without an answer for the client outside.
    pub gap: Duration,
}

impl Moved {
    /// How long the guest was compared.
    fn judged(&self) -> Duration {
        let [from, to] = self.hop.judged.time;
        to.since(from)
    }

    /// From the begin to the last page at the target.
    pub fn total(&self) -> Duration {
        self.hop.complete.since(self.hop.begin).saturating_sub(self.judged())
    }

    fn downtime(&self) -> Duration {
        self.hop.entered.since(self.hop.stop).saturating_sub(self.judged())
    }
}

impl Run {
    /// From the order to the result.
    pub fn benchmark(&self) -> Duration {
        let judged = self.moved.map_or(Duration::ZERO, |moved| moved.judged());
        self.ended.at.since(self.begin).saturating_sub(judged)
    }

    /// Requests a second before the move, or of all of it.
    fn steady_rate(&self) -> f64 {
        let until = self.moved.map_or(self.ended.at, |moved| moved.hop.begin);
        let steady: Vec<_> = self.samples.iter().filter(|sample| sample.at <= until).collect();
        steady
            .first()
            .zip(steady.last())
            .map_or(0.0, |(first, last)| per_second(last.served.saturating_sub(first.served), last.at.since(first.at)))
    }

    /// Requests that were not served while the benchmark ran, because the guest moved: the area between the steady rate and
    /// what was served.
    fn lost(&self) -> f64 {
        let Some((first, last)) = self.samples.first().zip(self.samples.last()) else { return 0.0 };
        let judged = self.moved.map_or(Duration::ZERO, |moved| moved.judged());
        let time = last.at.since(first.at).saturating_sub(judged).as_secs_f64();
        self.steady_rate() * time - last.served.saturating_sub(first.served) as f64
    }

    /// Requests a second over time, and moments of the move.
    fn over_time(&self) -> (Vec<(f64, f64)>, Events) {
        let judged = self.moved.map(|moved| moved.hop.judged.time);
        // Time after the comparison is shown as if there had been none.
        let at =
            |moment: Moment| {
                let skipped = judged.map_or(Duration::ZERO, |[from, to]| {
                    if moment <= from { Duration::ZERO } else { to.min(moment).since(from) }
                });
                moment.since(self.begin).saturating_sub(skipped).as_secs_f64()
            };
        let points = self.samples.windows(2).map(|pair| {
            let time = at(pair[1].at) - at(pair[0].at);
            let served = pair[1].served.saturating_sub(pair[0].served) as f64;
            (at(pair[1].at), if time > 0.0 { served / time } else { 0.0 })
        });
        let events = self
            .moved
            .map(|Moved { hop, .. }| [(at(hop.begin), "migration".to_owned()), (at(hop.stop), "switch".to_owned())]);
        (points.collect(), events.into_iter().flatten().collect())
    }
}

/// Moments to mark: seconds since the begin, and a label.
type Events = Vec<(f64, String)>;

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Adds the figures of a run to the results.
pub fn record(results: &mut Results, plan: &Plan, way: Way, run: &Run) {
    let nanoseconds = |time: Duration| time.as_nanos() as f64;
    let mut figures = vec![
        ("benchmark", Quantity::Time, nanoseconds(run.benchmark())),
        ("steady rate", Quantity::RequestRate, run.steady_rate()),
        ("rate by the guest's clock", Quantity::RequestRate, run.ended.rate),
    ];
    if let Some(moved) = &run.moved {
        let sent = &moved.hop.sent;
        let pages = sent.pages + moved.hop.after[0];
        let again = pages.saturating_sub(plan.memory / PAGE + BESIDE);
        figures.extend([
            ("migration", Quantity::Time, nanoseconds(moved.total())),
            ("downtime", Quantity::Time, nanoseconds(moved.downtime())),
            ("longest gap outside", Quantity::Time, nanoseconds(moved.gap)),
            ("requests lost", Quantity::Requests, run.lost()),
            ("pages sent", Quantity::PagesSent, pages as f64),
            ("pages sent again", Quantity::PagesSent, again as f64),
            ("pages sent while it stood still", Quantity::PagesSent, sent.last_pages as f64),
            ("pages that it waited for", Quantity::PagesSent, moved.hop.after[1] as f64),
            ("rounds sent", Quantity::Rounds, sent.rounds as f64),
            ("bytes sent", Quantity::Bytes, sent.bytes as f64),
        ]);
    }
    let configuration = configuration(plan, way);
    for (phase, quantity, figure) in figures {
        let new = Measurement {
            experiment: NAME.to_owned(),
            platform: Platform::Hypervisor,
            configuration: configuration.clone(),
            phase: phase.to_owned(),
            quantity,
            kind: Kind::Emulated,
            runs: Vec::new(),
        };
        results.measurement(new).runs.push(figure);
    }
}

/// The requests over time of a run.
pub fn series(plan: &Plan, way: Way, run: &Run) -> Series {
    let (points, events) = run.over_time();
    Series {
        experiment: NAME.to_owned(),
        platform: Platform::Hypervisor,
        configuration: configuration(plan, way),
        name: "requests per second".to_owned(),
        points,
        events,
    }
}

/// Bytes of a page, and pages that a guest has beside its RAM.
const PAGE: u64 = 4096;
const BESIDE: u64 = STOLEN_TIME_SIZE / PAGE;

fn configuration(plan: &Plan, way: Way) -> BTreeMap<String, String> {
    let all = [
        ("bytes", plan.memory.to_string()),
        ("clients", plan.clients.to_string()),
        ("requests", plan.requests.to_string()),
        ("tracker", way.name().to_owned()),
        ("vcpus", plan.vcpus.to_string()),
    ];
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What all runs together showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    moves: u64,
    compared: u64,
    followed: u64,
    requests: u64,
    /// Answers of the client outside.
    pub answers: u64,
}

impl Totals {
    /// Adds a run.
    pub fn add(&mut self, run: &Run) {
        self.requests += run.requests;
        if let Some(moved) = &run.moved {
            self.moves += 1;
            self.compared += moved.hop.judged.pages;
            self.followed += moved.hop.after[0];
        }
    }

    /// These as notes.
    pub fn notes(&self) -> Vec<String> {
        let Self { moves, compared, followed, requests, answers } = *self;
        let count = |number: u64| readable::count(number as f64);
        let mut notes = vec![
            format!(
                "{} moves: a program of its own compared {} pages of both QEMUs' memory files before the guest's first entry, and \
                 none differs; nor does any section",
                count(moves),
                count(compared)
            ),
            format!(
                "no connection was dropped: redis-benchmark in the guest ended {} requests without an error, and a client outside \
                 had {} answers by one connection, each the value that it had set; no key was lost",
                count(requests),
                count(answers)
            ),
        ];
        if followed > 0 {
            notes.push(format!(
                "with post-copy, {} pages came after the guest's first entry: nothing but the guest, its keys and its benchmark \
                 compares these",
                count(followed)
            ));
        }
        notes
    }
}
