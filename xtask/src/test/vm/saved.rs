// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that are saved, and restored in another machine.
//!
//! Each guest is stopped at a random instant. It is saved twice, restored in a machine that has not run it, and saved there
//! at once: sections and pages are the same each time. Then it goes on there, to the end of its own check. [`cards`] has
//! guests that talk with something that stays, [`disks`] guests whose disk stays, and [`swapped`] guests
//! with pages in a store.

pub mod cards;
pub mod disks;
pub mod swapped;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::{Command, GuestState};
use twofold_launch::devices::{Backing, Devices, Disk, Network, Part};
use twofold_launch::saved::SavedGuest;
use twofold_launch::{Driver, GuestSettings, Outcome};
use twofold_workspace::output;

use super::machines::{Clock, Machines};
use crate::test::guests::seed;

/// A guest whose registers, vector registers, memory and timers hold secrets, on `cpus` vCPUs.
pub fn watcher(machines: &Machines, cpus: u32, moves: u64) -> anyhow::Result<()> {
    // The guest's counter stands still while it moves, so it has this time in all.
    let guest = machines.bare("guest", cpus, "watch=6000 moved");
    moved(machines, &guest, ("watch: begins", 400), moves, Clock::Real, stays)
        .and_then(|outcome| passed(&outcome, "nothing changed"))
}

/// A guest without a clock, whose vCPUs interrupt each other: it ends as the one that was not moved.
pub fn without_a_clock(machines: &Machines, moves: u64) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 4, "lock=400000 by=interrupt");
    let mut done = 0;
    // A guest may end before it has moved that often: another one follows.
    while done < moves {
        let (before, wanted) = (done, moves - done);
        let count = |event: Event<'_>| {
            done += u64::from(matches!(event, Event::Saved(_)));
            Ok(())
        };
        let outcome = moved(machines, &guest, ("", 400), wanted, Clock::Real, count)?;
        passed(&outcome, "guest check: ok")?;
        ensure!(done > before, "the guest did not move");
    }
    output::remark(&format!("{done} moves in all"));
    Ok(())
}

/// Debian's Linux.
pub fn linux(machines: &Machines, cpus: u32, moves: u64) -> anyhow::Result<()> {
    let guest = machines.linux("guest", cpus, 10)?;
    // It moves while it boots, and under load.
    moved(machines, &guest, ("", 4000), moves, Clock::Real, stays)
        .and_then(|outcome| passed(&outcome, "guest check: ok"))
}

/// Two restores of one guest end with the same memory and the same console, by the instructions executed.
pub fn twice_the_same(machines: &Machines) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 2, "watch=3000 moved stays");
    let (_, saved) = machines.driven(vec![guest.clone()], Clock::Counted, |driver| {
        saved_at(&driver, &guest, "watch: begins", 50).map(Option::unwrap_or_default)
    })?;
    ensure!(!saved.pages.is_empty(), "the guest ended before it was stopped");
    let end = || -> anyhow::Result<(SavedGuest, Vec<String>)> {
        let (outcome, end) = machines.driven(vec![incoming(&guest)], Clock::Counted, |driver| {
            restored(&driver, &saved)?;
            // Its vCPUs change nothing any more, so it does not matter when it is stopped.
            saved_at(&driver, &guest, "the guest stays", 0)?.context("the guest has ended")
        })?;
        Ok((end, outcome.console.tail(usize::MAX).into_iter().map(str::to_owned).collect()))
    };
    let ((one, console), (two, other)) = (end()?, end()?);
    ensure!(
        console == other,
        "one restore ends with\n{}\nand another one with\n{}",
        console.join("\n"),
        other.join("\n")
    );
    ensure!(console.iter().any(|line| line.contains("nothing changed")), "{}", console.join("\n"));
    let differ = differing(&one, &two);
    ensure!(differ.is_empty(), "{} pages of {} differ: {}", differ.len(), one.pages.len(), differ.join(" "));
    let changed = differing(&saved, &one);
    output::remark(&format!("{} pages are the same, of which {} changed since", one.pages.len(), changed.len()));
    ensure!(!changed.is_empty(), "the guest has written nothing since it was restored");
    Ok(())
}

/// What is no state of this guest is refused by name, and the guest that is saved goes on.
pub fn refusals(machines: &Machines) -> anyhow::Result<()> {
    let disk = Disk { backing: Backing::Memory(1 << 20), part: Part::default(), is_read_only: false };
    let guest = machines.bare("guest", 1, "watch=1000");
    let guest = GuestSettings { devices: Devices { disks: vec![disk], ..Devices::default() }, ..guest };
    machines.driven(vec![guest], Clock::Real, |driver| {
        begun(&driver, "watch: begins")?;
        driver.session.ask(Some(0), Command::Stop)?;
        let refusal = driver.session.ask(Some(0), Command::Save)?.refusal.context("it was saved")?;
        ensure!(refusal.text == "the guest has a disk in memory, which cannot be saved yet", "{refusal}");
        Ok(driver.session.ask(None, Command::Quit).map(drop)?)
    })?;
    let devices = Devices { nets: vec![Network::Inner], ..Devices::default() };
    let guest = GuestSettings { devices, ..machines.bare("guest", 2, "watch=2000 moved") };
    let (outcome, saved) = machines.driven(vec![guest.clone()], Clock::Real, |driver| {
        let refused = |command: Command, why: &str| -> anyhow::Result<()> {
            let refusal = driver.session.ask(Some(0), command)?.refusal.context("it was not refused")?;
            ensure!(refusal.text.contains(why), "{command:?}: {refusal}");
            Ok(())
        };
        begun(&driver, "watch: begins")?;
        refused(Command::Save, "the guest runs")?;
        driver.session.ask(Some(0), Command::Stop)?;
        refused(Command::Restore, "has begun here")?;
        refused(Command::Write(0x4_0000), "has begun here")?;
        refused(Command::Read(0), "0x0")?;
        let saved = SavedGuest::save(&driver.session, 0, guest.memory, false)?;
        driver.session.ask(Some(0), Command::Continue)?;
        Ok(saved)
    })?;
    passed(&outcome, "nothing changed")?;
    let (outcome, ()) = machines.driven(vec![incoming(&guest)], Clock::Real, |driver| {
        let session = &driver.session;
        let refused = |content: &[u8], why: &str| -> anyhow::Result<()> {
            let request = session.send_with(0, Command::Restore, content)?;
            let refusal =
                session.answer(request)?.refusal.with_context(|| format!("it was not refused for {why:?}"))?;
            ensure!(refusal.text.contains(why), "{refusal}, not {why:?}");
            Ok(())
        };
        let section = |name: &[u8], instance: u32, content: &[u8]| {
            let mut bytes = vec![0; 24];
            bytes[..name.len()].copy_from_slice(name);
            bytes.extend([instance.to_le_bytes(), 1_u32.to_le_bytes()].as_flattened());
            bytes.extend((content.len() as u64).to_le_bytes());
            bytes.extend(content);
            bytes
        };
        refused(&[], "a section of 40 bytes has 0")?;
        refused(&section(b"time", 0, &[0; 16]), "the counter's frequency is 0x0")?;
        refused(&section(b"time", 0, [5_u64.to_le_bytes(); 2].as_flattened()), "5 ticks in a second")?;
        refused(&section(b"power", 0, &[9; 24]), "0x909090909090909")?;
        refused(&section(b"power", 2, &[0; 24]), "nothing of which it could be the state")?;
        refused(&section(b"registers", 0, &[0, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0]), "the state lacks x1")?;
        refused(&section(b"registers", 0, &[7; 12]), "unknown register 0x7070707")?;
        refused(&section(b"gic", 0, &[0; 12]), "the state of an interrupt controller has 12 bytes")?;
        refused(&section(b"uart", 0, &[0; 3]), "3")?;
        refused(&section(b"card", 0, &[2; 8]), "the address of a card is 0x202")?;
        let other = &[2, 0x74, 0x66, 0, 7, 0, 0, 0];
        refused(&section(b"card", 0, other), "address was 02:74:66:00:07:00, and is 02:74:66:00:00:00 here")?;
        refused(&section(b"card", 1, &[0; 8]), "nothing of which it could be the state")?;
        refused(&section(b"virtio", 0, &[0; 8]), "a state of 8 bytes")?;
        refused(&section(b"floppy", 0, &[]), "nothing of which it could be the state")?;
        let request = session.send_with(0, Command::Write(0x4_0000), &[1; 100])?;
        let refusal = session.answer(request)?.refusal.context("a page of 100 bytes was taken")?;
        ensure!(refusal.text.contains("not 100"), "{refusal}");
        // What was refused has changed nothing.
        restored(&driver, &saved)
    })?;
    passed(&outcome, "nothing changed")
}

/// Moves the guest up to `moves` times, while it runs, from machine to machine: the first time after the line that it
/// `begins` with, and each time after a random number of milliseconds below `most`. `on` may wait, and ends all by an error.
/// Returns how the last one ended.
fn moved(
    machines: &Machines,
    guest: &GuestSettings,
    (begins, most): (&str, u64),
    moves: u64,
    clock: Clock,
    mut on: impl FnMut(Event<'_>) -> anyhow::Result<()> + Send,
) -> anyhow::Result<Outcome> {
    let mut random = seed();
    output::remark(&format!("seed {random}"));
    let mut next = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % most
    };
    let mut saved: Option<SavedGuest> = None;
    for number in 0.. {
        let (settings, delay) = (if saved.is_some() { incoming(guest) } else { guest.clone() }, next(most));
        let (before, has_more) = (saved.take(), number < moves);
        let (outcome, after) = machines.driven(vec![settings], clock, |driver| {
            match &before {
                Some(before) => restored(&driver, before)?,
                None => begun(&driver, begins)?,
            }
            on(Event::Runs { has_more })?;
            if !has_more {
                return Ok(None);
            }
            // It runs: this waits no more.
            let saved = saved_at(&driver, guest, "", delay)?;
            saved.as_ref().map_or(Ok(()), |saved| on(Event::Saved(saved)))?;
            Ok(saved)
        })?;
        match after {
            Some(after) => saved = Some(after),
            None => {
                output::remark(&format!("{number} moves"));
                ensure!(number > 0, "the guest ended before it could be moved");
                return Ok(outcome);
            }
        }
    }
    unreachable!("the loop has no end")
}

/// What happens to a guest that moves.
enum Event<'a> {
    /// It runs, and is to move again, or not.
    Runs { has_more: bool },
    /// It is saved, and its machine is about to end.
    Saved(&'a SavedGuest),
}

/// Nothing has to happen between two moves.
fn stays(_: Event<'_>) -> anyhow::Result<()> {
    Ok(())
}

/// These settings, for a guest that comes from elsewhere.
fn incoming(guest: &GuestSettings) -> GuestSettings {
    GuestSettings { flags: guest.flags | flags::INCOMING, ..guest.clone() }
}

/// Waits until the guest has written a line with this in it; with nothing, until it runs.
fn begun(driver: &Driver, begins: &str) -> anyhow::Result<()> {
    if begins.is_empty() {
        driver.session.wait_for(0, 0, GuestState::Running)?;
        return Ok(());
    }
    while !driver.lines.recv().context("the machine has ended")?.contains(begins) {}
    Ok(())
}

/// Stops the guest after this number of milliseconds, saves it twice, and ends the machine. `None`: it has ended before.
fn saved_at(driver: &Driver, guest: &GuestSettings, begins: &str, delay: u64) -> anyhow::Result<Option<SavedGuest>> {
    begun(driver, begins)?;
    thread::sleep(Duration::from_millis(delay));
    match driver.session.ask(Some(0), Command::Stop) {
        Ok(answer) if answer.refusal.is_none() => {}
        _ => return Ok(None),
    }
    let saved = SavedGuest::save(&driver.session, 0, guest.memory, false)?;
    let again = SavedGuest::save(&driver.session, 0, guest.memory, false)?;
    ensure!(saved == again, "a guest that is stopped is saved as {}", difference(&saved, &again));
    driver.session.ask(None, Command::Quit)?;
    Ok(Some(saved))
}

/// Restores the guest, checks that it is saved as it was, and lets it go on.
fn restored(driver: &Driver, saved: &SavedGuest) -> anyhow::Result<()> {
    saved.restore(&driver.session, 0)?;
    let pages = saved.pages.keys().copied();
    let again = SavedGuest::save_pages(&driver.session, 0, pages)?;
    ensure!(*saved == again, "a guest that was restored is saved as {}", difference(saved, &again));
    let answer = driver.session.ask(Some(0), Command::Continue)?;
    ensure!(answer.refusal.is_none(), "{answer:?}");
    Ok(())
}

/// The pages in which two guests differ.
fn differing(one: &SavedGuest, two: &SavedGuest) -> Vec<String> {
    let all: BTreeSet<_> = one.pages.keys().chain(two.pages.keys()).collect();
    let differ = |page: &&&u32| one.pages.get(page) != two.pages.get(page);
    all.iter().filter(differ).map(|page| format!("{page:#x}")).collect()
}

/// How two guests differ.
fn difference(one: &SavedGuest, two: &SavedGuest) -> String {
    let byte = one.sections.iter().zip(&two.sections).position(|(one, two)| one != two);
    let pages = differing(one, two);
    let lengths = (one.sections.len(), two.sections.len(), one.pages.len(), two.pages.len());
    format!("{lengths:?}: other sections from byte {byte:?} on, and other pages {}", pages.join(" "))
}

fn passed(outcome: &Outcome, line: &str) -> anyhow::Result<()> {
    let console = outcome.console.tail(usize::MAX);
    ensure!(console.iter().any(|found| found.contains(line)), "no line has {line:?}:\n{}", console.join("\n"));
    ensure!(outcome.control.end.as_deref() == Some("power-off"), "{:?}", outcome.control.end);
    Ok(())
}
