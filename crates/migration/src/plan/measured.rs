// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What planning starts from: what was measured, and what is wanted.

use core::time::Duration;

/// What was measured of the guest and of the link. Pages are those of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured<'a> {
    /// Pages a second that the streams carry, as the last round was: compression is in it. 0: the link carries nothing.
    pub bandwidth: u64,
    /// Different pages a second that each vCPU writes at full speed. If the tracker cannot tell vCPUs apart, one number
    /// for all.
    pub writes: &'a [u64],
    /// The most different pages that the guest writes in any time: its working set, or all of its memory.
    pub working_set: u64,
    /// Pages that are left to send.
    pub left: u64,
}

/// What a migration is to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How long the guest may stand still.
    pub downtime: Duration,
    /// The part of the downtime that pages do not take: state of devices and vCPUs, and the commit.
    pub fixed: Duration,
    /// How many more rounds there may be while the guest runs.
    pub rounds: u32,
    /// The most that a vCPU may be slowed down, in per mille of its speed: at most 999.
    pub throttle: u16,
    /// Whether to stop the guest after the last round even if the rest takes longer than the downtime.
    pub forced: bool,
}

impl Measured<'_> {
    /// Returns the pages a second that the guest writes at full speed.
    pub fn rate(&self) -> u64 {
        self.writes.iter().fold(0, |sum, &rate| sum.saturating_add(rate))
    }
}

impl Wanted {
    /// Returns the pages that fit the downtime: those that the link carries in its part for pages.
    pub fn fitting(&self, bandwidth: u64) -> u64 {
        pages_in(bandwidth, self.downtime.saturating_sub(self.fixed))
    }
}

/// Returns the whole pages that come in a time at a rate a second.
pub(super) fn pages_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate).saturating_mul(time.as_nanos()) / SECOND).unwrap_or(u64::MAX)
}

/// Returns how long `pages` take at a rate a second, rounded up; the longest time if they never end.
pub(super) fn time_of(pages: u64, rate: u64) -> Duration {
    if rate == 0 {
        return if pages == 0 { Duration::ZERO } else { Duration::MAX };
    }
    let nanoseconds = (u128::from(pages) * SECOND).div_ceil(rate.into());
    u64::try_from(nanoseconds).map_or(Duration::MAX, Duration::from_nanos)
}

const SECOND: u128 = 1_000_000_000;
