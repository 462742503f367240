// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench exits`: what one event costs that a hypervisor has a hand in.
//!
//! The guest measures ([`twofold_abi::exits`]); this module boots it, and sets its figures beside the targets. An event
//! that the guest's machine does not have has no row.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::bail;
use twofold_launch::exits::{EventCost, kvm, most};

use super::hypervisor::Hypervisor;
use super::progress::Progress;
use crate::headline::row::{Limit, Ours, Pair};
use crate::options::ExitsOptions;
use crate::report::Files;
use crate::results::{HeadlineRow, Kind, Measurement, Platform, Quantity, Results, Verdict};
use crate::stop::Stop;

/// `twofold bench exits`. The exit status is a failure if a target is missed.
///
/// # Errors
///
/// The platform is not available, the guest failed, or a file cannot be written.
pub fn command(options: &ExitsOptions) -> anyhow::Result<ExitCode> {
    let files = Files::check(&options.output)?;
    let stop = Stop::on_signal()?;
    let progress = Progress::new(1)?;
    let mut results = Results::begin();
    let costs = match options.on {
        Platform::Machine => bail!("the hosted machine has no exits: --on hypervisor, or --on kvm on an arm64 host"),
        Platform::Hypervisor => {
            let hypervisor = Hypervisor::find(options.images.as_deref(), &stop, |what| progress.doing(what))?;
            hypervisor.describe(&mut results);
            hypervisor.exits(options.events)?
        }
        Platform::Kvm => on_kvm::costs(options)?,
    };
    progress.done();
    drop(progress);
    record(&mut results, options.on, &costs);
    let differs = results.headline.iter().any(|row| row.verdict == Verdict::Differs);
    let code = files.show(&results)?;
    Ok(if differs { ExitCode::FAILURE } else { code })
}

fn record(results: &mut Results, platform: Platform, costs: &[EventCost]) {
    let counted = platform == Platform::Hypervisor;
    for cost in costs {
        results.measurements.push(Measurement {
            experiment: "exits".to_owned(),
            platform,
            configuration: BTreeMap::from([("vcpus".to_owned(), cost.event.vcpus.to_string())]),
            phase: cost.event.name.to_owned(),
            quantity: if counted { Quantity::Instructions } else { Quantity::Time },
            kind: if counted { Kind::Counted } else { Kind::Native },
            runs: vec![cost.each()],
        });
        if counted && let Some(row) = target(cost) {
            results.headline.push(row);
        }
    }
}

fn target(cost: &EventCost) -> Option<HeadlineRow> {
    let most = most(cost.event)?;
    let limit = Limit { what: cost.event.what, most: most as f64, shown: "" };
    let row = limit.row(&Ours {
        pair: Pair { before: Vec::new(), after: vec![cost.each()] },
        unit: "instructions",
        platform: Platform::Hypervisor,
        kind: Kind::Counted,
        note: format!(
            "`twofold bench exits`; the guest's own instructions are included; KVM with its host kernel takes {}",
            kvm(cost.event).map_or_else(|| "?".to_owned(), |kvm| kvm.to_string())
        ),
    });
    Some(HeadlineRow { published: format!("{most} at most"), ..row })
}

#[cfg(target_arch = "aarch64")]
mod on_kvm {
    use anyhow::Context;
    use twofold_launch::exits::{EventCost, read};

    use crate::options::ExitsOptions;

    /// vCPUs of the guest.
    const VCPUS: u32 = 2;

    pub fn costs(options: &ExitsOptions) -> anyhow::Result<Vec<EventCost>> {
        let directory = options.images.as_deref().context("--on kvm needs --images DIR, with guest.img in it")?;
        let path = directory.join("guest.img");
        let image = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let console = twofold_kvm::bare::boot(&image, &format!("exits={}", options.events), VCPUS)?;
        read(console.lines()).with_context(|| format!("the guest did not measure all its events:\n{console}"))
    }
}

#[cfg(not(target_arch = "aarch64"))]
mod on_kvm {
    use anyhow::bail;
    use twofold_launch::exits::EventCost;

    use crate::options::ExitsOptions;

    pub fn costs(_options: &ExitsOptions) -> anyhow::Result<Vec<EventCost>> {
        bail!("--on kvm needs an arm64 host; `cargo xtask peers kvm` counts KVM's events in QEMU")
    }
}
