// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the stages part by part, in CPU time of the one thread that does them. In each part a stage and its library
//! take turns, so that what else the host does meets both.

use std::collections::BTreeMap;
use std::time::Duration;

use twofold_memory::dirty::Tracker;

use super::downtime::Move;
use super::guest::Guest;
use super::plan::Plan;
use super::stages::{Stage, Stages};
use crate::experiment::progress::Progress;
use crate::headline::row::{Limit, Ours, Pair};
use crate::readable;
use crate::report::explained::AT;
use crate::results::{HeadlineRow, Kind, Measurement, Platform, Quantity, Results};
use crate::statistics::Quartiles;
use crate::stop::Stop;

/// The experiment's name in results.
pub const NAME: &str = "migrate-pass";

/// Nanoseconds of CPU time of each part: the stage's, and the library's.
type Runs = [Vec<f64>; 2];

/// Measures all parts. If a signal ends it, the results have the complete parts.
///
/// # Errors
///
/// The guest does not fit, or a socket failed.
pub fn results(plan: &Plan, progress: &Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results::begin();
    progress.doing("filling the guest");
    let guest = Guest::new(plan)?;
    progress.done();
    let mut stages = Stages::new(&guest, plan.part)?;
    let mut all: [Runs; Stage::ALL.len()] = Default::default();
    let mut bytes = [0; Stage::ALL.len()];
    for part in 0..plan.parts() as usize {
        if stop.is_requested() {
            results.interrupted = true;
            break;
        }
        progress.doing(format!("part {} of {}", part + 1, plan.parts()));
        stages.go_to(part)?;
        for (at, stage) in Stage::ALL.into_iter().enumerate() {
            // Each goes first in every second part.
            for ours in [part % 2 == 0, part % 2 != 0] {
                let took = if ours { stages.ours(stage)? } else { stages.alone(stage)? };
                all[at][usize::from(!ours)].push(took);
            }
            bytes[at] += stages.size(stage);
        }
        progress.done();
    }
    for (stage, runs) in Stage::ALL.into_iter().zip(&all) {
        record(&mut results, plan, stage, runs);
    }
    results.headline = Stage::ALL.into_iter().zip(&all).map(|(stage, runs)| row(stage, runs)).collect();
    results.notes = notes(plan, &all, bytes);
    drop(stages);
    drop(guest);
    downtimes(plan, &mut results, progress, stop)?;
    Ok(results)
}

/// Moves a small guest that writes, on the host's clock.
fn downtimes(plan: &Plan, results: &mut Results, progress: &Progress, stop: &Stop) -> anyhow::Result<()> {
    let Some(moving) = &plan.moving else { return Ok(()) };
    let guest = Guest::new(moving)?;
    let mut all: [Vec<f64>; LOADS.len()] = Default::default();
    for run in 0..plan.moves {
        for ((load, _), runs) in LOADS.into_iter().zip(&mut all) {
            if stop.is_requested() {
                results.interrupted = true;
                break;
            }
            progress.doing(format!("moving, {load} % of the link, {} of {}", run + 1, plan.moves));
            let one = Move { tracker: Tracker::Adaptive, link: LINK, load, downtime: DOWNTIME };
            let sent = one.go(&guest, run.into())?;
            runs.push(sent.stopped.as_nanos() as f64);
            let (rounds, pages, last) = (sent.rounds, sent.pages, sent.last_pages);
            results.notes.push(format!(
                "moving at {load} % of {} MB/s, {} of {}: {:.2} ms stopped, {:.0} ms in all, {rounds} rounds, {pages} pages, {last} of them at last",
                LINK / 1_000_000,
                run + 1,
                plan.moves,
                sent.stopped.as_nanos() as f64 / 1e6,
                sent.time.as_nanos() as f64 / 1e6
            ));
            progress.done();
        }
    }
    for ((load, what), runs) in LOADS.into_iter().zip(all) {
        let settings = [("bytes", moving.bytes.to_string()), ("link", format!("{} MB/s", LINK / 1_000_000))];
        let limit = Limit { what, most: DOWNTIME.as_millis() as f64, shown: "5 ms at most" };
        results.headline.push(limit.row(&Ours {
            pair: Pair { before: Vec::new(), after: runs.iter().map(|nanos| nanos / 1e6).collect() },
            unit: "ms",
            platform: Platform::Machine,
            kind: Kind::Native,
            note: "`twofold bench migrate-pass`; adaptive, the host's clock, without the commit".to_owned(),
        }));
        results.measurements.push(Measurement {
            experiment: MOVES.to_owned(),
            platform: Platform::Machine,
            configuration: settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            phase: format!("downtime{AT}{load} %"),
            quantity: Quantity::Time,
            kind: Kind::Native,
            runs,
        });
    }
    Ok(())
}

fn record(results: &mut Results, plan: &Plan, stage: Stage, runs: &Runs) {
    for (runs, variant) in runs.iter().zip(["stream", ALONE]) {
        let settings =
            [("variant", variant.to_owned()), ("bytes", plan.bytes.to_string()), ("part", readable::bytes(plan.part))];
        results.measurements.push(Measurement {
            experiment: NAME.to_owned(),
            platform: Platform::Machine,
            configuration: settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<BTreeMap<_, _>>(),
            phase: stage.name().to_owned(),
            quantity: Quantity::CpuTime,
            kind: Kind::Native,
            runs: runs.clone(),
        });
    }
}

/// The stage's time as a multiple of the library's, part by part.
fn row(stage: Stage, [ours, alone]: &Runs) -> HeadlineRow {
    let ratios = ours.iter().zip(alone).map(|(ours, alone)| ours / alone).collect();
    let what = match stage {
        Stage::Read => "one pass: read, beside memcpy",
        Stage::Scan => "one pass: scan, beside XXH3",
        Stage::Pass => "one pass: read and scan, beside both",
        Stage::Send => "one pass: send, beside the socket",
        Stage::Compress => "one pass: compress, beside lz4",
        Stage::Encrypt => "one pass: encrypt, beside the cipher",
    };
    let limit = Limit { what, most: MOST, shown: "1.5 times at most" };
    limit.row(&Ours {
        pair: Pair { before: Vec::new(), after: ratios },
        unit: "times",
        platform: Platform::Machine,
        kind: Kind::Native,
        note: "`twofold bench migrate-pass`; CPU time, medians of parts, in turns".to_owned(),
    })
}

fn notes(plan: &Plan, all: &[Runs], bytes: [u64; Stage::ALL.len()]) -> Vec<String> {
    let mut notes = vec![format!(
        "{}, a third zero, a third compressible, a third random, page by page; in parts of {}, each by the stage and by the \
         library alone in turns",
        readable::bytes(plan.bytes),
        readable::bytes(plan.part)
    )];
    for ((stage, [ours, alone]), bytes) in Stage::ALL.into_iter().zip(all).zip(bytes) {
        if ours.is_empty() {
            continue;
        }
        let mean = bytes as f64 / ours.len() as f64;
        let rate = |runs: &[f64]| mean / Quartiles::of(runs.iter().copied()).median;
        notes.push(format!(
            "{}: {} in all, {:.2} GB/s, and {ALONE} {:.2} GB/s",
            stage.name(),
            readable::bytes(bytes),
            rate(ours),
            rate(alone)
        ));
    }
    notes
}

/// The name of the moves in results.
const MOVES: &str = "migrate-downtime";
/// Loads in percent of the link, and the names of their rows.
const LOADS: [(u64, &str); 2] = [
    (20, "host's clock, 20 % of the link: downtime, adaptive"),
    (80, "host's clock, 80 % of the link: downtime, adaptive"),
];
/// Bytes a second that may be sent.
const LINK: u64 = 1_000_000_000;
const DOWNTIME: Duration = Duration::from_millis(5);
const ALONE: &str = "alone";
const MOST: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Detail, text};
    use crate::results::Verdict;

    fn plan() -> Plan {
        Plan { bytes: 8 << 20, part: 2 << 20, moves: 0, moving: None, files: crate::report::Files::default() }
    }

    #[test]
    fn each_stage_goes_over_the_bytes_that_it_says() {
        let plan = plan();
        let guest = Guest::new(&plan).unwrap();
        let mut stages = Stages::new(&guest, plan.part).unwrap();
        for part in [3, 0] {
            stages.go_to(part).unwrap();
            let third = plan.part / 3;
            let near = |size: u64, thirds: u64| size.abs_diff(thirds * third) < 10 * 4096;
            assert_eq!(stages.size(Stage::Read), plan.part);
            assert!(near(stages.size(Stage::Compress), 2), "{}", stages.size(Stage::Compress));
            // Records of whole pages, with their headers.
            assert!(near(stages.size(Stage::Send) * 4096 / 4128, 2), "{}", stages.size(Stage::Send));
            for stage in Stage::ALL {
                stages.ours(stage).unwrap();
                stages.alone(stage).unwrap();
            }
        }
        assert!(stages.go_to(4).is_err());
    }

    #[test]
    fn the_report_has_a_row_for_each_stage() {
        let plan = plan();
        let results = results(&plan, &Progress::new(plan.steps()).unwrap(), &Stop::never()).unwrap();
        assert_eq!((results.measurements.len(), results.headline.len()), (12, 6));
        assert!(results.measurements.iter().all(|one| one.kind == Kind::Native && one.runs.len() == 4));
        assert!(results.headline.iter().all(|row| row.after.is_some() && row.verdict != Verdict::NotMeasured));
        let shown = text(&results, Detail::All);
        assert!(Stage::ALL.iter().all(|stage| shown.contains(stage.name())), "{shown}");
    }

    /// How long the guest stands still is the host's matter.
    #[test]
    fn a_guest_that_writes_is_moved_on_the_hosts_clock() {
        let plan = plan();
        let guest = Guest::new(&plan).unwrap();
        for seed in 0..2 {
            let one = Move { tracker: Tracker::Adaptive, link: 100_000_000, load: 20, downtime: DOWNTIME };
            let sent = one.go(&guest, seed).unwrap();
            assert!(sent.rounds >= 1 && sent.pages >= plan.bytes / 4096 && sent.stopped < sent.time, "{sent:?}");
        }
    }

    #[test]
    fn a_third_of_the_pages_is_zero_and_a_third_compressible() {
        use super::super::guest::content;
        let packed = |page| lz4_flex::block::compress(&content(page)).len();
        assert!(content(0).iter().all(|byte| *byte == 0) && content(1) != content(4) && content(2) != content(5));
        assert!((600..1400).contains(&packed(1)), "{}", packed(1));
        assert!(packed(2) > 4096, "{}", packed(2));
    }
}
