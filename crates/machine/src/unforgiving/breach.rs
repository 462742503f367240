// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the unforgiving machine reports: the rule that was broken, by what, and how to see it again.

use std::fmt;
use std::panic::Location;

use twofold_stage2::{Ipa, Pa};

/// The rules, as `docs/mmu-rules.md` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// R1: a valid entry changed its output address, type or size without a break.
    LiveChange,
    /// R2: an entry was made while a TLB may still hold another one for the same addresses.
    MakeBeforeFlush,
    /// R3: a table was freed while a walk may still reach it.
    TableFreedTooEarly,
    /// R4: a frame was reused while an entry may still reach it.
    FrameReusedTooEarly,
    /// R5: an access that was taken away is still possible after the flush.
    StillCached,
    /// R6: a walk may read what a page held before it became a table.
    TableNotReady,
    /// R7: a leaf is visible before what was written to its frame.
    FrameNotReady,
    /// R8: an entry was changed without its table's lock.
    NoLock,
    /// R9: a lock was taken against the order, or given back by who did not have it.
    LockOrder,
    /// R10: an entry was written in a table that is not in the tree any more, or is no table.
    LateWrite,
    /// R11: an access faults again, though its fault was answered.
    NoProgress,
    /// R12: a line that was written in the cache is read past it.
    NotCleaned,
    /// R13: an instruction is fetched that was not invalidated after it was written.
    StaleInstruction,
    /// R14: memory is read in the cache that a guest may have written past it.
    StaleData,
    /// R15: a VMID is used again while entries of its former owner may be cached.
    VmidReused,
    /// R16: a vCPU enters where another of its guest's ran, whose stage-1 entries may be cached.
    OtherVcpu,
    /// R17: an invalidation's operand says something that the architecture reserves.
    Operand,
    /// R18: a guest's tables were dropped, and not destroyed.
    Dropped,
    /// R19: nobody gets anywhere.
    Livelock,
    /// R20: the tables do not say what they have to, or a guest read what was never written there.
    Content,
    /// R21: a guest uses in the cache what was written past it while its memory was of another type.
    HiddenData,
    /// R22: memory is not cacheable any more, and what was written while it was is still in the cache.
    LateWriteBack,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::LiveChange,
        Self::MakeBeforeFlush,
        Self::TableFreedTooEarly,
        Self::FrameReusedTooEarly,
        Self::StillCached,
        Self::TableNotReady,
        Self::FrameNotReady,
        Self::NoLock,
        Self::LockOrder,
        Self::LateWrite,
        Self::NoProgress,
        Self::NotCleaned,
        Self::StaleInstruction,
        Self::StaleData,
        Self::VmidReused,
        Self::OtherVcpu,
        Self::Operand,
        Self::Dropped,
        Self::Livelock,
        Self::Content,
        Self::HiddenData,
        Self::LateWriteBack,
    ];

    /// Its number in `docs/mmu-rules.md`.
    pub const fn number(self) -> usize {
        self as usize + 1
    }
}

/// A change of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// When: the machine's step.
    pub step: u64,
    /// On which CPU.
    pub cpu: usize,
    /// Where the entry is.
    pub entry: Pa,
    /// What it was.
    pub old: u64,
    /// What it became.
    pub new: u64,
    /// From where in the source; `None` for hardware's.
    pub site: Option<&'static Location<'static>>,
}

/// A rule was broken.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Breach {
    /// Which.
    pub rule: Rule,
    /// By what.
    pub what: String,
    /// Where in the guest's addresses, if it is about such.
    pub ipa: Option<Ipa>,
    /// On which CPU it came out.
    pub cpu: usize,
    /// At which step.
    pub step: u64,
    /// The seed with which the same machine and programs do the same again.
    pub seed: u64,
    /// From where in the source.
    pub site: Option<&'static Location<'static>>,
    /// The last changes of the entries that it is about, the latest last.
    pub changes: Vec<Change>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, what, cpu, step, seed, .. } = self;
        write!(f, "breach of rule R{} ({rule:?}): {what}", rule.number())?;
        if let Some(ipa) = self.ipa {
            write!(f, ", at {ipa}")?;
        }
        write!(f, "\n  on CPU {cpu} at step {step}")?;
        if let Some(site) = self.site {
            write!(f, ", {site}")?;
        }
        for change in &self.changes {
            write!(f, "\n  {change}")?;
        }
        write!(f, "\n  TWOFOLD_SEED={seed} does it again; docs/mmu-rules.md has the rule")
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, cpu, entry, old, new, .. } = self;
        write!(f, "step {step}, CPU {cpu}: entry {entry}: {old:#018x} -> {new:#018x}, ")?;
        match self.site {
            Some(site) => write!(f, "{site}"),
            None => write!(f, "by hardware"),
        }
    }
}
