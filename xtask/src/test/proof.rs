// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `proof`: the strength of the tests, and defects that only long runs show. No QEMU.
//!
//! Each step is a test. The quick tier has some comparisons of the dirty logs' oracle. In full, the suite has all
//! mutants, every order that the model checker tries, ten million random operations, a thousand links that are cut while
//! guests move, ten million comparisons of each dirty log, and the line coverage.

use std::process::Command;

use twofold_workspace::Workspace;

use super::cargo::{cargo, machine, step};
use super::harness::{Depth, Tally, harness};
use crate::arguments::TestOptions;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    let own = |arguments: &[&str]| {
        let mut command = Command::new(workspace.command());
        command.current_dir(workspace.root()).args(arguments);
        command
    };
    let steps = match depth {
        // The build is that of the tests of `host`, so only the link is new. A sample of the mutants needs builds of
        // its own, of almost three minutes; with them the tier would exceed its ten minutes.
        Depth::Quick => {
            let oracle = ["run", "--package", "twofold", "--", "bench", "oracle", "--comparisons", "40000"];
            vec![step("dirty_logs_lose_nothing", cargo(workspace, &oracle))]
        }
        Depth::Full => vec![
            step("mutants_of_calls", own(&["mutants", "--of", "calls"])),
            step("mutants_of_values", own(&["mutants", "--of", "values"])),
            step("mutants_of_registers", own(&["mutants", "--of", "registers"])),
            step("orders_with_one_preemption", loom(workspace, "twofold-stage2", "loom::", "1")),
            step("orders_of_reused_tables_with_two", loom(workspace, "twofold-stage2", "loom::reused", "2")),
            step("orders_of_arrivals_with_three", loom(workspace, "twofold-memory", "loom::", "3")),
            step("ten_million_random_operations", operations(workspace)),
            step("guests_that_move_lose_nothing", moves(workspace, &["--test", "moves"])),
            step("guests_that_move_break_no_rule", moves(workspace, &["--features", "strict", "--test", "strict"])),
            step("dirty_logs_lose_nothing", own(&["oracle"])),
            step("dirty_logs_with_defects_lose_pages", own(&["oracle", "--controls"])),
            step("coverage", own(&["coverage"])),
        ],
    };
    // One at a time: each step uses all CPUs.
    harness(steps, 1, options)
}

/// Returns the model checker's tests of a crate with `filter` in their names.
fn loom(workspace: &Workspace, package: &str, filter: &str, preemptions: &str) -> Command {
    let mut command = cargo(workspace, &["test", "--release", "--package", package, "--lib", filter]);
    command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", preemptions);
    // A separate directory, because other flags would invalidate every other build.
    command.env("CARGO_TARGET_DIR", workspace.mutants().join("loom-release"));
    command
}

/// Returns a test of migration with 100 moves for each tracker, and 1,000 links that are cut.
fn moves(workspace: &Workspace, test: &[&str]) -> Command {
    let mut command = cargo(workspace, &["test", "--release", "--package", "twofold-migration"]);
    command.args(test).env("TWOFOLD_MOVES", "100").env("TWOFOLD_CUTS", "1000");
    command
}

fn operations(workspace: &Workspace) -> Command {
    let name = ["--test", "strict", "--", "--exact", "random::judge_random_operations"];
    let mut command = machine(cargo(workspace, &["test", "--release"]), &name);
    command.env("TWOFOLD_OPERATIONS", "10000000");
    command
}
