// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured: times, rates, and counts.

use serde::{Deserialize, Serialize};

/// The quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Wall time in nanoseconds.
    Time,
    /// CPU time in nanoseconds, of all threads that took part.
    CpuTime,
    /// Instructions of the hypervisor: at EL2, or of the host's kernel.
    Instructions,
    /// Stage-2 faults of the guest, of all kinds.
    Faults,
    /// Translation faults: nothing was mapped.
    TranslationFaults,
    /// Permission faults: the mapping did not allow the access.
    PermissionFaults,
    /// Access flag faults: the mapping had not been used before.
    AccessFlagFaults,
    /// TLB invalidations.
    Tlbi,
    /// Data synchronization barriers.
    Dsb,
    /// Data cache lines cleaned.
    LinesCleaned,
    /// Table pages allocated.
    Tables,
    /// Dirty pages.
    Pages,
    /// Guest accesses per second.
    Rate,
    /// Units of work that the guest's workers did.
    Work,
    /// Absent pages that a store brought.
    PagesBrought,
    /// Random pages that the guest's tasks wrote to, absent or not.
    PagesWritten,
    /// Requests that a guest has served.
    Requests,
    /// Requests per second.
    RequestRate,
    /// Pages that a migration has sent, each time that it sent them.
    PagesSent,
    /// Rounds of a migration.
    Rounds,
    /// Bytes that a migration has sent.
    Bytes,
}

impl Quantity {
    /// The quantity's name in a table's heading.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::CpuTime => "CPU time",
            Self::Instructions => "instructions",
            Self::Faults => "faults",
            Self::TranslationFaults => "translation faults",
            Self::PermissionFaults => "permission faults",
            Self::AccessFlagFaults => "access flag faults",
            Self::Tlbi => "TLBI",
            Self::Dsb => "DSB",
            Self::LinesCleaned => "lines cleaned",
            Self::Tables => "table pages",
            Self::Pages => "dirty pages",
            Self::Rate => "accesses per second",
            Self::Work => "work",
            Self::PagesBrought => "pages brought",
            Self::PagesWritten => "pages written",
            Self::Requests => "requests",
            Self::RequestRate => "requests per second",
            Self::PagesSent => "pages sent",
            Self::Rounds => "rounds",
            Self::Bytes => "bytes",
        }
    }

    /// Whether this quantity is a cost that a user sees, rather than an explanation of one.
    pub const fn is_cost(self) -> bool {
        matches!(self, Self::Time | Self::CpuTime | Self::Instructions | Self::Rate | Self::RequestRate | Self::Work)
    }

    /// Whether a larger value is better.
    pub const fn more_is_better(self) -> bool {
        matches!(
            self,
            Self::Rate | Self::RequestRate | Self::Requests | Self::Work | Self::PagesBrought | Self::PagesWritten
        )
    }
}
