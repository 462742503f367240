// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies that an experiment can vary: each technique of the sources, or its baseline. Their names are those on a
//! command line and in results; their bits are those in a bundle for the hypervisor
//! (`twofold_abi::bundle::Header::policies`).
//!
//! | key | technique | baseline | source |
//! |---|---|---|---|
//! | `split` | a split visits only tables that contain blocks | it visits entries of every level | Bras 2026 |
//! | `cmo` | the vCPU that installs a mapping cleans caches | each vCPU that faults cleans them | Wang 2021: clean on map |
//! | `coalesce` | the block is installed, then the old tables are freed | they are freed first | Wang 2021: install before free |
//! | `tables` | a table page is allocated where a table is missing | each fault allocates as many as it might need | Wang 2021: table pages when needed |

/// One policy for each technique. The default has every technique on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Which entries a split visits.
    pub split: Split,
    /// Which vCPU cleans caches.
    pub cmo: Cmo,
    /// When the tables that a block replaces are freed.
    pub coalesce: Coalesce,
    /// When table pages are allocated.
    pub tables: Tables,
}

/// Which entries a split visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// Those of tables that contain blocks, as the table metadata says.
    #[default]
    Records,
    /// Those above level 3 (Bras 2026).
    SkipLeaves,
    /// All, except those of a table that was just made (Bras RFC 2026).
    SkipChildren,
    /// All, as Linux 6.12.
    EveryLevel,
}

/// Which vCPU cleans caches for a mapping that a fault makes. A CPU with FEAT_S2FWB needs no cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cmo {
    /// The vCPU that installs the mapping.
    #[default]
    OnMap,
    /// Each vCPU that faults, before it reads the tables.
    OnAbort,
}

/// When the tables that a block replaces are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coalesce {
    /// After the block is installed.
    #[default]
    InstallFirst,
    /// Before the block is installed, while nothing is mapped.
    FreeFirst,
}

/// When table pages are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tables {
    /// Where a table is missing.
    #[default]
    WhenNeeded,
    /// At each fault that maps memory: a page for each level below the root.
    Always,
}

/// One technique's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Which entries a split visits.
    Split(Split),
    /// Which vCPU cleans caches.
    Cmo(Cmo),
    /// When the tables that a block replaces are freed.
    Coalesce(Coalesce),
    /// When table pages are allocated.
    Tables(Tables),
}

impl Policies {
    /// The keys of the techniques.
    pub const KEYS: [&str; 4] = ["split", "cmo", "coalesce", "tables"];

    /// The policy of each technique, in the order of [`KEYS`](Self::KEYS).
    pub const fn all(self) -> [Policy; 4] {
        let Self { split, cmo, coalesce, tables } = self;
        [Policy::Split(split), Policy::Cmo(cmo), Policy::Coalesce(coalesce), Policy::Tables(tables)]
    }

    /// The same policies, except for this one.
    pub const fn with(self, policy: Policy) -> Self {
        match policy {
            Policy::Split(split) => Self { split, ..self },
            Policy::Cmo(cmo) => Self { cmo, ..self },
            Policy::Coalesce(coalesce) => Self { coalesce, ..self },
            Policy::Tables(tables) => Self { tables, ..self },
        }
    }

    /// The number of techniques that are off. Of the split's policies only [`Split::EveryLevel`] is a baseline.
    pub fn baselines(self) -> usize {
        self.all().into_iter().filter(|policy| policy.is_baseline()).count()
    }

    /// The policies as bits of a bundle: 0 if every technique is on.
    pub fn bits(self) -> u32 {
        self.all().into_iter().fold(0, |bits, policy| bits | policy.bits())
    }

    /// The policies with these [`bits`](Self::bits); `None` if a bit has no meaning.
    pub fn from_bits(bits: u32) -> Option<Self> {
        let chosen = Policy::ALL.into_iter().filter(|policy| bits & policy.mask() == policy.bits());
        let policies = chosen.fold(Self::default(), Self::with);
        (policies.bits() == bits).then_some(policies)
    }
}

impl Policy {
    /// All policies, technique by technique; the technique comes before its baseline.
    pub const ALL: [Self; 10] = [
        Self::Split(Split::Records),
        Self::Split(Split::SkipLeaves),
        Self::Split(Split::SkipChildren),
        Self::Split(Split::EveryLevel),
        Self::Cmo(Cmo::OnMap),
        Self::Cmo(Cmo::OnAbort),
        Self::Coalesce(Coalesce::InstallFirst),
        Self::Coalesce(Coalesce::FreeFirst),
        Self::Tables(Tables::WhenNeeded),
        Self::Tables(Tables::Always),
    ];

    /// The technique's key.
    pub const fn key(self) -> &'static str {
        let [split, cmo, coalesce, tables] = Policies::KEYS;
        match self {
            Self::Split(_) => split,
            Self::Cmo(_) => cmo,
            Self::Coalesce(_) => coalesce,
            Self::Tables(_) => tables,
        }
    }

    /// The policy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Split(Split::Records) => "records",
            Self::Split(Split::SkipLeaves) => "skip-leaves",
            Self::Split(Split::SkipChildren) => "skip-children",
            Self::Split(Split::EveryLevel) => "every-level",
            Self::Cmo(Cmo::OnMap) => "on-map",
            Self::Cmo(Cmo::OnAbort) => "on-abort",
            Self::Coalesce(Coalesce::InstallFirst) => "install-first",
            Self::Coalesce(Coalesce::FreeFirst) => "free-first",
            Self::Tables(Tables::WhenNeeded) => "when-needed",
            Self::Tables(Tables::Always) => "always",
        }
    }

    const fn is_baseline(self) -> bool {
        matches!(
            self,
            Self::Split(Split::EveryLevel)
                | Self::Cmo(Cmo::OnAbort)
                | Self::Coalesce(Coalesce::FreeFirst)
                | Self::Tables(Tables::Always)
        )
    }

    const fn bits(self) -> u32 {
        match self {
            Self::Split(Split::EveryLevel) => 1,
            Self::Split(Split::SkipChildren) => 2,
            Self::Split(Split::SkipLeaves) => 3,
            Self::Cmo(Cmo::OnAbort) => 1 << 2,
            Self::Coalesce(Coalesce::FreeFirst) => 1 << 3,
            Self::Tables(Tables::Always) => 1 << 4,
            _ => 0,
        }
    }

    /// The bits that belong to the technique.
    const fn mask(self) -> u32 {
        match self {
            Self::Split(_) => 0b11,
            Self::Cmo(_) => 1 << 2,
            Self::Coalesce(_) => 1 << 3,
            Self::Tables(_) => 1 << 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn each_policy_has_bits_of_its_own() {
        assert_eq!(Policies::default().bits(), 0);
        for bits in 0..32 {
            assert_eq!(Policies::from_bits(bits).map(Policies::bits), Some(bits));
        }
        assert_eq!(Policies::from_bits(32), None);
        let split = [Split::EveryLevel, Split::SkipChildren, Split::SkipLeaves];
        assert_eq!(split.map(|split| Policies::default().with(Policy::Split(split)).bits()), [1, 2, 3]);
        let free_first = Policies { coalesce: Coalesce::FreeFirst, ..Policies::default() };
        assert_eq!((free_first.bits(), free_first.baselines()), (8, 1));
        assert_eq!(Policies::from_bits(29).map(Policies::baselines), Some(4));
    }

    #[test]
    fn policies_of_one_technique_stand_together() {
        let mut keys: Vec<_> = Policy::ALL.iter().map(|policy| policy.key()).collect();
        keys.dedup();
        assert_eq!(keys, Policies::KEYS);
        let mut names: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Policy::ALL.len());
    }
}
