// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests of the suite, and how they are booted.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_launch::guest::WEIGHT_DEFAULT;
use twofold_launch::session::Session;
use twofold_launch::{Devices, Driver, GuestSettings, Outcome, Pages, Qemu, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::guest::{self, Wanted};
use twofold_workspace::kernels::Kernel;
use twofold_workspace::{Workspace, build, commands, fetch, initramfs, install, linux_bm};

/// What the tests of the suite share.
pub struct Machines {
    workspace: Workspace,
    qemu: Qemu,
    /// Debian's kernel and our initrd, or why they are not there.
    linux: Result<(PathBuf, PathBuf), String>,
    /// What a Linux that runs commands has beside them, or why it is not there. Built once, for the first test.
    programs: OnceLock<Result<BTreeMap<String, Vec<u8>>, String>>,
}

/// How a machine is booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Two CPUs, as fast as they are.
    Real,
    /// Four CPUs, as fast as they are.
    RealOnFour,
    /// One CPU, on which the same happens in each run.
    Counted,
}

impl Machines {
    /// Fetches Linux, unless the tests are only listed.
    pub fn new(workspace: &Workspace, lists: bool) -> anyhow::Result<Self> {
        let linux = match lists {
            true => Err("it is not fetched for a list".to_owned()),
            false => linux(workspace).map_err(|error| format!("{error:#}")),
        };
        Ok(Self { workspace: workspace.clone(), qemu: install::qemu()?, linux, programs: OnceLock::new() })
    }

    /// The checkout.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// QEMU.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// The bare-metal guest with this program.
    pub fn bare(&self, name: &str, cpus: u32, program: &str) -> GuestSettings {
        GuestSettings {
            name: name.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: self.workspace.image(build::GUEST.name),
            initrd: None,
            command_line: program.to_owned(),
            memory: 64 << 20,
            cpus,
            pages: Pages::Auto,
            flags: 0,
            devices: Devices::default(),
            swap: None,
            test: None,
            policies: Policies::default(),
        }
    }

    /// The kernel and the initrd of Debian's Linux.
    pub fn linux_files(&self) -> anyhow::Result<(PathBuf, PathBuf)> {
        self.linux.clone().map_err(anyhow::Error::msg).context("Debian's kernel is missing")
    }

    /// Debian's Linux, which loads each vCPU with this number of rounds, and then checks itself.
    pub fn linux(&self, name: &str, cpus: u32, rounds: u32) -> anyhow::Result<GuestSettings> {
        let (kernel, initrd) = self.linux_files()?;
        let command_line = format!("console=ttyAMA0 panic=-1 loglevel=5 twofold.stress={rounds} twofold.check");
        let bare = self.bare(name, cpus, &command_line);
        Ok(GuestSettings { kernel, initrd: Some(initrd), memory: 256 << 20, ..bare })
    }

    /// Debian's Linux, which runs these commands, and then powers off. It has the module of asynchronous page faults as
    /// [`linux_bm::MODULE`], and `bm`. The name is that of its initramfs, too.
    pub fn commanded(&self, name: &str, cpus: u32, commands: &[String]) -> anyhow::Result<GuestSettings> {
        let programs =
            self.programs.get_or_init(|| linux_bm::programs(&self.workspace).map_err(|error| format!("{error:#}")));
        let mut files = programs.clone().map_err(anyhow::Error::msg).context("the programs of a Linux are missing")?;
        files.insert(commands::FILE.to_owned(), commands::lines(commands)?);
        let linux = fetch::fetch(&self.workspace, false)?;
        let initrd = format!("{name}.cpio");
        let initrd = initramfs::make(&self.workspace, &initrd, initramfs::COMMANDS, &linux.busybox, &files)?;
        // The same addresses in each run.
        let bare = self.bare(name, cpus, "console=ttyAMA0 panic=-1 loglevel=5 nokaslr");
        Ok(GuestSettings { kernel: linux.kernel, initrd: Some(initrd), memory: 256 << 20, ..bare })
    }

    /// The same with the drivers of virtio, which are loaded before the first command.
    pub fn networked(&self, name: &str, cpus: u32, commands: &[String]) -> anyhow::Result<GuestSettings> {
        let kernel = Kernel::DEFAULT.fetch(&self.workspace, false)?;
        let mut files = BTreeMap::from([(commands::FILE.to_owned(), commands::lines(commands)?)]);
        for module in &kernel.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            files.insert(format!("modules/{name}"), fs::read(module).context("the cached kernel lost a module")?);
        }
        let busybox = fetch::fetch(&self.workspace, false)?.busybox;
        let initrd = initramfs::make(&self.workspace, &format!("{name}.cpio"), initramfs::COMMANDS, &busybox, &files)?;
        let bare = self.bare(name, cpus, "console=ttyAMA0 panic=-1 loglevel=5");
        Ok(GuestSettings { kernel: kernel.kernel, initrd: Some(initrd), memory: 256 << 20, ..bare })
    }

    /// Boots guests that have to pass their own checks and then power off.
    pub fn checked(&self, guests: Vec<GuestSettings>, clock: Clock) -> anyhow::Result<Outcome> {
        self.boot(guests, clock, true)
    }

    /// Boots guests, of which the last has to power off.
    pub fn ended(&self, guests: Vec<GuestSettings>, clock: Clock) -> anyhow::Result<Outcome> {
        self.boot(guests, clock, false)
    }

    /// Boots guests on two CPUs, and leaves their consoles to `drive`.
    pub fn with_consoles<T: Send>(
        &self,
        guests: Vec<GuestSettings>,
        consoles: &Arc<Session>,
        drive: impl FnOnce(&Session) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(Outcome, T)> {
        Self::plan(guests, Clock::Real, false).run_consoles(&self.workspace, &self.qemu, consoles, drive)
    }

    /// Boots guests, which `drive` commands. A command has to end them, or they power off.
    pub fn driven<T: Send>(
        &self,
        guests: Vec<GuestSettings>,
        clock: Clock,
        drive: impl FnOnce(Driver) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(Outcome, T)> {
        Self::plan(guests, clock, false).run_driven(&self.workspace, &self.qemu, drive)
    }

    /// The same, by this build of the hypervisor.
    pub fn driven_by<T: Send>(
        &self,
        image: Image<'static>,
        guests: Vec<GuestSettings>,
        drive: impl FnOnce(Driver) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(Outcome, T)> {
        build::images(&self.workspace, &[image.program()])?;
        Boot { image, ..Self::plan(guests, Clock::Real, false) }.run_driven(&self.workspace, &self.qemu, drive)
    }

    fn boot(&self, guests: Vec<GuestSettings>, clock: Clock, checked: bool) -> anyhow::Result<Outcome> {
        Self::plan(guests, clock, checked).run(&self.workspace, &self.qemu)
    }

    fn plan(guests: Vec<GuestSettings>, clock: Clock, checked: bool) -> Boot<'static> {
        Boot {
            label: "vm",
            guests,
            cpu: machine::CPU_DEFAULT,
            host_cpus: Some(if clock == Clock::RealOnFour { 4 } else { 2 }),
            deterministic: clock == Clock::Counted,
            checked,
            // Against hangs.
            timeout: Some(Duration::from_secs(900)),
            terminal: false,
            image: Image::Plain,
        }
    }
}

fn linux(workspace: &Workspace) -> anyhow::Result<(PathBuf, PathBuf)> {
    let selected = guest::select(workspace, &Wanted::linux())?;
    Ok((selected.kernel, selected.initrd.context("Linux without an initrd")?))
}

/// The lines that the hypervisor wrote on the ends of guests, in their order.
pub fn ends(outcome: &Outcome) -> Vec<&str> {
    let ends = |line: &&String| [": reset", ": power-off"].iter().any(|end| line.ends_with(end));
    outcome.control.log.iter().filter(ends).map(String::as_str).collect()
}

/// The number between these words, in the one line of the console that has them.
pub fn figure(outcome: &Outcome, before: &str, after: &str) -> anyhow::Result<u64> {
    let console = outcome.console.tail(usize::MAX);
    let mut numbers = console.iter().filter_map(|line| line.split_once(before)?.1.strip_suffix(after));
    let number = numbers.next().with_context(|| format!("no line `{before}N{after}`:\n{}", console.join("\n")))?;
    ensure!(numbers.next().is_none(), "two lines `{before}N{after}`:\n{}", console.join("\n"));
    number.parse().with_context(|| format!("`{before}{number}{after}`"))
}
