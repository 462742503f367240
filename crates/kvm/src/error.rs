// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong, and what to do about it.

use std::fmt;

use rustix::io::Errno;
use thiserror::Error;

use crate::options::Backing;

/// Why there is no guest, or why one stopped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvmError {
    /// Nothing runs under KVM here. Whoever can do without skips.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// KVM is here, and lacks what was asked for.
    #[error("KVM has no {what} here; {instead}")]
    Missing {
        /// By its name in the kernel.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// More than KVM gives a virtual machine.
    #[error("{needed} {what} were asked for, and KVM gives {most}")]
    TooMany {
        /// What it is.
        what: &'static str,
        /// As many were asked for.
        needed: u64,
        /// As many there are.
        most: u64,
    },
    /// This host cannot run the mode.
    #[error("guest mode {mode} cannot run here: {why}")]
    Mode {
        /// Its name.
        mode: &'static str,
        /// What is in the way, and what would do.
        why: String,
    },
    /// Options that make no guest.
    #[error("{0}")]
    Options(String),
    /// A chunk that KVM does not split by.
    #[error(
        "an eager-split chunk of {} is not supported here; {} are (0: nothing is split ahead)",
        Size(*chunk),
        Sizes(supported)
    )]
    Chunk {
        /// In bytes.
        chunk: u64,
        /// Those that are, in bytes.
        supported: Vec<u64>,
    },
    /// x86-64 has no such capability.
    #[error(
        "x86-64 has no eager-split chunk: it is on or off for all virtual machines (parameter kvm.eager_page_split, \
         which is {}); leave the chunk at 0",
        parameter.as_deref().unwrap_or("not to be seen")
    )]
    ChunkOnX86 {
        /// What the module's parameter is.
        parameter: Option<String>,
    },
    /// There are not enough huge pages.
    #[error(
        "{backing} needs {needed} huge pages of {}, and {free} are free; write {needed} or more to \
         /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or take anonymous_thp",
        Size(*size), size >> 10
    )]
    NoHugePages {
        /// What was asked for.
        backing: Backing,
        /// Bytes of a page.
        size: u64,
        /// How many it takes.
        needed: u64,
        /// How many there are.
        free: u64,
    },
    /// Transparent huge pages are off.
    #[error(
        "transparent huge pages are off; write madvise to /sys/kernel/mm/transparent_hugepage/enabled, \
         or take another backing"
    )]
    NoTransparentHugePages,
    /// There is not enough memory.
    #[error("this takes {} of memory, and {} are available; take fewer vCPUs or less memory", Size(*needed), Size(*free))]
    NoMemory {
        /// In bytes, the guest's tables included.
        needed: u64,
        /// In bytes, without anybody being killed for it.
        free: u64,
    },
    /// The guest's memory does not fit into what it can address.
    #[error(
        "{} of memory do not fit into {bits} bits of guest-physical address, of which the guest's own {} are taken",
        Size(*size),
        Size(*taken)
    )]
    TooLarge {
        /// In bytes.
        size: u64,
        /// Below it, in bytes.
        taken: u64,
        /// How many bits.
        bits: u32,
    },
    /// A thread may not run on the CPU that it was to.
    #[error("no thread of this process can be pinned to CPU {cpu}: {errno}; name CPUs that are online and allowed")]
    Pin {
        /// Its number.
        cpu: usize,
        /// What the system said.
        errno: Errno,
    },
    /// The system refused a call.
    #[error("{what}: {errno}")]
    Refused {
        /// The call.
        what: &'static str,
        /// What the system said.
        errno: Errno,
    },
    /// A vCPU stopped where it should not.
    #[error("vCPU {vcpu} stopped: {what}")]
    Guest {
        /// Which.
        vcpu: usize,
        /// What KVM said of it, with addresses.
        what: String,
    },
    /// The guest runs already.
    #[error("the guest runs already; stop it first")]
    Running,
    /// There is no such slot, place, or part of a log.
    #[error("{0}")]
    Nowhere(String),
}

impl KvmError {
    /// Whether this host has no usable KVM at all, so that a test skips.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// What makes an error of a call that the kernel refused.
    pub(crate) fn refused(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Self {
        move |error| Self::Refused { what, errno: Errno::from_raw_os_error(error.errno()) }
    }
}

/// Why nothing runs under KVM here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The device is not there.
    #[error(
        "no /dev/kvm here: the kernel has no KVM, its module is not loaded, or the CPU (or the hypervisor below) \
         does not let it"
    )]
    NoDevice,
    /// It is there, and not for this user.
    #[error("/dev/kvm: permission denied: add yourself to group kvm, or run as root")]
    Permission,
    /// It cannot be opened.
    #[error("/dev/kvm cannot be opened: {errno}: is the CPU's virtualization switched off, or another hypervisor's?")]
    Open {
        /// What the system said.
        errno: Errno,
    },
    /// It is another KVM than all of the last 15 years.
    #[error("/dev/kvm has version {found} of its interface, and 12 is the only one there ever was")]
    Version {
        /// The version.
        found: i32,
    },
    /// It makes no virtual machine.
    #[error(
        "KVM makes no virtual machine: {errno}: does another hypervisor of this host use the CPU's virtualization?"
    )]
    Create {
        /// What the system said.
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

/// A size, as short as it can be without loss.
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

/// Sizes in a row.
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
            "an eager-split chunk of 3 MiB is not supported here; 4 KiB, 2 MiB, 1 GiB are (0: nothing is split ahead)"
        );
        let pages =
            KvmError::NoHugePages { backing: Backing::AnonymousHugetlb2Mb, size: 2 << 20, needed: 512, free: 3 };
        assert_eq!(
            pages.to_string(),
            "anonymous_hugetlb_2mb needs 512 huge pages of 2 MiB, and 3 are free; write 512 or more to \
             /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, or take anonymous_thp"
        );
    }

    #[test]
    fn a_host_without_kvm_is_told_from_a_mistake() {
        let no_device = Unavailable::opening(kvm_ioctls::Error::new(Errno::NOENT.raw_os_error()));
        assert_eq!(no_device, Unavailable::NoDevice);
        let denied = Unavailable::opening(kvm_ioctls::Error::new(Errno::ACCESS.raw_os_error()));
        assert!(KvmError::from(denied).is_unavailable());
        assert!(KvmError::from(denied).to_string().contains("group kvm"));
        assert!(!KvmError::Running.is_unavailable());
    }
}
