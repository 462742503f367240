// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: stores on a disk of the machine that fails or stands still. The guest waits, or is stopped with a
//! reason, and no other guest notices.
//!
//! The disk is that of an NBD server of this program, which counts what it fails.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::channel::{Command, GuestState};
use twofold_launch::GuestSettings;
use twofold_launch::swap::{Mode, Store, Swap};

use super::super::devices::nbd::{Contents, Server};
use super::super::vm::machines::{Clock, Machines};

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Nothing.
    Never,
    /// Each request with a multiple of this number fails.
    Every(u64),
    /// The disk answers nothing for a second, at the request with this number.
    Pause(u64),
    /// Each request after this number fails.
    After(u64),
    /// Each write after this number of requests fails.
    WritesAfter(u64),
    /// There is room for this number of pages.
    Room(usize),
}

#[derive(Debug)]
pub(super) struct Disk {
    bytes: Vec<u8>,
    fault: Fault,
    requests: u64,
    failed_reads: u64,
    failed_writes: u64,
    pauses: u64,
    /// The positions that were written, if room is limited.
    written: BTreeSet<u64>,
}

impl Disk {
    /// A request. A write is for a page at this position.
    fn admit(&mut self, written: Option<u64>) -> io::Result<()> {
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        self.requests += 1;
        let is_failed = match self.fault {
            Fault::Never => false,
            Fault::Every(number) => self.requests.is_multiple_of(number),
            Fault::After(number) => self.requests > number,
            Fault::WritesAfter(number) => written.is_some() && self.requests > number,
            Fault::Pause(number) => {
                if self.requests == number {
                    self.pauses += 1;
                    // The server's lock is taken, so nothing else is answered either.
                    thread::sleep(Duration::from_secs(1));
                }
                false
            }
            Fault::Room(pages) => {
                if let Some(position) = written.filter(|position| !self.written.contains(position)) {
                    if self.written.len() == pages {
                        return Err(io::Error::from_raw_os_error(ENOSPC));
                    }
                    self.written.insert(position);
                }
                false
            }
        };
        if is_failed { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }
}

impl Contents for Disk {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.admit(None).inspect_err(|_| self.failed_reads += 1)?;
        let start = position as usize;
        bytes.copy_from_slice(&self.bytes[start..start + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: &[u8], _: bool) -> io::Result<()> {
        self.admit(Some(position)).inspect_err(|_| self.failed_writes += 1)?;
        let start = position as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves the store of a guest with this memory.
pub(super) fn serve(directory: &Path, memory: u64, fault: Fault) -> anyhow::Result<(Server<Disk>, Store)> {
    let socket = directory.join("pages");
    let bytes = vec![0; (memory + (2 << 20)) as usize];
    let disk =
        Disk { bytes, fault, requests: 0, failed_reads: 0, failed_writes: 0, pauses: 0, written: BTreeSet::new() };
    Ok((Server::start(disk, &socket).context("no NBD server")?, Store::Server(socket)))
}

/// A server's disk is smaller than the guest's memory: that is said at the start, with both sizes.
pub fn too_small(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (_server, store) = serve(directory.path(), 30 << 20, Fault::Never)?;
    let error = machines.ended(vec![tasks(machines, "guest", store, 100)], Clock::Real).err().context("it starts")?;
    let said = format!("{error:#}");
    let words = "--swap: the machine's disk has 32768 KiB, and the guest's pages need 67584 KiB; give a larger one";
    ensure!(said.contains(words), "no `{words}` in {said}");
    Ok(())
}

/// The bare-metal guest that writes to an array of four times its resident memory.
fn tasks(machines: &Machines, name: &str, store: Store, milliseconds: u64) -> GuestSettings {
    let program = format!("bm={milliseconds} faulters=2 workers=1 size=56M");
    let swap = Swap { resident: 14 << 20, store, mode: Mode::Pv };
    GuestSettings { swap: Some(swap), ..machines.bare(name, 1, &program) }
}

/// One request in a thousand fails. It is asked again, so the guest notices nothing.
pub fn one_in_a_thousand(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, store) = serve(directory.path(), 64 << 20, Fault::Every(1000))?;
    machines.checked(vec![tasks(machines, "guest", store, 3000)], Clock::Real)?;
    failed_reads(&server)
}

/// A page whose only copy is on the disk needs its read. Without another try the guest is stopped.
pub(super) fn failed_reads(server: &Server<Disk>) -> anyhow::Result<()> {
    let (requests, reads, writes) = server.look(|disk| (disk.requests, disk.failed_reads, disk.failed_writes));
    ensure!(reads > 0, "of {requests} requests {reads} reads and {writes} writes failed");
    Ok(())
}

/// The disk answers nothing for a second. The guest goes on afterwards.
pub fn a_pause(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    // The array does not fit, so its 14,336 pages leave before the tasks begin.
    let (server, store) = serve(directory.path(), 64 << 20, Fault::Pause(12_000))?;
    machines.checked(vec![tasks(machines, "guest", store, 3000)], Clock::Real)?;
    paused(&server)
}

/// The disk has stood still, and gone on.
pub(super) fn paused(server: &Server<Disk>) -> anyhow::Result<()> {
    let (requests, pauses, fault) = server.look(|disk| (disk.requests, disk.pauses, disk.fault));
    let is_it = matches!(fault, Fault::Pause(number) if pauses == 1 && requests > number);
    ensure!(is_it, "{pauses} pauses in {requests} requests: {fault:?}");
    Ok(())
}

/// From some request on each one fails.
pub fn for_good(machines: &Machines) -> anyhow::Result<()> {
    is_stopped(machines, Fault::After(12_000), "")
}

/// From some request on each write fails: no frame becomes free, so no page can come either.
pub fn writes_for_good(machines: &Machines) -> anyhow::Result<()> {
    is_stopped(machines, Fault::WritesAfter(12_000), "write the page at 0x")
}

/// The disk's host has room for half of the pages, and says so when it is full, which QEMU can take for a reason to stop the
/// machine. The pages that are there can be written again.
pub fn full(machines: &Machines) -> anyhow::Result<()> {
    is_stopped(machines, Fault::Room(8192), "write the page at 0x")
}

/// The guest is stopped, with the disk and the cause as its reason. The guest beside it goes on.
fn is_stopped(machines: &Machines, fault: Fault, what: &str) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (_server, store) = serve(directory.path(), 64 << 20, fault)?;
    let guests = vec![tasks(machines, "one", store, 600_000), machines.bare("two", 1, "pace=20")];
    let (outcome, ()) = machines.driven(guests, Clock::Real, |driver| {
        driver.session.wait_for(0, 0, GuestState::Failed)?;
        // Those that came before.
        while driver.lines.try_recv().is_ok() {}
        let paces = driver.lines.iter().filter(|line| line.starts_with("[two] pace: ")).take(20).count();
        ensure!(paces == 20, "the other guest went on for {paces} lines");
        driver.session.ask(None, Command::Quit)?;
        Ok(())
    })?;
    let failed = format!("cannot be brought: the store could not {what}");
    let words = [
        "\"one\" cannot go on: the page at 0x",
        &failed,
        "error 5 of its device (--swap: the machine's disk \"twofold-swap-0\"",
        if what.is_empty() { "" } else { "; its host may have no room left)" },
    ];
    let errors = &outcome.control.errors;
    let is_said = errors.iter().any(|line| words.iter().all(|word| line.contains(word)));
    ensure!(is_said, "no line with {words:?}: {errors:?}");
    Ok(())
}
