// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Installs missing tools, and prints each command before it runs.
//!
//! Invariant: nothing is installed silently. If this program may not install a tool, the error has the exact command.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use twofold_launch::{Qemu, QemuError};

use crate::output;
use crate::steps::Steps;
use crate::subprocess;

/// The target of the bare-metal images: no FP or SIMD registers, which belong to the guest.
pub const TARGET: &str = "aarch64-unknown-none-softfloat";
/// The target of Linux on arm64, for which the engine must build too.
pub const ARM64_LINUX: &str = "aarch64-unknown-linux-gnu";
/// The C compiler that [`arm64_compiler`] installs.
pub const ARM64_COMPILER: &str = "aarch64-linux-gnu-gcc";
/// Debian's package with it.
pub const ARM64_COMPILER_PACKAGE: &str = "gcc-aarch64-linux-gnu";
/// Debian's package with `qemu-system-aarch64`.
pub const QEMU_PACKAGE: &str = "qemu-system-arm";
const APT_LISTS: &str = "/var/lib/apt/lists";

/// Installs the tools that build and start an image, as one step.
pub fn tools(steps: &Steps) -> anyhow::Result<Qemu> {
    steps.step("tools", || {
        target(TARGET)?;
        let qemu = qemu()?;
        let words = format!("QEMU {}, Rust target {TARGET}", qemu.version());
        Ok((qemu, words))
    })
}

/// Returns QEMU. If it is missing, the system's package manager installs it.
pub fn qemu() -> anyhow::Result<Qemu> {
    match Qemu::find() {
        Err(QemuError::Missing { program }) if program == Path::new(twofold_launch::qemu::PROGRAM) => {
            install_package(QEMU_PACKAGE, "QEMU 7.2 or later")?;
            Ok(Qemu::find()?)
        }
        found => Ok(found?),
    }
}

/// Installs a program with the system's package manager, if it is missing.
pub fn program(name: &str, package: &str) -> anyhow::Result<()> {
    match subprocess::find(name) {
        Some(_) => Ok(()),
        None => install_package(package, name),
    }
}

/// Returns the path of a program for administrators, which may be outside a user's `PATH`. If it is missing, the system's
/// package manager installs it.
pub fn system_program(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = find_system_program(name) {
        return Ok(path);
    }
    install_package(package, name)?;
    find_system_program(name).with_context(|| format!("{package} is installed and has no {name}"))
}

/// Returns the path of a program for administrators, if it is there.
pub fn find_system_program(name: &str) -> Option<PathBuf> {
    let elsewhere = ["/usr/sbin", "/sbin"].map(|directory| Path::new(directory).join(name));
    subprocess::find(name).or_else(|| elsewhere.into_iter().find(|path| path.is_file()))
}

/// Installs a C compiler for Linux on arm64 without a C library, if it is missing. Kernels need no more.
pub fn arm64_kernel_compiler() -> anyhow::Result<()> {
    program(ARM64_COMPILER, ARM64_COMPILER_PACKAGE)
}

/// Installs a C compiler for Linux on arm64 and its static C library, if they are missing.
pub fn arm64_compiler() -> anyhow::Result<()> {
    arm64_kernel_compiler()?;
    // If the compiler does not find the file, it prints the bare name.
    let library = subprocess::read(Command::new(ARM64_COMPILER).arg("-print-file-name=libc.a"))?;
    if Path::new(library.trim()).is_file() {
        return Ok(());
    }
    install_package("libc6-dev-arm64-cross", "a static C library for arm64")
}

/// Installs a Rust target, if it is missing.
pub fn target(name: &str) -> anyhow::Result<()> {
    if has_target(name) {
        return Ok(());
    }
    rustup(&["target", "add", name])
}

/// Installs a Rust toolchain by its version, without components, if it is missing.
pub fn toolchain(version: &str) -> anyhow::Result<()> {
    let there = subprocess::output(Command::new("rustup").args(["run", version, "rustc", "--version"]));
    if there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    rustup(&["toolchain", "install", version, "--profile", "minimal"])
}

/// Installs a component of the Rust toolchain, if `cargo PROGRAM` does not run.
pub fn component(name: &str, program: &str) -> anyhow::Result<()> {
    // The proxies of rustup always exist. A proxy fails if its component is missing.
    let there = subprocess::output(Command::new("cargo").args([program, "--version"]));
    if there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    rustup(&["component", "add", name])
}

/// Returns whether a Rust target is installed.
pub fn has_target(name: &str) -> bool {
    let mut command = Command::new("rustc");
    command.args(["--print", "target-libdir", "--target", name]);
    let Ok(path) = subprocess::read(&mut command) else { return false };
    // The directory may exist and be empty, so `core` must be in it.
    fs::read_dir(PathBuf::from(path.trim())).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libcore")))
    })
}

/// Returns the command line that installs `package`, or `None` if there is no apt-get.
pub fn package_command(package: &str) -> Option<String> {
    subprocess::find("apt-get")?;
    let sudo = if is_root() { "" } else { "sudo " };
    Some(format!("{sudo}apt-get install -y --no-install-recommends {package}"))
}

/// Returns whether this program may install packages without asking the user.
pub fn may_install_packages() -> bool {
    subprocess::find("apt-get").is_some() && (is_root() || subprocess::find("sudo").is_some())
}

fn rustup(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("rustup");
    command.args(arguments);
    let typed = subprocess::shown(&command);
    if subprocess::find("rustup").is_none() {
        bail!("rustup is missing, so `{typed}` cannot be done; install the same by your system's means");
    }
    output::line(&format!("missing: running `{typed}`"))?;
    subprocess::show(&mut command).with_context(|| format!("`{typed}` failed; run it by hand to see why"))
}

fn install_package(package: &str, what: &str) -> anyhow::Result<()> {
    let Some(typed) = package_command(package) else {
        bail!("{package} is missing and there is no apt-get here; install {what} by your system's means");
    };
    if !may_install_packages() {
        bail!("{package} is missing and only root may install it; run as root: {}", typed.trim_start_matches("sudo "));
    }
    output::line(&format!("missing: running `{typed}`"))?;
    let install = || subprocess::show(apt_get().args(["install", "-y", "--no-install-recommends", package]));
    let lists_are_empty = fs::read_dir(APT_LISTS).map_or(true, |entries| {
        !entries.flatten().any(|entry| entry.file_name().to_string_lossy().contains("_dists_"))
    });
    if lists_are_empty || install().is_err() {
        // There are no package lists, or they name packages that no longer exist.
        subprocess::show(apt_get().arg("update")).context("`apt-get update` failed")?;
        install().with_context(|| format!("`{typed}` failed; run it by hand to see why"))?;
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = if is_root() {
        Command::new("apt-get")
    } else {
        let mut command = Command::new("sudo");
        if !io::stdin().is_terminal() {
            // Without a terminal no password can be typed: sudo must fail, not wait.
            command.arg("-n");
        }
        command.arg("apt-get");
        command
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    subprocess::read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
