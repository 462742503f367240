// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges the figures: beside the published ones, and beside our targets.
//!
//! A published score is work in a fixed time, and more is better. As everywhere in the reports, a gain is the part of the
//! baseline's time that is saved, here for the same work: a score of 1.909 times is 47.6 % less time.

use twofold_machine::tasks::Nanos;

use super::measure::{PAGES, WORK, WRITES, phase};
use super::plan::{Bm, NAME, Plan};
use crate::headline::published::{NATAPOV, PUBLISHED, Published};
use crate::headline::row::{Ours, OwnTarget, Pair};
use crate::headline::subject::Subject;
use crate::headline::verdict::Owed;
use crate::options::{BmGuest, FaultMode};
use crate::readable;
use crate::report::words::Noun;
use crate::results::{HeadlineRow, Kind, Measurement, Platform, Results};
use crate::statistics::{Mean, Ratio};

/// The latency of a disk, for which figures were published.
pub const DISK: Nanos = Nanos::millis(10);

/// Runs of `off` and of another mode, for rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// Microseconds of the guest's time for a unit of work.
    pub time: Pair,
    /// Units of work for a page that the store brought.
    pub work_per_page: Pair,
}

impl Pairs {
    /// Adds a run of `off` and one of the other mode, each with its work and its pages. A run in which nothing was done
    /// has no time for a unit of work, nor work for a page.
    pub fn add(&mut self, runs: [(f64, f64); 2], time: Nanos) {
        let micros = time.get() as f64 / 1e3;
        for (is_after, (work, pages)) in [false, true].into_iter().zip(runs) {
            if runs.iter().all(|(work, _)| *work > 0.0) {
                self.time.add(is_after, micros / work);
            }
            if runs.iter().all(|(_, pages)| *pages > 0.0) {
                self.work_per_page.add(is_after, work / pages);
            }
        }
    }
}

/// The rows of a plan whose guest is as the published one; else none.
pub fn rows(plan: &Plan, results: &Results) -> Vec<HeadlineRow> {
    if plan.on == Platform::Hypervisor {
        return emulated_rows(plan, results);
    }
    if !plan.bm.is_as_published() || !plan.latencies.contains(&DISK) || !plan.modes.contains(&FaultMode::Off) {
        return Vec::new();
    }
    let modes = plan.modes.iter().copied().filter(|mode| *mode != FaultMode::Off);
    let mut rows: Vec<_> =
        modes.flat_map(|mode| mode_rows(mode, &plan.bm, &pairs(results, plan.bm.time, None, mode, DISK))).collect();
    rows.sort_by_key(|row| row.source != NATAPOV);
    rows
}

/// The work of each mode as a multiple of the work of `off`, a line for each guest and latency.
pub fn ratios(plan: &Plan, results: &Results) -> Vec<String> {
    let of = |guest: Option<BmGuest>, latency: &Nanos| {
        let off = runs(results, guest, FaultMode::Off, WORK, *latency);
        let modes = plan.modes.iter().filter(|mode| **mode != FaultMode::Off).filter_map(|mode| {
            let ratio = Ratio::counted(runs(results, guest, *mode, WORK, *latency), off)?;
            let ratio = Some(ratio).filter(|ratio| ratio.median.is_finite())?;
            let is_beside = plan.bm.is_as_published() && *latency == DISK && plan.kind() != Kind::Counted;
            let beside = published(*mode).filter(|_| is_beside);
            let beside = beside.map(|published| format!(" (published {:.3})", 1.0 / (1.0 - published.figure.gain())));
            Some(format!("{} {:.3} times{}", mode.name(), ratio.median, beside.unwrap_or_default()))
        });
        let modes = modes.collect::<Vec<_>>().join(", ");
        let guest = guest.map(|guest| format!(", {}", guest.name())).unwrap_or_default();
        (!modes.is_empty()).then(|| format!("work beside off at {latency}{guest}, medians: {modes}"))
    };
    guests(plan).flat_map(|guest| plan.latencies.iter().filter_map(move |latency| of(guest, latency))).collect()
}

/// The mean work of each mode and its standard error, as Natapov 2010 has it: a line for each guest and latency. None if each run
/// is equal.
pub fn means(plan: &Plan, results: &Results) -> Vec<String> {
    let of = |guest: Option<BmGuest>, latency: &Nanos| {
        let modes = plan.modes.iter().filter_map(|mode| {
            let mean = Mean::of(runs(results, guest, *mode, WORK, *latency))?;
            let [mean, error] = [mean.value, mean.error].map(|value| readable::count(value.round()));
            Some(format!("{} {mean} ({error})", mode.name()))
        });
        let modes = modes.collect::<Vec<_>>().join(", ");
        let guest = guest.map(|guest| format!(", {}", guest.name())).unwrap_or_default();
        (!modes.is_empty()).then(|| format!("work at {latency}{guest}, mean (standard error): {modes}"))
    };
    if plan.kind() != Kind::Emulated {
        return Vec::new();
    }
    guests(plan).flat_map(|guest| plan.latencies.iter().filter_map(move |latency| of(guest, latency))).collect()
}

/// The guests of the results; on the machine there is one without a name.
fn guests(plan: &Plan) -> impl Iterator<Item = Option<BmGuest>> {
    let unnamed = plan.guests.is_empty().then_some(None);
    plan.guests.iter().copied().map(Some).chain(unnamed)
}

/// The rows of one mode on the machine.
pub fn mode_rows(mode: FaultMode, bm: &Bm, pairs: &Pairs) -> Vec<HeadlineRow> {
    let note = format!(
        "`twofold bench async-fault -f {} -w {} -m {} -t {} --vcpus {} --latency 10ms`",
        bm.faulting,
        bm.workers,
        typed(bm.bytes),
        bm.time.to_string().replace(' ', ""),
        bm.vcpus
    );
    let ours = |pair: &Pair, unit, note: String| Ours {
        pair: pair.clone(),
        unit,
        platform: Platform::Machine,
        kind: Kind::Modelled,
        note,
    };
    let time = ours(&pairs.time, "us", format!("{note}; virtual time for each unit of work"));
    let pages = ours(&pairs.work_per_page, "work", format!("{note}; the workers' work for each page"));
    let target = match mode {
        FaultMode::Off => None,
        FaultMode::Halt => Some(PAGES_AT_THE_SAME_WORK.row(&pages)),
        FaultMode::Pv => Some(TIME_FOR_THE_SAME_WORK.row(&time)),
    };
    published(mode).map(|published| published.row(&time)).into_iter().chain(target).collect()
}

/// Bytes as they are typed: `64M`.
fn typed(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}M", bytes >> 20) } else { bytes.to_string() }
}

/// The rows of one mode without a measurement, and the reason.
pub fn missing_rows(mode: FaultMode, why: &str) -> Vec<HeadlineRow> {
    let target = match mode {
        FaultMode::Off => None,
        FaultMode::Halt => Some(PAGES_AT_THE_SAME_WORK),
        FaultMode::Pv => Some(TIME_FOR_THE_SAME_WORK),
    };
    published(mode)
        .map(|published| published.missing(why))
        .into_iter()
        .chain(target.map(|one| one.missing(why)))
        .collect()
}

/// 1.8 times the work.
const TIME_FOR_THE_SAME_WORK: OwnTarget =
    OwnTarget { what: "async faults, 10 ms: pv", of: Noun::TIME, owed: Owed::AtLeast(1.0 - 1.0 / 1.8) };
/// 1.5 times the pages.
const PAGES_AT_THE_SAME_WORK: OwnTarget =
    OwnTarget { what: "async faults, 10 ms: halt, for a page", of: Noun::WORK, owed: Owed::AtLeast(1.0 - 1.0 / 1.5) };

/// The rows of a plan on the hypervisor: the targets of the deterministic machine, or what was published.
fn emulated_rows(plan: &Plan, results: &Results) -> Vec<HeadlineRow> {
    let bm = &plan.bm;
    if !bm.is_as_published() || !plan.modes.contains(&FaultMode::Off) {
        return Vec::new();
    }
    let pairs = |guest, mode, latency| pairs(results, bm.time, Some(guest), mode, latency);
    if plan.kind() == Kind::Emulated {
        let is_measured = plan.guests.contains(&BmGuest::Linux) && plan.latencies.contains(&DISK);
        let modes = [FaultMode::Halt, FaultMode::Pv].map(|mode| pairs(BmGuest::Linux, mode, DISK));
        return if is_measured { published_rows(bm, &modes) } else { Vec::new() };
    }
    let is_measured = |target: &&CountedTarget| {
        let CountedTarget { guest, mode, latency, .. } = target;
        plan.guests.contains(guest) && plan.modes.contains(mode) && plan.latencies.contains(latency) && bm.faulting == 1
    };
    let row = |target: &CountedTarget| {
        let CountedTarget { guest, mode, latency, target } = *target;
        let pairs = pairs(guest, mode, latency);
        let (pair, unit) =
            if target.of == Noun::WORK { (pairs.work_per_page, "work") } else { (pairs.time.times(NANOSECONDS), "ns") };
        target.row(&Ours {
            pair,
            unit,
            platform: Platform::Hypervisor,
            kind: Kind::Counted,
            note: emulated(bm, guest, latency),
        })
    };
    COUNTED.iter().filter(is_measured).map(row).collect()
}

/// The rows of a Linux on the hypervisor, with what was published. `modes`: `off` beside `halt`, and beside `pv`.
pub fn published_rows(bm: &Bm, modes: &[Pairs; 2]) -> Vec<HeadlineRow> {
    let ours = |pairs: &Pairs| Ours {
        pair: pairs.time.times(NANOSECONDS),
        unit: "ns",
        platform: Platform::Hypervisor,
        kind: Kind::Emulated,
        note: emulated(bm, BmGuest::Linux, DISK),
    };
    let [halt, pv] = modes;
    let rows = [(FaultMode::Halt, halt), (FaultMode::Pv, pv)]
        .into_iter()
        .filter_map(|(mode, pairs)| Some(published(mode)?.row(&ours(pairs))));
    rows.chain([TIME_ON_SEVERAL.row(&ours(pv))]).collect()
}

/// These rows without a measurement, and the reason.
pub fn missing_published_rows(why: &str) -> Vec<HeadlineRow> {
    let rows = [FaultMode::Halt, FaultMode::Pv].into_iter().filter_map(|mode| Some(published(mode)?.missing(why)));
    rows.chain([TIME_ON_SEVERAL.missing(why)]).collect()
}

/// The command, and what the figures are.
fn emulated(bm: &Bm, guest: BmGuest, latency: Nanos) -> String {
    format!(
        "`twofold bench async-fault --on hypervisor --guest {} --vcpus {} -m {} -t {} --latency {}`; the guest's time for each unit \
         of work",
        guest.name(),
        bm.vcpus,
        typed(bm.bytes),
        bm.time.to_string().replace(' ', ""),
        latency.to_string().replace(' ', "")
    )
}

/// A target on the deterministic machine, with one faulting task and one worker.
struct CountedTarget {
    guest: BmGuest,
    mode: FaultMode,
    latency: Nanos,
    target: OwnTarget,
}

const COUNTED: [CountedTarget; 6] = [
    counted(BmGuest::Bare, FaultMode::Pv, DISK, "EL2, bare, 10 ms: pv", TIME, 1.8),
    counted(BmGuest::Bare, FaultMode::Pv, FAST, "EL2, bare, 100 us: pv", TIME, 1.4),
    counted(BmGuest::Bare, FaultMode::Halt, DISK, "EL2, bare, 10 ms: halt, for a page", Noun::WORK, 1.5),
    counted(BmGuest::Linux, FaultMode::Pv, DISK, "EL2, linux, 10 ms: pv", TIME, 1.8),
    counted(BmGuest::Linux, FaultMode::Pv, FAST, "EL2, linux, 100 us: pv", TIME, 1.4),
    counted(BmGuest::Linux, FaultMode::Halt, DISK, "EL2, linux, 10 ms: halt, for a page", Noun::WORK, 1.5),
];

/// `times` the work for the same time, or the pages for the same work.
const fn counted(
    guest: BmGuest,
    mode: FaultMode,
    latency: Nanos,
    what: &'static str,
    of: Noun,
    times: f64,
) -> CountedTarget {
    CountedTarget { guest, mode, latency, target: OwnTarget { what, of, owed: Owed::AtLeast(1.0 - 1.0 / times) } }
}

/// In a microsecond.
const NANOSECONDS: f64 = 1e3;
const TIME: Noun = Noun::TIME;
/// A latency at which the protocol's own cost shows.
const FAST: Nanos = Nanos::micros(100);
/// 1.5 times the work, on several CPUs.
const TIME_ON_SEVERAL: OwnTarget =
    OwnTarget { what: "EL2, linux, 2 vCPUs, 10 ms: pv", of: Noun::TIME, owed: Owed::AtLeast(1.0 - 1.0 / 1.5) };

fn published(mode: FaultMode) -> Option<&'static Published> {
    PUBLISHED.iter().find(|published| published.subject == Subject::AsyncFault { mode })
}

/// The runs of a mode at a latency.
fn runs<'r>(results: &'r Results, guest: Option<BmGuest>, mode: FaultMode, name: &str, latency: Nanos) -> &'r [f64] {
    let phase = phase(name, latency, guest);
    let is = |one: &&Measurement| {
        let is_mode = one.configuration.get("async").is_some_and(|name| name == mode.name());
        one.experiment == NAME && one.phase == phase && is_mode
    };
    results.measurements.iter().find(is).map_or(&[], |one| &one.runs)
}

/// The runs of `off` and of this mode.
fn pairs(results: &Results, time: Nanos, guest: Option<BmGuest>, mode: FaultMode, latency: Nanos) -> Pairs {
    let pages = if guest.is_some() { WRITES } else { PAGES };
    let of = |mode| {
        let all = |name| runs(results, guest, mode, name, latency).iter().copied();
        all(WORK).zip(all(pages))
    };
    let mut pairs = Pairs::default();
    of(FaultMode::Off).zip(of(mode)).for_each(|(off, other)| pairs.add([off, other], time));
    pairs
}
