// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian with a balloon: what it does not use is the machine's, and it gets back what it needs.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::channel::Command;
use twofold_launch::session::Session;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{Driver, GuestSettings};

use super::debian::{self, Guests};

/// Bytes of the guest's memory.
const MEMORY: u64 = 512 << 20;
/// MiB that it is asked to keep.
const KEPT: u32 = 320;
/// Bytes of the file that it removes.
const FILE: u64 = 96 << 20;

/// A store, and half of the guest's pages that stay.
pub const IN_HALF_THE_MEMORY: Swap =
    Swap { resident: MEMORY / 2, store: Store::Memory(Duration::from_micros(100)), mode: Mode::Off };

/// The guest fills memory, and removes a part of it again. It waits until pages went into its balloon, and came out of it.
/// Its data has to be right at each step.
const SCRIPT: &str = "\
set -e
moved() {
    until [ \"$(sed -n \"s/^balloon_$1 //p\" /proc/vmstat)\" -ge $2 ]; do sleep 1; done
    echo \"balloon: $1\"
}
check() {
    [ \"$(sha256sum < /dev/shm/kept)\" = \"$sum\" ] || { echo 'the data has changed'; exit 1; }
}
head -c 100663296 /dev/urandom > /dev/shm/kept
sum=$(sha256sum < /dev/shm/kept)
cp /dev/shm/kept /dev/shm/removed
echo 'balloon: filled'
rm /dev/shm/removed
moved inflate 40000
check
moved deflate 40000
check
cp /dev/shm/kept /dev/shm/again
[ \"$(sha256sum < /dev/shm/again)\" = \"$sum\" ]
rm /dev/shm/again
check
echo 'balloon: right'
";

/// Runs the script, with a store or without one.
pub fn comes_back(guests: &Guests, swap: Option<Swap>) -> anyhow::Result<()> {
    let debian = guests.debian()?;
    let mut guest = guests.guest(debian, "balloon", guests.disk(debian, "balloon")?, SCRIPT)?;
    guest.devices.has_balloon = true;
    let has_store = swap.is_some();
    let (outcome, ()) = guests.run_driven(GuestSettings { memory: MEMORY, swap, ..guest }, move |driver| {
        let Driver { session, lines } = driver;
        let guest = Watched { session, lines };
        guest.says("balloon: filled")?;
        let filled = guest.figure("memory.free")?;
        // Linux reports memory some seconds after it is free.
        guest.until("memory.free", |free| has_store || free >= filled + FILE * 3 / 4)?;
        guest.keep(KEPT)?;
        guest.says("balloon: inflate")?;
        guest.until("balloon.pages", |pages| pages == MEMORY / 4096 - u64::from(KEPT) * 256)?;
        guest.keep((MEMORY >> 20) as u32)?;
        guest.says("balloon: deflate")?;
        guest.until("balloon.pages", |pages| pages == 0)?;
        guest.says("balloon: right")
    })?;
    let given = outcome.control.report.get("virtio.frames_given_up").context("no figure virtio.frames_given_up")?;
    ensure!(given >= FILE * 3 / 4 / 4096, "{given} frames were given up");
    debian::has_line(&outcome, |line| line == "balloon: right")
}

/// A guest that is watched.
struct Watched {
    session: Arc<Session>,
    lines: Receiver<String>,
}

impl Watched {
    /// Waits for this line of the console.
    fn says(&self, words: &str) -> anyhow::Result<()> {
        let found = self.lines.iter().any(|line| line.trim_end() == words);
        ensure!(found, "the guest ended before it said {words:?}");
        Ok(())
    }

    fn keep(&self, mebibytes: u32) -> anyhow::Result<()> {
        let answer = self.session.ask(Some(0), Command::Balloon(mebibytes))?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(())
    }

    /// A figure of the guest, or of the machine.
    fn figure(&self, key: &str) -> anyhow::Result<u64> {
        let answer = self.session.ask(None, Command::Statistics)?;
        let value = answer.figure(Some(0), key).or_else(|| answer.figure(None, key));
        value.with_context(|| format!("no figure {key}: {answer:?}"))
    }

    /// Waits until a figure is as it should be.
    fn until(&self, key: &str, is_so: impl Fn(u64) -> bool) -> anyhow::Result<()> {
        while !is_so(self.figure(key)?) {
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }
}
