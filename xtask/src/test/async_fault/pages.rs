// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: guests with four times the memory that the machine gives them at a time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::devices::{Backing, Devices, Disk, Network, Part};
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{GuestSettings, Outcome};

use twofold_workspace::output;

use super::super::vm::linux;
use super::super::vm::machines::{Clock, Machines};

/// What the tasks of one run did.
struct Done {
    /// Writes to random pages, of which nearly each finds its page absent.
    pages: u64,
    /// Units of work.
    work: u64,
    /// Tasks that were parked.
    parked: u64,
}

/// The bare-metal guest's tasks write to an array four times its resident memory, and find all that they wrote.
pub fn tasks(machines: &Machines, mode: Mode, cpus: u32, clock: Clock) -> anyhow::Result<()> {
    let done = run(machines, mode, cpus, Duration::from_millis(1), (300, clock))?;
    ensure!(done.pages > 0 && done.work > 0, "{} pages, {} units of work", done.pages, done.work);
    ensure!((done.parked > 0) == (mode == Mode::Pv), "{} tasks were parked", done.parked);
    Ok(())
}

/// All tasks of a vCPU are parked most of the time, so it waits in WFI. Other CPUs end its transfers, and no timer of its
/// own ends the wait: an arrival that is missed while it leaves its CPU would be missed for ever.
pub fn tasks_that_all_park(machines: &Machines) -> anyhow::Result<()> {
    let program = "bm=2000 faulters=1 workers=0 size=56M";
    let done = run_program(machines, program, Mode::Pv, 3, Duration::from_micros(50), Clock::Real)?;
    ensure!(done.parked > 1000, "{} tasks were parked", done.parked);
    Ok(())
}

/// A task that works gets what a task that faults leaves: by mode and by how long a page takes.
pub fn gains(machines: &Machines) -> anyhow::Result<()> {
    let run = |mode, delay| run(machines, mode, 1, delay, (2000, Clock::Counted));
    let (slow, fast) = (Duration::from_millis(10), Duration::from_micros(100));
    let (off, halt, pv) = (run(Mode::Off, slow)?, run(Mode::Halt, slow)?, run(Mode::Pv, slow)?);
    let (fast_off, fast_pv) = (run(Mode::Off, fast)?, run(Mode::Pv, fast)?);
    ensure!(pv.work * 10 >= off.work * 18, "10 ms: {} units of work with pv, {} with off", pv.work, off.work);
    ensure!(
        fast_pv.work * 10 >= fast_off.work * 14,
        "100 us: {} units of work with pv, {} with off",
        fast_pv.work,
        fast_off.work
    );
    let (in_halt, in_off) = (halt.pages * off.work, off.pages * halt.work);
    ensure!(
        in_halt * 10 >= in_off * 15,
        "10 ms: {} pages and {} units of work with halt, {} and {} with off",
        halt.pages,
        halt.work,
        off.pages,
        off.work
    );
    Ok(())
}

/// Debian's Linux with four times its resident memory passes its own check: 64 MiB of random data, written twice and compared.
pub fn linux(machines: &Machines, mode: Mode, cpus: u32) -> anyhow::Result<()> {
    linux_with(machines, Store::Memory(Duration::from_micros(100)), mode, cpus)
}

/// The same with its pages in a file of the host, behind a disk of the machine. The machine has less memory than the guest. A
/// file that is too small is refused.
pub fn linux_on_a_disk(machines: &Machines, mode: Mode, cpus: u32) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("pages.img");
    let file = fs::File::create(&path)?;
    file.set_len(257 << 20)?;
    let small = linux_with(machines, Store::File(path.clone()), mode, cpus);
    let refused = small.err().context("a file that is too small was taken")?;
    ensure!(format!("{refused:#}").contains("truncate -s 258M"), "{refused:#}");
    file.set_len(258 << 20)?;
    linux_with(machines, Store::File(path.clone()), mode, cpus)?;
    let is_used = fs::read(&path)?.iter().any(|byte| *byte != 0);
    ensure!(is_used, "no page has left to {}", path.display());
    Ok(())
}

fn linux_with(machines: &Machines, store: Store, mode: Mode, cpus: u32) -> anyhow::Result<()> {
    let swap = Swap { resident: 64 << 20, store, mode };
    let guest = GuestSettings { swap: Some(swap), ..machines.linux("guest", cpus, 1)? };
    let outcome = machines.checked(vec![guest], Clock::Real)?;
    linux::no_complaints(&outcome)
}

/// The buffers of virtio devices are in pages that have left: two guests write a disk in memory and a file of the host, read
/// them back, and exchange frames.
pub fn buffers(machines: &Machines, resident: u64) -> anyhow::Result<()> {
    const SIZE: u64 = 5 << 20;
    let directory = tempfile::tempdir()?;
    let mut guests = Vec::new();
    for name in ["one", "two"] {
        let path = directory.path().join(name);
        fs::write(&path, vec![0; SIZE as usize]).context("cannot write a disk")?;
        let disk = |backing| Disk { backing, part: Part::default(), is_read_only: false };
        let devices = Devices {
            disks: vec![disk(Backing::Memory(SIZE)), disk(Backing::File(path))],
            nets: vec![Network::Inner],
            ..Devices::default()
        };
        let swap = Swap { resident, store: Store::Memory(Duration::from_micros(100)), mode: Mode::Off };
        let bare = machines.bare(name, 1, &format!("buffers={SIZE}"));
        guests.push(GuestSettings { devices, swap: Some(swap), ..bare });
    }
    let outcome = machines.checked(guests, Clock::Real)?;
    let console = outcome.console.tail(usize::MAX);
    let count = |end: &str| console.iter().filter(|line| line.ends_with(end)).count();
    ensure!(count("and back") == 6, "a device did not do all:\n{}", console.join("\n"));
    let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
    let (awaited, errors) = (stat("virtio.pages_awaited")?, stat("disk.errors")?);
    // Each buffer had left when its disk was to write or to read it.
    ensure!(awaited >= SIZE / 4096 && errors == 0, "{awaited} pages were awaited, and {errors} requests failed");
    Ok(())
}

/// A guest puts memory into its balloon, takes it out, and reports it: each page costs neither a frame nor a place
/// afterwards. Without a store, the frames of whole huge pages are free.
pub fn balloon(machines: &Machines, has_store: bool) -> anyhow::Result<()> {
    const SIZE: u64 = 16 << 20;
    let swap = Swap { resident: 8 << 20, store: Store::Memory(Duration::from_micros(10)), mode: Mode::Off };
    let guest = GuestSettings {
        devices: Devices { has_balloon: true, ..Devices::default() },
        swap: has_store.then_some(swap),
        flags: flags::COUNT,
        ..machines.bare("guest", 1, &format!("balloon={SIZE}"))
    };
    let outcome = machines.checked(vec![guest], Clock::Counted)?;
    let console = outcome.console.tail(usize::MAX);
    let line = format!("virtio: {} pages were given up twice", SIZE / 4096);
    ensure!(console.contains(&line.as_str()), "no line {line:?}:\n{}", console.join("\n"));
    let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
    let (given, masked) = (stat("virtio.frames_given_up")?, stat("longest_masked.virtio")?);
    output::remark(&format!("{given} frames were given up, {masked} instructions with interrupts masked at most"));
    // With a store, what has left has no frame to give up.
    let expected = 2 * SIZE / 4096;
    let is_right = if has_store { (1..=expected).contains(&given) } else { given == expected };
    ensure!(is_right, "{given} frames were given up, and not {expected}");
    ensure!(masked <= MASKED, "{masked} instructions with interrupts masked, and {MASKED} are the most");
    Ok(())
}

/// The most instructions that EL2 executes with interrupts masked.
const MASKED: u64 = 20_000;

fn run(
    machines: &Machines,
    mode: Mode,
    cpus: u32,
    delay: Duration,
    (milliseconds, clock): (u64, Clock),
) -> anyhow::Result<Done> {
    let program = format!("bm={milliseconds} faulters=1 workers=1 size=56M");
    run_program(machines, &program, mode, cpus, delay, clock)
}

fn run_program(
    machines: &Machines,
    program: &str,
    mode: Mode,
    cpus: u32,
    delay: Duration,
    clock: Clock,
) -> anyhow::Result<Done> {
    let swap = Swap { resident: 14 << 20, store: Store::Memory(delay), mode };
    let flags = if clock == Clock::Counted { flags::COUNT } else { 0 };
    let guest = GuestSettings { swap: Some(swap), flags, ..machines.bare("guest", cpus, program) };
    let outcome = machines.checked(vec![guest], clock)?;
    if clock == Clock::Counted {
        interrupts_are_masked_shortly(&outcome)?;
    }
    done(&outcome, cpus)
}

/// Pages left and came in pieces: no stretch with interrupts masked is longer than [`MASKED`].
fn interrupts_are_masked_shortly(outcome: &Outcome) -> anyhow::Result<()> {
    let stretches: Vec<_> = outcome.control.report.under("longest_masked").collect();
    let longest = stretches.iter().max_by_key(|(_, instructions)| *instructions);
    let (exit, longest) = longest.context("no stretch with interrupts masked was counted")?;
    output::remark(&format!("{longest} instructions with interrupts masked at most ({exit})"));
    ensure!(*longest <= MASKED, "{exit}: {longest} instructions with interrupts masked, and {MASKED} are the most");
    Ok(())
}

/// The sums of the lines `bm: vCPU V pages N work N parked N ...`.
fn done(outcome: &Outcome, cpus: u32) -> anyhow::Result<Done> {
    let console = outcome.console.tail(usize::MAX);
    let lines: Vec<_> = console.iter().filter(|line| line.starts_with("bm: vCPU ")).collect();
    ensure!(lines.len() == cpus as usize, "{} of {cpus} vCPUs reported:\n{}", lines.len(), console.join("\n"));
    let sum = |name: &str| {
        lines.iter().try_fold(0, |sum, line| {
            let rest = line.split_once(name).with_context(|| format!("no{name}in `{line}`"))?.1;
            let number = rest.split(' ').next().unwrap_or_default();
            Ok::<u64, anyhow::Error>(sum + number.parse::<u64>().with_context(|| format!("`{line}`"))?)
        })
    };
    Ok(Done { pages: sum(" pages ")?, work: sum(" work ")?, parked: sum(" parked ")? })
}
