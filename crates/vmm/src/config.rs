// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest's configuration: read from its record in the bundle, and checked before anything is built from it.
//!
//! The bundle comes from outside: every offset and size in a record is checked against the file's length here, and
//! nowhere later.

use twofold_abi::bundle;
use twofold_abi::virt;
use twofold_memory::Pages;
use twofold_memory::async_fault::Mode;
use twofold_memory::swap::FRAMES_PER_VCPU;
use twofold_stage2::Level;

use crate::program::Program;

/// What a guest is made from.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The kernel, a raw arm64 Image.
    pub kernel: &'a [u8],
    /// The initial RAM disk; empty for none.
    pub initrd: &'a [u8],
    /// The firmware in which the guest starts; empty for none, and else there is neither kernel nor initrd.
    pub firmware: &'a [u8],
    /// Bits of [`bundle::devices`].
    pub devices: u32,
    /// The disks.
    pub disks: &'a [bundle::Disk],
    /// The network cards.
    pub nets: &'a [bundle::Net],
    /// Where its pages go when they leave memory; `None`: they stay.
    pub swap: Option<Swap>,
    /// The kernel's command line.
    pub command_line: &'a str,
    /// Bytes of RAM.
    pub memory: u64,
    /// Number of vCPUs.
    pub cpus: u32,
    /// The limit on the size of mappings.
    pub pages: Pages,
    /// Bits of [`bundle::flags`], which are the whole image's.
    pub flags: u32,
    /// Bits of the guest's physical addresses, 32 to 48; `None`: as few as suffice.
    pub ipa_bits: Option<u32>,
    /// Test memory, which is not in the device tree.
    pub test: Option<TestMemory>,
    /// Bits of [`bundle::POLICIES`], which are the whole image's.
    pub policies: u32,
}

/// Slots of equal size, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestMemory {
    /// The start of the first slot, a multiple of 4 KiB.
    pub start: u64,
    /// Bytes of one slot, a multiple of 4 KiB that is not 0.
    pub slot_size: u64,
    /// The number of slots: 1 to 64. The last one ends below 2^64.
    pub slots: u32,
    /// Level of the largest leaf, 1 to 3, if the slots are allocated at the start; the size of a slot is then a power
    /// of two.
    pub leaf: Option<Level>,
}

/// A store for pages that leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The most bytes of the guest's memory that are in the machine's at a time, a multiple of 4 KiB.
    pub resident: u64,
    /// What a vCPU does while a page is absent.
    pub mode: Mode,
    /// Where its pages go.
    pub store: Store,
}

/// Where pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The machine's memory.
    Memory {
        /// Microseconds from a request to the end of its transfer.
        delay: u32,
    },
    /// The machine's disk with this serial number.
    Disk([u8; bundle::disk::ID_MAX]),
    /// Nowhere. But pages may come from a launcher after the guest has begun ([`bundle::flags::POSTCOPY`]).
    Nowhere,
}

/// Why a guest's record was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An offset or size points outside of the bundle.
    #[error("the bundle's {what} reaches beyond its end: it was cut off or damaged")]
    CutOff {
        /// The part of the bundle.
        what: &'static str,
    },
    /// The command line is not UTF-8.
    #[error("the guest's command line is not UTF-8")]
    CommandLine,
    /// A disk cannot be what its record says.
    #[error("--disk {number}: {why}")]
    Disk {
        /// Its place, from 1.
        number: usize,
        /// The reason.
        why: &'static str,
    },
    /// A network card cannot be what its record says.
    #[error("--net {number}: {why}")]
    Net {
        /// Its place, from 1.
        number: usize,
        /// The reason.
        why: &'static str,
    },
    /// The store is none that there is, or takes too long.
    #[error("--swap: {0}")]
    Swap(&'static str),
    /// The limit on memory that is in the machine's.
    #[error("--resident {resident}: give whole pages of 4096 bytes, {least} bytes at least, and {most} at most")]
    Resident {
        /// The limit.
        resident: u64,
        /// The least with which the guest makes progress.
        least: u64,
        /// The guest's memory.
        most: u64,
    },
    /// A firmware and a kernel or an initrd.
    #[error("--firmware: the guest has a kernel or an initrd, too; give one way to start")]
    TwoStarts,
    /// A firmware, and a store for the guest's pages.
    #[error("--firmware: a store for the guest's pages has no room for the flash; leave out --resident and --swap")]
    FirmwareSwap,
    /// A number is out of range.
    #[error("the bundle asks for {value} {what}: {allowed}")]
    Number {
        /// The unit of the number.
        what: &'static str,
        /// The number.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
}

impl<'a> Config<'a> {
    /// Reads a guest's record in the bundle `file`. `flags` and `policies` are the image's.
    pub(crate) fn read(
        file: &'a [u8],
        record: &'a bundle::Guest,
        flags: u32,
        policies: u32,
    ) -> Result<Self, ConfigError> {
        let text = record.command_line.get(..record.command_line_size.get() as usize);
        let text = text.ok_or(ConfigError::CutOff { what: "command line" })?;
        let pages = match record.pages.get() {
            bundle::pages::SMALL => Pages::Small,
            bundle::pages::AUTO | bundle::pages::BLOCKS => Pages::Largest,
            value => return Err(number("page policy", value.into(), "0, 1 or 2")),
        };
        let memory = record.memory.get();
        if memory == 0 || !memory.is_multiple_of(4096) {
            return Err(number("bytes of memory", memory, "a multiple of 4096 that is not 0"));
        }
        if record.pages.get() == bundle::pages::BLOCKS && !memory.is_multiple_of(2 << 20) {
            return Err(number("bytes of memory", memory, "with blocks only, a multiple of 2 MiB"));
        }
        let cpus = record.cpus.get();
        if !(1..=virt::MAX_CPUS).contains(&cpus) {
            return Err(number("vCPUs", cpus.into(), "1 to 64"));
        }
        let firmware_size = record.firmware_size.get();
        if firmware_size > bundle::FIRMWARE_MAX {
            return Err(number("bytes of firmware", firmware_size, "64 MiB at most"));
        }
        if firmware_size != 0 && (record.kernel_size.get(), record.initrd_size.get()) != (0, 0) {
            return Err(ConfigError::TwoStarts);
        }
        let swap = swap(record)?;
        if firmware_size != 0 && swap.is_some() {
            return Err(ConfigError::FirmwareSwap);
        }
        // A vCPU of any guest can halt.
        let halting = Swap { resident: memory, mode: Mode::Halt, store: Store::Nowhere };
        let swap = swap.or((flags & bundle::flags::POSTCOPY != 0).then_some(halting));
        let devices = record.devices.get();
        if devices & !bundle::devices::ALL != 0 {
            return Err(number("as its devices", devices.into(), "0 to 7"));
        }
        Ok(Self {
            kernel: part(file, "kernel", record.kernel_offset.get(), record.kernel_size.get())?,
            initrd: part(file, "initrd", record.initrd_offset.get(), record.initrd_size.get())?,
            firmware: part(file, "firmware", record.firmware_offset.get(), firmware_size)?,
            devices,
            disks: disks(record)?,
            nets: nets(record)?,
            swap,
            command_line: core::str::from_utf8(text).map_err(|_| ConfigError::CommandLine)?,
            memory,
            cpus,
            pages,
            flags,
            ipa_bits: ipa_bits(record)?,
            test: test_memory(record)?,
            policies,
        })
    }

    /// The end of the guest's RAM, test memory included (exclusive).
    pub fn end(&self) -> u64 {
        let test = self.test.map_or(0, |test| test.start + test.size());
        virt::RAM_BASE.saturating_add(self.memory).max(test)
    }

    /// How many virtio devices the guest has.
    pub fn virtio_devices(&self) -> usize {
        self.disks.len() + self.nets.len() + self.devices.count_ones() as usize
    }

    /// What the guest starts in, as it is loaded: its kernel, or its firmware.
    pub fn program(&self) -> &'a [u8] {
        if self.has_firmware() {
            return self.firmware;
        }
        Program::of(self.kernel).map_or(self.kernel, |program| program.bytes)
    }

    /// Whether the guest starts in a firmware.
    pub fn has_firmware(&self) -> bool {
        !self.firmware.is_empty()
    }

    /// Whether a bit of [`bundle::flags`] is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

impl TestMemory {
    /// Bytes of all slots together.
    pub fn size(&self) -> u64 {
        self.slot_size * u64::from(self.slots)
    }
}

fn ipa_bits(record: &bundle::Guest) -> Result<Option<u32>, ConfigError> {
    match record.ipa_bits.get() {
        0 => Ok(None),
        bits @ 32..=48 => Ok(Some(bits)),
        bits => Err(number("bits of a physical address", bits.into(), "32 to 48, or 0")),
    }
}

fn test_memory(record: &bundle::Guest) -> Result<Option<TestMemory>, ConfigError> {
    let (start, size, slots) = (record.test_start.get(), record.test_size.get(), record.test_slots.get());
    if slots == 0 && size == 0 {
        return Ok(None);
    }
    if !(1..=64).contains(&slots) {
        return Err(number("slots of test memory", slots.into(), "1 to 64"));
    }
    let unit = 4096 * u64::from(slots);
    if size == 0 || !size.is_multiple_of(unit) {
        return Err(number("bytes of test memory", size, "4096 for each slot, or a multiple of that"));
    }
    if !start.is_multiple_of(4096) || start.checked_add(size).is_none() {
        return Err(number("as the start of test memory", start, "a multiple of 4096, with room after it"));
    }
    let slot_size = size / u64::from(slots);
    let leaf = match record.test_leaf.get() {
        0 => None,
        level @ 1..=3 if slot_size.is_power_of_two() => Level::new(level as u8),
        1..=3 => return Err(number("bytes in a slot that is allocated at the start", slot_size, "a power of two")),
        level => return Err(number("as the level of leaves", level.into(), "1 to 3, or 0")),
    };
    Ok(Some(TestMemory { start, slot_size, slots, leaf }))
}

/// The disks, each checked by itself.
fn disks(record: &bundle::Guest) -> Result<&[bundle::Disk], ConfigError> {
    let count = record.disks.get();
    let disks = record.disk.get(..count as usize).ok_or(number("disks", count.into(), "4 at most"))?;
    for (disk, number) in disks.iter().zip(1..) {
        let refused = |why| Err(ConfigError::Disk { number, why });
        let length = disk.id.iter().position(|byte| *byte == 0).unwrap_or(disk.id.len());
        let (name, padding) = disk.id.split_at(length);
        if !name.iter().all(u8::is_ascii_graphic) || padding.iter().any(|byte| *byte != 0) {
            return refused("its serial number is not printable ASCII, padded with zeros");
        }
        if disk.flags.get() & !bundle::disk::READ_ONLY != 0 {
            return refused("it has flags without a meaning");
        }
        let end = disk.start.get().checked_add(disk.sectors.get()).and_then(|end| end.checked_mul(bundle::SECTOR));
        if end.is_none() {
            return refused("it ends beyond the last address of any disk");
        }
        match disk.kind.get() {
            bundle::disk::HOST if name.is_empty() => return refused("a disk of the machine needs its serial number"),
            bundle::disk::HOST => {}
            bundle::disk::MEMORY if disk.sectors.get() == 0 => return refused("a disk in memory needs a size"),
            bundle::disk::MEMORY if disk.start.get() != 0 => return refused("a disk in memory starts at sector 0"),
            bundle::disk::MEMORY => {}
            _ => return refused("it is of no known kind"),
        }
    }
    Ok(disks)
}

/// The network cards, each checked by itself.
fn nets(record: &bundle::Guest) -> Result<&[bundle::Net], ConfigError> {
    const GROUP: u8 = 1;
    let count = record.nets.get();
    let nets = record.net.get(..count as usize).ok_or(number("network cards", count.into(), "4 at most"))?;
    for (net, number) in nets.iter().zip(1..) {
        let refused = |why| Err(ConfigError::Net { number, why });
        if net.network.get() >= bundle::NETWORKS_MAX {
            return refused("its network's number is not below 16");
        }
        if net.mac == [0; 6] || net.mac[0] & GROUP != 0 {
            return refused("its address is that of no single card");
        }
        if net.uplink[0] & GROUP != 0 {
            return refused("its uplink's address is that of no single card");
        }
    }
    Ok(nets)
}

fn swap(record: &bundle::Guest) -> Result<Option<Swap>, ConfigError> {
    let bundle::Swap { store, mode, resident, delay, disk } = record.swap;
    let (resident, delay) = (resident.get(), delay.get());
    match store.get() {
        bundle::swap::NONE if resident != 0 => return Err(ConfigError::Swap("a limit by --resident needs a store")),
        bundle::swap::NONE => return Ok(None),
        bundle::swap::MEMORY | bundle::swap::DISK => {}
        _ => return Err(ConfigError::Swap("it is of no known kind")),
    }
    let mode = match mode.get() {
        bundle::swap::OFF => Mode::Off,
        bundle::swap::HALT => Mode::Halt,
        bundle::swap::PV => Mode::Pv,
        _ => return Err(number("as the mode of --async-fault", mode.get().into(), "0 to 2")),
    };
    if delay > bundle::swap::DELAY_MAX {
        return Err(ConfigError::Swap("a transfer takes a minute at most"));
    }
    let least = FRAMES_PER_VCPU * 4096 * u64::from(record.cpus.get());
    let most = record.memory.get();
    if resident < least || resident > most || !resident.is_multiple_of(4096) {
        return Err(ConfigError::Resident { resident, least, most });
    }
    let store = if store.get() == bundle::swap::DISK { Store::Disk(disk) } else { Store::Memory { delay } };
    Ok(Some(Swap { resident, mode, store }))
}

fn part<'a>(file: &'a [u8], what: &'static str, offset: u64, size: u64) -> Result<&'a [u8], ConfigError> {
    let end = offset.checked_add(size).ok_or(ConfigError::CutOff { what })?;
    file.get(offset as usize..end as usize).ok_or(ConfigError::CutOff { what })
}

fn number(what: &'static str, value: u64, allowed: &'static str) -> ConfigError {
    ConfigError::Number { what, value, allowed }
}
