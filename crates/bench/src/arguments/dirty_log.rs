// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `dirty-log`: those of KVM's `dirty_log_perf_test`, with their meanings there, and ours.

use std::path::PathBuf;

use clap::Args;
use twofold_memory::dirty::Tracker;
use twofold_pattern::mode::{MODES, Mode};

use super::output::OutputOptions;
use super::size::{Size, Span};
use super::tracker;
use super::variants::Choice;
use crate::experiment::setup::Backing;
use crate::results::Platform;

/// Options of `dirty-log`.
#[derive(Args, Clone, Debug)]
pub struct DirtyLogOptions {
    /// Bytes of each vCPU's region (in `page-table` the same letter is the total): 512M, 1G, 64K
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", default_value = "1G", help_heading = GUEST)]
    pub bytes: Size,
    /// vCPUs, a thread each: -v 4
    #[arg(short = 'v', long = "vcpus", value_name = "N", default_value_t = 1, help_heading = GUEST)]
    pub vcpus: usize,
    /// Rounds of dirty, get and clear, at least 2: -i 5
    #[arg(short = 'i', long = "iterations", value_name = "N", default_value_t = 2, help_heading = GUEST,
          value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub iterations: u32,
    /// Guest mode, by name or by Linux 6.12's number; again for another one: -m p40v48-4k -m 8. Without it the four that S0
    /// has its mean over, one after the other: p40v48-4k, p40v48-64k, p36v48-4k, p36v48-64k; on KVM of x86-64 the only one
    #[arg(short = 'm', long = "mode", value_name = "MODE", value_parser = mode, help_heading = GUEST)]
    pub modes: Vec<Mode>,
    /// What the memory is made of, and so how large its mappings are: -s anonymous_thp. What S0 calls already split (4k pages)
    /// is `anonymous`
    #[arg(short = 's', long = "backing", value_name = "KIND", value_enum, default_value = "anonymous", help_heading = GUEST)]
    pub backing: Backing,
    /// No manual protection: all is write-protected, and split, when logging is enabled, and getting the log clears it (S0's
    /// first scenario). The same as --tracker write-protect
    #[arg(short = 'g', long = "get-clears", help_heading = GUEST)]
    pub get_clears: bool,
    /// Places are drawn, some twice and some never, instead of one after the other
    #[arg(short = 'a', long = "random-order", help_heading = GUEST)]
    pub random_order: bool,
    /// All vCPUs go over all of the memory, which is as large: vCPUs times SIZE
    #[arg(short = 'o', long = "overlap", help_heading = GUEST)]
    pub overlap: bool,
    /// How many of 100 places are written, the others being read; the first touch writes all: -w 25
    #[arg(short = 'w', long = "write-percent", value_name = "N", default_value_t = 100, help_heading = GUEST,
          value_parser = clap::value_parser!(u64).range(0..=100))]
    pub write_percent: u64,
    /// Slots that the memory is divided among: -x 4
    #[arg(short = 'x', long = "slots", value_name = "N", default_value_t = 1, help_heading = GUEST)]
    pub slots: usize,
    /// What places and writes are drawn by, up to 2147483646; vCPU n has SEED + n: -r 7. From 0 nothing but 0 comes: with
    /// -r 0 vCPU 0 always writes, with -a its first page alone, as the first vCPU of Linux 6.12's test does
    #[arg(short = 'r', long = "seed", value_name = "SEED", default_value_t = 1, help_heading = GUEST,
          value_parser = clap::value_parser!(u64).range(0..=2_147_483_646))]
    pub seed: u64,
    /// vCPUs run on while logging is disabled
    #[arg(short = 'e', long = "run-while-disabling", help_heading = GUEST)]
    pub run_while_disabling: bool,
    /// The guest's physical address of the memory, in bytes: -p 0x40000000. Without it, the end of what the mode has
    #[arg(short = 'p', long = "offset", value_name = "ADDRESS", help_heading = GUEST)]
    pub offset: Option<Size>,
    /// The CPU of each vCPU, and behind them, if one likes, that of the collector: -c 0,1,2,3,4
    #[arg(short = 'c', long = "cpus", value_name = "CPU,...", value_delimiter = ',', help_heading = GUEST)]
    pub cpus: Vec<usize>,

    /// How writes are tracked; several take turns: --tracker manual,combined. Without it, and without -g: manual, with all
    /// pages dirty at first, so that what is cleared is protected, and split, by then (S0's second scenario)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = tracker, help_heading = TECHNIQUES)]
    pub tracker: Vec<Tracker>,
    /// A technique as it is, or as it was before; several take turns in each run, and are compared with what was before:
    /// --policy split=every-level,records. There are split=records|skip-leaves|skip-children|every-level,
    /// cmo=on-map|on-abort (on a CPU without forced write-back, with caches really cleaned), coalesce=install-first|free-first,
    /// tables=when-needed|always
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = TECHNIQUES)]
    pub policy: Vec<Choice>,
    /// With --on kvm: a ring of so many pages for each vCPU instead, from which the written ones are taken: --ring 65536
    #[arg(long, value_name = "PAGES", conflicts_with_all = ["tracker", "get_clears"], help_heading = TECHNIQUES)]
    pub ring: Option<u32>,
    /// Bytes that are split at once ahead of the guest's writes; 2M unless given: --chunk 1G. 0, which is KVM's default, splits
    /// nothing ahead, and so measures no split. For KVM on x86-64 it is a parameter of the kernel's module, and 0 here
    #[arg(long, value_name = "SIZE", help_heading = TECHNIQUES)]
    pub chunk: Option<Size>,
    /// Nanoseconds that a fault's way out of the guest and back takes on the machine that is thought of, added for each fault:
    /// --exit-cost 1500. What has it in it is marked `modelled`
    #[arg(long, value_name = "NS", default_value_t = 0, help_heading = TECHNIQUES)]
    pub exit_cost: u64,

    /// Where the guest runs
    #[arg(long, value_name = "WHERE", value_enum, default_value = "machine", help_heading = MEASURING)]
    pub on: Platform,
    /// With --on hypervisor: the directory of the images that `cargo xtask build` makes; without it those of this program's
    /// sources, which are built where they are missing
    #[arg(long, value_name = "DIR", help_heading = MEASURING)]
    pub images: Option<PathBuf>,
    /// Runs of each variant that are counted, in turns, after one that is checked and not counted; 7 for medians. With
    /// --continuous 4
    #[arg(long, value_name = "N", help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,
    /// Maps a small piece of memory over and over, for sizes beyond this machine
    #[arg(long, help_heading = MEASURING)]
    pub sparse: bool,
    /// Tells each iteration apart, not their mean alone
    #[arg(long, help_heading = MEASURING)]
    pub each: bool,
    /// vCPUs write without pause while the log is read and cleared at an interval: the guest's rate over time
    #[arg(long, help_heading = MEASURING, conflicts_with_all = ["iterations", "run_while_disabling", "each", "tap"])]
    pub continuous: bool,
    /// With --continuous: from one collection to the next: 100ms
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "continuous", help_heading = MEASURING)]
    pub interval: Span,
    /// With --continuous: how long logging is enabled; before and after it a third of that each: 10s
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "continuous", help_heading = MEASURING)]
    pub duration: Span,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
    /// Checks alone, as TAP, and no times: whether each log tells exactly what the guest wrote. In comments: which pages were
    /// dirty in each round, as a number and a sum, and under KVM the kernel's instructions, where they can be counted. Exit
    /// status 4 where the platform is not there
    #[arg(long, help_heading = "Output", conflicts_with_all = ["json", "csv", "report", "runs"])]
    pub tap: bool,
}

const GUEST: &str = "The guest, as dirty_log_perf_test has it";
const TECHNIQUES: &str = "Techniques";
const MEASURING: &str = "Measuring";

/// A guest mode, by name or number.
pub fn mode(text: &str) -> Result<Mode, String> {
    let names = || MODES.map(|mode| format!("{} {}", mode.number, mode.name)).join(", ");
    Mode::find(text).ok_or_else(|| format!("there is no mode `{text}`; there are {}", names()))
}

/// What stands below the options.
pub const HELP: &str = "\
A guest touches all of its memory (populate); logging is enabled; then, over and over, it writes (dirty), the log is read (get)
and cleared (clear), as for a live migration; logging is disabled. Times are told from outside: that of dirty is up to the
slowest vCPU, CPU time is of all threads that took part. Dirty, get and clear are means over the iterations of a run, and
`iteration` is all three together: a moved cost is not a saved cost. Variants take turns in each run. The first run is not
counted: in it each log is compared with what the guest wrote, page by page, and the command fails where one differs.

With --continuous vCPUs never pause. Their rate before logging is the steady one; `lost` is what they would have done by it
while they were logged and did not do, as time. What pages that are still protected cost later shows in `after`. `per second of
CPU` is what they did while they were logged by the CPU time of vCPUs and collector together.

Memory is touched by the system before the first run, so populate has the guest's faults in it, and not the system's.

Examples:
  cargo run --release -p twofold -- bench dirty-log
  cargo run --release -p twofold -- bench dirty-log -b 1G -v 4 -i 2 -s anonymous_thp -g
  cargo run --release -p twofold -- bench dirty-log -g --policy split=every-level,records     S0's first scenario
  cargo run --release -p twofold -- bench dirty-log --policy split=every-level,skip-leaves    its second one
  cargo run --release -p twofold -- bench dirty-log -b 512M -v 2 -i 5 -m 3 --tracker manual,combined --exit-cost 1500
  cargo run --release -p twofold -- bench dirty-log --continuous --duration 10s --interval 100ms --report rate.html";
