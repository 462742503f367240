// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: disks of the machine that fail a request now and then, or become smaller while guests use them: the guest
//! sees an I/O error for each request that failed, and nothing else does. And disks that zero and discard.
//!
//! The disks are those of an NBD server of this program. It counts what it fails; the guest counts what it sees fail.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, ensure};
use twofold_launch::devices::{Backing, Devices, Disk, Part};
use twofold_launch::{Bundle, GuestSettings, machine};
use twofold_workspace::build;

use super::super::devices::nbd::{Contents, Server};
use super::machines::{Clock, Machines};
use super::typed::Typed;

/// Bytes of a disk at first.
const SIZE: usize = 512 << 10;
/// Bytes of the one that becomes smaller.
const LEFT: usize = 256 << 10;
/// One request of this number fails.
const EVERY: u64 = 1000;

/// Errors of Linux's that the protocol has.
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;

/// Contents of which requests fail.
#[derive(Debug)]
struct Faulty {
    bytes: Vec<u8>,
    /// Requests so far.
    requests: u64,
    /// Requests that failed.
    failures: u64,
    /// Each request with a multiple of this number fails.
    every: u64,
    /// After this number of requests only [`LEFT`] bytes are left.
    shrinks_after: u64,
    /// The ranges that were made zero, each with whether its place could be given up, and those that were discarded.
    zeroed: Vec<(u64, u32, bool)>,
    discarded: Vec<(u64, u32)>,
}

impl Faulty {
    fn new(every: u64, shrinks_after: u64) -> Self {
        Self {
            bytes: vec![0; SIZE],
            requests: 0,
            failures: 0,
            every,
            shrinks_after,
            zeroed: Vec::new(),
            discarded: Vec::new(),
        }
    }

    /// Counts a request. `beyond` is its error if it is behind the end.
    fn admit(&mut self, position: u64, length: usize, beyond: i32) -> io::Result<std::ops::Range<usize>> {
        self.requests += 1;
        if self.requests == self.shrinks_after {
            self.bytes.truncate(LEFT);
        }
        let range = position as usize..position as usize + length;
        let error = match () {
            () if range.end > self.bytes.len() => beyond,
            () if self.requests.is_multiple_of(self.every) => EIO,
            () => return Ok(range),
        };
        self.failures += 1;
        Err(io::Error::from_raw_os_error(error))
    }
}

impl Contents for Faulty {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        let range = self.admit(position, bytes.len(), EINVAL)?;
        bytes.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: &[u8], _: bool) -> io::Result<()> {
        // A host without room: by default QEMU stops the machine then.
        let range = self.admit(position, bytes.len(), ENOSPC)?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.admit(0, 0, EIO).map(drop)
    }

    fn zero(&mut self, position: u64, length: u32, may_unmap: bool, is_forced: bool) -> io::Result<()> {
        self.zeroed.push((position, length, may_unmap));
        self.write(position, &vec![0; length as usize], is_forced)
    }

    fn discard(&mut self, position: u64, length: u32) -> io::Result<()> {
        self.discarded.push((position, length));
        let range = self.admit(position, length as usize, EINVAL)?;
        self.bytes[range].fill(0xdd);
        Ok(())
    }
}

/// QEMU makes a disk smaller while the guest uses it, and says so: the guest's disk has the new size, too.
pub fn smaller(machines: &Machines) -> anyhow::Result<()> {
    let workspace = machines.workspace();
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    let disks = vec![Disk { backing: file, part: Part::default(), is_read_only: false }];
    let guest =
        GuestSettings { devices: Devices { disks, ..Devices::default() }, ..machines.bare("guest", 1, "shrinking") };
    let bundle = Bundle::write(&[guest], &directory.path().join("guest.bundle"))?;
    let monitor = directory.path().join("monitor");

    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
    add("-M", "virt,virtualization=on,gic-version=3".into());
    add("-cpu", machine::CPU_DEFAULT.into());
    add("-m", "512M".into());
    add("-kernel", workspace.image(build::HYPERVISOR.name).into());
    add("-initrd", bundle.path.into());
    add("-global", "virtio-mmio.force-legacy=false".into());
    bundle.devices.add(&mut add);
    add("-qmp", format!("unix:{},server=on,wait=off", monitor.display()).into());
    let mut machine = Typed::start(machines.qemu(), arguments)?;
    machine.wait_for(&format!("virtio: the disk has {} sectors", SIZE / 512))?;
    let resize = format!(r#"{{"execute":"block_resize","arguments":{{"node-name":"disk0","size":{LEFT}}}}}"#);
    ask(&monitor, &[r#"{"execute":"qmp_capabilities"}"#, &resize]).context("QEMU does not resize the disk")?;
    machine.wait_for(&format!("virtio: the disk has {} sectors now", LEFT / 512))?;
    machine.wait_for("guest check: ok")?;
    machine.end().map(drop)
}

/// Gives QEMU commands at its monitor (QMP). Each has to succeed.
fn ask(monitor: &Path, commands: &[&str]) -> anyhow::Result<()> {
    let stream = UnixStream::connect(monitor)?;
    let mut lines = BufReader::new(&stream).lines();
    lines.next().context("no greeting")??;
    for command in commands {
        (&stream).write_all(format!("{command}\n").as_bytes())?;
        loop {
            let line = lines.next().context("QEMU has ended")??;
            ensure!(!line.contains("\"error\""), "{command}: {line}");
            // Anything else is an event.
            if line.contains("\"return\"") {
                break;
            }
        }
    }
    Ok(())
}

/// What a guest makes zero or discards becomes one request each at the host's disk: neither is written, and none is lost.
pub fn zeroes_and_discards(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("disk");
    let server = Server::start(Faulty::new(u64::MAX, u64::MAX), &socket).context("no NBD server")?;
    let disk = |backing| Disk { backing, part: Part::default(), is_read_only: false };
    let disks = vec![disk(Backing::Server(socket)), disk(Backing::Memory(SIZE as u64))];
    let devices = Devices { disks, ..Devices::default() };
    let outcome =
        machines.checked(vec![GuestSettings { devices, ..machines.bare("guest", 1, "ranges") }], Clock::Real)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.matches("virtio: zeroes and a discard on transport").count() == 2, "{console}");
    // The ranges of the guest's program: 8 sectors each.
    let (zeroed, discarded) = server.look(|contents| (contents.zeroed.clone(), contents.discarded.clone()));
    ensure!(zeroed == [(4096, 4096, false), (3 * 4096, 4096, true)], "zeroed: {zeroed:?}");
    ensure!(discarded == [(5 * 4096, 4096)], "discarded: {discarded:?}");
    Ok(())
}

/// Three guests: one with a disk that fails one request in a thousand, one with a disk that shrinks, and one with a file.
pub fn reach_their_guest(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let guest = |name: &str, program: &str, backing: Backing| {
        let disks = vec![Disk { backing, part: Part::default(), is_read_only: false }];
        GuestSettings { devices: Devices { disks, ..Devices::default() }, ..machines.bare(name, 1, program) }
    };
    let server = |name: &str, contents: Faulty| -> anyhow::Result<(Server<Faulty>, Backing)> {
        let socket = directory.path().join(name);
        Ok((Server::start(contents, &socket).context("no NBD server")?, Backing::Server(socket)))
    };
    // A piece of the guest's is two sectors, which it writes and reads: the shrinking one shrinks in its second round.
    let requests_of_a_round = (SIZE / 1024 * 2) as u64;
    let (fails, failing) = server("fails", Faulty::new(EVERY, u64::MAX))?;
    let (shrinks, shrinking) = server("shrinks", Faulty::new(u64::MAX, requests_of_a_round * 3 / 2))?;
    let file = file(directory.path())?;
    let guests = vec![
        guest("fails", "failing=2", failing),
        guest("shrinks", "failing=3", shrinking),
        guest("beside", "virtio=1", file),
    ];
    let outcome = machines.checked(guests, Clock::Real)?;
    let console = outcome.console.tail(usize::MAX);
    let all = console.join("\n");
    let sectors = SIZE / 512;
    for (server, left, least) in [(&fails, sectors, 2 * requests_of_a_round / EVERY), (&shrinks, LEFT / 512, 1)] {
        let failures = server.look(|contents| contents.failures);
        ensure!(failures >= least, "only {failures} requests failed");
        let line = format!("virtio: {left} of {sectors} sectors are left, and {failures} requests failed");
        ensure!(console.iter().any(|had| had.ends_with(&line)), "no line {line:?}:\n{all}");
    }
    Ok(())
}

fn file(directory: &Path) -> anyhow::Result<Backing> {
    let path = directory.join("beside");
    std::fs::write(&path, vec![0; SIZE]).context("cannot write a disk")?;
    Ok(Backing::File(path))
}
