// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest under KVM is to be.
//!
//! Names are those of KVM's selftests, so that a command line for them is one for this.

use std::fmt;

use twofold_pattern::mode::{Granule, Mode};

/// A guest under KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmOptions {
    /// How its stage 1 is set up, and how much guest-physical space it has. x86-64 has `pxxv48-4k` alone.
    pub mode: Mode,
    /// How many vCPUs; each is a thread.
    pub vcpus: u32,
    /// The memory that they access.
    pub region: Region,
    /// In how many slots of the same size it is.
    pub slots: u32,
    /// What it is made of.
    pub backing: Backing,
    /// How writes to it are logged, once a log runs.
    pub log: Log,
    /// arm64: bytes that KVM splits into pages in one go, when it write-protects (`KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE`).
    /// 0 is KVM's default: it splits nothing ahead. On x86-64 that is a parameter of the module, and this has to be 0.
    pub chunk: u64,
    /// The CPU of each vCPU, by number; with one more, the last is the calling thread's. Empty: wherever the kernel likes.
    pub cpus: Vec<usize>,
}

impl KvmOptions {
    /// One vCPU with so many bytes of ordinary memory in one slot, and a log that is cleared by who reads it.
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

    /// The mode that this host runs: x86-64 has one, and this is arm64's with 4K granules and all of its addresses.
    pub const fn native_mode() -> Mode {
        Mode { name: "pxxv48-4k", number: 9, pa_bits: None, va_bits: 48, granule: Granule::Kib4 }
    }
}

/// The memory that the vCPUs access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// So many bytes for each vCPU, one after the other.
    Each(u64),
    /// So many bytes, all of them for every vCPU.
    Shared(u64),
}

/// What a guest's memory is made of.
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
    /// Shared memory in huge pages of the pool, of the size that is the host's default.
    SharedHugetlb,
}

impl Backing {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Anonymous,
        Self::AnonymousThp,
        Self::AnonymousHugetlb2Mb,
        Self::AnonymousHugetlb1Gb,
        Self::Shmem,
        Self::SharedHugetlb,
    ];

    /// As the selftests' `-s` calls it.
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

    /// The one of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backing| backing.name() == name)
    }

    /// Whether its pages were set apart when the host booted, or since.
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
        /// Pages that fit: a power of 2, of 16 bytes each.
        entries: u32,
    },
}

/// When a bitmap's pages are clean again, and protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// All of them, once they are read (the selftests' `-g`).
    ByGet,
    /// Those that somebody clears (`KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE`).
    Manual,
    /// The same, and all are dirty to begin with (`KVM_DIRTY_LOG_INITIALLY_SET`), so that it costs little to begin. Where
    /// KVM does not have that: as `Manual`.
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
