// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The time that is left, shown only if the estimate is reliable.
//!
//! Steps differ in length, and the first ones do not predict the others. Invariant: an estimate is shown only if at
//! least one part in [`SHARE`] of the work is done, and the estimate at half of that point agreed with it.

use std::fmt;
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Returns the style of a progress bar. `{left}` in its template becomes `, 3m left`, or nothing.
///
/// # Errors
///
/// An error is returned if the template is not valid.
pub fn style(template: &str) -> anyhow::Result<ProgressStyle> {
    Ok(ProgressStyle::with_template(template)?.with_key("left", Estimate::default()))
}

/// How much was done, and when.
#[derive(Clone, Debug, Default)]
struct Estimate {
    /// The steps done, and the time that they took together; ascending.
    moments: Vec<(u64, Duration)>,
}

/// One part in this number of the steps must be done.
const SHARE: u64 = 10;
/// With fewer steps, half of them predict nothing.
const LEAST: u64 = 4;
/// Two estimates agree if they differ by less than one part in this number.
const AGREED: u32 = 4;
/// More moments than this are thinned out.
const MOMENTS: usize = 1024;

impl Estimate {
    fn note(&mut self, done: u64, elapsed: Duration) {
        if done == 0 || self.moments.last().is_some_and(|(last, _)| *last >= done) {
            return;
        }
        if self.moments.len() == MOMENTS {
            let mut at = 0;
            self.moments.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        self.moments.push((done, elapsed));
    }

    /// Returns how long the rest of `all` steps takes, if the estimate is reliable.
    fn left(&self, all: u64, elapsed: Duration) -> Option<Duration> {
        let last @ (done, at) = *self.moments.last()?;
        if done < LEAST || done.saturating_mul(SHARE) < all || done >= all {
            return None;
        }
        let half = *self.moments.iter().min_by_key(|(steps, _)| steps.abs_diff(done / 2))?;
        let total = |(steps, took): (u64, Duration)| took.mul_f64(all as f64 / steps as f64);
        let (now, before) = (total(last), total(half));
        let agrees = half.0 < done && now.abs_diff(before) < now / AGREED;
        // A step that takes far longer than those before it is not like them, so they do not predict it.
        let is_usual = elapsed.saturating_sub(at) < at.mul_f64(3.0 / done as f64);
        (agrees && is_usual).then(|| now.saturating_sub(elapsed)).filter(|left| !left.is_zero())
    }
}

impl ProgressTracker for Estimate {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, _: Instant) {
        self.note(state.pos(), state.elapsed());
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        self.moments.clear();
    }

    fn write(&self, state: &ProgressState, to: &mut dyn fmt::Write) {
        let left = state.len().and_then(|all| self.left(all, state.elapsed()));
        // An error only means that the terminal is gone.
        let _ = left.map_or(Ok(()), |left| write!(to, ", {:#} left", HumanDuration(left)));
    }
}

/// Returns a bar that is drawn on a terminal and silent elsewhere.
pub fn progress(steps: u64) -> anyhow::Result<ProgressBar> {
    let style = style("{bar:40} {pos}/{len} {msg} ({elapsed} gone{left})")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(steps: impl IntoIterator<Item = u32>) -> (Estimate, Duration) {
        let (mut estimate, mut elapsed) = (Estimate::default(), Duration::ZERO);
        for (at, seconds) in steps.into_iter().enumerate() {
            elapsed += SECOND * seconds;
            estimate.note(at as u64 + 1, elapsed);
        }
        (estimate, elapsed)
    }

    #[test]
    fn equal_steps_have_an_estimate_once_there_are_enough() {
        for done in 0..10 {
            let (estimate, elapsed) = after(vec![2; done]);
            assert_eq!(estimate.left(100, elapsed), None, "{done} steps");
        }
        let (estimate, elapsed) = after([2; 25]);
        assert_eq!(estimate.left(100, elapsed), Some(SECOND * 150));
        assert_eq!(estimate.left(25, elapsed), None, "nothing is left");
    }

    #[test]
    fn steps_that_become_longer_or_shorter_have_none() {
        let (slower, elapsed) = after((1..=40).map(|step| step * step));
        assert_eq!(slower.left(100, elapsed), None);
        let (faster, elapsed) = after((1..=40).map(|step| 1000 / step));
        assert_eq!(faster.left(100, elapsed), None);
    }

    #[test]
    fn a_step_of_another_kind_takes_the_estimate_away() {
        let (estimate, elapsed) = after([2; 25]);
        assert_eq!(estimate.left(100, elapsed + 2 * SECOND), Some(SECOND * 148));
        assert_eq!(estimate.left(100, elapsed + 100 * SECOND), None);
    }

    #[test]
    fn many_moments_are_thinned_out() {
        let (estimate, elapsed) = after(vec![1; 100_000]);
        assert!(estimate.moments.len() <= MOMENTS);
        assert_eq!(estimate.left(200_000, elapsed), Some(SECOND * 100_000));
    }
}
