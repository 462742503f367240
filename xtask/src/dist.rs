// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask dist`: builds the command `twofold` as one static file.
//!
//! Invariant: the file needs no library, no other file and no dynamic linker, so it also runs from an initramfs. The
//! build needs no C compiler and no system linker: the Rust target includes musl, and the toolchain includes a linker.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use object::Endianness;
use object::elf::{FileHeader64, PT_DYNAMIC, PT_INTERP};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};

use crate::arguments::{Architecture, DistOptions};
use crate::figures::thousands;
use crate::install;
use crate::output;
use crate::steps::Steps;
use crate::subprocess;
use crate::workspace::Workspace;

/// The command `twofold`.
pub const TWOFOLD: Program = Program { package: "twofold", name: "twofold", is_example: false };
/// The checks of the experiments' guest under KVM, which print TAP.
pub const KVM_CHECKS: Program = Program { package: "twofold-kvm", name: "selftest", is_example: true };

/// A program of the workspace that can be built as one static file.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program's package.
    pub package: &'static str,
    /// The program's name in its package.
    pub name: &'static str,
    /// Whether the program is an example of the package.
    pub is_example: bool,
}

/// A profile of the workspace's Cargo.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For release.
    Release,
    /// For tests: a shorter build.
    Quick,
}

impl Profile {
    /// The profile's name, and the name of its build directory.
    const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }
}

/// `cargo xtask dist`.
pub fn command(workspace: &Workspace, options: &DistOptions) -> anyhow::Result<ExitCode> {
    let steps = Steps::new(workspace.stop().clone());
    let architectures: &[_] = match &options.architecture {
        Some(one) => std::slice::from_ref(one),
        None => &[Architecture::Aarch64, Architecture::X86_64],
    };
    let mut sums = Vec::new();
    for architecture in architectures {
        steps.step("target", || {
            install::target(architecture.target())?;
            Ok(((), architecture.target().to_owned()))
        })?;
        let file = steps.step("build", || {
            let built = build(workspace, TWOFOLD, *architecture, Profile::Release)?;
            let file = workspace.dist().join(format!("{}-{}", TWOFOLD.name, architecture.name()));
            fs::copy(&built, &file).with_context(|| format!("cannot write {}", file.display()))?;
            let size = fs::metadata(&file)?.len();
            let words = format!("{} ({} bytes)", workspace.shown(&file).display(), thousands(size));
            Ok((file, words))
        })?;
        sums.push(subprocess::read(
            Command::new("sha256sum").arg(workspace.shown(&file)).current_dir(workspace.root()),
        )?);
    }
    output::line(&format!("\nsha256:\n{}", sums.concat().trim_end()))?;
    Ok(ExitCode::SUCCESS)
}

/// Builds `program`; returns its path. The Rust target must be installed.
pub fn build(
    workspace: &Workspace,
    program: Program,
    architecture: Architecture,
    profile: Profile,
) -> anyhow::Result<PathBuf> {
    let profile = profile.name();
    let target = architecture.target();
    let Program { package, name, is_example } = program;
    let (option, folder) = if is_example { ("--example", "examples") } else { ("--bin", "") };
    let directory = workspace.dist().join("build");
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace.root()).args(["build", "--profile", profile, "--package", package, option, name]);
    // A separate directory, because other flags would invalidate every host build.
    cargo.args(["--target", target, "--target-dir"]).arg(&directory);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    subprocess::show(&mut cargo)?;
    let built = directory.join(target).join(profile).join(folder).join(name);
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    check_static(&bytes).with_context(|| format!("{} is not static", built.display()))?;
    Ok(built)
}

/// The linker is Rust's own. Symbols are stripped: a panic message has its source position, which is enough for a
/// command.
const FLAGS: [&str; 8] = [
    "-C",
    "linker=rust-lld",
    "-C",
    "target-feature=+crt-static",
    "-C",
    "relocation-model=static",
    "-C",
    "strip=symbols",
];

fn check_static(elf: &[u8]) -> anyhow::Result<()> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(elf)?;
    let header: &FileHeader64<Endianness> = file.elf_header();
    let dynamic = header
        .program_headers(file.endian(), elf)?
        .iter()
        .find(|segment| matches!(segment.p_type(file.endian()), PT_INTERP | PT_DYNAMIC));
    if dynamic.is_some() {
        bail!("it asks for a dynamic linker");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn a_program_with_a_dynamic_linker_is_refused() {
        // This test program is dynamically linked.
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        let error = check_static(&own).unwrap_err().to_string();
        assert!(error.contains("dynamic linker"), "{error}");
        assert!(check_static(b"#!/bin/sh").is_err());
    }
}
