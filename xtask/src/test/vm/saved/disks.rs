// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests with a disk that move. Its content stays, on the host.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use twofold_abi::channel::Command;
use twofold_launch::GuestSettings;
use twofold_launch::devices::{Backing, Devices, Disk, Part};
use twofold_launch::saved::SavedGuest;
use twofold_workspace::{install, output, root, subprocess};

use super::super::super::devices::nbd::{Contents, Server};
use super::super::machines::{Clock, Machines};
use super::{Event, begun, moved, passed};

/// A bare-metal guest has four requests in flight, at a disk that takes its time: none is lost, and none is done late.
pub fn busy(machines: &Machines, rounds: u64, moves: u64) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("disk");
    let server = Server::start(Slow::default(), &socket)?;
    let guest = GuestSettings { devices: served(socket), ..machines.bare("guest", 1, &format!("busy={rounds}")) };
    let mut in_flight = Vec::new();
    let outcome = moved(machines, &guest, ("busy: round 0", 300), moves, Clock::Real, |event| {
        let Event::Saved(saved) = event else { return Ok(()) };
        in_flight.push(requests(saved)?);
        Ok(())
    })?;
    let all = server.look(|disk| disk.requests);
    output::remark(&format!("requests in flight at each move: {in_flight:?}; {all} requests"));
    ensure!(in_flight.len() as u64 == moves, "the guest ended after {} moves of {moves}", in_flight.len());
    ensure!(moves < 10 || in_flight.iter().any(|count| *count > 1), "no move met several requests in flight");
    passed(&outcome, &format!("busy: {rounds} rounds of 1920 sectors"))
}

/// A save waits until the disk of the machine has ended what the guest has begun.
pub fn waits(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("disk");
    let gate = Arc::<Gate>::default();
    let _server = Server::start(Slow { gate: Arc::clone(&gate), ..Slow::default() }, &socket)?;
    let guest = GuestSettings { devices: served(socket), ..machines.bare("guest", 1, "busy=200") };
    machines.driven(vec![guest], Clock::Real, |driver| {
        begun(&driver, "busy: round 1")?;
        gate.shut();
        driver.session.ask(Some(0), Command::Stop)?;
        let save = driver.session.send(Some(0), Command::Save)?;
        let opens = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(500));
                gate.open();
            })
        };
        let answer = driver.session.answer(save)?;
        let was_open = gate.is_open();
        opens.join().map_err(|_| anyhow!("a thread has panicked"))?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        ensure!(was_open, "the guest was saved while the disk worked on its requests");
        let saved = SavedGuest { sections: answer.content, ..SavedGuest::default() };
        ensure!(requests(&saved)? > 0, "the guest had no request in flight");
        // Then it goes on.
        driver.session.ask(Some(0), Command::Continue)?;
        begun(&driver, "busy: round 3")?;
        Ok(driver.session.ask(None, Command::Quit).map(drop)?)
    })?;
    Ok(())
}

/// Debian's Linux writes files to a file of the host's, and compares them with what it reads when nothing of them is cached.
pub fn linux(machines: &Machines, moves: u64) -> anyhow::Result<()> {
    const FILES: u64 = 40;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("disk");
    File::create(&path)?.set_len(64 << 20)?;
    let disks = vec![Disk { backing: Backing::File(path.clone()), part: Part::default(), is_read_only: false }];
    let commands = [
        "mkdir /disk && mke2fs -F /dev/vda > /dev/null && mount -t ext4 /dev/vda /disk".to_owned(),
        format!(
            "n=0; while [ $n -lt {FILES} ]; do head -c 700000 /dev/urandom > /tmp/$n; cp /tmp/$n /disk/$n; \
             (cd /tmp && sha256sum $n) >> /tmp/sums; rm /tmp/$n; sync; echo 3 > /proc/sys/vm/drop_caches; \
             (cd /disk && sha256sum -c -s /tmp/sums) || exit 1; n=$((n + 1)); done; echo \"$n files are whole\""
        ),
        "umount /disk".to_owned(),
    ];
    let guest = machines.networked("moved-disk", 2, &commands)?;
    let guest = GuestSettings { devices: Devices { disks, ..Devices::default() }, ..guest };
    let mut done = 0;
    let outcome = moved(machines, &guest, ("twofold: begin 1", 2000), moves, Clock::Real, |event| {
        done += u64::from(matches!(event, Event::Saved(_)));
        Ok(())
    })?;
    ensure!(done == moves, "the guest ended after {done} moves of {moves}");
    passed(&outcome, &format!("{FILES} files are whole"))?;
    passed(&outcome, "twofold: end 2 0")?;
    // Another program finds the file system whole, without repairing anything.
    let e2fsck = install::system_program("e2fsck", root::E2FSPROGS)?;
    subprocess::quiet(std::process::Command::new(e2fsck).args(["-f", "-n"]).arg(path))
}

/// What holds up the disk: `shut` returns when a request waits there.
#[derive(Default)]
struct Gate {
    /// Whether it is shut, and whether a request waits.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn shut(&self) {
        let mut state = self.state.lock().expect("nothing panics with it");
        state.0 = true;
        while !state.1 {
            state = self.changed.wait(state).expect("nothing panics with it");
        }
    }

    fn open(&self) {
        *self.state.lock().expect("nothing panics with it") = (false, false);
        self.changed.notify_all();
    }

    fn is_open(&self) -> bool {
        !self.state.lock().expect("nothing panics with it").0
    }

    fn pass(&self) {
        let mut state = self.state.lock().expect("nothing panics with it");
        while state.0 {
            state.1 = true;
            self.changed.notify_all();
            state = self.changed.wait(state).expect("nothing panics with it");
        }
    }
}

/// A disk that is served at this socket.
fn served(socket: PathBuf) -> Devices {
    let disks = vec![Disk { backing: Backing::Server(socket), part: Part::default(), is_read_only: false }];
    Devices { disks, ..Devices::default() }
}

/// Bytes of the disk.
const SIZE: usize = 1 << 20;

/// How long the disk takes for a request.
const TIME: Duration = Duration::from_millis(1);

/// A disk that takes its time.
struct Slow {
    bytes: Vec<u8>,
    requests: u64,
    gate: Arc<Gate>,
}

impl Default for Slow {
    fn default() -> Self {
        Self { bytes: vec![0; SIZE], requests: 0, gate: Arc::default() }
    }
}

impl Slow {
    fn place(&mut self, position: u64, length: usize) -> io::Result<Range<usize>> {
        thread::sleep(TIME);
        self.gate.pass();
        self.requests += 1;
        let range = position as usize..position as usize + length;
        if range.end <= self.bytes.len() { Ok(range) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

impl Contents for Slow {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        let place = self.place(position, bytes.len())?;
        bytes.copy_from_slice(&self.bytes[place]);
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: &[u8], _: bool) -> io::Result<()> {
        let place = self.place(position, bytes.len())?;
        self.bytes[place].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many requests the first device, a disk, had begun, by its state (`devices/src/virtio/block/snapshot.rs`).
fn requests(saved: &SavedGuest) -> anyhow::Result<usize> {
    const PHASES: Range<usize> = 152 + 16..152 + 32;
    let mut name = [0; 24];
    name[..6].copy_from_slice(b"virtio");
    let head = [&name[..], &0_u32.to_le_bytes()].concat();
    let at = saved.sections.windows(head.len()).position(|bytes| bytes == head).context("no disk was saved")?;
    let phases =
        saved.sections.get(at + 40..).and_then(|state| state.get(PHASES)).context("the disk's state is cut")?;
    Ok(phases.iter().filter(|phase| **phase == 1).count())
}
