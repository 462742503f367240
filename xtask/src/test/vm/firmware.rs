// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: Debian's U-Boot, unmodified, as a guest that starts in a firmware.

use std::ffi::OsString;
use std::fs;

use anyhow::ensure;
use twofold_abi::bundle::flags;
use twofold_launch::devices::{Backing, Disk, Network, Part};
use twofold_launch::{Bundle, machine};
use twofold_workspace::{build, firmware};

use super::machines::Machines;
use super::typed::{PROMPT, Typed};
use super::virtio;

/// U-Boot finds its device tree, its RAM and its virtio disks; reads a file system; has an address and an answer from the host's
/// network; writes to both banks of the flash; begins anew after it has overwritten its own flash; and switches itself off.
pub fn u_boot(machines: &Machines) -> anyhow::Result<()> {
    let workspace = machines.workspace();
    let directory = tempfile::Builder::new().prefix("firmware-").tempdir_in(workspace.runs()?)?;
    let mut guest = machines.bare("guest", 1, "");
    guest.firmware = Some(firmware::fetch(workspace)?.u_boot);
    guest.memory = 192 << 20;
    guest.flags = flags::RESTART;
    guest.devices = virtio::devices();
    let volume = directory.path().join("volume");
    fs::write(&volume, fat())?;
    let volume = Disk { backing: Backing::File(volume), part: Part::default(), is_read_only: true };
    guest.devices.disks.push(volume);
    guest.devices.nets = vec![Network::User { forwards: Vec::new() }];
    let bundle = Bundle::write(&[guest], &directory.path().join("guest.bundle"))?;

    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
    add("-M", "virt,virtualization=on,gic-version=3".into());
    add("-cpu", machine::CPU_DEFAULT.into());
    add("-m", "1G".into());
    add("-kernel", workspace.image(build::HYPERVISOR.name).into());
    add("-initrd", bundle.path.into());
    add("-global", "virtio-mmio.force-legacy=false".into());
    bundle.devices.add(&mut add);
    let mut machine = Typed::start(machines.qemu(), arguments)?;

    to_prompt(&mut machine)?;
    let board = answer(&mut machine, "bdinfo")?;
    for line in ["-> start    = 0x0000000040000000", "-> size     = 0x000000000c000000", "devicetree  = board"] {
        ensure!(board.contains(line), "no {line:?} in {board}");
    }
    let version = answer(&mut machine, "version")?;
    ensure!(version.contains("U-Boot 20"), "{version}");
    disks(&mut machine)?;
    file_system(&mut machine)?;
    network(&mut machine)?;
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

/// The third disk is a file of the host's. U-Boot lists its FAT file system, and loads the one file.
fn file_system(machine: &mut Typed) -> anyhow::Result<()> {
    let listed = answer(machine, "ls virtio 2")?;
    ensure!(listed.contains(&format!("{}   {NAME}", TEXT.len())) && listed.contains("1 file(s), 0 dir(s)"), "{listed}");
    let loaded = answer(machine, &format!("load virtio 2 0x48000000 {NAME}"))?;
    ensure!(loaded.contains(&format!("{} bytes read", TEXT.len())), "{loaded}");
    let dumped = answer(machine, "md.b 0x48000000 0x10")?;
    ensure!(dumped.contains(&TEXT[..16]), "{dumped}");
    Ok(())
}

/// U-Boot gets an address from QEMU's network behind the hypervisor's, and the gateway answers.
fn network(machine: &mut Typed) -> anyhow::Result<()> {
    let bound = answer(machine, "setenv autoload no; dhcp")?;
    ensure!(bound.contains("DHCP client bound to address 10.0.2.15"), "{bound}");
    let pinged = answer(machine, "ping 10.0.2.2")?;
    ensure!(pinged.contains("host 10.0.2.2 is alive"), "{pinged}");
    Ok(())
}

const NAME: &str = "GREETING.TXT";
const TEXT: &str = "From a FAT file system behind EL2.";

/// A FAT12 file system of 64 sectors without partitions: boot sector, file allocation table, root directory, one file.
fn fat() -> Vec<u8> {
    let mut volume = vec![0; 64 * 512];
    let mut put = |at: usize, bytes: &[u8]| volume[at..at + bytes.len()].copy_from_slice(bytes);
    // Bytes of a sector, sectors of a cluster and before the table, tables, entries of the root, sectors, a fixed disk,
    // sectors of a table.
    put(0, b"\xeb\x3c\x90TWOFOLD ");
    put(11, &[0, 2, 1, 1, 0, 1, 16, 0, 64, 0, 0xf8, 1, 0]);
    put(36, b"\x80\0\x29\x01\x02\x03\x04NO NAME    FAT12   ");
    put(510, &[0x55, 0xaa]);
    // The third entry, of cluster 2, ends a file.
    put(512, &[0xf8, 0xff, 0xff, 0xff, 0x0f]);
    put(1024, b"GREETINGTXT\x20");
    put(1024 + 26, &[2, 0, TEXT.len() as u8, 0, 0, 0]);
    put(1536, TEXT.as_bytes());
    volume
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
