// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: virtio devices, with the drivers of the crate `virtio-drivers` in bare-metal guests (`crates/guest/src/virtio`).

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::devices::{Backing, Devices, Disk, Network, Part};
use twofold_launch::{GuestSettings, Outcome};
use twofold_workspace::output;

use super::machines::{Clock, Machines};

/// Frames that go there and back.
const FRAMES: u64 = 300;

/// Two guests with disks in memory, random bytes, and a network between them.
pub fn two_guests(machines: &Machines, clock: Clock) -> anyhow::Result<()> {
    let mut guests = vec![guest(machines, "one"), guest(machines, "two")];
    if clock == Clock::Counted {
        guests.iter_mut().for_each(|guest| guest.flags = flags::COUNT);
    }
    let outcome = machines.checked(guests, clock)?;
    let console = outcome.console.tail(usize::MAX);
    let count = |end: &str| console.iter().filter(|line| line.ends_with(end)).count();
    let all = console.join("\n");
    ensure!(count(&format!("{FRAMES} frames went there and back")) == 2, "frames are missing:\n{all}");
    ensure!(count("read-only: true") == 2 && count("read-only: false") == 2, "disks are missing:\n{all}");
    ensure!(count("requests in flight") == 2 && count("random bytes") == 2, "steps are missing:\n{all}");
    if clock == Clock::Counted {
        costs(&outcome)?;
    }
    Ok(())
}

fn guest(machines: &Machines, name: &str) -> GuestSettings {
    GuestSettings { devices: devices(), ..machines.bare(name, 1, &format!("virtio={FRAMES}")) }
}

/// A device of each kind, and a disk that is read-only.
pub fn devices() -> Devices {
    let disk = |bytes, is_read_only| Disk { backing: Backing::Memory(bytes), part: Part::default(), is_read_only };
    Devices {
        has_console: true,
        has_random: true,
        has_balloon: true,
        disks: vec![disk(3 << 20, false), disk(1 << 20, true)],
        nets: vec![Network::Inner],
    }
}

/// What the notifications cost, and how long they kept interrupts masked.
fn costs(outcome: &Outcome) -> anyhow::Result<()> {
    /// The most instructions that EL2 executes with interrupts masked.
    const MASKED: u64 = 20_000;
    let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
    let (total, masked) = (stat("el2_instructions.virtio")?, stat("longest_masked.virtio")?);
    let (notifications, requests) = (stat("virtio.notifications")?, stat("disk.requests")?);
    let (sent, received, dropped) =
        (stat("net.frames_sent")?, stat("net.frames_received")?, stat("net.frames_dropped")?);
    output::remark(&format!(
        "{notifications} notifications, {requests} requests of disks, {sent} frames sent and {received} received, {dropped} \
         dropped: {total} instructions in accesses to devices, at most {masked} with interrupts masked"
    ));
    ensure!(masked <= MASKED, "{masked} instructions with interrupts masked, and {MASKED} are the most");
    ensure!(sent >= 2 * FRAMES && received >= 2 * FRAMES, "{sent} frames sent, {received} received");
    Ok(())
}
