// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: Debian's U-Boot, unmodified, as a guest that starts in a firmware.

use std::ffi::OsString;

use anyhow::ensure;
use twofold_abi::bundle::flags;
use twofold_launch::{Bundle, machine};
use twofold_workspace::{build, firmware};

use super::machines::Machines;
use super::typed::{PROMPT, Typed};
use super::virtio;

/// U-Boot finds its device tree, its RAM and its virtio disks; writes to both banks of the flash; begins anew after it has
/// overwritten its own flash; and switches itself off.
pub fn u_boot(machines: &Machines) -> anyhow::Result<()> {
    let workspace = machines.workspace();
    let directory = tempfile::Builder::new().prefix("firmware-").tempdir_in(workspace.runs()?)?;
    let mut guest = machines.bare("guest", 1, "");
    guest.firmware = Some(firmware::fetch(workspace)?.u_boot);
    guest.memory = 192 << 20;
    guest.flags = flags::RESTART;
    guest.devices = virtio::devices();
    let bundle = Bundle::write(&[guest], &directory.path().join("guest.bundle"))?;

    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
    add("-M", "virt,virtualization=on,gic-version=3".into());
    add("-cpu", machine::CPU_DEFAULT.into());
    add("-m", "1G".into());
    add("-kernel", workspace.image(build::HYPERVISOR.name).into());
    add("-initrd", bundle.path.into());
    let mut machine = Typed::start(machines.qemu(), arguments)?;

    to_prompt(&mut machine)?;
    let board = answer(&mut machine, "bdinfo")?;
    for line in ["-> start    = 0x0000000040000000", "-> size     = 0x000000000c000000", "devicetree  = board"] {
        ensure!(board.contains(line), "no {line:?} in {board}");
    }
    let version = answer(&mut machine, "version")?;
    ensure!(version.contains("U-Boot 20"), "{version}");
    disks(&mut machine)?;
    // There is no flash that takes commands: it is refused, and nothing aborts.
    let saved = answer(&mut machine, "saveenv")?;
    ensure!(!saved.contains("OK"), "{saved}");
    // The last word of the second bank, and all of the firmware.
    answer(&mut machine, "mw.l 0x7fffffc 0x600df1a5")?;
    answer(&mut machine, "mw.l 0 0 0x40000")?;
    let overwritten = answer(&mut machine, "md.l 0 4")?;
    ensure!(overwritten.contains("00000000: 00000000 00000000 00000000 00000000"), "{overwritten}");

    machine.enter("reset")?;
    to_prompt(&mut machine)?;
    let kept = answer(&mut machine, "md.l 0x7fffffc 1")?;
    ensure!(kept.contains("07fffffc: 600df1a5"), "{kept}");
    disks(&mut machine)?;
    machine.enter("poweroff")?;
    machine.end().map(drop)
}

/// U-Boot's drivers find both disks. What they write to the first one they read again; the second one is read-only.
fn disks(machine: &mut Typed) -> anyhow::Result<()> {
    let found = answer(machine, "virtio scan; virtio info")?;
    for line in
        ["Device 0: 2FLD VirtIO Block Device", "(6144 x 512)", "Device 1: 2FLD VirtIO Block Device", "(2048 x 512)"]
    {
        ensure!(found.contains(line), "no {line:?} in {found}");
    }
    let transfer = |machine: &mut Typed, line: &str| {
        let answer = answer(machine, line)?;
        anyhow::Ok(answer.contains("8 blocks read: OK") || answer.contains("8 blocks written: OK"))
    };
    answer(machine, "virtio dev 0; mw.l 0x48000000 0x7e57b10c 0x400; mw.l 0x48100000 0 0x400")?;
    ensure!(transfer(machine, "virtio write 0x48000000 0x10 8")?, "the first disk is not written");
    ensure!(transfer(machine, "virtio read 0x48100000 0x10 8")?, "the first disk is not read");
    let equal = answer(machine, "cmp.l 0x48000000 0x48100000 0x400")?;
    ensure!(equal.contains("Total of 1024 word(s) were the same"), "{equal}");
    answer(machine, "virtio dev 1")?;
    ensure!(!transfer(machine, "virtio write 0x48000000 0 8")?, "the second disk is written");
    ensure!(transfer(machine, "virtio read 0x48100000 0 8")?, "the second disk is not read");
    Ok(())
}

/// Types a line, and returns what comes before the next prompt.
fn answer(machine: &mut Typed, line: &str) -> anyhow::Result<String> {
    machine.enter(line)?;
    Ok(machine.wait_for(PROMPT)?.to_owned())
}

fn to_prompt(machine: &mut Typed) -> anyhow::Result<()> {
    machine.wait_for("U-Boot 20")?;
    machine.wait_for("Hit any key to stop autoboot")?;
    machine.enter("")?;
    machine.wait_for(PROMPT).map(drop)
}
