// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second patch of Wang 2021, observed from another CPU: how long a block's entry is invalid while the block is
//! coalesced, and how long the whole rebuild takes. The source explains the effect on that time, and prints no figure.

use twofold_stage2::Level;

use super::part::{Bench, Part, Round};
use super::published::WANG;
use super::row::{Ours, OwnTarget, Pair};
use super::verdict::Owed;
use crate::experiment::window::{Inside, Run, Window};
use crate::report::words::Noun;
use crate::results::{HeadlineRow, Kind, Platform};
use twofold_workload::policies::Coalesce;

/// The measurements of one block.
pub struct WindowPart {
    level: Level,
    inside: Inside,
    window: Option<Window>,
    invalid: Pair,
    rebuild: Pair,
    /// All runs, in order.
    runs: Vec<Run>,
}

impl WindowPart {
    /// Blocks of 1 GiB and 2 MiB with free flushes, and of 1 GiB with a vCPU that each flush waits for.
    pub fn all() -> [Self; 3] {
        let part = |level, inside| Self {
            level,
            inside,
            window: None,
            invalid: Pair::default(),
            rebuild: Pair::default(),
            runs: Vec::new(),
        };
        [part(Level::L1, Inside::NoVcpu), part(Level::L1, Inside::OneVcpu), part(Level::L2, Inside::NoVcpu)]
    }

    fn targets(&self) -> [OwnTarget; 2] {
        let target = |what, owed| OwnTarget { what, of: Noun::TIME, owed };
        match (self.level, self.inside) {
            (Level::L1, Inside::NoVcpu) => [
                target("1G rebuild: entry invalid", Owed::AtLeast(0.85)),
                target("1G rebuild: total time", Owed::NoLoss),
            ],
            (Level::L1, Inside::OneVcpu) => [
                target("1G rebuild beside a vCPU: entry invalid", Owed::Gain),
                target("1G rebuild beside a vCPU: total time", Owed::NoLoss),
            ],
            _ => [
                // Only one table page is freed, so there is almost nothing to gain.
                target("2M rebuild: entry invalid", Owed::NoLoss),
                target("2M rebuild: total time", Owed::NoLoss),
            ],
        }
    }

    fn add(&mut self, before: Run, after: Run) {
        self.runs.extend([before, after]);
        // Add both or none: a run without its counterpart cannot be compared.
        if let (Some(before), Some(after)) = (before.times, after.times) {
            for (is_after, times) in [(false, before), (true, after)] {
                self.invalid.add(is_after, times.invalid);
                self.rebuild.add(is_after, times.rebuild);
            }
        }
    }

    fn ours(&self, pair: &Pair) -> Ours {
        let look = self.runs.iter().map(|run| run.look).sum::<f64>() / self.runs.len().max(1) as f64;
        let sum = |of: fn(&Run) -> u32| self.runs.iter().map(of).sum::<u32>();
        let (missed, disturbed, all) =
            (sum(|run| run.missed), sum(|run| run.disturbed), ROUNDS * self.runs.len() as u32);
        let flush = match self.inside {
            Inside::NoVcpu => "free flushes",
            Inside::OneVcpu => "a flush costs this host's membarrier",
        };
        let note = format!(
            "free-first and install-first, no FEAT_S2FWB, medians of {ROUNDS} rounds; {flush}; a look at the entry \
             every {look:.0} ns from another CPU; {missed} windows of {all} were shorter, and count as one look; \
             {disturbed} are left out, because another process took a CPU"
        );
        Ours { pair: pair.times(1e-3), unit: "us", platform: Platform::Machine, kind: Kind::Native, note }
    }
}

impl Part for WindowPart {
    fn name(&self) -> String {
        let (block, vcpu) = (if self.level == Level::L1 { "1G" } else { "2M" }, self.inside == Inside::OneVcpu);
        format!("{WANG}: window of {block}{}", if vcpu { " beside a vCPU" } else { "" })
    }

    fn begin(&mut self, _: &mut Bench<'_>) -> anyhow::Result<()> {
        self.window = Some(Window::new(self.level, self.inside)?);
        Ok(())
    }

    fn round(&mut self, _: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some(window) = &mut self.window else { return Ok(()) };
        let [before, after] = [window.run(Coalesce::FreeFirst, ROUNDS)?, window.run(Coalesce::InstallFirst, ROUNDS)?];
        if round == Round::Timed {
            self.add(before, after);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let is_busy = !self.runs.is_empty() && self.invalid.after.is_empty();
        let row = |(target, pair): (OwnTarget, &Pair)| match why.or(is_busy.then_some(BUSY)) {
            Some(why) => target.missing(why),
            None => target.row(&self.ours(pair)),
        };
        self.targets().into_iter().zip([&self.invalid, &self.rebuild]).map(row).collect()
    }
}

const BUSY: &str = "another process took one of the two CPUs in each round; run it again on an idle machine";
/// Rounds in a run.
const ROUNDS: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::window::Times;

    const LOST: Run = Run { times: None, look: 24.0, missed: 0, disturbed: ROUNDS };

    #[test]
    fn a_run_that_lost_its_cpus_is_noted_and_not_compared() {
        let [mut part, ..] = WindowPart::all();
        part.add(LOST, LOST);
        for row in part.rows(None) {
            assert_eq!((row.note.as_str(), row.before.is_none()), (BUSY, true));
        }
        let seen = |invalid| Run { times: Some(Times { invalid, rebuild: 1e5 }), look: 24.0, missed: 1, disturbed: 2 };
        part.add(seen(1e4), LOST);
        assert_eq!((part.invalid.before.len(), part.invalid.after.len()), (0, 0), "it has no counterpart");
        part.add(seen(1e4), seen(1e3));
        let [invalid, rebuild] = &part.rows(None)[..] else { panic!("two rows") };
        assert_eq!(invalid.before.as_ref().unwrap().median, 10.0, "us");
        assert_eq!((invalid.gain, rebuild.gain), (None, None), "one run claims nothing");
        let expected =
            format!("3 windows of {} were shorter, and count as one look; {} are left out", 6 * ROUNDS, 3 * ROUNDS + 6);
        assert!(invalid.note.contains(&expected), "{}", invalid.note);
        for _ in 0..3 {
            part.add(seen(1e4), seen(1e3));
        }
        let [invalid, rebuild] = &part.rows(None)[..] else { panic!("two rows") };
        assert_eq!(invalid.gain.as_ref().unwrap().median, 0.9);
        assert_eq!(rebuild.gain.as_ref().unwrap().median, 0.0);
    }
}
