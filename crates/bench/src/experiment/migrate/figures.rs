// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a move, and of all moves together.
//!
//! The time in which the memory was compared is left out of all of them: the guest stood still, and a migration without a
//! judge has no such time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::orders::{Received, Sent};
use super::plan::{NAME, Plan};
use super::settings::{How, PAGE};
use crate::experiment::host_clock::Moment;
use crate::readable;
use crate::results::{Kind, Measurement, Platform, Quantity, Results, Series};

/// A move.
#[derive(Clone, Debug)]
pub struct Moved {
    sent: Sent,
    received: Received,
    /// Pages of the guest.
    all: u64,
    /// The downtime that was asked for.
    wanted: Duration,
}

impl Moved {
    /// What both sides saw of a move.
    pub fn of(plan: &Plan, sent: Sent, received: Received) -> Self {
        let settings = &plan.settings;
        Self { sent, received, all: settings.memory / PAGE, wanted: settings.downtime }
    }

    /// From the begin to the moment at which all of the guest is at the target.
    fn migration(&self) -> Duration {
        self.received.complete.since(self.sent.begin).saturating_sub(self.received.judged)
    }

    /// From the begin of the stop to the moment at which all vCPUs are in the guest.
    fn downtime(&self) -> Duration {
        self.received.entered.since(self.sent.stop).saturating_sub(self.received.judged)
    }

    /// The requests served during the migration.
    fn served(&self) -> u64 {
        self.received.served.saturating_sub(self.sent.served)
    }

    /// Requests a second in the time before the migration, and in the time after it.
    fn rates_around(&self) -> [f64; 2] {
        let Self { sent, received, .. } = self;
        let before =
            sent.samples.first().map(|first| (sent.served.saturating_sub(first.served), sent.begin.since(first.at)));
        let after = received
            .samples
            .last()
            .map(|last| (last.served.saturating_sub(received.served), last.at.since(received.complete)));
        [before, after].map(|rate| rate.map_or(0.0, |(served, time)| per_second(served, time)))
    }

    /// Requests a second over time, from the time before the migration on, and the moments at which it began and at which
    /// the guest changed hands.
    fn over_time(&self) -> (Vec<(f64, f64)>, [f64; 2]) {
        let Self { sent, received, .. } = self;
        let Some(start) = sent.samples.first().map(|first| first.at) else { return (Vec::new(), [0.0; 2]) };
        let at = |moment: Moment| moment.since(start).as_secs_f64();
        let judged = received.judged.as_secs_f64();
        let rate = |pair: &[super::meter::Sample]| {
            let (one, other) = (pair[0], pair[1]);
            per_second(other.served.saturating_sub(one.served), other.at.since(one.at))
        };
        let before = sent.samples.windows(2).filter(|pair| pair[0].at < sent.stop);
        let before = before.map(|pair| (at(pair[1].at).min(at(sent.stop)), rate(pair)));
        let after = received.samples.windows(2).map(|pair| (at(pair[1].at) - judged, rate(pair)));
        let (stop, entered) = (at(sent.stop), at(received.entered) - judged);
        let still = [(stop, 0.0), (entered, 0.0)];
        (before.chain(still).chain(after).collect(), [at(sent.begin), stop])
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Adds the figures of a move to the results.
pub fn record(results: &mut Results, plan: &Plan, how: How, moved: &Moved) {
    let configuration = configuration(plan, how);
    let [before, after] = moved.rates_around();
    let nanoseconds = |time: Duration| time.as_nanos() as f64;
    let during = per_second(moved.served(), moved.migration());
    let figures = [
        ("migration", Quantity::Time, nanoseconds(moved.migration())),
        ("downtime", Quantity::Time, nanoseconds(moved.downtime())),
        ("rate before", Quantity::RequestRate, before),
        ("rate during", Quantity::RequestRate, during),
        ("rate after", Quantity::RequestRate, after),
        ("requests during", Quantity::Requests, moved.served() as f64),
        ("pages sent", Quantity::PagesSent, moved.sent.pages as f64),
        ("pages sent again", Quantity::PagesSent, moved.sent.pages.saturating_sub(moved.all) as f64),
        ("rounds sent", Quantity::Rounds, moved.sent.rounds as f64),
        ("bytes sent", Quantity::Bytes, moved.sent.bytes as f64),
    ];
    for (phase, quantity, figure) in figures {
        let new = Measurement {
            experiment: NAME.to_owned(),
            platform: Platform::Machine,
            configuration: configuration.clone(),
            phase: phase.to_owned(),
            quantity,
            kind: Kind::Native,
            runs: Vec::new(),
        };
        results.measurement(new).runs.push(figure);
    }
}

/// The requests over time of a move.
pub fn series(plan: &Plan, how: How, moved: &Moved) -> Series {
    let (points, [begin, switch]) = moved.over_time();
    Series {
        experiment: NAME.to_owned(),
        platform: Platform::Machine,
        configuration: configuration(plan, how),
        name: "requests per second".to_owned(),
        points,
        events: vec![(begin, "migration".to_owned()), (switch, "switch".to_owned())],
    }
}

fn configuration(plan: &Plan, how: How) -> BTreeMap<String, String> {
    let settings = &plan.settings;
    let bandwidth = settings.bandwidth.map(|bandwidth| ("bandwidth", bandwidth.to_string()));
    let all = [
        ("bytes", settings.memory.to_string()),
        ("compression", if settings.compressed { "lz4" } else { "off" }.to_owned()),
        ("rate", settings.rate.to_string()),
        ("sets", settings.sets.to_string()),
        ("streams", settings.streams.to_string()),
        ("tracker", how.name().to_owned()),
        ("vcpus", settings.vcpus.to_string()),
    ];
    let postcopy = settings.postcopy_if_needed.then(|| ("post-copy", "if needed".to_owned()));
    all.into_iter().chain(bandwidth).chain(postcopy).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What all moves together showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    moves: u64,
    compared: u64,
    longer: u64,
    slowed: u16,
    waited: u64,
    /// Moves by pre-copy that post-copy has ended.
    switched: u64,
}

impl Totals {
    /// Adds a move.
    pub fn add(&mut self, moved: &Moved) {
        self.moves += 1;
        self.compared += moved.received.compared.pages;
        self.longer += u64::from(moved.downtime() > moved.wanted);
        self.slowed = self.slowed.max(moved.sent.slowed);
        self.waited += moved.received.waited;
        self.switched += u64::from(moved.sent.rounds > 0 && moved.sent.later > 0);
    }

    /// These as notes.
    pub fn notes(&self, plan: &Plan) -> Vec<String> {
        let Self { moves, compared, longer, slowed, waited, switched } = *self;
        let count = |number: u64| readable::count(number as f64);
        let wanted = plan.settings.downtime.as_secs_f64() * 1e3;
        let mut notes = vec![format!(
            "{} moves: a program of its own compared {} pages with the stopped source's before the guest could reach them, \
             and none differs; no word of the store differs",
            count(moves),
            count(compared)
        )];
        if longer > 0 {
            notes.push(format!(
                "{} of {} moves took a longer downtime than the {wanted} ms asked for",
                count(longer),
                count(moves)
            ));
        }
        if slowed > 0 {
            notes.push(format!("vCPUs were slowed down by up to {:.1} %", f64::from(slowed) / 10.0));
        }
        if plan.settings.postcopy_if_needed {
            notes.push(format!("{} of {} moves by pre-copy were ended by post-copy", count(switched), count(moves)));
        }
        if waited > 0 {
            notes.push(format!("with post-copy, vCPUs waited {} times for an absent page", count(waited)));
        }
        notes
    }
}
