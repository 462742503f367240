// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `dirty-log`: those of KVM's `dirty_log_perf_test`, with the same meanings, and our own.

use std::path::PathBuf;

use clap::Args;
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;

use super::names::{mode, tracker};
use super::output::OutputOptions;
use super::policies::Choice;
use super::size::{Size, Span};
use crate::experiment::setup::Backing;
use crate::results::Platform;

/// Options of `dirty-log`.
#[derive(Args, Clone, Debug)]
pub struct DirtyLogOptions {
    /// Bytes of each vCPU's region (in `page-table` the same option is the total): 512M, 1G, 64K
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", default_value = "1G", help_heading = GUEST)]
    pub bytes: Size,
    /// vCPUs, one thread each: -v 4
    #[arg(short = 'v', long = "vcpus", value_name = "N", default_value_t = 1, help_heading = GUEST)]
    pub vcpus: usize,
    /// Rounds of dirty, get and clear, at least 2: -i 5
    #[arg(short = 'i', long = "iterations", value_name = "N", default_value_t = 2, help_heading = GUEST,
          value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub iterations: u32,
    /// Guest mode, by name or by its number in Linux 6.12; repeat it for several: -m p40v48-4k -m 8. Default: the four
    /// modes that Bras 2026 averages over (p40v48-4k, p40v48-64k, p36v48-4k, p36v48-64k); on KVM of x86-64, its only
    /// mode
    #[arg(short = 'm', long = "mode", value_name = "MODE", value_parser = mode, help_heading = GUEST)]
    pub modes: Vec<Mode>,
    /// Kind of the memory, which sets the size of its mappings: -s anonymous_thp. `anonymous` is the case that Bras
    /// 2026 calls already split (4k pages)
    #[arg(short = 's', long = "backing", value_name = "KIND", value_enum, default_value = "anonymous", help_heading = GUEST)]
    pub backing: Backing,
    /// No manual protection: enabling the log write-protects and splits all memory, and getting the log clears it (Bras
    /// 2026, first scenario). The same as --tracker write-protect
    #[arg(short = 'g', long = "get-clears", help_heading = GUEST)]
    pub get_clears: bool,
    /// Access random places, some twice and some never, instead of all in order
    #[arg(short = 'a', long = "random-order", help_heading = GUEST)]
    pub random_order: bool,
    /// All vCPUs access all of the memory, which keeps its size: vCPUs times SIZE
    #[arg(short = 'o', long = "overlap", help_heading = GUEST)]
    pub overlap: bool,
    /// Percentage of accesses that write; the others read. The first pass writes everything: -w 25
    #[arg(short = 'w', long = "write-percent", value_name = "N", default_value_t = 100, help_heading = GUEST,
          value_parser = clap::value_parser!(u64).range(0..=100))]
    pub write_percent: u64,
    /// Memslots that the memory is divided among: -x 4
    #[arg(short = 'x', long = "slots", value_name = "N", default_value_t = 1, help_heading = GUEST)]
    pub slots: usize,
    /// Seed of places and writes, up to 2147483646; vCPU n has SEED + n: -r 7. The generator stays at 0 from 0: with -r
    /// 0, vCPU 0 always writes, and with -a only its first page, like the first vCPU of Linux 6.12's test
    #[arg(short = 'r', long = "seed", value_name = "SEED", default_value_t = 1, help_heading = GUEST,
          value_parser = clap::value_parser!(u64).range(0..=2_147_483_646))]
    pub seed: u64,
    /// The vCPUs run on while logging is disabled
    #[arg(short = 'e', long = "run-while-disabling", help_heading = GUEST)]
    pub run_while_disabling: bool,
    /// Guest physical address of the memory, in bytes: -p 0x40000000. Default: the end of the mode's address space
    #[arg(short = 'p', long = "offset", value_name = "ADDRESS", help_heading = GUEST)]
    pub offset: Option<Size>,
    /// The CPU of each vCPU, optionally followed by the collector's CPU: -c 0,1,2,3,4
    #[arg(short = 'c', long = "cpus", value_name = "CPU,...", value_delimiter = ',', help_heading = GUEST)]
    pub cpus: Vec<usize>,

    /// How writes are tracked; several take turns: --tracker manual,combined. Default, without -g: manual, with all
    /// pages dirty at first, so that a clear protects and splits (Bras 2026, second scenario)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = tracker, help_heading = TECHNIQUES)]
    pub tracker: Vec<Tracker>,
    /// Selects a technique or its baseline; several take turns in each run and are compared with the baseline: --policy
    /// split=every-level,records. There are split=records|skip-leaves|skip-children|every-level, cmo=on-map|on-abort
    /// (on a CPU without forced write-back, with real cache maintenance), coalesce=install-first|free-first,
    /// tables=when-needed|always
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = TECHNIQUES)]
    pub policy: Vec<Choice>,
    /// With --on kvm: a dirty ring of this many pages for each vCPU, instead of a bitmap: --ring 65536
    #[arg(long, value_name = "PAGES", conflicts_with_all = ["tracker", "get_clears"], help_heading = TECHNIQUES)]
    pub ring: Option<u32>,
    /// Bytes to split at once, ahead of the guest's writes; default 2M: --chunk 1G. 0, which is KVM's default, splits
    /// nothing ahead, and so measures no split. For KVM on x86-64 it is a kernel module parameter, and 0 here
    #[arg(long, value_name = "SIZE", help_heading = TECHNIQUES)]
    pub chunk: Option<Size>,
    /// Modelled cost of a fault's exit and re-entry, in nanoseconds, added for each fault: --exit-cost 1500. Figures
    /// that include it are marked `modelled`
    #[arg(long, value_name = "NS", default_value_t = 0, help_heading = TECHNIQUES)]
    pub exit_cost: u64,

    /// Where the guest runs
    #[arg(long, value_name = "WHERE", value_enum, default_value = "machine", help_heading = MEASURING)]
    pub on: Platform,
    /// With --on hypervisor: the directory of the images that `cargo xtask build` makes. Default: this workspace's,
    /// which are built if they are missing
    #[arg(long, value_name = "DIR", help_heading = MEASURING)]
    pub images: Option<PathBuf>,
    /// Runs of each variant, in turns, after one run that is checked and not counted; default 7, with --continuous 4
    #[arg(long, value_name = "N", help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,
    /// Maps a small piece of memory repeatedly, for sizes beyond this machine
    #[arg(long, help_heading = MEASURING)]
    pub sparse: bool,
    /// Shows each iteration, not only the mean
    #[arg(long, help_heading = MEASURING)]
    pub each: bool,
    /// vCPUs write without pause while the log is read and cleared at an interval; shows the guest's rate over time
    #[arg(long, help_heading = MEASURING, conflicts_with_all = ["iterations", "run_while_disabling", "each", "tap"])]
    pub continuous: bool,
    /// With --continuous: time from one collection to the next: 100ms
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "continuous", help_heading = MEASURING)]
    pub interval: Span,
    /// With --continuous: time with logging enabled; a third of it is measured before, and a third after: 10s
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "continuous", help_heading = MEASURING)]
    pub duration: Span,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
    /// Only checks, as TAP, without times: whether each log reports exactly the pages that the guest wrote. Comments
    /// have the dirty pages of each round as a count and a checksum, and under KVM the kernel's instructions, if they
    /// can be counted. Exit status 4 if the platform is not available
    #[arg(long, help_heading = "Output", conflicts_with_all = ["json", "csv", "report", "runs"])]
    pub tap: bool,
}

const GUEST: &str = "The guest, as dirty_log_perf_test has it";
const TECHNIQUES: &str = "Techniques";
const MEASURING: &str = "Measuring";

/// The help text below the options.
pub const HELP: &str = "\
A guest touches all of its memory (populate). Logging is enabled. Then the guest writes (dirty), the log is read (get)
and cleared (clear), repeatedly, as in a live migration. Logging is disabled. Times are measured from outside: dirty
lasts until the slowest vCPU is done, and CPU time is that of all threads that took part. Dirty, get and clear are
means over the iterations of a run. `iteration` is the sum of the three, because a cost that moved is not saved.
Variants take turns in each run. The first run is not counted: it compares each log with the guest's writes, page by
page, and the command fails if they differ.

A summary of about twelve lines is printed, which ends with one sentence: what takes how much less or more time than the
baseline. Times are means over the guest modes. --all prints every row: each mode, CPU time, faults, table pages.

With --continuous the vCPUs never pause. Their rate before logging is the steady rate. `lost` is the work that they did
not do while logged, as time at the steady rate. `after` includes the later cost of pages that are still protected.
`per second of CPU` is the work done while logged, divided by the CPU time of vCPUs and collector together.

The system touches the memory before the first run, so populate includes the guest's faults and not the system's.

Examples:
  cargo run --release -p twofold -- bench dirty-log
  cargo run --release -p twofold -- bench dirty-log -b 1G -v 4 -i 2 -s anonymous_thp -g
  cargo run --release -p twofold -- bench dirty-log -g --policy split=every-level,records     Bras 2026, first scenario
  cargo run --release -p twofold -- bench dirty-log --policy split=every-level,skip-leaves    Bras 2026, second scenario
  cargo run --release -p twofold -- bench dirty-log -b 512M -v 2 -i 5 -m 3 --tracker manual,combined --exit-cost 1500
  cargo run --release -p twofold -- bench dirty-log --continuous --duration 10s --interval 100ms --report rate.html";
