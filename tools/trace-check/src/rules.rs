// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules that a trace must follow: their names in `docs/mmu-rules.md`, and what each of them expects.

use std::fmt;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    LiveChange,
    MakeBeforeFlush,
    TableFreedTooEarly,
    FrameReusedTooEarly,
    StillCached,
    TableNotReady,
    FrameNotReady,
    NoLock,
    LockOrder,
    LateWrite,
    NoProgress,
    NotVisible,
    OtherTree,
    OtherVcpu,
    Operand,
    RecordLost,
    Malformed,
    HardwareWrite,
    Contradiction,
}

impl Rule {
    /// Returns the rule's name and source.
    fn name(self) -> &'static str {
        match self {
            Self::LiveChange => "R1 LiveChange (Arm ARM D8.16.1)",
            Self::MakeBeforeFlush => "R2 MakeBeforeFlush (Arm ARM D8.16.1)",
            Self::TableFreedTooEarly => "R3 TableFreedTooEarly (Arm ARM D8.16)",
            Self::FrameReusedTooEarly => "R4 FrameReusedTooEarly (Arm ARM D8.16)",
            Self::StillCached => "R5 StillCached (Arm ARM D8.16)",
            Self::TableNotReady => "R6 TableNotReady (Arm ARM B2.3)",
            Self::FrameNotReady => "R7 FrameNotReady (Arm ARM B2.3)",
            Self::NoLock => "R8 NoLock",
            Self::LockOrder => "R9 LockOrder",
            Self::LateWrite => "R10 LateWrite",
            Self::NoProgress => "R11 NoProgress (Arm ARM D8.16)",
            Self::NotVisible => "R11 NoProgress, published entries",
            Self::OtherTree => "R15 VmidReused (Arm ARM D8.16)",
            Self::OtherVcpu => "R16 OtherVcpu (Arm ARM D8.16)",
            Self::Operand => "R17 Operand (Arm ARM C5.5)",
            Self::RecordLost => "Losses that are no breach",
            Self::Malformed => "the format of an entry (Arm ARM D8.3)",
            Self::HardwareWrite => "what hardware writes (Arm ARM D8.5)",
            Self::Contradiction => "the trace contradicts itself",
        }
    }

    /// Returns what the trace should contain.
    fn expected(self) -> &'static str {
        match self {
            Self::LiveChange => "an invalid entry and a complete flush between the two",
            Self::MakeBeforeFlush => {
                "DSB ISHST or ISH, TLBI by IPA of address, level and VMID, DSB ISH, TLBI VMALLE1IS, DSB ISH \
                 (or VMALLS12E1IS between two barriers) before the entry is made"
            }
            Self::TableFreedTooEarly => {
                "the table unlinked, then DSB ISHST or ISH, IPAS2E1IS, RIPAS2E1IS or VMALLS12E1IS for it and all \
                 below, and their DSB ISH and VMALLE1IS, before it is freed; no CPU that has the root in VTTBR_EL2"
            }
            Self::FrameReusedTooEarly => {
                "a page that is a table or a guest's, never both, and a complete flush of the leaf between the uses"
            }
            Self::StillCached => {
                "DSB ISHST or ISH, TLBI by IPA of address, level and VMID, DSB ISH, TLBI VMALLE1IS, DSB ISH \
                 (or VMALLS12E1IS between two barriers) and ISB before the CPU relies on it"
            }
            Self::TableNotReady => {
                "every entry of the table written, and then a release, a release fence or a DSB ISH or ISHST before the \
                 entry that leads to it is visible"
            }
            Self::FrameNotReady => {
                "a release store, or a release fence, DSB ISH or DSB ISHST after the lock of the table was taken"
            }
            Self::NoLock => "the table's lock, held by the CPU that writes",
            Self::LockOrder => "a lock that the same CPU takes and releases",
            Self::LateWrite => "a page that is taken for a table, linked in one place, and freed once",
            Self::NoProgress => {
                "DSB, TLBI IPAS2E1 of the address and level, DSB NSH, TLBI VMALLE1, DSB NSH and ISB on this CPU, after \
                 its last write, before it relies on it"
            }
            Self::NotVisible => "DSB ISHST or ISH on the CPU that made the entry, after it",
            Self::OtherTree => {
                "VTTBR_EL2 as the tree's `root.made` has it, loaded on this CPU, with an ISB before it is used"
            }
            Self::OtherVcpu => {
                "TLBI VMALLE1, VMALLE1IS or VMALLS12E1IS of the VMID and its DSB since the other vCPU; one vCPU inside"
            }
            Self::Operand => "an operand with zero reserved bits, for an operation and a format that the CPU supports",
            Self::RecordLost => "a read-modify-write, or the line `unrecorded` of this CPU before the store",
            Self::Malformed => {
                "an output address that is aligned to the leaf's size and fits VTCR_EL2.PS, and no reserved type"
            }
            Self::HardwareWrite => "the access flag, or S2AP[1] if DBM is set, set in a valid entry of a tree",
            Self::Contradiction => "lines that agree with the earlier ones",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}", self.name(), self.expected())
    }
}
