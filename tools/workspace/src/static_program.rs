// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of the workspace as one static file.
//!
//! Invariant: such a file needs no library, no other file and no dynamic linker, so it also runs from an initramfs. The
//! build needs no C compiler and no system linker: the Rust target includes musl, and the toolchain includes a linker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;
use object::Endianness;
use object::elf::{FileHeader64, PT_DYNAMIC, PT_INTERP};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};

use crate::subprocess;
use crate::workspace::Workspace;

/// The command `twofold`.
pub const TWOFOLD: Program = Program { package: "twofold", name: "twofold", is_example: false };
/// The checks of the experiments' guest under KVM, which print TAP.
pub const KVM_CHECKS: Program = Program { package: "twofold-kvm", name: "selftest", is_example: true };
/// The benchmark of asynchronous page faults, for a Linux guest.
pub const BM: Program = Program { package: "twofold-bm", name: "bm", is_example: false };

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

/// An architecture for which `dist` builds a static program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Architecture {
    /// arm64
    Aarch64,
    /// x86-64
    #[value(name = "x86_64")]
    X86_64,
}

impl Architecture {
    /// The architecture's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64",
            Self::X86_64 => "x86_64",
        }
    }

    /// The Rust target that links a C library statically.
    pub const fn target(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64-unknown-linux-musl",
            Self::X86_64 => "x86_64-unknown-linux-musl",
        }
    }
}

/// Builds `program`; returns its path. The Rust target must be installed.
pub fn build(
    workspace: &Workspace,
    program: Program,
    architecture: Architecture,
    profile: Profile,
) -> anyhow::Result<PathBuf> {
    build_with(workspace, program, architecture, profile, None)
}

/// As [`build`], with this image of the hypervisor in the program ([`TWOFOLD`] alone has a place for one).
pub fn build_with(
    workspace: &Workspace,
    program: Program,
    architecture: Architecture,
    profile: Profile,
    image: Option<&Path>,
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
    if let Some(image) = image {
        cargo.env("TWOFOLD_IMAGE", image);
    }
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

    #[test]
    fn architectures_are_called_what_they_are_named() {
        for architecture in Architecture::value_variants() {
            let value = architecture.to_possible_value();
            assert_eq!(value.map(|value| value.get_name() == architecture.name()), Some(true));
            assert!(architecture.target().starts_with(architecture.name()));
        }
    }
}
