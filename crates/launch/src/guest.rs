// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of a guest, and the checks of them that the host can make.
//!
//! Invariant: settings that pass [`check`](GuestSettings::check) are not refused later because of what they are by
//! themselves. Whether several guests are possible together is a question of [`bundle`](crate::bundle).

use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;
use twofold_abi::bundle::{
    self, COMMAND_LINE_MAX, DISKS_MAX, FIRMWARE_MAX, GUESTS_MAX, NAME_MAX, NETS_MAX, NETWORKS_MAX, SECTOR, VCPUS_MAX,
    WEIGHT_MAX,
};
use twofold_abi::virt::{self, MAX_CPUS, RAM_BASE};
use twofold_workload::policies::Policies;

use crate::devices::{Backing, DeviceError, Devices, Part};
use crate::elf::{ElfError, Program};
use crate::image::{Image, ImageError};
use crate::initrd::{self, InitrdError};
use crate::layout::{DoesNotFit, Layout};
use crate::swap::{Swap, SwapError};

/// The name of a guest for which none is given.
pub const NAME_DEFAULT: &str = "guest";
/// The weight of a guest for which none is given.
pub const WEIGHT_DEFAULT: u32 = bundle::WEIGHT_DEFAULT;
/// The least guest memory in bytes: 64 MiB.
pub const MEMORY_MIN: u64 = 64 << 20;
/// The most guest memory in bytes: 255 GiB, the room for RAM in the memory map of QEMU's `virt`.
pub const MEMORY_MAX: u64 = 255 << 30;
/// Guest memory is a multiple of this many bytes.
pub const PAGE_SIZE: u64 = 4096;
/// With [`Pages::Blocks`], guest memory is a multiple of this many bytes.
pub const BLOCK_SIZE: u64 = 2 << 20;

/// The alignment of test memory, so that blocks of each size fit: 1 GiB.
const START_ALIGN: u64 = 1 << 30;

/// A number of bytes in the form that options take: in the largest of G, M and K that divides it.
pub fn size(bytes: u64) -> String {
    let unit = [(30, "G"), (20, "M"), (10, "K")].into_iter().find(|(shift, _)| bytes.is_multiple_of(1 << shift));
    match unit {
        Some((shift, name)) if bytes > 0 => format!("{}{name}", bytes >> shift),
        _ => bytes.to_string(),
    }
}

/// How large the mappings of guest memory may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// As large as alignment and backing allow.
    #[default]
    Auto,
    /// 4 KiB pages only.
    Small,
    /// Blocks of 2 MiB or 1 GiB only.
    Blocks,
}

impl Pages {
    /// The name on a command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Small => "4k",
            Self::Blocks => "blocks",
        }
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Auto => bundle::pages::AUTO,
            Self::Small => bundle::pages::SMALL,
            Self::Blocks => bundle::pages::BLOCKS,
        }
    }
}

/// The settings of a guest to start.
#[derive(Clone, Debug)]
pub struct GuestSettings {
    /// The guest's name: 1 to [`NAME_MAX`] characters, each a letter from `a` to `z`, a digit or a hyphen.
    pub name: String,
    /// The guest's share of busy CPUs, in relation to the weights of other guests: 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// A firmware in which the guest starts: then it has neither kernel nor initrd.
    pub firmware: Option<PathBuf>,
    /// An uncompressed arm64 Image, or an ELF [program](crate::elf).
    pub kernel: PathBuf,
    /// The initrd, if there is one.
    pub initrd: Option<PathBuf>,
    /// The guest's command line, at most [`COMMAND_LINE_MAX`] bytes.
    pub command_line: String,
    /// Guest RAM in bytes, from [`MEMORY_MIN`] to [`MEMORY_MAX`], a multiple of [`PAGE_SIZE`].
    pub memory: u64,
    /// Number of vCPUs, from 1 to [`MAX_CPUS`].
    pub cpus: u32,
    /// Mapping size.
    pub pages: Pages,
    /// Bits of [`bundle::flags`], the same for all guests of an image.
    pub flags: u32,
    /// Its virtio devices.
    pub devices: Devices,
    /// Where its pages go when they leave memory; `None`: they stay.
    pub swap: Option<Swap>,
    /// Test memory; a guest gets its place by the command line.
    pub test: Option<TestMemory>,
    /// Each technique, or its baseline, the same for all guests of an image. Only an image with the feature `baselines` has baselines.
    pub policies: Policies,
}

/// RAM beside the guest's own, in slots of equal size at the top of the guest's address space, as in KVM's selftests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestMemory {
    /// Bits of the guest's physical addresses, 32 to 48.
    pub ipa_bits: u32,
    /// Bytes of all slots together. The size of each is a multiple of [`PAGE_SIZE`].
    pub size: u64,
    /// The number of slots: 1 to 64.
    pub slots: u32,
    /// The level of the largest leaf, 1 for 1 GiB to 3 for 4 KiB. Each slot is then allocated at the start, and its
    /// size is a power of two of bytes. `None`: memory is allocated as the guest touches it.
    pub leaf: Option<u32>,
}

/// Why a guest cannot be started, and what to do.
#[derive(Debug, Error)]
pub enum GuestError {
    /// Too few guests have something to share.
    #[error(
        "`--share-resident` lets guests with `--resident` share what they may have in memory, and {with_limit} of {guests} has it; \
         give it to two at least"
    )]
    SharesNothing {
        /// Guests with a limit.
        with_limit: usize,
        /// All guests.
        guests: usize,
    },
    /// The kernel is unreadable or not an arm64 Image.
    #[error(transparent)]
    Kernel(#[from] ImageError),
    /// The kernel is an ELF file that is no program for a guest.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The initrd is unreadable or not one.
    #[error(transparent)]
    Initrd(#[from] InitrdError),
    /// Kernel, initrd and device tree are larger than the memory.
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    /// Less than [`MEMORY_MIN`].
    #[error("`--memory {}` is too little; give at least {min}M", size(*.0), min = MEMORY_MIN >> 20)]
    MemoryTooSmall(u64),
    /// More than [`MEMORY_MAX`].
    #[error("`--memory {}` is too much; give at most {max}G", size(*.0), max = MEMORY_MAX >> 30)]
    MemoryTooLarge(u64),
    /// Not a multiple of the page or block.
    #[error(
        "`--memory {}` is not a multiple of {}, the {name}; the next one is {}",
        size(*memory), size(*unit), size(memory.next_multiple_of(*unit))
    )]
    MemoryUnaligned {
        /// The requested size, in bytes.
        memory: u64,
        /// The unit, in bytes.
        unit: u64,
        /// "page" or the like.
        name: &'static str,
    },
    /// No vCPU, or too many.
    #[error("{0} vCPUs are not possible; give 1 to {MAX_CPUS} (`--cpus`)")]
    Cpus(u32),
    /// The name has other characters, or too many, or none.
    #[error(
        "`--name {0}` is not possible; give 1 to {NAME_MAX} characters, each a letter from a to z, a digit or a hyphen"
    )]
    Name(String),
    /// No weight, or too much.
    #[error("`--weight {0}` is not possible; give 1 to {WEIGHT_MAX}")]
    Weight(u32),
    /// The command line is too long.
    #[error("the guest's command line has {0} bytes; shorten it to {COMMAND_LINE_MAX} at most")]
    CommandLineTooLong(usize),
    /// The command line has a NUL or a line end in it.
    #[error("the guest's command line has a control character in it; give one line of plain text")]
    CommandLineControl,
    /// The test memory is invalid, or overlaps the guest's RAM.
    #[error(
        "{} of test memory in {} slots at the top of a {}-bit address space, beside {} of RAM at 1G, are not possible: \
         give 1 to 64 slots of whole pages (a power of two of pages, if allocated at the start), 32 to 48 bits, and \
         sizes that fit",
        size(test.size), test.slots, test.ipa_bits, size(*memory)
    )]
    TestMemory {
        /// The requested test memory.
        test: TestMemory,
        /// Guest RAM in bytes.
        memory: u64,
    },
    /// The firmware is unreadable.
    #[error("`--firmware {path}`: {why}")]
    UnreadableFirmware {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The firmware is empty, or larger than the flash.
    #[error(
        "`--firmware {path}`: the file has {size} bytes, and the flash takes 1 byte to {max}M; give U-Boot's u-boot.bin \
         for qemu_arm64, or the like", max = FIRMWARE_MAX >> 20
    )]
    Firmware {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
    /// The store for its pages.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// A firmware, and a store for the guest's pages.
    #[error(
        "`--firmware` and `--resident` are not possible together, because a store has no room for the flash; leave out one"
    )]
    FirmwareSwap,
    /// Too many disks.
    #[error("{0} disks are not possible; give at most {DISKS_MAX} (`--disk`)")]
    Disks(usize),
    /// A disk in memory that is no whole number of sectors, or empty.
    #[error("a disk of {0} bytes in memory is not possible; give a multiple of {SECTOR} bytes (`--disk memory:SIZE`)")]
    MemoryDisk(u64),
    /// A disk in memory of which a part is given.
    #[error("a disk in memory is whole; leave `offset` and `size` out (`--disk memory:SIZE`)")]
    MemoryPart,
    /// A disk's file cannot be used, or no switch listens.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Too many network cards.
    #[error("{0} network cards are not possible; give at most {NETS_MAX} (`--net`)")]
    Nets(usize),
    /// Too many networks of all guests together.
    #[error("the guests have {0} networks together; give them at most {NETWORKS_MAX} (`--net`)")]
    NetworksTogether(usize),
    /// No guest, or too many.
    #[error("{0} guests are not possible; give 1 to {GUESTS_MAX} (`--guest`)")]
    Guests(usize),
    /// Two guests with the same name.
    #[error("two guests have the name {0}; give each a name of its own (`--name`, or `name=` in `--guest`)")]
    SameName(String),
    /// Too many vCPUs of all guests together.
    #[error("the guests have {0} vCPUs together; give them at most {VCPUS_MAX} (`--cpus`, or `cpus=` in `--guest`)")]
    CpusTogether(u64),
    /// Too much memory of all guests together.
    #[error(
        "the guests have {} of memory together; give them at most {max}G (`--memory`, or `memory=` in `--guest`)",
        size(*.0), max = MEMORY_MAX >> 30
    )]
    MemoryTogether(u64),
    /// Settings of the whole image differ.
    #[error("the guests {0} and {1} differ in flags or baselines, which are the whole image's; give them the same")]
    Mixed(String, String),
    /// One of several guests.
    #[error("guest {name}: {why}")]
    Named {
        /// The guest.
        name: String,
        /// The reason.
        why: Box<GuestError>,
    },
    /// The bundle cannot be written.
    #[error("cannot write the guest bundle {path}: {why}; is there room on the disk?")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
}

impl TestMemory {
    /// Where the test memory starts: as high as its size allows, at a multiple of 1 GiB, so that blocks fit. 0 if it
    /// does not fit.
    pub fn start(&self) -> u64 {
        (1u64 << self.ipa_bits.min(48)).saturating_sub(self.size) / START_ALIGN * START_ALIGN
    }

    fn is_possible(&self, memory: u64) -> bool {
        (32..=48).contains(&self.ipa_bits)
            && (1..=64).contains(&self.slots)
            && self.size > 0
            && self.size.is_multiple_of(PAGE_SIZE * u64::from(self.slots))
            && self.start() >= RAM_BASE + memory
            && self.leaf.is_none_or(|leaf| (1..=3).contains(&leaf) && self.slot_size().is_power_of_two())
    }

    fn slot_size(&self) -> u64 {
        self.size / u64::from(self.slots.max(1))
    }
}

impl GuestSettings {
    /// Bytes of machine memory that the guest takes, with its flash, its disks in memory, its test memory and the cost of aligning that.
    pub fn total_memory(&self) -> u64 {
        let test = self.test.map_or(0, |test| match test.leaf {
            Some(_) => test.size.saturating_add(test.slot_size()),
            None => test.size,
        });
        let disks = self.devices.disks.iter().map(|disk| match disk.backing {
            Backing::Memory(bytes) => bytes,
            Backing::File(_) | Backing::Server(_) => 0,
        });
        let flash = if self.firmware.is_some() { virt::FLASH_SIZE } else { 0 };
        let memory = match &self.swap {
            Some(swap) => swap.machine_memory(self.memory),
            None if self.flags & bundle::flags::POSTCOPY != 0 => {
                crate::swap::machine_memory(Some(self.memory), self.memory)
            }
            None => self.memory,
        };
        let rest = memory.saturating_add(test).saturating_add(flash);
        disks.fold(rest, u64::saturating_add)
    }

    /// Makes all checks that are possible on the host, and returns the layout.
    pub fn check(&self) -> Result<Layout, GuestError> {
        self.check_settings()?;
        if let Some(path) = &self.firmware {
            check_firmware(path)?;
            return Ok(Layout::of_firmware());
        }
        let image = match self.program()? {
            Some(program) => program.image(),
            None => Image::open(&self.kernel)?,
        };
        let layout = Layout::new(&image, self.initrd_size()?, self.memory)?;
        self.initrd.as_deref().map_or(Ok(()), initrd::check)?;
        Ok(layout)
    }

    /// Checks the initrd alone, for a kernel that does not exist yet.
    pub fn check_initrd(&self) -> Result<(), GuestError> {
        self.initrd_size()?;
        Ok(self.initrd.as_deref().map_or(Ok(()), initrd::check)?)
    }

    /// Checks everything that needs no file.
    pub fn check_settings(&self) -> Result<(), GuestError> {
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if !(1..=NAME_MAX).contains(&self.name.len()) || !self.name.bytes().all(is_plain) {
            return Err(GuestError::Name(self.name.clone()));
        }
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return Err(GuestError::Weight(self.weight));
        }
        let memory = self.memory;
        if memory < MEMORY_MIN {
            return Err(GuestError::MemoryTooSmall(memory));
        }
        if memory > MEMORY_MAX {
            return Err(GuestError::MemoryTooLarge(memory));
        }
        if !memory.is_multiple_of(PAGE_SIZE) {
            return Err(GuestError::MemoryUnaligned { memory, unit: PAGE_SIZE, name: "page" });
        }
        if self.pages == Pages::Blocks && !memory.is_multiple_of(BLOCK_SIZE) {
            return Err(GuestError::MemoryUnaligned { memory, unit: BLOCK_SIZE, name: "block of `--pages blocks`" });
        }
        if !(1..=MAX_CPUS).contains(&self.cpus) {
            return Err(GuestError::Cpus(self.cpus));
        }
        if let Some(test) = self.test.filter(|test| !test.is_possible(memory)) {
            return Err(GuestError::TestMemory { test, memory });
        }
        let Devices { disks, nets, .. } = &self.devices;
        if disks.len() > DISKS_MAX {
            return Err(GuestError::Disks(disks.len()));
        }
        for disk in disks {
            if let Backing::Memory(bytes) = disk.backing
                && (bytes == 0 || !bytes.is_multiple_of(SECTOR))
            {
                return Err(GuestError::MemoryDisk(bytes));
            }
            if matches!(disk.backing, Backing::Memory(_)) && disk.part != Part::default() {
                return Err(GuestError::MemoryPart);
            }
        }
        if nets.len() > NETS_MAX {
            return Err(GuestError::Nets(nets.len()));
        }
        if let Some(swap) = &self.swap {
            if self.firmware.is_some() {
                return Err(GuestError::FirmwareSwap);
            }
            swap.check(self.memory, self.cpus)?;
        }
        if self.command_line.len() > COMMAND_LINE_MAX {
            return Err(GuestError::CommandLineTooLong(self.command_line.len()));
        }
        if self.command_line.chars().any(|character| character.is_control()) {
            return Err(GuestError::CommandLineControl);
        }
        Ok(())
    }

    /// The program in the place of a kernel, if it is one.
    pub(crate) fn program(&self) -> Result<Option<Program>, ElfError> {
        Program::open(&self.kernel, self.memory)
    }

    pub(crate) fn initrd_size(&self) -> Result<u64, InitrdError> {
        self.initrd.as_deref().map_or(Ok(0), initrd::size)
    }
}

fn check_firmware(path: &Path) -> Result<(), GuestError> {
    let size = fs::metadata(path).map_err(|why| GuestError::UnreadableFirmware { path: path.to_owned(), why })?.len();
    let is_possible = (1..=FIRMWARE_MAX).contains(&size);
    if is_possible { Ok(()) } else { Err(GuestError::Firmware { path: path.to_owned(), size }) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::devices::{Disk, Network};
    use crate::swap::{Mode, Store};
    use std::fs::File;
    use std::time::Duration;
    use twofold_abi::bundle::flags;

    /// The files of guests, in a directory of their own.
    pub(crate) struct GuestFiles {
        directory: tempfile::TempDir,
    }

    impl GuestFiles {
        pub(crate) fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        pub(crate) fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            fs::write(self.path(name), bytes).unwrap();
            self.path(name)
        }

        /// A guest that is not refused.
        pub(crate) fn guest(&self) -> GuestSettings {
            let mut kernel = vec![0xaa; 0x1234];
            kernel[8..24].fill(0);
            kernel[16..18].copy_from_slice(&0x2000u16.to_le_bytes());
            kernel[24..32].fill(0);
            kernel[0x38..0x3c].copy_from_slice(b"ARM\x64");
            let mut initrd = vec![0xbb; 0x567];
            initrd[..6].copy_from_slice(b"070701");
            GuestSettings {
                name: NAME_DEFAULT.to_owned(),
                weight: WEIGHT_DEFAULT,
                firmware: None,
                kernel: self.write("kernel", &kernel),
                initrd: Some(self.write("initrd", &initrd)),
                command_line: "console=ttyAMA0".to_owned(),
                memory: 128 << 20,
                cpus: 2,
                pages: Pages::Small,
                flags: flags::COUNT,
                devices: Devices::default(),
                swap: None,
                test: None,
                policies: Policies::default(),
            }
        }
    }

    fn refused(files: &GuestFiles, change: impl FnOnce(&mut GuestSettings)) -> String {
        let mut guest = files.guest();
        assert!(guest.check().is_ok());
        change(&mut guest);
        guest.check().unwrap_err().to_string()
    }

    #[test]
    fn bad_settings_are_refused_with_advice() {
        let files = GuestFiles::new();
        let disk = |bytes| Disk { backing: Backing::Memory(bytes), part: Part::default(), is_read_only: false };
        let cases = [
            (refused(&files, |guest| guest.memory = 32 << 20), "at least 64M"),
            (refused(&files, |guest| guest.memory = 1 << 40), "at most 255G"),
            (refused(&files, |guest| guest.memory += 100), "not a multiple of 4K"),
            (
                refused(&files, |guest| {
                    guest.memory += 4096;
                    guest.pages = Pages::Blocks;
                }),
                "not a multiple of 2M",
            ),
            (refused(&files, |guest| guest.cpus = 0), "1 to 64"),
            (refused(&files, |guest| guest.cpus = 65), "1 to 64"),
            (refused(&files, |guest| guest.devices.nets = vec![Network::Inner; 5]), "5 network cards"),
            (refused(&files, |guest| guest.devices.disks = vec![disk(512); 5]), "5 disks are not possible"),
            (refused(&files, |guest| guest.devices.disks = vec![disk(100)]), "a disk of 100 bytes in memory"),
            (refused(&files, |guest| guest.devices.disks = vec![disk(0)]), "a multiple of 512 bytes"),
            (refused(&files, |guest| guest.name = "Web".to_owned()), "`--name Web` is not possible"),
            (refused(&files, |guest| guest.name = String::new()), "1 to 15 characters"),
            (refused(&files, |guest| guest.name = "sixteen-letters-".to_owned()), "1 to 15 characters"),
            (refused(&files, |guest| guest.weight = 0), "`--weight 0` is not possible; give 1 to 1024"),
            (refused(&files, |guest| guest.weight = 1025), "1 to 1024"),
            (refused(&files, |guest| guest.command_line = "x".repeat(2048)), "2047 at most"),
            (refused(&files, |guest| guest.command_line = "a\nb".to_owned()), "control character"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn bad_files_are_refused_with_advice() {
        let files = GuestFiles::new();
        let text = files.write("text", b"hello");
        let empty = files.write("empty", b"");
        let large = files.write("large", b"");
        File::options().write(true).open(&large).unwrap().set_len(200 << 20).unwrap();
        let nowhere = files.path("nowhere");
        let directory = files.path("");
        let with_store = |guest: &mut GuestSettings| {
            guest.firmware = Some(files.path("firmware"));
            guest.swap = Some(Swap { resident: guest.memory, store: Store::Memory(Duration::ZERO), mode: Mode::Off });
        };
        let cases = [
            (refused(&files, |guest| guest.initrd = Some(text.clone())), "neither a cpio archive nor a compressed one"),
            (refused(&files, |guest| guest.kernel = text), "not an arm64 Image"),
            (refused(&files, |guest| guest.kernel = nowhere.clone()), "cannot read the kernel"),
            (refused(&files, |guest| guest.kernel = directory.clone()), "cannot read the kernel"),
            (refused(&files, |guest| guest.initrd = Some(nowhere)), "cannot read the initrd"),
            (refused(&files, |guest| guest.initrd = Some(directory)), "cannot read the initrd"),
            (refused(&files, |guest| guest.initrd = Some(empty.clone())), "is empty"),
            (refused(&files, |guest| guest.initrd = Some(large.clone())), "the initrd does not fit"),
            (refused(&files, |guest| guest.firmware = Some(large)), "has 209715200 bytes, and the flash takes"),
            (refused(&files, |guest| guest.firmware = Some(empty)), "the file has 0 bytes"),
            (refused(&files, |guest| guest.firmware = Some(files.path("nothing"))), "`--firmware "),
            (refused(&files, with_store), "`--firmware` and `--resident` are not possible together"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}");
        }
    }
}
