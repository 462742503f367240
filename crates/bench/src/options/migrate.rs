// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `migrate`, and those of the two programs that it starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use twofold_memory::dirty::Tracker;

use super::names;
use super::output::OutputOptions;
use super::size::{Size, Span};
use crate::results::Platform;

/// Options of `migrate`.
#[derive(Args, Clone, Debug)]
pub struct MigrateOptions {
    /// Bytes of the guest's memory, with K, M or G (powers of 1024): --memory 1G. Rounded up to 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "256M", help_heading = GUEST)]
    pub memory: Size,
    /// vCPUs of the guest, each with a table of its own: --vcpus 4
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = GUEST, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub vcpus: u32,
    /// Requests a second to all vCPUs together: --rate 500000; 0: as many as they can serve. Default: 100000
    #[arg(long, value_name = "N", help_heading = GUEST)]
    pub rate: Option<u64>,
    /// The percentage of requests that write: --sets 80. Default: 20
    #[arg(long, value_name = "PERCENT", help_heading = GUEST, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub sets: Option<u64>,

    /// Requests of redis-benchmark in each run: --requests 500000. Default: 100000
    #[arg(long, value_name = "N", help_heading = REDIS)]
    pub requests: Option<u64>,
    /// Clients of redis-benchmark, each with a connection: --clients 900. Default: 50
    #[arg(long, value_name = "N", help_heading = REDIS, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub clients: Option<u32>,
    /// Directory of the hypervisor's images, and of the guest that `cargo xtask build --linux-redis` makes. Default: those of this
    /// workspace
    #[arg(long, value_name = "DIR", help_heading = REDIS)]
    pub images: Option<PathBuf>,

    /// How writes are tracked while the guest moves; several are compared, write-protect is the baseline. Default: all:
    /// --tracker write-protect,adaptive
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = names::tracker, help_heading = TECHNIQUES)]
    pub tracker: Vec<Tracker>,
    /// Moves the guest by post-copy too: it runs at the target at once, and its pages follow
    #[arg(long, help_heading = TECHNIQUES)]
    pub postcopy: bool,
    /// Slows no vCPU down: if the guest writes too fast for pre-copy, what is left then follows by post-copy
    #[arg(long, help_heading = TECHNIQUES)]
    pub postcopy_if_needed: bool,
    /// How long the guest may stand still, with ms, s or m: --downtime 20ms. Default: 5ms on the machine, 300ms on the hypervisor
    #[arg(long, value_name = "TIME", help_heading = TECHNIQUES)]
    pub downtime: Option<Span>,
    /// Bytes a second that all streams together may send: --bandwidth 100M. Default: no limit
    #[arg(long, value_name = "SIZE", help_heading = TECHNIQUES)]
    pub bandwidth: Option<Size>,
    /// Streams that carry the guest, a thread each: --streams 4
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = TECHNIQUES, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub streams: u16,
    /// Whether pages are compressed
    #[arg(long, value_enum, value_name = "HOW", default_value = "off", help_heading = TECHNIQUES)]
    pub compression: Packed,

    /// Where the guest runs: in a process of this host, or on the hypervisor in QEMU
    #[arg(long, value_name = "WHERE", value_enum, default_value = "machine", help_heading = MEASURING)]
    pub on: Platform,
    /// Moves with each tracker, in turns, back and forth: --moves 100
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub moves: u32,
    /// How long the guest runs before and after each move, with ms, s or m: --settle 1s. Default: 200ms
    #[arg(long, value_name = "TIME", help_heading = MEASURING)]
    pub settle: Option<Span>,
    /// Seed of the requests: --seed 7
    #[arg(long, value_name = "SEED", default_value_t = 1, help_heading = MEASURING)]
    pub seed: u64,
    /// Moves nothing: runs the guest, and prints what a move with each tracker would take
    #[arg(long, help_heading = MEASURING)]
    pub dry_run: bool,
    /// Breaks one thing, and succeeds if that is noticed
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "dry_run", help_heading = MEASURING)]
    pub control: Option<Control>,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// Whether pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Packed {
    /// As they are
    Off,
    /// LZ4
    Lz4,
}

/// What a negative control breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Control {
    /// A page is sent as it is not, or on the hypervisor changed at the target: the program that compares the memory must find it
    Withheld,
    /// The target's process ends in the middle of a stream: the guest must go on at the source
    Dead,
    /// The source's dirty log leaves pages out: the program that compares the memory must find them
    Unlogged,
}

/// Options of the program that compares the memory of a stopped source with a target's.
#[derive(Args, Clone, Debug)]
pub struct CompareRamOptions {
    /// The source's list of pages
    pub source: PathBuf,
    /// The target's list of pages
    pub target: PathBuf,
}

const GUEST: &str = "The guest: a key-value store under load";
const REDIS: &str = "The guest of --on hypervisor: Linux with Redis";
const TECHNIQUES: &str = "Techniques";
const MEASURING: &str = "Measuring";

/// The help text below the options.
pub const HELP: &str = "\
A guest serves SETs and GETs on hash tables that fill its memory, and compares each word that it reads with what it wrote
last. It moves between two processes, over sockets, back and forth: first from this one to one that this starts.

`downtime` is from the moment at which the source begins to stop the guest to the moment at which all vCPUs are in the
guest at the target, by the host's clock. `migration` ends there too; with post-copy it ends when the last page has
come. `pages` counts each page each time that it is sent; `re-sent` those that were sent before.

At each switch, before the guest's first entry at the target, a third program compares all of its memory with that of the
stopped source: it reads both memory files, and no code of the migration. With post-copy it compares each page as it was
right before the guest got it. A page that differs ends the bench. The time of that comparison is not counted.

A fault of the machine's guest is a function call of the host: what exits cost on a CPU is not in these figures.

With --on hypervisor, the guest is Debian's Linux with Redis, under redis-benchmark -t set. It moves between two hypervisors, each
in a QEMU of its own, and in each turn it stays once, too. The program that compares memory reads both QEMUs' memory
files; where the guest's pages are, it learns from the hypervisors. A client outside of both QEMUs keeps one connection
through all moves: it reads what it wrote, and `longest gap outside` is how long it waited for an answer. `requests lost` is
the area between the rate before a move and what was served. Seconds are the emulator's: compare ratios.

Examples:
  cargo run --release -p twofold -- bench migrate
  cargo run --release -p twofold -- bench migrate --memory 16M --moves 100 --postcopy --settle 20ms
  cargo run --release -p twofold -- bench migrate --tracker write-protect,adaptive --bandwidth 200M --report migrate.html
  cargo run --release -p twofold -- bench migrate --tracker manual --postcopy-if-needed --bandwidth 20M --sets 80
  cargo run --release -p twofold -- bench migrate --dry-run --bandwidth 100M --sets 80
  cargo run --release -p twofold -- bench migrate --memory 16M --control withheld
  cargo run --release -p twofold -- bench migrate --on hypervisor --moves 5 --report redis.html
  cargo run --release -p twofold -- bench migrate --on hypervisor --tracker adaptive --moves 20 --clients 900

Exit status: 1 if a page or a word of the store differs, a key is lost or a connection dropped, a side fails, or a control is
not noticed.";
