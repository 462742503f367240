// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `host`: all tests that need no QEMU.
//!
//! Each call of Cargo is a test; the tests that `cargo test` runs inside are counted too.

use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use libtest_mimic::{Failed, Trial};
use twofold_workspace::{Workspace, build, install, subprocess};

use super::cargo::{cargo, machine, step};
use super::harness::{Depth, Tally, harness, trial};
use super::{embedded, publish};
use crate::arguments::TestOptions;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    if !options.list {
        publish::missing()?;
        install::target(install::TARGET)?;
        install::target(install::ARM64_LINUX)?;
        install::component("rustfmt", "fmt")?;
        install::component("clippy", "clippy")?;
    }
    // The quick tier runs the other tests without strict mode only.
    let strict: &[_] = if depth == Depth::Quick { &["--lib", "--test", "strict"] } else { &[] };
    let inner = Arc::new(Mutex::new(Tally::default()));
    let mut steps = vec![
        step("format", cargo(workspace, &["fmt", "--all", "--check"])),
        step("clippy_host", cargo(workspace, &["clippy", "--all-targets", "--", "-D", "warnings"])),
        step("clippy_machine", machine(cargo(workspace, &["clippy", "--all-targets"]), &["--", "-D", "warnings"])),
        step("clippy_hypervisor", clippy(workspace, build::HYPERVISOR)),
        step("clippy_hypervisor_with_trace", clippy(workspace, build::TRACING_HYPERVISOR)),
        step("clippy_hypervisor_with_16k_pages", clippy(workspace, build::HYPERVISOR_16K)),
        step("clippy_hypervisor_with_oracle", clippy(workspace, build::ORACLE_HYPERVISOR)),
        step("clippy_hypervisor_with_recorder", clippy(workspace, build::RECORDING_HYPERVISOR)),
        step("clippy_hypervisor_with_baselines", clippy(workspace, build::MEASURING_HYPERVISOR)),
        step("clippy_guest", clippy(workspace, build::GUEST)),
        step("engine_builds_for_arm64_linux", {
            // With the guide's program, a part of which is for this architecture alone.
            let arguments = ["check", "--package", "twofold-stage2", "--lib", "--example", "embedding", "--target"];
            let mut check = cargo(workspace, &arguments);
            check.arg(install::ARM64_LINUX);
            check
        }),
        step("documentation", {
            let mut doc = cargo(workspace, &["doc", "--no-deps", "--features", "twofold-stage2/hosted"]);
            doc.env("RUSTDOCFLAGS", "-D warnings");
            doc
        }),
        counted("strict_machine", machine(cargo(workspace, &["test", "--no-fail-fast"]), strict), &inner),
        counted("locks_of_memory", machine(cargo(workspace, &["test", "--no-fail-fast"]), &LOCKS), &inner),
        counted("unit_tests", cargo(workspace, &["test", "--no-fail-fast"]), &inner),
    ];
    steps.extend(embedded::trials(workspace));
    steps.extend(EXAMPLES.map(|name| {
        let arguments = ["run", "--quiet", "--package", "twofold-stage2", "--example", name];
        step(&format!("example_{name}"), cargo(workspace, &arguments))
    }));
    steps.extend(publish::trials(workspace, depth));
    if depth == Depth::Full {
        steps.push(step("clippy_hypervisor_with_64k_pages", clippy(workspace, build::HYPERVISOR_64K)));
        let mut thorough = cargo(workspace, &["test", "--release", "--no-fail-fast"]);
        thorough.env("PROPTEST_CASES", "4096");
        steps.push(counted("property_tests_with_4096_cases", thorough, &inner));
    }
    // One at a time: each step uses all CPUs, and all steps share Cargo's lock.
    let mut tally = harness(steps, 1, options)?;
    tally.add(*inner.lock().map_err(|_| anyhow::anyhow!("a test panicked")).context("counting tests")?);
    Ok(tally)
}

/// The tests of guests' memory in which each outermost lock is taken as another CPU, and a data race fails (R23 of
/// `docs/mmu-rules.md`). Those left out have more orders of the same locks, and take longer.
const LOCKS: [&str; 12] = [
    "--package",
    "twofold-memory",
    "--test",
    "swap",
    "--test",
    "faults",
    "--",
    "--skip",
    "races::",
    "--skip",
    "no_page_waits",
    "--skip=random::",
];

/// The crate's examples, each of which checks its own results.
const EXAMPLES: [&str; 5] = ["dirty_track", "embedding", "map_and_translate", "minimal", "own_platform"];

fn clippy(workspace: &Workspace, program: build::Program) -> Command {
    let mut clippy = build::cargo(workspace, "clippy", program);
    clippy.args(["--", "-D", "warnings"]);
    clippy
}

/// Returns a run of `cargo test`; its own tests are added to `inner`.
fn counted(name: &str, mut command: Command, inner: &Arc<Mutex<Tally>>) -> Trial {
    let inner = Arc::clone(inner);
    trial(name, move || {
        // Backtraces of tests that panic on purpose would hide the one of a failure.
        let output = subprocess::output(command.env("RUST_BACKTRACE", "0"))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let found = results(&stdout);
        inner.lock().map_err(|_| "a test panicked")?.add(found);
        if output.status.success() {
            return Ok(());
        }
        let typed = subprocess::shown(&command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(Failed::from(format!("`{typed}` ended with {}\n{}\n{}", output.status, errors(&stderr), failures(&stdout))))
    })
}

/// Sums the lines `test result: ok. 3 passed; 0 failed; ...`.
fn results(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
        let count = |what: &str| {
            line.split([';', '.']).filter_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok()).sum()
        };
        tally.add(Tally { passed: count("passed"), failed: count("failed"), ..Tally::default() });
    }
    tally
}

/// Returns Cargo's messages from the first error on.
fn errors(text: &str) -> String {
    text.lines().skip_while(|line| !line.starts_with("error")).take(SHOWN).collect::<Vec<_>>().join("\n")
}

const SHOWN: usize = 200;

/// Returns the output of `cargo test` without the passed tests; only its end if it is long.
fn failures(text: &str) -> String {
    let passed = |line: &&str| line.starts_with("test ") && line.ends_with("... ok");
    let lines: Vec<_> = text.lines().filter(|line| !passed(line) && !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
running 2 tests
test a::b ... ok
test a::c ... FAILED

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.04s
test result: ok. 37 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_are_summed() {
        assert_eq!(results(TEXT), Tally { passed: 38, failed: 1, ..Tally::default() });
        assert_eq!(results("nothing"), Tally::default());
    }

    #[test]
    fn failures_leave_out_what_passed() {
        let text = failures(TEXT);
        assert!(text.contains("a::c ... FAILED") && !text.contains("a::b"), "{text}");
    }
}
