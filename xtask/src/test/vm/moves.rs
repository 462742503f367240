// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that move while they run, from machine to machine.
//!
//! At each switch-over, before the target's first entry, all pages and sections of both sides are compared: the source still
//! stands still then.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::GuestState;
use twofold_launch::migrate::link;
use twofold_launch::migrate::record::Record;
use twofold_launch::migrate::source::{self, Options};
use twofold_launch::migrate::target::{Coming, Incoming};
use twofold_launch::saved::SavedGuest;
use twofold_launch::session::Session;
use twofold_launch::{Bundle, GuestSettings, Outcome};
use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::commit::Owner;
use twofold_workspace::{build, output};

use super::command::{Running, Twofold};
use super::machines::{Clock, Machines};

/// A guest with secrets in all registers, vector registers and memory moves with each tracker in turn.
pub fn watcher(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 2, "watch=20000 moved");
    let outcome = moved(machines, &guest, "watch: begins", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("nothing changed"), "{console}");
    Ok(())
}

/// Debian's Linux moves with each tracker in turn, under load.
pub fn linux(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let guest = machines.linux("guest", 2, 30 * moves as u32)?;
    let outcome = moved(machines, &guest, "", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("guest check: ok"), "{console}");
    Ok(())
}

/// What all machines of a guest that moves have in common.
struct Course<'a> {
    machines: &'a Machines,
    guest: &'a GuestSettings,
    /// The line after which it moves; empty: when it runs.
    begins: &'a str,
    bundle: Bundle,
    record: Record,
    key: &'a Path,
    moves: usize,
}

/// Moves the guest so many times; returns how it ended.
fn moved(machines: &Machines, guest: &GuestSettings, begins: &str, moves: usize) -> anyhow::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", 1)?;
    let bundle = Bundle::write(std::slice::from_ref(guest), &directory.path().join("guest.bundle"))?;
    let record = Record::new(&directory.path().join("owner"));
    let course = Course { machines, guest, begins, bundle, record, key: &key, moves };
    course.stay(0, None)
}

impl Course<'_> {
    /// The guest's stay on a machine, after so many moves, and all that follow; returns how it ended.
    fn stay(&self, number: usize, coming: Option<Coming>) -> anyhow::Result<Outcome> {
        let mut settings = self.guest.clone();
        if coming.is_some() {
            settings.flags |= flags::INCOMING;
        }
        let (outcome, next) = self.machines.driven(vec![settings], Clock::Real, |driver| {
            match coming {
                Some(coming) => coming.go_on(&driver.session)?,
                None if self.begins.is_empty() => _ = driver.session.wait_for(0, 0, GuestState::Running)?,
                None => while !driver.lines.recv().context("the machine has ended")?.contains(self.begins) {},
            }
            if number == self.moves {
                return Ok(None);
            }
            self.go(number, &driver.session).map(Some)
        })?;
        Ok(next.unwrap_or(outcome))
    }

    /// Moves the guest from this machine to the next one.
    fn go(&self, number: usize, here: &Arc<Session>) -> anyhow::Result<Outcome> {
        let tracker = Tracker::ALL[number % Tracker::ALL.len()];
        let mut incoming = Incoming::bind("127.0.0.1:0", link::key(self.key)?, self.record.clone())?;
        incoming.me = owner(number + 1);
        let options = Options {
            me: owner(number),
            to: incoming.address()?.to_string(),
            key: link::key(self.key)?,
            record: self.record.clone(),
            tracker,
            downtime: Duration::from_secs(1),
            rounds: 10,
            forced: true,
        };
        let (source, memory) = (Arc::clone(here), self.guest.memory);
        incoming.before_entry = Some(Box::new(move |target| compare(&source, target, memory)));
        thread::scope(|scope| {
            let sender = scope.spawn(|| source::send(here, 0, &self.bundle, &options, &Cancel::new(), &mut |_| ()));
            let coming = match incoming.wait() {
                Ok(coming) => coming,
                Err(why) => match sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                    Err(source) => bail!("{source}; the target: {why}"),
                    Ok(_) => bail!("{why}"),
                },
            };
            let next = scope.spawn(move || self.stay(number + 1, Some(coming)));
            let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let next = next.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let sent = sent.map_err(|why| match &next {
                Ok(_) => why.into(),
                Err(next) => anyhow::anyhow!("{why}; the target: {next:#}"),
            })?;
            output::remark(&format!(
                "{}: {} rounds, {} pages, {} of them in the blackout",
                tracker.name(),
                sent.sent.rounds,
                sent.sent.pages,
                sent.sent.last_pages
            ));
            next
        })
    }
}

/// The name of the machine after so many moves. In one process, each needs one of its own.
fn owner(number: usize) -> Owner {
    Owner { host: number as u64, incarnation: 1 }
}

/// Compares all of a guest that stands still on both sides.
fn compare(source: &Session, target: &Session, memory: u64) -> Result<(), String> {
    let saved = |session: &Session| SavedGuest::save(session, 0, memory, false).map_err(|why| why.to_string());
    let (source, target) = (saved(source)?, saved(target)?);
    let pages = source.pages.keys().chain(target.pages.keys());
    let differ: Vec<_> = pages.filter(|page| source.pages.get(page) != target.pages.get(page)).collect();
    match (differ.first(), source.sections == target.sections) {
        (Some(first), _) => Err(format!("{} pages differ, the first at {first:#x}000", differ.len())),
        (None, false) => Err("a section differs".to_owned()),
        (None, true) => Ok(()),
    }
}

/// A key of this byte.
fn key_file(directory: &Path, name: &str, byte: u8) -> anyhow::Result<std::path::PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, format!("{byte:02x}").repeat(32))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

/// The command moves a guest, after another key, too little memory, and a target that is not there have moved nothing.
pub fn command(machines: &Machines) -> anyhow::Result<()> {
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
