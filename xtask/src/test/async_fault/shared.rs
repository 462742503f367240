// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: two guests that share what they may have in memory (`--share-resident`).
//!
//! Both have an array that does not fit into the memory that is the guest's own, 24 MiB and 22 MiB in 14 MiB. One fills its array and then
//! does nothing with it, until it compares all of it in the end; the other one writes to random pages. So pages of the first have
//! to leave for the second, and come back.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{GuestSettings, Outcome, bundle};

use twofold_workspace::output;

use super::super::vm::machines::{Clock, Machines};

/// What each guest may have of its own.
const SHARE: u64 = 14 << 20;
const PAGE: u64 = 4096;
/// For how long each works, in milliseconds.
const TIME: u64 = 800;
/// How much more the busy guest does at least than without sharing.
const GAIN: u64 = 2;

/// The busy guest does more with the other's memory than without, and both find all that they have written.
pub fn with_an_idle_guest(machines: &Machines) -> anyhow::Result<()> {
    let run = |flags| {
        let stores = [(); 2].map(|()| Store::Memory(Duration::from_micros(100)));
        machines.checked(guests(machines, stores, flags), Clock::Counted)
    };
    let (alone, shared) = (run(0)?, run(flags::SHARE_RESIDENT)?);
    let (before, now) = (pages(&alone)?, pages(&shared)?);
    output::remark(&format!("the busy guest wrote {now} times, {before} without sharing"));
    ensure!(now >= GAIN * before, "the busy guest wrote {now} times, and {before} without sharing");
    ensure!(granted(&alone)? == 0 && granted(&shared)? > 0, "{} and {} pages", granted(&alone)?, granted(&shared)?);
    Ok(())
}

/// The same on two disks of the machine, which has less memory than both guests together.
pub fn with_less_memory_than_the_guests_have(machines: &Machines) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut stores = Vec::new();
    for name in ["busy.img", "idle.img"] {
        let path = folder.path().join(name);
        fs::File::create(&path)?.set_len(66 << 20)?;
        stores.push(Store::File(path));
    }
    let stores = stores.try_into().ok().context("there are two stores")?;
    let guests = guests(machines, stores, flags::SHARE_RESIDENT);
    let (machine, all) = (bundle::total_memory(&guests), guests.iter().map(|guest| guest.memory).sum::<u64>());
    output::remark(&format!("{} MiB for guests of {} MiB", machine >> 20, all >> 20));
    ensure!(machine < all, "the machine has {machine} bytes for the guests, which have {all}");
    let outcome = machines.checked(guests, Clock::Real)?;
    let granted = granted(&outcome)?;
    output::remark(&format!("the limits were raised by {granted} pages in all"));
    ensure!(granted > SHARE / PAGE / 8, "the limits were raised by {granted} pages in all");
    Ok(())
}

/// The busy guest and the idle one.
fn guests(machines: &Machines, stores: [Store; 2], flags: u32) -> Vec<GuestSettings> {
    let programs = [("busy", "faulters=1 workers=0 size=22M"), ("idle", "faulters=0 workers=1 size=24M")];
    let guest = |((name, program), store)| {
        let swap = Swap { resident: SHARE, store, mode: Mode::Off };
        let guest = machines.bare(name, 1, &format!("bm={TIME} {program}"));
        GuestSettings { swap: Some(swap), flags: guest.flags | flags, ..guest }
    };
    programs.into_iter().zip(stores).map(guest).collect()
}

/// By how many pages the limits of both were raised.
fn granted(outcome: &Outcome) -> anyhow::Result<u64> {
    outcome.control.report.get("swap.granted").context("no figure swap.granted")
}

/// How often the busy guest wrote to a page.
fn pages(outcome: &Outcome) -> anyhow::Result<u64> {
    let console = outcome.console.tail(usize::MAX);
    let line = console.iter().find_map(|line| line.strip_prefix("[busy] bm: vCPU 0 pages ")?.split_once(" work "));
    let (pages, _) = line.with_context(|| format!("the guest did not report:\n{}", console.join("\n")))?;
    Ok(pages.parse()?)
}
