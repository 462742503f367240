// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded rounds: a text file with one line per round.
//!
//! ```text
//! twofold-rounds 1 8192
//! 0+16 77 4096+512
//!
//! 77
//! ```
//!
//! The first line has the format's name, its version, and the number of 4 KiB pages of the slot. Each following line is
//! a round: the pages that the log reported, in ascending order, as runs `FIRST+COUNT`, or `FIRST` for a single page.
//! Numbers are decimal and runs are separated by a space. A round without writes is an empty line.
//!
//! A log does not know the order of the writes or their number. So the replay writes each page once, in this order.

use std::path::Path;

use anyhow::{Context, ensure};

/// The recorded writes of a guest.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    name: &'static str,
    pages: u64,
    rounds: Vec<Vec<u32>>,
}

impl Recorded {
    /// Returns the recording of Redis under `redis-benchmark -t set` in Linux; `recordings/README.md` describes it.
    pub fn redis() -> anyhow::Result<Self> {
        let recorded = Self::parse(include_str!("../../recordings/redis.rounds")).context("recordings/redis.rounds")?;
        Ok(Self { name: "redis", ..recorded })
    }

    /// Reads a recording from a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} holds no recorded rounds", path.display()))
    }

    /// Returns the recording's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of pages of the slot.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of rounds.
    pub fn rounds(&self) -> u64 {
        self.rounds.len() as u64
    }

    /// Returns the pages of a round.
    pub fn round(&self, round: u64) -> &[u32] {
        self.rounds.get(round as usize).map_or(&[], |pages| pages)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        let head = lines.next().and_then(|line| line.strip_prefix("twofold-rounds 1 "));
        let pages = head.context("line 1: not `twofold-rounds 1 PAGES`")?;
        let pages: u64 = pages.parse().with_context(|| format!("line 1: `{pages}` is not a number of pages"))?;
        ensure!((1..=MOST_PAGES).contains(&pages), "line 1: {pages} pages; 1 to {MOST_PAGES} are possible");
        let round = |(number, line)| parse_round(line, pages).with_context(|| format!("line {}", number + 2));
        let rounds = lines.enumerate().map(round).collect::<Result<Vec<_>, _>>()?;
        ensure!(!rounds.is_empty(), "it has no round");
        Ok(Self { name: "recorded", pages, rounds })
    }
}

/// 256 GiB.
const MOST_PAGES: u64 = 64 << 20;

fn parse_round(line: &str, pages: u64) -> anyhow::Result<Vec<u32>> {
    let mut round: Vec<u32> = Vec::new();
    for run in line.split_ascii_whitespace() {
        let (first, count) = run.split_once('+').unwrap_or((run, "1"));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| u64::from(*number) <= pages);
        let (first, count) =
            number(first).zip(number(count)).with_context(|| format!("`{run}` is not a run of pages"))?;
        let end = first + count;
        ensure!(u64::from(end) <= pages, "`{run}` ends beyond the slot, which has {pages} pages");
        ensure!(round.last().is_none_or(|last| *last < first), "`{run}` does not come after the run before it");
        round.extend(first..end);
    }
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_round() {
        let recorded = Recorded::parse("twofold-rounds 1 100\n0+3 7 98+2\n\n5\n").unwrap();
        assert_eq!((recorded.pages(), recorded.rounds()), (100, 3));
        assert_eq!(recorded.round(0), [0, 1, 2, 7, 98, 99]);
        assert_eq!(recorded.round(1), [0u32; 0]);
        assert_eq!(recorded.round(2), [5]);
        assert_eq!(recorded.round(3), [0u32; 0]);
    }

    #[test]
    fn redis_wrote_in_each_round() {
        let redis = Recorded::redis().unwrap();
        assert_eq!(redis.name(), "redis");
        let empty = (0..redis.rounds()).find(|round| redis.round(*round).is_empty());
        assert_eq!(empty, None);
    }

    #[test]
    fn errors_are_reported_with_their_line() {
        for (text, said) in [
            ("", "line 1: not"),
            ("twofold-rounds 2 100\n1\n", "line 1: not"),
            ("twofold-rounds 1 x\n1\n", "`x` is not a number"),
            ("twofold-rounds 1 0\n1\n", "line 1: 0 pages"),
            ("twofold-rounds 1 99999999999\n1\n", "99999999999 pages"),
            ("twofold-rounds 1 100\n", "no round"),
            ("twofold-rounds 1 100\n1\n2 x\n", "line 3: `x`"),
            ("twofold-rounds 1 100\n99+2\n", "line 2: `99+2` ends"),
            ("twofold-rounds 1 100\n4294967295+4294967295\n", "line 2: `4294967295+4294967295` is not a run"),
            ("twofold-rounds 1 100\n5 5\n", "line 2: `5` does not come after"),
        ] {
            let error = format!("{:#}", Recorded::parse(text).unwrap_err());
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }
}
