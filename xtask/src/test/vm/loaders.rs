// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: the image as other programs than QEMU start it: Debian's U-Boot by `booti`, and Debian's EFI firmware
//! as an application (`docs/boards.md`).
//!
//! In each start that succeeds, a guest with two vCPUs checks itself, and powers off. Its check begins with RAM that must be
//! zero and ends with all of it written.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use twofold_launch::{Bundle, machine};
use twofold_workspace::build;
use twofold_workspace::firmware::{self, Firmware};

use super::machines::Machines;
use super::typed::{PROMPT, Typed};

/// How the guest's check ends.
const GOOD: &str = "guest check: ok";
const MIB: u64 = 1 << 20;

/// Where a machine for U-Boot has what.
struct Place {
    what: &'static str,
    /// The machine's RAM in bytes.
    ram: u64,
    image: u64,
    bundle: u64,
    /// What is typed before `booti`.
    before: &'static [&'static str],
}

/// U-Boot moves the bundle and the tree to the end of the memory that it uses, unless `initrd_high` and `fdt_high` have all
/// bits set.
const PLACES: [Place; 4] = [
    Place { what: "a gigabyte", ram: 1024 * MIB, image: 0x5000_0000, bundle: 0x6000_0000, before: &[] },
    Place {
        what: "image and bundle side by side, at an odd multiple of 2 MiB; nothing is moved",
        ram: 512 * MIB,
        image: 0x4420_0000,
        bundle: 0x44a0_0000,
        before: &["setenv initrd_high 0xffffffffffffffff", "setenv fdt_high 0xffffffffffffffff"],
    },
    Place {
        what: "image and bundle beyond 4 GiB",
        ram: 6144 * MIB,
        image: 0x1_3fe0_0000,
        bundle: 0x1_6000_0000,
        before: &["setenv initrd_high 0xffffffffffffffff"],
    },
    Place {
        what: "the first 256 MiB are reserved",
        ram: 768 * MIB,
        image: 0x6000_0000,
        bundle: 0x5000_0000,
        before: &["fdt addr ${fdtcontroladdr}", "fdt rsvmem add 0x40000000 0x10000000"],
    },
];

/// U-Boot starts the image, wherever it is, and hands it the bundle as an initrd.
pub fn u_boot(machines: &Machines) -> anyhow::Result<()> {
    let files = Files::new(machines)?;
    for place in &PLACES {
        let Place { what, ram, image, bundle, before } = place;
        let run = || -> anyhow::Result<()> {
            let mut arguments = files.machine(*ram, "virt,virtualization=on,gic-version=3", &files.firmware.u_boot);
            for (file, address) in [(&files.image, image), (&files.bundle.path, bundle)] {
                let mut loader = OsString::from(format!("loader,addr={address:#x},force-raw=on,file="));
                loader.push(file);
                arguments.extend(["-device".into(), loader]);
            }
            let mut machine = Typed::start(machines.qemu(), arguments)?;
            machine.wait_for("Hit any key to stop autoboot")?;
            machine.enter("")?;
            for line in *before {
                machine.wait_for(PROMPT)?;
                machine.enter(line)?;
            }
            machine.wait_for(PROMPT)?;
            machine.enter(&format!("booti {image:x} {bundle:x}:{:x} ${{fdtcontroladdr}}", files.bundle.size))?;
            machine.wait_for("Starting kernel")?;
            machine.wait_for(GOOD)?;
            machine.end().map(drop)
        };
        run().with_context(|| format!("U-Boot, {what}"))?;
    }
    Ok(())
}

const EFI_MACHINE: &str = "virt,virtualization=on,gic-version=3,acpi=off";

/// EFI starts the image as an application, and serves the bundle by its own protocol for initrds.
pub fn efi(machines: &Machines) -> anyhow::Result<()> {
    let files = Files::new(machines)?;
    let mut arguments = files.machine(1024 * MIB, EFI_MACHINE, &files.firmware.efi);
    arguments.extend(["-kernel".into(), (&files.image).into(), "-initrd".into(), (&files.bundle.path).into()]);
    let mut machine = Typed::start(machines.qemu(), arguments)?;
    machine.wait_for(GOOD)?;
    machine.end().map(drop)
}

/// EFI starts the image from a volume, which has the bundle as a file: of the name that is looked for, and of one that the
/// options name.
pub fn efi_volume(machines: &Machines) -> anyhow::Result<()> {
    let files = Files::new(machines)?;
    let volume = |name: &str, contents: &[(&str, &Path)]| -> anyhow::Result<Vec<OsString>> {
        let directory = files.directory.path().join(name);
        for (place, from) in contents {
            let place = directory.join(place);
            fs::create_dir_all(place.parent().context("a file without a directory")?)?;
            fs::copy(from, place)?;
        }
        let mut arguments = files.machine(1024 * MIB, EFI_MACHINE, &files.firmware.efi);
        let mut drive = OsString::from("if=none,id=volume,format=raw,readonly=on,file=fat:");
        drive.push(&directory);
        arguments.extend(["-drive".into(), drive, "-device".into(), "virtio-blk-device,drive=volume".into()]);
        Ok(arguments)
    };
    let arguments = volume("one", &[("EFI/BOOT/BOOTAA64.EFI", &files.image), ("twofold.bundle", &files.bundle.path)])?;
    let mut machine = Typed::start(machines.qemu(), arguments)?;
    machine.wait_for(GOOD)?;
    machine.end()?;

    let arguments = volume("two", &[("twofold.efi", &files.image), ("my/guests", &files.bundle.path)])?;
    let mut machine = Typed::start(machines.qemu(), arguments)?;
    machine.wait_for(" or any other key to continue")?;
    machine.enter("")?;
    machine.wait_for("Shell> ")?;
    machine.enter("FS0:")?;
    machine.wait_for("FS0:\\> ")?;
    machine.enter("twofold.efi initrd=no/such/file")?;
    machine.wait_for("there is no bundle")?;
    machine.wait_for("FS0:\\> ")?;
    machine.enter("twofold.efi initrd=my/guests")?;
    machine.wait_for(GOOD)?;
    machine.end().map(drop)
}

/// What the image cannot do without is named on the firmware's console, and the image returns to the firmware.
pub fn efi_refusals(machines: &Machines) -> anyhow::Result<()> {
    let files = Files::new(machines)?;
    let cases = [
        (EFI_MACHINE, false, "there is no bundle"),
        ("virt,virtualization=on,gic-version=3", true, "the firmware gives no device tree"),
        ("virt,virtualization=off,gic-version=3,acpi=off", true, "this CPU runs at EL1"),
    ];
    for (machine, has_bundle, message) in cases {
        let mut arguments = files.machine(512 * MIB, machine, &files.firmware.efi);
        arguments.extend(["-kernel".into(), (&files.image).into()]);
        if has_bundle {
            arguments.extend(["-initrd".into(), (&files.bundle.path).into()]);
        }
        let mut typed = Typed::start(machines.qemu(), arguments)?;
        let seen = typed.wait_for(message).with_context(|| machine.to_owned())?;
        ensure!(seen.ends_with("twofold: "), "{seen}");
        typed.wait_for("failed to load Boot")?;
    }
    Ok(())
}

/// What the machines are made of.
struct Files {
    directory: tempfile::TempDir,
    firmware: Firmware,
    image: std::path::PathBuf,
    bundle: Bundle,
}

impl Files {
    fn new(machines: &Machines) -> anyhow::Result<Self> {
        let workspace = machines.workspace();
        let directory = tempfile::Builder::new().prefix("loaders-").tempdir_in(workspace.runs()?)?;
        let mut guest = machines.bare("guest", 2, "check");
        guest.memory = 160 * MIB;
        let bundle = Bundle::write(&[guest], &directory.path().join("guest.bundle"))?;
        let firmware = firmware::fetch(workspace)?;
        Ok(Self { directory, firmware, image: workspace.image(build::HYPERVISOR.name), bundle })
    }

    /// QEMU's arguments for a machine that starts in a firmware.
    fn machine(&self, ram: u64, machine: &str, firmware: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
        add("-M", machine.into());
        add("-cpu", machine::CPU_DEFAULT.into());
        add("-m", format!("{}M", ram / MIB).into());
        add("-smp", "2".into());
        add("-bios", firmware.into());
        arguments
    }
}
