// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask test`: runs the suites by name.
//!
//! Every suite is a list of named tests for one harness. Invariant: the last line is `N passed, N failed` over all
//! suites. The exit status is 0 only if no test failed and the filters matched a test. A suite that cannot start counts
//! as one failed test.

mod async_fault;
mod cargo;
mod devices;
mod el2;
mod embedded;
mod guests;
mod harness;
mod heartbeat;
mod host;
mod kvm;
mod linux;
mod migration;
mod proof;
mod publish;
mod replay;
mod slowest;
mod tap;
mod vm;

use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use twofold_workspace::{Workspace, output};

use crate::arguments::{Suite, TestOptions};
use harness::{Depth, Tally};

/// `cargo xtask test`.
pub fn command(workspace: &Workspace, options: &TestOptions) -> anyhow::Result<ExitCode> {
    let suites: Vec<_> = match options.suite {
        Some(suite) => vec![suite],
        None => Suite::value_variants().to_vec(),
    };
    let depth = if options.soak || options.suite.is_some() { Depth::Full } else { Depth::Quick };
    let mut tally = Tally::default();
    for suite in suites {
        let start = Instant::now();
        let name = suite.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        if !options.list {
            output::line(&format!("suite {name}"))?;
        }
        let run = heartbeat::beating(|| {
            heartbeat::during(&format!("suite {name}: preparing"), || run(workspace, suite, depth, options))
        });
        if workspace.stop().is_requested() {
            anyhow::bail!("stopped");
        }
        match run {
            Ok(part) => {
                slowest::keep(&format!("suite {name}: preparing"), start.elapsed().saturating_sub(part.judging));
                tally.add(part);
            }
            Err(error) if output::is_closed(&error) => return Err(error),
            Err(error) => {
                output::error(&format!("the suite {name} cannot start: {error:#}"));
                tally.add(Tally { failed: 1, selected: 1, ..Tally::default() });
            }
        }
        if !options.list {
            output::line(&format!("suite {name}: {:.1} s\n", start.elapsed().as_secs_f64()))?;
        }
    }
    // A mistyped filter must not count as a success.
    let lost = tally.selected == 0 && !options.filters.is_empty();
    if lost {
        let filters = options.filters.join("`, `");
        output::error(&format!("no test has `{filters}` in its name; --list gives the names"));
    }
    if !options.list {
        let slowest = slowest::lines();
        if !slowest.is_empty() {
            output::line(&format!("slowest parts (some run in parallel):\n{}\n", slowest.join("\n")))?;
        }
        output::line(&format!("{} passed, {} failed", tally.passed, tally.failed))?;
    }
    Ok(if tally.failed == 0 && !lost { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(workspace: &Workspace, suite: Suite, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    match suite {
        Suite::Host => host::run(workspace, depth, options),
        Suite::El2 => el2::run(workspace, depth, options),
        Suite::Linux => linux::run(workspace, depth, options),
        Suite::Vm => vm::run(workspace, depth, options),
        Suite::AsyncFault => async_fault::run(workspace, depth, options),
        Suite::Migration => migration::run(workspace, depth, options),
        Suite::Devices => devices::run(workspace, depth, options),
        Suite::Kvm => kvm::run(workspace, depth, options),
        Suite::Proof => proof::run(workspace, depth, options),
    }
}
