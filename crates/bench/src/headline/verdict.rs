// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether ours has the shape of what was published.
//!
//! Invariant: nothing is said that the interval does not say. A gain is there where all of the interval is above what is owed,
//! and missing where all of it is below; else it is open.

use crate::results::Verdict;
use crate::statistics::Ratio;

/// What a gain has to be at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owed {
    /// Something: who published it gained, and how much depends on the machine.
    Gain,
    /// This part of the time before.
    AtLeast(f64),
    /// No loss of more than [`SMALL`].
    NoLoss,
    /// Nothing: their gain hangs on what is not here. A plain loss differs all the same.
    Shown,
}

impl Owed {
    /// By a published gain. A published loss is what may be lost here at most: who loses less, or gains, does not differ.
    pub fn by(published: f64) -> Self {
        if published < 0.0 { Self::AtLeast(published) } else { Self::Gain }
    }
}

/// What part of the time before is gone, where `left` is the part that is left.
pub fn gain(left: Ratio) -> Ratio {
    Ratio { median: 1.0 - left.median, low: 1.0 - left.high, high: 1.0 - left.low }
}

/// The verdict on a gain.
pub fn judge(owed: Owed, gain: &Ratio) -> Verdict {
    let (there, missing) = match owed {
        Owed::Gain => (gain.low > 0.0, gain.high < -SMALL),
        Owed::AtLeast(least) => (gain.low >= least, gain.high < least),
        Owed::NoLoss => (gain.low >= -SMALL, gain.high < -SMALL),
        Owed::Shown => (gain.low > 0.0, gain.high < -PLAIN),
    };
    verdict(there, missing)
}

/// The verdict on a figure that may be `most` at most.
pub fn judge_limit(most: f64, figure: &Ratio) -> Verdict {
    verdict(figure.high <= most, figure.low > most)
}

fn verdict(there: bool, missing: bool) -> Verdict {
    match (there, missing) {
        (true, _) => Verdict::SameShape,
        (_, true) => Verdict::Differs,
        _ => Verdict::Inconclusive,
    }
}

/// A loss of so little is none: two variants of one program differ by that where nothing else does.
pub const SMALL: f64 = 0.05;
/// A loss of more is seen in any run.
const PLAIN: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    fn between(low: f64, high: f64) -> Ratio {
        Ratio { median: (low + high) / 2.0, low, high }
    }

    #[test]
    fn a_gain_is_there_or_missing_or_open() {
        assert_eq!(judge(Owed::Gain, &between(0.01, 0.4)), Verdict::SameShape);
        assert_eq!(judge(Owed::Gain, &between(-0.01, 0.4)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Gain, &between(-0.3, -0.005)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Gain, &between(-0.3, -0.1)), Verdict::Differs);
        // Counted, and the same: nothing is lost, and nothing gained.
        assert_eq!(judge(Owed::Gain, &between(0.0, 0.0)), Verdict::Inconclusive);
    }

    #[test]
    fn a_bar_is_reached_or_not_or_open() {
        assert_eq!(judge(Owed::AtLeast(0.25), &between(0.25, 0.3)), Verdict::SameShape);
        assert_eq!(judge(Owed::AtLeast(0.25), &between(0.2, 0.3)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::AtLeast(0.25), &between(0.1, 0.2)), Verdict::Differs);
        assert_eq!(judge(Owed::NoLoss, &between(0.0, 0.0)), Verdict::SameShape);
        assert_eq!(judge(Owed::NoLoss, &between(-0.2, 0.1)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::NoLoss, &between(-0.2, -0.1)), Verdict::Differs);
    }

    #[test]
    fn what_is_not_owed_differs_by_a_plain_loss_alone() {
        assert_eq!(judge(Owed::Shown, &between(0.01, 0.4)), Verdict::SameShape);
        assert_eq!(judge(Owed::Shown, &between(-0.09, -0.06)), Verdict::Inconclusive);
        assert_eq!(judge(Owed::Shown, &between(-0.5, -0.2)), Verdict::Differs);
    }

    #[test]
    fn who_loses_less_than_was_published_does_not_differ() {
        assert_eq!(Owed::by(0.4), Owed::Gain);
        assert_eq!(judge(Owed::by(-1.04), &between(-0.5, -0.4)), Verdict::SameShape);
        assert_eq!(judge(Owed::by(-1.04), &between(0.1, 0.2)), Verdict::SameShape);
        assert_eq!(judge(Owed::by(-1.04), &between(-3.0, -2.0)), Verdict::Differs);
    }

    #[test]
    fn a_limit_is_kept_or_not_or_open() {
        assert_eq!(judge_limit(10.0, &between(3.0, 4.0)), Verdict::SameShape);
        assert_eq!(judge_limit(10.0, &between(9.0, 11.0)), Verdict::Inconclusive);
        assert_eq!(judge_limit(10.0, &between(11.0, 12.0)), Verdict::Differs);
    }

    #[test]
    fn gains_are_of_the_time_before_and_paired() {
        let (before, after) = ([10.0, 100.0, 1.0, 20.0], [4.0, 40.0, 0.4, 8.0]);
        let gain = gain(Ratio::of(&after, &before).unwrap());
        assert!((gain.median - 0.6).abs() < 1e-9 && gain.low <= gain.median && gain.median <= gain.high);
        assert!(super::gain(Ratio::of(&before, &after).unwrap()).high < 0.0);
    }
}
