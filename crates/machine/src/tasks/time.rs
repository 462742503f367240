// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual time, which passes only where the model says so.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// Nanoseconds of virtual time: a moment since the machine started, or a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// This many nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// This many microseconds.
    pub const fn micros(micros: u64) -> Self {
        Self(micros * 1000)
    }

    /// This many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to this moment; none if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    /// 2^64 ns are 584 years.
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Self;

    /// As [`since`](Self::since).
    fn sub(self, earlier: Self) -> Self {
        self.since(earlier)
    }
}

impl Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

/// In the largest unit that needs no fraction: `10 ms`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
        let fits = |(size, _): &&(u64, &str)| self.0 > 0 && self.0.is_multiple_of(*size);
        let (size, unit) = units.iter().find(fits).copied().unwrap_or((1, "ns"));
        write!(f, "{} {unit}", self.0 / size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_the_unit_that_fits() {
        let shown = [0, 1, 1500, 100_000, 10_000_000, 5_000_000_000].map(|nanos| Nanos::new(nanos).to_string());
        assert_eq!(shown, ["0 ns", "1 ns", "1500 ns", "100 us", "10 ms", "5 s"]);
    }

    #[test]
    fn no_span_is_below_zero() {
        assert_eq!(Nanos::new(3) - Nanos::new(5), Nanos::ZERO);
        assert_eq!([Nanos::micros(1), Nanos::millis(1)].into_iter().sum::<Nanos>(), Nanos::new(1_001_000));
    }
}
