// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Natapov 2010 under the hypervisor: `bm` in a Linux guest with two vCPUs, each with a CPU of QEMU.
//!
//! Time is the host's, as for the source. What it says of the modes is in their ratios, so the modes take turns.

use std::path::PathBuf;

use super::part::{Bench, Part, Round};
use super::published::NATAPOV;
use crate::experiment::async_fault::{Bm, DISK, Guests, Pairs, missing_published_rows, published_rows, record};
use crate::options::{BmGuest, FaultMode};
use crate::results::HeadlineRow;
use crate::statistics::ENOUGH;

/// The measurement of Natapov 2010 under the hypervisor.
pub struct EmulatedPart {
    /// The directory of the images. `None`: those of this workspace.
    directory: Option<PathBuf>,
    guests: Option<Guests>,
    /// For `halt` and for `pv`.
    pairs: [Pairs; 2],
}

impl EmulatedPart {
    /// Uses the images of this directory, or of the workspace.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, guests: None, pairs: Default::default() }
    }
}

impl Part for EmulatedPart {
    fn name(&self) -> String {
        format!("{NATAPOV}: asynchronous page faults, Linux on the hypervisor")
    }

    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let doing = |what: &str| bench.progress.doing(what);
        self.guests = Some(Guests::find(self.directory.as_deref(), &[BmGuest::Linux], bench.stop, doing)?);
        Ok(())
    }

    /// A round takes a minute and a half, so there are as few as have an interval.
    fn rounds(&self, asked: Option<u32>) -> Option<u32> {
        Some(asked.unwrap_or(ENOUGH as u32))
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some(guests) = &self.guests else { return Ok(()) };
        // `bm` itself checks each word that it reads, in all rounds.
        if round == Round::Checked {
            return Ok(());
        }
        let mut taken = Vec::new();
        for mode in [FaultMode::Off, FaultMode::Halt, FaultMode::Pv] {
            let score = guests.run(&BM, BmGuest::Linux, mode, DISK);
            if bench.stop.is_requested() {
                return Ok(());
            }
            taken.push((mode, score?));
        }
        taken.iter().for_each(|(mode, score)| record(bench.results, &BM, *mode, DISK, score));
        let did: Vec<_> = taken.iter().map(|(_, score)| (score.work as f64, score.pages as f64)).collect();
        for (pairs, other) in self.pairs.iter_mut().zip(&did[1..]) {
            pairs.add([did[0], *other], BM.time);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        why.map_or_else(|| published_rows(&BM, &self.pairs), missing_published_rows)
    }
}

/// The published proportions on two CPUs.
const BM: Bm = Bm { bytes: 128 << 20, limit: 64 << 20, ..Bm::SMALL };
