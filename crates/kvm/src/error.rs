// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors: each says what is wrong and what to do about it.

use std::fmt;

use rustix::io::Errno;
use thiserror::Error;

use crate::options::Backing;

/// Why a guest cannot be made, or why it stopped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvmError {
    /// This host cannot run guests under KVM. A caller that does not depend on KVM skips.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// KVM is available, but lacks a capability that was asked for.
    #[error("KVM has no {what} here; {instead}")]
    Missing {
        /// The capability's name in the kernel.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// More than KVM allows in a virtual machine.
    #[error("{needed} {what} were asked for, but KVM allows {most}")]
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// How many were asked for.
        needed: u64,
        /// How many KVM allows.
        most: u64,
    },
    /// This host cannot run the mode.
    #[error("guest mode {mode} cannot run here: {why}")]
    Mode {
        /// The mode's name.
        mode: &'static str,
        /// What the host lacks, and which mode would do.
        why: String,
    },
    /// Options or arguments that are not valid for any guest.
    #[error("{0}")]
    Options(String),
    /// An eager-split chunk that KVM does not support.
    #[error(
        "an eager-split chunk of {} is not supported here; {} are (0: no eager split)",
        Size(*chunk),
        Sizes(supported)
    )]
    Chunk {
        /// In bytes.
        chunk: u64,
        /// The supported chunks, in bytes.
        supported: Vec<u64>,
    },
    /// On x86-64, KVM has no setting for the eager-split chunk.
    #[error(
        "x86-64 has no eager-split chunk: it is on or off for all virtual machines (parameter kvm.eager_page_split, \
         which is {}); leave the chunk at 0",
        parameter.as_deref().unwrap_or("not readable")
    )]
    ChunkOnX86 {
        /// The value of the module's parameter.
        parameter: Option<String>,
    },
    /// There are not enough huge pages.
    #[error(
        "{backing} needs {needed} huge pages of {}, and {free} are free; write {needed} or more to \
         /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or use anonymous_thp",
        Size(*size), size >> 10
    )]
    NoHugePages {
        /// The backing that was asked for.
        backing: Backing,
        /// Bytes of a page.
        size: u64,
        /// How many are needed.
        needed: u64,
        /// How many are free.
        free: u64,
    },
    /// Transparent huge pages are off.
    #[error(
        "transparent huge pages are off; write madvise to /sys/kernel/mm/transparent_hugepage/enabled, \
         or use another backing"
    )]
    NoTransparentHugePages,
    /// There is not enough memory.
    #[error("this takes {} of memory, and {} are available; use fewer vCPUs or less memory", Size(*needed), Size(*free))]
    NoMemory {
        /// In bytes, with the guest's tables.
        needed: u64,
        /// Bytes that can be allocated without an out-of-memory kill.
        free: u64,
    },
    /// The guest's memory does not fit into its guest-physical address space.
    #[error(
        "{} of memory do not fit into {bits} bits of guest-physical address, of which the guest itself uses {}",
        Size(*size),
        Size(*taken)
    )]
    TooLarge {
        /// In bytes.
        size: u64,
        /// Bytes below this memory that the guest itself uses.
        taken: u64,
        /// Bits of guest-physical address.
        bits: u32,
    },
    /// A thread cannot be pinned to its CPU.
    #[error("no thread of this process can be pinned to CPU {cpu}: {errno}; name CPUs that are online and allowed")]
    Pin {
        /// The CPU's number.
        cpu: usize,
        /// The system's error.
        errno: Errno,
    },
    /// The system refused a call.
    #[error("{what}: {errno}")]
    Refused {
        /// The call.
        what: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// A vCPU stopped unexpectedly.
    #[error("vCPU {vcpu} stopped: {what}")]
    Guest {
        /// The vCPU's number.
        vcpu: usize,
        /// What KVM reported, with addresses.
        what: String,
    },
    /// The guest is already running.
    #[error("the guest is already running; stop it first")]
    Running,
    /// A slot, an address or a part of a log that does not exist.
    #[error("{0}")]
    Nowhere(String),
}

impl KvmError {
    /// Returns whether this host has no usable KVM at all, so that a test skips.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Returns a function that makes the error of a call that the kernel refused.
    pub(crate) fn refused(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Self {
        move |error| Self::Refused { what, errno: Errno::from_raw_os_error(error.errno()) }
    }
}

/// Why this host cannot run guests under KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no device.
    #[error(
        "no /dev/kvm here: the kernel has no KVM, its module is not loaded, or the CPU (or an outer hypervisor) \
         does not allow it"
    )]
    NoDevice,
    /// This user may not open the device.
    #[error("/dev/kvm: permission denied: add yourself to group kvm, or run as root")]
    Permission,
    /// The device cannot be opened.
    #[error("/dev/kvm cannot be opened: {errno}: is the CPU's virtualization off, or does another hypervisor use it?")]
    Open {
        /// The system's error.
        errno: Errno,
    },
    /// The interface's version is not 12, the only one in the last 15 years.
    #[error("/dev/kvm has version {found} of its interface, but 12 is the only version known")]
    Version {
        /// The version.
        found: i32,
    },
    /// KVM cannot create a virtual machine.
    #[error(
        "KVM cannot create a virtual machine: {errno}: does another hypervisor of this host use the CPU's \
         virtualization?"
    )]
    Create {
        /// The system's error.
        errno: Errno,
    },
}

impl Unavailable {
    pub(crate) fn opening(error: kvm_ioctls::Error) -> Self {
        match Errno::from_raw_os_error(error.errno()) {
            Errno::NOENT => Self::NoDevice,
            Errno::ACCESS | Errno::PERM => Self::Permission,
            errno => Self::Open { errno },
        }
    }
}

/// A size in the largest unit that divides it. Other sizes from 1 MiB on are rounded to 0.1 MiB.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None if self.0 >= 1 << 20 => write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20)),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// A list of sizes.
struct Sizes<'a>(&'a [u64]);

impl fmt::Display for Sizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let sizes: Vec<_> = self.0.iter().map(|size| Size(*size).to_string()).collect();
        f.write_str(&sizes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_is_needed_what_there_is_and_what_to_do() {
        let chunk = KvmError::Chunk { chunk: 3 << 20, supported: vec![4 << 10, 2 << 20, 1 << 30] };
        assert_eq!(
            chunk.to_string(),
            "an eager-split chunk of 3 MiB is not supported here; 4 KiB, 2 MiB, 1 GiB are (0: no eager split)"
        );
        let pages =
            KvmError::NoHugePages { backing: Backing::AnonymousHugetlb2Mb, size: 2 << 20, needed: 512, free: 3 };
        assert_eq!(
            pages.to_string(),
            "anonymous_hugetlb_2mb needs 512 huge pages of 2 MiB, and 3 are free; write 512 or more to \
             /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, or use anonymous_thp"
        );
    }

    #[test]
    fn a_host_without_kvm_is_distinct_from_a_mistake() {
        let no_device = Unavailable::opening(kvm_ioctls::Error::new(Errno::NOENT.raw_os_error()));
        assert_eq!(no_device, Unavailable::NoDevice);
        let denied = Unavailable::opening(kvm_ioctls::Error::new(Errno::ACCESS.raw_os_error()));
        assert!(KvmError::from(denied).is_unavailable());
        assert!(KvmError::from(denied).to_string().contains("group kvm"));
        assert!(!KvmError::Running.is_unavailable());
    }
}
