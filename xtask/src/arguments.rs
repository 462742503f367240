// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `cargo xtask`.
//!
//! Invariant: a value that these types accept is well-formed. The commands check whether it is possible.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use twofold_abi::bundle::WEIGHT_MAX;
use twofold_abi::virt::MAX_CPUS;
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::size::Size;
use twofold_launch::spec::Spec;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{Pages, machine};
use twofold_workspace::guest::{Choice, Wanted};
use twofold_workspace::static_program::Architecture;

use crate::guest_option::GuestOption;

/// Builds, runs and tests Twofold.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", version, propagate_version = true)]
pub struct Arguments {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// A command of `cargo xtask`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Builds the images: the hypervisor, the EL2 tests, the bare-metal guest
    Build(BuildOptions),
    /// Reports which lines of the engine the tests on the host execute
    #[command(after_help = twofold_coverage::HELP)]
    Coverage(twofold_coverage::Options),
    /// Builds the command `twofold` as one static file with the hypervisor in it: target/dist/twofold-aarch64,
    /// target/dist/twofold-x86_64
    Dist(DistOptions),
    /// Reports which tools are present, which are missing, and the exact command that installs each
    #[command(after_help = "Exit status: 1 if a tool is missing that `cargo xtask run` cannot install by itself.")]
    Doctor,
    /// Fuzzes the parsers of untrusted input; installs cargo-fuzz and a nightly toolchain if they are missing
    #[command(after_help = FUZZ_HELP)]
    Fuzz(FuzzOptions),
    /// Leaves out or weakens each step of the engine, one at a time, and reports the mutants that no test caught
    #[command(after_help = twofold_mutants::HELP)]
    Mutants(twofold_mutants::Options),
    /// Keeps a copy of a guest's memory by its dirty log, and compares the two: no write may be lost
    #[command(after_help = twofold_oracle::command::HELP)]
    Oracle(twofold_oracle::command::Options),
    /// Measures other projects' code for the same job beside ours, in one run
    Peers(twofold_peers::Options),
    /// Records which pages Linux writes while `redis-benchmark -t set` runs in it, for `twofold bench dirty-table`
    #[command(after_help = RECORD_HELP)]
    RecordRedis(RecordOptions),
    /// Boots a guest under the hypervisor: installs missing tools, builds, fetches, boots
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunOptions>),
    /// Runs the suites: host, el2, linux, vm, async-fault, migration, devices, kvm, proof
    #[command(after_help = TEST_EXAMPLES)]
    Test(TestOptions),
    /// Checks a trace file: locks, break-before-make, flushes before tables are freed
    #[command(after_help = twofold_trace_check::HELP)]
    TraceCheck(twofold_trace_check::Options),
}

/// Options of `build`.
#[derive(Args, Clone, Debug)]
pub struct BuildOptions {
    /// Builds the Linux module of guests/linux-apf instead, for Debian's kernel: fetches its headers, and installs a compiler
    #[arg(long)]
    pub linux_module: bool,
    /// Builds a Linux guest that runs guests/bm instead, for `twofold bench async-fault --on hypervisor`
    #[arg(long, conflicts_with = "linux_module")]
    pub linux_bm: bool,
    /// Makes a Linux guest that serves Redis instead, for `twofold bench migrate --on hypervisor`
    #[arg(long, conflicts_with_all = ["linux_module", "linux_bm"])]
    pub linux_redis: bool,
}

/// Options of `fuzz`.
#[derive(Args, Clone, Debug)]
pub struct FuzzOptions {
    /// The target to fuzz; without it, every target in turn
    pub target: Option<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Adds each new input to fuzz/corpus that reaches code which the corpus does not cover yet
    #[arg(long)]
    pub keep: bool,
}

/// Options of `dist`.
#[derive(Args, Clone, Debug)]
pub struct DistOptions {
    /// Builds only for this architecture
    #[arg(long, value_enum, value_name = "NAME")]
    pub architecture: Option<Architecture>,
}

/// Options of `record-redis`.
#[derive(Args, Clone, Debug)]
pub struct RecordOptions {
    /// Rounds to record; a round lasts from one context switch to the next
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Writes the rounds to FILE, instead of target/redis.rounds
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Seconds after which a guest that has not ended counts as hung; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub timeout: u64,
    /// Fetches the guest's packages again, even if they are in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Has the guest check itself and power off, and prints a table. Without a terminal, `run` implies `--check
    /// --count`
    #[arg(long)]
    pub check: bool,
    /// Counts instructions at EL2 in the deterministic mode, in which equal runs print equal counts. Implies --check;
    /// one vCPU only
    #[arg(long)]
    pub count: bool,
    /// Prints every counter instead of ten rows; with --count also the costs of a dirty log by tracker. Implies --check
    #[arg(long)]
    pub counters: bool,
    /// Writes the figures to FILE as JSON. Implies --check
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes each change of the guest's tables to FILE as a line (docs/trace.md). Not with --count
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    pub trace: Option<PathBuf>,
    /// An uncompressed arm64 Image, instead of Debian's kernel
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// An initrd, instead of the built-in one with busybox
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Boots Debian from a disk, with a network: bash, apt, Redis, fio and the like. The guest's disk is
    /// target/disks/NAME.img, which is kept from run to run; `--disk=new` makes it anew
    #[arg(
        long, value_enum, value_name = "keep|new", num_args = 0..=1, require_equals = true,
        default_missing_value = "keep", conflicts_with_all = ["kernel", "initrd", "count"]
    )]
    pub disk: Option<DiskOption>,
    /// Text to append to the guest's command line. With --kernel it is the whole command line; without --append such a
    /// kernel gets the command line for Debian's Linux
    #[arg(long, value_name = "TEXT")]
    pub append: Option<String>,
    /// Guest memory in bytes, or with K, M or G (powers of 1024): a multiple of 4K, at least 64M, at least 128M if
    /// Debian's Linux checks itself
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub memory: Size,
    /// The most of the guest's memory that the machine holds at a time; the rest leaves to the store of --swap. A multiple of 4K,
    /// 64K at least for each vCPU. Default: all of it
    #[arg(long, value_name = "SIZE")]
    pub resident: Option<Size>,
    /// Where the guest's pages leave to: FILE, a raw image that is overwritten, as large as the guest's memory and 2M; nbd:SOCKET,
    /// an NBD server; `memory`, the machine's memory; memory:10ms or memory:100us lets each transfer take that time.
    /// Default: memory
    #[arg(long, value_name = "FILE|nbd:SOCKET|memory[:TIME]", requires = "resident")]
    pub swap: Option<Store>,
    /// What a vCPU does while a page is absent: `off` waits for it, `halt` takes interrupts meanwhile, with `pv` a guest that
    /// knows how runs another task (docs/async-page-fault.md). Default: off
    #[arg(long, value_name = "off|halt|pv", requires = "resident")]
    pub async_fault: Option<Mode>,
    /// Guests with --resident share what they may have in memory, the sum of it: what one does not need, another has, and gets it
    /// back when it needs its own (docs/run.md)
    #[arg(long)]
    pub share_resident: bool,
    /// Number of vCPUs, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS)))]
    pub cpus: u32,
    /// Number of the machine's CPUs, which the vCPUs share, 1 to 64. Default: one for each vCPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS)))]
    pub host_cpus: Option<u32>,
    /// Lets a guest that asks for a reset begin anew from its images, as on a terminal; without it, a check ends then
    #[arg(long)]
    pub restart: bool,
    /// Size of the mappings of guest memory
    #[arg(long, value_enum, default_value_t = PagesOption::Auto)]
    pub pages: PagesOption,
    /// Size of the pages of the guests' stage 2. The guest's own pages may have any size
    #[arg(long, value_enum, default_value_t = GranuleOption::Kib4)]
    pub granule: GranuleOption,
    /// The guest's name: 1 to 15 letters from a to z, digits and hyphens
    #[arg(long, value_name = "NAME", default_value = NAME_DEFAULT)]
    pub name: String,
    /// The guest's share of busy CPUs, in relation to the other guests' weights: 1 to 1024
    #[arg(long, value_name = "N", default_value_t = WEIGHT_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))]
    pub weight: u32,
    /// The guest to boot: `linux` for Debian's, `bare` for the bare-metal guest, or `auto` for Linux if it can be fetched,
    /// else the other. Or, any number of times, one more guest as KEY=VALUE,...: with a `name`, and as wanted `cpus`,
    /// `memory`, `weight`, `append`, `kernel`, `initrd` (empty for none), as in the options of these names, from which
    /// the rest is taken. Two commas within a value are one
    #[arg(long, value_name = "KIND|SPEC")]
    pub guest: Vec<GuestOption>,
    /// Gives standard input and output to the console of this guest, byte by byte, on a terminal or not. Without it, a terminal
    /// is the first guest's
    #[arg(long, value_name = "NAME", conflicts_with_all = ["check", "count", "counters", "json"])]
    pub attach: Option<String>,
    /// CPU model, a value of QEMU's -cpu
    #[arg(long, value_name = "MODEL", default_value = machine::CPU_DEFAULT)]
    pub cpu: String,
    /// Seconds after which a guest that has not ended counts as hung; 0 for no limit. Default: 120 with --check, else
    /// none
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Fetches the guest's packages again, even if they are in the cache
    #[arg(long)]
    pub refresh: bool,
}

impl RunOptions {
    /// Returns the store for the first guest's pages.
    pub fn store(&self) -> Option<Swap> {
        let (resident, swap, async_fault) = (self.resident, self.swap.clone(), self.async_fault);
        Spec { resident, swap, async_fault, ..Spec::default() }.swap()
    }

    /// Returns the first guest, which the options other than `--guest SPEC` describe.
    pub fn wanted(&self) -> Wanted {
        let (kernel, initrd) = (self.kernel.clone(), self.initrd.clone());
        Wanted { choice: self.choice(), kernel, initrd, refresh: self.refresh, has_module: self.has_async_faults() }
    }

    /// Whether a guest has asynchronous page faults.
    pub fn has_async_faults(&self) -> bool {
        let others = self.more().map(|spec| spec.async_fault);
        others.chain([self.async_fault]).any(|mode| mode == Some(Mode::Pv))
    }

    /// Returns the kind of the first guest.
    pub fn choice(&self) -> Choice {
        self.kinds().next().unwrap_or(Choice::Auto)
    }

    /// Returns each kind that is given. More than one is a mistake.
    pub fn kinds(&self) -> impl Iterator<Item = Choice> {
        self.guest.iter().filter_map(|guest| match guest {
            GuestOption::Kind(choice) => Some(*choice),
            GuestOption::More(_) => None,
        })
    }

    /// Returns the guests beside the first.
    pub fn more(&self) -> impl Iterator<Item = &Spec> {
        self.guest.iter().filter_map(|guest| match guest {
            GuestOption::Kind(_) => None,
            GuestOption::More(spec) => Some(spec.as_ref()),
        })
    }
}

/// Options of `test`.
#[derive(Args, Clone, Debug)]
pub struct TestOptions {
    /// The suite to run in full; without it, the quick tier of every suite
    #[arg(value_enum)]
    pub suite: Option<Suite>,
    /// Runs only tests with one of these in their names
    #[arg(value_name = "FILTER")]
    pub filters: Vec<String>,
    /// Runs every suite in full
    #[arg(long)]
    pub soak: bool,
    /// Lists the tests and runs none
    #[arg(long)]
    pub list: bool,
}

/// A suite of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Format, lints, unit and property tests, documentation. No QEMU
    Host,
    /// The engine with real instructions at EL2, in QEMU
    El2,
    /// Whole guests, and the command's answers to bad input
    Linux,
    /// More vCPUs than CPUs, several guests at once, their ends and resets
    Vm,
    /// Guests with more memory than the machine gives them, and asynchronous page faults
    AsyncFault,
    /// Linux with Redis, which moves between two hypervisors under load
    Migration,
    /// Debian on a disk, with a network
    Devices,
    /// Our programs on the KVM of a Linux at EL2, in QEMU; in full, also the cost of that KVM
    Kvm,
    /// The strength of the tests: mutants, the model checker, large random runs. More than two hours in full. No QEMU
    Proof,
}

/// Values of `--disk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskOption {
    /// The disk of the last run with this name, or a new one if there is none
    Keep,
    /// A new copy of the root file system
    New,
}

/// Values of `--pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PagesOption {
    /// The largest size that alignment and backing allow
    Auto,
    /// 4 KiB pages only
    #[value(name = "4k")]
    Small,
    /// Blocks of 2 MiB or 1 GiB only; guest memory must be a multiple of 2M
    Blocks,
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

/// Values of `--granule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GranuleOption {
    /// 4 KiB
    #[value(name = "4k")]
    Kib4,
    /// 16 KiB, on a CPU that has them
    #[value(name = "16k")]
    Kib16,
    /// 64 KiB
    #[value(name = "64k")]
    Kib64,
}

const RUN_EXAMPLES: &str = "\
Examples:
  cargo xtask run                                  Linux's console; Ctrl-] opens the monitor (docs/run.md)
  cargo xtask run --disk                           Debian on a disk, with a network; `poweroff` ends it
  cargo xtask run --check --count                  boots, checks, counts, and prints a table
  cargo xtask run --check --pages blocks --memory 1G --cpus 2
  cargo xtask run --check --cpus 4 --host-cpus 2
  cargo xtask run --kernel Image --initrd root.cpio --append 'console=ttyAMA0 rdinit=/bin/sh'
  cargo xtask run --name web --weight 128 --guest name=db,cpus=2,memory=1G
  cargo xtask run --guest bare --guest 'name=linux,kernel=Image,initrd=root.cpio,append=console=ttyAMA0'
  cargo xtask run --check --json figures.json
  cargo xtask run --check --trace trace.txt        then: cargo xtask trace-check trace.txt

Environment:
  TWOFOLD_QEMU         the QEMU to use, instead of qemu-system-aarch64 from PATH
  TWOFOLD_APT_GET      the apt-get to fetch the guest with, instead of the one from PATH
  TWOFOLD_GUEST_CACHE  the directory that keeps the fetched guest, instead of target/guest

Exit status: 0 when the guest powered off (with --check: and its check passed), else not 0.";

const RECORD_HELP: &str = "\
Debian's Linux boots under the hypervisor with Debian's redis-server, whose database has most of the keys already. Then redis-benchmark
sets keys chosen at random until the guest powers off. The hypervisor's dirty log (manual) has all of the guest's
writes; the hypervisor reads and clears it at each context switch. The file holds the last rounds. In the deterministic
mode an instruction takes a nanosecond of virtual time, and equal images make equal files.

Examples:
  cargo xtask record-redis
  cargo xtask record-redis --rounds 1000 --out redis.rounds
  cargo run --release -p twofold -- bench dirty-table --only recorded --recorded target/redis.rounds

Environment:
  TWOFOLD_QEMU, TWOFOLD_APT_GET, TWOFOLD_GUEST_CACHE   as for `run`";

const FUZZ_HELP: &str = "\
The fuzz targets are the functions of fuzz/targets, which lists what they read. The fuzzer starts from the inputs in
fuzz/corpus; `cargo test` replays these inputs. The fuzzer's findings are kept below target/fuzz.

Examples:
  cargo xtask fuzz                             every target, a minute each
  cargo xtask fuzz engine --seconds 600
  cargo xtask fuzz trace --keep                new inputs become part of the tests

Exit status: 1 if a fuzz target fails; the command that reproduces the failure is printed.";

const TEST_EXAMPLES: &str = "\
Examples:
  cargo xtask test                 the quick tier of every suite
  cargo xtask test el2             one suite in full (host, el2, linux, vm, async-fault, migration, devices, kvm, proof)
  cargo xtask test linux fallback  the tests of a suite with \"fallback\" in their names
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
        assert_eq!((options.cpus, options.pages, options.choice()), (1, PagesOption::Auto, Choice::Auto));
        assert_eq!((&options.name[..], options.weight, options.more().count()), ("guest", 64, 0));
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in [
            &["--pages", "16k"][..],
            &["--granule", "8k"],
            &["--memory", "much"],
            &["--guest", "bsd"],
            &["--guest", "cpus=2"],
            &["--cpus", "0"],
            &["--cpus", "65"],
            &["--weight", "0"],
            &["--weight", "1025"],
            &["--disk", "--count"],
            &["--disk", "--kernel", "Image"],
            &["--disk=old"],
        ] {
            let arguments = [&["xtask", "run"], bad].concat();
            assert!(Arguments::try_parse_from(&arguments).is_err(), "{bad:?}");
        }
    }
}
