// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that write to a disk whose image both sides reach.
//!
//! Invariant: the image's owner record names the side that runs the guest, and each move makes its epoch two higher: one for the
//! offer, one for the acceptance.

use std::fs::{self, File};

use anyhow::{Context, ensure};
use twofold_launch::GuestSettings;
use twofold_launch::devices::{Backing, Devices, Disk, Part};
use twofold_workspace::output;

use super::course::moved;
use super::sides::Sides;
use crate::test::vm::machines::Machines;

/// Requests to the disk are in flight at each switch-over. The guest finds each sector as it wrote it.
pub fn written(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let image = directory.path().join("disk");
    File::create(&image)?.set_len(1 << 20)?;
    let disks = vec![Disk { backing: Backing::File(image.clone()), part: Part::default(), is_read_only: false }];
    // About five seconds for each move, of which it needs three.
    let rounds = 120 * moves;
    let bare = machines.bare("guest", 1, &format!("busy={rounds}"));
    let guest = GuestSettings { devices: Devices { disks, ..Devices::default() }, ..bare };
    let outcome = moved(machines, &guest, "busy: round 0", moves)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains(&format!("busy: {rounds} rounds")), "{console}");
    let record = fs::read_to_string(image.with_added_extension("owner"))?;
    let epoch = format!("epoch {:016x}\n", 2 * moves - 1);
    ensure!(record.ends_with(&epoch), "{record}");
    Ok(())
}

/// While the guest runs where it has moved, no other run of that host has its disk. When it has ended, it boots.
pub fn held(machines: &Machines) -> anyhow::Result<()> {
    let sides = Sides::new(machines)?;
    let image = sides.path("disk");
    File::create(&image)?.set_len(1 << 20)?;
    let disk = image.to_str().context("a temporary directory with a strange name")?;
    let (mut target, to) = sides.target(&[])?;
    let mut source = sides.source_with("busy=100000", &["--disk", disk])?;
    source.line_with("busy: round 3")?;
    let mut order = sides.migrate("one", &to, &["--force"])?;
    ensure!(order.ended()?, "{}", order.said);
    output::remark(order.said.trim_end());
    target.line_with("one runs here now")?;
    source.ended()?;
    let mut other = sides.source_with("busy=1", &["--disk", disk])?;
    ensure!(!other.ended()?, "{}", other.said);
    output::remark(other.said.trim_end());
    ensure!(other.said.contains("a run has the guest of the disk"), "{}", other.said);
    target.kill()?;
    let mut other = sides.source_with("busy=1", &["--disk", disk])?;
    ensure!(other.ended()?, "{}", other.said);
    Ok(())
}
