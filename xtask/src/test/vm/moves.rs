// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that move while they run, from machine to machine.
//!
//! At each switch-over, before the target's first entry, all pages and sections of both sides are compared: the source still
//! stands still then.

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::{Command, GuestState};
use twofold_launch::migrate::link;
use twofold_launch::migrate::record::Record;
use twofold_launch::migrate::source::{self, Options};
use twofold_launch::migrate::target::{Coming, Incoming};
use twofold_launch::saved::SavedGuest;
use twofold_launch::session::Session;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{Bundle, GuestSettings, Outcome};
use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::commit::Owner;
use twofold_migration::precopy::Sent;
use twofold_workspace::{build, output};

use super::command::{Running, Twofold};
use super::machines::{Clock, Machines};
use crate::test::guests::seed;

/// A guest with secrets in all registers, vector registers and memory moves with each tracker in turn.
pub fn watcher(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    // Its own time, in which it is sent while it runs; as much as a busy host needs.
    let guest = machines.bare("guest", 2, &format!("watch={} moved", 15_000 * moves));
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

/// A guest moves whose tasks write to three times its resident memory, and sleep on absent pages. Its pages are in a store
/// on both sides.
pub fn swapped(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let store = Store::Memory(Duration::from_micros(200));
    let swap = Swap { resident: 8 << 20, store, mode: Mode::Pv };
    let program = format!("bm={} faulters=3 workers=1 size=24M", 15_000 * moves);
    let guest = GuestSettings { swap: Some(swap), ..machines.bare("guest", 2, &program) };
    let outcome = moved(machines, &guest, "", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("guest check: ok"), "{console}");
    Ok(())
}

/// The link of each move is cut after a random number of bytes, in a random direction, often near the offer: exactly one side
/// runs the guest then, and all of it.
pub fn cut(machines: &Machines, cuts: u64) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 2, &format!("watch={} moved", 10_000 * (cuts + 1)));
    let cutter = Cutter { random: seed(), left: cuts, bytes: 1 << 20, kept: 0, moved: 0 };
    output::remark(&format!("seed {}", cutter.random));
    let cutter = Mutex::new(cutter);
    let outcome = course(machines, &guest, "watch: begins", 1, Some(&cutter))?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("nothing changed"), "{console}");
    let Cutter { left, kept, moved, .. } = lock(&cutter).clone();
    ensure!(left == 0, "{left} cuts were not made: the guest ended before");
    ensure!(kept > 0, "the guest moved each time, so no link was cut in time");
    output::remark(&format!("{kept} times the guest stayed, and {moved} times it moved although the link was cut"));
    Ok(())
}

/// Where links are cut.
#[derive(Clone)]
struct Cutter {
    random: u64,
    /// Links that are still to be cut.
    left: u64,
    /// The bytes of a whole stream, as far as one is known.
    bytes: u64,
    /// How often the guest stayed, and how often it moved.
    kept: u64,
    moved: u64,
}

/// Where a link is cut.
struct Cut {
    /// Whether it is cut by the bytes from the target to the source.
    by_answers: bool,
    after: u64,
}

impl Cutter {
    fn next(&mut self) -> Option<Cut> {
        self.left = self.left.checked_sub(1)?;
        let mut below = |most: u64| {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % most
        };
        Some(match below(4) {
            // Handshake, acceptance, and that the guest was taken.
            0 => Cut { by_answers: true, after: below(320) },
            // The state, and the offer.
            1 | 2 => Cut { by_answers: false, after: self.bytes.saturating_sub(below(2048)) },
            _ => Cut { by_answers: false, after: below(self.bytes) },
        })
    }
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
    cutter: Option<&'a Mutex<Cutter>>,
}

/// What became of a guest on a machine.
enum Stay {
    /// It did not come, and why.
    NotCome(String),
    /// It ended there, or on a machine after it.
    Ended(Box<Outcome>),
}

/// Moves the guest this number of times; returns how it ended.
fn moved(machines: &Machines, guest: &GuestSettings, begins: &str, moves: usize) -> anyhow::Result<Outcome> {
    course(machines, guest, begins, moves, None)
}

fn course(
    machines: &Machines,
    guest: &GuestSettings,
    begins: &str,
    moves: usize,
    cutter: Option<&Mutex<Cutter>>,
) -> anyhow::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", 1)?;
    let bundle = Bundle::write(std::slice::from_ref(guest), &directory.path().join("guest.bundle"))?;
    let record = Record::new(&directory.path().join("owner"));
    let course = Course { machines, guest, begins, bundle, record, key: &key, moves, cutter };
    match course.stay(0, None)? {
        Stay::Ended(outcome) => Ok(*outcome),
        Stay::NotCome(why) => bail!("{why}"),
    }
}

impl Course<'_> {
    /// The guest's stay on a machine after `number` moves, and all stays that follow.
    fn stay(&self, number: usize, coming: Option<Coming>) -> anyhow::Result<Stay> {
        let mut settings = self.guest.clone();
        if coming.is_some() {
            settings.flags |= flags::INCOMING;
        }
        let (outcome, next) = self.machines.driven(vec![settings], Clock::Real, |driver| {
            match coming {
                Some(coming) => {
                    if let Err(why) = coming.go_on(&driver.session) {
                        // The target may have ended the guest, and so the machine, already.
                        let _ = driver.session.ask(None, Command::Quit);
                        return Ok(Some(Stay::NotCome(why.to_string())));
                    }
                }
                None if self.begins.is_empty() => _ = driver.session.wait_for(0, 0, GuestState::Running)?,
                None => while !driver.lines.recv().context("the machine has ended")?.contains(self.begins) {},
            }
            let has_cuts = self.cutter.is_some_and(|cutter| lock(cutter).left > 0);
            if number >= self.moves && !has_cuts {
                return Ok(None);
            }
            loop {
                if let Some(next) = self.go(number, &driver.session)? {
                    return Ok(Some(next));
                }
            }
        })?;
        Ok(next.unwrap_or(Stay::Ended(Box::new(outcome))))
    }

    /// Moves the guest from this machine to the next one. `None`: it stays here.
    fn go(&self, number: usize, here: &Arc<Session>) -> anyhow::Result<Option<Stay>> {
        let tracker = Tracker::ALL[Tracker::ALL.len() - 1 - number % Tracker::ALL.len()];
        let mut incoming = Incoming::bind("127.0.0.1:0", link::key(self.key)?, self.record.clone())?;
        incoming.me = owner(number + 1);
        let to = incoming.address()?;
        let cut = self.cutter.and_then(|cutter| lock(cutter).next());
        let is_cut = cut.is_some();
        let options = Options {
            me: owner(number),
            to: cut.map_or(Ok(to), |cut| cut.between(to))?.to_string(),
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
            let sender = scope.spawn(|| {
                let sent = source::send(here, 0, &self.bundle, &options, &Cancel::new(), &mut |_| ());
                if sent.is_err() {
                    // It may have failed before it connected: then the target still waits.
                    let _ = TcpStream::connect(to);
                }
                sent
            });
            let next = match incoming.wait() {
                Ok(coming) => scope.spawn(move || self.stay(number + 1, Some(coming))),
                Err(why) => scope.spawn(move || Ok(Stay::NotCome(why.to_string()))),
            };
            let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let next = next.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            match (sent, next) {
                (Ok(sent), Stay::Ended(outcome)) => {
                    let Sent { rounds, pages, last_pages, bytes, .. } = sent.sent;
                    output::remark(&format!(
                        "{}: {rounds} rounds, {pages} pages, {last_pages} of them in the blackout",
                        tracker.name()
                    ));
                    if let Some(cutter) = self.cutter {
                        let mut cutter = lock(cutter);
                        (cutter.bytes, cutter.moved) = (bytes, cutter.moved + u64::from(is_cut));
                    }
                    Ok(Some(Stay::Ended(outcome)))
                }
                (Err(_), Stay::NotCome(_)) if is_cut => {
                    ensure!(here.state(0) == Some(GuestState::Running), "neither side runs the guest");
                    if let Some(cutter) = self.cutter {
                        lock(cutter).kept += 1;
                    }
                    Ok(None)
                }
                (Err(source), Stay::NotCome(target)) => bail!("{source}; the target: {target}"),
                (Ok(_), Stay::NotCome(target)) => bail!("neither side runs the guest: {target}"),
                (Err(source), Stay::Ended(_)) => bail!("both sides ran the guest; the source: {source}"),
            }
        })
    }
}

impl Cut {
    /// Stands between a source and the target at this address; returns where the source connects.
    fn between(self, target: SocketAddr) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        thread::spawn(move || -> std::io::Result<()> {
            let (source, _) = listener.accept()?;
            let target = TcpStream::connect(target)?;
            let (up, down) = ((source.try_clone()?, target.try_clone()?), (target, source));
            let whole = u64::MAX;
            let limits = if self.by_answers { (whole, self.after) } else { (self.after, whole) };
            let answers = thread::spawn(move || carry(down, limits.1));
            carry(up, limits.0);
            let _ = answers.join();
            Ok(())
        });
        Ok(address)
    }
}

/// Carries at most `most` bytes in one direction, and then ends the connection in both.
fn carry((from, to): (TcpStream, TcpStream), most: u64) {
    let _ = std::io::copy(&mut (&from).take(most), &mut &to);
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the machine after `number` moves. In one process, each needs one of its own.
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
