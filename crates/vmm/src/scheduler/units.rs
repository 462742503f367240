// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scheduler's numbers: names of entities and groups, time, virtual time.
//!
//! Invariant: virtual time has another width than time, so one is not taken for the other by mistake.

/// A time, or a length of time, in ticks of a clock that the embedder chooses.
pub type Ticks = u64;

/// Virtual time: ticks, divided by the share of a weight.
pub(super) type Virtual = u128;

/// An entity: a vCPU, or a task of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(pub(super) u32);

impl EntityId {
    /// Its number: 0 for the first entity, and one more for each next one. An entity that comes after a removed one may
    /// have its number.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A group of entities: a virtual machine, or one task of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub(super) u32);
