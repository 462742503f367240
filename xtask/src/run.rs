// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask run`: installs, builds, fetches and boots a guest under the hypervisor.
//!
//! Invariant: errors that the options alone show are reported before anything is installed, built or fetched. A checked
//! run ends with 0 only after the guest has reported that its check passed.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use twofold_abi::bundle::flags;
use twofold_launch::check::CHECK_OK;
use twofold_launch::devices::{Backing, Disk, Network, Part};
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::size::Size;
use twofold_launch::spec::Spec;
use twofold_launch::{Devices, GuestSettings, Outcome, Pages, Qemu, bundle, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::disk::{self, Debian};
use twofold_workspace::guest::{Choice, Kind, Selected};
use twofold_workspace::kernels::Kernel;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, build, fetch, file, guest, install, linux_module, output};

use crate::arguments::{DiskOption, GranuleOption, PagesOption, RunOptions};
use crate::dirty_log::DirtyLogs;
use crate::figures::{FirstTouch, Rows};
use crate::report::{self, Described};

/// `cargo xtask run`.
pub fn command(workspace: &Workspace, options: &RunOptions) -> anyhow::Result<ExitCode> {
    let terminal = output::is_terminal() && io::stdin().is_terminal();
    let mode = Mode::new(options, terminal);
    refuse(options, mode, fetch::cached(workspace).map(|fetched| fetched.kernel))?;
    let steps = Steps::new(workspace.stop().clone());
    let qemu = install::tools(&steps)?;
    steps.step("build", || {
        let words = match options.trace {
            Some(_) => "the hypervisor, with a trace, and the bare-metal guest",
            None => "the hypervisor and the bare-metal guest",
        };
        build::images(workspace, &[image(options).program(), build::GUEST])?;
        Ok(((), words.to_owned()))
    })?;
    let selected = steps.step("guest", || {
        let selected = match options.disk {
            Some(disk) => on_disks(workspace, options, mode, disk)?,
            None => guest::select(workspace, &options.wanted())?,
        };
        let words = selected.words.clone();
        Ok((selected, words))
    })?;
    match mode {
        Mode::Console => console(workspace, options, &qemu, &selected),
        Mode::Check { count } => check(workspace, options, &qemu, &selected, &steps, count),
    }
}

/// Fetches Debian for guests with disks, and makes the disks of those that have none.
fn on_disks(workspace: &Workspace, options: &RunOptions, mode: Mode, disk: DiskOption) -> anyhow::Result<Selected> {
    let debian = Debian::fetch(workspace, Kernel::DEFAULT, options.refresh)?;
    let names = [&options.name].into_iter().chain(options.more().filter_map(|spec| spec.name.as_ref()));
    let disks = names.map(|name| Ok((name.clone(), debian.disk(workspace, name, disk == DiskOption::New)?)));
    let disks = disks.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
    let (initrd, script) = match mode {
        Mode::Console => (workspace.guest_cache().join("disk.cpio"), None),
        Mode::Check { .. } => (workspace.guest_cache().join("disk-check.cpio"), Some(disk::CHECK)),
    };
    let files = if options.has_async_faults() { linux_module::files(workspace)? } else { BTreeMap::new() };
    debian.initrd(&initrd, script, files)?;
    let shown: Vec<_> = disks.values().map(|path| workspace.shown(path).display().to_string()).collect();
    let words = format!("Linux {}, {}", debian.kernel.versions.kernel, shown.join(", "));
    Ok(Selected {
        kind: Kind::Linux,
        kernel: debian.kernel.kernel,
        initrd: Some(initrd),
        disks,
        versions: Some(debian.kernel.versions),
        words,
        fallback: None,
    })
}

/// Boots the bare-metal guest that only touches 64 MiB page by page. The setting is that of KVM's figure: 4 KiB pages,
/// one vCPU, deterministic.
pub fn first_touch(workspace: &Workspace, qemu: &Qemu, cpu: &str) -> anyhow::Result<FirstTouch> {
    let guest = GuestSettings {
        name: NAME_DEFAULT.to_owned(),
        weight: WEIGHT_DEFAULT,
        firmware: None,
        kernel: workspace.image(build::GUEST.name),
        initrd: None,
        command_line: "touch=64M".to_owned(),
        memory: 128 << 20,
        cpus: 1,
        pages: Pages::Small,
        flags: flags::COUNT,
        devices: Devices::default(),
        swap: None,
        test: None,
        policies: Policies::default(),
    };
    let timeout = Some(Duration::from_secs(CHECK_TIMEOUT));
    let boot = Boot {
        label: "touch",
        guests: vec![guest],
        cpu,
        host_cpus: None,
        deterministic: true,
        checked: false,
        timeout,
        terminal: false,
        image: Image::Plain,
    };
    let outcome = boot.run(workspace, qemu)?;
    FirstTouch::of(&outcome.control.report).context("the hypervisor did not report its first touches")
}

/// The least guest memory in bytes with which our initrd's check passes under Debian's kernel, measured in steps of 32
/// MiB. The check's tmpfs takes three quarters of the memory that the kernel leaves.
const LINUX_CHECK_MEMORY: u64 = 128 << 20;

/// The time limit of a checked guest in seconds, unless --timeout sets another.
const CHECK_TIMEOUT: u64 = 120;
/// The same for a guest with a disk, which does more.
const DISK_CHECK_TIMEOUT: u64 = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Console,
    Check { count: bool },
}

impl Mode {
    fn new(options: &RunOptions, terminal: bool) -> Self {
        let explicit = options.check || options.count || options.counters || options.json.is_some();
        match (explicit, terminal) {
            (true, _) => Self::Check { count: options.count },
            _ if options.attach.is_some() => Self::Console,
            (false, true) => Self::Console,
            // Counting requires one vCPU and excludes a trace. Otherwise the run is only checked.
            // So does a disk, whose answers come when the host pleases.
            (false, false) => {
                let is_plain = options.trace.is_none() && options.granule == GranuleOption::Kib4;
                Self::Check { count: options.cpus == 1 && is_plain && options.disk.is_none() }
            }
        }
    }

    fn is_counted(self) -> bool {
        self == Self::Check { count: true }
    }
}

/// Refuses options that cannot work. `debian` is the path of Debian's kernel, if it is cached.
fn refuse(options: &RunOptions, mode: Mode, debian: Option<PathBuf>) -> anyhow::Result<()> {
    if options.disk.is_some() && options.choice() == Choice::Bare {
        bail!("`--guest bare` has no file system; leave out --disk, or boot Linux");
    }
    if options.kinds().count() > 1 {
        bail!("--guest: give one kind of guest; each further guest is `--guest name=NAME,...`");
    }
    if mode.is_counted() && (options.cpus != 1 || options.more().next().is_some()) {
        bail!(
            "--count takes one guest with one vCPU: QEMU counts instructions on one thread, on which two busy vCPUs \
             wait for each other for minutes; leave out --cpus and further guests, or --count",
        );
    }
    if let Some(cpus) = options.host_cpus.filter(|cpus| mode.is_counted() && *cpus != 1) {
        bail!("a counted run has one CPU, not {cpus}; leave out --host-cpus or --count");
    }
    if options.granule != GranuleOption::Kib4 {
        refuse_with_larger_pages(options, mode)?;
    }
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    if let Some(path) = &options.trace {
        file::check("--trace", path)?;
    }
    // Debian's kernel needs a check only together with an initrd of the user.
    let kernel = options.kernel.clone().or(debian.filter(|_| options.initrd.is_some()));
    let guests = guests(options, mode, &kernel.clone().unwrap_or_default(), options.initrd.as_ref());
    bundle::check_settings(&guests)?;
    if let Some(name) = &options.attach
        && !guests.iter().any(|guest| guest.name == *name)
    {
        let names: Vec<_> = guests.iter().map(|guest| guest.name.as_str()).collect();
        bail!("--attach: there is no guest {name}; there is {}", names.join(", "));
    }
    let specs = || [None].into_iter().chain(options.more().map(Some));
    if kernel.is_some() {
        bundle::check(&guests)?;
    } else {
        // The first guest's kernel is not there yet, and others may have it too.
        for (spec, guest) in specs().zip(&guests) {
            let known = spec.is_some_and(|spec| spec.kernel.is_some() || spec.firmware.is_some());
            let checked = if known { guest.check().map(drop) } else { guest.check_initrd() };
            checked.map_err(|why| bundle::named(&guests, guest, why))?;
        }
    }
    if mode == Mode::Console || options.choice() == Choice::Bare || options.kernel.is_some() || options.initrd.is_some()
    {
        return Ok(());
    }
    let is_ours = |spec: Option<&Spec>| {
        spec.is_none_or(|spec| spec.kernel.is_none() && spec.initrd.is_none() && spec.firmware.is_none())
    };
    let little = |guest: &&GuestSettings| guest.memory < LINUX_CHECK_MEMORY;
    let ours = specs().zip(&guests).filter(|(spec, _)| is_ours(*spec)).map(|(_, guest)| guest);
    if let Some(guest) = ours.into_iter().find(little) {
        bail!(
            "`--memory {}` is too little for the check of Debian's Linux, which writes 64 MiB to a file system in \
             memory; give at least `--memory {}`, or take the bare-metal guest (`--guest bare`)",
            twofold_launch::guest::size(guest.memory),
            twofold_launch::guest::size(LINUX_CHECK_MEMORY)
        );
    }
    Ok(())
}

/// Refuses what the images with larger pages do not have.
fn refuse_with_larger_pages(options: &RunOptions, mode: Mode) -> anyhow::Result<()> {
    if mode.is_counted() {
        bail!("--granule: counts are of the image with pages of 4 KiB; leave out --granule, or --count");
    }
    if options.trace.is_some() {
        bail!("--granule: a trace is of the image with pages of 4 KiB; leave out --granule, or --trace");
    }
    if options.resident.is_some() || options.more().any(|spec| spec.resident.is_some()) {
        bail!("--granule: only pages of 4 KiB leave to a store; leave out --granule, or --resident");
    }
    if options.pages == PagesOption::Blocks {
        bail!("--granule: RAM has blocks with pages of 4 KiB only; leave out --granule, or --pages blocks");
    }
    Ok(())
}

/// Makes the settings of all guests. The first has this kernel and initrd, and the others too if they have none of their
/// own.
fn guests(options: &RunOptions, mode: Mode, kernel: &Path, initrd: Option<&PathBuf>) -> Vec<GuestSettings> {
    let first = guest(options, mode, kernel.to_owned(), initrd.cloned());
    let more = options.more().map(|spec| GuestSettings {
        command_line: command_line(
            options.kernel.is_some() || spec.kernel.is_some(),
            spec.append.as_deref().or(options.append.as_deref()),
            mode,
        ),
        ..spec.beside(&first)
    });
    let more: Vec<_> = more.collect();
    [vec![first], more].concat()
}

fn guest(options: &RunOptions, mode: Mode, kernel: PathBuf, initrd: Option<PathBuf>) -> GuestSettings {
    GuestSettings {
        name: options.name.clone(),
        weight: options.weight,
        firmware: None,
        kernel,
        initrd,
        command_line: command_line(options.kernel.is_some(), options.append.as_deref(), mode),
        memory: options.memory.bytes(),
        cpus: options.cpus,
        pages: options.pages.into(),
        flags: image_flags(options, mode),
        devices: Devices::default(),
        swap: options.store(),
        test: None,
        policies: Policies::default(),
    }
}

/// On a terminal a guest that asks for a reset begins anew. A check ends then, because the guest's own check failed.
fn image_flags(options: &RunOptions, mode: Mode) -> u32 {
    let count = if mode.is_counted() { flags::COUNT } else { 0 };
    let restart = if options.restart || mode == Mode::Console { flags::RESTART } else { 0 };
    // A counted run is equal each time, and what a launcher sends comes when the host pleases.
    let on_channel = !mode.is_counted() && (mode == Mode::Console || options.more().next().is_some());
    let share = if options.share_resident { flags::SHARE_RESIDENT } else { 0 };
    count | restart | share | if on_channel { flags::CONSOLES } else { 0 }
}

fn command_line(own_kernel: bool, append: Option<&str>, mode: Mode) -> String {
    // The user's kernel may not be Linux, so it gets exactly the user's command line.
    if let (true, Some(words)) = (own_kernel, append) {
        return words.to_owned();
    }
    let mut words = vec!["console=ttyAMA0", "panic=-1", "loglevel=4"];
    if mode != Mode::Console {
        words.push("twofold.check");
    }
    if mode.is_counted() {
        // The kernel's address changes its behaviour, and so the counts.
        words.push("nokaslr");
    }
    words.extend(append);
    words.join(" ")
}

/// The build of the hypervisor.
fn image(options: &RunOptions) -> Image<'_> {
    match (&options.trace, options.granule) {
        (Some(path), _) => Image::Tracing(path),
        (None, GranuleOption::Kib4) => Image::Plain,
        (None, GranuleOption::Kib16) => Image::Kib16,
        (None, GranuleOption::Kib64) => Image::Kib64,
    }
}

fn boot<'a>(options: &'a RunOptions, mode: Mode, selected: &Selected) -> Boot<'a> {
    let check_limit = if options.disk.is_some() { DISK_CHECK_TIMEOUT } else { CHECK_TIMEOUT };
    let limit = options.timeout.or((mode != Mode::Console).then_some(check_limit));
    let mut guests = guests(options, mode, &selected.kernel, selected.initrd.as_ref());
    for guest in &mut guests {
        // The guests reach each other, and the outside.
        if let Some(path) = selected.disks.get(&guest.name) {
            guest.devices = Devices {
                has_random: true,
                has_balloon: true,
                disks: vec![Disk { backing: Backing::File(path.clone()), part: Part::default(), is_read_only: false }],
                nets: vec![Network::User { forwards: Vec::new() }],
                ..Devices::default()
            };
        }
    }
    Boot {
        label: "boot",
        guests,
        cpu: &options.cpu,
        host_cpus: options.host_cpus,
        deterministic: mode.is_counted(),
        checked: mode != Mode::Console,
        timeout: limit.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        terminal: mode == Mode::Console,
        image: image(options),
    }
}

fn console(workspace: &Workspace, options: &RunOptions, qemu: &Qemu, selected: &Selected) -> anyhow::Result<ExitCode> {
    let boot = boot(options, Mode::Console, selected);
    let several = boot.guests.len() > 1;
    let run = boot.run_interactive(workspace, qemu, options.attach.as_deref());
    let outcome = run.inspect_err(|_| {
        // The guest's console may end in the middle of a line.
        let _ = output::line("");
    })?;
    let left = outcome.control.end.is_none();
    output::line(match (left, several) {
        (true, _) => "\nLeft before the guest powered off.",
        (false, true) => "All guests have ended.",
        (false, false) => "The guest powered off.",
    })?;
    trace_is_there(options)?;
    Ok(ExitCode::SUCCESS)
}

fn check(
    workspace: &Workspace,
    options: &RunOptions,
    qemu: &Qemu,
    selected: &Selected,
    steps: &Steps,
    count: bool,
) -> anyhow::Result<ExitCode> {
    let boot = boot(options, Mode::Check { count }, selected);
    let outcome = steps.step("boot", || {
        let outcome = boot.run(workspace, qemu)?;
        Ok((outcome, "to power-off, with the guest's own check".to_owned()))
    })?;
    let (mut touch, mut logs) = (None, None);
    if count {
        touch = Some(steps.step("first touch", || {
            let touch = first_touch(workspace, qemu, &options.cpu)?;
            Ok((touch, "64 MiB, page by page, by the bare-metal guest".to_owned()))
        })?);
        if options.counters || options.json.is_some() {
            logs = Some(steps.step("dirty log", || {
                let logs = DirtyLogs::count(workspace, qemu, &options.cpu, Duration::from_secs(CHECK_TIMEOUT))?;
                Ok((logs, "the same pages again and again, tracker by tracker".to_owned()))
            })?);
        }
    }
    output::line(&console_end(&outcome))?;
    output::line(&table(options, selected, &outcome, touch))?;
    if let Some(logs) = logs.as_ref().filter(|_| options.counters) {
        output::line("")?;
        output::line(&logs.table())?;
    }
    output::line(NEXT)?;
    trace_is_there(options)?;
    if let Some(path) = &options.json {
        let described = Described {
            selected,
            qemu,
            pages: Pages::from(options.pages).name(),
            memory: options.memory.bytes(),
            cpus: options.cpus,
            cpu: &options.cpu,
            command_line: &boot.guests[0].command_line,
            deterministic: count,
            check: "ok",
            touch,
            logs,
        };
        file::write_json(path, &report::json(&outcome.control.report, &described))?;
    }
    if let Some(why) = &selected.fallback {
        output::line(&format!("This was the bare-metal guest, not Linux: {why}"))?;
    }
    // `judge` accepts the run only if the guest itself printed this line.
    output::line(CHECK_OK)?;
    Ok(ExitCode::SUCCESS)
}

fn trace_is_there(options: &RunOptions) -> anyhow::Result<()> {
    let Some(path) = &options.trace else { return Ok(()) };
    output::line(&format!("The trace is in {0}; `cargo xtask trace-check {0}` checks it.", path.display()))
}

/// Formats the last lines of the guest's console, which show that a guest ran.
fn console_end(outcome: &Outcome) -> String {
    let lines: Vec<_> =
        outcome.console.tail(CONSOLE_LINES).iter().map(|line| format!("  | {}", line.trim_end())).collect();
    format!("\nThe guest's console, its last lines:\n{}\n", lines.join("\n"))
}

/// The largest number of console lines that are shown after a check.
const CONSOLE_LINES: usize = 6;

const NEXT: &str = "
Next: `cargo xtask run` on a terminal gives the guest's console; `cargo xtask run --count --counters` prints every counter.
      `cargo xtask test` runs the quick tier of every suite; `cargo xtask run --help` has more to vary.";

fn table(options: &RunOptions, selected: &Selected, outcome: &Outcome, touch: Option<FirstTouch>) -> String {
    let mut rows = Rows::default();
    rows.words("guest check", "ok");
    let kernel = match (&selected.versions, selected.kind) {
        (Some(versions), _) => versions.kernel.as_str(),
        (None, Kind::Bare) => "bare-metal guest",
        (None, _) => "own kernel",
    };
    rows.words("guest kernel", kernel);
    let pages = Pages::from(options.pages).name();
    let memory: Size = options.memory;
    if options.more().next().is_some() {
        let names = options.more().filter_map(|spec| spec.name.as_deref());
        rows.words("guests", &[options.name.as_str()].into_iter().chain(names).collect::<Vec<_>>().join(", "));
    }
    rows.words("guest memory, vCPUs, mappings", &format!("{memory}, {}, {pages}", options.cpus));
    if options.cpu != machine::CPU_DEFAULT {
        rows.words("CPU model", &options.cpu);
    }
    if options.counters {
        rows.counts(&outcome.control.report);
    } else {
        rows.summary(&outcome.control.report);
    }
    match touch {
        Some(touch) if options.counters => rows.instructions(&outcome.control.report, Some(touch)),
        Some(touch) => rows.main_instructions(&outcome.control.report, Some(touch)),
        None => {}
    }
    rows.table(touch.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    fn options(words: &[&str]) -> RunOptions {
        let arguments = Arguments::parse_from([&["xtask", "run"], words].concat());
        let Command::Run(options) = arguments.command else { panic!("not run") };
        *options
    }

    #[test]
    fn without_a_terminal_a_run_is_checked_and_counted() {
        assert_eq!(Mode::new(&options(&[]), false), Mode::Check { count: true });
        assert_eq!(Mode::new(&options(&["--cpus", "2"]), false), Mode::Check { count: false });
        assert_eq!(Mode::new(&options(&[]), true), Mode::Console);
        assert_eq!(Mode::new(&options(&["--check"]), false), Mode::Check { count: false });
        assert_eq!(Mode::new(&options(&["--count"]), true), Mode::Check { count: true });
        assert_eq!(Mode::new(&options(&["--json", "x"]), true), Mode::Check { count: false });
        assert_eq!(Mode::new(&options(&["--trace", "x"]), true), Mode::Console);
        assert_eq!(Mode::new(&options(&["--trace", "x"]), false), Mode::Check { count: false });
        assert_eq!(Mode::new(&options(&["--disk"]), false), Mode::Check { count: false });
        assert_eq!(Mode::new(&options(&["--disk=new"]), true), Mode::Console);
    }

    #[test]
    fn what_is_wrong_is_said_at_once() {
        let refused = |words: &[&str]| {
            let options = options(words);
            refuse(&options, Mode::new(&options, false), None).unwrap_err().to_string()
        };
        assert!(refused(&["--count", "--cpus", "2"]).contains("one vCPU"));
        assert!(refused(&["--memory", "96M"]).contains("128M"));
        assert!(refused(&["--initrd", "no/such/file"]).contains("cannot read the initrd"));
        assert!(refused(&["--memory", "1M"]).contains("64M"));
        assert!(refused(&["--memory", "100000001"]).contains("multiple of 4K"));
        assert!(refused(&["--kernel", "no/such/file"]).contains("no/such/file"));
        assert!(refused(&["--json", "no/such/file"]).contains("no directory"));
        assert!(refused(&["--guest", "bare", "--guest", "linux"]).contains("one kind of guest"));
        assert!(refused(&["--count", "--guest", "name=b"]).contains("one guest with one vCPU"));
        let more = |spec: &str| refused(&["--check", "--guest", spec]);
        assert!(more("name=guest").contains("two guests have the name guest"));
        assert!(more("name=Web").contains("guest Web: `--name Web` is not possible"));
        assert!(more("name=b,cpus=65").contains("guest b: 65 vCPUs"));
        assert!(more("name=b,weight=0").contains("guest b: `--weight 0`"));
        assert!(more("name=b,memory=32M").contains("guest b: `--memory 32M` is too little"));
        assert!(more("name=b,memory=96M").contains("too little for the check of Debian's Linux"));
        assert!(more("name=b,memory=255G").contains("together"));
        assert!(more("name=b,kernel=no/such/file").contains("guest b: cannot read the kernel no/such/file"));
        assert!(more("name=b,initrd=no/such/file").contains("guest b: cannot read the initrd no/such/file"));
        assert!(refused(&["--trace", "no/such/file"]).contains("--trace: there is no directory"));
    }

    #[test]
    fn terminals_and_several_guests_have_their_consoles_on_the_channel() {
        let on_channel = |words: &[&str], terminal| {
            let options = options(words);
            image_flags(&options, Mode::new(&options, terminal)) & flags::CONSOLES != 0
        };
        assert!(!on_channel(&[], false) && !on_channel(&["--cpus", "2"], false));
        // A terminal is a console by the channel, with the monitor.
        assert!(on_channel(&[], true));
        assert!(on_channel(&["--guest", "name=b"], true) && on_channel(&["--check", "--guest", "name=b"], false));
        assert!(!on_channel(&["--count", "--guest", "name=b"], false));
        assert!(on_channel(&["--attach", "guest"], false));
        assert_eq!(Mode::new(&options(&["--attach", "guest"]), false), Mode::Console);
        let options = options(&["--attach", "c", "--guest", "name=b"]);
        let error = refuse(&options, Mode::new(&options, false), None).unwrap_err().to_string();
        assert!(error.contains("--attach: there is no guest c; there is guest, b"), "{error}");
    }

    #[test]
    fn little_memory_is_for_guests_without_our_check() {
        for words in [&["--guest", "bare"][..], &[]] {
            let options = options(&[words, &["--memory", "64M"]].concat());
            let mode = Mode::new(&options, words.is_empty());
            assert!(refuse(&options, mode, None).is_ok(), "{words:?}");
        }
    }

    #[test]
    fn the_command_line_ends_with_what_was_appended() {
        let options = options(&["--append", "twofold.x=1"]);
        let line = |mode| guest(&options, mode, "k".into(), None).command_line;
        assert_eq!(line(Mode::Console), "console=ttyAMA0 panic=-1 loglevel=4 twofold.x=1");
        assert_eq!(
            line(Mode::Check { count: true }),
            "console=ttyAMA0 panic=-1 loglevel=4 twofold.check nokaslr twofold.x=1"
        );
    }

    #[test]
    fn what_a_further_guest_leaves_out_is_the_first_ones() {
        let words = ["--cpus", "2", "--memory", "1G", "--weight", "100", "--append", "x", "--guest", "name=b"];
        let more = ["--guest", "name=c,cpus=4,memory=256M,weight=7,append=y,kernel=other,initrd="];
        let options = options(&[&words[..], &more].concat());
        let guests = guests(&options, Mode::Check { count: false }, Path::new("k"), Some(&"i".into()));
        let [a, b, c] = &guests[..] else { panic!("{guests:?}") };
        assert_eq!([&a.name, &b.name, &c.name], ["guest", "b", "c"]);
        assert_eq!((b.cpus, b.memory, b.weight), (2, 1 << 30, 100));
        assert_eq!((&b.command_line, &b.kernel, &b.initrd), (&a.command_line, &a.kernel, &a.initrd));
        assert_eq!((c.cpus, c.memory, c.weight), (4, 256 << 20, 7));
        assert_eq!((&c.command_line[..], c.kernel.to_str(), &c.initrd), ("y", Some("other"), &None));
    }

    #[test]
    fn a_kernel_of_the_users_gets_what_was_appended_alone() {
        let line = |words: &[&str], mode| guest(&options(words), mode, "k".into(), None).command_line;
        for mode in [Mode::Console, Mode::Check { count: false }, Mode::Check { count: true }] {
            assert_eq!(line(&["--kernel", "k", "--append", "first second"], mode), "first second");
            assert_eq!(line(&["--kernel", "k", "--append", ""], mode), "");
            assert!(line(&["--kernel", "k"], mode).starts_with("console=ttyAMA0"), "{mode:?}");
        }
    }
}
