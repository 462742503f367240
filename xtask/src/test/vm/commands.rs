// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: commands on the control channel while guests run.
//!
//! The program `pace` (`crates/guest/src/pace.rs`) says what its counter and its clock show. How long a guest was stopped is
//! the hypervisor's own figure, so no test depends on how long anything took.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::{Command, GuestState, Reason, Track};
use twofold_launch::session::{Answer, Session};
use twofold_launch::{Driver, GuestSettings};
use twofold_workspace::boot::Image;
use twofold_workspace::output;

use super::machines::{Clock, Machines, figure};
use crate::test::guests::seed;

/// A guest is stopped, goes on, begins anew and is ended, each while it waits in this way, beside one that must not notice.
/// On one CPU and by the instructions executed, so the bound on how late the guest is is the same each time.
pub fn commands(machines: &Machines, wait: &'static str) -> anyhow::Result<()> {
    let guests = vec![
        machines.bare("one", 1, &format!("pace={STEP} wait={wait}")),
        machines.bare("two", 1, "watch=2500"),
        // The machine ends with the last guest, and only a command ends this one.
        machines.bare("three", 1, "pace=1000"),
    ];
    let (outcome, late) = machines.driven(guests, Clock::Counted, move |driver| {
        let mut one = Commanded::begin(driver, 0, "[one] ")?;
        ensure!(one.session.guests()? == 3, "{} guests", one.session.guests()?);
        one.paces(3)?;
        let stopped_at = one.stop_for(STOPPED_TICKS)?;
        one.go_on()?;
        let late = one.pace_that(|pace| pace.counter > stopped_at)?.late;
        ensure!(
            late < LATE_MOST,
            "after a stop of {STOPPED_TICKS} ticks the guest's counter was {late} us late, and {LATE_MOST} are the most"
        );
        one.reset()?;
        one.stop_during_reset()?;
        one.go_on()?;
        one.quit()?;
        one.session.wait_for(1, 0, GuestState::Off)?;
        one.session.ask(None, Command::Quit)?.accepted()?;
        Ok(late)
    })?;
    output::remark(&format!("wait={wait}: {late} us late at most, stopped for longer than {LATE_MOST}"));
    figure(&outcome, "[two] watch: ", " rounds, nothing changed")?;
    Ok(())
}

/// A guest with a CPU for each of its vCPUs, which all spin, is stopped again and again. Its counter stands still, and its
/// clock goes on. Then the launcher ends the hypervisor.
pub fn wall_time(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 2, &format!("pace={STEP}"))];
    let (outcome, ()) = machines.driven(guests, Clock::Real, |driver| {
        let mut one = Commanded::begin(driver, 0, "")?;
        let first = one.paces(1)?.pop().context("no pace")?;
        for _ in 0..20 {
            let stopped_at = one.stop_for(0)?;
            one.go_on()?;
            one.pace_that(|pace| pace.counter > stopped_at)?;
        }
        one.stop_for(SECONDS * FREQUENCY)?;
        one.go_on()?;
        let stood_still = microseconds(one.statistics()?.stopped()?);
        // A line that the guest wrote before the stop may still be on its way.
        let is_late = |pace: &Pace| pace.clock - first.clock >= SECONDS - 1;
        let last = one.pace_that(is_late)?;
        let (counter, clock) = (last.counter - first.counter, (last.clock - first.clock) * 1_000_000);
        output::remark(&format!("{counter} us by the counter, {clock} by the clock, stopped for {stood_still} us"));
        // Each clock was cut to seconds.
        ensure!(
            clock.abs_diff(counter + stood_still) <= 2_000_000,
            "by its clock {clock} us went by, by its counter {counter}, and it was stopped for {stood_still} us"
        );
        one.session.ask(None, Command::Statistics)?.accepted()?;
        one.session.ask(None, Command::Quit)?.accepted()?;
        Ok(())
    })?;
    ensure!(outcome.control.end.as_deref() == Some("quit"), "{:?}", outcome.control.end);
    ensure!(outcome.control.report.get("exits.interrupt").is_some(), "there is no report");
    Ok(())
}

/// A guest has a dirty log, and its blocks are split and made again, while it runs, while it is stopped and across a reset,
/// beside a guest that must not notice. No piece of that keeps interrupts masked for long.
pub fn memory(machines: &Machines) -> anyhow::Result<()> {
    // 20,011 are counted. Pieces of half the size leave that as it is, so it is no piece of a sweep.
    const MASKED: u64 = 21_000;
    let [one, two] = [machines.bare("one", 1, &format!("pace={STEP}")), machines.bare("two", 1, "watch=2500")]
        .map(|guest| GuestSettings { flags: guest.flags | flags::COUNT, ..guest });
    let guests = vec![GuestSettings { memory: 512 << 20, ..one }, two];
    let (outcome, ()) = machines.driven(guests, Clock::Counted, |driver| {
        let mut one = Commanded::begin(driver, 0, "[one] ")?;
        one.paces(2)?;
        let found = |one: &mut Commanded, command, key: &str| one.ask(command)?.accepted()?.value(key);
        let leaves = |one: &mut Commanded| {
            let figures = one.statistics()?;
            Ok::<_, anyhow::Error>((figures.value("leaves.blocks_2m")?, figures.value("leaves.pages_4k")?))
        };
        let (blocks, pages) = leaves(&mut one)?;
        ensure!(blocks > 0, "the guest has {blocks} blocks and {pages} pages at first");
        ensure!(found(&mut one, Command::Coalesce, "coalesce.blocks")? == 0, "blocks are made of what nothing split");

        // Without a log there is nothing to look at, and with one nothing is coalesced.
        one.ask(Command::Dirty)?.refused(Reason::State)?;
        one.ask(Command::DirtyStop)?.refused(Reason::State)?;
        ensure!(one.statistics()?.value("dirty.pages").is_err(), "a log runs that nothing started");
        one.ask(Command::DirtyStart)?.accepted()?;
        one.ask(Command::DirtyStart)?.refused(Reason::State)?;
        one.ask(Command::Coalesce)?.refused(Reason::State)?;
        one.paces(2)?;
        let first = one.ask(Command::Dirty)?.accepted()?;
        let (dirty, all) = (first.value("dirty.found")?, first.value("dirty.pages")?);
        ensure!(dirty == all && (1..=512 * blocks).contains(&dirty), "{dirty} pages are dirty, {all} in all");
        // The same pages, more or less, once more.
        one.paces(2)?;
        let again = one.ask(Command::Dirty)?.accepted()?;
        ensure!(again.value("dirty.found")? > 0, "a page that was written again is not dirty");
        ensure!(again.value("dirty.pages")? == all + again.value("dirty.found")?, "{first:?}, then {again:?}");
        let (left, split) = leaves(&mut one)?;
        ensure!(left < blocks && split > pages, "after writes there are {left} blocks and {split} pages");

        // A guest that is stopped writes nothing.
        one.ask(Command::Stop)?.accepted()?;
        one.state(GuestState::Stopped)?;
        let all = found(&mut one, Command::Dirty, "dirty.pages")?;
        ensure!(found(&mut one, Command::Dirty, "dirty.found")? == 0, "a stopped guest writes");
        ensure!(one.statistics()?.value("dirty.pages")? == all, "a stopped guest writes");
        one.go_on()?;
        one.paces(1)?;
        ensure!(one.statistics()?.value("dirty.pages")? > all, "statistics do not collect the log");
        one.ask(Command::DirtyStop)?.accepted()?;
        ensure!(one.statistics()?.value("dirty.pages").is_err(), "a log runs that was stopped");

        let (left, _) = leaves(&mut one)?;
        let made = found(&mut one, Command::Coalesce, "coalesce.blocks")?;
        ensure!(left + made == blocks, "{made} blocks were made beside {left}, and there were {blocks}");
        ensure!(leaves(&mut one)? == (blocks, pages), "{:?} leaves after all was undone", leaves(&mut one)?);
        for _ in 0..3 {
            ensure!(found(&mut one, Command::Split, "split.blocks")? == blocks, "not all {blocks} blocks were split");
            ensure!(leaves(&mut one)? == (0, pages + 512 * blocks), "{:?} leaves after a split", leaves(&mut one)?);
            one.paces(1)?;
            ensure!(found(&mut one, Command::Coalesce, "coalesce.blocks")? == blocks, "not all blocks were made again");
            ensure!(leaves(&mut one)? == (blocks, pages), "{:?} leaves after a coalesce", leaves(&mut one)?);
            one.paces(1)?;
        }

        // A log survives a reset. Both guests at once; then the one that is off is left out.
        one.ask(Command::DirtyStart)?.accepted()?;
        one.reset()?;
        one.paces(1)?;
        ensure!(found(&mut one, Command::Dirty, "dirty.found")? >= 512, "a reset writes RAM");
        let both = one.session.ask(None, Command::Split)?.accepted()?;
        ensure!([0, 1].map(|guest| both.figure(Some(guest), "split.blocks").is_some()) == [true, true], "{both:?}");
        one.session.ask(None, Command::DirtyStop)?.accepted()?;
        one.session.wait_for(1, 0, GuestState::Off)?;
        let both = one.session.ask(None, Command::Coalesce)?.accepted()?;
        ensure!([0, 1].map(|guest| both.figure(Some(guest), "coalesce.blocks").is_some()) == [true, false], "{both:?}");
        one.session.ask(Some(1), Command::Split)?.refused(Reason::State)?;
        let free = one.session.ask(None, Command::Statistics)?.accepted()?.value("memory.free")?;
        ensure!(free > 64 << 20, "{free} bytes are free");
        one.session.ask(None, Command::Quit)?.accepted()?;
        Ok(())
    })?;
    let masked = outcome.control.report.get("longest_masked.vcpu_switch").context("nothing was counted")?;
    output::remark(&format!("{masked} instructions with interrupts masked at most, {MASKED} allowed"));
    ensure!(masked <= MASKED, "{masked} instructions with interrupts masked, and {MASKED} are the most");
    figure(&outcome, "[two] watch: ", " rounds, nothing changed")?;
    Ok(())
}

/// A guest whose only vCPU that is on never leaves its CPU by itself is stopped again and again, while the other CPU is
/// idle. Nothing but the stop makes the CPU leave the guest.
pub fn beside_an_idle_cpu(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 2, &format!("pace={STEP} alone"))];
    let (_, ()) = machines.driven(guests, Clock::Real, |driver| {
        let mut one = Commanded::begin(driver, 0, "")?;
        one.paces(1)?;
        for _ in 0..20 {
            let stopped_at = one.stop_for(0)?;
            one.go_on()?;
            one.pace_that(|pace| pace.counter > stopped_at)?;
        }
        one.ask(Command::Quit)?.accepted()?;
        Ok(())
    })?;
    Ok(())
}

/// A guest with more vCPUs than CPUs is stopped and started anew again and again, while all of them spin.
pub fn contended(machines: &Machines, rounds: usize) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 4, &format!("pace={STEP}")), machines.bare("two", 3, "pace=20")];
    let (_, ()) = machines.driven(guests, Clock::Real, move |driver| {
        let mut one = Commanded::begin(driver, 0, "[one] ")?;
        for _ in 0..rounds {
            let stopped_at = one.stop_for(0)?;
            one.go_on()?;
            one.pace_that(|pace| pace.counter > stopped_at)?;
            one.reset()?;
            one.stop_during_reset()?;
            one.reset()?;
            one.go_on_after(GuestState::Stopped)?;
            one.paces(1)?;
        }
        one.session.ask(None, Command::Quit)?.accepted()?;
        Ok(())
    })?;
    Ok(())
}

/// A guest is stopped, goes on and begins anew while its virtio devices have work in flight, at random moments of it. What
/// its devices count stands still while it is stopped.
pub fn devices(machines: &Machines, rounds: usize) -> anyhow::Result<()> {
    let seed = seed();
    let storm = machines.bare("one", 1, &format!("storm=1000000000 seed={seed}"));
    let storm = GuestSettings { devices: super::virtio::devices(), ..storm };
    let (_, ()) = machines.driven(vec![storm], Clock::Real, move |driver| {
        let mut one = Commanded::begin(driver, 0, "")?;
        for _ in 0..rounds {
            one.storms()?;
            one.stop_for(0)?;
            one.go_on()?;
            let notified = one.statistics()?.value("virtio.notifications")?;
            ensure!(notified > 0, "seed {seed}: the storm has notified no device");
            one.reset()?;
        }
        one.storms()?;
        one.session.ask(None, Command::Quit)?.accepted()?;
        Ok(())
    })?;
    Ok(())
}

/// Milliseconds between two lines of the guest.
const STEP: u64 = 20;
/// QEMU's counter, ticks in a second.
const FREQUENCY: u64 = 62_500_000;
/// For how long the guest is stopped at least: 600 ms.
const STOPPED_TICKS: u64 = FREQUENCY * 6 / 10;
/// By how many microseconds a guest's counter may be late, whatever happens: it shares its CPU with one other guest, so
/// this is many slices.
const LATE_MOST: u64 = 100_000;
/// For how many seconds a guest is stopped at least whose clock is compared.
const SECONDS: u64 = 5;

fn microseconds(ticks: u64) -> u64 {
    ticks * 2 / (2 * FREQUENCY / 1_000_000)
}

/// A guest whose stage 2 has pages of 64 KiB has a dirty log, whose answers are in pages of 4 KiB, and begins
/// anew. A coalesce makes contiguous groups of 2 MiB of its RAM again, and no blocks, which are larger than the RAM. The
/// launcher cannot follow its writes: that is refused by name.
pub fn larger_pages(machines: &Machines) -> anyhow::Result<()> {
    const PAGE: u64 = 64 << 10;
    const GROUP: u64 = 2 << 20;
    let guests = vec![machines.bare("one", 1, &format!("pace={STEP}"))];
    let (outcome, ()) = machines.driven_by(Image::Kib64, guests, |driver| {
        let mut one = Commanded::begin(driver, 0, "")?;
        one.paces(2)?;
        let figures = one.statistics()?;
        let (pages, blocks) = (figures.value("leaves.pages_64k")?, figures.value("leaves.blocks_512m")?);
        ensure!((1..=(64 << 20) / PAGE).contains(&pages) && blocks == 0, "{pages} pages and {blocks} blocks");
        let track = Command::Track(Track { tracker: 1, all: true });
        let refusal = one.ask(track)?.refusal.context("the writes are followed")?;
        ensure!(refusal.text.contains("65536") && refusal.text.contains("4096"), "{}", refusal.text);
        one.ask(Command::DirtyStart)?.accepted()?;
        one.paces(2)?;
        let dirty = one.ask(Command::Dirty)?.accepted()?.value("dirty.found")?;
        ensure!(dirty > 0 && dirty.is_multiple_of(PAGE / 4096), "{dirty} pages of 4 KiB are dirty");
        one.ask(Command::DirtyStop)?.accepted()?;
        let made = one.ask(Command::Coalesce)?.accepted()?.value("coalesce.blocks")?;
        ensure!((1..=(64 << 20) / GROUP).contains(&made), "{made} groups of RAM are made");
        let more = one.ask(Command::Coalesce)?.accepted()?.value("coalesce.blocks")?;
        ensure!(more == 0, "{more} groups of RAM are made again");
        let blocks = one.statistics()?.value("leaves.blocks_512m")?;
        ensure!(blocks == 0, "{blocks} blocks of RAM are made");
        one.reset()?;
        one.paces(2)?;
        one.session.ask(None, Command::Quit)?.accepted()?;
        Ok(())
    })?;
    ensure!(outcome.control.end.as_deref() == Some("quit"), "{:?}", outcome.control.end);
    Ok(())
}

/// A guest under command, and what it writes.
struct Commanded {
    session: Arc<Session>,
    lines: Receiver<String>,
    guest: u16,
    prefix: &'static str,
    /// How many of its states were waited for.
    seen: usize,
}

/// A line of the guest.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Microseconds.
    counter: u64,
    /// Seconds.
    clock: u64,
    /// Microseconds.
    late: u64,
}

impl Commanded {
    fn begin(driver: Driver, guest: u16, prefix: &'static str) -> anyhow::Result<Self> {
        let Driver { session, lines } = driver;
        let seen = session.wait_for(guest, 0, GuestState::Running)?;
        Ok(Self { session, lines, guest, prefix, seen })
    }

    /// The next lines, after the guest has begun.
    fn paces(&mut self, count: usize) -> anyhow::Result<Vec<Pace>> {
        let mut paces = Vec::new();
        while paces.len() < count {
            paces.push(self.pace_that(|_| true)?);
        }
        Ok(paces)
    }

    /// The next line like this.
    fn pace_that(&mut self, is_wanted: impl Fn(&Pace) -> bool) -> anyhow::Result<Pace> {
        loop {
            let line = self.lines.recv().context("the machine has ended")?;
            let pace = line.strip_prefix(self.prefix).and_then(Pace::read);
            if let Some(pace) = pace.filter(&is_wanted) {
                return Ok(pace);
            }
        }
    }

    /// Waits until the guest has begun its storm.
    fn storms(&mut self) -> anyhow::Result<()> {
        while !self.lines.recv().context("the machine has ended")?.contains("storm: round 0") {}
        Ok(())
    }

    fn ask(&mut self, command: Command) -> anyhow::Result<Answer> {
        Ok(self.session.ask(Some(self.guest), command)?)
    }

    fn state(&mut self, state: GuestState) -> anyhow::Result<()> {
        self.seen = self.session.wait_for(self.guest, self.seen, state)?;
        Ok(())
    }

    fn statistics(&mut self) -> anyhow::Result<Answer> {
        self.ask(Command::Statistics)?.accepted()
    }

    /// Stops the guest until its counter has stood still for these ticks more. Nothing of it changes meanwhile. Returns the
    /// counter, in microseconds.
    fn stop_for(&mut self, ticks: u64) -> anyhow::Result<u64> {
        self.ask(Command::Continue)?.refused(Reason::State)?;
        let before = self.statistics()?.stopped()?;
        self.ask(Command::Stop)?.accepted()?;
        self.state(GuestState::Stopped)?;
        self.ask(Command::Stop)?.refused(Reason::State)?;
        let first = self.statistics()?;
        loop {
            let mut next = self.statistics()?;
            let stopped = next.stopped()? - before;
            ensure!(stopped > first.stopped()? - before, "time does not go on");
            // The scheduler counts a stopped vCPU until a CPU has taken it out of the queue.
            let may_change = |key: &str| key == STOPPED || key.starts_with("cpu.");
            next.figures.iter_mut().filter(|(_, key, _)| may_change(key)).for_each(|figure| figure.2 = 0);
            let mut same = first.clone();
            same.figures.iter_mut().filter(|(_, key, _)| may_change(key)).for_each(|figure| figure.2 = 0);
            ensure!(next == same, "a figure of a stopped guest changes:\n{same:?}\n{next:?}");
            if stopped >= ticks {
                let counter = next.figures.iter().find(|(_, key, _)| key == "counter.now").context("no counter.now")?.2;
                return Ok(microseconds(counter));
            }
        }
    }

    fn go_on(&mut self) -> anyhow::Result<()> {
        self.go_on_after(GuestState::Stopped)
    }

    fn go_on_after(&mut self, state: GuestState) -> anyhow::Result<()> {
        // It may be stopped since long ago.
        if self.session.state(self.guest) != Some(state) {
            self.state(state)?;
        }
        self.ask(Command::Continue)?.accepted()?;
        self.state(GuestState::Running)
    }

    /// The guest begins anew. It may be stopped, and then it is afterwards.
    fn reset(&mut self) -> anyhow::Result<()> {
        let was_stopped = self.session.state(self.guest) == Some(GuestState::Stopped);
        self.ask(Command::Reset)?.accepted()?;
        self.state(GuestState::Reset)?;
        self.state(if was_stopped { GuestState::Stopped } else { GuestState::Running })
    }

    /// The guest begins anew, and is stopped before it has begun, or right after.
    fn stop_during_reset(&mut self) -> anyhow::Result<()> {
        let guest = Some(self.guest);
        let requests = [Command::Reset, Command::Stop].map(|command| self.session.send(guest, command));
        for request in requests {
            self.session.answer(request?)?.accepted()?;
        }
        self.state(GuestState::Reset)?;
        self.state(GuestState::Stopped)
    }

    fn quit(&mut self) -> anyhow::Result<()> {
        self.ask(Command::Quit)?.accepted()?;
        self.state(GuestState::Off)?;
        for command in Command::ALL.iter().filter(|command| **command != Command::Statistics) {
            self.ask(*command)?.refused(Reason::State)?;
        }
        Ok(())
    }
}

const STOPPED: &str = "counter.stopped";

/// What a test asks of an answer.
trait Judged: Sized {
    fn accepted(self) -> anyhow::Result<Answer>;
    fn refused(self, reason: Reason) -> anyhow::Result<()>;
    fn stopped(&self) -> anyhow::Result<u64>;
    fn value(&self, key: &str) -> anyhow::Result<u64>;
}

impl Judged for Answer {
    fn accepted(self) -> anyhow::Result<Answer> {
        match self.refusal {
            None => Ok(self),
            Some(refusal) => Err(refusal.into()),
        }
    }

    fn refused(self, reason: Reason) -> anyhow::Result<()> {
        let found = self.refusal.map(|refusal| refusal.reason);
        ensure!(
            found == Some(reason),
            "a command is to be refused with {reason:?}, and is with {found:?}: {:?}",
            self.figures
        );
        Ok(())
    }

    /// For how many ticks the guest was stopped.
    fn stopped(&self) -> anyhow::Result<u64> {
        self.value(STOPPED)
    }

    fn value(&self, key: &str) -> anyhow::Result<u64> {
        let figure = self.figures.iter().find(|(_, other, _)| other == key);
        figure.map(|figure| figure.2).with_context(|| format!("no {key} in {:?}", self.figures))
    }
}

impl Pace {
    fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.strip_prefix("pace: ")?.split_once(", counter ")?;
        let (counter, rest) = rest.split_once(" us, clock ")?;
        let (clock, late) = rest.split_once(" s, late ")?;
        let number = |text: &str| text.parse().ok();
        Some(Self { counter: number(counter)?, clock: number(clock)?, late: number(late.strip_suffix(" us")?)? })
    }
}
