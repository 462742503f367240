// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of a guest, and its bundle file.
//!
//! Invariant: a [`Bundle`] is written only from [`GuestSettings`] that passed every check that the host can make. The
//! file has exactly the layout of [`twofold_abi::bundle`]: header, kernel and initrd, each padded with zeros to
//! [`ALIGN`].

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;
use twofold_abi::bundle::{self, ALIGN, COMMAND_LINE_MAX, Header};
use twofold_abi::virt::{MAX_CPUS, RAM_BASE};
use twofold_workload::policies::Policies;
use zerocopy::IntoBytes;

use crate::image::{Image, ImageError};
use crate::layout::{DoesNotFit, Layout};

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

    fn number(self) -> u32 {
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
    /// An uncompressed arm64 Image.
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
    /// Bits of [`bundle::flags`].
    pub flags: u32,
    /// Test memory; a guest gets its place by the command line.
    pub test: Option<TestMemory>,
    /// Each technique, or its baseline. Only an image with the feature `baselines` has baselines.
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

/// A bundle file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
}

/// Why a guest cannot be started, and what to do.
#[derive(Debug, Error)]
pub enum GuestError {
    /// The kernel is unreadable or not an arm64 Image.
    #[error(transparent)]
    Kernel(#[from] ImageError),
    /// The initrd is unreadable.
    #[error("cannot read the initrd {path}: {why}; give the path of a cpio archive, compressed or not")]
    Initrd {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The initrd is empty.
    #[error("the initrd {0} is empty; give a cpio archive, compressed or not, or none at all")]
    EmptyInitrd(PathBuf),
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
    /// Bytes of machine memory that the guest takes, with its test memory and the cost of aligning that.
    pub fn total_memory(&self) -> u64 {
        let test = self.test.map_or(0, |test| match test.leaf {
            Some(_) => test.size.saturating_add(test.slot_size()),
            None => test.size,
        });
        self.memory.saturating_add(test)
    }

    /// Makes all checks that are possible on the host, and returns the layout.
    pub fn check(&self) -> Result<Layout, GuestError> {
        self.check_settings()?;
        let image = Image::open(&self.kernel)?;
        Ok(Layout::new(&image, self.initrd_size()?, self.memory)?)
    }

    /// Checks the initrd alone, for a kernel that does not exist yet.
    pub fn check_initrd(&self) -> Result<(), GuestError> {
        self.initrd_size().map(drop)
    }

    /// Checks memory, vCPUs and command line, which need no file.
    pub fn check_settings(&self) -> Result<(), GuestError> {
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
        if self.command_line.len() > COMMAND_LINE_MAX {
            return Err(GuestError::CommandLineTooLong(self.command_line.len()));
        }
        if self.command_line.chars().any(|character| character.is_control()) {
            return Err(GuestError::CommandLineControl);
        }
        Ok(())
    }

    /// Checks the guest and writes its bundle to `path`.
    pub fn write_bundle(&self, path: &Path) -> Result<Bundle, GuestError> {
        self.check()?;
        let kernel_error = |why| ImageError::Unreadable { path: self.kernel.clone(), why };
        let mut kernel = File::open(&self.kernel).map_err(kernel_error)?;
        let kernel_size = kernel.metadata().map_err(kernel_error)?.len();
        let initrd_size = self.initrd_size()?;
        let header = self.header(kernel_size, initrd_size);
        let initrd_offset = header.initrd_offset.get();

        let failed = |why| GuestError::Write { path: path.to_owned(), why };
        let mut file = File::create(path).map_err(failed)?;
        file.write_all(header.as_bytes()).map_err(failed)?;
        // Padding is a hole in the file: it reads as zeros and takes no space.
        file.seek(SeekFrom::Start(ALIGN)).map_err(failed)?;
        copy_exactly(&mut kernel, &mut file, kernel_size).map_err(failed)?;
        file.seek(SeekFrom::Start(initrd_offset)).map_err(failed)?;
        if let Some(initrd) = &self.initrd {
            let mut initrd_file = File::open(initrd).map_err(|why| GuestError::Initrd { path: initrd.clone(), why })?;
            copy_exactly(&mut initrd_file, &mut file, initrd_size).map_err(failed)?;
        }
        let size = (initrd_offset + initrd_size).next_multiple_of(ALIGN);
        file.set_len(size).map_err(failed)?;
        Ok(Bundle { path: path.to_owned(), size })
    }

    fn header(&self, kernel_size: u64, initrd_size: u64) -> Header {
        let mut command_line = [0; COMMAND_LINE_MAX + 1];
        command_line[..self.command_line.len()].copy_from_slice(self.command_line.as_bytes());
        Header {
            magic: bundle::MAGIC,
            flags: self.flags.into(),
            pages: self.pages.number().into(),
            cpus: self.cpus.into(),
            command_line_size: (self.command_line.len() as u32).into(),
            memory: self.memory.into(),
            kernel_offset: ALIGN.into(),
            kernel_size: kernel_size.into(),
            initrd_offset: (ALIGN + kernel_size).next_multiple_of(ALIGN).into(),
            initrd_size: initrd_size.into(),
            command_line,
            ipa_bits: self.test.map_or(0, |test| test.ipa_bits).into(),
            test_slots: self.test.map_or(0, |test| test.slots).into(),
            test_start: self.test.map_or(0, |test| test.start()).into(),
            test_size: self.test.map_or(0, |test| test.size).into(),
            test_leaf: self.test.and_then(|test| test.leaf).unwrap_or(0).into(),
            policies: self.policies.bits().into(),
        }
    }

    fn initrd_size(&self) -> Result<u64, GuestError> {
        let Some(path) = &self.initrd else {
            return Ok(0);
        };
        let failed = |why| GuestError::Initrd { path: path.clone(), why };
        let metadata = File::open(path).and_then(|file| file.metadata()).map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if metadata.len() == 0 {
            return Err(GuestError::EmptyInitrd(path.clone()));
        }
        Ok(metadata.len())
    }
}

/// Copies exactly `size` bytes: if the file changes its size meanwhile, the part after it must not move.
fn copy_exactly(from: &mut File, to: &mut File, size: u64) -> io::Result<()> {
    let copied = io::copy(&mut io::Read::take(from, size), to)?;
    if copied == size { Ok(()) } else { Err(io::Error::other("the file became shorter while it was copied")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use twofold_abi::bundle::flags;
    use zerocopy::FromBytes;

    struct Files {
        directory: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        }

        fn guest(&self) -> GuestSettings {
            let mut kernel = vec![0xaa; 0x1234];
            kernel[8..24].fill(0);
            kernel[16..18].copy_from_slice(&0x2000u16.to_le_bytes());
            kernel[24..32].fill(0);
            kernel[0x38..0x3c].copy_from_slice(b"ARM\x64");
            GuestSettings {
                kernel: self.write("kernel", &kernel),
                initrd: Some(self.write("initrd", &[0xbb; 0x567])),
                command_line: "console=ttyAMA0".to_owned(),
                memory: 128 << 20,
                cpus: 2,
                pages: Pages::Small,
                flags: flags::COUNT,
                test: None,
                policies: Policies::default(),
            }
        }

        fn refused(&self, change: impl FnOnce(&mut GuestSettings)) -> String {
            let mut guest = self.guest();
            change(&mut guest);
            let path = self.directory.path().join("refused");
            let error = guest.write_bundle(&path).unwrap_err().to_string();
            assert!(!path.exists(), "a refused guest leaves no file: {error}");
            error
        }
    }

    #[test]
    fn bundle_bytes() {
        let files = Files::new();
        let path = files.directory.path().join("bundle");
        let bundle = files.guest().write_bundle(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let align = ALIGN as usize;
        assert_eq!(bytes.len(), 4 * align);
        assert_eq!(bundle, Bundle { path, size: 4 * ALIGN });

        let (header, padding) = Header::read_from_prefix(&bytes).unwrap();
        assert_eq!(header.magic, bundle::MAGIC);
        assert_eq!(header.flags.get(), flags::COUNT);
        assert_eq!(header.pages.get(), bundle::pages::SMALL);
        assert_eq!(header.cpus.get(), 2);
        assert_eq!(header.memory.get(), 128 << 20);
        assert_eq!((header.kernel_offset.get(), header.kernel_size.get()), (ALIGN, 0x1234));
        assert_eq!((header.initrd_offset.get(), header.initrd_size.get()), (3 * ALIGN, 0x567));
        let used = header.command_line_size.get() as usize;
        assert_eq!(&header.command_line[..used], b"console=ttyAMA0");
        assert!(header.command_line[used..].iter().all(|byte| *byte == 0));

        let head = bytes.len() - padding.len();
        assert!(bytes[head..align].iter().all(|byte| *byte == 0));
        assert_eq!(&bytes[align + 0x38..align + 0x3c], b"ARM\x64");
        assert_eq!(bytes[align + 0x1233], 0xaa);
        assert!(bytes[align + 0x1234..3 * align].iter().all(|byte| *byte == 0));
        assert!(bytes[3 * align..3 * align + 0x567].iter().all(|byte| *byte == 0xbb));
        assert!(bytes[3 * align + 0x567..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_guest_without_initrd() {
        let files = Files::new();
        let guest = GuestSettings { initrd: None, pages: Pages::Blocks, ..files.guest() };
        let path = files.directory.path().join("bundle");
        assert_eq!(guest.write_bundle(&path).unwrap().size, 3 * ALIGN);
        let bytes = fs::read(&path).unwrap();
        let (header, _) = Header::read_from_prefix(&bytes).unwrap();
        assert_eq!((header.initrd_offset.get(), header.initrd_size.get()), (3 * ALIGN, 0));
        assert_eq!(header.pages.get(), bundle::pages::BLOCKS);
    }

    #[test]
    fn the_longest_command_line_is_not_cut() {
        let files = Files::new();
        let guest = GuestSettings { command_line: "x".repeat(COMMAND_LINE_MAX), ..files.guest() };
        let path = files.directory.path().join("bundle");
        guest.write_bundle(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let (header, _) = Header::read_from_prefix(&bytes).unwrap();
        assert_eq!(header.command_line_size.get() as usize, COMMAND_LINE_MAX);
        assert_eq!(header.command_line[COMMAND_LINE_MAX], 0);
    }

    #[test]
    fn bad_settings_are_refused_with_advice() {
        let files = Files::new();
        let cases = [
            (files.refused(|guest| guest.memory = 32 << 20), "at least 64M"),
            (files.refused(|guest| guest.memory = 1 << 40), "at most 255G"),
            (files.refused(|guest| guest.memory += 100), "not a multiple of 4K"),
            (
                files.refused(|guest| {
                    guest.memory += 4096;
                    guest.pages = Pages::Blocks;
                }),
                "not a multiple of 2M",
            ),
            (files.refused(|guest| guest.cpus = 0), "1 to 64"),
            (files.refused(|guest| guest.cpus = 65), "1 to 64"),
            (files.refused(|guest| guest.command_line = "x".repeat(2048)), "2047 at most"),
            (files.refused(|guest| guest.command_line = "a\nb".to_owned()), "control character"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn bad_files_are_refused_with_advice() {
        let files = Files::new();
        let text = files.write("text", b"hello");
        let empty = files.write("empty", b"");
        let large = files.write("large", b"");
        File::options().write(true).open(&large).unwrap().set_len(200 << 20).unwrap();
        let nowhere = files.directory.path().join("nowhere");
        let directory = files.directory.path().to_owned();
        let cases = [
            (files.refused(|guest| guest.kernel = text), "not an arm64 Image"),
            (files.refused(|guest| guest.kernel = nowhere.clone()), "cannot read the kernel"),
            (files.refused(|guest| guest.kernel = directory.clone()), "cannot read the kernel"),
            (files.refused(|guest| guest.initrd = Some(nowhere)), "cannot read the initrd"),
            (files.refused(|guest| guest.initrd = Some(directory)), "cannot read the initrd"),
            (files.refused(|guest| guest.initrd = Some(empty)), "is empty"),
            (files.refused(|guest| guest.initrd = Some(large)), "the initrd does not fit"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}");
        }
    }
}
