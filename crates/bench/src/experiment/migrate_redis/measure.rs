// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan: one guest, which moves from host to host under its benchmark, with each way in turns.
//!
//! Invariant: a figure is recorded only after the guest was compared, and its benchmark has ended without an error. The ways of a
//! turn are complete or left out.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use twofold_launch::redis::{KEYS, Redis};
use twofold_launch::{Bundle, Qemu, machine};

use super::figures::{Moved, Run, Totals, record, series};
use super::guest::Benchmark;
use super::hop::{Hop, Route};
use super::host::{Host, Kind, LOOK, Memory, bundle};
use super::images::RedisImages;
use super::network::Network;
use super::plan::{Plan, Way};
use super::watcher::{self, Watcher};
use crate::experiment::host_clock::Moment;
use crate::experiment::hypervisor::images;
use crate::experiment::progress::Progress;
use crate::options::Control;
use crate::results::Results;
use crate::stop::Stop;

/// The guest, wherever it is.
pub struct Guest {
    plan: Arc<Plan>,
    _network: Network,
    kind: Kind,
    bundle: Bundle,
    /// `None` only while it moves.
    host: Option<Host>,
    benchmark: Benchmark,
    watcher: Watcher,
    hops: u64,
}

/// Moves the guest once, with what the control breaks: a page is changed at the target before it is compared, or the dirty log leaves
/// pages out. Returns how that was noticed.
///
/// # Errors
///
/// It was not noticed.
pub fn control(plan: &Arc<Plan>, progress: &Progress, stop: &Stop) -> anyhow::Result<String> {
    let mut guest = Guest::start(plan, |what| progress.doing(what), stop)?;
    let way = plan.ways.last().copied().context("no way to move")?;
    match guest.run(way, stop) {
        Ok(_) => bail!("{}: nothing was noticed", way.name()),
        Err(error) => {
            let error = format!("{error:#}");
            let noticed =
                error.contains(" pages differ") && (plan.control != Some(Control::Withheld) || error.contains("1 of "));
            ensure!(noticed, "{}: {error}", way.name());
            Ok(format!("{}: {error}", way.name()))
        }
    }
}

/// Measures the plan. If a signal ends it, the results have the complete turns.
///
/// # Errors
///
/// An image is missing, a machine has ended, or a check failed.
pub fn results(plan: &Arc<Plan>, progress: &Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results { notes: plan.notes(), ..Results::begin() };
    let mut guest = Guest::start(plan, |what| progress.doing(what), stop)?;
    guest.describe_machine(&mut results);
    let mut totals = Totals::default();
    for turn in 0..plan.moves {
        let mut taken = Vec::new();
        for place in 0..plan.ways.len() {
            let way = plan.ways[(place + turn as usize) % plan.ways.len()];
            progress.doing(format!("{}, {} of {}", way.name(), turn + 1, plan.moves));
            match guest.run(way, stop) {
                Ok(run) => taken.push((way, run)),
                Err(_) if stop.is_requested() => {
                    results.interrupted = true;
                    return Ok(results);
                }
                Err(error) => return Err(error.context(format!("{}, turn {}", way.name(), turn + 1))),
            }
            progress.done();
        }
        for (way, run) in &taken {
            totals.add(run);
            record(&mut results, plan, *way, run);
            if turn == 0 {
                results.series.push(series(plan, *way, run));
            }
        }
    }
    progress.doing("reading all keys");
    totals.answers = guest.end()?;
    results.series.sort_by_key(|series| plan.place(&series.configuration));
    results.notes.extend(totals.notes());
    Ok(results)
}

impl Guest {
    /// Starts it, and fills its Redis. `doing` is called with what takes long.
    ///
    /// # Errors
    ///
    /// There is no QEMU, an image is missing, or the guest does not start.
    pub fn start(plan: &Arc<Plan>, doing: impl Fn(&str), stop: &Stop) -> anyhow::Result<Self> {
        let network = Network::start(plan.directory())?;
        let image = images::released(plan.images.as_deref(), &doing)?;
        let RedisImages { kernel, initrd } = RedisImages::find(plan.images.as_deref(), &doing)?;
        let Plan { vcpus, memory, clients, .. } = **plan;
        let guest = Redis { kernel: &kernel, initrd: &initrd, vcpus, memory, clients }.guest(network.devices());
        let kind = Kind { qemu: Qemu::find()?, image, cpus: vcpus, memory: guest.total_memory() };
        let bundle = bundle(&guest, &plan.directory().join("bundle"))?;
        doing("starting Linux and Redis");
        let host = Host::start(&kind, bundle.clone(), Memory::new()?)?;
        let benchmark = Benchmark::wait_for(network.redis(), &host, stop)?;
        let watcher = Watcher::start(network.redis())?;
        let plan = Arc::clone(plan);
        let mut guest = Self { plan, _network: network, kind, bundle, host: Some(host), benchmark, watcher, hops: 0 };
        doing("filling Redis");
        // Then a twentieth of the keys is still missing.
        guest.benchmark.order(guest.plan.requests.min(3 * KEYS))?;
        guest.benchmark.wait(stop)?;
        Ok(guest)
    }

    /// Adds which machine it is.
    pub fn describe_machine(&self, results: &mut Results) {
        let qemu = format!("{}, -cpu {}", self.kind.qemu.version(), machine::CPU_DEFAULT);
        results.host.push(("QEMU".to_owned(), qemu));
    }

    /// Runs the benchmark once, and meanwhile lets the guest move.
    ///
    /// # Errors
    ///
    /// A check failed, or the guest does not run on.
    pub fn run(&mut self, way: Way, stop: &Stop) -> anyhow::Result<Run> {
        let plan = Arc::clone(&self.plan);
        let before = self.watcher.served();
        let keys = self.benchmark.keys()?;
        let begin = self.benchmark.order(plan.requests)?;
        // A part of the benchmark is the steady rate.
        self.wait_for(before + plan.requests / 4, stop)?;
        let hop = match way {
            Way::Stay => None,
            Way::Move(how) => {
                self.hops += 1;
                let route = Route {
                    kind: &self.kind,
                    bundle: &self.bundle,
                    directory: plan.directory(),
                    program: &plan.program,
                    control: plan.control,
                    downtime: plan.downtime,
                };
                let here = self.host.take().context("the guest is nowhere")?;
                let (there, hop) = route.go(here, how, self.hops, stop)?;
                self.host = Some(there);
                Some(hop)
            }
        };
        let ended = self.benchmark.wait(stop)?;
        let now = self.benchmark.keys()?;
        ensure!(now >= keys, "{keys} keys were in the guest, and {now} are now");
        ensure!(self.watcher.works(), "the client outside has failed");
        let moved = match hop {
            Some(hop) => Some(Moved { hop, gap: self.gap(&hop, stop)? }),
            None => None,
        };
        let samples = self.watcher.samples(begin, ended.at);
        Ok(Run { requests: plan.requests, begin, ended, moved, samples })
    }

    /// For how long the client outside got no answer while the guest moved, without the time of the comparison. Its question may
    /// have been lost, and then come again after the benchmark's end.
    fn gap(&self, hop: &Hop, stop: &Stop) -> anyhow::Result<Duration> {
        while self.watcher.last_answer().is_none_or(|last| last <= hop.entered) {
            self.goes_on(stop)?;
        }
        let [from, to] = hop.judged.time;
        Ok(self.watcher.longest_gap(hop.begin, Moment::now()).saturating_sub(to.since(from)))
    }

    fn wait_for(&self, served: u64, stop: &Stop) -> anyhow::Result<()> {
        while self.watcher.served() < served {
            self.goes_on(stop)?;
        }
        Ok(())
    }

    /// Waits a little for the client outside.
    fn goes_on(&self, stop: &Stop) -> anyhow::Result<()> {
        ensure!(self.watcher.works(), "the client outside has failed");
        ensure!(!stop.is_requested(), "the bench was stopped");
        thread::sleep(LOOK);
        Ok(())
    }

    /// Ends the guest, which has to have all it was given. Returns the answers of the client outside.
    fn end(self) -> anyhow::Result<u64> {
        let Self { host, mut benchmark, watcher, .. } = self;
        let answers = watcher.end()?;
        let (keys, least) = (benchmark.keys()?, answers.min(watcher::KEYS));
        ensure!(keys > least, "{keys} keys are in the guest");
        benchmark.end()?;
        let outcome = host.context("the guest is nowhere")?.ended()?;
        let console = outcome.console.tail(usize::MAX);
        ensure!(
            console.iter().any(|line| line.contains("guest check: ok")),
            "the guest has ended without its check: {}",
            outcome.console.tail(10).join("\n")
        );
        Ok(answers)
    }
}
