// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `compare`.

use std::path::PathBuf;

use clap::Args;

/// Options of `compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareOptions {
    /// The baseline file, as `--json` wrote it
    #[arg(value_name = "A.json")]
    pub before: PathBuf,
    /// The file to compare with it
    #[arg(value_name = "B.json")]
    pub after: PathBuf,
    /// A smaller change of a time is not reported, even if it is certain: two processes differ by some percent with
    /// nothing changed
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub threshold: f64,
    /// Exit status 1 if a figure became slower
    #[arg(long)]
    pub fail_on_slower: bool,
    /// Writes the comparison to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes a page with tables and plots to FILE, as one HTML file
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

/// `5%` or `5` as 0.05.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    let part = number.ok().map(|percent| percent / 100.0).filter(|part| (0.0..=10.0).contains(part));
    part.ok_or_else(|| format!("`{text}` is not a percentage from 0% to 1000%: give 5%"))
}

pub const HELP: &str = "\
Each figure that both files have is compared: the medians of its runs, and the change with its 95 % confidence interval
(bootstrap; runs of two files are not paired). A figure is `slower` or `faster` if the interval excludes no change and
the change is at least --threshold. Fewer than 4 runs on either side show nothing. A counted figure is identical in
each run, so any difference is real. Largest changes come first. Of a hundred figures a few differ by chance: measure a
surprise again.

If machine, program or configuration differ, a warning says so: they may be the cause of a difference.

Examples:
  cargo run --release -p twofold -- bench compare before.json after.json
  cargo run --release -p twofold -- bench compare before.json after.json --threshold 2% --fail-on-slower
  cargo run --release -p twofold -- bench compare before.json after.json --report change.html

Exit status: 0; with --fail-on-slower, 1 if a figure became slower. 1 with an error if the files have no figure in
common, or, with --fail-on-slower, if no common figure has 4 runs on both sides.";

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
