// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian guests of the suite: with a disk, a network, and a script that the first login runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_launch::devices::{Backing, Devices, Disk, Network, Part};
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{Driver, GuestSettings, Outcome, Pages, Qemu, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::disk::{self, Debian};
use twofold_workspace::kernels::Kernel;
use twofold_workspace::{Workspace, install};

/// What the tests of the suite share.
pub struct Guests {
    workspace: Workspace,
    qemu: Qemu,
    /// Debian with the default kernel, or why it is not there.
    debian: Result<Debian, String>,
    directory: tempfile::TempDir,
}

impl Guests {
    /// Fetches Debian, unless the tests are only listed.
    pub fn new(workspace: &Workspace, lists: bool) -> anyhow::Result<Self> {
        let debian = match lists {
            true => Err("it is not fetched for a list".to_owned()),
            false => Debian::fetch(workspace, Kernel::DEFAULT, false).map_err(|error| format!("{error:#}")),
        };
        let directory = tempfile::Builder::new().prefix("devices-").tempdir_in(workspace.runs()?)?;
        Ok(Self { workspace: workspace.clone(), qemu: install::qemu()?, debian, directory })
    }

    /// Debian with the default kernel.
    pub fn debian(&self) -> anyhow::Result<&Debian> {
        self.debian.as_ref().map_err(|why| anyhow::anyhow!("Debian cannot be fetched: {why}"))
    }

    /// The path of a file of the suite's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A guest with this disk and no network, which runs `script` at the first login. Its initramfs is `NAME.cpio`.
    pub fn guest(&self, debian: &Debian, name: &str, disk: Backing, script: &str) -> anyhow::Result<GuestSettings> {
        let initrd = self.path(&format!("{name}.cpio"));
        debian.initrd(&initrd, Some(script), BTreeMap::new())?;
        Ok(GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: debian.kernel.kernel.clone(),
            initrd: Some(initrd),
            command_line: disk::COMMAND_LINE.to_owned(),
            memory: 512 << 20,
            cpus: 1,
            pages: Pages::Auto,
            flags: 0,
            devices: Devices {
                has_random: true,
                disks: vec![Disk { backing: disk, part: Part::default(), is_read_only: false }],
                ..Devices::default()
            },
            swap: None,
            test: None,
            policies: Policies::default(),
        })
    }

    /// A copy of the root of this name.
    pub fn disk(&self, debian: &Debian, name: &str) -> anyhow::Result<Backing> {
        let path = self.path(&format!("{name}.img"));
        debian.copy(&path)?;
        Ok(Backing::File(path))
    }

    /// Boots guests, whose scripts must all succeed.
    pub fn run(&self, guests: Vec<GuestSettings>) -> anyhow::Result<Outcome> {
        self.boot(guests).run(&self.workspace, &self.qemu)
    }

    /// As [`run`](Self::run), on this number of CPUs.
    pub fn run_on(&self, cpus: u32, guests: Vec<GuestSettings>) -> anyhow::Result<Outcome> {
        Boot { host_cpus: Some(cpus), ..self.boot(guests) }.run(&self.workspace, &self.qemu)
    }

    /// As [`run`](Self::run), on one CPU, in the deterministic mode.
    pub fn run_counted(&self, guests: Vec<GuestSettings>) -> anyhow::Result<Outcome> {
        Boot { host_cpus: Some(1), deterministic: true, ..self.boot(guests) }.run(&self.workspace, &self.qemu)
    }

    /// As [`run`](Self::run), and has `drive` read the console.
    pub fn run_driven<T: Send>(
        &self,
        guest: GuestSettings,
        drive: impl FnOnce(Driver) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(Outcome, T)> {
        self.boot(vec![guest]).run_driven(&self.workspace, &self.qemu, drive)
    }

    fn boot(&self, guests: Vec<GuestSettings>) -> Boot<'static> {
        Boot {
            label: "devices",
            guests,
            cpu: machine::CPU_DEFAULT,
            host_cpus: None,
            deterministic: false,
            checked: true,
            timeout: Some(TIMEOUT),
            terminal: false,
            image: Image::Plain,
        }
    }
}

/// The time limit against hangs. A guest with Redis took 900 s on a machine that others used.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The user network of QEMU, with ports of the host that lead into it.
pub fn user(forwards: Vec<String>) -> Network {
    Network::User { forwards }
}

/// fio writes and reads back; then the same file is read past the page cache.
pub const VERIFY: &str = "\
set -e
verify() {
    fio --name=verify --directory=/root --size=8M --bs=4k --rw=randwrite --verify=crc32c \"$@\" > /run/fio 2>&1 || {
        cat /run/fio
        return 1
    }
}
verify --fsync=32
verify --direct=1 --ioengine=libaio --iodepth=16
echo 'fio: verified'
";

/// The guest boots to a login, has its drivers, and fio verifies its disk.
pub fn boots(guests: &Guests, kernel: Kernel) -> anyhow::Result<()> {
    let debian = match kernel {
        Kernel::DEFAULT => guests.debian()?.clone(),
        kernel => Debian::fetch(&guests.workspace, kernel, false)?,
    };
    let name = format!("{}-{}", kernel.series, kernel.flavour);
    let script = format!("{VERIFY}uname -r\nls /dev/hwrng\n");
    let disk = guests.disk(&debian, &name)?;
    let outcome = guests.run(vec![guests.guest(&debian, &name, disk, &script)?])?;
    for words in ["debian login: root (automatic login)", "fio: verified", &debian.kernel.versions.kernel, "/dev/hwrng"]
    {
        has_line(&outcome, |line| line.contains(words)).with_context(|| format!("no {words:?}"))?;
    }
    Ok(())
}

/// A store, and few pages that stay.
const IN_FEW_PAGES: Swap =
    Swap { resident: 64 << 20, store: Store::Memory(Duration::from_micros(100)), mode: Mode::Off };

/// A guest with four times the memory that the machine gives it boots, and fio verifies its disk: its buffers, and the queue,
/// leave memory.
pub fn in_few_pages(guests: &Guests) -> anyhow::Result<()> {
    let debian = guests.debian()?;
    let script = format!("{VERIFY}! dmesg | grep -i 'i/o error'\n");
    let guest = guests.guest(debian, "pages", guests.disk(debian, "pages")?, &script)?;
    let outcome = guests.run(vec![GuestSettings { memory: 256 << 20, swap: Some(IN_FEW_PAGES), ..guest }])?;
    has_line(&outcome, |line| line.contains("fio: verified"))?;
    let awaited = outcome.control.report.get("virtio.pages_awaited").context("no figure virtio.pages_awaited")?;
    ensure!(awaited > 0, "no page was awaited");
    Ok(())
}

/// What one boot leaves, another finds, on a file system without an error.
pub fn boots_again(guests: &Guests) -> anyhow::Result<()> {
    let debian = guests.debian()?;
    let disk = guests.disk(debian, "again")?;
    // Not synced: to power off in order is enough.
    guests.run(vec![guests.guest(debian, "again", disk.clone(), "echo kept > /root/file")?])?;
    let mut guest = guests.guest(debian, "again", disk, "grep -x kept /root/file")?;
    guest.command_line.push_str(CHECK_ALL);
    has_line(&guests.run(vec![guest])?, |line| line == CLEAN).context("e2fsck complains")
}

/// Words on the kernel's command line that ask for a check of everything, and the line of one that found nothing.
pub const CHECK_ALL: &str = " fsck.mode=force";
pub const CLEAN: &str = "e2fsck -f -n /dev/vda: status 0";

/// Checks that a line of the console satisfies `is_it`.
pub fn has_line(outcome: &Outcome, is_it: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let console = outcome.console.tail(usize::MAX);
    ensure!(console.iter().any(|line| is_it(line.trim_end())), "the console is:\n{}", console.join("\n"));
    Ok(())
}
