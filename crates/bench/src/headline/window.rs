// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S4's second patch, seen from outside: for how long a block's entry is invalid while the block is put together, and how long
//! that takes. The source says what it does to that time, and gives no figure of it.

use twofold_stage2::Level;

use super::part::{Bench, Part, Round};
use super::row::{Bar, Ours, Pair};
use super::verdict::Owed;
use crate::experiment::setup::Coalesce;
use crate::experiment::window::{Inside, Run, Window};
use crate::results::{HeadlineRow, Kind, Platform};

/// The window of one block.
pub struct WindowPart {
    level: Level,
    inside: Inside,
    window: Option<Window>,
    invalid: Pair,
    rebuild: Pair,
    /// All of them, in order.
    runs: Vec<Run>,
}

impl WindowPart {
    /// Of 1 GiB and 2 MiB, with flushes for free; of 1 GiB with a vCPU that is waited for.
    pub fn all() -> [Self; 3] {
        let part = |level, inside| Self {
            level,
            inside,
            window: None,
            invalid: Pair::default(),
            rebuild: Pair::default(),
            runs: Vec::new(),
        };
        [part(Level::L1, Inside::Nobody), part(Level::L1, Inside::OneVcpu), part(Level::L2, Inside::Nobody)]
    }

    fn bars(&self) -> [Bar; 2] {
        let bar = |what, shown, owed| Bar { what, shown, owed };
        match (self.level, self.inside) {
            (Level::L1, Inside::Nobody) => [
                bar("1G rebuild: entry invalid", "at least 85 % less", Owed::AtLeast(0.85)),
                bar("1G rebuild: all of it", "no longer", Owed::NoLoss),
            ],
            (Level::L1, Inside::OneVcpu) => [
                bar("1G rebuild beside a vCPU: entry invalid", "less", Owed::Gain),
                bar("1G rebuild beside a vCPU: all of it", "no longer", Owed::NoLoss),
            ],
            _ => [
                // One page is freed: there is next to nothing to gain.
                bar("2M rebuild: entry invalid", "no longer", Owed::NoLoss),
                bar("2M rebuild: all of it", "no longer", Owed::NoLoss),
            ],
        }
    }

    fn add(&mut self, before: Run, after: Run) {
        self.runs.extend([before, after]);
        // Both or neither: what has no other side is no comparison.
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
            Inside::Nobody => "flushes for free",
            Inside::OneVcpu => "a flush is this host's membarrier",
        };
        let note = format!(
            "free-first and install-first, no FEAT_S2FWB, medians of {ROUNDS} rounds; {flush}; a look at the entry every \
             {look:.0} ns from another CPU; {missed} windows of {all} were shorter, and count as that; {disturbed} are left out, as \
             a CPU was lost to others"
        );
        Ours { pair: pair.times(1e-3), unit: "us", platform: Platform::Machine, kind: Kind::Native, note }
    }
}

impl Part for WindowPart {
    fn name(&self) -> String {
        let (block, vcpu) = (if self.level == Level::L1 { "1G" } else { "2M" }, self.inside == Inside::OneVcpu);
        format!("S4: window of {block}{}", if vcpu { " beside a vCPU" } else { "" })
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
        let row = |(bar, pair): (Bar, &Pair)| match why.or(is_busy.then_some(BUSY)) {
            Some(why) => bar.missing(why),
            None => bar.row(&self.ours(pair)),
        };
        self.bars().into_iter().zip([&self.invalid, &self.rebuild]).map(row).collect()
    }
}

const BUSY: &str = "other work had one of the two CPUs in each round; run it again when the machine is idle";
/// Of a run.
const ROUNDS: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::window::Times;

    const LOST: Run = Run { times: None, look: 24.0, missed: 0, disturbed: ROUNDS };

    #[test]
    fn a_run_that_lost_its_cpus_is_told_and_not_compared() {
        let [mut part, ..] = WindowPart::all();
        part.add(LOST, LOST);
        for row in part.rows(None) {
            assert_eq!((row.note.as_str(), row.before.is_none()), (BUSY, true));
        }
        let seen = |invalid| Run { times: Some(Times { invalid, rebuild: 1e5 }), look: 24.0, missed: 1, disturbed: 2 };
        part.add(seen(1e4), LOST);
        assert_eq!((part.invalid.before.len(), part.invalid.after.len()), (0, 0), "it has no other side");
        part.add(seen(1e4), seen(1e3));
        let [invalid, rebuild] = &part.rows(None)[..] else { panic!("two rows") };
        assert_eq!(invalid.before.as_ref().unwrap().median, 10.0, "us");
        assert_eq!((invalid.gain, rebuild.gain), (None, None), "one run claims nothing");
        let told =
            format!("3 windows of {} were shorter, and count as that; {} are left out", 6 * ROUNDS, 3 * ROUNDS + 6);
        assert!(invalid.note.contains(&told), "{}", invalid.note);
        for _ in 0..3 {
            part.add(seen(1e4), seen(1e3));
        }
        let [invalid, rebuild] = &part.rows(None)[..] else { panic!("two rows") };
        assert_eq!(invalid.gain.as_ref().unwrap().median, 0.9);
        assert_eq!(rebuild.gain.as_ref().unwrap().median, 0.0);
    }
}
