// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One move of the guest, from one host to a new one.

use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use twofold_launch::Bundle;
use twofold_launch::migrate::carried::Carried;
use twofold_launch::migrate::record::Record;
use twofold_launch::migrate::source::{self, ChangeLog, MoveError, News, Options, Postcopy};
use twofold_launch::migrate::target::Incoming;
use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::commit::Owner;
use twofold_migration::precopy::Sent;
use twofold_migration::sealed::Key;

use super::host::{Host, Kind, Memory};
use super::judged::{GUEST, Judge, Judged};
use crate::experiment::host_clock::Moment;
use crate::experiment::migrate::settings::How;
use crate::options::Control;
use crate::stop::Stop;

/// What all moves have in common.
pub struct Route<'r> {
    /// Hosts.
    pub kind: &'r Kind,
    /// What the guest was started with.
    pub bundle: &'r Bundle,
    /// For the record, lists and bundles.
    pub directory: &'r Path,
    /// The program that compares memory.
    pub program: &'r Path,
    /// What a negative control breaks. The comparison has to find it.
    pub control: Option<Control>,
    /// How long the guest may stand still.
    pub downtime: Duration,
}

/// A move, as both sides saw it.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// When it began.
    pub begin: Moment,
    /// When the source began to stop the guest.
    pub stop: Moment,
    /// When the guest went on at the target.
    pub entered: Moment,
    /// When all of its pages were there.
    pub complete: Moment,
    /// What the judge found, and when it was at work.
    pub judged: Judged,
    /// What was sent.
    pub sent: Sent,
    /// Pages that were sent after it had entered, and those of them that it waited for.
    pub after: [u64; 2],
}

impl Route<'_> {
    /// Moves the guest from `here` to a new host. `number` counts moves from 1 on.
    ///
    /// # Errors
    ///
    /// The guest has not moved, or it is not the same there.
    pub fn go(&self, here: Host, how: How, number: u64, stop: &Stop) -> anyhow::Result<(Host, Hop)> {
        let record = Record::new(&self.directory.join("owner"));
        let (mut incoming, memory) = (Incoming::bind("127.0.0.1:0", Key::new(KEY), record.clone())?, Memory::new()?);
        incoming.me = owner(number);
        let judge = Judge {
            program: self.program.to_owned(),
            directory: self.directory.to_owned(),
            number,
            slots: Carried::of(self.bundle, GUEST)?.slots(),
            source: (Arc::clone(&here.session), here.memory()),
            target: memory.path(),
            spoils: self.control == Some(Control::Withheld),
            follows: how == How::Postcopy,
        };
        let (before_entry, found) = judge.before_entry();
        incoming.before_entry = Some(before_entry);
        let to = incoming.address()?;
        let (tracker, postcopy) = match how {
            How::Precopy(tracker) => (tracker, Postcopy::Off),
            // Nothing is tracked.
            How::Postcopy => (Tracker::Manual, Postcopy::AtOnce),
        };
        let options = Options {
            me: owner(number - 1),
            to: to.to_string(),
            key: Key::new(KEY),
            record,
            tracker,
            downtime: self.downtime,
            rounds: ROUNDS,
            forced: true,
            postcopy,
            log: (self.control == Some(Control::Unlogged)).then_some(leaves_out as ChangeLog),
        };
        let (begin, cancel) = (Moment::now(), Cancel::new());
        let (sent, came) = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut stopped = None;
                let sent = source::send(&here.session, GUEST, self.bundle, &options, &cancel, &mut |news| match news {
                    News::Stops => stopped = Some(Moment::now()),
                    News::Round(_) if stop.is_requested() => cancel.cancel(),
                    News::Round(_)
                    | News::Offered
                    | News::InDoubt(_)
                    | News::Switched(..)
                    | News::Cut(_)
                    | News::Moved(_) => {}
                });
                if sent.is_err() {
                    // If it failed before it connected, the target waits for a connection.
                    let _ = TcpStream::connect(to);
                }
                (sent, stopped)
            });
            let came = self.receive(&mut incoming, memory, number);
            (sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), came)
        });
        let ((moved, stopped), (there, [entered, complete])) = match (sent, came) {
            ((Ok(moved), stopped), Ok(came)) => ((moved, stopped), came),
            ((Err(why), _), Err(target)) => return Err(both(why, target)),
            ((Err(why), _), Ok(_)) => bail!("both sides have the guest; the source: {why}"),
            ((Ok(_), _), Err(why)) => return Err(why.context("the guest left its source, and did not come")),
        };
        let judged = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        let judged = judged.context("the guest was not compared before it entered")?;
        let stop = stopped.context("the guest was not stopped")?;
        // It was ended by the move.
        here.ended()?;
        Ok((there, Hop { begin, stop, entered, complete, judged, sent: moved.sent, after: moved.after }))
    }

    fn receive(&self, incoming: &mut Incoming, memory: Memory, number: u64) -> anyhow::Result<(Host, [Moment; 2])> {
        let coming = incoming.wait()?;
        let bundle = coming.carried.write(&self.directory.join(format!("bundle-{number}")))?;
        let path = bundle.path.clone();
        let host = Host::start(self.kind, bundle, memory)?;
        let fetching = coming.go_on(&host.session)?;
        let entered = Moment::now();
        let complete = match fetching {
            Some(fetching) => {
                let fetched = fetching.wait()?;
                ensure!(fetched.left == 0, "the guest has ended, and {} pages have not come", fetched.left);
                Moment::now()
            }
            None => entered,
        };
        std::fs::remove_file(path)?;
        Ok((host, [entered, complete]))
    }
}

fn both(source: MoveError, target: anyhow::Error) -> anyhow::Error {
    target.context(format!("{source}; at the target"))
}

/// The name of the host after this number of moves. All are in one process, so each needs one of its own.
fn owner(number: u64) -> Owner {
    Owner { host: number, incarnation: 1 }
}

/// A dirty log that never has the first page of 64.
fn leaves_out(_: u64, mask: u64) -> u64 {
    mask & !1
}

/// Both sides are this process.
const KEY: [u8; 32] = [7; 32];
/// The most rounds while the guest runs; then it is stopped however much is left.
const ROUNDS: u32 = 10;
