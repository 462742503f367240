// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of a guest under KVM.
//!
//! The names are those of KVM's selftests, so that their command lines work here too.

use std::fmt;

use twofold_workload::mode::{Granule, Mode};

/// A guest under KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmOptions {
    /// The setup of its stage 1, and the size of its guest-physical space. x86-64 has only `pxxv48-4k`.
    pub mode: Mode,
    /// Number of vCPUs. Each has a thread.
    pub vcpus: u32,
    /// The memory that they access.
    pub region: Region,
    /// The number of slots of the same size that hold the region.
    pub slots: u32,
    /// The memory behind the region.
    pub backing: Backing,
    /// How writes to the region are logged, once a log runs.
    pub log: Log,
    /// arm64: bytes that KVM splits into pages in one step, when it write-protects
    /// (`KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE`). 0 is KVM's default: it does not split eagerly. On x86-64 a parameter of
    /// the module decides that, and this must be 0.
    pub chunk: u64,
    /// The CPU of each vCPU, by number. One more pins the calling thread. If empty, the kernel chooses.
    pub cpus: Vec<usize>,
}

impl KvmOptions {
    /// Returns the options of one vCPU with `bytes` bytes of ordinary memory in one slot, and a manually cleared log
    /// with initially set bits.
    pub const fn new(mode: Mode, bytes: u64) -> Self {
        Self {
            mode,
            vcpus: 1,
            region: Region::Each(bytes),
            slots: 1,
            backing: Backing::Anonymous,
            log: Log::Bitmap(Clearing::ManualInitiallySet),
            chunk: 0,
            cpus: Vec::new(),
        }
    }

    /// Returns the mode that this host can run: x86-64's only one, and arm64's with 4K granules and the host's address
    /// size.
    pub const fn native_mode() -> Mode {
        Mode { name: "pxxv48-4k", number: 9, pa_bits: None, va_bits: 48, granule: Granule::Kib4 }
    }
}

/// The memory that the vCPUs access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// This many bytes for each vCPU, one part after the other.
    Each(u64),
    /// This many bytes, shared by all vCPUs.
    Shared(u64),
}

/// The memory behind a guest's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Private memory in the host's pages.
    Anonymous,
    /// Private memory, with advice to use transparent huge pages.
    AnonymousThp,
    /// Private memory in 2 MiB pages of the pool.
    AnonymousHugetlb2Mb,
    /// Private memory in 1 GiB pages of the pool.
    AnonymousHugetlb1Gb,
    /// Shared memory: a file in memory.
    Shmem,
    /// Shared memory in huge pages of the pool, of the host's default size.
    SharedHugetlb,
}

impl Backing {
    /// All backings.
    pub const ALL: [Self; 6] = [
        Self::Anonymous,
        Self::AnonymousThp,
        Self::AnonymousHugetlb2Mb,
        Self::AnonymousHugetlb1Gb,
        Self::Shmem,
        Self::SharedHugetlb,
    ];

    /// Returns the name that the selftests' option `-s` has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::AnonymousThp => "anonymous_thp",
            Self::AnonymousHugetlb2Mb => "anonymous_hugetlb_2mb",
            Self::AnonymousHugetlb1Gb => "anonymous_hugetlb_1gb",
            Self::Shmem => "shmem",
            Self::SharedHugetlb => "shared_hugetlb",
        }
    }

    /// Returns the backing of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backing| backing.name() == name)
    }

    /// Returns whether its pages come from a pool, which is filled at boot or later.
    pub const fn is_from_pool(self) -> bool {
        matches!(self, Self::AnonymousHugetlb2Mb | Self::AnonymousHugetlb1Gb | Self::SharedHugetlb)
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How writes are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// A bit for each page, slot by slot.
    Bitmap(Clearing),
    /// A ring of written pages for each vCPU.
    Ring {
        /// Number of pages that fit, a power of 2. Each takes 16 bytes.
        entries: u32,
    },
}

/// When the pages of a bitmap are cleared and protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// All of them, when they are read (the selftests' `-g`).
    ByGet,
    /// Those that a separate call clears (`KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE`).
    Manual,
    /// As `Manual`, but all pages are dirty at the start (`KVM_DIRTY_LOG_INITIALLY_SET`), so that the start costs
    /// little. If KVM lacks that, the same as `Manual`.
    ManualInitiallySet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backings_have_the_selftests_names() {
        assert!(Backing::ALL.into_iter().all(|backing| Backing::find(backing.name()) == Some(backing)));
        assert_eq!(Backing::find("anonymous_hugetlb"), None);
        assert_eq!(Mode::find("pxxv48-4k"), Some(KvmOptions::native_mode()));
    }
}
