// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of the strict machine: the broken rule, the cause, and the seed that reproduces it.

use std::fmt;
use std::panic::Location;

use twofold_stage2::{Ipa, Pa};

/// The rules, as in `docs/mmu-rules.md`.
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
    /// R5: an access that a flush was to end is still possible after it.
    StillCached,
    /// R6: a walk may read what a page held before it became a table.
    TableNotReady,
    /// R7: a leaf is visible before the writes to its frame.
    FrameNotReady,
    /// R8: an entry was changed without its table's lock.
    NoLock,
    /// R9: a lock was taken against the order, or released by a CPU that did not hold it.
    LockOrder,
    /// R10: an entry was written in a table that was unlinked, or in a page that is no table.
    LateWrite,
    /// R11: an access faults again, although its fault was handled.
    NoProgress,
    /// R12: a line that was written through the cache is read past it.
    NotCleaned,
    /// R13: an instruction is fetched without an invalidation after it was written.
    StaleInstruction,
    /// R14: memory that a guest may have written past the cache is read through it.
    StaleData,
    /// R15: a VMID is used again while entries of its former owner may be cached.
    VmidReused,
    /// R16: a vCPU enters after another vCPU of its guest, whose stage-1 entries may be cached.
    OtherVcpu,
    /// R17: an invalidation's operand has a value that the architecture reserves.
    Operand,
    /// R18: a guest's tables were dropped instead of destroyed.
    Dropped,
    /// R19: no CPU makes progress.
    Livelock,
    /// R20: the tables have a wrong content, or a guest read what was never written there.
    Content,
    /// R21: a guest uses through the cache what was written past it, while its memory was of another type.
    HiddenData,
    /// R22: memory is no longer cacheable, and a write to it may still be in the cache.
    LateWriteBack,
    /// R23: two CPUs reached the value of a lock, one to change it, and have not synchronized in between.
    ValueRace,
    /// R24: a contiguous group is not whole where a table is unlocked.
    MixedGroup,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 24] = [
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
        Self::ValueRace,
        Self::MixedGroup,
    ];

    /// The rule's number in `docs/mmu-rules.md`.
    pub const fn number(self) -> usize {
        self as usize + 1
    }
}

/// A change of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The machine's step.
    pub step: u64,
    /// The CPU that made it.
    pub cpu: usize,
    /// The address of the entry.
    pub entry: Pa,
    /// The old value.
    pub old: u64,
    /// The new value.
    pub new: u64,
    /// The place in the source; `None` for hardware's changes.
    pub site: Option<&'static Location<'static>>,
}

/// A rule was broken.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Breach {
    /// The rule.
    pub rule: Rule,
    /// The cause.
    pub what: String,
    /// The guest's address that it concerns, if any.
    pub ipa: Option<Ipa>,
    /// The CPU on which it was found.
    pub cpu: usize,
    /// The step.
    pub step: u64,
    /// The seed with which the same machine and programs break it again.
    pub seed: u64,
    /// The place in the source.
    pub site: Option<&'static Location<'static>>,
    /// The last changes of the entries that it concerns, the latest last.
    pub changes: Vec<Change>,
    /// With R19: where each other CPU was, unless its program had ended.
    pub others: Box<[Executed]>,
}

/// What a CPU executed last, when the machine stopped.
#[derive(Clone, Copy, Debug)]
pub struct Executed {
    /// The CPU.
    pub cpu: usize,
    /// The place in the source.
    pub site: Option<&'static Location<'static>>,
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
        for Executed { cpu, site } in self.others.iter() {
            write!(f, "\n  CPU {cpu} was at ")?;
            match site {
                Some(site) => write!(f, "{site}")?,
                None => write!(f, "no instruction of the engine")?,
            }
        }
        for change in &self.changes {
            write!(f, "\n  {change}")?;
        }
        write!(f, "\n  TWOFOLD_SEED={seed} reproduces it; docs/mmu-rules.md has the rule")
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
