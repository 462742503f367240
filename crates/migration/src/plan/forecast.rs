// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How pre-copy goes on if guest and link stay as they are.

use core::time::Duration;

use super::measured::{Measured, Wanted, pages_in, time_of};

/// How pre-copy goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Whether it ends, and if not, why.
    pub outcome: Outcome,
    /// Rounds while the guest runs.
    pub rounds: u32,
    /// All pages that are sent, with those sent again and those sent while the guest stands still.
    pub pages: u64,
    /// The time until the guest runs at the target. If pre-copy does not end, the time until its last round ends.
    pub total: Duration,
    /// How long the guest stands still if it is stopped then.
    pub downtime: Duration,
}

/// How pre-copy ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Outcome {
    /// The rest fits the downtime.
    #[error("the rest fits the downtime")]
    Converges,
    /// The guest is stopped although the rest does not fit, because that was asked for.
    #[error("the guest is stopped with {left} pages left, where {fit} fit the downtime")]
    Forced {
        /// The pages that are left.
        left: u64,
        /// The pages that fit.
        fit: u64,
    },
    /// State and commit alone take longer than the downtime.
    #[error("state and commit take {fixed:?}, and the downtime is {downtime:?}")]
    NoTime {
        /// The downtime.
        downtime: Duration,
        /// What state and commit take.
        fixed: Duration,
    },
    /// The link carries nothing.
    #[error("the link carries nothing")]
    NoLink,
    /// The guest writes too fast: a round leaves no less than it sent.
    #[error(
        "{rate} pages a second are written and {bandwidth} sent; {left} pages stay left, where {fit} fit the downtime"
    )]
    TooFast {
        /// The pages a second that the guest writes.
        rate: u64,
        /// The pages a second that the link carries.
        bandwidth: u64,
        /// The pages that stay left.
        left: u64,
        /// The pages that fit the downtime.
        fit: u64,
    },
    /// It converges, but takes more rounds than are allowed.
    #[error("after {rounds} rounds {left} pages are left, where {fit} fit the downtime")]
    TooManyRounds {
        /// The rounds that are allowed.
        rounds: u32,
        /// The pages that are left.
        left: u64,
        /// The pages that fit the downtime.
        fit: u64,
    },
}

impl Outcome {
    /// Whether the guest is stopped in the end.
    pub const fn ends(&self) -> bool {
        matches!(self, Self::Converges | Self::Forced { .. })
    }
}

/// Follows the rounds of a guest that writes as `measured` says.
pub fn forecast(measured: &Measured<'_>, wanted: &Wanted) -> Forecast {
    follow(measured, wanted, measured.rate())
}

/// Follows the rounds of a guest that writes `rate` pages a second.
pub(super) fn follow(measured: &Measured<'_>, wanted: &Wanted, rate: u64) -> Forecast {
    let Measured { bandwidth, working_set, mut left, .. } = *measured;
    let Wanted { downtime, fixed, .. } = *wanted;
    let fit = wanted.fitting(bandwidth);
    let (mut rounds, mut pages, mut total) = (0, 0_u64, Duration::ZERO);
    let end = loop {
        if fixed > downtime {
            break Outcome::NoTime { downtime, fixed };
        }
        if left <= fit {
            break Outcome::Converges;
        }
        if bandwidth == 0 {
            break Outcome::NoLink;
        }
        if rounds == wanted.rounds {
            break Outcome::TooManyRounds { rounds, left, fit };
        }
        let time = time_of(left, bandwidth);
        let next = pages_in(rate, time).min(working_set);
        // If a round leaves no less than it sent, no later round leaves less.
        if next >= left {
            break Outcome::TooFast { rate, bandwidth, left, fit };
        }
        (rounds, pages, total, left) = (rounds + 1, pages.saturating_add(left), total.saturating_add(time), next);
    };
    let forced = wanted.forced && bandwidth > 0 && end != Outcome::Converges;
    let outcome = if forced { Outcome::Forced { left, fit } } else { end };
    let downtime = fixed.saturating_add(time_of(left, bandwidth));
    if outcome.ends() {
        (pages, total) = (pages.saturating_add(left), total.saturating_add(downtime));
    }
    Forecast { outcome, rounds, pages, total, downtime }
}
