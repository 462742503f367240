// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of the table, in order. The variants of a part take turns, as often as the time allows.
//!
//! Invariants: a part's first round is checked and is in no figure. No part uses another part's time. No part has fewer
//! runs than [`LEAST`], unless it has a number of its own, or a signal ends the program.

use std::time::{Duration, Instant};

use super::plan::Plan;
use crate::experiment::machine::Machines;
use crate::experiment::progress::Progress;
use crate::results::{HeadlineRow, Results};
use crate::stop::Stop;

/// A set of rows that is measured together.
pub trait Part {
    /// The part's name, for the progress bar and for `--only`.
    fn name(&self) -> String;

    /// Prepares the part.
    ///
    /// # Errors
    ///
    /// The part cannot be measured here: there is too little memory, no second CPU, or no platform.
    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()>;

    /// Runs each variant once, in turns.
    ///
    /// # Errors
    ///
    /// A check of the measured operation failed.
    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()>;

    /// The number of timed rounds, if the time is not to decide. `asked`: what the user asks for. 1 if all are identical.
    fn rounds(&self, asked: Option<u32>) -> Option<u32> {
        asked
    }

    /// The part's rows. If the part cannot be measured, they say `why`.
    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow>;
}

/// The use of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Its outcome is checked. Its figures are dropped.
    Checked,
    /// Its figures count.
    Timed,
}

/// The state that parts share.
pub struct Bench<'a> {
    /// The sizes of everything.
    pub plan: &'a Plan,
    /// Nanoseconds of an exit in modelled rows.
    pub exit_cost: u64,
    /// The hosted machine.
    pub machines: Machines,
    /// The results, which keep each run.
    pub results: &'a mut Results,
    /// Whether to stop early.
    pub stop: &'a Stop,
    /// The progress bar.
    pub progress: Progress,
}

/// Measures all parts and returns their rows in order.
///
/// # Errors
///
/// A round failed.
pub fn measure(mut parts: Vec<Box<dyn Part>>, bench: &mut Bench<'_>) -> anyhow::Result<Vec<HeadlineRow>> {
    let start = Instant::now();
    let mut rows = Vec::new();
    let count = parts.len();
    for (at, part) in parts.iter_mut().enumerate() {
        bench.progress.doing(part.name());
        let begun = if bench.stop.is_requested() { Err(anyhow::anyhow!(INTERRUPTED)) } else { part.begin(bench) };
        if let Err(why) = &begun {
            rows.extend(part.rows(Some(&format!("{why:#}"))));
        } else {
            let left = bench.plan.time.saturating_sub(start.elapsed());
            run(&mut **part, bench, left / (count - at) as u32)?;
            rows.extend(part.rows(None));
        }
        bench.progress.done();
    }
    Ok(rows)
}

/// Runs rounds of one part until its share of the time is used.
fn run(part: &mut dyn Part, bench: &mut Bench<'_>, share: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    part.round(bench, Round::Checked)?;
    let wanted = part.rounds(bench.plan.runs).unwrap_or_else(|| fitting(share, start.elapsed()));
    for run in 1..=wanted {
        if bench.stop.is_requested() {
            break;
        }
        bench.progress.doing(format!("{}, run {run} of {wanted}", part.name()));
        part.round(bench, Round::Timed)?;
    }
    Ok(())
}

/// The number of rounds that fit into a share, if one round takes `one`.
fn fitting(share: Duration, one: Duration) -> u32 {
    let rounds = share.as_secs_f64() / one.as_secs_f64().max(1e-6);
    (rounds as u32).saturating_sub(1).clamp(LEAST, MOST)
}

/// The fewest runs with a meaningful median.
const LEAST: u32 = 7;
/// More runs do not narrow the interval enough to be worth their time.
const MOST: u32 = 21;
/// The note of a row that was not measured because a signal ended the program.
const INTERRUPTED: &str = "interrupted";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::machine::Machines;

    /// A part that counts its rounds.
    #[derive(Default)]
    struct Counting {
        is_exact: bool,
        fails: bool,
        checked: u32,
        timed: u32,
    }

    impl Part for Counting {
        fn name(&self) -> String {
            "counting".to_owned()
        }

        fn begin(&mut self, _: &mut Bench<'_>) -> anyhow::Result<()> {
            anyhow::ensure!(!self.fails, "there is no memory");
            Ok(())
        }

        fn round(&mut self, _: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
            *(if round == Round::Checked { &mut self.checked } else { &mut self.timed }) += 1;
            Ok(())
        }

        fn rounds(&self, asked: Option<u32>) -> Option<u32> {
            if self.is_exact { Some(1) } else { asked }
        }

        fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
            let note = why.map_or(format!("{} {}", self.checked, self.timed), str::to_owned);
            vec![HeadlineRow { note, ..crate::headline::published::PUBLISHED[0].missing("") }]
        }
    }

    fn notes(plan: &Plan, parts: Vec<Counting>) -> Vec<String> {
        let parts: Vec<_> = parts.into_iter().map(|part| Box::new(part) as Box<dyn Part>).collect();
        let (mut results, stop) = (Results::begin(), Stop::never());
        let (machines, progress) = (Machines::new(), Progress::new(parts.len() as u64).unwrap());
        let mut bench = Bench { plan, exit_cost: 0, machines, results: &mut results, stop: &stop, progress };
        measure(parts, &mut bench).unwrap().into_iter().map(|row| row.note).collect()
    }

    #[test]
    fn parts_are_checked_once_and_run_as_often_as_there_is_time() {
        let plan = Plan::of(8 << 30, 2, false);
        let exact = Counting { is_exact: true, ..Counting::default() };
        let fails = Counting { fails: true, ..Counting::default() };
        let all = notes(&plan, vec![Counting::default(), exact, fails]);
        assert_eq!(all, ["1 21", "1 1", "there is no memory"]);
        let none = Plan { time: Duration::ZERO, ..plan };
        assert_eq!(notes(&none, vec![Counting::default()]), ["1 7"]);
        assert_eq!(notes(&Plan { runs: Some(3), ..plan }, vec![Counting::default()]), ["1 3"]);
    }
}
