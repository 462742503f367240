// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sides that are killed at a step of the commit (`docs/migration.md`), and sides in doubt.
//!
//! A side is a `twofold` with its QEMU, and is killed by SIGKILL. The link, the record's lock or a QEMU that stands still holds
//! both sides at the step meanwhile, so no test hangs on a time.
//!
//! Invariants: two sides never run. The side that has the guest in the end runs it to the end of its check, which finds its
//! memory and registers as they were. Where the killed side owned the guest, the guest is lost, as with any host that fails.

use std::fs::{self, File};
use std::thread;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use twofold_workspace::output;

use super::middle::{At, Middle};
use super::sides::{Side, Sides};
use crate::test::vm::machines::Machines;

/// A step of the commit at which both sides are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// C1: the guest was stopped, and some of it is on the way.
    Stopped,
    /// C2: the source has offered the guest. The end of the stream is lost.
    Offered,
    /// C2: the same, and the end of the stream reaches the target after a side was killed.
    OfferedLate,
    /// C3: the target has all of the guest, and the record does not answer.
    Asked,
    /// C3: the record names the target, whose machine has not let the guest go on.
    Swapped,
    /// C4: the guest runs at the target, and the source does not know it.
    Runs,
    /// C5: the source knows it, and its machine has not ended the guest.
    Learnt,
}

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Source,
    Target,
}

/// A step, the side that is killed, and the side that runs the guest then.
type Case = (Step, Victim, Option<Victim>);

const CASES: [Case; 14] = [
    (Step::Stopped, Victim::Source, None),
    (Step::Stopped, Victim::Target, Some(Victim::Source)),
    (Step::Offered, Victim::Source, None),
    (Step::Offered, Victim::Target, Some(Victim::Source)),
    (Step::OfferedLate, Victim::Source, Some(Victim::Target)),
    (Step::OfferedLate, Victim::Target, Some(Victim::Source)),
    (Step::Asked, Victim::Source, Some(Victim::Target)),
    (Step::Asked, Victim::Target, Some(Victim::Source)),
    (Step::Swapped, Victim::Source, Some(Victim::Target)),
    (Step::Swapped, Victim::Target, None),
    (Step::Runs, Victim::Source, Some(Victim::Target)),
    (Step::Runs, Victim::Target, None),
    (Step::Learnt, Victim::Source, Some(Victim::Target)),
    (Step::Learnt, Victim::Target, None),
];

/// The source is killed when the target has all of the guest, and the target when it was offered the guest.
pub fn some(machines: &Machines) -> anyhow::Result<()> {
    [CASES[3], CASES[6]].into_iter().try_for_each(|case| killed(machines, case, &mut WATCH.clone()))
}

/// Each side is killed at each step.
pub fn all(machines: &Machines) -> anyhow::Result<()> {
    let mut time = WATCH;
    CASES.into_iter().try_for_each(|case| killed(machines, case, &mut time))
}

fn killed(machines: &Machines, case: Case, time: &mut u64) -> anyhow::Result<()> {
    output::remark(&format!("{case:?}"));
    in_time(time, |time| held(machines, case, time)).with_context(|| format!("{case:?}"))
}

/// Does this with a guest that ends by itself after these milliseconds. If it ends before it was sent, because the host is busy, this is
/// done again with twice the time.
pub fn in_time(time: &mut u64, mut done: impl FnMut(u64) -> anyhow::Result<Held>) -> anyhow::Result<()> {
    while done(*time)? == Held::Ended {
        *time *= 2;
        ensure!(*time < 3_600_000, "the guest is not sent in an hour");
    }
    Ok(())
}

/// Whether a guest was there until it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Done,
    Ended,
}

fn held(machines: &Machines, (step, victim, survivor): Case, time: u64) -> anyhow::Result<Held> {
    let sides = Sides::new(machines)?;
    let (mut target, to) = sides.target(&[])?;
    let holds: &[At] = match step {
        Step::Stopped => &[At::Stopped],
        Step::Runs | Step::Learnt => &[At::End, At::Taken],
        _ => &[At::End],
    };
    let middle = Middle::between(&to, &sides.key(), holds)?;
    let mut source = sides.source(&watch(time))?;
    source.line_with("watch: begins")?;
    let mut order = sides.migrate("one", &middle.address.to_string(), &["--force"])?;
    if let Err(why) = middle.wait(holds[0]) {
        if source.ended()? && source.said.contains(WHOLE) {
            return Ok(Held::Ended);
        }
        return Err(why.context(said([&mut source, &mut order, &mut target])));
    }
    ensure!(sides.states()?[0] == "one=stopped", "{:?}", sides.states()?);
    match step {
        Step::Stopped | Step::Offered | Step::OfferedLate => {
            let lost = if victim == Victim::Source { &mut source } else { &mut target };
            lost.kill()?;
            if step == Step::OfferedLate { middle.go_on() } else { middle.cut() }
        }
        Step::Asked => {
            let record = File::open(sides.owner())?;
            record.lock()?;
            middle.go_on();
            // It waits for the lock.
            let mut said = target.line_with(DOUBT)?;
            if victim == Victim::Target {
                target.kill()?;
                said = order.line_with(DOUBT)?;
            } else {
                source.kill()?;
            }
            says_how(&said, &sides, "has blocked for")?;
            record.unlock()?;
        }
        Step::Swapped => {
            let record = File::open(sides.owner())?;
            record.lock()?;
            middle.go_on();
            // It needs its machine for nothing more but to let the guest go on.
            target.line_with(DOUBT)?;
            target.signal_machine(Signal::STOP)?;
            record.unlock()?;
            while sides.owned()?.epoch == 0 {
                thread::yield_now();
            }
            if victim == Victim::Source {
                source.kill()?;
                target.signal_machine(Signal::CONT)?;
            } else {
                target.kill()?;
            }
        }
        Step::Runs => {
            middle.go_on();
            middle.wait(At::Taken)?;
            ensure!(sides.states()? == ["one=stopped", "one=running"], "{:?}", sides.states()?);
            let lost = if victim == Victim::Source { &mut source } else { &mut target };
            lost.kill()?;
            middle.cut();
        }
        Step::Learnt => {
            middle.go_on();
            middle.wait(At::Taken)?;
            source.signal_machine(Signal::STOP)?;
            middle.go_on();
            source.line_with("one runs at ")?;
            if victim == Victim::Source {
                source.kill()?;
            } else {
                target.kill()?;
                source.signal_machine(Signal::CONT)?;
            }
        }
    }
    let has_moved = order.ended()?;
    if survivor == Some(Victim::Target) {
        // The order ends with the source that is killed. The target may ask the record after that.
        target.line_with("one runs here now")?;
    }
    let epoch = sides.owned()?.epoch;
    match survivor {
        Some(Victim::Source) => {
            ensure!(!has_moved && order.said.contains("the guest goes on here"), "{}", order.said);
            // The link may have had room for the rest: then the guest was offered, and the source took it back.
            ensure!(epoch == 1 || epoch == 0 && step == Step::Stopped, "epoch {epoch}");
            ensure!(!target.said.contains("runs here now"), "two runners: {}", target.said);
            whole(&mut source)?;
        }
        Some(Victim::Target) => {
            ensure!(epoch == 1, "epoch {epoch}");
            whole(&mut target)?;
        }
        None => {
            ensure!(epoch == u64::from(victim == Victim::Target), "epoch {epoch}");
            // The other side does not run what it does not have.
            let other = if victim == Victim::Source { &mut target } else { &mut source };
            let is_well = other.ended()?;
            ensure!(is_well == (victim == Victim::Target), "{}", other.said);
            ensure!(!other.said.contains("runs here now") && !other.said.contains(WHOLE), "{}", other.said);
        }
    }
    Ok(Held::Done)
}

/// The record is not there when the guest changes hands. Both sides say so, and what settles it. When it is there again, one of
/// them runs the guest.
pub fn doubt(machines: &Machines) -> anyhow::Result<()> {
    in_time(&mut WATCH.clone(), |time| doubted(machines, time))
}

fn doubted(machines: &Machines, time: u64) -> anyhow::Result<Held> {
    let sides = Sides::new(machines)?;
    let (mut target, to) = sides.target(&[])?;
    let middle = Middle::between(&to, &sides.key(), &[At::End])?;
    let mut source = sides.source(&watch(time))?;
    source.line_with("watch: begins")?;
    let mut order = sides.migrate("one", &middle.address.to_string(), &["--force"])?;
    if let Err(why) = middle.wait(At::End) {
        if source.ended()? && source.said.contains(WHOLE) {
            return Ok(Held::Ended);
        }
        return Err(why.context(said([&mut source, &mut order, &mut target])));
    }
    let (owner, away) = (sides.owner(), sides.owner().with_extension("away"));
    fs::rename(&owner, &away)?;
    middle.go_on();
    let mut said = vec![target.line_with(DOUBT)?];
    // The source learns of it when it hears nothing more.
    target.line_with(DOUBT)?;
    middle.end();
    said.push(order.line_with(DOUBT)?);
    for said in said {
        says_how(&said, &sides, "No such file")?;
    }
    ensure!(sides.states()?.iter().all(|state| state != "one=running"), "{:?}", sides.states()?);
    fs::rename(&away, &owner)?;
    let has_moved = order.ended()?;
    ensure!(sides.owned()?.epoch == 1, "{:?}", sides.owned()?);
    let (mut runs, mut other) = if has_moved { (target, source) } else { (source, target) };
    whole(&mut runs)?;
    other.ended()?;
    ensure!(!other.said.contains(WHOLE), "{}", other.said);
    Ok(Held::Done)
}

/// A side in doubt says which file does not answer, why, and what settles it.
fn says_how(said: &str, sides: &Sides<'_>, why: &str) -> anyhow::Result<()> {
    let words = [&sides.owner().display().to_string(), why, "Make that file usable again"];
    ensure!(words.iter().all(|word| said.contains(word)), "{said}");
    Ok(())
}

/// What all sides have said.
fn said(sides: [&mut Side; 3]) -> String {
    sides.map(|side| side.all_said().to_owned()).join("\n--\n")
}

/// The guest ends well here: its check finds all as it was.
fn whole(side: &mut Side) -> anyhow::Result<()> {
    side.line_with(WHOLE)?;
    ensure!(side.ended()?, "{}", side.said);
    Ok(())
}

/// The guest's program.
pub fn watch(time: u64) -> String {
    format!("watch={time} moved")
}

/// Its milliseconds, on a host that is not busy.
pub const WATCH: u64 = 15_000;
/// What it says at its end.
pub const WHOLE: &str = "nothing changed";
/// What a side in doubt says.
const DOUBT: &str = "the guest stands still here";
