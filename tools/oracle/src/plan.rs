// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of a run inside an image, which is a word on the image's command line.

use alloc::vec::Vec;
use core::fmt;

use twofold_memory::dirty::Tracker;

/// The trackers to run in turn, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The trackers; at least one.
    pub trackers: Vec<Tracker>,
    /// The least number of comparisons for each.
    pub comparisons: u64,
    /// The seed of the driver's choices.
    pub seed: u64,
    /// Whether this is a negative control: in each round the judge does not hear of one of the pages that the log
    /// reports, so pages must be lost.
    pub is_deaf: bool,
}

impl Plan {
    /// Reads the plan that [`Display`](fmt::Display) has written, up to the first white space.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split_ascii_whitespace().next()?.split(':');
        let tracker = |name: &str| Tracker::ALL.into_iter().find(|tracker| tracker.name() == name);
        let plan = Self {
            trackers: parts.next()?.split(',').map(tracker).collect::<Option<_>>()?,
            comparisons: parts.next()?.parse().ok()?,
            seed: parts.next()?.parse().ok()?,
            is_deaf: match parts.next() {
                None => false,
                Some(DEAF) => true,
                Some(_) => return None,
            },
        };
        parts.next().is_none().then_some(plan)
    }
}

const DEAF: &str = "deaf";

/// `TRACKER,...:COMPARISONS:SEED`, and `:deaf` for the negative control.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, tracker) in self.trackers.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { "," }, tracker.name())?;
        }
        write!(f, ":{}:{}", self.comparisons, self.seed)?;
        if self.is_deaf { write!(f, ":{DEAF}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn a_plan_comes_back_from_its_word() {
        let one = Plan { trackers: vec![Tracker::Manual], comparisons: 5, seed: 0, is_deaf: true };
        assert_eq!(one.to_string(), "manual:5:0:deaf");
        let all = Plan { trackers: Tracker::ALL.to_vec(), is_deaf: false, ..one.clone() };
        for plan in [one, all] {
            assert_eq!(Plan::parse(&alloc::format!("{plan} another word")), Some(plan));
        }
    }

    #[test]
    fn a_bad_word_is_no_plan() {
        for text in ["", "none:5:1", ":5:1", "manual:5", "manual:x:1", "manual:5:1:dumb", "manual:5:1:deaf:1"] {
            assert_eq!(Plan::parse(text), None, "{text:?}");
        }
    }
}
