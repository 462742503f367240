// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several guests on one machine: what each asks for, checked against what there is, before anything starts.
//!
//! Invariant: either all guests fit together, each within limits of its own, or none is started. What is admitted is
//! reserved: no guest's need, at its worst, takes what another was promised. So a guest that uses up its limit ends or
//! waits alone.

use alloc::vec::Vec;

use thiserror::Error;
use twofold_abi::{bundle, virt};

use crate::config::{Config, Store, Swap};
use crate::images::{self, ImageError};
use crate::load::{Layout, LoadError};
use crate::name::Name;
use crate::scheduler::Weight;

mod devices;

pub use devices::{DEVICE_MEMORY, HOST_DISK_MEMORY, device_memory, plugs};

/// A guest to start.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// Its name in commands and messages.
    pub name: Name,
    /// Images, memory and vCPUs.
    pub config: Config<'a>,
    /// Its weight in the scheduler.
    pub weight: Weight,
}

/// What a machine has for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Free RAM in bytes, in whole huge pages.
    pub free: u64,
    /// Bits of a VMID, 8 or 16.
    pub vmid_bits: u32,
    /// Bytes in a page of the guests' tables.
    pub page: u64,
    /// What is missing that no guest can do without.
    pub missing: Option<Missing>,
}

/// What a machine must have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Missing {
    /// The image was not entered at EL2.
    #[error("this machine has no EL2, or its firmware does not enter it (QEMU: `-machine virt,virtualization=on`)")]
    El2,
    /// There is no GICv3.
    #[error("this machine has no GICv3 (QEMU: `-machine virt,gic-version=3`)")]
    GicV3,
    /// There is no virtual CPU interface of the GIC.
    #[error("this machine's GICv3 has no list registers for guests")]
    ListRegisters,
}

/// A guest that may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Where its images go.
    pub layout: Layout,
    /// The most frames of 4 KiB that it may own: its memory, and all tables that can map it.
    pub frames: u64,
    /// The frames for its data that it puts into the pool of the guests that share what they have in memory, beside `frames`.
    pub pool: u64,
    /// The huge pages that its disks in memory take, beside `frames`.
    pub disk_pages: u64,
    /// Its VMID, which no other guest has.
    pub vmid: u16,
    /// Its weight.
    pub weight: Weight,
}

/// Why the guests cannot be started together.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// The machine lacks something.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The number of guests.
    #[error("--guest: {given} guests are not possible; give 1 to {most}")]
    Count {
        /// The guests.
        given: usize,
        /// The most that are possible here.
        most: usize,
    },
    /// All guests together.
    #[error("--cpus: all guests together have {given} vCPUs; give at most {MAX_VCPUS}")]
    Vcpus {
        /// The vCPUs.
        given: u64,
    },
    /// One guest.
    #[error("guest {name:?}: {why}")]
    Guest {
        /// The guest.
        name: Name,
        /// The reason.
        why: Why,
    },
}

/// Why one guest cannot be started.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Why {
    /// Another guest has the same name.
    #[error("--name: another guest has this name")]
    SameName,
    /// The number of vCPUs.
    #[error("--cpus {0}: give 1 to {max}", max = virt::MAX_CPUS)]
    Cpus(u32),
    /// The memory is not a number of pages.
    #[error("--memory {memory}: give a multiple of {page} bytes that is not 0")]
    Memory {
        /// The memory.
        memory: u64,
        /// Bytes in a page.
        page: u64,
    },
    /// There is less memory.
    #[error(
        "--memory: it takes {wanted} MiB with its tables and disks in memory, and {free} MiB are free, or left by the guests \
         before it"
    )]
    NoMemory {
        /// What it takes, in MiB.
        wanted: u64,
        /// What is free, in MiB.
        free: u64,
    },
    /// Two cards with one address.
    #[error("--net {number}: a card of guest {other:?} has the same address")]
    SameMac {
        /// The card's place, from 1.
        number: usize,
        /// The other card's guest.
        other: Name,
    },
    /// A network with two uplinks.
    #[error("--net {number}: guest {other:?} has another way to the outside in the same network: give both the same")]
    Uplink {
        /// The card's place, from 1.
        number: usize,
        /// The guest with the other one.
        other: Name,
    },
    /// Two disks write to the same sectors, or one reads what the other writes.
    #[error(
        "--disk {number}: guest {other:?} has the same disk, and one of them writes: give both read-only, or two files"
    )]
    SharedDisk {
        /// The disk's place, from 1.
        number: usize,
        /// The guest with the other one.
        other: Name,
    },
    /// An image is not what it is given as.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The images have no place in its memory.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The most vCPUs of all guests together.
pub const MAX_VCPUS: u64 = bundle::VCPUS_MAX as u64;

/// Checks guests against a machine, in their order: the first that does not fit is named.
pub fn admit(guests: &[Guest<'_>], host: &Host) -> Result<Vec<Admitted>, Refused> {
    if let Some(missing) = host.missing {
        return Err(missing.into());
    }
    // VMID 0 is the hypervisor's, for tables that belong to no guest.
    let most = (1 << host.vmid_bits.min(16)) - 1;
    let given = guests.len();
    if !(1..=most).contains(&given) {
        return Err(Refused::Count { given, most });
    }
    let mut admitted = Vec::with_capacity(given);
    let mut free = host.free.saturating_sub(device_memory(guests).next_multiple_of(HUGE_PAGE));
    for (number, guest) in guests.iter().enumerate() {
        let refused = |why| Refused::Guest { name: guest.name, why };
        if guests[..number].iter().any(|other| other.name == guest.name) {
            return Err(refused(Why::SameName));
        }
        devices::check(guest, &guests[..number]).map_err(refused)?;
        let one = check(guest, number as u16 + 1, free, host.page).map_err(refused)?;
        free -= (one.frames + one.pool) * PAGE + one.disk_pages * HUGE_PAGE;
        admitted.push(one);
    }
    let given = guests.iter().map(|guest| u64::from(guest.config.cpus)).sum();
    if given > MAX_VCPUS {
        return Err(Refused::Vcpus { given });
    }
    Ok(admitted)
}

/// Whether this guest shares what it may have in memory with others.
#[must_use]
pub fn shares_resident(config: &Config<'_>) -> bool {
    config.swap.is_some() && config.flags & bundle::flags::SHARE_RESIDENT != 0
}

/// The most frames of 4 KiB that a guest's tables can take, with pages of `page` bytes: with 4 KiB, a table for each 2 MiB,
/// one for each 1 GiB, and so on. Each range (RAM, stolen time, flash and test slots) may begin and end within a table of each level.
pub fn table_frames(config: &Config<'_>, page: u64) -> u64 {
    const LEVELS: u32 = 3;
    /// Frames of the concatenated tables of the first level: 16 tables of 4 KiB, 4 of 16 KiB, or 1 of 64 KiB.
    const ROOT: u64 = 16;
    let shift = page.max(PAGE).ilog2();
    let bytes = total(config);
    let ranges = 3 + config.test.map_or(0, |test| u64::from(test.slots));
    let of_level = |level| (bytes >> (shift + (shift - 3) * level)) + 2 * ranges;
    (1..=LEVELS).map(of_level).sum::<u64>() * (page / PAGE) + ROOT
}

/// What a guest with a store takes of the machine's memory beside its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapMemory {
    /// Huge pages of a store in memory: a place for each page of the guest.
    pub store: u64,
    /// Huge pages for the hypervisor's heap, which has a state for each page.
    pub heap: u64,
}

impl SwapMemory {
    /// What this guest takes.
    pub fn of(config: &Config<'_>) -> Self {
        /// Bytes of a huge page for the states of one: those of its pages, in a block of the heap's.
        const STATES: u64 = 64 << 10;
        let Some(swap) = &config.swap else { return Self::default() };
        let huge_pages = Self::places(config) / (HUGE_PAGE / PAGE);
        let store = if matches!(swap.store, Store::Memory { .. }) { huge_pages } else { 0 };
        Self { store, heap: huge_pages.saturating_mul(STATES).div_ceil(HUGE_PAGE) + 1 }
    }

    /// The places that a store for this guest has: one for each page.
    pub fn places(config: &Config<'_>) -> u64 {
        (total(config).div_ceil(HUGE_PAGE) + STOLEN_TIME).saturating_mul(HUGE_PAGE / PAGE)
    }

    fn huge_pages(self) -> u64 {
        self.store.saturating_add(self.heap)
    }
}

const PAGE: u64 = 4096;

fn check(guest: &Guest<'_>, vmid: u16, free: u64, page: u64) -> Result<Admitted, Why> {
    let config = &guest.config;
    if !(1..=virt::MAX_CPUS).contains(&config.cpus) {
        return Err(Why::Cpus(config.cpus));
    }
    if config.memory == 0 || !config.memory.is_multiple_of(page) {
        return Err(Why::Memory { memory: config.memory, page });
    }
    if !config.has_firmware() {
        images::check_kernel(config.kernel)?;
        images::check_initrd(config.initrd)?;
    }
    // RAM is given in huge pages, and so is that of stolen time, in a slot of its own. What a disk takes need not be here; a
    // store in memory takes it only after it was loaded.
    let (bytes, pool) = match &config.swap {
        Some(Swap { resident, .. }) if shares_resident(config) => (0, resident.div_ceil(HUGE_PAGE)),
        Some(Swap { resident, store: Store::Disk(_), .. }) => (total(config).min(*resident), 0),
        _ => (total(config), 0),
    };
    let pool = pool.saturating_mul(HUGE_PAGE / PAGE);
    let huge_pages = bytes.div_ceil(HUGE_PAGE) + STOLEN_TIME;
    let frames = huge_pages.saturating_mul(HUGE_PAGE / PAGE).saturating_add(table_frames(config, page));
    let frames = frames.saturating_add(SwapMemory::of(config).huge_pages().saturating_mul(HUGE_PAGE / PAGE));
    let disk_pages = config.disks.iter().map(devices::pages_in_memory).fold(0, u64::saturating_add);
    let bytes = frames.saturating_add(pool).checked_mul(PAGE).zip(disk_pages.checked_mul(HUGE_PAGE));
    if bytes.and_then(|(frames, disks)| frames.checked_add(disks)).is_none_or(|bytes| bytes > free) {
        let wanted = frames.saturating_add(pool).div_ceil(256).saturating_add(disk_pages.saturating_mul(2));
        return Err(Why::NoMemory { wanted, free: free >> 20 });
    }
    let layout = Layout::new(config)?;
    Ok(Admitted { layout, frames, pool, disk_pages, vmid, weight: guest.weight })
}

const HUGE_PAGE: u64 = twofold_memory::HUGE_PAGE;
/// Huge pages around the vCPUs' stolen time.
const STOLEN_TIME: u64 = (virt::STOLEN_TIME_BASE % HUGE_PAGE + virt::STOLEN_TIME_SIZE).div_ceil(HUGE_PAGE);

fn total(config: &Config<'_>) -> u64 {
    let flash = if config.has_firmware() { virt::FLASH_SIZE } else { 0 };
    config.memory.saturating_add(flash).saturating_add(config.test.map_or(0, |test| test.size()))
}
