// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: guests that do what they should not, a panic at EL2, and the trace of a run.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::qemu::VARIABLE;
use twofold_workspace::install;

use super::kernels::commanding_kernel;
use super::suite::{Ended, Suite, refused_with, script, text};

/// A guest's semihosting call is UNDEFINED and creates no file, also while EL2's instructions are counted. The same guest
/// creates it if QEMU serves semihosting, so the test would notice.
pub fn semihosting(suite: &Suite) -> anyhow::Result<()> {
    for (name, counted) in [("plain", false), ("counted", true)] {
        let proof = suite.path(&format!("guest-was-here-{name}"));
        let guest = suite.bare_guest(&format!("semihosting={}", text(&proof)?), if counted { flags::COUNT } else { 0 });
        let outcome = if counted { suite.boot_counted(guest) } else { suite.boot(guest) }?;
        let console = outcome.console.tail(20).join("\n");
        ensure!(console.contains("semihosting: UNDEFINED"), "{name}:\n{console}");
        ensure!(!proof.exists(), "{name}: the guest created a file on this machine");
    }
    let proof = suite.path("guest-was-here");
    let append = format!("semihosting={}", text(&proof)?);
    let qemu = serving(suite, "semihosting-qemu")?;
    let ended = suite.start(&["--check", "--guest", "bare", "--append", &append], &[(VARIABLE, &qemu)])?;
    refused_with(ended, &["SYS_OPEN was served"])?;
    ensure!(proof.exists(), "this test does not see a file that the guest creates");
    Ok(())
}

/// If QEMU serves semihosting, against our will, its sandbox prevents a guest's calls from starting a program.
pub fn host_command(suite: &Suite) -> anyhow::Result<()> {
    let (image, proof) = (suite.path("commanding"), suite.path("command-ran"));
    fs::write(&image, commanding_kernel(&format!("echo > '{}'", text(&proof)?)))?;
    let initrd = suite.path("commanding-initrd");
    fs::write(&initrd, b"070701")?;
    let qemu = serving(suite, "commanded-qemu")?;
    let arguments = ["--check", "--kernel", text(&image)?, "--initrd", text(&initrd)?];
    let ended = suite.start(&arguments, &[(VARIABLE, &qemu)])?;
    ensure!(!proof.exists(), "the guest ran a command on this machine");
    ensure!(!ended.ok, "the guest's run counts as a passed check");
    Ok(())
}

/// Returns a QEMU that serves semihosting, whatever its arguments are.
fn serving(suite: &Suite, name: &str) -> anyhow::Result<PathBuf> {
    let path = suite.path(name);
    let qemu = install::qemu()?;
    let options = "-semihosting-config enable=on,target=native";
    script(&path, &format!("exec '{}' \"$@\" {options}", text(qemu.program())?))?;
    Ok(path)
}

/// A guest accesses an address without memory. It gets an abort, reports it and continues.
pub fn wild(suite: &Suite) -> anyhow::Result<()> {
    let outcome = suite.bare("wild=0xb000000", 0)?;
    let console = outcome.console.tail(20).join("\n");
    ensure!(console.contains("external abort at 0xb000000"), "no external abort in:\n{console}");
    let aborts = outcome.control.report.get("faults.external");
    ensure!(aborts == Some(1), "faults.external is {aborts:?}, not 1");
    Ok(())
}

/// A guest takes interrupts from each of its devices, twice. An access that no syndrome describes is an external abort.
pub fn devices(suite: &Suite) -> anyhow::Result<()> {
    let outcome = suite.bare("devices", 0)?;
    let console = outcome.console.tail(20).join("\n");
    let timers = "devices: a timer of each time from 0 to 999 ticks";
    for line in ["devices: an SGI and both timers, twice", timers, "external abort at 0x9000000"] {
        ensure!(console.contains(line), "no {line:?} in:\n{console}");
    }
    Ok(())
}

/// The hypervisor writes a trace while it runs the bare-metal guest. The trace checker finds no breach in it.
pub fn trace(suite: &Suite) -> anyhow::Result<()> {
    let path = suite.path("a trace");
    let file = text(&path)?;
    // The last part of 67 MiB fits no block, so a table is taken for it. A CPU whose instruction caches need maintenance:
    // QEMU 10's default has CTR_EL0.DIC.
    let machine = ["--cpu", "cortex-a57", "--memory", "67M", "--trace", file];
    let said = suite.run(&[&["--check", "--guest", "bare"], &machine[..]].concat())?;
    ensure!(said.contains("trace-check"), "it does not print how to check the trace:\n{said}");
    let checked = Command::new(suite.workspace.command()).args(["trace-check", file]).output()?;
    let checked = Ended::of(checked);
    let last = checked.stdout.lines().last().unwrap_or_default();
    ensure!(checked.ok && last.ends_with(" 0 breaches"), "trace-check:\n{}{}", checked.stdout, checked.stderr);
    // The checker does not miss absent lines, so this test requires a line of each kind.
    let trace = fs::read_to_string(&path)?;
    ensure!(trace.ends_with('\n'), "the last line is cut off");
    let kinds: BTreeSet<_> = trace.lines().skip(1).filter_map(|line| line.split(' ').nth(2)).collect();
    let expected = ["feature", "root.made", "dc", "lock.taken", "lock.released", "dsb", "isb", "vttbr", "table.taken"];
    let later =
        ["fence", "write", "data.written", "tlbi", "ic", "guest.entered", "guest.left", "visible", "flushed.here"];
    ensure!(kinds == expected.into_iter().chain(later).collect(), "lines of kinds {kinds:?}");
    Ok(())
}

pub fn panic(suite: &Suite) -> anyhow::Result<()> {
    let Err(error) = suite.bare("check", flags::TEST_PANIC) else { bail!("a panic at EL2 ended well") };
    let text = format!("{error:#}");
    for word in ["panicked at EL2", "ESR", "ELR", "FAR"] {
        ensure!(text.contains(word), "no {word:?} in:\n{text}");
    }
    Ok(())
}
