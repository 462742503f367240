// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An initrd, as a file: whether it is there, and whether it is one.
//!
//! Invariant: an initrd that passes these checks is not refused by the hypervisor, whose rule is the same: zeros in units
//! of four bytes, then a cpio archive, or a compressed file of a format that Linux unpacks. Nothing but zeros passes too.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a file is not an initrd, and what to do.
#[derive(Debug, Error)]
pub enum InitrdError {
    /// The file cannot be read.
    #[error("cannot read the initrd {path}: {why}; give the path of a cpio archive, compressed or not")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The file is empty.
    #[error("the initrd {0} is empty; give a cpio archive, compressed or not, or none at all")]
    Empty(PathBuf),
    /// The file has another format.
    #[error(
        "the initrd {path} is neither a cpio archive nor a compressed one: it begins with {first:02x?}; give a cpio \
         archive, compressed or not"
    )]
    NotAnArchive {
        /// The file.
        path: PathBuf,
        /// Its first bytes after the zeros.
        first: [u8; 4],
    },
}

/// The size in bytes of the initrd at `path`, which is not empty.
pub(crate) fn size(path: &Path) -> Result<u64, InitrdError> {
    let failed = |why| InitrdError::Unreadable { path: path.to_owned(), why };
    let metadata = File::open(path).and_then(|file| file.metadata()).map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    if metadata.len() == 0 {
        return Err(InitrdError::Empty(path.to_owned()));
    }
    Ok(metadata.len())
}

/// Checks the format of the initrd at `path`.
pub(crate) fn check(path: &Path) -> Result<(), InitrdError> {
    let failed = |why| InitrdError::Unreadable { path: path.to_owned(), why };
    let file = File::open(path).map_err(failed)?;
    let head = head(BufReader::new(file)).map_err(failed)?;
    if head.is_empty() || FORMATS.iter().any(|format| head.starts_with(format)) {
        return Ok(());
    }
    let mut first = [0; 4];
    first.iter_mut().zip(&head).for_each(|(to, from)| *to = *from);
    Err(InitrdError::NotAnArchive { path: path.to_owned(), first })
}

/// The first bytes: two kinds of cpio, gzip and its predecessor, bzip2, lzma, xz, lzop, lz4 and its predecessor, zstd.
const FORMATS: [&[u8]; 11] = [
    b"070701",
    b"070702",
    b"\x1f\x8b",
    b"\x1f\x9e",
    b"BZh",
    b"\x5d\0",
    b"\xfd7zXZ\0",
    b"\x89LZO",
    b"\x02\x21\x4c\x18",
    b"\x04\x22\x4d\x18",
    b"\x28\xb5\x2f\xfd",
];

/// Reads the first bytes after the zeros; empty if nothing follows them.
fn head(mut file: impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        (&mut file).take(4).read_to_end(&mut head)?;
        if head.iter().any(|byte| *byte != 0) {
            break;
        }
        if head.len() < 4 {
            return Ok(Vec::new());
        }
        head.clear();
    }
    file.take(4).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(bytes: &[u8]) -> Result<(), InitrdError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        check(file.path())
    }

    #[test]
    fn archives_and_what_linux_unpacks_are_accepted() {
        for format in FORMATS {
            for padding in [0, 4, 40_000] {
                let bytes = [&vec![0; padding], format, b"and more"].concat();
                assert!(checked(&bytes).is_ok(), "{format:x?} after {padding} zeros");
            }
        }
        assert!(checked(&[0; 10]).is_ok(), "zeros alone are an empty archive");
    }

    #[test]
    fn another_format_is_named_by_its_first_bytes() {
        for bad in [&b"hello"[..], b"070700", b"0", b"\x1f", b"\x00070701", b"\0\0\0\0ARM\x64"] {
            let error = checked(bad).unwrap_err().to_string();
            assert!(error.contains("neither a cpio archive nor a compressed one"), "{bad:x?}: {error}");
        }
        assert!(matches!(checked(b"\0\0\0\0ab"), Err(InitrdError::NotAnArchive { first: [b'a', b'b', 0, 0], .. })));
    }
}
