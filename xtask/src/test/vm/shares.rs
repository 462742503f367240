// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: the shares that the scheduler gives at EL2.
//!
//! Shares are measured by the guests' own counts, in the deterministic mode on one CPU, and so are the same in each run.

use anyhow::ensure;
use twofold_launch::GuestSettings;
use twofold_workspace::output;

use super::machines::{Clock, Machines, figure};

/// Three guests that never wait get a CPU by their weights, within 1 %.
pub fn weights(machines: &Machines) -> anyhow::Result<()> {
    const WEIGHTS: [(&str, u32); 3] = [("one", 64), ("two", 64), ("three", 128)];
    let guest = |(name, weight)| GuestSettings { weight, ..machines.bare(name, 1, "loops=2000") };
    let outcome = machines.ended(WEIGHTS.map(guest).into(), Clock::Counted)?;
    let counts: Vec<_> =
        WEIGHTS.iter().map(|(name, _)| figure(&outcome, &format!("[{name}] loops: "), "")).collect::<Result<_, _>>()?;
    let (sum, weights): (u64, u32) = (counts.iter().sum(), WEIGHTS.iter().map(|(_, weight)| weight).sum());
    output::remark(&format!("loops of guests with weights 1:1:2: {counts:?}"));
    for ((name, weight), count) in WEIGHTS.iter().zip(&counts) {
        let due = sum as f64 * f64::from(*weight) / f64::from(weights);
        let off = (*count as f64 - due).abs() / due;
        ensure!(off <= 0.01, "guest {name} has {count} of {counts:?} loops, {:.2} % off its share", 100.0 * off);
    }
    Ok(())
}

/// A lock that goes round goes round among four vCPUs at least half as often per instruction as among two. They wait by
/// WFI, and are woken by an SGI. On one CPU, because only there a count is the same each time.
pub fn lock(machines: &Machines) -> anyhow::Result<()> {
    let rate = |vcpus: u32| -> anyhow::Result<f64> {
        let guest = machines.bare("one", vcpus, "lock=20000 by=interrupt");
        let outcome = machines.checked(vec![guest], Clock::Counted)?;
        per_million(&outcome)
    };
    let (two, four) = (rate(2)?, rate(4)?);
    output::remark(&format!("hand-overs in a million instructions of the guest: {two:.1} of 2 vCPUs, {four:.1} of 4"));
    ensure!(two >= 1.0, "2 vCPUs do not contend: {two} hand-overs in a million instructions");
    ensure!(four >= two / 2.0, "{four:.1} hand-overs in a million instructions of 4 vCPUs, {two:.1} of 2");
    Ok(())
}

/// Four vCPUs on two CPUs take a lock, and no taking is lost. QEMU 7.2 does not trap WFE, so nothing is said of
/// how often.
pub fn spin_lock(machines: &Machines) -> anyhow::Result<()> {
    for (kind, count) in [("swap", 500_000), ("interrupt", 10_000)] {
        let guest = machines.bare("one", 4, &format!("lock={count} by={kind}"));
        let rate = per_million(&machines.checked(vec![guest], Clock::Real)?)?;
        output::remark(&format!("{kind}: {rate:.1} hand-overs in a million instructions of 4 vCPUs on 2 CPUs"));
    }
    Ok(())
}

fn per_million(outcome: &twofold_launch::Outcome) -> anyhow::Result<f64> {
    let console = outcome.console.tail(usize::MAX).join("\n");
    let numbers = console.lines().find_map(|line| {
        let (handed, spent) = line.strip_prefix("lock: ")?.split_once(" hand-overs, ")?;
        Some((handed.parse::<u64>().ok()?, spent.strip_suffix(" instructions")?.parse::<u64>().ok()?))
    });
    let Some((handed, spent)) = numbers else { anyhow::bail!("no line on the lock in:\n{console}") };
    Ok(handed as f64 * 1e6 / spent as f64)
}
