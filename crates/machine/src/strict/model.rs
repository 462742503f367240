// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the strict machine. `entries`, `pages` and `instructions` define the effect of each event.
//!
//! Invariant: the caller has the turn, so events do not overlap. An event that breaks a rule changes nothing more,
//! because it ends the run.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use twofold_stage2::{Features, Pa};

use super::bbm::Bbm;
use super::breach::{Change, Rule};
use super::cells::Cells;
use super::clock::{Clock, Moment};
use super::guards::Guards;
use super::lines::Lines;
use super::stale::StaleEntries;
use super::tables::{TablePosition, Tables};
use super::trace::Trace;
use crate::arena::Arena;
use crate::walk::{Format, Shape};

/// The machine's state.
pub(crate) struct Model {
    pub(crate) features: Features,
    pub(crate) bbm: Bbm,
    /// The format of all tables on this machine: that of the first root.
    pub(crate) format: Format,
    pub(crate) arena: Arc<Arena>,
    pub(crate) cells: Cells,
    pub(crate) guards: Guards,
    pub(crate) stale: StaleEntries,
    pub(crate) tables: Tables,
    pub(crate) lines: Lines,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) step: u64,
    pub(super) trace: Trace,
    /// The last changes of entries.
    changes: VecDeque<Change>,
}

/// One CPU.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    /// `VTTBR_EL2` as it was written.
    pub(crate) vttbr: u64,
    /// The value that is in effect since the last context synchronization.
    pub(crate) effective: u64,
    /// The pages whose locks it holds, in the order in which it took them.
    pub(super) locks: Vec<u64>,
    /// The descriptors of contiguous groups that it changed, in tables that it has locked.
    pub(super) groups: Vec<(TablePosition, u64)>,
    /// The tables that it unlinked since its last invalidation.
    pub(super) unlinked: Vec<u64>,
    /// Whether it is between a translation and the access it belongs to.
    pub(crate) accesses: bool,
    /// Lines that it cleaned, and its instruction cache invalidations, that are not complete yet.
    pub(super) cleaned: Vec<(u64, u64)>,
    pub(super) code: Vec<(Option<(u64, u64)>, Clock)>,
    /// TLB invalidations that it issued.
    pub(crate) invalidations: u64,
    /// Its last `DSB`s for loads and stores, and their steps.
    pub(super) barriers: VecDeque<(Moment, u64)>,
    /// The stores that were complete at its last `DSB ISH`.
    pub(super) complete: Clock,
    /// For each VMID, the vCPU whose stage-1 entries may be cached.
    pub(crate) vcpus: HashMap<u16, u32>,
    /// Stage-1 invalidations that are not complete: the VMID (`None`: every one), whether they apply to all CPUs, and whether
    /// they include stage 2.
    pub(super) stage1: Vec<(Option<u16>, bool, bool)>,
}

impl Cpu {
    /// No entry of stage 1 of this VMID, or of any, is cached here any more.
    pub(super) fn forget_vcpus(&mut self, vmid: Option<u16>) {
        self.vcpus.retain(|of, _| vmid.is_some_and(|vmid| vmid != *of));
    }
}

/// The number of changes that are kept for reports.
const REMEMBERED: usize = 1 << 16;

impl Model {
    pub(crate) fn new((features, bbm): (Features, Bbm), arena: Arc<Arena>, cpus: usize, trace: Trace) -> Self {
        Self {
            features,
            bbm,
            format: Format::KIB_4,
            arena,
            cells: Cells::new(cpus),
            guards: Guards::default(),
            stale: StaleEntries::default(),
            tables: Tables::new(Format::KIB_4),
            lines: Lines::default(),
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            step: 0,
            trace,
            changes: VecDeque::new(),
        }
    }

    /// The last changes of these entries.
    pub(crate) fn changes_of(&self, entries: &[u64]) -> Vec<Change> {
        const SHOWN: usize = 8;
        let about = |change: &&Change| entries.contains(&change.entry.raw());
        let mut found: Vec<_> = self.changes.iter().rev().filter(about).take(SHOWN).copied().collect();
        found.reverse();
        found
    }

    pub(crate) fn note(&mut self, change: Change) {
        if self.changes.len() == REMEMBERED {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    pub(crate) fn vmid(&self, vttbr: u64) -> u16 {
        ((vttbr >> 48) & ((1 << self.features.vmid_bits) - 1)) as u16
    }

    /// The leaf that translates an address now, and its level.
    pub(crate) fn leaf_of(&self, root: usize, ipa: u64) -> Option<(u64, u8)> {
        self.leaf_by(root, ipa, |entry| Some(self.read(entry)))
    }

    /// The leaf that translated an address, and its level, by the last entries that were known at `since`. `None` if there
    /// was none, or if only later entries are kept.
    pub(crate) fn leaf_known(&self, root: usize, ipa: u64, since: &Clock) -> Option<(u64, u8)> {
        self.leaf_by(root, ipa, |entry| self.cells.last_known(self.arena.word(Pa::new(entry))?, since))
    }

    fn leaf_by(&self, root: usize, ipa: u64, read: impl Fn(u64) -> Option<u64>) -> Option<(u64, u8)> {
        let root = self.tables.root(root);
        let (mut level, mut entry) = (root.level, root.pa + ipa / self.format.span(root.level) * 8);
        loop {
            let raw = read(entry)?;
            match self.format.shape(raw, level) {
                Shape::Invalid => return None,
                Shape::Leaf => return Some((raw, level)),
                Shape::Table => level += 1,
            }
            let index = ipa / self.format.span(level) % self.format.entries();
            entry = self.format.address(raw, level - 1) + index * 8;
        }
    }

    /// The word that memory holds.
    pub(crate) fn read(&self, pa: u64) -> u64 {
        self.arena.load(Pa::new(pa)).unwrap_or(0)
    }
}

/// The result of an event.
pub(crate) type Outcome<T = ()> = Result<T, Box<Broken>>;

/// A rule is broken.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: Rule,
    pub(crate) what: String,
    pub(crate) ipa: Option<u64>,
    /// The entries that it concerns.
    pub(crate) entries: Vec<u64>,
}

impl Broken {
    pub(crate) fn new(rule: Rule, what: impl Into<String>) -> Box<Self> {
        Box::new(Self { rule, what: what.into(), ipa: None, entries: Vec::new() })
    }

    pub(crate) fn at(mut self: Box<Self>, ipa: u64, entries: &[u64]) -> Box<Self> {
        self.ipa = Some(ipa);
        self.entries = entries.to_vec();
        self
    }
}
