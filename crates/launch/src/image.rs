// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arm64 Image format: checks a guest kernel before the start.
//!
//! Invariant: an [`Image`] exists only for a file that starts with a valid arm64 Image header, so the hypervisor never
//! has to refuse a kernel.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Kernel, initrd and device tree start at multiples of 2 MiB (the kernel `text_offset` further on), as Linux requires.
pub const BOUNDARY: u64 = 2 << 20;

/// The contents of an arm64 Image header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where the kernel wants to start, in bytes from a 2 MiB boundary.
    pub text_offset: u64,
    /// Bytes of memory that the kernel needs from its start, zero-initialised data included.
    pub image_size: u64,
    /// Size of the file in bytes.
    pub file_size: u64,
}

/// Why a file is not a guest kernel, and what to do.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The file cannot be read.
    #[error("cannot read the kernel {path}: {why}; give the path of an arm64 Image")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The file has another format.
    #[error("{path} is not an arm64 Image: {what}")]
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// The format that it seems to have, and what to do about it.
        what: &'static str,
    },
}

impl Image {
    /// Reads the header of the kernel at `path`.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let unreadable = |why| ImageError::Unreadable { path: path.to_owned(), why };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let mut head = Vec::with_capacity(HEADER_SIZE);
        file.take(HEADER_SIZE as u64).read_to_end(&mut head).map_err(unreadable)?;
        Self::parse(&head, metadata.len()).map_err(|what| ImageError::NotAnImage { path: path.to_owned(), what })
    }

    /// Reads a header from the first bytes of a file of `file_size` bytes.
    ///
    /// The error names the format that the bytes seem to have, and what to do.
    pub fn parse(head: &[u8], file_size: u64) -> Result<Self, &'static str> {
        if head.get(MAGIC_OFFSET..MAGIC_OFFSET + 4) != Some(MAGIC) {
            return Err(looks_like(head));
        }
        if head.len() < HEADER_SIZE {
            return Err("it ends within its header; copy the file again");
        }
        let stated = u64_at(head, IMAGE_SIZE_OFFSET);
        if number_is_big_endian(u64_at(head, FLAGS_OFFSET)) {
            return Err("it is a big-endian kernel; build a little-endian one (CONFIG_CPU_BIG_ENDIAN=n)");
        }
        let text_offset = u64_at(head, TEXT_OFFSET_OFFSET);
        if text_offset >= BOUNDARY {
            return Err("its text_offset is not below 2 MiB; give an arm64 Image as the kernel's build makes it");
        }
        // Kernels before 3.17 leave the size 0. The kernel needs at least the file's size in any case.
        Ok(Self { text_offset, image_size: stated.max(file_size), file_size })
    }
}

const HEADER_SIZE: usize = 64;
const TEXT_OFFSET_OFFSET: usize = 8;
const IMAGE_SIZE_OFFSET: usize = 16;
const FLAGS_OFFSET: usize = 24;
const MAGIC_OFFSET: usize = 0x38;
const MAGIC: &[u8] = b"ARM\x64";

fn u64_at(head: &[u8], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}

fn number_is_big_endian(flags: u64) -> bool {
    flags & 1 != 0
}

fn looks_like(head: &[u8]) -> &'static str {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"\x1f\x8b", "it is compressed with gzip; uncompress it with `gunzip`"),
        (b"\xfd7zXZ", "it is compressed with xz; uncompress it with `unxz`"),
        (b"\x28\xb5\x2f\xfd", "it is compressed with zstd; uncompress it with `unzstd`"),
        (b"BZh", "it is compressed with bzip2; uncompress it with `bunzip2`"),
        (b"\x7fELF", "it is an ELF file; give the image that is made from it"),
        (b"!<arch>\n", "it is a Debian package or an archive; give the vmlinuz inside it"),
        (b"070701", "it is a cpio archive; give it as the initrd"),
    ];
    if head.is_empty() {
        return "it is empty; copy the file again";
    }
    if head.starts_with(b"MZ") {
        return if head.get(4..8) == Some(b"zimg") {
            "it is a self-extracting EFI program (zboot); give arch/arm64/boot/Image of the kernel's build"
        } else {
            "it is an EFI program for another architecture; give an arm64 kernel"
        };
    }
    KNOWN.iter().find(|(magic, _)| head.starts_with(magic)).map_or(
        "bytes 56 to 59 are not \"ARM\\x64\"; give an uncompressed arm64 Image, or a program as an ELF file; a raw \
             binary for address 0 is a firmware (`--firmware`)",
        |(_, what)| what,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text_offset: u64, image_size: u64, flags: u64) -> Vec<u8> {
        let mut head = vec![0; HEADER_SIZE];
        head[8..16].copy_from_slice(&text_offset.to_le_bytes());
        head[16..24].copy_from_slice(&image_size.to_le_bytes());
        head[24..32].copy_from_slice(&flags.to_le_bytes());
        head[MAGIC_OFFSET..MAGIC_OFFSET + 4].copy_from_slice(&0x644d_5241u32.to_le_bytes());
        head
    }

    #[test]
    fn reads_a_header() {
        let image = Image::parse(&header(0, 0x30_0000, 0xa), 0x20_0000).unwrap();
        assert_eq!(image, Image { text_offset: 0, image_size: 0x30_0000, file_size: 0x20_0000 });
    }

    #[test]
    fn a_size_of_zero_means_the_file() {
        let image = Image::parse(&header(0x8_0000, 0, 0), 0x1_0000).unwrap();
        assert_eq!((image.text_offset, image.image_size), (0x8_0000, 0x1_0000));
    }

    #[test]
    fn a_text_offset_beyond_the_boundary_is_refused() {
        assert!(Image::parse(&header(BOUNDARY, 0x1000, 0), 0x1000).unwrap_err().contains("2 MiB"));
    }

    #[test]
    fn a_file_longer_than_its_stated_size_counts_whole() {
        assert_eq!(Image::parse(&header(0, 0x1000, 0), 0x8000).unwrap().image_size, 0x8000);
    }

    #[test]
    fn says_what_else_it_is() {
        let cases: [(&[u8], &str); 7] = [
            (b"\x1f\x8b\x08", "gunzip"),
            (b"\x7fELF\x02", "an ELF file"),
            (b"MZ\0\0zimg", "zboot"),
            (b"MZ\x90\0", "another architecture"),
            (b"\x28\xb5\x2f\xfd", "unzstd"),
            (b"", "empty"),
            (b"hello", "uncompressed arm64 Image"),
        ];
        for (head, expected) in cases {
            let error = Image::parse(head, head.len() as u64).unwrap_err();
            assert!(error.contains(expected), "{head:?}: {error}");
        }
        assert!(Image::parse(&header(0, 0, 1), 64).unwrap_err().contains("big-endian"));
        assert!(Image::parse(&header(0, 0, 0)[..60], 60).unwrap_err().contains("ends within"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Image::open(Path::new("no/such/kernel")).unwrap_err().to_string();
        assert!(error.contains("no/such/kernel"), "{error}");
    }
}
