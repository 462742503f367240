// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `cargo xtask`.
//!
//! Invariant: what the types here accept is well-formed; whether it is possible is for the commands to say.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use twofold_abi::virt::MAX_CPUS;
use twofold_launch::{Pages, machine};

use crate::size::Size;

/// Builds, runs and tests Twofold.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", version, propagate_version = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Builds the images: the hypervisor, the EL2 tests, the bare-metal guest
    Build,
    /// Says which lines of the engine the tests on the host execute
    #[command(after_help = "Exit status: 1 where it is less than 90 % of the lines of stage2 or of memory.")]
    Coverage(CoverageOptions),
    /// Builds the command `twofold` as one static file: target/dist/twofold-aarch64, target/dist/twofold-x86_64
    Dist(DistOptions),
    /// Says what is there, what is missing, and the exact command for each
    #[command(after_help = "Exit status: 1 when something is missing that `cargo xtask run` cannot install by itself.")]
    Doctor,
    /// Fuzzes what reads outside bytes; installs cargo-fuzz and a nightly toolchain where they are missing
    #[command(after_help = FUZZ_HELP)]
    Fuzz(FuzzOptions),
    /// Leaves out or weakens each step of the engine, one at a time, and says which nobody noticed
    #[command(after_help = MUTANTS_HELP)]
    Mutants(MutantsOptions),
    /// Keeps a copy of a guest's memory by what its dirty log tells, and compares: nothing may be lost
    #[command(after_help = ORACLE_HELP)]
    Oracle(OracleOptions),
    /// Measures others' code for the same job beside ours, in one run
    Peers(PeersOptions),
    /// Records which pages Linux writes while `redis-benchmark -t set` runs in it, for `twofold bench dirty-table`
    #[command(after_help = RECORD_HELP)]
    RecordRedis(RecordOptions),
    /// Boots a guest under the hypervisor, from nothing: installs what is missing, builds, fetches
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunOptions),
    /// Runs the suites: host, el2, linux, kvm, proof
    #[command(after_help = TEST_EXAMPLES)]
    Test(TestOptions),
    /// Checks a trace by its text alone: locks, break-before-make, flushes before tables are freed
    #[command(after_help = "The format, and what is checked: docs/trace.md. Exit status: 1 where there is a breach.")]
    TraceCheck(TraceCheckOptions),
}

/// Options of `fuzz`.
#[derive(Args, Clone, Debug)]
pub struct FuzzOptions {
    /// Which target; without it, one after the other
    pub target: Option<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Copies new inputs to fuzz/corpus that reach code which those there do not
    #[arg(long)]
    pub keep: bool,
}

/// Options of `coverage`.
#[derive(Args, Clone, Debug)]
pub struct CoverageOptions {
    /// Writes each line with its count to DIR as HTML
    #[arg(long, value_name = "DIR")]
    pub html: Option<PathBuf>,
}

/// What mutants change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MutantsOf {
    /// A barrier, TLB invalidation, cache operation, lock or ordered access.
    Calls,
    /// A comparison's bound, a condition, an operator, a literal, a constant.
    Values,
}

/// Options of `mutants`.
#[derive(Args, Clone, Debug, Default)]
pub struct MutantsOptions {
    /// Mutants of calls or of values alone
    #[arg(long, value_enum)]
    pub of: Option<MutantsOf>,
    /// Only mutants with one of these in their names: FILE:LINE:COLUMN:KIND, FUNCTION/CALL/KIND, or a part of a value's change
    #[arg(long, value_name = "FILTER,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// One mutant for each thing that is called and each kind, and a sample of the values
    #[arg(long)]
    pub quick: bool,
    /// Lists the mutants and judges none
    #[arg(long)]
    pub list: bool,
    /// How many are judged at a time; as many as there are CPUs, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Runs the tests at EL2 as well that leave out steps of the hypervisor's own sequences, in QEMU
    #[arg(long)]
    pub el2: bool,
    /// Writes the outcomes to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `oracle`.
#[derive(Args, Clone, Debug)]
pub struct OracleOptions {
    /// Where the guest runs
    #[arg(long, value_enum, default_value_t = Place::Machine)]
    pub on: Place,
    /// Only this tracker
    #[arg(long, value_enum, value_name = "NAME")]
    pub tracker: Option<TrackerOption>,
    /// Pages to compare for each tracker; 10 million, on the hypervisor 500,000, of a control 6 million, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub comparisons: Option<u64>,
    /// What is chosen at random is chosen by this; TWOFOLD_SEED stands for it, and without both it is another each time
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Runs logs with a known defect instead, each of which has to lose pages
    #[arg(long, conflicts_with = "tracker")]
    pub controls: bool,
}

/// Where a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// On the hosted machine: guest programs, a software MMU, native speed
    Machine,
    /// Under the hypervisor, in QEMU: Linux
    Hypervisor,
}

/// A tracker of a dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrackerOption {
    /// The first write to a page faults; what is told is cleared
    WriteProtect,
    /// The same, cleared apart
    Manual,
    /// Hardware records writes
    Hardware,
    /// A write that faults has hardware record the writes around it
    Combined,
    /// Both, as past rounds suggest
    Adaptive,
}

impl TrackerOption {
    /// As it is given.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteProtect => "write-protect",
            Self::Manual => "manual",
            Self::Hardware => "hardware",
            Self::Combined => "combined",
            Self::Adaptive => "adaptive",
        }
    }
}

/// Options of `dist`.
#[derive(Args, Clone, Debug)]
pub struct DistOptions {
    /// Only for this architecture
    #[arg(long, value_enum, value_name = "NAME")]
    pub architecture: Option<Architecture>,
}

/// An architecture that there is a static program for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Architecture {
    /// arm64
    Aarch64,
    /// x86-64
    #[value(name = "x86_64")]
    X86_64,
}

impl Architecture {
    /// As it is given.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64",
            Self::X86_64 => "x86_64",
        }
    }

    /// Rust's target with a C library inside.
    pub const fn target(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64-unknown-linux-musl",
            Self::X86_64 => "x86_64-unknown-linux-musl",
        }
    }
}

/// Options of `peers`.
#[derive(Args, Clone, Debug)]
pub struct PeersOptions {
    /// Whose code
    #[command(subcommand)]
    pub peer: Peer,
}

/// Whose code.
#[derive(Clone, Debug, Subcommand)]
pub enum Peer {
    /// KVM's stage-2 page-table code, from Debian's package linux-source-6.12, timed on this machine
    #[command(after_help = PEERS_LINUX_HELP)]
    Linux(PeersLinuxOptions),
    /// KVM itself, at EL2 in QEMU: the kernel's own selftests in Debian's kernel, instructions counted
    #[command(after_help = PEERS_KVM_HELP)]
    Kvm(PeersKvmOptions),
}

/// Options of `peers kvm`.
#[derive(Args, Clone, Debug)]
pub struct PeersKvmOptions {
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seconds after which Linux, if it has not ended, is taken to hang; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub timeout: u64,
    /// Fetches the kernel and its source again, even where they are in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// Options of `peers linux`.
#[derive(Args, Clone, Debug)]
pub struct PeersLinuxOptions {
    /// Guest memory in bytes, or with K, M or G (powers of 1024): a power of two from 1G to 256G
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: Size,
    /// Runs of each operation on each side, whose medians are compared; at least 1
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Measures only these operations
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Fetches the peer's source again, even where it is in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// Options of `record-redis`.
#[derive(Args, Clone, Debug)]
pub struct RecordOptions {
    /// How many rounds, from one change of process to the next
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Writes them to FILE, instead of target/redis.rounds
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Seconds after which a guest that has not ended is taken to hang; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub timeout: u64,
    /// Fetches the guest's packages again, even where they are in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// The guest checks itself and powers off; prints a table. Without a terminal, `--check --count` is what
    /// `run` does by itself
    #[arg(long)]
    pub check: bool,
    /// Counts instructions at EL2, in the deterministic mode: equal runs print equal counts. Implies --check;
    /// one vCPU only
    #[arg(long)]
    pub count: bool,
    /// Prints every counter instead of ten rows; with --count also what a dirty log costs, tracker by tracker. Implies --check
    #[arg(long)]
    pub counters: bool,
    /// Writes the figures to FILE as JSON. Implies --check
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes what is done to the guest's tables to FILE, line by line (docs/trace.md). Not with --count
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    pub trace: Option<PathBuf>,
    /// An uncompressed arm64 Image, instead of Debian's kernel
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// An initrd, instead of the one that is made from busybox
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Text to put at the end of the guest's command line. With --kernel it is the whole command line; such a kernel gets the
    /// words for Debian's Linux only without --append
    #[arg(long, value_name = "TEXT")]
    pub append: Option<String>,
    /// Guest memory in bytes, or with K, M or G (powers of 1024); a multiple of 4K, at least 64M, and 128M
    /// where Debian's Linux checks itself
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub memory: Size,
    /// Number of vCPUs, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS)))]
    pub cpus: u32,
    /// Size of the mappings of guest memory
    #[arg(long, value_enum, default_value_t = PagesOption::Auto)]
    pub pages: PagesOption,
    /// Which guest: Debian's Linux, the bare-metal one, or (auto) the second where the first cannot be fetched
    #[arg(long, value_enum, default_value_t = GuestOption::Auto)]
    pub guest: GuestOption,
    /// CPU model, as QEMU's -cpu takes it
    #[arg(long, value_name = "MODEL", default_value = machine::CPU_DEFAULT)]
    pub cpu: String,
    /// Seconds after which a guest that has not ended is taken to hang; 0 for no limit. Default: 120 with --check, else none
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Fetches the guest's packages again, even where they are in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// Options of `test`.
#[derive(Args, Clone, Debug)]
pub struct TestOptions {
    /// The suite to run in full; without it, the quick tier of all
    #[arg(value_enum)]
    pub suite: Option<Suite>,
    /// Runs only tests with one of these in their names
    #[arg(value_name = "FILTER")]
    pub filters: Vec<String>,
    /// Everything in full
    #[arg(long)]
    pub soak: bool,
    /// Lists the tests and runs none
    #[arg(long)]
    pub list: bool,
}

/// Options of `trace-check`.
#[derive(Args, Clone, Debug)]
pub struct TraceCheckOptions {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// A suite of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Format, lints, unit and property tests, documentation: no QEMU
    Host,
    /// The engine on real instructions at EL2, in QEMU
    El2,
    /// Whole guests, and what the command does with bad input
    Linux,
    /// Programs of ours on the KVM of a Linux at EL2, in QEMU; in full, what that KVM costs
    Kvm,
    /// Whether the tests notice: mutants, the model checker, volumes; about an hour in full. No QEMU
    Proof,
}

/// Values of `--pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PagesOption {
    /// As large as alignment and backing allow
    Auto,
    /// 4 KiB pages only
    #[value(name = "4k")]
    Small,
    /// Blocks of 2 MiB or 1 GiB only; guest memory must be a multiple of 2M
    Blocks,
}

/// Values of `--guest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuestOption {
    /// Linux, or the bare-metal guest where Linux cannot be fetched
    Auto,
    /// Linux, or an error
    Linux,
    /// The bare-metal guest
    Bare,
}

impl From<PagesOption> for Pages {
    fn from(option: PagesOption) -> Self {
        match option {
            PagesOption::Auto => Self::Auto,
            PagesOption::Small => Self::Small,
            PagesOption::Blocks => Self::Blocks,
        }
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  cargo xtask run                                  Linux's console; Ctrl-A X leaves
  cargo xtask run --check --count                  boots, checks, counts, and prints a table
  cargo xtask run --check --pages blocks --memory 1G --cpus 2
  cargo xtask run --kernel Image --initrd root.cpio --append 'console=ttyAMA0 rdinit=/bin/sh'
  cargo xtask run --check --json figures.json
  cargo xtask run --check --trace trace.txt        then: cargo xtask trace-check trace.txt

Environment:
  TWOFOLD_QEMU         the QEMU to use, instead of qemu-system-aarch64 from PATH
  TWOFOLD_APT_GET      the apt-get to fetch the guest with, instead of the one from PATH
  TWOFOLD_GUEST_CACHE  the directory that keeps the fetched guest, instead of target/guest

Exit status: 0 when the guest powered off (with --check: and its check passed), else not 0.";

const MUTANTS_HELP: &str = "\
There are two kinds. Of calls: each barrier, TLB invalidation, cache operation, lock or ordered access is left out or
weakened. Of values: a comparison's bound, a condition, an operator, a literal or a constant is changed. The tests that
execute a mutant run until one of them fails. A mutant that no test executes, or that only makes one run into its time
limit, is not caught.

Examples:
  cargo xtask mutants
  cargo xtask mutants --quick
  cargo xtask mutants --of values --only tlb.rs,Stage2::unmap
  cargo xtask mutants --list

The last line is `mutants: N of M caught`. Exit status: 1 when a mutant is not caught that neither
xtask/src/mutants/excused.rs nor xtask/src/mutants/values/excused.rs names.";

const ORACLE_HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause, while its dirty log is read and cleared, pages are
copied, and the log is stopped and started anew. Every few rounds all of them are held, and each page that the log calls
clean is compared with its copy. Only pages that were dirty in an earlier round count.

Examples:
  cargo xtask oracle                                   every tracker, 10 million comparisons each
  cargo xtask oracle --tracker combined --comparisons 1000000 --seed 7
  cargo xtask oracle --controls                        what has to lose pages does

A line for each tracker: `oracle: NAME: N compared, N re-dirtied, N lost`. For each control: `control: NAME: lost N`.
Exit status: 1 where a page was lost; with --controls, where one lost none.";

const PEERS_LINUX_HELP: &str = "\
Linux's page-table code is fetched, compiled for this machine as it is, and runs as a program of its own. One operation
of theirs and one of ours take turns; the figures are nanoseconds per page table entry, or per block where it says so.
A bar is reached when ours / Linux's of this run is at most what the bar says.

Examples:
  cargo xtask peers linux                              everything; about three minutes
  cargo xtask peers linux --only map_pages,protect --runs 21
  cargo xtask peers linux --json peers.json

Environment:
  TWOFOLD_APT_GET      the apt-get to fetch the source with, instead of the one from PATH";

const PEERS_KVM_HELP: &str = "\
Debian's arm64 kernel boots in QEMU at EL2, in the deterministic mode, and runs the kernel's own dirty_log_perf_test and
kvm_page_table_test, which are built unmodified from its source package. A small file of ours (peers/kvm), linked with them,
counts the instructions at EL2 of each call of KVM's: a run to the next exit to user space, a get, a clear. Equal runs print
equal figures. Beside them are the figures of KVM's that README and bars use; and each experiment with a dirty log is done
once more by the guest of `--on kvm`, which has to find the same pages dirty, and to cost the same within 10 %.

Examples:
  cargo xtask peers kvm
  cargo xtask peers kvm --json kvm.json

Exit status: 1 where the two do not agree.

Environment:
  TWOFOLD_QEMU, TWOFOLD_APT_GET, TWOFOLD_GUEST_CACHE   as of `run`";

const RECORD_HELP: &str = "\
Debian's Linux boots under the hypervisor with Debian's redis-server, most of whose keys are set; then redis-benchmark
sets them again, any of them each time, until the guest switches itself off. All of its writes are in the hypervisor's
dirty log (manual), which is read and cleared at each change of process. The last rounds make the file. In the
deterministic mode a nanosecond of virtual time is an instruction, and equal images make equal files.

Examples:
  cargo xtask record-redis
  cargo xtask record-redis --rounds 1000 --out redis.rounds
  cargo run --release -p twofold -- bench dirty-table --only recorded --recorded target/redis.rounds

Environment:
  TWOFOLD_QEMU, TWOFOLD_APT_GET, TWOFOLD_GUEST_CACHE   as of `run`";

const FUZZ_HELP: &str = "\
The targets are the functions of fuzz/targets; what they read is listed there. The inputs in fuzz/corpus are where it
starts, and are replayed by `cargo test`. What it finds is kept below target/fuzz.

Examples:
  cargo xtask fuzz                             every target, a minute each
  cargo xtask fuzz engine --seconds 600
  cargo xtask fuzz trace --keep                new inputs become part of the tests

Exit status: 1 when a target fails; the command that shows it again is printed.";

const TEST_EXAMPLES: &str = "\
Examples:
  cargo xtask test                 the quick tier of every suite
  cargo xtask test el2             one suite in full (host, el2, linux, kvm, proof)
  cargo xtask test linux fallback  the tests of it with \"fallback\" in their names
  cargo xtask test --soak          everything in full

The last line is `N passed, N failed`.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn run_has_defaults() {
        let arguments = Arguments::parse_from(["xtask", "run"]);
        let Command::Run(options) = arguments.command else { panic!("not run") };
        assert_eq!(options.memory.bytes(), 512 << 20);
        assert_eq!((options.cpus, options.pages, options.guest), (1, PagesOption::Auto, GuestOption::Auto));
    }

    #[test]
    fn architectures_are_called_what_they_are_named() {
        for architecture in Architecture::value_variants() {
            let value = architecture.to_possible_value();
            assert_eq!(value.map(|value| value.get_name() == architecture.name()), Some(true));
            assert!(architecture.target().starts_with(architecture.name()));
        }
    }

    #[test]
    fn trackers_are_called_what_they_are_named() {
        for tracker in TrackerOption::value_variants() {
            assert_eq!(tracker.to_possible_value().map(|value| value.get_name() == tracker.name()), Some(true));
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in
            [&["--pages", "16k"][..], &["--memory", "much"], &["--guest", "bsd"], &["--cpus", "0"], &["--cpus", "65"]]
        {
            let arguments = [&["xtask", "run"], bad].concat();
            assert!(Arguments::try_parse_from(&arguments).is_err(), "{bad:?}");
        }
    }
}
