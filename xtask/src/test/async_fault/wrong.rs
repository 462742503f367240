// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: guests that break the rules of asynchronous page faults, each beside one that keeps them. What is
//! wrong is an error to the guest that did it. Both find all that their tasks have written.

use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::async_fault::TOKENS_MAX;
use twofold_launch::GuestSettings;
use twofold_launch::swap::{Mode, Store, Swap};

use super::super::vm::machines::{Clock, Machines};

/// Announcements of one vCPU.
struct Announced {
    parked: u64,
    declined: u64,
}

/// Wrong areas and flags, to enable twice, tokens that were never given, to disable twice: before the guest enables, at each
/// announcement, and after it has disabled. Each is refused, and the tasks park and wake as usual.
pub fn calls(machines: &Machines, cpus: u32) -> anyhow::Result<()> {
    for (vcpu, announced) in beside_another(machines, "calls", cpus)?.iter().enumerate() {
        ensure!(announced.parked > 0, "vCPU {vcpu}: no task was parked, so no token was there beside the wrong ones");
    }
    Ok(())
}

/// The guest acknowledges no token, and declines all: each vCPU has as many as it can have, and then no more.
pub fn deaf(machines: &Machines, cpus: u32) -> anyhow::Result<()> {
    for (vcpu, Announced { parked, declined }) in beside_another(machines, "deaf", cpus)?.into_iter().enumerate() {
        ensure!((parked, declined) == (0, TOKENS_MAX as u64), "vCPU {vcpu}: {parked} were parked, {declined} declined");
    }
    Ok(())
}

/// All vCPUs have one area, and write random words there at each announcement.
pub fn areas(machines: &Machines, cpus: u32) -> anyhow::Result<()> {
    let all = beside_another(machines, "area", cpus)?;
    let declined: u64 = all.iter().map(|announced| announced.declined).sum();
    ensure!(declined > 0, "nothing was announced");
    Ok(())
}

/// Runs a guest that does this wrong. Another one runs meanwhile, and for longer. Both have to end right.
fn beside_another(machines: &Machines, wrong: &str, cpus: u32) -> anyhow::Result<Vec<Announced>> {
    let guest = |name: &str, cpus, program: &str| {
        let swap = Swap { resident: 6 << 20, store: Store::Memory(Duration::from_micros(200)), mode: Mode::Pv };
        GuestSettings { swap: Some(swap), ..machines.bare(name, cpus, program) }
    };
    let bm = "bm=500 faulters=2 workers=1 size=24M";
    let guests =
        vec![guest("wrong", cpus, &format!("{bm} wrong={wrong}")), guest("right", 1, &bm.replace("500", "800"))];
    let outcome = machines.checked(guests, Clock::Real)?;
    let console = outcome.console.tail(usize::MAX);
    let announced = |name: &str| {
        let start = format!("[{name}] bm: vCPU ");
        let lines = console.iter().filter(|line| line.starts_with(&start)).copied();
        lines.map(read).collect::<anyhow::Result<Vec<_>>>().with_context(|| console.join("\n"))
    };
    let right = announced("right")?;
    ensure!(right.len() == 1 && right[0].parked > 0, "the other guest parked no task:\n{}", console.join("\n"));
    let wrong = announced("wrong")?;
    ensure!(wrong.len() == cpus as usize, "{} of {cpus} vCPUs reported:\n{}", wrong.len(), console.join("\n"));
    Ok(wrong)
}

/// Reads `bm: vCPU V pages N work N parked N declined N woken N`.
fn read(line: &str) -> anyhow::Result<Announced> {
    let mut words = line.split(' ');
    let mut number = |name: &str| {
        words
            .find(|word| *word == name)
            .and_then(|_| words.next()?.parse().ok())
            .with_context(|| format!("no {name} in {line}"))
    };
    Ok(Announced { parked: number("parked")?, declined: number("declined")? })
}
