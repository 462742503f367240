// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's way over several machines, each in a QEMU of its own.
//!
//! At each switch-over, before the target's first entry, all pages and sections of both sides are compared: the source still
//! stands still then.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::{Command, GuestState};
use twofold_abi::virt::{RAM_BASE, memslot};
use twofold_launch::frames::{self, Frame};
use twofold_launch::migrate::fetch::Fetched;
use twofold_launch::migrate::link;
use twofold_launch::migrate::record::Record;
use twofold_launch::migrate::source::{self, News, Options, Postcopy};
use twofold_launch::migrate::target::{Coming, Incoming};
use twofold_launch::saved::SavedGuest;
use twofold_launch::session::Session;
use twofold_launch::{Bundle, GuestSettings, Outcome};
use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::commit::{Owner, Request};
use twofold_migration::precopy::Sent;
use twofold_migration::stream::Slot;
use twofold_workspace::output;

use crate::test::vm::machines::{Clock, Machines};

/// What stands between the sides of each move.
pub trait Links: Sync {
    /// Whether the guest has to move again, however often it has moved.
    fn has_more(&self) -> bool;

    /// Stands between a source and the target at this address; returns where the source connects. `None`: the link is whole.
    fn next(&self, to: SocketAddr) -> anyhow::Result<Option<SocketAddr>>;

    /// How the machines are booted.
    fn clock(&self) -> Clock {
        Clock::Real
    }

    /// Whether the present link is known to have reached the target, which then learns of its end.
    fn has_reached(&self) -> bool {
        false
    }

    /// The target has a machine, and the guest is on the way to it.
    fn comes(&self, _target: &Arc<Session>) {}

    /// The source is about to stop the guest.
    fn stops(&self, _source: &Session) {}

    /// Called when all of the guest is at the target, and has to be compared, with the source and the target.
    fn arrived(&self) -> Option<Arrived> {
        None
    }

    /// The source has offered the guest.
    fn offered(&self) {}

    /// The guest does not move again. It runs here.
    fn done(&self, _here: &Session) -> anyhow::Result<()> {
        Ok(())
    }

    /// The guest stayed. What the sides said of it.
    fn stayed(&self, _source: &str, _target: &str) -> anyhow::Result<()> {
        Ok(())
    }

    /// Such a link has ended. `None`: the guest stayed.
    fn ended(&self, sent: Option<&Sent>);
}

/// Sees a guest that stands still at both sides, the source and the target, before its first entry there.
pub type Arrived = Box<dyn FnOnce(&Session, &Session) -> Result<(), String> + Send>;

/// What all machines of a guest that moves have in common.
pub struct Course<'a> {
    machines: &'a Machines,
    guest: &'a GuestSettings,
    /// The line after which it moves; empty: when it runs.
    begins: &'a str,
    bundle: Bundle,
    record: Record,
    key: &'a Path,
    moves: usize,
    links: Option<&'a dyn Links>,
    /// With post-copy: sees what each move has fetched after the switch-over.
    fetched: Option<&'a Fetch<'a>>,
}

/// Sees what a move has fetched.
type Fetch<'a> = dyn Fn(&Fetched) -> anyhow::Result<()> + Sync + 'a;

/// What became of a guest on a machine.
pub enum Stay {
    /// It did not come, and why.
    NotCome(String),
    /// It ended there, or on a machine after it.
    Ended(Box<Outcome>),
}

/// Moves the guest this number of times; returns how it ended.
pub fn moved(machines: &Machines, guest: &GuestSettings, begins: &str, moves: usize) -> anyhow::Result<Outcome> {
    course(machines, guest, begins, moves, None)
}

/// The same by post-copy: at each switch-over, before the target's first entry, all sections are equal, and all of RAM is absent.
/// The guest moves again when all pages have come.
pub fn followed(
    machines: &Machines,
    guest: &GuestSettings,
    begins: &str,
    moves: usize,
    links: Option<&dyn Links>,
    fetched: &Fetch<'_>,
) -> anyhow::Result<Outcome> {
    run(machines, guest, begins, moves, (links, Some(fetched)))
}

pub fn course(
    machines: &Machines,
    guest: &GuestSettings,
    begins: &str,
    moves: usize,
    links: Option<&dyn Links>,
) -> anyhow::Result<Outcome> {
    run(machines, guest, begins, moves, (links, None))
}

fn run(
    machines: &Machines,
    guest: &GuestSettings,
    begins: &str,
    moves: usize,
    (links, fetched): (Option<&dyn Links>, Option<&Fetch<'_>>),
) -> anyhow::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let key = key_file(directory.path(), "key", 1)?;
    let bundle = Bundle::write(std::slice::from_ref(guest), &directory.path().join("guest.bundle"))?;
    let record = Record::new(&directory.path().join("owner"));
    let course = Course { machines, guest, begins, bundle, record, key: &key, moves, links, fetched };
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
        if coming.as_ref().is_some_and(|coming| coming.carried.postcopy) {
            settings.flags |= flags::POSTCOPY;
        }
        let clock = self.links.map_or(Clock::Real, Links::clock);
        let (outcome, next) = self.machines.driven(vec![settings], clock, |driver| {
            if let (Some(_), Some(links)) = (&coming, self.links) {
                links.comes(&driver.session);
            }
            match coming {
                Some(coming) => match coming.go_on(&driver.session) {
                    Ok(fetching) => {
                        if let (Some(fetching), Some(see)) = (fetching, self.fetched) {
                            see(&fetching.wait()?)?;
                        }
                    }
                    Err(why) => {
                        // The target may have ended the guest, and so the machine, already.
                        let _ = driver.session.ask(None, Command::Quit);
                        return Ok(Some(Stay::NotCome(why.to_string())));
                    }
                },
                None if self.begins.is_empty() => _ = driver.session.wait_for(0, 0, GuestState::Running)?,
                None => while !driver.lines.recv().context("the machine has ended")?.contains(self.begins) {},
            }
            if number >= self.moves && !self.links.is_some_and(Links::has_more) {
                self.links.map_or(Ok(()), |links| links.done(&driver.session))?;
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
        let between = self.links.map_or(Ok(None), |links| links.next(to))?;
        let options = Options {
            me: owner(number),
            to: between.unwrap_or(to).to_string(),
            key: link::key(self.key)?,
            record: self.record.clone(),
            tracker,
            downtime: Duration::from_secs(1),
            rounds: 10,
            forced: true,
            postcopy: if self.fetched.is_some() { Postcopy::AtOnce } else { Postcopy::Off },
            log: None,
        };
        let (source, memory) = (Arc::clone(here), self.guest.memory);
        let compare = if self.fetched.is_some() { absent } else { compare };
        let arrived = self.links.and_then(Links::arrived);
        incoming.before_entry = Some(Box::new(move |target| {
            arrived.map_or(Ok(()), |sees| sees(&source, target))?;
            compare(&source, target, memory)
        }));
        let cancel = Cancel::new();
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let sent =
                    source::send(here, 0, &self.bundle, &options, &cancel, &mut |news| match (news, self.links) {
                        (News::Stops, Some(links)) => links.stops(here),
                        (News::Offered, Some(links)) => links.offered(),
                        _ => {}
                    });
                if sent.is_err() && !self.links.is_some_and(Links::has_reached) {
                    // It may have failed before it connected: then the target still waits. If it has connected, this
                    // connection is left out: the target serves several at once, and could report the end of this one first.
                    let _ = TcpStream::connect(to);
                }
                sent
            });
            let next = match incoming.wait() {
                Ok(coming) => scope.spawn(move || self.stay(number + 1, Some(coming))),
                Err(why) => scope.spawn(move || Ok(Stay::NotCome(why.to_string()))),
            };
            let next = next.join();
            if !matches!(next, Ok(Ok(Stay::Ended(_)))) {
                // A source whose guest is lost would wait for the target.
                cancel.cancel();
            }
            let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let next = next.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let links = self.links.filter(|links| between.is_some() || links.clock() == Clock::Counted);
            match (sent, next) {
                (Ok(sent), Stay::Ended(outcome)) => {
                    let Sent { rounds, pages, last_pages, .. } = sent.sent;
                    output::remark(&match sent.after {
                        [0, _] => format!(
                            "{}: {rounds} rounds, {pages} pages, {last_pages} of them in the blackout",
                            tracker.name()
                        ),
                        [after, asked] => format!(
                            "{last_pages} pages in the blackout of {} ms, {after} after it, of which {asked} were asked for",
                            sent.stopped.as_millis()
                        ),
                    });
                    if let Some(links) = links {
                        links.ended(Some(&sent.sent));
                    }
                    Ok(Some(Stay::Ended(outcome)))
                }
                (Err(source), Stay::NotCome(target)) => {
                    let Some(links) = links else { bail!("{source}; the target: {target}") };
                    let state = here.state(0);
                    ensure!(state == Some(GuestState::Running), "it is {state:?} here: {source}; the target: {target}");
                    // It is made when there is a link.
                    if self.record.path().exists() {
                        let found = self.record.ask(Request::Read, || true)?;
                        ensure!(found.owner == owner(number), "the guest runs, and the record holds {found:?}");
                    }
                    links.stayed(&source.to_string(), &target)?;
                    links.ended(None);
                    Ok(None)
                }
                (Ok(_), Stay::NotCome(target)) => bail!("neither side runs the guest: {target}"),
                (Err(source), Stay::Ended(_)) => bail!("both sides ran the guest; the source: {source}"),
            }
        })
    }
}

/// The name of the machine after `number` moves. In one process, each needs one of its own.
pub fn owner(number: usize) -> Owner {
    Owner { host: number as u64, incarnation: 1 }
}

/// Compares all of a guest that stands still on both sides.
pub fn compare(source: &Session, target: &Session, memory: u64) -> Result<(), String> {
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

/// Compares the sections of a guest that stands still on both sides, and looks that none of its RAM is at the target.
fn absent(source: &Session, target: &Session, memory: u64) -> Result<(), String> {
    let sections = |session: &Session| {
        let answer = session.ask(Some(0), Command::Save).map_err(|why| why.to_string())?;
        answer.refusal.map_or(Ok(answer.content), |refusal| Err(refusal.text))
    };
    if sections(source)? != sections(target)? {
        return Err("a section differs".to_owned());
    }
    let ram = Slot { number: memslot::RAM.into(), read_only: false, first: RAM_BASE >> 12, pages: memory >> 12 };
    let mut here = 0;
    let count = |_, frame| here += u64::from(frame != Frame::Absent);
    frames::for_each(target, 0, &[ram], count).map_err(|why| why.to_string())?;
    if here == 0 { Ok(()) } else { Err(format!("{here} pages are at the target before it runs")) }
}

/// A key of this byte.
pub fn key_file(directory: &Path, name: &str, byte: u8) -> anyhow::Result<PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, format!("{byte:02x}").repeat(32))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(path)
}
