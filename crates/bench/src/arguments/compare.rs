// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `compare`.

use std::path::PathBuf;

use clap::Args;

/// Options of `compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareOptions {
    /// The file before, as `--json` wrote it
    #[arg(value_name = "A.json")]
    pub before: PathBuf,
    /// The file after
    #[arg(value_name = "B.json")]
    pub after: PathBuf,
    /// A smaller change of a time is none, however sure it is: two processes differ by some percent with nothing changed
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub threshold: f64,
    /// Exit status 1 where something became slower
    #[arg(long)]
    pub fail_on_slower: bool,
    /// Writes what was compared to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes a page with tables and plots to FILE, as HTML in one piece
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

/// `5%` or `5` as 0.05.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    let part = number.ok().map(|percent| percent / 100.0).filter(|part| (0.0..=10.0).contains(part));
    part.ok_or_else(|| format!("`{text}` is no percentage from 0% to 1000%: give 5%"))
}

pub const HELP: &str = "\
Each figure that both files have is compared: the medians of its runs, and their ratio with the interval that holds it 95
times in 100 (bootstrap; the runs of two files have nothing to do with each other). `slower` and `faster` are said where
the interval excludes 1 and the change is at least --threshold. Fewer than 4 runs on one side tell nothing. What is counted
is the same in each run, so there any difference is real. Largest changes come first. Of a hundred figures a few are apart
by chance: measure again what surprises.

Where the two differ in machine, program or configuration, that is said: then it may be what made the difference.

Examples:
  cargo run --release -p twofold -- bench compare before.json after.json
  cargo run --release -p twofold -- bench compare before.json after.json --threshold 2% --fail-on-slower
  cargo run --release -p twofold -- bench compare before.json after.json --report change.html

Exit status: 0; with --fail-on-slower 1 where something became slower. 1 with an error where the files have nothing in common,
and with --fail-on-slower where nothing that they have in common has 4 runs on both sides.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("2.5 %"), Ok(0.025));
        assert_eq!(percent("0"), Ok(0.0));
        for bad in ["", "%", "-1%", "NaN", "five", "1001%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
