// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: what stands behind the guests' disks and networks is the machine's, so files of the host and QEMU's network.

use std::fs;

use anyhow::{Context, ensure};
use twofold_launch::GuestSettings;
use twofold_launch::devices::{Backing, Devices, Disk, Network};

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
            disks.push(Disk { backing: Backing::File(path), is_read_only });
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
