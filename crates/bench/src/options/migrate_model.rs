// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `migrate-model`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::OutputOptions;
use super::size::Size;

/// Options of `migrate-model`.
#[derive(Args, Clone, Debug)]
pub struct MigrateModelOptions {
    /// The guest's memory, with K, M or G (powers of 1024): --memory 1G. Rounded up to 2 MiB
    #[arg(short = 'm', long, value_name = "SIZE", default_value = "256M", help_heading = GUEST)]
    pub memory: Size,
    /// Bytes a second that the link carries, with M or G (powers of 1000): --link 125M
    #[arg(long, value_name = "RATE", default_value = "1G", value_parser = rate, help_heading = GUEST)]
    pub link: u64,
    /// Pages that the guest writes, in percent of those that the link carries; several are measured: --load 20,80
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_values = ["20", "80"], value_parser = clap::value_parser!(u64).range(1..=100), help_heading = GUEST)]
    pub load: Vec<u64>,
    /// The percentage of writes that goes to a percentage of the pages; 100/100 is even: --mix 95/5
    #[arg(long, value_name = "WRITES/PAGES", default_value = "80/20", value_parser = mix, help_heading = GUEST)]
    pub mix: Mix,
    /// Where the pages are that most writes go to
    #[arg(long, value_name = "WHERE", value_enum, default_value = "scattered", help_heading = GUEST)]
    pub hot: Hot,
    /// vCPUs, which together write at that rate; each has a virtual clock of its own: --vcpus 4
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = GUEST, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub vcpus: u64,
    /// How long the guest may stand still, in ms: --downtime 300ms
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = downtime, help_heading = GUEST)]
    pub downtime: Duration,

    /// Leaves out the table of loads from 5 to 100 percent
    #[arg(long, help_heading = MEASURING)]
    pub no_sweep: bool,
    /// Runs of each tracker with each load, each with a seed of its own
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seed of the first run; the next run has the next seed. Equal seeds give equal figures: --seed 7
    #[arg(long, value_name = "SEED", default_value_t = 1, help_heading = MEASURING)]
    pub seed: u64,
    /// Adds what was charged for in the first run
    #[arg(short = 'v', long = "verbose", help_heading = MEASURING)]
    pub verbose: bool,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// Which part of the writes goes to which part of the pages, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Of the writes.
    pub writes: u64,
    /// Of the pages.
    pub pages: u64,
}

/// Where the hot pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hot {
    /// Anywhere, drawn at random
    Scattered,
    /// The first pages of the memory
    Together,
}

impl Hot {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Together => "together",
        }
    }
}

fn mix(text: &str) -> Result<Mix, String> {
    let bad = || format!("`{text}` is not two percentages above 0: give 80/20");
    let percent = |text: &str| text.parse().ok().filter(|number| (1..=100).contains(number));
    let (writes, pages) = text.split_once('/').ok_or_else(bad)?;
    Ok(Mix { writes: percent(writes).ok_or_else(bad)?, pages: percent(pages).ok_or_else(bad)? })
}

fn rate(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a rate from 1M to 100G: give 1G or 125M");
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit {
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(bad()),
    };
    let rate = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    rate.filter(|rate| (1_000_000..=100_000_000_000).contains(rate)).ok_or_else(bad)
}

fn downtime(text: &str) -> Result<Duration, String> {
    let milliseconds = text.strip_suffix("ms").and_then(|number| number.parse().ok());
    let milliseconds = milliseconds.filter(|number| (1..=10_000).contains(number));
    milliseconds.map(Duration::from_millis).ok_or_else(|| format!("`{text}` is not 1ms to 10000ms"))
}

const GUEST: &str = "The guest and its link";
const MEASURING: &str = "Measuring";

/// The help text below the options.
pub const HELP: &str = "\
A guest on the hosted machine moves by pre-copy while it writes, once with each tracker of the dirty log. `work` is the
time until the guest has done a fixed number of writes, at the source and then at the target: those of the time in which
the link carries its memory twice. `migration` is the time until it is offered to the target, and `downtime` how long it
stands still.

All times are modelled. The driver, the dirty log and the tables are the real ones. What they execute is counted where it
happens, and charged to the clock of the vCPU that faults or of the migration's thread, by prices that are printed with
their sources. So equal seeds give equal figures on every host.

The load is in percent of the link: at 100 a guest writes as many pages in a second as the link carries. The last table
shows for each load how much sooner the work is done with each tracker than with write-protect, and how much longer the
migration takes.

Examples:
  cargo run --release -p twofold -- bench migrate-model
  cargo run --release -p twofold -- bench migrate-model --vcpus 4 --mix 95/5 --hot together
  cargo run --release -p twofold -- bench migrate-model --load 80 --no-sweep -v

Exit status: 1 if an interval misses a target.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_mixes_and_times_have_their_forms() {
        assert_eq!((rate("1G"), rate("125M")), (Ok(1_000_000_000), Ok(125_000_000)));
        assert_eq!(mix("95/5"), Ok(Mix { writes: 95, pages: 5 }));
        assert_eq!(downtime("5ms"), Ok(Duration::from_millis(5)));
        for bad in ["", "1", "0M", "1T", "G", "101G", "18446744073709551615G"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        for bad in ["", "80", "80/", "0/20", "80/101", "a/b"] {
            assert!(mix(bad).is_err(), "{bad}");
        }
        assert!(["5", "0ms", "5s", "10001ms"].map(downtime).iter().all(Result::is_err));
    }
}
