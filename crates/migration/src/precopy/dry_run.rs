// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a migration would do, from the guest's dirty rate alone: nothing is sent, and the guest is not stopped.

use alloc::vec;
use core::time::Duration;

use super::host::Host;
use super::rates::Rates;
use crate::pages::PageSet;
use crate::plan::{Measured, Plan, Wanted, plan};
use crate::ram::{RamError, SourceRam};
use crate::runtime::Runtime;

/// What was measured, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Different pages that the guest has written.
    pub written: u64,
    /// In this time.
    pub time: Duration,
    /// The first step of a migration, with its forecast: [`Plan::Round`] or [`Plan::Throttle`] if it ends, and
    /// [`Plan::Never`] with the reason if it does not.
    pub plan: Plan,
}

/// Logs the guest's writes for about `time`, and forecasts a migration over a link that carries `bandwidth` pages a
/// second. `vcpus` is the number of vCPUs.
///
/// # Errors
///
/// The guest's memory cannot be logged. No log runs then.
pub fn dry_run<H: Host>(
    ram: &impl SourceRam,
    (time, runtime): (Duration, &impl Runtime),
    (bandwidth, wanted): (u64, &Wanted),
    vcpus: u32,
    host: &mut H,
) -> Result<DryRun, RamError> {
    ram.start(false)?;
    let written = sample(ram, time, runtime, vcpus, host);
    ram.stop();
    let (written, time, rates) = written?;
    let all = PageSet::all(ram.slots()).count();
    let measured = Measured { bandwidth, writes: rates.writes(), working_set: all, left: all };
    Ok(DryRun { written, time, plan: plan(&measured, wanted) })
}

fn sample<H: Host>(
    ram: &impl SourceRam,
    time: Duration,
    runtime: &impl Runtime,
    vcpus: u32,
    host: &mut H,
) -> Result<(u64, Duration, Rates), RamError> {
    let (mut pages, mut rates) = (PageSet::none(ram.slots()), Rates::new());
    // What vCPUs wrote before does not count.
    host.written(&mut vec![0; vcpus as usize]);
    let begin = runtime.now();
    // A wait may return early.
    while let Some(left) = time.checked_sub(runtime.now().saturating_sub(begin)).filter(|left| !left.is_zero()) {
        runtime.wait(left);
    }
    for slot in 0..ram.slots().len() {
        pages.change(slot, |words| ram.get(slot, words)).unwrap_or(Ok(()))?;
    }
    let (took, mut by_vcpu) = (runtime.now().saturating_sub(begin), vec![0; vcpus as usize]);
    let by_each = host.written(&mut by_vcpu);
    let written = pages.count();
    rates.written(written, took, by_each.then_some(&by_vcpu));
    Ok((written, took, rates))
}
