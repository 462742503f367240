// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: the command's answers to bad input, and to a network that does not answer.

use std::fs;

use anyhow::{Context, ensure};
use twofold_workspace::install;

use super::kernels::spinning_kernel;
use super::suite::{Suite, refused_with, script, text};

pub fn fallback(suite: &Suite) -> anyhow::Result<()> {
    let ended = suite.without_network("fallback", &["--check"])?;
    ensure!(ended.ok, "the fallback failed:\n{}{}", ended.stdout, ended.stderr);
    for words in
        ["because Debian's kernel cannot be fetched", "the network is unreachable", "not Linux", "guest check: ok"]
    {
        ensure!(ended.stdout.contains(words), "no {words:?} in:\n{}", ended.stdout);
    }
    let cache = suite.path("fallback-cache");
    let left: Vec<_> = fs::read_dir(&cache)?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(left.is_empty(), "a failed fetch left {left:?} in the cache");
    Ok(())
}

pub fn no_fallback(suite: &Suite) -> anyhow::Result<()> {
    let words = ["Debian's kernel cannot be fetched", "the network is unreachable", "--guest bare"];
    refused_with(suite.without_network("no-fallback", &["--check", "--guest", "linux"])?, &words)
}

pub fn bad_kernel(suite: &Suite) -> anyhow::Result<()> {
    let gzip = suite.path("gzip");
    fs::write(&gzip, b"\x1f\x8b\x08\0")?;
    suite.refused(&["--check", "--kernel", text(&gzip)?], &["not an arm64 Image", "gunzip"])?;
    let missing = suite.path("missing");
    suite.refused(&["--check", "--kernel", text(&missing)?], &["cannot read the kernel", "missing"])
}

pub fn bad_initrd(suite: &Suite) -> anyhow::Result<()> {
    let kernel = suite.path("kernel-for-initrd");
    fs::write(&kernel, spinning_kernel())?;
    let initrd = suite.path("large-initrd");
    fs::File::create(&initrd)?.set_len(100 << 20)?;
    let arguments = ["--check", "--kernel", text(&kernel)?, "--initrd", text(&initrd)?];
    suite.refused(&[&arguments[..], &["--memory", "64M"]].concat(), &["the initrd does not fit", "--memory 1"])?;
    let missing = suite.path("missing");
    let arguments = ["--check", "--kernel", text(&kernel)?, "--initrd", text(&missing)?];
    suite.refused(&arguments, &["cannot read the initrd"])
}

pub fn bad_memory(suite: &Suite) -> anyhow::Result<()> {
    suite.refused(&["--check", "--memory", "8M"], &["too little", "64M"])?;
    suite.refused(&["--check", "--memory", "134217729"], &["multiple of 4K", "page"])?;
    suite.refused(&["--check", "--pages", "blocks", "--memory", "131076K"], &["multiple of 2M"])
}

pub fn bad_combinations(suite: &Suite) -> anyhow::Result<()> {
    suite.refused(&["--count", "--cpus", "2"], &["one vCPU"])?;
    suite.refused(&["--check", "--cpus", "65"], &["1..=64"])?;
    let long = "x".repeat(3000);
    suite.refused(&["--check", "--append", &long], &["shorten it"])
}

pub fn bad_qemu(suite: &Suite) -> anyhow::Result<()> {
    let old = suite.path("old-qemu");
    script(&old, "echo 'QEMU emulator version 6.2.0'")?;
    refused_with(suite.start(&["--check"], &[("TWOFOLD_QEMU", &old)])?, &["6.2.0", "7.2.0 or later"])?;
    let missing = suite.path("no-qemu");
    refused_with(suite.start(&["--check"], &[("TWOFOLD_QEMU", &missing)])?, &["TWOFOLD_QEMU names", "was not found"])
}

/// A machine that lacks what no guest can do without names it on its UART, and switches itself off.
pub fn bad_machine(suite: &Suite) -> anyhow::Result<()> {
    let (wanted, real) = ("virtualization=on,gic-version=3", install::qemu()?);
    for (number, (has, words)) in [
        ("virtualization=off,gic-version=3", "no EL2"),
        ("secure=on,gic-version=3", "no EL2"),
        ("virtualization=on,gic-version=2", "no GICv3"),
    ]
    .into_iter()
    .enumerate()
    {
        let qemu = suite.path(&format!("bad-machine-{number}"));
        let change = format!("shift; set -- \"$@\" \"$(printf %s \"$argument\" | sed s/{wanted}/{has}/)\"");
        let body = format!("for argument; do {change}; done\nexec '{}' \"$@\"", real.program().display());
        script(&qemu, &body)?;
        let ended = suite.start(&["--check", "--guest", "bare", "--timeout", "60"], &[("TWOFOLD_QEMU", &qemu)])?;
        refused_with(ended, &[words, "QEMU was closed"]).with_context(|| format!("a machine with {has}"))?;
    }
    Ok(())
}
