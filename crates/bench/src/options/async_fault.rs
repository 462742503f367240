// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `async-fault`: those of Natapov's `bm`, with the same meanings, and our own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use twofold_machine::tasks::Nanos;
use twofold_memory::async_fault::Mode;

use super::output::OutputOptions;
use super::size::Size;
use crate::results::Platform;

/// Options of `async-fault`.
#[derive(Args, Clone, Debug)]
pub struct AsyncFaultOptions {
    /// Tasks that store to random pages of the array: -f 4. Default: one for each vCPU (bm's default is 1)
    #[arg(short = 'f', long = "faulting", value_name = "N", help_heading = GUEST, value_parser = clap::value_parser!(u64).range(0..=MOST_TASKS))]
    pub faulting: Option<u64>,
    /// Tasks that work: -w 4. Default: one for each vCPU (bm's default is 1)
    #[arg(short = 'w', long = "workers", value_name = "N", help_heading = GUEST, value_parser = clap::value_parser!(u64).range(1..=MOST_TASKS))]
    pub workers: Option<u64>,
    /// Bytes of the array, with K, M or G (powers of 1024): -m 1G. Rounded up to pages of 4 KiB. Default: 64M, and 128M on the
    /// hypervisor
    #[arg(short = 'm', long = "memory", value_name = "SIZE", help_heading = GUEST)]
    pub memory: Option<Size>,
    /// Seconds of the guest's time, or with ms or s: -t 60, -t 500ms
    #[arg(short = 't', long = "time", value_name = "TIME", default_value = "5", value_parser = seconds, help_heading = GUEST)]
    pub time: Nanos,
    /// Adds each worker's count, and what guest and hypervisor counted
    #[arg(short = 'v', long = "verbose", help_heading = GUEST)]
    pub verbose: bool,
    /// vCPUs of the guest, each with a virtual clock of its own: --vcpus 4. Tasks are dealt to them in turn, and stay. Default: 2,
    /// and 1 on the hypervisor
    #[arg(long, value_name = "N", help_heading = GUEST, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub vcpus: Option<u64>,
    /// On the hypervisor: what runs bm. Default: both: --guest linux
    #[arg(long, value_name = "GUEST,...", value_delimiter = ',', help_heading = GUEST)]
    pub guest: Vec<BmGuest>,

    /// What a vCPU does while a page is absent; several are compared, `off` is the baseline: --mode off,pv
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', default_values = ["off", "halt", "pv"], help_heading = TECHNIQUES)]
    pub mode: Vec<FaultMode>,
    /// How long the store takes for a page, in the guest's time, with us, ms or s: --latency 500us. Several are measured one
    /// after the other. The published figures are of a disk, and are compared with 10 ms
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', default_values = ["10ms", "100us"], value_parser = latency, help_heading = TECHNIQUES)]
    pub latency: Vec<Nanos>,
    /// The most bytes of the guest in memory: --limit 512M. Default: half of -m
    #[arg(long, value_name = "SIZE", help_heading = TECHNIQUES)]
    pub limit: Option<Size>,

    /// Where the guest runs: on the machine in virtual time, or on the hypervisor in QEMU
    #[arg(long, value_name = "WHERE", value_enum, default_value = "machine", help_heading = MEASURING)]
    pub on: Platform,
    /// The directory of twofold.img, guest.img, linux.img and bm.cpio, for the hypervisor. Default: this workspace's, which are
    /// built if they are missing
    #[arg(long, value_name = "DIR", help_heading = MEASURING)]
    pub images: Option<PathBuf>,
    /// Runs of each mode, in turns, each with a seed of its own, after one whose array is compared with what was written. On the
    /// hypervisor with one vCPU all runs are equal, so there is one
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seed of the first run's random pages; the next run has the next seed. Equal seeds give equal figures: --seed 7
    #[arg(long, value_name = "SEED", default_value_t = 1, help_heading = MEASURING)]
    pub seed: u64,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// A guest that runs `bm` on the hypervisor, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum BmGuest {
    /// The bare-metal guest, with tasks and a scheduler of its own on each vCPU
    Bare,
    /// Debian's Linux with the module of guests/linux-apf, and guests/bm
    Linux,
}

impl BmGuest {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Bare, Self::Linux];

    /// The guest's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Linux => "linux",
        }
    }
}

/// A mode, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum FaultMode {
    /// The vCPU waits for the page
    Off,
    /// It waits for the page or for an interrupt
    Halt,
    /// The guest gets a notification, and runs another task
    Pv,
}

impl FaultMode {
    /// The mode's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Halt => "halt",
            Self::Pv => "pv",
        }
    }

    /// The mode.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Off => Mode::Off,
            Self::Halt => Mode::Halt,
            Self::Pv => Mode::Pv,
        }
    }
}

/// A time in seconds, or with a unit.
fn seconds(text: &str) -> Result<Nanos, String> {
    let bad = || format!("`{text}` is not a time above 0: give seconds, 500ms or 60s");
    span(text, &[("", SECOND), ("s", SECOND), ("ms", MILLISECOND)]).ok_or_else(bad)
}

/// A latency with its unit.
fn latency(text: &str) -> Result<Nanos, String> {
    let bad = || format!("`{text}` is not a latency above 0: give 100us, 10ms or 1s");
    span(text, &[("us", MICROSECOND), ("ms", MILLISECOND), ("s", SECOND)]).ok_or_else(bad)
}

fn span(text: &str, units: &[(&str, Duration)]) -> Option<Nanos> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, unit) = units.iter().find(|(name, _)| *name == unit)?;
    let nanos = number.parse::<u64>().ok()?.checked_mul(unit.as_nanos() as u64)?;
    // A day of a guest is more than anyone waits for, and sums of such times do not overflow.
    (1..=DAY.as_nanos() as u64).contains(&nanos).then(|| Nanos::new(nanos))
}

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The most faulting tasks, and the most workers.
pub const MOST_TASKS: u64 = 64;

const GUEST: &str = "The guest, as bm has it";
const TECHNIQUES: &str = "Techniques";
const MEASURING: &str = "Measuring";

/// The help text below the options.
pub const HELP: &str = "\
A guest's array does not fit into the memory that the guest may have, so pages of it are in a store. Some tasks store to
random pages of the array, and others work. `work` is what the workers did together; one unit is 10 us of computing and
one increment in memory. `pages` is how many absent pages the store brought. Each vCPU has a fair scheduler with slices
of 4 ms. In mode `off` a vCPU that needs an absent page waits for it, and the guest charges that time to the faulting
task. With `halt` the guest's timer still ends a slice. With `pv` the guest parks the task until the page is there.

On the machine, all figures are modelled. Time is virtual: it passes by the tasks' steps, by stated prices of exits, interrupts and
switches, and by the store's latency. The accesses, tables, faults, pages that leave and the protocol with the guest are
real. The prices are printed with their sources.

If faulting tasks and workers are one for each vCPU, the array is twice the limit, and the latency is 10 ms, then the
published figures are beside ours, as time for the same work. There `pv` can do about twice the work of `off` and no
more: a fair scheduler gives half of the time to the workers even while faulting tasks only wait.

With --on hypervisor the same guest runs in QEMU: the bare-metal guest, or Debian's Linux with a module, in four times the
limit, with a store in the machine's memory. `writes` are the random pages that were written; with an array of twice the limit,
about every second one was absent. With one vCPU an instruction takes a nanosecond and all runs are equal. With several, each
vCPU has a CPU, and time is this host's: the modes take turns, and only their ratios say something.

Examples:
  cargo run --release -p twofold -- bench async-fault
  cargo run --release -p twofold -- bench async-fault -f 4 -w 4 -m 1G --limit 512M -t 60 --vcpus 4      Natapov 2010
  cargo run --release -p twofold -- bench async-fault --mode off,pv --latency 20us,100us,1ms,10ms --report async.html
  cargo run --release -p twofold -- bench async-fault -f 8 -w 1 --vcpus 1 -v
  cargo run --release -p twofold -- bench async-fault --on hypervisor
  cargo run --release -p twofold -- bench async-fault --on hypervisor --guest linux --vcpus 2 --latency 10ms --runs 10

Exit status: 1 if an interval excludes a saving that is expected, or misses a target.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bms_are_seconds() {
        assert_eq!(seconds("60"), Ok(Nanos::millis(60_000)));
        assert_eq!(seconds("500ms"), Ok(Nanos::millis(500)));
        assert_eq!(["100us", "10ms", "1s"].map(latency), [100, 10_000, 1_000_000].map(|us| Ok(Nanos::micros(us))));
        for bad in ["", "0", "-1", "1.5", "5us", "1h", "99999999999999999999", "100000000"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        for bad in ["", "10", "0ms", "ms", "1m", "18446744073709551615us"] {
            assert!(latency(bad).is_err(), "{bad}");
        }
    }
}
