// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Natapov 2010 on the hosted machine: the work of `bm` while pages are in a store, in each mode, beside our targets.
//!
//! Time is virtual, so a run takes part of a second and every row is modelled. A round has a seed of its own. The published figures
//! are beside a Linux guest's ([`emulated`](super::emulated)).

use super::part::{Bench, Part, Round};
use super::published::NATAPOV;
use crate::experiment::async_fault::{Bm, DISK, Pairs, Score, measure, missing_rows, mode_rows, record};
use crate::options::FaultMode;
use crate::results::{HeadlineRow, TARGET};

/// The measurement of Natapov 2010.
pub struct AsyncFaultPart {
    bm: Bm,
    rounds: u64,
    /// For `halt` and for `pv`.
    pairs: [Pairs; 2],
}

/// What is compared with `off`.
const MODES: [FaultMode; 2] = [FaultMode::Halt, FaultMode::Pv];

impl AsyncFaultPart {
    /// A guest with two vCPUs.
    pub fn new() -> Self {
        Self { bm: Bm::SMALL, rounds: 0, pairs: Default::default() }
    }
}

impl Part for AsyncFaultPart {
    fn name(&self) -> String {
        format!("{NATAPOV}: asynchronous page faults, modelled")
    }

    fn begin(&mut self, _: &mut Bench<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Self { bm, rounds, pairs } = self;
        let is_checked = round == Round::Checked;
        let seed = 1 + *rounds;
        let mut taken = Vec::new();
        for mode in [FaultMode::Off, MODES[0], MODES[1]] {
            if bench.stop.is_requested() {
                return Ok(());
            }
            taken.push((mode, measure(bm, mode, DISK, seed, is_checked)?));
        }
        if is_checked {
            return Ok(());
        }
        *rounds += 1;
        taken.iter().for_each(|(mode, did)| record(bench.results, bm, *mode, DISK, &Score::of(did)));
        let did: Vec<_> = taken.iter().map(|(_, did)| (did.work() as f64, did.counts.vcpus.pages as f64)).collect();
        for (pairs, other) in pairs.iter_mut().zip(&did[1..]) {
            pairs.add([did[0], *other], bm.time);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let row = |(mode, pairs): (FaultMode, &Pairs)| match why {
            Some(why) => missing_rows(mode, why),
            None => mode_rows(mode, &self.bm, pairs),
        };
        MODES.into_iter().zip(&self.pairs).flat_map(row).filter(|row| row.source == TARGET).collect()
    }
}
