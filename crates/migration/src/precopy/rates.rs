// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rates of link and guest, as rounds measure them.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::plan::{FULL_SPEED, Throttle};

/// What rounds have measured so far.
pub(super) struct Rates {
    /// Pages a second that the last round sent.
    bandwidth: u64,
    /// Pages a second that each vCPU writes at full speed; one number if the tracker cannot tell vCPUs apart.
    writes: Vec<u64>,
    /// How much each is slowed down now.
    slowed: Vec<u16>,
}

impl Rates {
    pub fn new() -> Self {
        Self { bandwidth: 0, writes: Vec::new(), slowed: Vec::new() }
    }

    pub fn bandwidth(&self) -> u64 {
        self.bandwidth
    }

    pub fn writes(&self) -> &[u64] {
        &self.writes
    }

    /// Notes a round's pages. A round without pages measures nothing.
    pub fn sent(&mut self, pages: u64, time: Duration) {
        if pages > 0 {
            self.bandwidth = per_second(pages, time).max(1);
        }
    }

    /// Notes the pages that the guest has written in a time. `by_vcpu` has the pages that each vCPU began to write: the
    /// parts of the whole.
    pub fn written(&mut self, pages: u64, time: Duration, by_vcpu: Option<&[u64]>) {
        let rate = per_second(pages, time);
        let measured = match by_vcpu {
            Some(counts) => match counts.iter().sum() {
                // Nothing was attributed, so each vCPU may have written any page.
                0 => counts.iter().map(|_| part(rate, 1, counts.len() as u64)).collect(),
                sum => counts.iter().map(|&count| part(rate, count, sum)).collect(),
            },
            None => vec![rate],
        };
        let slowed = |vcpu: usize| self.slowed.get(vcpu).copied().unwrap_or(0).min(FULL_SPEED - 1);
        let full = |(vcpu, &rate): (usize, &u64)| part(rate, FULL_SPEED.into(), (FULL_SPEED - slowed(vcpu)).into());
        self.writes = measured.iter().enumerate().map(full).collect();
    }

    /// Notes that vCPUs are slowed down from now on.
    pub fn slow(&mut self, throttle: &Throttle) {
        self.slowed.clone_from(&throttle.slowed);
    }
}

fn per_second(pages: u64, time: Duration) -> u64 {
    part(pages, 1_000_000_000, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns `number * count / of`.
fn part(number: u64, count: u64, of: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(count) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rates_are_those_of_full_speed() {
        let mut rates = Rates::new();
        rates.sent(500, SECOND / 2);
        rates.sent(0, SECOND);
        rates.written(900, SECOND, Some(&[1, 2, 0]));
        assert_eq!((rates.bandwidth(), rates.writes()), (1000, &[300, 600, 0][..]));
        rates.slow(&Throttle { slowed: vec![0, 500, 0], rate: 0 });
        rates.written(600, SECOND, Some(&[3, 3, 0]));
        assert_eq!(rates.writes(), [300, 600, 0]);
        rates.written(600, SECOND, Some(&[0, 0, 0]));
        assert_eq!(rates.writes(), [200, 400, 200]);
    }

    #[test]
    fn small_and_large_rates_are_exact() {
        let mut rates = Rates::new();
        assert_eq!((rates.bandwidth(), rates.writes()), (0, &[][..]));
        for (pages, time, rate) in [
            (1, SECOND, 1),
            (1, 10 * SECOND, 1),
            (1, Duration::from_nanos(1), 1_000_000_000),
            (1_000_000_000, SECOND, 1_000_000_000),
        ] {
            rates.sent(pages, time);
            assert_eq!(rates.bandwidth(), rate);
        }
        for (by_vcpu, writes) in [([1, 0], [100_000, 0]), ([0, 0], [50_000, 50_000])] {
            rates.written(100_000, SECOND, Some(&by_vcpu));
            assert_eq!(rates.writes(), writes);
        }
        rates.written(600, SECOND, Some(&[0]));
        assert_eq!(rates.writes(), [600]);
    }

    /// A vCPU that stands still, as far as is known, is taken for one that nearly does.
    #[test]
    fn a_vcpu_that_is_slowed_down_completely_has_a_rate() {
        let mut rates = Rates::new();
        rates.slow(&Throttle { slowed: vec![999, 1000, 1001], rate: 0 });
        rates.written(3, SECOND, Some(&[1, 1, 1]));
        assert_eq!(rates.writes(), [1000; 3]);
    }

    #[test]
    fn a_clock_that_stands_still_divides_by_no_zero() {
        let mut rates = Rates::new();
        rates.sent(u64::MAX, Duration::ZERO);
        rates.written(7, Duration::MAX, None);
        assert_eq!((rates.bandwidth(), rates.writes()), (u64::MAX, &[0][..]));
    }
}
