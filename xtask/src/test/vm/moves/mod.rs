// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that move while they run, from machine to machine.
//!
//! | file | contents |
//! |---|---|
//! | [`course`] | a guest's way over several machines, and the comparison of both sides at each switch-over |
//! | [`cut`] | links that are cut |
//! | [`disks`] | guests that write to a disk |
//! | [`downtime`] | the instructions at EL2 while a guest changes hands |
//! | [`forged`] | streams that are changed on the link, or come again |
//! | [`killed`] | sides that are killed at a step of the commit |
//! | [`middle`] | what stands between two sides with their key |
//! | [`options`] | the command's options for pages that follow |
//! | [`refused`] | targets and streams that do not fit |
//! | [`sides`] | the command's two sides |

pub(super) mod course;
pub(super) mod cut;
mod disks;
mod downtime;
mod forged;
mod killed;
mod middle;
mod options;
mod refused;
mod sides;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_launch::GuestSettings;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_workspace::build;

use super::Test;
use super::command::{Running, Twofold};
use super::machines::Machines;
use crate::test::harness::Depth;
use course::{key_file, moved};

pub(super) const TESTS: &[Test] = &[
    ("the_command_moves_a_guest_that_runs", Depth::Quick, command),
    ("moves::a_watcher_moves_twice", Depth::Quick, |machines| watcher(machines, 2)),
    ("moves::a_watcher_moves_once_with_each_tracker", Depth::Full, |machines| watcher(machines, 5)),
    ("moves::a_watcher_moves_20_times", Depth::Full, |machines| watcher(machines, 20)),
    ("moves::tasks_on_absent_pages_move", Depth::Full, |machines| swapped(machines, 2)),
    ("moves::a_guest_moves_while_it_writes_to_a_disk", Depth::Quick, |machines| disks::written(machines, 2)),
    ("moves::a_guest_moves_20_times_while_it_writes_to_a_disk", Depth::Full, |machines| disks::written(machines, 20)),
    ("moves::a_disk_that_has_moved_is_held_there", Depth::Full, disks::held),
    ("moves::a_link_is_cut_3_times", Depth::Quick, |machines| cut::links(machines, 3)),
    ("moves::a_link_is_cut_50_times", Depth::Full, |machines| cut::links(machines, 50)),
    ("moves::a_side_is_killed_at_two_steps_of_the_commit", Depth::Full, killed::some),
    ("moves::each_side_is_killed_at_each_step_of_the_commit", Depth::Full, killed::all),
    ("moves::doubt_ends_when_the_record_is_there_again", Depth::Full, killed::doubt),
    ("moves::a_forged_end_and_a_replay_move_nothing", Depth::Quick, forged::some),
    ("moves::forged_and_replayed_streams_move_nothing", Depth::Full, forged::all),
    ("moves::what_does_not_fit_is_refused_at_once", Depth::Quick, refused::at_once),
    ("moves::another_cpu_is_refused", Depth::Full, refused::cpu),
    ("moves::a_target_takes_no_guest_whose_pages_follow", Depth::Full, options::refused),
    ("moves::pages_follow_if_the_rounds_do_not_end", Depth::Full, options::if_needed),
    ("moves::the_instructions_in_the_downtime_are_counted", Depth::Full, downtime::linux),
    ("moves::linux_moves_once_with_each_tracker", Depth::Full, |machines| linux(machines, 5)),
];

/// A guest with secrets in all registers, vector registers and memory moves with each tracker in turn.
fn watcher(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    // Its own time, in which it is sent while it runs; as much as a busy host needs.
    let guest = machines.bare("guest", 2, &format!("watch={} moved", 15_000 * moves));
    let outcome = moved(machines, &guest, "watch: begins", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("nothing changed"), "{console}");
    Ok(())
}

/// Debian's Linux moves with each tracker in turn, under load.
fn linux(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let guest = machines.linux("guest", 2, 30 * moves as u32)?;
    let outcome = moved(machines, &guest, "", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("guest check: ok"), "{console}");
    Ok(())
}

/// A guest moves whose tasks write to three times its resident memory, and sleep on absent pages. Its pages are in a store
/// on both sides.
fn swapped(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let store = Store::Memory(Duration::from_micros(200));
    let swap = Swap { resident: 8 << 20, store, mode: Mode::Pv };
    let program = format!("bm={} faulters=3 workers=1 size=24M", 15_000 * moves);
    let guest = GuestSettings { swap: Some(swap), ..machines.bare("guest", 2, &program) };
    let outcome = moved(machines, &guest, "", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("guest check: ok"), "{console}");
    Ok(())
}

/// The command moves a guest, after another key and a target that is not there have moved nothing.
fn command(machines: &Machines) -> anyhow::Result<()> {
    let runs = tempfile::tempdir()?;
    let twofold = Twofold::new(machines, &runs)?;
    let [image, guest] = [build::HYPERVISOR, build::GUEST].map(|program| program.image(machines.workspace()));
    let [key, other] =
        [key_file(runs.path(), "key", 1)?, key_file(runs.path(), "other", 2)?].map(|key| key.display().to_string());
    let owner = runs.path().join("owner").display().to_string();
    let mut run = twofold.command(["run", "--name", "one", "--append", "pace=1000", "--memory", "64M", "--cpus", "2"]);
    run.arg("--image").arg(&image).arg("--kernel").arg(guest).args(["--timeout", "900"]);
    let mut run = Running(run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?);
    let mut lines = BufReader::new(run.0.stdout.take().context("no standard output")?).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("pace: "))).context("no line of the guest")??;
    let incoming = |words: &[&str]| -> anyhow::Result<_> {
        let mut target = twofold.command(["run", "--incoming", "127.0.0.1:0", "--timeout", "900"]);
        target.args(["--key", &key, "--owner", &owner]).args(words).arg("--image").arg(&image);
        let mut target = Running(target.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        let mut lines = BufReader::new(target.0.stdout.take().context("no standard output")?).lines();
        let first = lines.next().context("the target has ended")??;
        let to = first.strip_prefix("waits for a guest at ").context("another first line")?.to_owned();
        Ok((target, lines, to))
    };
    let migrate = |to: &str, key: &str| -> anyhow::Result<_> {
        let moved = twofold.command(["migrate", "one", to, "--key", key, "--owner", &owner]).output()?;
        let said = String::from_utf8_lossy(&moved.stdout).into_owned() + &String::from_utf8_lossy(&moved.stderr);
        Ok((moved.status.success(), said))
    };
    let stays = |(moved, said): (bool, String), why: &str| -> anyhow::Result<()> {
        ensure!(!moved && said.contains(why), "moved: {moved}, {said}");
        ensure!(twofold.states()? == "one=running", "{}", twofold.states()?);
        Ok(())
    };
    stays(migrate("127.0.0.1:1", &key)?, "cannot connect to 127.0.0.1:1")?;
    let (small, _, to) = incoming(&["--memory", "64M"])?;
    stays(migrate(&to, &other)?, "is the key the same on both sides?")?;
    drop(small);
    let (mut target, mut theirs, to) = incoming(&[])?;
    let (is_moved, said) = migrate(&to, &key)?;
    ensure!(is_moved && said.contains("round 1: ") && said.contains(&format!("one runs at {to}")), "{said}");
    lines.try_for_each(|line| line.map(drop))?;
    ensure!(run.0.wait()?.success(), "the source did not end well");
    theirs
        .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("pace: ")))
        .context("no line at the target")??;
    ensure!(twofold.states()? == "one=running", "{}", twofold.states()?);
    ensure!(twofold.said(["attach", "one", "--command", "quit"])?.1 == "quit: done\n");
    theirs.try_for_each(|line| line.map(drop))?;
    ensure!(target.0.wait()?.success(), "the target did not end well");
    Ok(())
}
