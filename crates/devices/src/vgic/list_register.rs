// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of a list register: one virtual interrupt that a CPU's hardware can deliver.

use super::intid::Intid;

/// The value of `ICH_LR<n>_EL2` (Arm IHI 0069H, chapter 12).
///
/// Invariant of those that the vGIC writes: the state is never "pending and active". A hardware interrupt may not have
/// it, and whether such a register counts as pending for the maintenance interrupt NP is easily misread. The vGIC keeps
/// the second pending state in memory, and asks for a maintenance interrupt at the deactivation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListRegister(u64);

impl ListRegister {
    const PENDING: u64 = 1 << 62;
    const ACTIVE: u64 = 1 << 63;
    const HARDWARE: u64 = 1 << 61;
    const GROUP1: u64 = 1 << 60;
    const EOI: u64 = 1 << 41;

    /// A pending interrupt.
    pub(super) const fn pending(intid: Intid) -> Self {
        Self(Self::PENDING | intid.raw() as u64)
    }

    /// An active interrupt.
    pub(super) const fn active(intid: Intid) -> Self {
        Self(Self::ACTIVE | intid.raw() as u64)
    }

    #[must_use]
    pub(super) const fn with_priority(self, priority: u8, group1: bool) -> Self {
        Self(self.0 | (priority as u64) << 48 | if group1 { Self::GROUP1 } else { 0 })
    }

    /// The guest's deactivation also deactivates a physical interrupt.
    #[must_use]
    pub(super) const fn with_physical(self, intid: u16) -> Self {
        Self(self.0 | Self::HARDWARE | ((intid & 0x1fff) as u64) << 32)
    }

    /// The guest's deactivation asserts the maintenance interrupt.
    #[must_use]
    pub(super) const fn with_maintenance(self) -> Self {
        Self(self.0 | Self::EOI)
    }

    #[must_use]
    pub(super) const fn without_maintenance(self) -> Self {
        Self(self.0 & !Self::EOI)
    }

    /// The register's value.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// A list register's content, from its value.
    #[must_use]
    pub const fn from_raw(value: u64) -> Self {
        Self(value)
    }

    /// The virtual interrupt's number.
    #[must_use]
    pub const fn intid(self) -> u32 {
        self.0 as u32
    }

    /// The interrupt waits to be acknowledged.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        self.0 & Self::PENDING != 0
    }

    /// The guest has acknowledged the interrupt, and not yet deactivated it.
    #[must_use]
    pub const fn is_active(self) -> bool {
        self.0 & Self::ACTIVE != 0
    }

    /// The physical interrupt that ends with the virtual one.
    #[must_use]
    pub const fn physical(self) -> Option<u32> {
        if self.0 & Self::HARDWARE != 0 { Some((self.0 >> 32) as u32 & 0x1fff) } else { None }
    }

    /// The deactivation of this interrupt asserts the maintenance interrupt.
    #[must_use]
    pub const fn has_maintenance(self) -> bool {
        self.0 & (Self::HARDWARE | Self::EOI) == Self::EOI
    }

    /// The priority.
    #[must_use]
    pub const fn priority(self) -> u8 {
        (self.0 >> 48) as u8
    }

    /// The interrupt is one of group 1.
    #[must_use]
    pub const fn is_group1(self) -> bool {
        self.0 & Self::GROUP1 != 0
    }
}
