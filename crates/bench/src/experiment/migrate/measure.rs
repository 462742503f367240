// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan: one guest moves between two processes, with each way in turns.
//!
//! Invariant: a figure is recorded only after the memory of its move was compared. The ways of a turn are complete or left
//! out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use twofold_migration::Cancel;

use super::figures::{Moved, Totals, record, series};
use super::node::Node;
use super::orders::{Move, Order, Received, Report, Sent};
use super::plan::Plan;
use super::process::{BENCH, PROCESS_ENDED, Process};
use super::settings::How;
use crate::experiment::progress::Progress;
use crate::options::Control;
use crate::results::Results;
use crate::stop::Stop;

/// How often Ctrl-C is looked for while the guest moves.
const LOOK: Duration = Duration::from_millis(20);
/// How long a guest whose target has ended is watched at the source.
const GOES_ON: Duration = Duration::from_millis(100);
/// How long it may take to serve a request on a busy host.
const PATIENCE: Duration = Duration::from_secs(20);

/// The two processes, and where the guest is.
struct Pair {
    here: Node,
    there: Process,
    is_here: bool,
    moves: u64,
}

/// Measures the plan. If a signal ends it, the results have the complete turns.
///
/// # Errors
///
/// A page or a word differs, a process ends, or memory does not fit.
pub fn results(plan: &Plan, progress: Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results { notes: plan.notes(), ..Results::begin() };
    progress.doing("filling the guest's tables");
    let mut pair = Pair::start(plan)?;
    let mut totals = Totals::default();
    for turn in 0..plan.moves {
        let mut taken = Vec::new();
        // Each turn begins with another way, so that each goes in both directions.
        for place in 0..plan.ways.len() {
            let how = plan.ways[(place + turn as usize) % plan.ways.len()];
            progress.doing(format!("{}, move {} of {}", how.name(), turn + 1, plan.moves));
            let moved = match pair.go(plan, how, stop) {
                Ok(moved) => moved,
                Err(_) if stop.is_requested() => {
                    results.interrupted = true;
                    break;
                }
                Err(error) => {
                    let error = error.context(format!("{}, move {}", how.name(), turn + 1));
                    return Err(pair.still_runs(error));
                }
            };
            taken.push((how, moved));
            progress.done();
        }
        if stop.is_requested() {
            results.interrupted = true;
        }
        if taken.len() < plan.ways.len() {
            break;
        }
        for (how, moved) in &taken {
            totals.add(moved);
            record(&mut results, plan, *how, moved);
            if turn == 0 {
                results.series.push(series(plan, *how, moved));
            }
        }
        if results.interrupted {
            break;
        }
    }
    results.series.sort_by_key(|series| plan.place(&series.configuration));
    results.notes.extend(totals.notes(plan));
    Ok(results)
}

/// Does one move in each way with something broken, and returns how that was noticed.
///
/// # Errors
///
/// It was not noticed, or the guest does not go on as it is to.
pub fn control(plan: &Plan, control: Control, stop: &Stop) -> anyhow::Result<Vec<String>> {
    plan.ways.iter().map(|how| control_of(plan, *how, control, stop)).collect()
}

fn control_of(plan: &Plan, how: How, control: Control, stop: &Stop) -> anyhow::Result<String> {
    let (mut pair, name) = (Pair::start(plan)?, how.name());
    let order = match control {
        Control::Withheld => Move { withheld: Some(WITHHELD), ..pair.order(how) },
        Control::Dead => {
            let bytes = plan.settings.memory / u64::from(plan.settings.streams);
            Move { ends_after: Some(bytes / 4), ..pair.order(how) }
        }
        Control::Unlogged => bail!("the dirty log of --on machine has no such control"),
    };
    let error = match pair.go_with(order, stop) {
        Ok(_) => bail!("{name}: nothing was noticed"),
        Err(error) => format!("{error:#}"),
    };
    match (control, how) {
        (Control::Withheld | Control::Unlogged, _) => {
            ensure!(error.contains("1 of ") && error.contains(" pages differ"), "{name}: {error}");
            Ok(format!("{name}: {error}"))
        }
        (Control::Dead, How::Precopy(_)) => {
            ensure!(error.contains(PROCESS_ENDED), "{name}: {error}");
            Ok(format!("{name}: {error}; the guest goes on here: it served {} requests since", pair.goes_on()?))
        }
        // It changes hands before its pages are there, so it ends with the process that owns it.
        (Control::Dead, How::Postcopy) => {
            ensure!(error.contains(PROCESS_ENDED), "{name}: {error}");
            Ok(format!("{name}: {error}; the guest is lost, as post-copy says"))
        }
    }
}

/// The page that a control withholds. Half of each page of a table is records.
const WITHHELD: u64 = 3;

impl Pair {
    fn start(plan: &Plan) -> anyhow::Result<Self> {
        let there = Process::start(&plan.settings)?;
        let mut here = Node::new(plan.settings.clone(), BENCH)?;
        here.boot()?;
        here.guest()?.start();
        Ok(Self { here, there, is_here: true, moves: 0 })
    }

    fn order(&mut self, how: How) -> Move {
        self.moves += 1;
        Move { number: self.moves, how: how.name().to_owned(), withheld: None, ends_after: None }
    }

    /// Moves the guest to the other process.
    fn go(&mut self, plan: &Plan, how: How, stop: &Stop) -> anyhow::Result<Moved> {
        let order = self.order(how);
        let (sent, received) = self.go_with(order, stop)?;
        Ok(Moved::of(plan, sent, received))
    }

    fn go_with(&mut self, order: Move, stop: &Stop) -> anyhow::Result<(Sent, Received)> {
        let moved = if self.is_here { self.out(order, stop)? } else { self.back(order, stop)? };
        self.is_here = !self.is_here;
        Ok(moved)
    }

    /// From this process to the other.
    fn out(&mut self, order: Move, stop: &Stop) -> anyhow::Result<(Sent, Received)> {
        let Self { here, there, .. } = self;
        there.order(&Order::Receive(order.clone()))?;
        match there.report()? {
            Report::Listening => {}
            other => bail!("the target's process answers {other:?}"),
        }
        let (cancel, is_over) = (Cancel::new(), AtomicBool::new(false));
        let sent = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if stop.is_requested() {
                        cancel.cancel();
                    }
                    thread::sleep(LOOK);
                }
            });
            let sent = here.send(&order, &cancel);
            is_over.store(true, Ordering::Relaxed);
            sent
        });
        // What the target reports says more than that the link is cut.
        let received = there.report();
        match (sent, received) {
            (Ok(sent), Ok(Report::Received(received))) => Ok((sent, received)),
            (Err(error), Ok(other)) => Err(error.context(format!("the target answers {other:?}"))),
            (Ok(_), Ok(other)) => bail!("the target's process answers {other:?}"),
            (Ok(_), Err(why)) => Err(why),
            (Err(error), Err(why)) => bail!("{why:#}; at the source: {error:#}"),
        }
    }

    /// From the other process to this one.
    fn back(&mut self, order: Move, stop: &Stop) -> anyhow::Result<(Sent, Received)> {
        ensure!(!stop.is_requested(), "the bench was stopped");
        let listener = self.here.listen(&order)?;
        self.there.order(&Order::Send(order.clone()))?;
        let received = self.here.receive(&order, listener);
        let sent = self.there.report();
        match (received, sent) {
            (Ok(received), Ok(Report::Sent(sent))) => Ok((sent, received)),
            (Ok(_), Ok(other)) => bail!("the source's process answers {other:?}"),
            (Err(error), Ok(_)) => Err(error),
            (Ok(_), Err(why)) => Err(why),
            (Err(error), Err(why)) => bail!("{why:#}; at the target: {error:#}"),
        }
    }

    /// Checks that the guest serves requests here; returns how many it has.
    fn goes_on(&self) -> anyhow::Result<u64> {
        let guest = self.here.guest()?;
        let before = guest.served();
        let begin = Instant::now();
        thread::sleep(GOES_ON);
        loop {
            guest.check()?;
            match guest.served() - before {
                0 => ensure!(begin.elapsed() < PATIENCE, "the guest stands still at the source"),
                served => return Ok(served),
            }
            thread::sleep(LOOK);
        }
    }

    /// Adds to an error whether the guest goes on here.
    fn still_runs(&mut self, error: anyhow::Error) -> anyhow::Error {
        if !self.is_here {
            return error;
        }
        match self.goes_on() {
            Ok(served) => anyhow::anyhow!("{error:#}; the guest goes on here, and served {served} requests since"),
            Err(why) => anyhow::anyhow!("{error:#}; {why:#}"),
        }
    }
}
