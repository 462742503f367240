// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured of the dirty log, one operation a row.
//!
//! Invariant: the clock runs for the operation alone, each row starts from a slot that nothing was done to, and what the
//! operation led to is checked before its time is told.

use anyhow::{Context, ensure};
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};

use super::guest::Guest;
use crate::clock::Moment;
use crate::statistics::Random;

/// A row.
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What it may take at most.
    pub bar: Option<Bar>,
    /// Does it once; nanoseconds.
    pub run: fn(&Guest) -> anyhow::Result<f64>,
}

/// What an operation may take at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// The limit in nanoseconds at 16 GiB. The work grows with the slot, so the limit scales with its size.
    PerSize(f64),
    /// The limit in nanoseconds at 16 GiB, for work that has a part of its own, which a smaller slot does not make less. A larger
    /// slot has so much more, in proportion; with a smaller one the operation is not judged.
    FromFullSize(f64),
    /// So many times what this machine takes to read the entries at all, in the same run.
    Reads(f64),
}

/// All of them: first those that have a bar.
pub const ROWS: &[Row] = &[
    Row { name: "start, all dirty", bar: Some(Bar::PerSize(200e3)), run: start_all_dirty },
    Row { name: "clear all: manual", bar: Some(Bar::PerSize(8e6)), run: |guest| clear_all(guest, Tracker::Manual) },
    Row {
        name: "get 1,000 dirty: manual",
        bar: Some(Bar::FromFullSize(50e3)),
        run: |guest| get_some(guest, Tracker::Manual, THOUSAND),
    },
    Row { name: "get, all armed and clean: hardware", bar: Some(Bar::Reads(2.0)), run: get_clean },
    Row {
        name: "get 1 in 10 dirty: manual",
        bar: None,
        run: |guest| get_some(guest, Tracker::Manual, guest.pages() / 10),
    },
    Row {
        name: "get 1 in 10 dirty: hardware",
        bar: None,
        run: |guest| get_some(guest, Tracker::Hardware, guest.pages() / 10),
    },
    Row { name: "clear all, and arm: hardware", bar: None, run: |guest| clear_all(guest, Tracker::Hardware) },
    Row { name: "clear all, armed: hardware", bar: None, run: clear_all_armed },
    Row { name: "clear 1,000: manual", bar: None, run: |guest| clear_some(guest, Tracker::Manual) },
    Row { name: "clear 1,000: hardware", bar: None, run: |guest| clear_some(guest, Tracker::Hardware) },
    Row { name: "get and clear 1,000: write-protect", bar: None, run: get_and_clear },
    Row { name: "get 1,000 dirty: combined", bar: None, run: |guest| get_some(guest, Tracker::Combined, THOUSAND) },
    Row { name: "get 1,000 dirty: adaptive", bar: None, run: |guest| get_some(guest, Tracker::Adaptive, THOUSAND) },
    Row { name: "get, hardly anything written: adaptive", bar: None, run: |guest| Ok(idle(guest, THOUSAND)?.last) },
    Row { name: "get, all written long ago: adaptive", bar: None, run: |guest| Ok(idle(guest, guest.pages())?.last) },
    Row {
        name: "get, all written a round ago: adaptive",
        bar: None,
        run: |guest| Ok(idle(guest, guest.pages())?.first),
    },
    Row {
        name: "longest get on the way there: adaptive",
        bar: None,
        run: |guest| Ok(idle(guest, guest.pages())?.longest),
    },
];

const THOUSAND: u64 = 1000;

/// With what it allocates, as it is the slot's first.
fn start_all_dirty(guest: &Guest) -> anyhow::Result<f64> {
    let (log, options) = (guest.log()?, LogOptions::new(Tracker::Manual));
    let time = timed(|| log.start(&options))?;
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty)?;
    ensure!(dirty.count() == guest.pages(), "not all pages are dirty after the start");
    Ok(time)
}

/// A log in which everything is dirty.
fn clear_all(guest: &Guest, tracker: Tracker) -> anyhow::Result<f64> {
    let log = guest.log()?;
    log.start(&LogOptions::new(tracker))?;
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty)?;
    ensure!(dirty.count() == guest.pages(), "not all pages are dirty after the start");
    let time = timed(|| log.clear_these(&dirty))?;
    log.get(&mut dirty)?;
    ensure!(dirty.is_empty(), "pages are dirty after the clear");
    ensure!(guest.writable()? == 0, "pages may be written without a trace after the clear");
    Ok(time)
}

fn get_some(guest: &Guest, tracker: Tracker, count: u64) -> anyhow::Result<f64> {
    let mut dirty = started(guest, tracker)?;
    let pages = write_some(guest, count, 0)?;
    let log = guest.log()?;
    let time = timed(|| log.get(&mut dirty))?;
    ensure!(pages.iter().all(|page| dirty.contains(*page)), "a page that was written is not dirty");
    ensure!(dirty.count() == pages.len() as u64, "pages are dirty that were not written");
    Ok(time)
}

fn get_clean(guest: &Guest) -> anyhow::Result<f64> {
    let mut dirty = started(guest, Tracker::Hardware)?;
    let log = guest.log()?;
    let time = timed(|| log.get(&mut dirty))?;
    ensure!(dirty.is_empty(), "pages are dirty that nobody wrote");
    ensure!(guest.armed()? == guest.pages(), "not all pages are armed");
    Ok(time)
}

/// All were armed before, and are dirty.
fn clear_all_armed(guest: &Guest) -> anyhow::Result<f64> {
    let mut dirty = started(guest, Tracker::Hardware)?;
    (0..guest.pages()).try_for_each(|page| guest.write(page))?;
    let log = guest.log()?;
    log.get(&mut dirty)?;
    ensure!(dirty.count() == guest.pages(), "not all pages are dirty that were written");
    let time = timed(|| log.clear_these(&dirty))?;
    log.get(&mut dirty)?;
    ensure!(dirty.is_empty(), "pages are dirty after the clear");
    Ok(time)
}

fn clear_some(guest: &Guest, tracker: Tracker) -> anyhow::Result<f64> {
    let mut dirty = started(guest, tracker)?;
    write_some(guest, THOUSAND, 0)?;
    let log = guest.log()?;
    log.get(&mut dirty)?;
    let time = timed(|| log.clear_these(&dirty))?;
    log.get(&mut dirty)?;
    ensure!(dirty.is_empty() && guest.writable()? == 0, "pages are dirty after the clear");
    Ok(time)
}

fn get_and_clear(guest: &Guest) -> anyhow::Result<f64> {
    let log = guest.log()?;
    log.start(&LogOptions::new(Tracker::WriteProtect))?;
    let pages = write_some(guest, THOUSAND, 0)?;
    let mut dirty = DirtyPages::new();
    let time = timed(|| log.get(&mut dirty))?;
    ensure!(dirty.count() == pages.len() as u64, "other pages are dirty than were written");
    ensure!(guest.writable()? == 0, "pages may be written without a trace after the clear");
    Ok(time)
}

/// What a get takes of a guest that has written something once, and nothing since.
struct Idle {
    /// The first time that nothing was written.
    first: f64,
    last: f64,
    longest: f64,
}

fn idle(guest: &Guest, count: u64) -> anyhow::Result<Idle> {
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

/// By then a tracker has had the time to find out.
const IDLE_ROUNDS: u32 = 200;

/// A log from which everything was cleared; its list, for which there is memory by now.
fn started(guest: &Guest, tracker: Tracker) -> anyhow::Result<DirtyPages> {
    let log = guest.log()?;
    log.start(&LogOptions::new(tracker))?;
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty)?;
    log.clear_these(&dirty)?;
    Ok(dirty)
}

/// Writes to so many pages anywhere, none twice.
fn write_some(guest: &Guest, count: u64, seed: u64) -> anyhow::Result<Vec<u64>> {
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
        let mut guest = Guest::of_tables(64 << 20).unwrap();
        for row in ROWS {
            guest.reset().unwrap();
            (row.run)(&guest).unwrap_or_else(|error| panic!("{}: {error:#}", row.name));
        }
    }
}
