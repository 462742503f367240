// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attributes of a leaf, as types that cannot hold a reserved encoding.

use core::fmt;

use crate::granule::Format;
use crate::{Error, Features, Granule};

/// The attributes of a leaf: memory type, permissions, and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The memory type. The engine does the cache maintenance that it needs; the caller's part is in the crate's
    /// documentation (*Caches*).
    pub memory: Memory,
    /// Which observers the guest's accesses are coherent with.
    pub shareability: Shareability,
    /// The guest's permissions.
    pub access: Access,
    /// The access flag. If it is clear, the first access faults, unless hardware sets the flag.
    pub accessed: bool,
    /// DBM, the dirty bit modifier: on a write to a leaf without write permission, hardware grants the permission
    /// instead of faulting, and thereby records the write (FEAT_HAFDBS, `VTCR_EL2.HD`). DBM without `access.write`
    /// means "writable, clean". A CPU without dirty state ignores it ([`Features::hardware_dirty_state`]): there a write
    /// faults, as without DBM.
    pub dirty_by_hardware: bool,
    /// Four bits that hardware ignores, for the owner of the mapping. Only the low four are kept.
    pub software: u8,
}

impl Attributes {
    /// Checks that a leaf of this granule can hold the attributes.
    #[inline(always)]
    pub(crate) fn check<G: Granule>(&self, features: &Features) -> Result<(), Error> {
        self.access.check(features)?;
        if matches!(G::FORMAT, Format::Lpa2) && self.shareability != Shareability::InnerShareable {
            return Err(Error::ShareabilityOfLpa2);
        }
        Ok(())
    }
}

/// The permissions of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: Execute,
}

/// The exception levels at which the guest may fetch instructions.
///
/// Only a CPU with FEAT_XNX can allow one without the other: see [`Access::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execute {
    /// At EL0.
    pub el0: bool,
    /// At EL1.
    pub el1: bool,
}

/// The memory type of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Normal, write-back cacheable: RAM.
    Normal,
    /// Normal, not cacheable: the guest's accesses go past the caches. While memory is mapped with this type, its owner
    /// must not write it through a cacheable mapping.
    NonCacheable,
    /// Device-nGnRE: registers, which no cache holds. The engine cleans no lines when it makes or removes such a leaf.
    /// If the memory is RAM, the caller cleans and invalidates it before it is mapped and after the flush that ends the
    /// mapping. If the type changes between this and another one at the same address, the engine does that.
    Device,
}

/// The shareability of a leaf, as SH\[1:0\] encodes it. Only cacheable memory uses it: hardware treats all other types
/// as outer shareable (Arm ARM DDI 0487K.a, D8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shareability {
    /// This CPU only.
    NonShareable = 0b00,
    /// All observers that the system keeps coherent.
    OuterShareable = 0b10,
    /// All CPUs that one operating system runs on.
    InnerShareable = 0b11,
}

impl Attributes {
    /// RAM with these permissions: inner shareable, with the access flag set.
    pub const fn ram(access: Access) -> Self {
        Self {
            memory: Memory::Normal,
            shareability: Shareability::InnerShareable,
            access,
            accessed: true,
            dirty_by_hardware: false,
            software: 0,
        }
    }

    /// Device registers: loads and stores, no execution.
    pub const fn device() -> Self {
        Self { memory: Memory::Device, ..Self::ram(Access::READ_WRITE) }
    }
}

impl Access {
    /// Nothing.
    pub const NONE: Self = Self { read: false, write: false, execute: Execute::NEVER };
    /// Loads.
    pub const READ: Self = Self { read: true, ..Self::NONE };
    /// Loads and stores.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
    /// All.
    pub const ALL: Self = Self { execute: Execute::ALWAYS, ..Self::READ_WRITE };

    /// Whether `self` allows everything that `other` allows.
    pub const fn covers(self, other: Self) -> bool {
        (self.read || !other.read) && (self.write || !other.write) && self.execute.covers(other.execute)
    }

    /// The accesses that both allow.
    pub const fn intersection(self, other: Self) -> Self {
        Self {
            read: self.read && other.read,
            write: self.write && other.write,
            execute: self.execute.intersection(other.execute),
        }
    }

    /// The accesses that either allows.
    pub const fn union(self, other: Self) -> Self {
        Self {
            read: self.read || other.read,
            write: self.write || other.write,
            execute: self.execute.union(other.execute),
        }
    }

    /// Checks that a leaf on a CPU with these features can encode this access.
    ///
    /// # Errors
    ///
    /// [`Error::ExecuteNeedsXnx`]. If a leaf is made with it all the same, it allows execution at neither level.
    pub const fn check(self, features: &Features) -> Result<(), Error> {
        if self.execute.el0 != self.execute.el1 && !features.execute_per_el {
            return Err(Error::ExecuteNeedsXnx);
        }
        Ok(())
    }
}

/// `rwx`, with `-` for what is not allowed. `u` and `k` stand for execution at EL0 and at EL1 alone.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let execute = match self.execute {
            Execute::ALWAYS => "x",
            Execute::EL0 => "u",
            Execute::EL1 => "k",
            Execute::NEVER => "-",
        };
        let (read, write) = (if self.read { "r" } else { "-" }, if self.write { "w" } else { "-" });
        write!(f, "{read}{write}{execute}")
    }
}

impl Execute {
    /// At no level.
    pub const NEVER: Self = Self { el0: false, el1: false };
    /// At both levels.
    pub const ALWAYS: Self = Self { el0: true, el1: true };
    /// At EL0 only.
    pub const EL0: Self = Self { el0: true, el1: false };
    /// At EL1 only.
    pub const EL1: Self = Self { el0: false, el1: true };

    /// Whether it is allowed at some level.
    pub const fn any(self) -> bool {
        self.el0 || self.el1
    }

    /// Whether it is allowed wherever `other` allows it.
    pub const fn covers(self, other: Self) -> bool {
        (self.el0 || !other.el0) && (self.el1 || !other.el1)
    }

    /// Where both allow it.
    pub const fn intersection(self, other: Self) -> Self {
        Self { el0: self.el0 && other.el0, el1: self.el1 && other.el1 }
    }

    /// Where either allows it.
    pub const fn union(self, other: Self) -> Self {
        Self { el0: self.el0 || other.el0, el1: self.el1 || other.el1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXECUTE: [Execute; 4] = [Execute::NEVER, Execute::EL0, Execute::EL1, Execute::ALWAYS];

    fn every_access() -> impl Iterator<Item = Access> + Clone {
        let data = [(false, false), (true, false), (false, true), (true, true)];
        data.into_iter().flat_map(|(read, write)| EXECUTE.map(|execute| Access { read, write, execute }))
    }

    #[test]
    fn the_union_is_the_least_that_covers_both() {
        for (one, other) in every_access().flat_map(|one| every_access().map(move |other| (one, other))) {
            let both = one.union(other);
            let covering = every_access().filter(|access| access.covers(one) && access.covers(other));
            assert!(covering.clone().all(|access| access.covers(both)), "{one:?} and {other:?}");
            assert!(both.covers(one) && both.covers(other), "{one:?} and {other:?}");
            assert_eq!(one.covers(other), both == one, "{one:?} and {other:?}");
        }
    }

    #[test]
    fn the_intersection_is_the_most_that_both_cover() {
        for (one, other) in every_access().flat_map(|one| every_access().map(move |other| (one, other))) {
            let common = one.intersection(other);
            assert!(one.covers(common) && other.covers(common), "{one:?} and {other:?}");
            let mut covered = every_access().filter(|access| one.covers(*access) && other.covers(*access));
            assert!(covered.all(|access| common.covers(access)), "{one:?} and {other:?}");
        }
    }

    #[test]
    fn levels_differ_with_xnx_only() {
        let xnx = Features { execute_per_el: true, ..Features::NONE };
        for access in every_access() {
            let apart = [Execute::EL0, Execute::EL1].contains(&access.execute);
            assert_eq!(access.check(&xnx), Ok(()));
            assert_eq!(access.check(&Features::NONE), if apart { Err(Error::ExecuteNeedsXnx) } else { Ok(()) });
            assert_eq!(access.execute.any(), access.execute != Execute::NEVER);
        }
    }
}
