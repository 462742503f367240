// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--dry-run`: what a move with each tracker would take, from the guest's dirty rate alone. Nothing is sent.

use anyhow::Context;
use twofold_memory::dirty::LogOptions;
use twofold_migration::plan::{Forecast, Plan as Step};
use twofold_migration::precopy;
use twofold_migration::ram::GuestRam;

use super::node::{Node, record_in};
use super::plan::Plan;
use super::process::BENCH;
use super::settings::{How, PAGE};
use super::source::Source;
use crate::experiment::host_clock::Threads;
use crate::readable;
use crate::report::table::table;

/// Bytes a second that are assumed without `--bandwidth`.
const ASSUMED: u64 = 1_000_000_000;

/// Runs the guest here, and returns the forecast as text.
///
/// # Errors
///
/// The guest does not fit, or cannot be logged.
pub fn text(plan: &Plan) -> anyhow::Result<String> {
    let settings = &plan.settings;
    let mut node = Node::new(settings.clone(), BENCH)?;
    node.boot()?;
    let (guest, record) = (node.guest()?, record_in(&settings.directory));
    guest.start();
    guest.entered()?;
    let bandwidth = settings.bandwidth.unwrap_or(ASSUMED);
    let mut rows = Vec::new();
    for how in &plan.ways {
        let How::Precopy(tracker) = *how else {
            let time = std::time::Duration::from_secs_f64(settings.memory as f64 / bandwidth as f64);
            let pages = readable::count((settings.memory / PAGE) as f64);
            rows.push([how.name().into(), "-".into(), "0".into(), pages, ms(time), "-".into(), "runs at once".into()]);
            continue;
        };
        let ram = GuestRam::new(guest.memory(), LogOptions::new(tracker), guest.slots())?;
        let dry = precopy::dry_run(
            &ram,
            (settings.settle, &Threads),
            (bandwidth / PAGE, &settings.wanted()),
            settings.vcpus,
            &mut Source::new(guest, &record, tracker),
        );
        let dry = dry.with_context(|| format!("the dirty log of {}", tracker.name()))?;
        let rate = dry.written as f64 / dry.time.as_secs_f64();
        let (forecast, how_it_ends) = match &dry.plan {
            Step::Stop(forecast) | Step::Round(forecast) => (forecast, forecast.outcome.to_string()),
            Step::Throttle(throttle, forecast) => {
                let most = throttle.slowed.iter().max().copied().unwrap_or(0);
                (forecast, format!("{}, with vCPUs slowed down by {:.1} %", forecast.outcome, f64::from(most) / 10.0))
            }
            Step::Never(forecast) => (forecast, forecast.outcome.to_string()),
        };
        let Forecast { rounds, pages, total, downtime, .. } = forecast;
        let written = readable::count(rate.round());
        let pages = readable::count(*pages as f64);
        rows.push([tracker.name().into(), written, rounds.to_string(), pages, ms(*total), ms(*downtime), how_it_ends]);
    }
    guest.check()?;
    let header = ["tracker", "pages written/s", "rounds", "pages", "total ms", "downtime ms", "how it ends"];
    let assumed = if settings.bandwidth.is_none() { ", which is assumed: --bandwidth gives another" } else { "" };
    Ok(format!(
        "A forecast: nothing was sent. {} of memory, a link of {bandwidth} bytes a second{assumed}.\n\n{}",
        readable::bytes(settings.memory),
        table(&header, rows.into_iter().map(Vec::from), 1)
    ))
}

fn ms(time: std::time::Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}
