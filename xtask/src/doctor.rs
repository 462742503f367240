// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask doctor`: reports which tools are present, which are missing, and the exact command that installs each.
//!
//! Invariant: `doctor` changes nothing. It ends with 0 exactly if `run` can proceed without the user.

use std::process::{Command, ExitCode};

use twofold_launch::qemu::{OLDEST, VARIABLE};
use twofold_launch::{Qemu, QemuError};
use twofold_workspace::{Workspace, fetch, install, kernels, output, root, subprocess, table};

/// `cargo xtask doctor`.
pub fn command(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let findings = examine(workspace);
    let rows = findings.iter().map(|finding| {
        vec![finding.name.to_owned(), finding.state.word().to_owned(), finding.detail.clone(), finding.fix.clone()]
    });
    output::line(&table::of_words(&["what", "state", "version or reason", "to fix it"], rows))?;
    let blocked = findings.iter().any(|finding| matches!(finding.state, State::Blocks | State::TooOld));
    Ok(if blocked { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// Missing; `run` or `test` installs it.
    Later,
    /// Missing; `run` boots the bare-metal guest instead.
    Fallback,
    /// Missing; the user must install it.
    Blocks,
    /// Present, but too old; the user must install a newer one.
    TooOld,
}

struct Finding {
    name: &'static str,
    state: State,
    detail: String,
    fix: String,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Later => "will be installed",
            Self::Fallback => "not here",
            Self::Blocks => "MISSING",
            Self::TooOld => "TOO OLD",
        }
    }
}

impl Finding {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: State::Ok, detail: detail.into(), fix: String::new() }
    }
}

fn examine(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = vec![program("rustc"), program("cargo"), target()];
    findings.push(component("rustfmt", "fmt"));
    findings.push(component("clippy", "clippy"));
    findings.push(qemu());
    findings.extend(guest(workspace));
    findings.extend(linux_module());
    findings
}

fn program(name: &'static str) -> Finding {
    match subprocess::read(Command::new(name).arg("--version")) {
        Ok(version) => Finding::ok(name, version.trim()),
        Err(error) => Finding {
            name,
            state: State::Blocks,
            detail: format!("{error:#}"),
            fix: "install Rust with rustup, then `rustup toolchain install stable`".to_owned(),
        },
    }
}

fn target() -> Finding {
    if install::has_target(install::TARGET) {
        return Finding::ok("rust target", install::TARGET);
    }
    by_rustup("rust target", install::TARGET, format!("rustup target add {}", install::TARGET))
}

fn component(name: &'static str, subcommand: &str) -> Finding {
    match subprocess::read(Command::new("cargo").args([subcommand, "--version"])) {
        Ok(version) => Finding::ok(name, version.trim()),
        // Only `test` needs the component, so it never blocks `run`.
        Err(_) => Finding {
            name,
            state: State::Later,
            detail: "for `test` only".to_owned(),
            fix: format!("rustup component add {name}"),
        },
    }
}

fn by_rustup(name: &'static str, detail: &str, fix: String) -> Finding {
    let state = if subprocess::find("rustup").is_some() { State::Later } else { State::Blocks };
    Finding { name, state, detail: detail.to_owned(), fix }
}

fn qemu() -> Finding {
    let error = match Qemu::find() {
        Ok(qemu) => return Finding::ok("qemu", format!("{} ({})", qemu.version(), qemu.program().display())),
        Err(error) => error,
    };
    let state = match error {
        QemuError::Missing { .. } if install::may_install_packages() => State::Later,
        QemuError::TooOld { .. } => State::TooOld,
        _ => State::Blocks,
    };
    let fix = match (Qemu::named(), install::package_command(install::QEMU_PACKAGE)) {
        // Installing a package does not change which program the variable names.
        (Some(_), _) => format!("unset {VARIABLE}, or name QEMU {OLDEST} or later in it"),
        (None, Some(command)) => command,
        (None, None) => format!("install QEMU {OLDEST} or later (qemu-system-aarch64) by your system's means"),
    };
    Finding { name: "qemu", state, detail: error.to_string(), fix }
}

/// What builds the Linux module of guests that know asynchronous page faults.
fn linux_module() -> impl Iterator<Item = Finding> {
    let tools = [(install::ARM64_COMPILER, install::ARM64_COMPILER_PACKAGE), ("make", "make")];
    tools.into_iter().map(|(name, package)| match subprocess::find(name) {
        Some(path) => Finding::ok(name, path.display().to_string()),
        None => Finding {
            name,
            state: State::Later,
            detail: "for the Linux module only".to_owned(),
            fix: install::package_command(package).unwrap_or_else(|| format!("install {package}")),
        },
    })
}

fn guest(workspace: &Workspace) -> Vec<Finding> {
    let mut findings: Vec<_> = ["apt-get", "apt-cache", "dpkg", "dpkg-deb"]
        .into_iter()
        .map(|name| match subprocess::find(name) {
            Some(path) => Finding::ok(name, path.display().to_string()),
            None => Finding {
                name,
                state: State::Fallback,
                detail: "without it the bare-metal guest runs instead of Linux".to_owned(),
                fix: "run on Debian or in a container of it, or give --kernel and --initrd".to_owned(),
            },
        })
        .collect();
    findings.extend([("mke2fs", root::E2FSPROGS), ("debugfs", root::E2FSPROGS), ("depmod", kernels::KMOD)].map(
        |(name, package)| match install::find_system_program(name) {
            Some(path) => Finding::ok(name, path.display().to_string()),
            None => Finding {
                name,
                state: State::Later,
                detail: "for guests with a disk only".to_owned(),
                fix: install::package_command(package).unwrap_or_else(|| format!("install {package}")),
            },
        },
    ));
    findings.push(match fetch::cached(workspace) {
        Some(fetched) => {
            let packages: Vec<_> =
                fetched.versions.packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
            Finding::ok("linux guest", packages.join(", "))
        }
        None => Finding {
            name: "linux guest",
            state: State::Later,
            detail: "not fetched yet".to_owned(),
            fix: "cargo xtask run --check".to_owned(),
        },
    });
    findings
}
