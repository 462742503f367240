// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that never pauses, while its log is read and cleared at an interval. The review of Kolothum 2023 asked for
//! this workload. The figure is the guest's rate over time. The cost is the area between its steady rate before logging
//! and its rate during logging.
//!
//! Invariant: one thread reads the accesses and the time of a rate together. The guest's loss is shown next to the
//! collector's cost, and next to the work per second of CPU time of guest and collector together, because a cost that
//! moves is not saved.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::plan::{Plan, Timing};
use crate::experiment::progress::Progress as Bar;
use crate::experiment::record::{Party, Variant, sum};
use crate::experiment::setup::Setup;
use crate::experiment::target::{Meter, Progress, Taken, Target, Targets};
use crate::readable::percent;
use crate::results::{Measurement, Quantity, Results, Series};
use crate::statistics::Quartiles;
use crate::stop::Stop;

/// Measures the plan. If a signal ends it, the results have the complete runs.
///
/// # Errors
///
/// The platform fails.
pub fn measure(
    targets: &mut dyn Targets,
    plan: &Plan,
    timing: Timing,
    results: &mut Results,
    bar: &Bar,
    stop: &Stop,
) -> anyhow::Result<()> {
    for run in 0..timing.runs {
        for setup in plan.setups() {
            let shown = format!("{}, {}", setup.mode, setup.tracker.name());
            bar.doing(&shown);
            let mut target = targets.make(setup)?;
            let Some(measured) = Run::measure(&mut *target, setup, plan, timing, stop).context(shown)? else {
                results.interrupted = true;
                results.notes.extend(lost(results));
                return Ok(());
            };
            let variant = Variant::new(EXPERIMENT, targets.platform(), setup)
                .unsteady()
                .with("interval", format!("{} ms", timing.interval.as_millis()))
                .with("duration", format!("{} ms", timing.duration.as_millis()));
            measured.record(&variant, results);
            if run == 0 {
                results.series.push(measured.series(&variant));
            }
            bar.done();
        }
    }
    results.notes.extend(lost(results));
    if timing.runs > 1 {
        results.notes.push("rates over time are those of the first run".to_owned());
    }
    Ok(())
}

/// The guest's progress at a moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    progress: Progress,
}

/// The measurements of one run.
#[derive(Debug)]
struct Run {
    start: Mark,
    /// Just before logging is enabled.
    enabled: Mark,
    /// Just after logging is disabled.
    disabled: Mark,
    end: Mark,
    /// The times at which the log was read and cleared.
    collected: Vec<Instant>,
    /// The cost of the collector, by operation.
    collector: Vec<(&'static str, Taken)>,
    /// The guest's accesses over time.
    samples: Vec<(Instant, u64)>,
}

impl Run {
    /// Runs once. `None` if a signal asks the program to end.
    fn measure(
        target: &mut dyn Target,
        setup: &Setup,
        plan: &Plan,
        timing: Timing,
        stop: &Stop,
    ) -> anyhow::Result<Option<Self>> {
        let mut passes = plan.load.passes(setup)?;
        target.run(&mut passes)?;
        plan.load.rounds(&mut passes);
        target.start(&passes)?;
        let meter = target.meter();
        let (going, ended) = channel::<()>();
        let run = thread::scope(|scope| {
            let sampler = scope.spawn({
                let meter = &meter;
                move || sample(meter, &ended)
            });
            let run = Self::phases(target, timing, &meter, stop);
            drop(going);
            let samples = sampler.join().unwrap_or_default();
            run.map(|run| run.map(|run| Self { samples, ..run }))
        });
        // The guest is stopped in every case.
        let stopped = target.stop();
        let run = run?;
        stopped?;
        Ok(run)
    }

    fn phases(target: &mut dyn Target, timing: Timing, meter: &Meter, stop: &Stop) -> anyhow::Result<Option<Self>> {
        let (mut enable, mut get, mut clear) = (Taken::new(), Taken::new(), Taken::new());
        let start = Mark::now(meter);
        if sleep(timing.duration / 3, stop).and(wait_for_access(meter, stop)?).is_none() {
            return Ok(None);
        }
        let enabled = Mark::now(meter);
        add(&mut enable, &target.enable_log()?);
        let mut collected = Vec::new();
        while enabled.at.elapsed() < timing.duration {
            if sleep(timing.interval, stop).is_none() {
                return Ok(None);
            }
            collected.push(Instant::now());
            add(&mut get, &target.get_log()?);
            if let Some(taken) = target.clear_log()? {
                add(&mut clear, &taken);
            }
        }
        let disable = target.disable_log()?;
        let disabled = Mark::now(meter);
        if sleep(timing.duration / 3, stop).is_none() {
            return Ok(None);
        }
        let end = Mark::now(meter);
        let collector = vec![("enable", enable), ("get", get), ("clear", clear), ("disable", disable)];
        Ok(Some(Self { start, enabled, disabled, end, collected, collector, samples: Vec::new() }))
    }

    fn record(&self, variant: &Variant, results: &mut Results) {
        let rate = |from: &Mark, to: &Mark| Taken::from([(Quantity::Rate, from.rate(to))]);
        let collected = sum(self.collector.iter().map(|(_, taken)| taken));
        let guest = self.enabled.cpu(&self.disabled);
        let mut logged = rate(&self.enabled, &self.disabled);
        logged.extend(guest.map(|cpu| (Quantity::CpuTime, cpu)));
        variant.add(results, BEFORE, Party::Guest, &rate(&self.start, &self.enabled));
        variant.add(results, LOGGED, Party::Guest, &logged);
        variant.add(results, "after", Party::Guest, &rate(&self.disabled, &self.end));
        variant.add(results, LOST, Party::Guest, &Taken::from([(Quantity::Time, self.lost())]));
        if let Some(guest) = guest {
            let all = guest + collected.get(&Quantity::CpuTime).copied().unwrap_or(0.0);
            let work = self.enabled.accesses(&self.disabled) / all * 1e9;
            variant.add(results, "per second of CPU", Party::Guest, &Taken::from([(Quantity::Rate, work)]));
        }
        for (phase, taken) in &self.collector {
            variant.add(results, phase, Party::Collector, taken);
        }
    }

    /// The area between the steady rate and the rate while logged, in nanoseconds at the steady rate.
    fn lost(&self) -> f64 {
        let logged = self.enabled.nanoseconds(&self.disabled);
        logged - self.enabled.accesses(&self.disabled) / self.start.rate(&self.enabled) * 1e9
    }

    fn series(&self, variant: &Variant) -> Series {
        let seconds = |at: Instant| at.saturating_duration_since(self.start.at).as_secs_f64();
        let rates = self.samples.windows(2).filter_map(|pair| {
            let [(from, before), (to, after)] = pair else { return None };
            let time = (*to - *from).as_secs_f64();
            (time > 0.0).then(|| (seconds(*to), (after - before) as f64 / time))
        });
        let mut events = vec![(seconds(self.enabled.at), "logging enabled".to_owned())];
        events.extend(self.collected.iter().map(|at| (seconds(*at), "get and clear".to_owned())));
        events.push((seconds(self.disabled.at), "logging disabled".to_owned()));
        Series {
            experiment: variant.experiment.to_owned(),
            platform: variant.platform,
            configuration: variant.configuration.clone(),
            name: "accesses per second".to_owned(),
            points: rates.collect(),
            events,
        }
    }
}

impl Mark {
    fn now(meter: &Meter) -> Self {
        Self { at: Instant::now(), progress: meter() }
    }

    fn nanoseconds(&self, to: &Self) -> f64 {
        (to.at - self.at).as_nanos() as f64
    }

    fn accesses(&self, to: &Self) -> f64 {
        (to.progress.accesses - self.progress.accesses) as f64
    }

    /// Accesses per second.
    fn rate(&self, to: &Self) -> f64 {
        self.accesses(to) / self.nanoseconds(to) * 1e9
    }

    fn cpu(&self, to: &Self) -> Option<f64> {
        Some(to.progress.cpu? - self.progress.cpu?).filter(|cpu| *cpu > 0.0)
    }
}

/// Samples the guest's progress until the other end of the channel is dropped.
fn sample(meter: &Meter, ended: &Receiver<()>) -> Vec<(Instant, u64)> {
    let mut samples = Vec::new();
    let mut goes_on = true;
    while goes_on {
        samples.push((Instant::now(), meter().accesses));
        goes_on = ended.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout);
    }
    samples.push((Instant::now(), meter().accesses));
    samples
}

const SAMPLE: Duration = Duration::from_millis(20);
const EXPERIMENT: &str = "continuous";
const BEFORE: &str = "before";
const LOGGED: &str = "logged";
const LOST: &str = "lost";

/// Sleeps. `None` if a signal asks the program to end.
fn sleep(time: Duration, stop: &Stop) -> Option<()> {
    let end = Instant::now() + time;
    loop {
        if stop.is_requested() {
            return None;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(());
        }
        thread::sleep(left.min(SAMPLE));
    }
}

/// Waits for the first access. Without one there is no steady rate: on a busy system the guest's threads may not have
/// had a CPU yet. `None` if a signal asks the program to end.
fn wait_for_access(meter: &Meter, stop: &Stop) -> anyhow::Result<Option<()>> {
    let start = Instant::now();
    while meter().accesses == 0 {
        ensure!(start.elapsed() < DEAD, "the guest does nothing");
        if sleep(SAMPLE, stop).is_none() {
            return Ok(None);
        }
    }
    Ok(Some(()))
}

/// A guest that makes no access for this long never will.
const DEAD: Duration = Duration::from_secs(60);

fn add(all: &mut Taken, one: &Taken) {
    *all = sum([&*all, one]);
}

/// A line for each variant: its loss.
fn lost(results: &Results) -> Vec<String> {
    let of = |phase: &'static str, quantity| {
        let is =
            move |one: &&Measurement| one.experiment == EXPERIMENT && one.phase == phase && one.quantity == quantity;
        results.measurements.iter().filter(is)
    };
    let rates = of(BEFORE, Quantity::Rate).zip(of(LOGGED, Quantity::Rate)).zip(of(LOST, Quantity::Time));
    let line = |((before, logged), lost): ((&Measurement, &Measurement), &Measurement)| {
        let setting = |key: &str| lost.configuration.get(key).map_or("", String::as_str);
        let parts = before.runs.iter().zip(&logged.runs).map(|(before, logged)| 1.0 - logged / before);
        let (part, lost) = (Quartiles::of(parts).median, Quartiles::of(lost.runs.iter().copied()).median);
        format!(
            "{}, {}: while logged, the guest lost {} of its steady rate, or {:.3} s at that rate",
            setting("mode"),
            setting("tracker"),
            percent(part).trim_start_matches('+'),
            lost / 1e9
        )
    };
    rates.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::Work;
    use super::*;
    use crate::experiment::machine::Machines;
    use crate::results::{Kind, Platform};
    use twofold_workload::mode::Mode;

    fn mark(start: Instant, seconds: f64, accesses: u64, cpu: f64) -> Mark {
        let at = start + Duration::from_secs_f64(seconds);
        Mark { at, progress: Progress { accesses, cpu: Some(cpu * 1e9) } }
    }

    #[test]
    fn what_is_lost_is_the_area_below_the_steady_rate() {
        let start = Instant::now();
        let taken = |cpu: f64| Taken::from([(Quantity::CpuTime, cpu * 1e9)]);
        let run = Run {
            start: mark(start, 0.0, 0, 0.0),
            enabled: mark(start, 1.0, 1000, 1.0),
            disabled: mark(start, 5.0, 4000, 4.0),
            end: mark(start, 6.0, 5000, 5.0),
            collected: vec![start + Duration::from_secs(2)],
            collector: vec![("get", taken(0.5)), ("clear", taken(1.5))],
            samples: vec![(start, 0), (start + Duration::from_secs(1), 1000), (start + Duration::from_secs(5), 4000)],
        };
        // 4 s at 1000 accesses per second would be 4000; 3000 were done. So the loss is 1 s.
        assert!((run.lost() - 1e9).abs() < 1e3, "{}", run.lost());
        let variant = Variant::new(EXPERIMENT, Platform::Machine, &Setup::new(Mode::find("6").unwrap()));
        let mut results = Results::begin();
        run.record(&variant, &mut results);
        let runs = |phase: &str, quantity| {
            let found = results.measurements.iter().find(|one| one.phase == phase && one.quantity == quantity);
            found.map(|one| one.runs[0].round())
        };
        assert_eq!(runs(BEFORE, Quantity::Rate), Some(1000.0));
        assert_eq!(runs(LOGGED, Quantity::Rate), Some(750.0));
        // 3000 accesses in 3 s of the guest's CPU time and 2 s of the collector's.
        assert_eq!(runs("per second of CPU", Quantity::Rate), Some(600.0));
        assert!(lost(&results)[0].contains("25.0 %"), "{:?}", lost(&results));
        let series = run.series(&variant);
        assert_eq!(series.points, [(1.0, 1000.0), (5.0, 750.0)]);
        let events = [(1.0, "logging enabled"), (2.0, "get and clear"), (5.0, "logging disabled")];
        assert_eq!(series.events, events.map(|(at, what)| (at, what.to_owned())));
    }

    #[test]
    fn every_tracker_beside_a_guest_that_never_pauses() {
        let plan = Plan::of_line("--continuous -b 4M -v 2 --interval 10ms --duration 60ms --runs 1").unwrap();
        let Work::Continuous(timing) = plan.work else { panic!("{:?}", plan.work) };
        let (mut results, bar) = (Results::begin(), Bar::new(5).unwrap());
        measure(&mut Machines::new(), &plan, timing, &mut results, &bar, &Stop::never()).unwrap();
        assert_eq!(results.series.len(), 5);
        assert!(results.series.iter().all(|series| !series.points.is_empty()));
        assert!(results.measurements.iter().all(|one| one.kind == Kind::Native), "none is the same in each run");
        let before = results.measurements.iter().filter(|one| one.phase == BEFORE);
        assert_eq!(before.filter(|one| one.runs[0] > 0.0).count(), 5);
        assert!(results.measurements.iter().any(|one| one.phase == "get" && one.runs[0] > 0.0));
    }
}
