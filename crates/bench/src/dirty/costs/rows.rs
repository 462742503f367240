// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of `dirty-costs`: one operation of the dirty log each.
//!
//! Invariant: the clock runs during the operation alone. Each row starts from a slot in its first state, and its result
//! is checked before its time is reported.

use anyhow::{Context, ensure};
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};

use crate::clock::Moment;
use crate::dirty::guest::LoggedGuest;
use crate::statistics::Random;

/// A row.
pub struct Row {
    /// The operation's name.
    pub name: &'static str,
    /// The most time the operation may take, if it has a target.
    pub target: Option<Target>,
    /// Runs the operation once; returns nanoseconds.
    pub run: fn(&LoggedGuest) -> anyhow::Result<f64>,
}

/// The most time an operation may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The limit in nanoseconds at 16 GiB. The work grows with the slot, so the limit scales with its size.
    PerSize(f64),
    /// The limit in nanoseconds at 16 GiB, for work with a fixed part that does not shrink with the slot. For a larger
    /// slot the limit scales with its size. With a smaller slot the operation is not judged.
    FromFullSize(f64),
    /// This, times the time in which this machine reads the entries alone in the same run.
    Reads(f64),
}

/// All rows; those with a target come first.
pub const ROWS: &[Row] = &[
    Row { name: "start, all dirty", target: Some(Target::PerSize(200e3)), run: start_all_dirty },
    Row {
        name: "clear all: manual",
        target: Some(Target::PerSize(8e6)),
        run: |guest| clear_all(guest, Tracker::Manual),
    },
    Row {
        name: "get 1,000 dirty: manual",
        target: Some(Target::FromFullSize(50e3)),
        run: |guest| get_some(guest, Tracker::Manual, THOUSAND),
    },
    Row { name: "get, all hardware-tracked and clean: hardware", target: Some(Target::Reads(2.0)), run: get_clean },
    Row {
        name: "get 1 in 10 dirty: manual",
        target: None,
        run: |guest| get_some(guest, Tracker::Manual, guest.pages() / 10),
    },
    Row {
        name: "get 1 in 10 dirty: hardware",
        target: None,
        run: |guest| get_some(guest, Tracker::Hardware, guest.pages() / 10),
    },
    Row { name: "clear all, set DBM: hardware", target: None, run: |guest| clear_all(guest, Tracker::Hardware) },
    Row { name: "clear all, DBM set before: hardware", target: None, run: clear_all_tracked },
    Row { name: "clear 1,000: manual", target: None, run: |guest| clear_some(guest, Tracker::Manual) },
    Row { name: "clear 1,000: hardware", target: None, run: |guest| clear_some(guest, Tracker::Hardware) },
    Row { name: "get and clear 1,000: write-protect", target: None, run: get_and_clear },
    Row { name: "get 1,000 dirty: combined", target: None, run: |guest| get_some(guest, Tracker::Combined, THOUSAND) },
    Row { name: "get 1,000 dirty: adaptive", target: None, run: |guest| get_some(guest, Tracker::Adaptive, THOUSAND) },
    Row { name: "get, hardly anything written: adaptive", target: None, run: |guest| Ok(idle(guest, THOUSAND)?.last) },
    Row {
        name: "get, all written long ago: adaptive",
        target: None,
        run: |guest| Ok(idle(guest, guest.pages())?.last),
    },
    Row {
        name: "get, all written a round ago: adaptive",
        target: None,
        run: |guest| Ok(idle(guest, guest.pages())?.first),
    },
    Row {
        name: "longest get while pages grow cold: adaptive",
        target: None,
        run: |guest| Ok(idle(guest, guest.pages())?.longest),
    },
];

const THOUSAND: u64 = 1000;

/// Includes the log's allocations, because it is the slot's first start.
fn start_all_dirty(guest: &LoggedGuest) -> anyhow::Result<f64> {
    let (log, options) = (guest.log()?, LogOptions::new(Tracker::Manual));
    let time = timed(|| log.start(&options))?;
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty)?;
    ensure!(dirty.count() == guest.pages(), "not all pages are dirty after the start");
    Ok(time)
}

/// Clears a log in which every page is dirty.
fn clear_all(guest: &LoggedGuest, tracker: Tracker) -> anyhow::Result<f64> {
    let log = guest.log()?;
    log.start(&LogOptions::new(tracker))?;
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty)?;
    ensure!(dirty.count() == guest.pages(), "not all pages are dirty after the start");
    let time = timed(|| log.clear_these(&dirty))?;
    log.get(&mut dirty)?;
    ensure!(dirty.is_empty(), "pages are dirty after the clear");
    ensure!(guest.writable()? == 0, "pages are writable and untracked after the clear");
    Ok(time)
}

fn get_some(guest: &LoggedGuest, tracker: Tracker, count: u64) -> anyhow::Result<f64> {
    let mut dirty = started(guest, tracker)?;
    let pages = write_some(guest, count, 0)?;
    let log = guest.log()?;
    let time = timed(|| log.get(&mut dirty))?;
    ensure!(pages.iter().all(|page| dirty.contains(*page)), "a written page is not dirty");
    ensure!(dirty.count() == pages.len() as u64, "a dirty page was not written");
    Ok(time)
}

fn get_clean(guest: &LoggedGuest) -> anyhow::Result<f64> {
    let mut dirty = started(guest, Tracker::Hardware)?;
    let log = guest.log()?;
    let time = timed(|| log.get(&mut dirty))?;
    ensure!(dirty.is_empty(), "a dirty page was not written");
    ensure!(guest.hardware_tracked()? == guest.pages(), "not all pages are hardware-tracked");
    Ok(time)
}

/// Every page has DBM set before, and is dirty.
fn clear_all_tracked(guest: &LoggedGuest) -> anyhow::Result<f64> {
    let mut dirty = started(guest, Tracker::Hardware)?;
    (0..guest.pages()).try_for_each(|page| guest.write(page))?;
    let log = guest.log()?;
    log.get(&mut dirty)?;
    ensure!(dirty.count() == guest.pages(), "a written page is not dirty");
    let time = timed(|| log.clear_these(&dirty))?;
    log.get(&mut dirty)?;
    ensure!(dirty.is_empty(), "pages are dirty after the clear");
    Ok(time)
}

fn clear_some(guest: &LoggedGuest, tracker: Tracker) -> anyhow::Result<f64> {
    let mut dirty = started(guest, tracker)?;
    write_some(guest, THOUSAND, 0)?;
    let log = guest.log()?;
    log.get(&mut dirty)?;
    let time = timed(|| log.clear_these(&dirty))?;
    log.get(&mut dirty)?;
    ensure!(dirty.is_empty() && guest.writable()? == 0, "pages are dirty after the clear");
    Ok(time)
}

fn get_and_clear(guest: &LoggedGuest) -> anyhow::Result<f64> {
    let log = guest.log()?;
    log.start(&LogOptions::new(Tracker::WriteProtect))?;
    let pages = write_some(guest, THOUSAND, 0)?;
    let mut dirty = DirtyPages::new();
    let time = timed(|| log.get(&mut dirty))?;
    ensure!(dirty.count() == pages.len() as u64, "the dirty pages are not those that were written");
    ensure!(guest.writable()? == 0, "pages are writable and untracked after the clear");
    Ok(time)
}

/// How long a get takes if the guest wrote once, and never since.
struct Idle {
    /// The first get after a round without writes.
    first: f64,
    last: f64,
    longest: f64,
}

fn idle(guest: &LoggedGuest, count: u64) -> anyhow::Result<Idle> {
    let mut dirty = started(guest, Tracker::Adaptive)?;
    let log = guest.log()?;
    if count == guest.pages() {
        (0..count).try_for_each(|page| guest.write(page))?;
    } else {
        write_some(guest, count, 0)?;
    }
    let mut idle = Idle { first: 0.0, last: 0.0, longest: 0.0 };
    for round in 0..IDLE_ROUNDS {
        idle.last = timed(|| log.get(&mut dirty))?;
        ensure!(dirty.is_empty() == (round > 0), "round {round}: {} pages are dirty", dirty.count());
        if round == 1 {
            idle.first = idle.last;
        }
        if round > 0 {
            idle.longest = idle.longest.max(idle.last);
        }
        log.clear_these(&dirty)?;
    }
    Ok(idle)
}

/// Enough rounds for a tracker to adapt.
const IDLE_ROUNDS: u32 = 200;

/// Starts a log and clears every page. Returns the list that was used, whose memory is allocated by now.
fn started(guest: &LoggedGuest, tracker: Tracker) -> anyhow::Result<DirtyPages> {
    let log = guest.log()?;
    log.start(&LogOptions::new(tracker))?;
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty)?;
    log.clear_these(&dirty)?;
    Ok(dirty)
}

/// Writes to `count` different random pages; returns them.
fn write_some(guest: &LoggedGuest, count: u64, seed: u64) -> anyhow::Result<Vec<u64>> {
    let mut random = Random::new(seed);
    let mut pages = std::collections::BTreeSet::new();
    while (pages.len() as u64) < count {
        let page = random.below(guest.pages());
        if pages.insert(page) {
            guest.write(page).with_context(|| format!("page {page}"))?;
        }
    }
    Ok(pages.into_iter().collect())
}

fn timed<E>(body: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Moment::now();
    body()?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_leads_to_what_it_should() {
        let mut guest = LoggedGuest::of_tables(64 << 20).unwrap();
        for row in ROWS {
            guest.reset().unwrap();
            (row.run)(&guest).unwrap_or_else(|error| panic!("{}: {error:#}", row.name));
        }
    }
}
