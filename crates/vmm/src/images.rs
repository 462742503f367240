// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a guest's images are what they are given as, by their first bytes.
//!
//! A wrong file would otherwise be loaded, and the guest would be silent. The checks name what was given instead, so that
//! the message says what to do. Invariant: whatever a kernel of Linux's arm64 port accepts is accepted.

use thiserror::Error;

use crate::program::Program;

/// Why an image is not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ImageError {
    /// There is none.
    #[error("--kernel: there is no kernel, or its file is empty")]
    NoKernel,
    /// The file is something else.
    #[error("--kernel: the file is {0}, not an arm64 Image: {1}")]
    Kernel(&'static str, &'static str),
    /// The kernel is big-endian, and reads its device tree in a way that this is not made for.
    #[error("--kernel: the Image is big-endian: give a little-endian one")]
    BigEndian,
    /// The file is something else.
    #[error("--initrd: the file is neither a cpio archive nor a compressed one: it begins with {0:02x?}")]
    Initrd([u8; 4]),
}

/// Checks a kernel. A program in its place is checked with the layout.
pub fn check_kernel(kernel: &[u8]) -> Result<(), ImageError> {
    const MAGIC: usize = 56;
    const FLAGS: usize = 24;
    const BIG_ENDIAN: u8 = 1;
    if kernel.is_empty() {
        return Err(ImageError::NoKernel);
    }
    if Program::of(kernel).is_some() {
        return Ok(());
    }
    if kernel.get(MAGIC..MAGIC + 4) == Some(b"ARM\x64") {
        return if kernel[FLAGS] & BIG_ENDIAN == 0 { Ok(()) } else { Err(ImageError::BigEndian) };
    }
    let what = match kernel {
        [b'M', b'Z', _, _, b'z', b'i', b'm', b'g', ..] => ("a compressed EFI image", "unpack it"),
        [0x7f, b'E', b'L', b'F', ..] => ("an ELF (vmlinux)", "give arch/arm64/boot/Image of that build"),
        _ => match compression(kernel) {
            Some(name) => (name, "unpack it"),
            None => ("of another kind", "it has no \"ARM\\x64\" at byte 56"),
        },
    };
    Err(ImageError::Kernel(what.0, what.1))
}

/// Checks an initrd; an empty one stands for none.
pub fn check_initrd(initrd: &[u8]) -> Result<(), ImageError> {
    // Archives may be padded in front with zeros, in units of four bytes.
    let padded = initrd.chunks(4).position(|word| word.iter().any(|byte| *byte != 0));
    let Some(start) = padded else { return Ok(()) };
    let rest = &initrd[4 * start..];
    if rest.starts_with(b"070701") || rest.starts_with(b"070702") || compression(rest).is_some() {
        return Ok(());
    }
    let mut first = [0; 4];
    first.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    Err(ImageError::Initrd(first))
}

/// The compressed formats that Linux unpacks by itself from an initrd.
fn compression(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 9] = [
        (&[0x1f, 0x8b], "compressed with gzip"),
        (&[0x1f, 0x9e], "compressed with an old gzip"),
        (b"BZh", "compressed with bzip2"),
        (&[0x5d, 0x00], "compressed with lzma"),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "compressed with xz"),
        (&[0x89, b'L', b'Z', b'O'], "compressed with lzop"),
        (&[0x02, 0x21, 0x4c, 0x18], "compressed with an old lz4"),
        (&[0x04, 0x22, 0x4d, 0x18], "compressed with lz4"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "compressed with zstd"),
    ];
    KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, name)| *name)
}
