// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The instructions that EL2 executes on both sides while a guest stands still for its switch-over.
//!
//! Each side's machine has one CPU, which counts its instructions. Both counts are read when the source is about to stop the guest,
//! and when all of it is at the target. To read a count costs instructions too: two reads, one after the other, give that cost, which
//! is taken off. The entry at the target comes after the second read: the record's answer, and `continue`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::ensure;
use twofold_abi::bundle::flags;
use twofold_abi::channel::Command;
use twofold_launch::GuestSettings;
use twofold_launch::session::Session;
use twofold_migration::precopy::Sent;
use twofold_workspace::output;

use super::course::{Arrived, Links, course};
use crate::test::vm::machines::{Clock, Machines};

/// Debian's Linux under load. A guest that waits would not do: with counted instructions its clock jumps to its next timer, so it
/// would end before it was sent.
pub fn linux(machines: &Machines) -> anyhow::Result<()> {
    let guest = machines.linux("guest", 2, 1_000)?;
    let downtime = Downtime::default();
    let guest = GuestSettings { flags: guest.flags | flags::COUNT, ..guest.clone() };
    course(machines, &guest, "", 1, Some(&downtime))?;
    let [before, after] = [&downtime.before, &downtime.after].map(|reads| reads.counts());
    let Some(sent) = *lock(&downtime.sent) else { anyhow::bail!("the guest did not move") };
    let [source, target] = [0, 1].map(|side| Some(after[side]?.since(before[side]?)));
    let (Some(source), Some(target)) = (source, target) else {
        anyhow::bail!("{before:?}, {after:?}: nothing was counted")
    };
    output::remark(&format!(
        "{} of {} pages in the downtime: {source} instructions at EL2 at the source, {target} at the target",
        sent.last_pages, sent.pages
    ));
    // So that work that does not belong there shows: a page of 4 KiB costs about 70,000 on each side, most of it on the channel.
    let most = PAGE * (sent.last_pages + 100);
    ensure!(source > sent.last_pages && source < most, "{source} at the source, {most} at most");
    ensure!(target > sent.last_pages && target < most, "{target} at the target, {most} at most");
    Ok(())
}

/// The most instructions for a page of the last round, on one side.
const PAGE: u64 = 200_000;

/// Reads the counts of both sides.
#[derive(Default)]
struct Downtime {
    target: Mutex<Option<Arc<Session>>>,
    before: Reads,
    after: Arc<Reads>,
    sent: Mutex<Option<Sent>>,
}

/// The source's count and the target's.
#[derive(Default)]
struct Reads(Mutex<[Option<Count>; 2]>);

/// A count, and what it costs to read it.
#[derive(Clone, Copy, Debug)]
struct Count {
    first: u64,
    second: u64,
}

impl Links for Downtime {
    fn has_more(&self) -> bool {
        false
    }

    fn next(&self, _: std::net::SocketAddr) -> anyhow::Result<Option<std::net::SocketAddr>> {
        Ok(None)
    }

    fn clock(&self) -> Clock {
        Clock::Counted
    }

    fn comes(&self, target: &Arc<Session>) {
        *lock(&self.target) = Some(Arc::clone(target));
    }

    fn stops(&self, source: &Session) {
        if let Some(target) = &*lock(&self.target) {
            self.before.read(source, target);
        }
    }

    fn arrived(&self) -> Option<Arrived> {
        let after = Arc::clone(&self.after);
        Some(Box::new(move |source, target| {
            after.read(source, target);
            Ok(())
        }))
    }

    fn done(&self, here: &Session) -> anyhow::Result<()> {
        let answer = here.ask(None, Command::Quit)?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(())
    }

    fn ended(&self, sent: Option<&Sent>) {
        *lock(&self.sent) = sent.copied();
    }
}

impl Reads {
    fn read(&self, source: &Session, target: &Session) {
        *lock(&self.0) = [source, target].map(Count::read);
    }

    fn counts(&self) -> [Option<Count>; 2] {
        *lock(&self.0)
    }
}

impl Count {
    fn read(session: &Session) -> Option<Self> {
        let now = || {
            let answer = session.ask(None, Command::Statistics).ok()?;
            answer.figures.iter().find(|(_, key, _)| key == "el2_instructions.now").map(|(.., value)| *value)
        };
        Some(Self { first: now()?, second: now()? })
    }

    /// The instructions since the earlier reads, without the second of those and the first of these.
    fn since(self, earlier: Self) -> u64 {
        // It may have 32 bits.
        let between = |before: u64, now: u64| {
            now.wrapping_sub(before) & if before.max(now) >> 32 == 0 { u32::MAX.into() } else { u64::MAX }
        };
        between(earlier.second, self.first).saturating_sub(between(self.first, self.second))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
