// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S4's second patch, seen from outside: for how long a block's entry is invalid while the block is put together, and how long
//! that takes. The source says what it does to that time, and gives no figure of it.

use twofold_stage2::Level;

use super::part::{Bench, Part, Round};
use super::row::{Bar, Ours, Pair};
use super::verdict::Owed;
use crate::experiment::setup::Coalesce;
use crate::experiment::window::{Inside, Window};
use crate::results::{HeadlineRow, Kind, Platform};

/// The window of one block.
pub struct WindowPart {
    level: Level,
    inside: Inside,
    window: Option<Window>,
    invalid: Pair,
    rebuild: Pair,
    /// Of the runs: nanoseconds of a look, and rounds in which nothing was seen.
    looks: Vec<(f64, u32)>,
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
            looks: Vec::new(),
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

    fn ours(&self, pair: &Pair) -> Ours {
        let looks = self.looks.len().max(1) as f64;
        let look = self.looks.iter().map(|(ns, _)| ns).sum::<f64>() / looks;
        let missed: u32 = self.looks.iter().map(|(_, missed)| missed).sum();
        let all = 2 * ROUNDS as usize * self.invalid.after.len();
        let flush = match self.inside {
            Inside::Nobody => "flushes for free",
            Inside::OneVcpu => "a flush is this host's membarrier",
        };
        let note = format!(
            "free-first and install-first, no FEAT_S2FWB, medians of {ROUNDS} rounds; {flush}; a look at the entry every \
             {look:.0} ns from another CPU; {missed} windows of {all} were shorter, and count as that"
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
        for (is_after, order) in [(false, Coalesce::FreeFirst), (true, Coalesce::InstallFirst)] {
            let run = window.run(order, ROUNDS)?;
            if round == Round::Timed {
                self.invalid.add(is_after, run.invalid);
                self.rebuild.add(is_after, run.rebuild);
                self.looks.push((run.look, run.missed));
            }
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let row = |(bar, pair): (Bar, &Pair)| match why {
            Some(why) => bar.missing(why),
            None => bar.row(&self.ours(pair)),
        };
        self.bars().into_iter().zip([&self.invalid, &self.rebuild]).map(row).collect()
    }
}

/// Of a run.
const ROUNDS: u32 = 200;
