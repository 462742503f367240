// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tools/embedded`, the engine in a program without an operating system: what is in its code, and whether it runs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use libtest_mimic::{Failed, Trial};
use object::{Object, ObjectSection, ObjectSymbol};
use twofold_workspace::{Workspace, install, output, subprocess};

use super::cargo::{cargo, step};
use super::harness::trial;

/// The most bytes of code of the program that maps, unmaps, protects and splits.
const MOST_CODE: u64 = 24 << 10;
/// In the symbol of each function that panics, in either mangling.
const PANICKING: &str = "9panicking";

/// Returns the tests that need no QEMU.
pub fn trials(workspace: &Workspace) -> Vec<Trial> {
    let mut clippy = cargo(workspace, &["clippy", "--release", "--package", "twofold-embedded", "--target"]);
    clippy.args([install::TARGET, "--", "-D", "warnings"]);
    let of = workspace.clone();
    let judge = move || code(&of).map_err(|error| Failed::from(format!("{error:#}")));
    vec![step("clippy_embedded", clippy), trial("embedded_has_no_panic_and_little_code", judge)]
}

/// Returns the test that runs the program on an emulated CPU.
pub fn runs(workspace: &Workspace, qemu: PathBuf, cpu: &'static str) -> Trial {
    let workspace = workspace.clone();
    trial("embedded_translates_as_the_cpu_does", move || {
        run(&workspace, &qemu, cpu).map_err(|error| Failed::from(format!("{error:#}")))
    })
    .with_kind(cpu.split(',').next().unwrap_or(cpu))
}

fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    install::target(install::TARGET)?;
    let mut cargo = cargo(workspace, &["build", "--release", "--package", "twofold-embedded", "--target"]);
    // A directory of its own: whatever the environment gives the host's builds has no part in the size.
    let directory = workspace.images().join("embedded");
    cargo.arg(install::TARGET).arg("--target-dir").arg(&directory).env("CARGO_ENCODED_RUSTFLAGS", "");
    subprocess::quiet(&mut cargo)?;
    Ok(directory.join(install::TARGET).join("release/embedded"))
}

/// Checks the symbols and the size of the code.
fn code(workspace: &Workspace) -> anyhow::Result<()> {
    let path = build(workspace)?;
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (panics, size) = read(&bytes)?;
    ensure!(panics.is_empty(), "the program can panic:\n{}", panics.join("\n"));
    ensure!(size <= MOST_CODE, "its .text has {size} bytes; the limit is {MOST_CODE}");
    output::line(&format!("embedded: .text has {size} bytes, of at most {MOST_CODE}"))
}

/// Returns the symbols of functions that panic, and the size of the code.
fn read(elf: &[u8]) -> anyhow::Result<(Vec<String>, u64)> {
    let file = object::File::parse(elf)?;
    let names: Vec<_> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    // A program without symbols would have none that panics.
    ensure!(names.iter().any(|name| name.contains("twofold_stage2")), "the program has no symbols");
    let panics = names.iter().filter(|name| name.contains(PANICKING)).map(|name| (*name).to_owned()).collect();
    let text = file.section_by_name(".text").context("the program has no code")?;
    Ok((panics, text.size()))
}

/// Runs the program. It ends QEMU with 0 if the CPU translated each address as the tables should.
fn run(workspace: &Workspace, qemu: &std::path::Path, cpu: &str) -> anyhow::Result<()> {
    let path = build(workspace)?;
    let mut command = Command::new(qemu);
    command.args(["-machine", "virt,virtualization=on", "-m", "64", "-nic", "none", "-display", "none"]);
    command.args(["-serial", "none", "-monitor", "none", "-semihosting", "-cpu", cpu, "-kernel"]).arg(path);
    let output = subprocess::output(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        None if said.contains(ABORTS) => output::line(&format!(
            "embedded: {cpu}: not judged, because this QEMU aborts at an AT that stage 2 refuses"
        )),
        status => bail!(
            "`{}` ended with {status:?} (tools/embedded/src/main.rs, `Failure`)\n{said}",
            subprocess::shown(&command),
        ),
    }
}

/// The assertion of QEMU 10.0 that fails when `AT S12E1R` ends in a fault of stage 2. QEMU 7.2 does not have it.
const ABORTS: &str = "do_ats_write: Assertion `!res.cacheattrs.is_s2_format' failed";
