// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened between two samples, per second.
//!
//! Invariant: a rate is there only if both samples have its figure, and the guest did not begin to count anew between them.

use std::collections::BTreeMap;

use serde::Serialize;
use twofold_launch::sample::{GuestSample, Sample};

/// A sample, with what happened since the one before.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// When it was taken: milliseconds since 1970.
    pub time_ms: u64,
    /// The time since the sample before; 0 for the first.
    pub seconds: f64,
    /// The guests.
    pub guests: Vec<GuestRates>,
    /// The figures of the hypervisor.
    pub hypervisor: BTreeMap<String, u64>,
}

/// The same of a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GuestRates {
    /// The sample.
    #[serde(flatten)]
    pub sample: GuestSample,
    /// By key: how much more it is each second. Empty in the first sample.
    pub rates: BTreeMap<String, f64>,
}

impl Rates {
    /// What happened from `before` to `now`.
    pub fn between(before: Option<&Sample>, now: Sample) -> Self {
        let seconds = before.map_or(0.0, |before| now.time_ms.saturating_sub(before.time_ms) as f64 / 1000.0);
        let of = |sample: GuestSample| {
            let old = before.and_then(|before| before.guests.iter().find(|guest| guest.name == sample.name));
            let rate = |(key, value): (&String, &u64)| {
                let more = value.checked_sub(*old?.figures.get(key)?)?;
                (seconds > 0.0).then(|| (key.clone(), more as f64 / seconds))
            };
            let rates = sample.figures.iter().filter_map(rate).collect();
            GuestRates { sample, rates }
        };
        let guests = now.guests.into_iter().map(of).collect();
        Self { time_ms: now.time_ms, seconds, guests, hypervisor: now.hypervisor }
    }
}

impl GuestRates {
    /// The rates of all keys of this group together.
    pub fn rate(&self, group: &str) -> Option<f64> {
        let of = |(key, _): &(&String, &f64)| key.split_once('.').is_some_and(|(before, _)| before == group);
        let mut rates = self.rates.iter().filter(of).map(|(_, rate)| *rate).peekable();
        rates.peek()?;
        Some(rates.sum())
    }

    /// The rates of those of these keys that are known, together.
    pub fn sum(&self, keys: &[&str]) -> Option<f64> {
        let mut rates = keys.iter().filter_map(|key| self.rates.get(*key).copied()).peekable();
        rates.peek()?;
        Some(rates.sum())
    }

    /// The share of a second that a rate of ticks is, by the guest's counter.
    pub fn share(&self, key: &str) -> Option<f64> {
        let frequency = *self.sample.figures.get("counter.frequency")? as f64;
        Some(self.rates.get(key)? / frequency)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two samples of two guests, a second and a half apart.
    pub fn samples() -> [Sample; 2] {
        let guest = |name: &str, state: &str, hvc, frames, more: [(&str, u64); 3]| GuestSample {
            name: name.to_owned(),
            state: state.to_owned(),
            memory: 512 << 20,
            cpus: 2,
            figures: [
                ("exits.hvc", hvc),
                ("exits.data_abort", 2 * hvc),
                ("faults.translation", 10),
                ("tlbi.vmalls12e1is", hvc / 3),
                ("leaves.pages_4k", frames),
                ("leaves.blocks_2m", 7),
                ("leaves.blocks_1g", 0),
                ("counter.frequency", 1_000_000),
                ("cpu.ran", 3 * hvc),
            ]
            .into_iter()
            .chain(more)
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        };
        // One has a disk and a dirty log, the other one a network card.
        let sample = |time_ms, hvc| {
            let disk = [("disk.requests", hvc / 2), ("disk.bytes_read", hvc * 4608), ("dirty.pages", hvc)];
            let net = [("net.frames_sent", hvc / 100), ("net.bytes_sent", 10 * hvc), ("net.bytes_received", 5 * hvc)];
            Sample {
                time_ms,
                guests: vec![guest("web", "running", hvc, 1234, disk), guest("db", "stopped", 900, 0, net)],
                hypervisor: [("heap.grown".to_owned(), 4096), ("memory.free".to_owned(), 1929 << 20)].into(),
            }
        };
        [sample(1000, 300), sample(2500, 1500)]
    }

    #[test]
    fn rates_are_what_came_each_second() {
        let [before, now] = samples();
        let first = Rates::between(None, before.clone());
        assert_eq!((first.seconds, first.guests[0].rates.len(), first.guests[0].rate("exits")), (0.0, 0, None));
        let mut old = before;
        old.guests[1].figures.insert("exits.hvc".to_owned(), 1000);
        let rates = Rates::between(Some(&old), now);
        assert_eq!(rates.seconds, 1.5);
        assert_eq!(rates.guests[0].rate("exits"), Some(2400.0));
        assert_eq!(rates.guests[0].rate("exit"), None);
        assert_eq!(rates.guests[1].sum(&["net.bytes_sent", "net.bytes_received"]), Some(12_000.0));
        assert_eq!(rates.guests[0].sum(&["disk.requests", "disk.none"]), Some(400.0));
        assert_eq!(rates.guests[0].sum(&["disk.none"]), None);
        assert_eq!(rates.guests[0].share("cpu.ran"), Some(0.0024));
        // It counts anew.
        assert_eq!((rates.guests[1].rates.get("exits.hvc"), rates.guests[1].rates["exits.data_abort"]), (None, 0.0));
    }
}
