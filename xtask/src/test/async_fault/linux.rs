// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: Debian's Linux with the module of `guests/linux-apf`, and four times the memory that the machine gives it
//! at a time. `bm` (`guests/bm`) is what it runs, and finds each write that is lost.

use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::Command;
use twofold_launch::GuestSettings;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_workspace::commands::{self, Ran};
use twofold_workspace::guest::{self, Wanted};
use twofold_workspace::linux_bm::load;
use twofold_workspace::output;

use super::super::vm::linux;
use super::super::vm::machines::{Clock, Machines};

/// Tasks are parked and woken.
pub fn parks(machines: &Machines, cpus: u32, clock: Clock) -> anyhow::Result<()> {
    let linux = Linux { machines, mode: Mode::Pv, cpus, delay: Duration::from_micros(100), clock };
    let ran = linux.run(&[&load(), TRACE, &format!("{} --check", bm(cpus, 2)), COUNTERS, TRACED])?;
    ran.iter().try_for_each(|ran| ran.ended_well().map(drop))?;
    is_checked(&ran[2])?;
    let counts = Counts::of(&ran[3])?;
    ensure!(counts.parked > 100 && counts.woken > 100, "{counts:?}");
    // Another interrupt may come first, but not often.
    ensure!(counts.declined * 4 < counts.parked, "{counts:?}");
    Ok(())
}

/// The working thread gets what the faulting one leaves: by mode, and by how long a page takes.
pub fn gains(machines: &Machines) -> anyhow::Result<()> {
    let run = |mode, delay| {
        let linux = Linux { machines, mode, cpus: 1, delay, clock: Clock::Counted };
        let first = if mode == Mode::Pv { load() } else { "true".to_owned() };
        Done::of(&linux.run(&[&first, &bm(1, 4)])?[1])
    };
    let (slow, fast) = (Duration::from_millis(10), Duration::from_micros(100));
    let [off, halt, pv] = [run(Mode::Off, slow)?, run(Mode::Halt, slow)?, run(Mode::Pv, slow)?];
    let [fast_off, fast_pv] = [run(Mode::Off, fast)?, run(Mode::Pv, fast)?];
    let (at_10_ms, at_100_us) = (pv.work / off.work, fast_pv.work / fast_off.work);
    let halted = (halt.pages / halt.work) / (off.pages / off.work);
    output::remark(&format!(
        "work with pv: {at_10_ms:.3} of off at 10 ms, {at_100_us:.3} at 100 us; pages for the work with halt: {halted:.3}"
    ));
    let all = format!("10 ms: {off:?}, {halt:?}, {pv:?}; 100 us: {fast_off:?}, {fast_pv:?}");
    ensure!(at_10_ms >= 1.8 && at_100_us >= 1.4 && halted >= 1.5, "{at_10_ms}, {at_100_us}, {halted}: {all}");
    Ok(())
}

/// While tasks are parked, the module is removed and loaded again, and switched off and on.
pub fn comes_and_goes(machines: &Machines) -> anyhow::Result<()> {
    let again = format!("for round in 1 2 3 4 5; do rmmod twofold_apf && {} || exit 1; sleep 0.3; done", load());
    beside_bm(machines, &[&again, OFF, ON, "rmmod twofold_apf", &load()])
}

/// While tasks are parked, each CPU goes offline and comes back, the boot CPU included.
pub fn hotplug(machines: &Machines) -> anyhow::Result<()> {
    let cpus = "cd /sys/devices/system/cpu; for round in 1 2 3 4 5; do for cpu in cpu1 cpu0; do \
                echo 0 > $cpu/online && sleep 0.2 && echo 1 > $cpu/online || exit 1; sleep 0.2; done; done";
    beside_bm(machines, &[cpus])
}

/// `bm` runs while the commands do. Tasks are parked before and after them, and no write is lost.
fn beside_bm(machines: &Machines, commands: &[&str]) -> anyhow::Result<()> {
    // Until a file says that the commands are over.
    let bm = format!("while [ ! -e /tmp/over ]; do {} --check || exit 1; done > /tmp/bm 2>&1 &", bm(2, 3));
    let load = load();
    let mut all = vec![load.as_str(), &bm, PARKS];
    all.extend(commands);
    all.extend([
        PARKS,
        "touch /tmp/over; while pidof bm > /dev/null; do sleep 0.2; done; cat /tmp/bm",
        "rmmod twofold_apf",
    ]);
    let delay = Duration::from_micros(100);
    let ran = Linux { machines, mode: Mode::Pv, cpus: 2, delay, clock: Clock::Real }.run(&all)?;
    ran.iter().try_for_each(|ran| ran.ended_well().map(drop))?;
    is_checked(&ran[ran.len() - 2])
}

/// Processes are killed while their tasks are parked. Nothing is left of them that keeps the module.
pub fn killed(machines: &Machines) -> anyhow::Result<()> {
    let kill =
        format!("for round in 1 2 3; do {} & {PARKS}; kill -9 $!; wait $!; [ $? = 137 ] || exit 1; done", bm(4, 60));
    let delay = Duration::from_millis(10);
    let linux = Linux { machines, mode: Mode::Pv, cpus: 2, delay, clock: Clock::Real };
    let ran = linux.run(&[&load(), &kill, COUNTERS, "rmmod twofold_apf", &load(), &bm(1, 1), COUNTERS])?;
    ran.iter().try_for_each(|ran| ran.ended_well().map(drop))?;
    for counts in [Counts::of(&ran[2])?, Counts::of(&ran[6])?] {
        ensure!(counts.parked > 0, "{counts:?}");
    }
    Ok(())
}

/// Linux reboots while some of its pages are in the store. The system after the reboot does the same work.
pub fn reboots(machines: &Machines, mode: Mode) -> anyhow::Result<()> {
    const BOOTS: usize = 2;
    let linux = Linux { machines, mode, cpus: 2, delay: Duration::from_micros(100), clock: Clock::Real };
    let (load, checked) = (load(), format!("{} --check", bm(2, 1)));
    // The kernel has no messages in this line.
    let mut lines = vec![checked.as_str(), "echo 'has worked'; reboot -f"];
    if mode == Mode::Pv {
        lines = vec![&load, &checked, PARKED, "echo 'has worked'; reboot -f"];
    }
    let guest = linux.guest(&lines)?;
    let guest = GuestSettings { flags: guest.flags | flags::RESTART, ..guest };
    let (outcome, ()) = machines.driven(vec![guest], Clock::Real, |driver| {
        let mut boots = 0;
        while boots < BOOTS {
            let line = driver.lines.recv().with_context(|| format!("the console ended after {boots} boots"))?;
            // A command before has failed.
            let has_failed = line.starts_with("twofold: end ") && !line.trim_end().ends_with(" 0");
            ensure!(!has_failed, "boot {boots}: {line}");
            boots += usize::from(line.trim_end() == "has worked");
        }
        driver.session.ask(None, Command::Quit)?;
        Ok(())
    })?;
    linux::no_complaints(&outcome)
}

/// The Linux of `cargo xtask run --async-fault pv` loads the module by itself, and passes its check.
pub fn loads_by_itself(machines: &Machines) -> anyhow::Result<()> {
    let selected = guest::select(machines.workspace(), &Wanted { has_module: true, ..Wanted::linux() })?;
    let store = Store::Memory(Duration::from_micros(100));
    let guest = GuestSettings {
        kernel: selected.kernel,
        initrd: selected.initrd,
        memory: 4 * RESIDENT,
        swap: Some(Swap { resident: RESIDENT, store, mode: Mode::Pv }),
        ..machines.bare("guest", 2, "console=ttyAMA0 panic=-1 loglevel=4 twofold.check")
    };
    let outcome = machines.checked(vec![guest], Clock::Real)?;
    linux::no_complaints(&outcome)?;
    let console = outcome.console.tail(usize::MAX);
    let is_loaded = console.iter().any(|line| line.trim_end() == "tasks sleep on absent pages");
    ensure!(is_loaded, "the module is not loaded:\n{}", console.join("\n"));
    Ok(())
}

/// This number of faulting threads and the same of working ones, for this number of seconds, with an array of twice the resident memory.
fn bm(threads: u32, seconds: u32) -> String {
    format!("bm -f {threads} -w {threads} -m {} -t {seconds}", 2 * RESIDENT)
}

/// Prints each counter with its name.
const COUNTERS: &str =
    "cd /sys/bus/platform/drivers/twofold-apf/async-page-fault && grep . announced parked declined woken";
const TRACE: &str = "echo 1 > /sys/kernel/tracing/events/twofold_apf/enable";
/// Finds both events in the trace.
const TRACED: &str = "cd /sys/kernel/tracing && echo 0 > tracing_on && \
                      grep -m 1 'twofold_apf_not_present: token=.* parked$' trace && \
                      grep -m 1 'twofold_apf_ready: token=.* woken=1$' trace";
/// Tasks were parked since the module was loaded.
const PARKED: &str = "[ $(cat /sys/bus/platform/drivers/twofold-apf/async-page-fault/parked) -gt 0 ]";
/// Waits until a task is parked that was not before.
const PARKS: &str = "cd /sys/bus/platform/drivers/twofold-apf/async-page-fault && before=$(cat parked) && \
                     while [ $(cat parked) = $before ]; do sleep 0.1; done";
/// Switches it off, and sees that nothing is announced any more.
const OFF: &str = "echo N > /sys/module/twofold_apf/parameters/enabled && \
                   cd /sys/bus/platform/drivers/twofold-apf/async-page-fault && before=$(cat announced) && sleep 1 && \
                   [ $(cat announced) = $before ]";
const ON: &str = "echo Y > /sys/module/twofold_apf/parameters/enabled";

const RESIDENT: u64 = 64 << 20;

/// A Linux with more memory than the machine gives it at a time.
#[derive(Clone, Copy)]
struct Linux<'a> {
    machines: &'a Machines,
    mode: Mode,
    cpus: u32,
    /// What a transfer takes.
    delay: Duration,
    clock: Clock,
}

impl Linux<'_> {
    fn guest(&self, lines: &[&str]) -> anyhow::Result<GuestSettings> {
        let swap = Swap { resident: RESIDENT, store: Store::Memory(self.delay), mode: self.mode };
        let guest = self.machines.commanded("async-fault", self.cpus, &owned(lines))?;
        ensure!(guest.memory == 4 * RESIDENT, "the guest has {} bytes", guest.memory);
        Ok(GuestSettings { swap: Some(swap), ..guest })
    }

    fn run(&self, lines: &[&str]) -> anyhow::Result<Vec<Ran>> {
        let outcome = self.machines.checked(vec![self.guest(lines)?], self.clock)?;
        linux::no_complaints(&outcome)?;
        let console = owned(&outcome.console.tail(usize::MAX));
        commands::ran(&owned(lines), &console).with_context(|| console.join("\n"))
    }
}

fn owned(lines: &[impl AsRef<str>]) -> Vec<String> {
    lines.iter().map(|line| line.as_ref().to_owned()).collect()
}

/// Checks that `bm` found each of its writes.
fn is_checked(ran: &Ran) -> anyhow::Result<()> {
    let lines = ran.ended_well()?;
    let is_it = |line: &String| line.starts_with("bm: ") && line.contains(" writes in ");
    ensure!(lines.iter().any(is_it), "bm did not check:\n{}", lines.join("\n"));
    Ok(())
}

/// What `bm` did.
#[derive(Debug)]
struct Done {
    pages: f64,
    work: f64,
}

impl Done {
    fn of(ran: &Ran) -> anyhow::Result<Self> {
        let lines = ran.ended_well()?;
        let line = lines.iter().find_map(|line| line.strip_prefix("bm: pages ")?.split_once(" work "));
        let (pages, work) = line.with_context(|| lines.join("\n"))?;
        Ok(Self { pages: pages.parse()?, work: work.parse()? })
    }
}

/// The module's counters.
#[derive(Debug)]
struct Counts {
    parked: u64,
    declined: u64,
    woken: u64,
}

impl Counts {
    fn of(ran: &Ran) -> anyhow::Result<Self> {
        let lines = ran.ended_well()?;
        let count = |name: &str| -> anyhow::Result<u64> {
            let number = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Ok(number.with_context(|| format!("no {name} in:\n{}", lines.join("\n")))?.parse()?)
        };
        Ok(Self { parked: count("parked")?, declined: count("declined")?, woken: count("woken")? })
    }
}
