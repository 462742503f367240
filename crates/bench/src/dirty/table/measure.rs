// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the plan: trackers take turns, run by run.

use crate::dirty::guest::{LoggedGuest, PAGE};
use crate::dirty::span::Span;
use crate::dirty::workloads::Workload;
use crate::estimate::progress;

use super::plan::Plan;

/// A workload and what it took.
pub struct Measured<'p> {
    /// The workload.
    pub workload: &'p Workload,
    /// A list for each tracker, of each run.
    pub spans: Vec<Vec<Span>>,
}

/// Measures the plan.
///
/// # Errors
///
/// A guest does not fit, or a log missed a written page.
pub fn measure(plan: &Plan) -> anyhow::Result<Vec<Measured<'_>>> {
    let mut guests = vec![LoggedGuest::backed(plan.size)?];
    let mut subjects = Vec::new();
    for workload in &plan.workloads {
        let pages = match workload {
            Workload::Recorded(recorded) => {
                guests.push(LoggedGuest::backed((recorded.pages() * PAGE).next_multiple_of(2 << 20))?);
                recorded.pages()
            }
            _ => plan.pages(),
        };
        let count = workload.rounds().unwrap_or(u64::from(plan.rounds));
        let writes = plan.writes.unwrap_or(pages);
        let rounds: Vec<_> = (0..count).map(|round| workload.round(round, pages, writes)).collect();
        let spans = vec![Vec::new(); plan.trackers.len()];
        // The recorded workload comes last.
        subjects.push((Measured { workload, spans }, rounds, guests.len() - 1));
    }
    let progress = progress(subjects.len() as u64 * plan.trackers.len() as u64 * (u64::from(plan.runs) + 1))?;
    // The first run is not counted; its log is checked instead.
    for run in 0..=plan.runs {
        for (measured, rounds, guest) in &mut subjects {
            for (tracker, spans) in plan.trackers.iter().zip(&mut measured.spans) {
                progress.set_message(format!("{}, {}", measured.workload.name(), tracker.name()));
                let guest = &mut guests[*guest];
                guest.reset()?;
                let span = Span::measure(guest, *tracker, rounds, run == 0)?;
                if run > 0 {
                    spans.push(span);
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    Ok(subjects.into_iter().map(|(measured, ..)| measured).collect())
}
