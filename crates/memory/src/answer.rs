// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens after a fault, as data.

use twofold_stage2::Level;

/// What the caller does after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// Let the guest repeat the access.
    Retry(Done),
    /// Raise a synchronous external abort in the guest: there is no memory or device, or it does not allow the access.
    ExternalAbort,
    /// Continue the guest after the instruction: cache maintenance where there is no memory has nothing to do. As in
    /// KVM, a guest may clean more than it has mapped.
    Skip,
    /// The page of the fault is not in memory, or no frame is free for it. [`bring`](crate::GuestMemory::bring) it, and let
    /// the guest repeat the access when it has arrived. [`AbsentPage::of`](crate::async_fault::AbsentPage::of) makes of the
    /// fault what [`VcpuFaults::fault`](crate::async_fault::VcpuFaults::fault) takes. Only with a page store.
    Absent,
}

/// What [`GuestMemory::fault`](crate::GuestMemory::fault) did before the guest repeats the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A leaf was mapped.
    Mapped {
        /// The leaf's level.
        level: Level,
        /// Whether frames were zeroed for it, because they were never touched before.
        first_touch: bool,
    },
    /// A leaf that was mapped already allows more accesses now.
    Widened,
    /// The same. A dirty log has also begun to have hardware record writes to many pages around. That is long work, and it
    /// leaves a part for a later fault if an [interrupt is pending](twofold_stage2::Platform::interrupt_is_pending).
    WidenedAround,
    /// Everything was in place: this CPU's TLB was stale, and is invalidated.
    Stale,
    /// Nothing was mapped yet: an [interrupt is pending](twofold_stage2::Platform::interrupt_is_pending) on this CPU, and
    /// the work is long. The CPU takes the interrupt, and the guest's repeated access continues the work.
    Interrupted,
}
