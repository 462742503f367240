// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The instructions that the engine uses, by the names of the architecture.

/// TLB invalidations of the EL1&0 translation regime (Arm ARM DDI 0487K.a, D8.16). `Is` means all CPUs of the inner
/// shareable domain; the others act on this CPU only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tlbi {
    /// Stage 2 entries by IPA.
    Ipas2E1,
    /// Stage 2 entries by IPA.
    Ipas2E1Is,
    /// Stage 2 entries by IPA, of the last level only.
    Ipas2Le1Is,
    /// Stage 2 entries by range of IPA (FEAT_TLBIRANGE).
    Ripas2E1Is,
    /// Stage 2 entries by range of IPA, of the last level only (FEAT_TLBIRANGE).
    Ripas2Le1Is,
    /// Stage 1 and combined entries of the current VMID.
    VmallE1,
    /// Stage 1 and combined entries of the current VMID.
    VmallE1Is,
    /// Stage 1, stage 2 and combined entries of the current VMID.
    VmallS12E1Is,
    /// All entries of the regime, of every VMID.
    Alle1Is,
}

/// The domain and kind of a data synchronization barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Inner shareable, stores only.
    IshSt,
    /// Inner shareable.
    Ish,
    /// This CPU, stores only.
    NshSt,
    /// This CPU.
    Nsh,
}

/// Data cache operations by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dc {
    /// Clean and invalidate a line to the point of coherency.
    Civac,
    /// Zero a block.
    Zva,
}

/// Instruction cache operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ic {
    /// Invalidate a line to the point of unification.
    Ivau,
    /// Invalidate all, on all CPUs of the inner shareable domain.
    IallUis,
}
