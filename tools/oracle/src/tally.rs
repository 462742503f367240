// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counts of a run, and what they prove.

use core::fmt;

use twofold_memory::dirty::Tracker;

/// The counts of one tracker's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Comparisons of pages that the log did not report, but had reported and cleared earlier.
    pub compared: u64,
    /// Pages that the log reported again after it had reported and cleared them.
    pub redirtied: u64,
    /// Pages that were written but are not in the log.
    pub lost: u64,
    /// Rounds in which the memory was compared.
    pub rounds: u64,
    /// Starts of the log.
    pub starts: u64,
    /// Blocks that were coalesced while no log ran.
    pub blocks: u64,
}

/// The result of one tracker's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The tracker.
    pub tracker: Tracker,
    /// Its counts.
    pub tally: Tally,
}

/// Why a run does not prove that a log loses no write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// A write was lost.
    #[error("writes were lost: no log reported the pages")]
    Lost,
    /// There is too little evidence.
    #[error("too few pages were compared or dirtied again")]
    TooFew,
    /// The log did not start again, or no block was split and coalesced.
    #[error("{starts} starts and {blocks} coalesced blocks are too few")]
    TooSteady {
        /// The starts.
        starts: u64,
        /// The blocks.
        blocks: u64,
    },
}

impl Tally {
    /// Each count with its name.
    pub const fn named(&self) -> [(&'static str, u64); 6] {
        let Self { compared, redirtied, lost, rounds, starts, blocks } = *self;
        [
            ("compared", compared),
            ("redirtied", redirtied),
            ("lost", lost),
            ("rounds", rounds),
            ("starts", starts),
            ("blocks", blocks),
        ]
    }

    /// The counts, by their names; `None` if one is missing.
    pub fn from_named(mut count: impl FnMut(&str) -> Option<u64>) -> Option<Self> {
        Some(Self {
            compared: count("compared")?,
            redirtied: count("redirtied")?,
            lost: count("lost")?,
            rounds: count("rounds")?,
            starts: count("starts")?,
            blocks: count("blocks")?,
        })
    }

    /// Checks that no page was lost, and that the run was long enough to prove it.
    ///
    /// # Errors
    ///
    /// A page was lost, or there were too few comparisons, starts or coalesced blocks.
    pub fn check(&self, comparisons: u64) -> Result<(), Unproven> {
        let Self { starts, blocks, .. } = *self;
        if self.lost > 0 {
            return Err(Unproven::Lost);
        }
        if self.compared < comparisons || self.redirtied == 0 {
            return Err(Unproven::TooFew);
        }
        if starts < 2 || blocks == 0 {
            return Err(Unproven::TooSteady { starts, blocks });
        }
        Ok(())
    }
}

impl Found {
    /// The lost pages in a text that contains a result's line.
    pub fn lost_in(text: &str) -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with("oracle: "))?;
        line.strip_suffix(" lost")?.rsplit(' ').next()?.parse().ok()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { compared, redirtied, lost, .. } = self.tally;
        write!(f, "oracle: {}: {compared} compared, {redirtied} re-dirtied, {lost} lost", self.tracker.name())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    const ENOUGH: Tally = Tally { compared: 7, redirtied: 5, lost: 0, rounds: 3, starts: 2, blocks: 1 };

    #[test]
    fn counts_come_back_by_their_names() {
        let named = ENOUGH.named();
        let count = |name: &str| named.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
        assert_eq!(Tally::from_named(count), Some(ENOUGH));
        assert_eq!(Tally::from_named(|name| count(name).filter(|_| name != "blocks")), None);
    }

    #[test]
    fn a_run_proves_something_only_with_enough_evidence() {
        assert_eq!(ENOUGH.check(7), Ok(()));
        assert_eq!(ENOUGH.check(8), Err(Unproven::TooFew));
        assert_eq!(Tally { redirtied: 0, ..ENOUGH }.check(7), Err(Unproven::TooFew));
        assert_eq!(Tally { lost: 1, ..ENOUGH }.check(7), Err(Unproven::Lost));
        assert_eq!(Tally { starts: 1, ..ENOUGH }.check(7), Err(Unproven::TooSteady { starts: 1, blocks: 1 }));
        assert_eq!(Tally { blocks: 0, ..ENOUGH }.check(7), Err(Unproven::TooSteady { starts: 2, blocks: 0 }));
    }

    #[test]
    fn losses_are_read_from_a_result() {
        let found = Found { tracker: Tracker::WriteProtect, tally: Tally { lost: 12, ..ENOUGH } };
        let line = found.to_string();
        assert_eq!(line, "oracle: write-protect: 7 compared, 5 re-dirtied, 12 lost");
        assert_eq!(Found::lost_in(&alloc::format!("a note\n{line}\n")), Some(12));
        assert_eq!(Found::lost_in("oracle: manual: 2000 compared"), None);
        assert_eq!(Found::lost_in(""), None);
    }
}
