// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold run`: guests under the hypervisor, in a QEMU of their own.
//!
//! Invariant: errors that options and files show come before anything starts. However the command ends, QEMU and the
//! command's files are gone, and the terminal has its settings again.

mod config;
mod device_tree;
mod image;
mod incoming;
mod options;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use twofold_abi::virt::MAX_CPUS;
use twofold_bench::output;
use twofold_launch::interactive::{self, InteractiveError, Origin};
use twofold_launch::sample::Known;
use twofold_launch::snapshot::Snapshot;
use twofold_launch::spec::Net;
use twofold_launch::{Bundle, Launch, Loaded, Machine, Outcome, Qemu, RunError, Verdict, bundle};

pub use options::Options;

use crate::signals;
use config::Config;

/// What `--help` has at its end.
pub const HELP: &str = "\
On a terminal every key goes to the guest, Ctrl-C too. Ctrl-] opens the monitor: stat, stop, cont, reset, dirty, split,
coalesce, balloon, quit, attach NAME, help. `twofold attach NAME` connects another terminal, `twofold stat` shows figures.
Without a terminal, Ctrl-C ends the run.

Examples:
  twofold run --kernel Image --initrd root.cpio --append rdinit=/bin/sh
  twofold run --kernel Image --append 'root=/dev/vda rw' --disk root.img --net user,tcp:127.0.0.1:8022-:22 --memory 1G
  twofold run --firmware u-boot.bin --disk debian.img,ro --cpus 4 --host-cpus 2
  twofold run --kernel Image --name web --weight 128 --net inner --guest name=db,memory=2G,net=inner,disk=db.img
  twofold run --config vm.toml --memory 4G
  twofold run --kernel Image --dtb-dump guest.dtb
  twofold run --from web.snapshot
  twofold run --incoming :4444 --key key --owner /shared/web.owner

Environment:
  TWOFOLD_QEMU     the QEMU to use, instead of qemu-system-aarch64 from PATH
  XDG_RUNTIME_DIR  where `twofold attach` and `twofold stat` find this run; without it, the directory for temporary files

Exit status: 0 if the last guest powered off, or the monitor ended it; 1 for an error; 2 for wrong options; 3 if the last
guest asked for a reset, without --restart; 124 if the time of --timeout was over; 130 if a signal ended the run.";

/// The last guest asked for a reset.
const RESET: u8 = 3;
/// The time was over, as `timeout` says it.
const TIMED_OUT: u8 = 124;

/// `twofold run`.
pub fn command(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(file) = &options.from {
        return go_on(options, file);
    }
    if options.incoming.is_some() {
        return incoming::command(options);
    }
    let mut options = options.clone();
    let config = options.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    let more = options.complete(config);
    let guests = options.guests(&more);
    if let Some(guest) = guests.iter().find(|guest| guest.firmware.is_none() && guest.kernel.as_os_str().is_empty()) {
        let of = if guests.len() > 1 { format!("guest {}: ", guest.name) } else { String::new() };
        bail!("{of}give --kernel FILE (an arm64 Image or an ELF program), or --firmware FILE");
    }
    // That of the option is in its range already.
    if let Some(cpus) = options.host_cpus.filter(|cpus| !(1..=MAX_CPUS).contains(cpus)) {
        bail!("host-cpus = {cpus} is not possible; give 1 to {MAX_CPUS}");
    }
    let attached = match &options.attach {
        Some(name) if !guests.iter().any(|guest| guest.name == *name) => {
            let names: Vec<_> = guests.iter().map(|guest| guest.name.as_str()).collect();
            bail!("--attach: there is no guest {name}; there is {}", names.join(", "));
        }
        name => name.as_deref(),
    };
    bundle::check(&guests)?;
    let directory = tempfile::Builder::new().prefix("twofold-").tempdir().context("cannot make a directory")?;
    if let Some(to) = &options.dtb_dump {
        let bundle = Bundle::write(&guests, &directory.path().join("guest.bundle"))?;
        for file in device_tree::dump(&bundle.path, to)? {
            output::line(&file.display().to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let image = image::find(options.image.as_deref(), directory.path())?;
    let qemu = Qemu::find()?;
    let bundle = Bundle::write(&guests, &directory.path().join("guest.bundle"))?;
    let memory = bundle::total_memory(&guests);
    let cpus = options.host_cpus.unwrap_or_else(|| bundle::machine_cpus(&guests));
    let known: Vec<_> = guests.iter().map(Known::of).collect();
    let machine = machine(image, Loaded::Guest { bundle, memory }, cpus, &options);
    start(
        &Started { qemu: &qemu, machine: &machine, directory: directory.path(), options: &options },
        &known,
        Origin::Start,
        attached,
    )
}

/// `twofold run --from`.
fn go_on(options: &Options, file: &Path) -> anyhow::Result<ExitCode> {
    let mut snapshot = Snapshot::open(file)?;
    if !options.net.is_empty() {
        let networks: Vec<_> = options.net.iter().filter_map(|Net(network)| network.clone()).collect();
        snapshot.set_networks(&networks)?;
    }
    if !options.disk.is_empty() {
        snapshot.set_disks(&options.disk)?;
    }
    snapshot.devices.check()?;
    let directory = tempfile::Builder::new().prefix("twofold-").tempdir().context("cannot make a directory")?;
    let image = image::find(options.image.as_deref(), directory.path())?;
    let qemu = Qemu::find()?;
    let path = directory.path().join("guest.bundle");
    let size = snapshot.write_bundle(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let guest = snapshot.guest.clone();
    let bundle = Bundle { path, size, names: vec![guest.name.clone()], devices: snapshot.devices.clone() };
    let loaded = Loaded::Guest { bundle, memory: snapshot.memory };
    let machine = machine(image, loaded, options.host_cpus.unwrap_or(guest.cpus), options);
    let started = Started { qemu: &qemu, machine: &machine, directory: directory.path(), options };
    start(&started, &[guest], Origin::File(Box::new(snapshot)), None)
}

fn machine(image: PathBuf, loaded: Loaded, cpus: u32, options: &Options) -> Machine {
    let cpu = options.cpu.clone();
    Machine { image, loaded, spare_memory: 0, append: None, cpu, cpus, memory_file: None, deterministic: false }
}

/// What a run is started with.
struct Started<'a> {
    qemu: &'a Qemu,
    machine: &'a Machine,
    directory: &'a Path,
    options: &'a Options,
}

fn start(started: &Started<'_>, guests: &[Known], from: Origin, attached: Option<&str>) -> anyhow::Result<ExitCode> {
    let Started { qemu, machine, directory, options } = *started;
    let stop = signals::stop()?;
    let timeout = options.timeout.map(Duration::from_secs);
    let launch = Launch { qemu, machine, directory, trace: None, timeout, stop };
    match interactive::run(&launch, guests, from, attached) {
        Ok(outcome) => judge(&outcome, options),
        Err(InteractiveError::Run(RunError::Stopped)) => Ok(ExitCode::from(signals::INTERRUPTED)),
        Err(InteractiveError::Run(RunError::TimedOut { limit, .. })) => {
            output::error(&format!("the guests did not end within {} s, and were ended (--timeout)", limit.as_secs()));
            Ok(ExitCode::from(TIMED_OUT))
        }
        Err(error) => Err(error.into()),
    }
}

fn judge(outcome: &Outcome, options: &Options) -> anyhow::Result<ExitCode> {
    match Verdict::new(outcome, false) {
        Verdict::Ok => Ok(ExitCode::SUCCESS),
        Verdict::Reset => {
            output::error("the guest asked for a reset, and was ended; with --restart it begins anew");
            Ok(ExitCode::from(RESET))
        }
        Verdict::Qemu(_, said) if !said.is_empty() => bail!("{}", of_qemu(&said, options)),
        verdict => bail!("{verdict}"),
    }
}

/// QEMU's own error, and what to do about it.
fn of_qemu(said: &str, options: &Options) -> String {
    let advice = match () {
        () if said.contains("Failed to get") && said.contains("lock") => {
            "another QEMU has this disk; end it, or add `,ro` to the disk in both"
        }
        () if said.contains("host forwarding rule") => {
            "a port of --net is in use, or needs privileges; give another one"
        }
        () if said.contains("Failed to connect") => "is `twofold switch`, or the NBD server, running?",
        () if said.contains("CPU") && options.cpu != twofold_launch::machine::CPU_DEFAULT => {
            "is --cpu a model of QEMU's?"
        }
        () => return format!("QEMU failed: {said}"),
    };
    format!("QEMU failed: {said}\n{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_says_comes_with_advice() {
        let said = "qemu-system-aarch64: -blockdev driver=raw: Failed to get \"write\" lock\nIs another process using the image?";
        assert!(of_qemu(said, &Options::default()).contains("another QEMU has this disk"));
        assert_eq!(of_qemu("x", &Options::default()), "QEMU failed: x");
    }
}
