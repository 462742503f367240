// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page's content: zeros, whole, or as an lz4 block.

use alloc::boxed::Box;
use alloc::vec::Vec;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::wire::page;

/// Whether pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Pages that are not zero are sent whole.
    #[default]
    Off,
    /// Pages that lz4 makes smaller are sent so.
    Lz4,
}

/// Chooses the form in which a page is sent.
pub(super) struct Packer {
    /// The table and the output of the compression: on the heap, because a hypervisor's stacks are small.
    lz4: Option<(Box<CompressTable>, Vec<u8>)>,
}

impl Packer {
    pub fn new(compression: Compression) -> Self {
        let table = || Box::new(CompressTable::small());
        Self { lz4: (compression == Compression::Lz4).then(|| (table(), Vec::new())) }
    }

    /// Returns the form, and the bytes to send.
    pub fn pack<'a>(&'a mut self, bytes: &'a [u8]) -> (u8, &'a [u8]) {
        if is_zero(bytes) {
            return (page::ZERO, &[]);
        }
        if let Some((table, output)) = &mut self.lz4 {
            output.resize(get_maximum_output_size(bytes.len()), 0);
            if let Ok(size) = compress_into_with_table(bytes, output, table)
                && size < bytes.len()
            {
                return (page::LZ4, &output[..size]);
            }
        }
        (page::WHOLE, bytes)
    }
}

/// Why a page's bytes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// There is no such form.
    #[error("a page of form {0}")]
    Form(u8),
    /// The payload has a size that this form cannot have.
    #[error("{length} bytes for a page of {size} in form {form}")]
    Length {
        /// The form.
        form: u8,
        /// The payload's size.
        length: usize,
        /// The page's.
        size: usize,
    },
    /// The block is no lz4 block of a page.
    #[error("an lz4 block of {length} bytes that is none of a page of {size}")]
    Lz4 {
        /// The block's size.
        length: usize,
        /// The page's.
        size: usize,
    },
}

/// Returns an error if a page of `size` bytes in this form cannot have `length` bytes of payload.
pub(super) fn check(form: u8, length: usize, size: usize) -> Result<(), PageError> {
    let good = match form {
        page::ZERO => true,
        page::WHOLE => length == size,
        page::LZ4 => length > 0 && length < size,
        _ => return Err(PageError::Form(form)),
    };
    if good { Ok(()) } else { Err(PageError::Length { form, length, size }) }
}

/// Turns an lz4 block into the page, which fills `page`.
pub(super) fn unpack(block: &[u8], page: &mut [u8]) -> Result<(), PageError> {
    match decompress_into(block, page) {
        Ok(size) if size == page.len() => Ok(()),
        _ => Err(PageError::Lz4 { length: block.len(), size: page.len() }),
    }
}

/// Whether all bytes are zero. Most pages that are not show it in their first bytes.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (parts, rest) = bytes.as_chunks::<PART>();
    // Each part has one test, so that its words are read by vector instructions. (A comparison with an array of zeros
    // calls `memcmp` for each.)
    let is_zero = |part: &[u8; PART]| {
        let words = part.as_chunks::<8>().0.iter();
        words.fold(0, |any, word| any | u64::from_ne_bytes(*word)) == 0
    };
    parts.iter().all(is_zero) && rest.iter().all(|&byte| byte == 0)
}

/// Bytes that are tested at once.
const PART: usize = 256;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn one_byte_anywhere_is_found() {
        for size in [0, 1, 255, 256, 257, 4096] {
            let mut bytes = vec![0; size];
            assert!(is_zero(&bytes), "{size}");
            for at in 0..size {
                bytes[at] = 1 << (at % 8);
                assert!(!is_zero(&bytes), "{at} of {size}");
                bytes[at] = 0;
            }
        }
    }
}
