// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verdict: whether our figure is what a published gain, or a target, requires.
//!
//! Invariant: a verdict follows from the interval only. A gain is confirmed if the whole interval is above the required
//! gain, and missing if the whole interval is below it. Otherwise it is inconclusive.

use crate::report::words::{self, Noun};
use crate::results::Verdict;
use crate::statistics::Ratio;

/// The gain that is required.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owed {
    /// Any gain: the published technique gained, and the amount depends on the machine.
    Gain,
    /// At least this part of the baseline's time.
    AtLeast(f64),
    /// No loss of more than [`SMALL`].
    NoLoss,
    /// None: the published gain depends on a condition that is absent here. A loss above `PLAIN` still differs.
    Shown,
}

impl Owed {
    /// The requirement that follows from a published gain. A published loss is the largest loss allowed; a smaller
    /// loss, or a gain, does not differ.
    pub fn by(published: f64) -> Self {
        if published < 0.0 { Self::AtLeast(published) } else { Self::Gain }
    }

    /// A target in words: `at least 85 % less time`.
    pub fn shown(self, of: Noun) -> String {
        match self {
            Self::Gain | Self::Shown => of.saved(),
            Self::AtLeast(least) => format!("at least {}", words::rounded(1.0 - least, of)),
            Self::NoLoss => format!("at most {}", words::rounded(1.0 + SMALL, of)),
        }
    }
}

/// The verdict on a gain.
pub fn judge(owed: Owed, gain: &Ratio) -> Verdict {
    let (there, missing) = match owed {
        Owed::Gain => (gain.low > NONE, gain.high < -SMALL),
        Owed::AtLeast(least) => (gain.low >= least, gain.high < least),
        Owed::NoLoss => (gain.low >= -SMALL, gain.high < -SMALL),
        Owed::Shown => (gain.low > NONE, gain.high < -PLAIN),
    };
    verdict(there, missing)
}

/// The verdict on a figure with the upper limit `most`.
pub fn judge_limit(most: f64, figure: &Ratio) -> Verdict {
    verdict(figure.high <= most, figure.low > most)
}

fn verdict(there: bool, missing: bool) -> Verdict {
    match (there, missing) {
        (true, _) => Verdict::AsExpected,
        (_, true) => Verdict::Differs,
        _ => Verdict::Inconclusive,
    }
}

/// A smaller gain is none. Modelled and counted figures have no spread, so any difference would be one.
const NONE: f64 = 0.001;
/// A smaller loss does not count: two variants of one program differ by that much if nothing else differs.
pub const SMALL: f64 = 0.05;
/// A larger loss is visible in any run.
const PLAIN: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    fn between(low: f64, high: f64) -> Ratio {
        Ratio { median: (low + high) / 2.0, low, high }
    }

    #[test]
    fn a_target_says_what_it_requires() {
        assert_eq!(Owed::AtLeast(0.85).shown(Noun::TIME), "at least 85 % less time");
        assert_eq!(Owed::AtLeast(0.9).shown(Noun::INSTRUCTIONS), "at least 90 % fewer instructions");
        assert_eq!(Owed::NoLoss.shown(Noun::TIME), "at most 5 % more time");
        assert_eq!(Owed::Gain.shown(Noun::TIME), "less time");
    }

    #[test]
    fn a_gain_is_there_or_missing_or_open() {
        assert_eq!(judge(Owed::Gain, &between(0.01, 0.4)), Verdict::AsExpected);
        assert_eq!(judge(Owed::Gain, &between(-0.01, 0.4)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Gain, &between(-0.3, -0.005)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Gain, &between(-0.3, -0.1)), Verdict::Differs);
        // Counted, and equal or nearly so: no loss and no gain.
        assert_eq!(judge(Owed::Gain, &between(0.0, 0.0)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Gain, &between(0.0009, 0.0009)), Verdict::Inconclusive);
    }

    #[test]
    fn a_target_is_reached_or_not_or_open() {
        assert_eq!(judge(Owed::AtLeast(0.25), &between(0.25, 0.3)), Verdict::AsExpected);
        assert_eq!(judge(Owed::AtLeast(0.25), &between(0.2, 0.3)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::AtLeast(0.25), &between(0.1, 0.2)), Verdict::Differs);
        assert_eq!(judge(Owed::NoLoss, &between(0.0, 0.0)), Verdict::AsExpected);
        assert_eq!(judge(Owed::NoLoss, &between(-0.2, 0.1)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::NoLoss, &between(-0.2, -0.1)), Verdict::Differs);
    }

    #[test]
    fn what_is_not_owed_differs_by_a_plain_loss_alone() {
        assert_eq!(judge(Owed::Shown, &between(0.01, 0.4)), Verdict::AsExpected);
        assert_eq!(judge(Owed::Shown, &between(-0.09, -0.06)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Shown, &between(-0.5, -0.2)), Verdict::Differs);
    }

    #[test]
    fn a_smaller_loss_than_was_published_does_not_differ() {
        assert_eq!(Owed::by(0.4), Owed::Gain);
        assert_eq!(judge(Owed::by(-1.04), &between(-0.5, -0.4)), Verdict::AsExpected);
        assert_eq!(judge(Owed::by(-1.04), &between(0.1, 0.2)), Verdict::AsExpected);
        assert_eq!(judge(Owed::by(-1.04), &between(-3.0, -2.0)), Verdict::Differs);
    }

    #[test]
    fn a_limit_is_kept_or_not_or_open() {
        assert_eq!(judge_limit(10.0, &between(3.0, 4.0)), Verdict::AsExpected);
        assert_eq!(judge_limit(10.0, &between(9.0, 11.0)), Verdict::Inconclusive);
        assert_eq!(judge_limit(10.0, &between(11.0, 12.0)), Verdict::Differs);
    }

    #[test]
    fn gains_are_of_the_time_before_and_paired() {
        let (before, after) = ([10.0, 100.0, 1.0, 20.0], [4.0, 40.0, 0.4, 8.0]);
        let gain = Ratio::of(&after, &before).unwrap().complement();
        assert!((gain.median - 0.6).abs() < 1e-9 && gain.low <= gain.median && gain.median <= gain.high);
        assert!(Ratio::of(&before, &after).unwrap().complement().high < 0.0);
    }
}
