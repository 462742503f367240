// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiment under the hypervisor: counts, from a single run, because all runs are identical.
//!
//! Invariant: counts are recorded only if each log reported as many pages as the guest had written.

use anyhow::{Context, ensure};
use twofold_launch::Counted;

use super::judge::{Expected, advance};
use super::load::Load;
use super::plan::Plan;
use crate::experiment::hypervisor::{self, Hypervisor};
use crate::experiment::record::{Party, sum};
use crate::experiment::setup::Setup;
use crate::results::{Quantity, Results};

/// Counts one variant, checks it, and adds it to the results.
pub fn measure(plan: &Plan, hypervisor: &Hypervisor, setup: &Setup, results: &mut Results) -> anyhow::Result<()> {
    let counted = hypervisor.dirty_log(setup, &plan.load).with_context(|| setup.shown())?;
    check(&counted, setup, &plan.load).with_context(|| setup.shown())?;
    let variant = plan.variant(setup);
    hypervisor::record(&counted, &variant, results);
    let rounds = counted.times("dirty").len() as f64;
    let phases = ["dirty", "get", "clear"].iter().flat_map(|name| counted.times(name));
    let mut whole = sum(&phases.map(hypervisor::taken).collect::<Vec<_>>());
    whole.retain(|quantity, _| *quantity == Quantity::Instructions);
    whole.values_mut().for_each(|all| *all /= rounds);
    variant.add(results, "iteration", Party::Guest, &whole);
    Ok(())
}

/// Checks that each get reported as many pages as were written.
fn check(counted: &Counted, setup: &Setup, load: &Load) -> anyhow::Result<()> {
    let mut passes = load.passes(setup)?;
    advance(&mut passes);
    load.rounds(&mut passes);
    for (round, get) in counted.times("get").iter().enumerate() {
        let expected = Expected::of(setup, &passes, round == 0 && setup.starts_dirty(), PAGE).count();
        let reported = get.get("pages");
        ensure!(
            reported == expected,
            "iteration {}: the log reports {reported} pages, and {expected} are dirty",
            round + 1
        );
        advance(&mut passes);
    }
    let last = counted.times("get").len();
    (last == load.iterations as usize).then_some(()).with_context(|| format!("{last} iterations were counted"))
}

/// Bytes in a page of the hypervisor's logs.
const PAGE: u64 = 4 << 10;
