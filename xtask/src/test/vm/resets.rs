// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that reset themselves, power off or fail, beside a guest that must not notice.
//!
//! The programs are in `crates/guest/src/anew.rs` and `watch.rs`, and check what the guest itself can see.

use anyhow::ensure;
use twofold_abi::bundle::flags;
use twofold_launch::{GuestSettings, Outcome};

use super::linux::no_complaints;
use super::machines::{Clock, Machines, ends, figure};

/// A guest has a warm reset and a cold one, and powers off, each while its other vCPUs spin. The guest beside it ends
/// later, and nothing of its own has changed meanwhile.
pub fn not_noticed(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 3, "anew=400"), machines.bare("two", 1, "watch=2000")];
    let outcome = machines.checked(restarting(guests), Clock::Counted)?;
    ensure!(ends(&outcome) == [RESET, RESET, r#"guest "one": power-off"#], "{:?}", outcome.control.log);
    let rounds = figure(&outcome, "watch: ", " rounds, nothing changed")?;
    ensure!(rounds > 100, "{rounds} rounds");
    Ok(())
}

/// The same beside a Linux guest, on two CPUs.
pub fn not_noticed_by_linux(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 4, "anew=4000"), machines.linux("two", 2, 10)?];
    let outcome = machines.checked(restarting(guests), Clock::Real)?;
    resets(&outcome, RESET, 2)?;
    no_complaints(&outcome)
}

/// A guest powers off while its other vCPUs spin. The other guest has the CPUs from then on.
pub fn power_off(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 4, "warm=1"), machines.bare("two", 1, "check")];
    let outcome = machines.checked(restarting(guests), Clock::Real)?;
    resets(&outcome, RESET, 1)
}

/// A guest fails, and its reset ends it. The other one goes on.
pub fn failure(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 2, "touch=100G"), machines.bare("two", 1, "watch=300")];
    let outcome = machines.ended(guests, Clock::Counted)?;
    ensure!(ends(&outcome) == [RESET], "{:?}", outcome.control.log);
    let console = outcome.console.tail(usize::MAX).join("\n");
    for line in ["[one] guest touch: FAILED", "[two] guest check: ok"] {
        ensure!(console.contains(line), "no `{line}` in:\n{console}");
    }
    Ok(())
}

/// A guest of four vCPUs makes warm resets, while all of them spin or are about to.
pub fn warm(machines: &Machines, count: usize, clock: Clock) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 4, &format!("warm={count}"))];
    let outcome = machines.checked(restarting(guests), clock)?;
    resets(&outcome, "guest: reset", count)
}

/// A guest makes cold resets, one after another.
pub fn cold(machines: &Machines, count: usize) -> anyhow::Result<()> {
    let guests = vec![machines.bare("one", 1, &format!("cold={count}"))];
    let outcome = machines.checked(restarting(guests), Clock::Counted)?;
    resets(&outcome, "guest: reset", count)
}

/// Two guests reset themselves at once, with more vCPUs than CPUs each.
pub fn two_at_once(machines: &Machines, count: usize) -> anyhow::Result<()> {
    let program = format!("warm={count}");
    let guests = vec![machines.bare("one", 3, &program), machines.bare("two", 4, &program)];
    let outcome = machines.checked(restarting(guests), Clock::Real)?;
    resets(&outcome, RESET, count)?;
    resets(&outcome, r#"guest "two": reset"#, count)
}

const RESET: &str = r#"guest "one": reset"#;

fn restarting(guests: Vec<GuestSettings>) -> Vec<GuestSettings> {
    guests.into_iter().map(|guest| GuestSettings { flags: flags::RESTART, ..guest }).collect()
}

fn resets(outcome: &Outcome, line: &str, count: usize) -> anyhow::Result<()> {
    let found = ends(outcome).iter().filter(|other| **other == line).count();
    ensure!(found == count, "{found} times `{line}`, not {count}: {:?}", outcome.control.log);
    Ok(())
}
