// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kind of host memory behind the machine's frames. The names are those of KVM's selftests, whose options the
//! benches share.

use std::fmt;

use super::system::System;

/// The kind of host memory behind the machine's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Anonymous memory in pages of 4 KiB.
    Anonymous,
    /// Anonymous memory in transparent huge pages, as far as the host finds free ones.
    AnonymousThp,
    /// Huge pages of 2 MiB from the system's pool.
    AnonymousHugetlb2M,
    /// Huge pages of 1 GiB from the system's pool.
    AnonymousHugetlb1G,
    /// A memory file, mapped shared, in pages of 4 KiB.
    Shmem,
}

impl Backing {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Anonymous, Self::AnonymousThp, Self::AnonymousHugetlb2M, Self::AnonymousHugetlb1G, Self::Shmem];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::AnonymousThp => "anonymous_thp",
            Self::AnonymousHugetlb2M => "anonymous_hugetlb_2mb",
            Self::AnonymousHugetlb1G => "anonymous_hugetlb_1gb",
            Self::Shmem => "shmem",
        }
    }

    /// Bytes of a page that the host hands out.
    pub const fn page(self) -> u64 {
        match self {
            Self::Anonymous | Self::Shmem => FRAME,
            Self::AnonymousThp | Self::AnonymousHugetlb2M => MIB_2,
            Self::AnonymousHugetlb1G => GIB,
        }
    }

    /// Whether the host takes it from a pool apart from its free memory.
    pub(super) const fn is_from_pool(self) -> bool {
        matches!(self, Self::AnonymousHugetlb2M | Self::AnonymousHugetlb1G)
    }

    /// The kind with the largest pages that the host can give instead, for `bytes` bytes.
    pub(super) fn next_best(self, bytes: u64, system: &System) -> Self {
        if self == Self::AnonymousHugetlb1G && system.free_huge_pages(MIB_2) >= bytes.div_ceil(MIB_2) {
            Self::AnonymousHugetlb2M
        } else if system.has_transparent_huge_pages() {
            Self::AnonymousThp
        } else {
            Self::Anonymous
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) const FRAME: u64 = 4 << 10;
pub(super) const MIB_2: u64 = 2 << 20;
pub(super) const GIB: u64 = 1 << 30;
