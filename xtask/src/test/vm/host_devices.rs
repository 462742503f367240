// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: what stands behind the guests' disks and networks is the machine's, so files of the host and QEMU's network.

use std::fs;

use anyhow::{Context, ensure};
use twofold_launch::GuestSettings;
use twofold_launch::devices::{Backing, Devices, Disk, Network, Part};

use super::machines::{Clock, Machines};

/// Frames that go there and back.
const FRAMES: u64 = 100;
/// Bytes of a disk.
const SIZE: usize = 3 << 20;
/// What a disk has at first.
const OLD: u8 = 0x5a;

/// Two guests, each with a file that it writes and one that it reads, and a network with the outside.
pub fn files_and_uplink(machines: &Machines) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let mut guests = Vec::new();
    for name in ["one", "two"] {
        let mut disks = Vec::new();
        for is_read_only in [false, true] {
            let path = file(&format!("{name}-{is_read_only}"));
            fs::write(&path, vec![OLD; SIZE]).context("cannot write a disk")?;
            disks.push(Disk { backing: Backing::File(path), part: Part::default(), is_read_only });
        }
        let nets = vec![Network::User { forwards: Vec::new() }];
        let devices = Devices { disks, nets, ..Devices::default() };
        guests.push(GuestSettings { devices, ..machines.bare(name, 1, &format!("virtio={FRAMES}")) });
    }
    let outcome = machines.checked(guests, Clock::Real)?;
    let console = outcome.console.tail(usize::MAX);
    let all = console.join("\n");
    let count = |end: &str| console.iter().filter(|line| line.ends_with(end)).count();
    ensure!(count("read-only: true") == 2 && count("read-only: false") == 2, "disks are missing:\n{all}");
    ensure!(count(&format!("{FRAMES} frames went there and back")) == 2, "frames are missing:\n{all}");
    for name in ["one", "two"] {
        let read_only = fs::read(file(&format!("{name}-true")))?;
        ensure!(read_only.iter().all(|byte| *byte == OLD), "a read-only disk was written");
        let written = fs::read(file(&format!("{name}-false")))?;
        ensure!(written.len() == SIZE, "the file has {} bytes", written.len());
        for sector in [0, 1, 7, SIZE / 1024, SIZE / 512 - 1] {
            let bytes = &written[sector * 512..][..512];
            ensure!(bytes.iter().any(|byte| *byte != OLD), "sector {sector} is not in the file");
        }
    }
    Ok(())
}

/// Two guests with parts of one file. Each sees its part alone, and what is in none stays as it is.
pub fn parts(machines: &Machines) -> anyhow::Result<()> {
    const UNIT: u64 = 256 << 10;
    /// Where the parts start and end, in units: the second one directly behind the first one.
    const PARTS: [(u64, u64); 2] = [(1, 3), (3, 4)];
    const ALL: u64 = 5;

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("disk");
    fs::write(&path, vec![OLD; (ALL * UNIT) as usize]).context("cannot write a disk")?;
    let guest = |name: &str, (start, end): (u64, u64)| {
        let part = Part { offset: start * UNIT, size: Some((end - start) * UNIT) };
        let disks = vec![Disk { backing: Backing::File(path.clone()), part, is_read_only: false }];
        GuestSettings { devices: Devices { disks, ..Devices::default() }, ..machines.bare(name, 1, "failing=2") }
    };
    let outcome = machines.checked(vec![guest("one", PARTS[0]), guest("two", PARTS[1])], Clock::Real)?;
    let console = outcome.console.tail(usize::MAX);
    let written = fs::read(&path)?;
    let is_old = |at: u64| written[(at * UNIT) as usize..][..UNIT as usize].iter().all(|byte| *byte == OLD);
    ensure!(is_old(0) && is_old(4) && written.len() as u64 == ALL * UNIT, "a guest wrote outside of its part");
    for (start, end) in PARTS {
        let sectors = (end - start) * UNIT / 512;
        let line = format!("virtio: {sectors} of {sectors} sectors are left, and 0 requests failed");
        ensure!(console.iter().any(|had| had.ends_with(&line)), "no line {line:?}:\n{}", console.join("\n"));
        // Contents depend on the number of a sector, so both parts begin alike.
        let first = |at: u64| &written[(at * UNIT) as usize..][..UNIT as usize];
        ensure!(first(start) == first(PARTS[0].0) && !is_old(start), "part {start} to {end} has other contents");
    }
    Ok(())
}
