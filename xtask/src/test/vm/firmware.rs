// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: Debian's U-Boot, unmodified, as a guest that starts in a firmware.

use std::ffi::OsString;

use anyhow::ensure;
use twofold_abi::bundle::flags;
use twofold_launch::{Bundle, machine};
use twofold_workspace::{build, firmware};

use super::machines::Machines;
use super::typed::{PROMPT, Typed};

/// U-Boot finds its device tree, its RAM and its settings; writes to both banks of the flash; begins anew after it has
/// overwritten its own flash; and switches itself off.
pub fn u_boot(machines: &Machines) -> anyhow::Result<()> {
    let workspace = machines.workspace();
    let directory = tempfile::Builder::new().prefix("firmware-").tempdir_in(workspace.runs()?)?;
    let mut guest = machines.bare("guest", 1, "");
    guest.firmware = Some(firmware::fetch(workspace)?.u_boot);
    guest.memory = 192 << 20;
    guest.flags = flags::RESTART;
    let bundle = Bundle::write(&[guest], &directory.path().join("guest.bundle"))?;

    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
    add("-M", "virt,virtualization=on,gic-version=3".into());
    add("-cpu", machine::CPU_DEFAULT.into());
    add("-m", "1G".into());
    add("-kernel", workspace.image(build::HYPERVISOR.name).into());
    add("-initrd", bundle.path.into());
    let mut machine = Typed::start(machines.qemu(), arguments)?;

    let answer = |machine: &mut Typed, line: &str| -> anyhow::Result<String> {
        machine.enter(line)?;
        Ok(machine.wait_for(PROMPT)?.to_owned())
    };
    to_prompt(&mut machine)?;
    let board = answer(&mut machine, "bdinfo")?;
    for line in ["-> start    = 0x0000000040000000", "-> size     = 0x000000000c000000", "devicetree  = board"] {
        ensure!(board.contains(line), "no {line:?} in {board}");
    }
    let version = answer(&mut machine, "version")?;
    ensure!(version.contains("U-Boot 20"), "{version}");
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
    machine.enter("poweroff")?;
    machine.end().map(drop)
}

fn to_prompt(machine: &mut Typed) -> anyhow::Result<()> {
    machine.wait_for("U-Boot 20")?;
    machine.wait_for("Hit any key to stop autoboot")?;
    machine.enter("")?;
    machine.wait_for(PROMPT).map(drop)
}
