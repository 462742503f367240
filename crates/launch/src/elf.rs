// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ELF program in the place of a kernel, such as a bare-metal program for QEMU's `virt`.
//!
//! Its loadable segments go to their physical addresses, with zeros between and behind them, and it starts at its entry as an
//! arm64 Image does: at EL1 with the MMU off, and the device tree's address in x0. Nothing is relocated.
//!
//! Invariant: a [`Program`] is within the guest's RAM, and starts within itself.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use thiserror::Error;
use twofold_abi::bundle::{self, ALIGN, PROGRAM_MAGIC};
use twofold_abi::virt::RAM_BASE;
use zerocopy::IntoBytes;

use crate::image::Image;

/// The most bytes from a program's first one to its last one: 256 MiB.
pub const SPAN_MAX: u64 = 256 << 20;

/// A program for a fixed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The guest physical address of its first byte.
    pub load: u64,
    /// The guest physical address at which it starts.
    pub entry: u64,
    /// Its memory.
    pub bytes: Vec<u8>,
}

/// Why an ELF file is no program for a guest, and what to do.
#[derive(Debug, Error)]
#[error("{}: {why}", path.display())]
pub struct ElfError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: WhyNot,
}

/// What is wrong with an ELF file.
#[derive(Debug, Error)]
pub enum WhyNot {
    /// The system refuses.
    #[error("{0}; give a file that can be read")]
    Unreadable(#[from] io::Error),
    /// Its structure.
    #[error("it is a damaged ELF file: {0}; copy or build it again")]
    Damaged(#[from] object::Error),
    /// A segment's contents.
    #[error("it is an ELF file of which a segment is cut off; copy or build it again")]
    CutOff,
    /// It is for other CPUs.
    #[error("it is an ELF file for another kind of CPU; give one for 64-bit little-endian Arm (AArch64)")]
    Machine,
    /// It is an object file, or needs a dynamic linker.
    #[error("it is an ELF file that cannot start by itself; link it statically")]
    NotStatic,
    /// It has nothing to load.
    #[error("it is an ELF file without a loadable segment; link it with program headers")]
    Empty,
    /// A segment is outside of RAM.
    #[error(
        "its segment from {start:#x} to {end:#x} is not in the guest's RAM, which is from {RAM_BASE:#x} to {ram_end:#x}; link \
         it for addresses there, or give more `--memory`; of a Linux kernel give arch/arm64/boot/Image, not vmlinux"
    )]
    Outside {
        /// Its first byte.
        start: u64,
        /// The byte behind it.
        end: u64,
        /// The end of RAM.
        ram_end: u64,
    },
    /// Its segments are too far from each other.
    #[error("its segments span {0} bytes, and {max}M are the most; link them closer together", max = SPAN_MAX >> 20)]
    Span(u64),
    /// It starts elsewhere.
    #[error("its entry {0:#x} is in none of its segments; name it by ENTRY() in the linker script")]
    Entry(u64),
}

impl Program {
    /// Reads the file at `path` for a guest with `memory` bytes of RAM, if it is an ELF file.
    pub fn open(path: &Path, memory: u64) -> Result<Option<Self>, ElfError> {
        let mut magic = [0; 4];
        let is_elf = File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == elf::ELFMAG;
        if !is_elf {
            return Ok(None);
        }
        let read = || Self::parse(&fs::read(path)?, memory);
        read().map(Some).map_err(|why| ElfError { path: path.to_owned(), why })
    }

    fn parse(file: &[u8], memory: u64) -> Result<Self, WhyNot> {
        let is_64_bits_little = file.get(4..6) == Some(&[elf::ELFCLASS64.0, elf::ELFDATA2LSB.0]);
        if !is_64_bits_little {
            return Err(WhyNot::Machine);
        }
        let header = FileHeader64::<Endianness>::parse(file)?;
        let endian = header.endian()?;
        if header.e_machine(endian) != elf::EM_AARCH64 {
            return Err(WhyNot::Machine);
        }
        let headers = header.program_headers(endian, file)?;
        let is_dynamic = headers.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP);
        if is_dynamic || ![elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(endian)) {
            return Err(WhyNot::NotStatic);
        }
        let is_loaded = |segment: &&elf::ProgramHeader64<Endianness>| {
            segment.p_type(endian) == elf::PT_LOAD && segment.p_memsz(endian) > 0
        };
        let ram_end = RAM_BASE.saturating_add(memory);
        let (mut load, mut end) = (u64::MAX, 0);
        for segment in headers.iter().filter(is_loaded) {
            let first = segment.p_paddr(endian);
            let behind = first.saturating_add(segment.p_memsz(endian));
            if first < RAM_BASE || behind > ram_end {
                return Err(WhyNot::Outside { start: first, end: behind, ram_end });
            }
            (load, end) = (load.min(first), end.max(behind));
        }
        let span = end.checked_sub(load).ok_or(WhyNot::Empty)?;
        if span > SPAN_MAX {
            return Err(WhyNot::Span(span));
        }
        let mut bytes = vec![0; span as usize];
        // The entry is a virtual address.
        let (virtual_entry, mut entry) = (header.e_entry(endian), None);
        for segment in headers.iter().filter(is_loaded) {
            let (first, size) = (segment.p_paddr(endian), segment.p_memsz(endian));
            let data = segment.data(endian, file).ok().filter(|data| data.len() as u64 <= size);
            let data = data.ok_or(WhyNot::CutOff)?;
            bytes[(first - load) as usize..][..data.len()].copy_from_slice(data);
            let at = virtual_entry.checked_sub(segment.p_vaddr(endian)).filter(|at| *at < size);
            entry = entry.or(at.map(|at| first + at));
        }
        Ok(Self { load, entry: entry.ok_or(WhyNot::Entry(virtual_entry))?, bytes })
    }

    /// What a layout needs of it.
    #[must_use]
    pub fn image(&self) -> Image {
        let size = self.bytes.len() as u64;
        Image { text_offset: self.load - RAM_BASE, image_size: size, file_size: size }
    }

    /// What a bundle has of it.
    pub(crate) fn stored(&self) -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        let (load, entry) = (self.load.into(), self.entry.into());
        let head = bundle::Program { load, entry, reserved: [0; 40], magic: PROGRAM_MAGIC };
        file.write_all(head.as_bytes())?;
        file.seek(SeekFrom::Start(ALIGN))?;
        file.write_all(&self.bytes)?;
        file.rewind()?;
        Ok(file)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const EXECUTABLE: u16 = 2;

    /// An ELF file of this type with this entry and these segments: physical address, contents, size in memory. A virtual
    /// address is 16 MiB higher.
    pub(crate) fn elf(kind: u16, entry: u64, segments: &[(u64, &[u8], u64)]) -> Vec<u8> {
        let mut file = vec![0; 64 + segments.len() * 56];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16..18].copy_from_slice(&kind.to_le_bytes());
        file[18..20].copy_from_slice(&183u16.to_le_bytes());
        file[20] = 1;
        file[24..32].copy_from_slice(&entry.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[52..54].copy_from_slice(&64u16.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        for (index, (address, bytes, memory)) in segments.iter().enumerate() {
            let at = 64 + index * 56;
            file[at] = 1;
            let numbers = [file.len() as u64, address.wrapping_add(16 * MIB), *address, bytes.len() as u64, *memory];
            for (number, value) in numbers.iter().enumerate() {
                file[at + 8 + number * 8..][..8].copy_from_slice(&value.to_le_bytes());
            }
            file.extend_from_slice(bytes);
        }
        file
    }

    fn why(file: &[u8]) -> String {
        Program::parse(file, 64 * MIB).unwrap_err().to_string()
    }

    #[test]
    fn segments_go_to_their_addresses_with_zeros_between_and_behind() {
        let at = RAM_BASE + 8 * MIB;
        let file = elf(EXECUTABLE, at + 16 * MIB + 5, &[(at + 4, b"text", 4), (at, b"ab", 3), (at + 10, b"", 6)]);
        let program = Program::parse(&file, 64 * MIB).unwrap();
        assert_eq!((program.load, program.entry), (at, at + 5));
        assert_eq!(program.bytes, b"ab\0\0text\0\0\0\0\0\0\0\0");
        assert_eq!(program.image(), Image { text_offset: 8 * MIB, image_size: 16, file_size: 16 });
        // All of RAM may be used, but the device tree has to fit, too.
        let whole = elf(EXECUTABLE, RAM_BASE + 16 * MIB, &[(RAM_BASE, b"x", 64 * MIB)]);
        assert_eq!(Program::parse(&whole, 64 * MIB).unwrap().bytes.len() as u64, 64 * MIB);
    }

    #[test]
    fn other_elf_files_are_refused_with_advice() {
        let at = RAM_BASE;
        let good = elf(EXECUTABLE, at + 16 * MIB, &[(at, b"code", 4)]);
        assert!(Program::parse(&good, 64 * MIB).is_ok());
        let changed = |place: usize, value: u8| {
            let mut file = good.clone();
            file[place] = value;
            why(&file)
        };
        assert!(changed(4, 1).contains("another kind of CPU"));
        assert!(changed(5, 2).contains("another kind of CPU"));
        assert!(changed(18, 62).contains("another kind of CPU"));
        assert!(changed(16, 1).contains("link it statically"));
        assert!(changed(64, 3).contains("link it statically"));
        assert!(changed(64, 0).contains("without a loadable segment"));
        assert!(changed(54, 55).contains("damaged"));
        assert!(changed(64 + 33, 1).contains("cut off"));
        assert!(changed(64 + 40, 3).contains("cut off"));
        assert!(why(&good[..good.len() - 1]).contains("cut off"));
        assert!(why(&good[..20]).contains("damaged"));
        assert!(why(&good[..5]).contains("another kind of CPU"));
        assert!(why(&elf(EXECUTABLE, at, &[(at, b"code", 4)])).contains("its entry 0x40000000 is in none"));
        let of = |first: u64, size: u64| why(&elf(EXECUTABLE, 0, &[(first, b"", size)]));
        assert!(
            of(0, 4096).contains("its segment from 0x0 to 0x1000 is not in the guest's RAM, which is from 0x40000000")
        );
        assert!(of(at - 1, 2).contains("is not in the guest's RAM"));
        assert!(of(at + 64 * MIB, 1).contains("to 0x44000000; link it"));
        assert!(of(u64::MAX, u64::MAX).contains("is not in the guest's RAM"));
        let far = elf(EXECUTABLE, at, &[(at, b"", 1), (at + SPAN_MAX, b"", 1)]);
        assert!(Program::parse(&far, 1 << 30).unwrap_err().to_string().contains("256M are the most"));
    }
}
