// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of Wang 2021: the stages of the page table's experiment, with patch 1 (which vCPU cleans caches) and patch
//! 2 (when old tables are freed) off and on.
//!
//! Figures are CPU time of all vCPUs, and each published vCPU had a CPU of its own: work that one vCPU saved was time
//! that another did not wait. In patch 1 caches are really cleaned, for a CPU without FEAT_S2FWB. In patch 2 nothing is
//! cleaned, as in the source. If pages of 4 KiB or many blocks are mapped, the price of an exit dominates: those rows
//! are modelled with a stated price.

use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;

use super::part::{Bench, Part, Round};
use super::published::{PUBLISHED, Published, WANG};
use super::row::{Ours, OwnTarget, Pair};
use super::subject::{Subject, Technique};
use super::verdict::Owed;
use crate::experiment::page_table::{Stage, Stages};
use crate::experiment::record::{Party, Variant};
use crate::experiment::setup::{Backing, Setup};
use crate::report::section::TOO_FEW;
use crate::report::words::{self, Noun};
use crate::results::{HeadlineRow, Kind, Platform, Quantity};
use twofold_workload::policies::{Cmo, Coalesce, Policies};

/// A published command, with one technique.
pub struct StagesPart {
    technique: Technique,
    backing: Backing,
    gib: u64,
    vcpus: usize,
    setup: Option<Setup>,
    exit_cost: u64,
    /// CPU time and faults, by stage.
    runs: [(Pair, Pair); 3],
}

impl StagesPart {
    /// One part for each published command and technique.
    pub fn all() -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        for published in PUBLISHED {
            let Subject::Stage { technique, backing, gib, vcpus, .. } = published.subject else { continue };
            if !parts.iter().any(|part| part.is_of(published)) {
                let (setup, exit_cost, runs) = (None, 0, Default::default());
                parts.push(Self { technique, backing, gib, vcpus, setup, exit_cost, runs });
            }
        }
        parts
    }

    fn is_of(&self, published: &Published) -> bool {
        let own = (self.technique, self.backing, self.gib, self.vcpus);
        matches!(published.subject, Subject::Stage { technique, backing, gib, vcpus, .. }
            if (technique, backing, gib, vcpus) == own)
    }

    /// The published numbers of this part.
    fn published(&self) -> impl Iterator<Item = (&'static Published, Stage)> {
        PUBLISHED.iter().filter(|published| self.is_of(published)).filter_map(|published| match published.subject {
            Subject::Stage { stage, .. } => Some((published, stage)),
            _ => None,
        })
    }

    fn own_target(&self, stage: Stage) -> Option<OwnTarget> {
        let is =
            self.technique == Technique::Cmo && self.backing == Backing::AnonymousHugetlb1G && stage == Stage::Create;
        is.then_some(OwnTarget { what: "1G create, cleaned on map", of: Noun::TIME, owed: Owed::AtLeast(0.75) })
    }

    fn policies(&self, is_after: bool) -> Policies {
        let now = Policies::default();
        match self.technique {
            _ if is_after => now,
            Technique::Cmo => Policies { cmo: Cmo::OnAbort, ..now },
            Technique::Coalesce => Policies { coalesce: Coalesce::FreeFirst, ..now },
        }
    }

    /// Whether the price of an exit dominates.
    fn is_modelled(&self, stage: Stage) -> bool {
        self.backing.page() < 1 << 30 || stage == Stage::Update
    }

    fn ours(&self, stage: Stage) -> Ours {
        let (time, faults) = &self.runs[stage as usize];
        let native = time.times(1e-6);
        let policy = match self.technique {
            Technique::Cmo => "cmo=on-abort,on-map",
            Technique::Coalesce => "coalesce=free-first,install-first",
        };
        let setup = self.setup.as_ref().map(command).unwrap_or_default();
        let mut note = format!("`twofold bench page-table {setup} --policy {policy}`; CPU time of all vCPUs");
        if self.technique == Technique::Cmo && stage == Stage::Adjust {
            note.push_str(
                "; on map, only memory that the pages do not map is cleaned; the source cleans the whole block",
            );
        }
        let (mut pair, mut kind) = (native.clone(), Kind::Native);
        if self.is_modelled(stage) {
            let gain = native.gain(Kind::Native);
            let gain = gain.map_or(TOO_FEW.to_owned(), |gain| words::change(1.0 - gain.median, Noun::TIME));
            note.push_str(&format!("; {} ns for each exit; with free exits: {gain}", self.exit_cost));
            (pair, kind) = (native.plus(&faults.times(self.exit_cost as f64 / 1e6)), Kind::Modelled);
        }
        Ours { pair, unit: "ms", platform: Platform::Machine, kind, note }
    }
}

impl Part for StagesPart {
    fn name(&self) -> String {
        let patch = if self.technique == Technique::Cmo { 1 } else { 2 };
        let command = self.published().next().map_or("", |(published, _)| published.command);
        format!("{WANG}: patch {patch}: {}", command.rsplit_once("-s ").map_or("", |(_, rest)| rest))
    }

    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let mode = Mode::find(MODE).ok_or_else(|| anyhow::anyhow!("there is no mode {MODE}"))?;
        let setup = Setup {
            vcpus: bench.plan.vcpus(self.vcpus),
            region: bench.plan.gib(self.gib) << 30,
            overlap: true,
            backing: self.backing,
            tracker: Tracker::WriteProtect,
            chunk: 0,
            forced_write_back: self.technique != Technique::Cmo,
            sparse: bench.plan.sparse,
            ..Setup::new(mode)
        };
        bench.machines.guest(&setup)?;
        (self.setup, self.exit_cost) = (Some(setup), bench.exit_cost);
        Ok(())
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some(setup) = self.setup.clone() else { return Ok(()) };
        let mut both = Vec::new();
        for is_after in [false, true] {
            let setup = Setup { policies: self.policies(is_after), ..setup.clone() };
            let mut target = bench.machines.guest(&setup)?;
            let taken = Stages::new(&setup)?.run(&mut target, round == Round::Checked)?;
            both.push((taken, setup));
        }
        if round == Round::Checked {
            return Ok(());
        }
        for (is_after, (taken, setup)) in [false, true].into_iter().zip(both) {
            let variant = Variant::new("page-table", Platform::Machine, &setup);
            for (stage, taken) in taken {
                let (time, faults) = &mut self.runs[stage as usize];
                time.add(is_after, taken[&Quantity::CpuTime]);
                faults.add(is_after, taken[&Quantity::Faults]);
                variant.add(bench.results, stage.name(), Party::Guest, &taken);
            }
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let row = |(published, stage): (&Published, Stage)| {
            let own = self.own_target(stage);
            match why {
                Some(why) => [Some(published.missing(why)), own.map(|own| own.missing(why))],
                None => {
                    let ours = self.ours(stage);
                    [Some(published.row(&ours)), own.map(|own| own.row(&ours))]
                }
            }
        };
        self.published().flat_map(row).flatten().collect()
    }
}

/// The options that set up the same guest.
fn command(setup: &Setup) -> String {
    format!("-m {MODE} -s {} -b {}G -v {}", setup.configuration()["backing"], setup.region >> 30, setup.vcpus)
}

/// `-m 4` in the numbering of 2021.
const MODE: &str = "p40v48-4k";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_part() {
        let parts = StagesPart::all();
        assert_eq!(parts.len(), 8);
        let rows: usize = parts.iter().map(|part| part.published().count()).sum();
        let all = PUBLISHED.iter().filter(|published| matches!(published.subject, Subject::Stage { .. })).count();
        assert_eq!(rows, all);
        assert_eq!(parts[0].name(), "Wang 2021: patch 1: anonymous -b 1G -v 80");
    }
}
