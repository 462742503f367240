// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sides that are killed at a step of the commit (`docs/migration.md`).
//!
//! A side is a `twofold` with its QEMU, and is killed by SIGKILL. The link, the record's lock or a QEMU that stands still holds
//! both sides at the step meanwhile, so no test hangs on a time.
//!
//! Invariants: two sides never run. The side that has the guest in the end runs it to the end of its check, which finds its
//! memory and registers as they were. Where the killed side owned the guest, the guest is lost, as with any host that fails.

use std::fs::File;
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

/// The steps and sides of a test, and which side runs the guest then.
pub const CASES: [(Step, Victim, Option<Victim>); 14] = [
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
    killed(machines, CASES[3])?;
    killed(machines, CASES[6])
}

fn killed(machines: &Machines, case: (Step, Victim, Option<Victim>)) -> anyhow::Result<()> {
    output::remark(&format!("{case:?}"));
    held(machines, case).map_err(|why| why.context(format!("{case:?}")))
}

fn held(machines: &Machines, (step, victim, survivor): (Step, Victim, Option<Victim>)) -> anyhow::Result<()> {
    let sides = Sides::new(machines)?;
    let (mut target, to) = sides.target(&[])?;
    let holds: &[At] = match step {
        Step::Stopped => &[At::Stopped],
        Step::Runs | Step::Learnt => &[At::End, At::Taken],
        _ => &[At::End],
    };
    let middle = Middle::between(&to, &sides.key(), holds)?;
    let mut source = sides.source(WATCH, &[])?;
    source.line_with("watch: begins")?;
    let mut order = sides.migrate("one", &middle.address.to_string(), &[])?;
    middle.wait(holds[0]).with_context(|| said([&mut source, &mut order, &mut target]))?;
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
    let (has_moved, epoch) = (order.ended()?, sides.owned()?.epoch);
    match survivor {
        Some(Victim::Source) => {
            ensure!(!has_moved && order.said.contains("the guest goes on here"), "{}", order.said);
            ensure!(epoch == u64::from(step != Step::Stopped), "epoch {epoch}");
            ensure!(!target.said.contains("runs here now"), "two runners: {}", target.said);
            whole(&mut source)
        }
        Some(Victim::Target) => {
            ensure!(epoch == 1, "epoch {epoch}");
            target.line_with("one runs here now")?;
            whole(&mut target)
        }
        None => {
            ensure!(epoch == u64::from(victim == Victim::Target), "epoch {epoch}");
            // The other side does not run what it does not have.
            let other = if victim == Victim::Source { &mut target } else { &mut source };
            let is_well = other.ended()?;
            ensure!(is_well == (victim == Victim::Target), "{}", other.said);
            ensure!(!other.said.contains("runs here now") && !other.said.contains("nothing changed"), "{}", other.said);
            Ok(())
        }
    }
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
    side.line_with("nothing changed")?;
    ensure!(side.ended()?, "{}", side.said);
    Ok(())
}

/// The guest's program. Its time is what it takes to be sent, on a busy host.
const WATCH: &str = "watch=15000 moved";
/// What a side in doubt says.
const DOUBT: &str = "the guest stands still here";
