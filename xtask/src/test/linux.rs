// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: whole guests, started as a user would.
//!
//! Each test runs this program's own `run` and judges what a user would see: exit status, text, figures. Counts are
//! exact, because counted runs are deterministic. Tests compare them with `==` and with budgets.

mod endings;
mod experiments;
mod readme;
mod vcpus;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use libtest_mimic::Failed;
use serde_json::Value;
use twofold_abi::bundle::flags;
use twofold_abi::virt::RAM_BASE;
use twofold_launch::{Guest, Outcome, Pages, machine};
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, build, fetch, install};

use super::{Depth, Tally, harness};
use crate::arguments::TestOptions;
use crate::oracle::hypervisor::{self, Plan};

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    if !options.list {
        // Built once, here, so that no test's duration or time limit includes the build.
        install::target(install::TARGET)?;
        install::qemu()?;
        build::images(workspace, &[build::HYPERVISOR, build::MEASURING_HYPERVISOR, build::GUEST])?;
        // Two tests that begin together would both fetch the guest. If the fetch fails, the tests that need it report
        // why.
        let _ = fetch::fetch(workspace, false);
    }
    let suite = Arc::new(Suite {
        workspace: workspace.clone(),
        directory: tempfile::Builder::new().prefix("linux-").tempdir_in(workspace.runs()?)?,
        small: OnceLock::new(),
        blocks: OnceLock::new(),
    });
    let trials = TESTS
        .iter()
        .filter(|(_, at, _)| depth == Depth::Full || *at == Depth::Quick)
        .map(|(name, _, test)| {
            let suite = Arc::clone(&suite);
            super::trial(name, move || test(&suite).map_err(|error| Failed::from(format!("{error:#}"))))
        })
        .collect();
    // A QEMU with one CPU keeps one thread busy, so two of them fit two cores. In full, QEMUs have more CPUs, and
    // compared runs share files.
    harness(trials, if depth == Depth::Quick { 2 } else { 1 }, options)
}

type Test = fn(&Suite) -> anyhow::Result<()>;

const TESTS: &[(&str, Depth, Test)] = &[
    ("boot_with_4k_pages", Depth::Quick, |suite| suite.boots(&["--pages", "4k"])),
    ("boot_with_blocks", Depth::Full, |suite| suite.boots(&["--pages", "blocks"])),
    ("boot_with_two_cpus", Depth::Full, |suite| suite.boots(&["--cpus", "2"])),
    ("boot_with_2_gib", Depth::Full, |suite| suite.boots(&["--memory", "2G"])),
    ("budget_with_4k_pages", Depth::Quick, |suite| budget(suite.small()?, 15_000_000)),
    ("budget_with_blocks", Depth::Quick, |suite| budget(suite.blocks()?, 5_000_000)),
    ("budget_of_a_first_touch", Depth::Quick, first_touch),
    ("budget_of_a_write_fault", Depth::Quick, write_fault),
    ("budget_of_a_dirty_iteration", Depth::Quick, dirty_iteration),
    ("counts_repeat_with_4k_pages", Depth::Full, |suite| repeats(suite, "4k")),
    ("counts_repeat_with_blocks", Depth::Full, |suite| repeats(suite, "blocks")),
    ("counts_are_no_matter_of_the_guests", Depth::Quick, counts_are_kept),
    ("readme_shows_what_is_printed", Depth::Quick, |suite| {
        readme::compare_lines(suite.workspace.root(), &suite.run(&["--check", "--count"])?)
    }),
    ("results_show_what_is_printed", Depth::Full, |suite| {
        readme::compare(suite.workspace.root(), &suite.run(&["--check", "--count", "--counters"])?)
    }),
    ("fallback_to_the_bare_metal_guest", Depth::Quick, fallback),
    ("fallback_is_an_error_for_guest_linux", Depth::Quick, no_fallback),
    ("bare_metal_guest", Depth::Quick, |suite| suite.run(&["--check", "--guest", "bare"]).map(drop)),
    ("bad_kernel", Depth::Quick, bad_kernel),
    ("bad_initrd", Depth::Quick, bad_initrd),
    ("bad_memory", Depth::Quick, bad_memory),
    ("bad_combinations", Depth::Quick, bad_combinations),
    ("bad_qemu", Depth::Quick, bad_qemu),
    ("guest_that_hangs", Depth::Quick, endings::hang),
    ("guest_that_resets", Depth::Quick, |suite| {
        suite
            .refused(&["--check", "--guest", "bare", "--append", "touch=100G"], &["asked for a reset", "touch: FAILED"])
    }),
    ("access_where_nothing_is", Depth::Quick, wild),
    ("trace_of_a_run", Depth::Quick, trace),
    ("oracle_of_each_tracker", Depth::Full, oracle),
    ("oracle_sees_what_is_not_reported", Depth::Full, deaf_oracle),
    ("experiments_are_refused_unless_allowed", Depth::Quick, experiments::not_allowed),
    ("experiments_report_what_was_written", Depth::Quick, experiments::report_what_was_written),
    ("experiments_repeat", Depth::Quick, experiments::repeat),
    ("experiment_with_combined_is_worth_it", Depth::Quick, experiments::combined_is_worth_it),
    ("experiment_with_page_tables", Depth::Quick, experiments::page_table),
    ("experiment_with_given_memory", Depth::Quick, experiments::given),
    ("experiments_with_techniques_of_before", Depth::Quick, experiments::before),
    ("experiments_are_refused_with_a_reason", Depth::Quick, experiments::refused),
    ("vcpus_that_come_and_go_leave_nothing", Depth::Quick, |suite| vcpus::restart(suite, 300)),
    ("vcpus_that_come_and_go_ten_thousand_times", Depth::Full, |suite| vcpus::restart(suite, 10_000)),
    ("vcpus_start_in_ram_only", Depth::Quick, vcpus::nowhere),
    ("vcpus_that_end_together_report_once", Depth::Quick, |suite| vcpus::together(suite, 3)),
    ("vcpus_that_end_together_report_once_each_time", Depth::Full, |suite| vcpus::together(suite, 50)),
    ("refused_calls_are_counted", Depth::Quick, vcpus::refused),
    ("panic_at_el2", Depth::Quick, panic),
    ("guest_runs_no_command_of_the_host", Depth::Quick, host_command),
    ("interrupted_run_leaves_nothing", Depth::Quick, endings::interrupt),
    ("interrupted_fetch_ends_at_once", Depth::Quick, endings::interrupt_fetch),
    ("killed_run_leaves_nothing", Depth::Quick, endings::kill),
];

struct Suite {
    workspace: Workspace,
    directory: tempfile::TempDir,
    small: OnceLock<Result<Value, String>>,
    blocks: OnceLock<Result<Value, String>>,
}

struct Ended {
    ok: bool,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            ok: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Suite {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.workspace.command());
        command.arg("run").current_dir(self.workspace.root()).stdin(Stdio::null());
        command
    }

    fn start(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> anyhow::Result<Ended> {
        let output = self.command().args(arguments).envs(variables.iter().copied()).output();
        Ok(Ended::of(output.context("this program does not start itself")?))
    }

    /// Boots the bare-metal guest directly, for options that `run` does not offer.
    fn bare(&self, command_line: &str, flags: u32) -> anyhow::Result<Outcome> {
        self.boot(self.bare_guest(command_line, flags))
    }

    fn bare_guest(&self, command_line: &str, flags: u32) -> Guest {
        Guest {
            kernel: self.workspace.image(build::GUEST.name),
            initrd: None,
            command_line: command_line.to_owned(),
            memory: 128 << 20,
            cpus: 1,
            pages: Pages::Auto,
            flags,
            test: None,
            before: 0,
        }
    }

    fn boot(&self, guest: Guest) -> anyhow::Result<Outcome> {
        self.boot_as(guest, false)
    }

    /// Boots in the deterministic mode, in which instructions can be counted.
    fn boot_counted(&self, guest: Guest) -> anyhow::Result<Outcome> {
        self.boot_as(guest, true)
    }

    fn boot_as(&self, guest: Guest, deterministic: bool) -> anyhow::Result<Outcome> {
        let boot = Boot {
            label: "bare",
            guest,
            cpu: machine::CPU_DEFAULT,
            deterministic,
            checked: false,
            timeout: Some(Duration::from_secs(60)),
            terminal: false,
            image: Image::Plain,
        };
        boot.run(&self.workspace, &install::qemu()?)
    }

    /// Starts a run that must succeed; returns its output.
    fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ended = self.start(arguments, &[])?;
        ensure!(ended.ok, "`run {}` failed:\n{}{}", arguments.join(" "), ended.stdout, ended.stderr);
        let last = ended.stdout.lines().last().unwrap_or_default();
        ensure!(last == "guest check: ok", "the last line is {last:?}");
        Ok(ended.stdout)
    }

    /// Starts a run that must be refused, with all of `words` in the error.
    fn refused(&self, arguments: &[&str], words: &[&str]) -> anyhow::Result<()> {
        refused_with(self.start(arguments, &[])?, words)
    }

    fn boots(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.run(&[&["--check", "--guest", "linux"], arguments].concat()).map(drop)
    }

    fn counted(&self, pages: &str, name: &str) -> anyhow::Result<Value> {
        let path = self.path(name);
        let file = path.to_str().context("the target directory's name is not Unicode")?;
        self.run(&["--check", "--count", "--guest", "linux", "--pages", pages, "--json", file])?;
        Ok(serde_json::from_slice(&fs::read(&path)?)?)
    }

    /// Returns the figures of a counted run with 4K pages, which runs once.
    fn small(&self) -> anyhow::Result<&Value> {
        once(&self.small, || self.counted("4k", "4k.json"))
    }

    /// Returns the figures of a counted run with blocks, which runs once.
    fn blocks(&self) -> anyhow::Result<&Value> {
        once(&self.blocks, || self.counted("blocks", "blocks.json"))
    }

    /// Starts a run with an apt-get that always fails and with an empty guest cache. Each test `of` has files of its
    /// own, because tests run in parallel.
    fn without_network(&self, of: &str, arguments: &[&str]) -> anyhow::Result<Ended> {
        let apt_get = self.path(&format!("{of}-apt-get"));
        script(&apt_get, "echo 'E: the network is unreachable' >&2; exit 100")?;
        let cache = self.path(&format!("{of}-cache"));
        self.start(arguments, &[("TWOFOLD_APT_GET", &apt_get), ("TWOFOLD_GUEST_CACHE", &cache)])
    }
}

fn once(
    place: &OnceLock<Result<Value, String>>,
    make: impl FnOnce() -> anyhow::Result<Value>,
) -> anyhow::Result<&Value> {
    place
        .get_or_init(|| make().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))
}

fn figure(figures: &Value, pointer: &str) -> anyhow::Result<u64> {
    figures.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("the report has no {pointer}"))
}

fn budget(figures: &Value, most: u64) -> anyhow::Result<()> {
    let total = figure(figures, "/el2_instructions/total")?;
    ensure!(total <= most, "the boot took {total} instructions at EL2, more than {most}");
    Ok(())
}

fn first_touch(suite: &Suite) -> anyhow::Result<()> {
    let figures = suite.small()?;
    for pointer in ["/first_touch/instructions_per_page", "/el2_instructions/per_first_touch"] {
        let touch = figure(figures, pointer)?;
        // The figure from before the engine's operations took `&self`.
        ensure!(touch <= 501, "{pointer}: a first touch took {touch} instructions at EL2, more than 501");
    }
    Ok(())
}

/// The budget of a write to a write-protected page. KVM with its host kernel takes 3,343 instructions, 2 TLB
/// invalidations and 3 DSBs.
fn write_fault(suite: &Suite) -> anyhow::Result<()> {
    let figures = suite.small()?;
    for tracker in ["write_protect", "manual"] {
        let log = |key: &str| figure(figures, &format!("/dirty_log/trackers/{tracker}/{key}"));
        let (faults, pages) = (log("faults")?, log("pages")?);
        ensure!(faults == pages, "{tracker}: {faults} faults for {pages} pages");
        for (what, most) in [("instructions", 450), ("tlbi", 2), ("dsb", 3)] {
            let spent = log(&format!("fault/{what}"))?;
            ensure!(spent <= most * faults, "{tracker}: {what} of {faults} faults: {spent}, more than {most} each");
        }
    }
    Ok(())
}

/// The budget of faults, get and clear together, for a written page. KVM with its host kernel takes 3,421 instructions.
fn dirty_iteration(suite: &Suite) -> anyhow::Result<()> {
    let figures = suite.small()?;
    for (tracker, most) in [("write_protect", 500), ("manual", 500), ("hardware", 40)] {
        let log = |key: &str| figure(figures, &format!("/dirty_log/trackers/{tracker}/{key}"));
        let sum = |what: &str| -> anyhow::Result<u64> {
            ["fault", "get", "clear"].iter().map(|step| log(&format!("{step}/{what}"))).sum()
        };
        let (pages, iterations, faults) = (log("pages")?, log("iterations")?, log("faults")?);
        let spent = sum("instructions")?;
        ensure!(spent <= most * pages, "{tracker}: {spent} instructions for {pages} pages, more than {most} each");
        // Apart from its faults an iteration has one flush: at most five operands for the range, and one for combined
        // entries.
        let (tlbi, dsb) = (sum("tlbi")? - log("fault/tlbi")?, sum("dsb")? - log("fault/dsb")?);
        ensure!(tlbi <= 6 * iterations && dsb <= 3 * iterations, "{tracker}: {tlbi} TLBI, {dsb} DSB in {iterations}");
        if tracker == "hardware" {
            ensure!(faults <= 8 * iterations, "{faults} faults where hardware records writes");
        }
    }
    Ok(())
}

/// Compares two counted runs of the same image. The figures of the budget tests are not reused, because the image may
/// have been rebuilt since.
fn repeats(suite: &Suite, pages: &str) -> anyhow::Result<()> {
    let image = || fs::read(suite.workspace.image(build::HYPERVISOR.name));
    let first = suite.counted(pages, "first.json")?;
    let before = image()?;
    let second = suite.counted(pages, "second.json")?;
    ensure!(before == image()?, "the image was built anew between the runs; leave its sources alone and test again");
    ensure!(first == second, "two counted runs differ:\n{first:#}\n{second:#}");
    Ok(())
}

fn fallback(suite: &Suite) -> anyhow::Result<()> {
    let ended = suite.without_network("fallback", &["--check"])?;
    ensure!(ended.ok, "the fallback failed:\n{}{}", ended.stdout, ended.stderr);
    for words in
        ["because Debian's kernel cannot be fetched", "the network is unreachable", "not Linux", "guest check: ok"]
    {
        ensure!(ended.stdout.contains(words), "no {words:?} in:\n{}", ended.stdout);
    }
    let cache = suite.path("fallback-cache");
    let left: Vec<_> = fs::read_dir(&cache)?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(left.is_empty(), "a failed fetch left {left:?} in the cache");
    Ok(())
}

fn no_fallback(suite: &Suite) -> anyhow::Result<()> {
    let words = ["Debian's kernel cannot be fetched", "the network is unreachable", "--guest bare"];
    refused_with(suite.without_network("no-fallback", &["--check", "--guest", "linux"])?, &words)
}

fn bad_kernel(suite: &Suite) -> anyhow::Result<()> {
    let gzip = suite.path("gzip");
    fs::write(&gzip, b"\x1f\x8b\x08\0")?;
    suite.refused(&["--check", "--kernel", text(&gzip)?], &["not an arm64 Image", "gunzip"])?;
    let missing = suite.path("missing");
    suite.refused(&["--check", "--kernel", text(&missing)?], &["cannot read the kernel", "missing"])
}

fn bad_initrd(suite: &Suite) -> anyhow::Result<()> {
    let kernel = suite.path("kernel-for-initrd");
    fs::write(&kernel, spinning_kernel())?;
    let initrd = suite.path("large-initrd");
    fs::File::create(&initrd)?.set_len(100 << 20)?;
    let arguments = ["--check", "--kernel", text(&kernel)?, "--initrd", text(&initrd)?];
    suite.refused(&[&arguments[..], &["--memory", "64M"]].concat(), &["the initrd does not fit", "--memory 1"])?;
    let missing = suite.path("missing");
    let arguments = ["--check", "--kernel", text(&kernel)?, "--initrd", text(&missing)?];
    suite.refused(&arguments, &["cannot read the initrd"])
}

fn bad_memory(suite: &Suite) -> anyhow::Result<()> {
    suite.refused(&["--check", "--memory", "8M"], &["too little", "64M"])?;
    suite.refused(&["--check", "--memory", "134217729"], &["multiple of 4K", "page"])?;
    suite.refused(&["--check", "--pages", "blocks", "--memory", "131076K"], &["multiple of 2M"])
}

fn bad_combinations(suite: &Suite) -> anyhow::Result<()> {
    suite.refused(&["--count", "--cpus", "2"], &["one vCPU"])?;
    suite.refused(&["--check", "--cpus", "65"], &["1..=64"])?;
    let long = "x".repeat(3000);
    suite.refused(&["--check", "--append", &long], &["shorten it"])
}

fn bad_qemu(suite: &Suite) -> anyhow::Result<()> {
    let old = suite.path("old-qemu");
    script(&old, "echo 'QEMU emulator version 6.2.0'")?;
    refused_with(suite.start(&["--check"], &[("TWOFOLD_QEMU", &old)])?, &["6.2.0", "7.2.0 or later"])?;
    let missing = suite.path("no-qemu");
    refused_with(suite.start(&["--check"], &[("TWOFOLD_QEMU", &missing)])?, &["TWOFOLD_QEMU names", "was not found"])
}

/// QEMU also serves the guest's semihosting calls; its sandbox prevents them from starting a program.
fn host_command(suite: &Suite) -> anyhow::Result<()> {
    let (image, proof) = (suite.path("commanding"), suite.path("command-ran"));
    fs::write(&image, commanding_kernel(&format!("echo > '{}'", text(&proof)?)))?;
    let ended = suite.start(&["--check", "--kernel", text(&image)?, "--initrd", text(&image)?], &[])?;
    ensure!(!proof.exists(), "the guest ran a command on this machine");
    ensure!(!ended.ok, "the guest's run counts as a passed check");
    Ok(())
}

/// A guest stops, resets and reprograms each counter of the PMU. The counts at EL2 do not change.
fn counts_are_kept(suite: &Suite) -> anyhow::Result<()> {
    let counted = |command_line: &str| {
        let guest = Guest {
            kernel: suite.workspace.image(build::GUEST.name),
            initrd: None,
            command_line: command_line.to_owned(),
            memory: 128 << 20,
            cpus: 1,
            pages: Pages::Small,
            flags: flags::COUNT,
            test: None,
            before: 0,
        };
        suite.boot_counted(guest)
    };
    let (plain, hostile) = (counted("touch=4M")?, counted("pmu")?);
    let console = hostile.console.tail(20).join("\n");
    ensure!(console.contains("pmu: 0 event counters"), "the guest sees counters:\n{console}");
    let report = |outcome: &Outcome, key: &str| outcome.control.report.get(key).with_context(|| format!("no {key}"));
    let touches = |outcome: &Outcome| {
        Ok::<_, anyhow::Error>((
            report(outcome, "first_touches.pages_4k")?,
            report(outcome, "el2_instructions.first_touch_4k")?,
        ))
    };
    let ((pages, spent), (same_pages, same_spent)) = (touches(&plain)?, touches(&hostile)?);
    ensure!(
        pages.abs_diff(same_pages) <= 8,
        "{pages} first touches, and {same_pages} with the PMU's registers written"
    );
    ensure!(
        spent.abs_diff(same_spent) <= spent / 50,
        "{pages} first touches took {spent} instructions, and {same_spent} with the PMU's registers written"
    );
    Ok(())
}

/// A guest accesses an address without memory. It gets an abort, reports it and continues.
fn wild(suite: &Suite) -> anyhow::Result<()> {
    let outcome = suite.bare("wild=0xb000000", 0)?;
    let console = outcome.console.tail(20).join("\n");
    ensure!(console.contains("external abort at 0xb000000"), "no external abort in:\n{console}");
    let aborts = outcome.control.report.get("faults.external");
    ensure!(aborts == Some(1), "faults.external is {aborts:?}, not 1");
    Ok(())
}

/// The hypervisor writes a trace while it runs the bare-metal guest. The trace checker finds no breach in it.
fn trace(suite: &Suite) -> anyhow::Result<()> {
    let path = suite.path("a trace");
    let file = text(&path)?;
    let said = suite.run(&["--check", "--guest", "bare", "--trace", file])?;
    ensure!(said.contains("trace-check"), "it does not print how to check the trace:\n{said}");
    let checked = Command::new(suite.workspace.command()).args(["trace-check", file]).output()?;
    let checked = Ended::of(checked);
    let last = checked.stdout.lines().last().unwrap_or_default();
    ensure!(checked.ok && last.ends_with(" 0 breaches"), "trace-check:\n{}{}", checked.stdout, checked.stderr);
    // The checker does not miss absent lines, so this test requires a line of each kind.
    let trace = fs::read_to_string(&path)?;
    ensure!(trace.ends_with('\n'), "the last line is cut off");
    let kinds: BTreeSet<_> = trace.lines().skip(1).filter_map(|line| line.split(' ').nth(2)).collect();
    let expected = ["feature", "root.made", "dc", "lock.taken", "lock.released", "dsb", "isb", "vttbr", "table.taken"];
    let later =
        ["fence", "write", "data.written", "tlbi", "ic", "guest.entered", "guest.left", "visible", "flushed.here"];
    ensure!(kinds == expected.into_iter().chain(later).collect(), "lines of kinds {kinds:?}");
    Ok(())
}

/// No tracker loses a page under a Linux that boots and rewrites its memory.
fn oracle(suite: &Suite) -> anyhow::Result<()> {
    const COMPARISONS: u64 = 50_000;
    let plan = Plan { timeout: Some(ORACLE_LIMIT), ..Plan::new(None, COMPARISONS, 1)? };
    let found = hypervisor::run(&suite.workspace, &plan, &Steps::new(suite.workspace.stop().clone()))?;
    ensure!(found.len() == plan.trackers.len(), "only {found:?}");
    found.iter().try_for_each(|found| found.check(COMPARISONS))
}

/// The oracle ignores some reported pages. It must find them by comparing.
fn deaf_oracle(suite: &Suite) -> anyhow::Result<()> {
    let plan = Plan { is_deaf: true, timeout: Some(ORACLE_LIMIT), ..Plan::new(Some("manual"), 50_000, 1)? };
    let found = hypervisor::run(&suite.workspace, &plan, &Steps::new(suite.workspace.stop().clone()))?;
    ensure!(found.iter().all(|found| found.lost > 0), "nothing is lost: {found:?}");
    Ok(())
}

/// The limit against hangs.
const ORACLE_LIMIT: Duration = Duration::from_secs(600);

fn panic(suite: &Suite) -> anyhow::Result<()> {
    let Err(error) = suite.bare("check", flags::TEST_PANIC) else { bail!("a panic at EL2 ended well") };
    let text = format!("{error:#}");
    for word in ["panicked at EL2", "ESR", "ELR", "FAR"] {
        ensure!(text.contains(word), "no {word:?} in:\n{text}");
    }
    Ok(())
}

fn refused_with(ended: Ended, words: &[&str]) -> anyhow::Result<()> {
    if ended.ok {
        bail!("it ended with 0:\n{}", ended.stdout);
    }
    for word in words {
        ensure!(ended.stderr.contains(word), "no {word:?} in:\n{}", ended.stderr);
    }
    Ok(())
}

/// Returns the smallest arm64 Image: its header with a branch to itself.
fn spinning_kernel() -> Vec<u8> {
    const B_TO_ITSELF: u32 = 0x1400_0000;
    kernel(B_TO_ITSELF, &[], &[])
}

/// Returns a kernel that asks QEMU to run a host command, by the semihosting call SYS_SYSTEM, and then powers off.
fn commanding_kernel(command: &str) -> Vec<u8> {
    const B_TO_CODE: u32 = 0x1400_0010;
    const CODE: [u32; 6] = [
        0x1000_00c1, // adr x1, behind the code
        0x5280_0240, // mov w0, #0x12: SYS_SYSTEM
        0xd45e_0000, // hlt #0xf000
        0x5280_0100, // mov w0, #8
        0x72b0_8000, // movk w0, #0x8400, lsl #16: SYSTEM_OFF
        0xd400_0002, // hvc #0
    ];
    let text = RAM_BASE + 64 + 24 + 16;
    let block = [text.to_le_bytes(), (command.len() as u64).to_le_bytes()].concat();
    kernel(B_TO_CODE, &CODE, &[&block, command.as_bytes(), b"\0"].concat())
}

/// Returns an Image: its first instruction, and the code and data behind the header.
fn kernel(first: u32, code: &[u32], data: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 64];
    image[..4].copy_from_slice(&first.to_le_bytes());
    image[16..24].copy_from_slice(&4096u64.to_le_bytes());
    image[24..32].copy_from_slice(&0xau64.to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    image.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    image.extend(data);
    image.resize(4096, 0);
    image
}

fn script(path: &Path, body: &str) -> anyhow::Result<()> {
    fs::write(path, format!("#!/bin/sh\n{body}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the target directory's name is not Unicode")
}
