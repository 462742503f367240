// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: stolen time (Arm DEN0057) as guests read it.
//!
//! The bare-metal guest compares what the hypervisor reports with what its vCPUs see (`crates/guest/src/stolen.rs`). Linux
//! has it in `/proc/stat`.

use anyhow::{Context, ensure};
use twofold_launch::Outcome;
use twofold_workspace::output;

use super::machines::{Clock, Machines};

/// Four vCPUs on one CPU: each sees as much lost time as is reported as stolen, to the cost of a switch. One of them
/// sleeps most of the time, and one is off for a third of it.
pub fn lost_and_stolen(machines: &Machines) -> anyhow::Result<()> {
    let outcome = machines.checked(vec![machines.bare("one", 4, "stolen=300")], Clock::Counted)?;
    let vcpus = accounts(&outcome, 4)?;
    vcpus.iter().for_each(|account| output::remark(&format!("{account:?}")));
    vcpus.iter().try_for_each(Account::check)?;
    let [first, second, sleeper, off] = &vcpus[..] else { unreachable!("four accounts were read") };
    // Two or three vCPUs spin all the time, so each has a half of the CPU at most.
    for spinner in [first, second] {
        ensure!(spinner.stolen_ticks() > spinner.wall * 4 / 10, "{spinner:?} spins");
    }
    ensure!(sleeper.slept > sleeper.wall * 9 / 10 && sleeper.stolen_ticks() < sleeper.wall / 10, "{sleeper:?} sleeps");
    ensure!(off.off > off.wall / 4 && off.stolen_ticks() > off.wall / 4, "{off:?} is off for a third");
    // One vCPU runs at a time, and always one can run: so what all of them ran is the wall time without EL2's own.
    let (ran, wall) = (vcpus.iter().map(|vcpu| vcpu.ran).sum::<u64>(), first.wall);
    let gaps = vcpus.iter().map(|vcpu| vcpu.gaps).sum::<u64>();
    ensure!(ran <= wall && wall - ran <= gaps * COST, "{ran} of {wall} ticks were run, with {gaps} gaps");
    Ok(())
}

/// As many CPUs as vCPUs: nothing is stolen, but for a turn of the control channel's task when the guest begins.
pub fn nothing(machines: &Machines) -> anyhow::Result<()> {
    for (vcpus, clock) in [(1, Clock::Counted), (2, Clock::Real)] {
        let outcome = machines.checked(vec![machines.bare("one", vcpus, "stolen=100")], clock)?;
        for account in accounts(&outcome, vcpus)? {
            output::remark(&format!("{account:?}"));
            // The machine may take the CPU from that task, and then the vCPU loses as much.
            let most = if clock == Clock::Counted { COST } else { account.lost + COST };
            ensure!(account.stolen_ticks() <= most, "{account:?}: at most {most} ticks can be stolen");
        }
    }
    Ok(())
}

/// Debian's kernel, whose processors all spin: `steal` is what it is by the numbers of vCPUs and CPUs.
pub fn linux(machines: &Machines, vcpus: u32, clock: Clock) -> anyhow::Result<()> {
    const SECONDS: u64 = 2;
    let cpus = if clock == Clock::Counted { 1 } else { 2 };
    let linux = machines.linux("one", vcpus, 0)?;
    let command_line = linux.command_line.replace("twofold.stress=0", &format!("twofold.steal={SECONDS}"));
    let outcome = machines.checked(vec![twofold_launch::GuestSettings { command_line, ..linux }], clock)?;
    let console = outcome.console.tail(usize::MAX);
    let line = console.iter().find_map(|line| line.strip_prefix("steal: "));
    let line = line.with_context(|| format!("no line on steal in:\n{}", console.join("\n")))?;
    let numbers: Vec<u64> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [steal, elapsed, processors] = numbers[..] else { anyhow::bail!("{line}") };
    output::remark(&format!("{vcpus} vCPUs on {cpus} CPUs: {line}"));
    ensure!(processors == u64::from(vcpus) && elapsed >= 100 * SECONDS, "{line}");
    // Of the vCPUs that can run, as many as CPUs run at each moment. A vCPU learns of what was stolen at its next tick on a
    // CPU: a slice of each other vCPU later, and a tick (4 ms each). Linux rounds to 10 ms. That is at both ends.
    let due = (u64::from(vcpus) - cpus) * elapsed;
    let late = u64::from(vcpus) * 2 * (u64::from(vcpus) * 4 + 4 + 10) / 10;
    // On real clocks a machine that is loaded keeps the emulator waiting, and the guest learns that much later.
    let load = if clock == Clock::Counted { 0 } else { due / 10 };
    let bound = if due == 0 { 0 } else { late + load };
    ensure!(steal.abs_diff(due) <= bound, "{line}: {due} within {bound} hundredths of a second are due");
    Ok(())
}

/// Ticks of the counter that a gap costs beyond what is stolen: 4,000 instructions of EL2 in the deterministic mode. These
/// are the way out of the guest and back in, the switch from this vCPU and the switch to it. A slice is 4,000,000.
const COST: u64 = 4_000 / NANOSECONDS;
/// In a tick.
const NANOSECONDS: u64 = 16;

/// What the bare-metal guest printed of a vCPU, in ticks; what was stolen, in nanoseconds.
#[derive(Debug)]
struct Account {
    vcpu: u64,
    wall: u64,
    ran: u64,
    slept: u64,
    off: u64,
    lost: u64,
    gaps: u64,
    stolen: u64,
}

impl Account {
    fn stolen_ticks(&self) -> u64 {
        self.stolen / NANOSECONDS
    }

    /// Checks that the vCPU's time is complete, and that what it lost was stolen.
    fn check(&self) -> anyhow::Result<()> {
        let Self { wall, ran, slept, off, lost, gaps, .. } = *self;
        let known = ran + slept + off + lost;
        ensure!(known.abs_diff(wall) <= gaps + COST, "{self:?}: {known} ticks are known");
        // Each gap is measured to a tick.
        let stolen = self.stolen_ticks();
        ensure!(stolen <= lost + gaps + 1, "{self:?}: more was stolen than lost");
        ensure!(lost <= stolen + gaps * COST, "{self:?}: {} ticks were lost and not stolen", lost - stolen);
        Ok(())
    }
}

fn accounts(outcome: &Outcome, vcpus: u32) -> anyhow::Result<Vec<Account>> {
    let console = outcome.console.tail(usize::MAX);
    let lines = console.iter().filter_map(|line| line.strip_prefix("stolen: "));
    let accounts: Vec<_> = lines.map(account).collect::<Option<_>>().context("a line on stolen time")?;
    let numbers: Vec<_> = accounts.iter().map(|account| account.vcpu).collect();
    ensure!(numbers.iter().copied().eq(0..u64::from(vcpus)), "vCPUs {numbers:?} in:\n{}", console.join("\n"));
    Ok(accounts)
}

fn account(line: &str) -> Option<Account> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let number = |name: &str| words.chunks_exact(2).find(|pair| pair[0] == name)?[1].parse().ok();
    Some(Account {
        vcpu: number("vCPU")?,
        wall: number("wall")?,
        ran: number("ran")?,
        slept: number("slept")?,
        off: number("off")?,
        lost: number("lost")?,
        gaps: number("gaps")?,
        stolen: number("stolen")?,
    })
}
