// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: Debian's kernel with load on all its vCPUs, alone and beside another guest.

use anyhow::{Context, ensure};
use twofold_launch::Outcome;

use super::machines::{Clock, Machines};

/// Boots one Linux guest for each number of vCPUs, all at once.
pub fn loaded(machines: &Machines, vcpus: &[u32], rounds: u32) -> anyhow::Result<()> {
    let names = ["one", "two"];
    let guests = names.iter().zip(vcpus).map(|(name, vcpus)| machines.linux(name, *vcpus, rounds));
    let outcome = machines.checked(guests.collect::<anyhow::Result<_>>()?, Clock::Real)?;
    for (name, count) in names.iter().zip(vcpus) {
        has_run(&outcome, (vcpus.len() > 1).then_some(*name), *count, rounds)?;
    }
    no_complaints(&outcome)
}

/// Checks that a guest had load on all its vCPUs.
fn has_run(outcome: &Outcome, name: Option<&str>, vcpus: u32, rounds: u32) -> anyhow::Result<()> {
    let prefix = name.map_or(String::new(), |name| format!("[{name}] "));
    let console = outcome.console.tail(usize::MAX);
    let line = format!("{prefix}load on {vcpus} processors: {rounds} rounds on each");
    console.iter().find(|other| **other == line).with_context(|| format!("no `{line}` in:\n{}", console.join("\n")))?;
    Ok(())
}

/// Checks that no kernel complains of lost time, lost interrupts or its own state.
pub fn no_complaints(outcome: &Outcome) -> anyhow::Result<()> {
    let console = outcome.console.tail(usize::MAX);
    ensure!(console.len() < KEPT, "the console has {} lines, of which the first may be lost", console.len());
    for words in COMPLAINTS {
        let found = console.iter().find(|line| line.to_lowercase().contains(words));
        ensure!(found.is_none(), "the console has {words:?}:\n{}", console.join("\n"));
    }
    Ok(())
}

/// The launcher keeps this many lines.
const KEPT: usize = 400;
/// In lower case.
const COMPLAINTS: [&str; 11] = [
    "stall",
    "lockup",
    "bug:",
    "bug at",
    "rcu:",
    "warning:",
    "call trace",
    "hung task",
    "blocked for more than",
    "oops",
    "clocksource: timekeeping",
];
