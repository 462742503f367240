// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs that start and stop, start at an address without memory, end the guest at the same time, and make calls that
//! are refused.
//!
//! The bare-metal guest does this (`crates/guest/src/lifecycle.rs`); the tests here check the results.

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::{GuestSettings, Outcome, TestMemory};

use super::suite::Suite;

/// A vCPU that starts and stops leaves nothing on EL2's heap: neither its own state nor that of its measuring calls.
pub fn restart(suite: &Suite, rounds: u64) -> anyhow::Result<()> {
    let heap = |rounds: u64| -> anyhow::Result<u64> {
        let outcome = boot(suite, &format!("restart={rounds}"), flags::MEASURE)?;
        outcome.control.report.get("heap.grown").context("the report has no heap.grown")
    };
    let (often, once) = (heap(rounds)?, heap(1)?);
    ensure!(once == often, "EL2's heap grew by {once} bytes in one start of a vCPU, and by {often} in {rounds}");
    Ok(())
}

/// A vCPU does not start at an address without RAM, and can be started afterwards.
pub fn nowhere(suite: &Suite) -> anyhow::Result<()> {
    boot(suite, "nowhere", 0).map(drop)
}

/// Two vCPUs that end the guest at the same time produce one report. They do not collide each time, so the test
/// repeats.
pub fn together(suite: &Suite, times: u32) -> anyhow::Result<()> {
    // The launch treats a second report as an error.
    (0..times).try_for_each(|_| boot(suite, "together", 0).map(drop))
}

/// However many of a guest's calls are refused, the control channel lists only a few.
pub fn refused(suite: &Suite) -> anyhow::Result<()> {
    const CALLS: u64 = 2000;
    const LISTED: usize = 8;
    let outcome = boot(suite, &format!("refused={CALLS}"), flags::MEASURE)?;
    let log = &outcome.control.log;
    let listed = log.iter().filter(|line| line.starts_with("the guest's call")).count();
    ensure!(listed == LISTED, "{listed} of {CALLS} refused calls are listed");
    let more = format!("{} more calls of the guest were refused", CALLS - LISTED as u64);
    ensure!(log.iter().any(|line| line.starts_with(&more)), "no `{more}` in:\n{}", log.join("\n"));
    Ok(())
}

fn boot(suite: &Suite, command_line: &str, flags: u32) -> anyhow::Result<Outcome> {
    let test = Some(TestMemory { ipa_bits: 40, size: 16 << 20, slots: 1, leaf: None });
    suite.boot(GuestSettings { cpus: 2, test, ..suite.bare_guest(command_line, flags) })
}
