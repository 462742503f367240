// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page as the file holds it: whole, or as an lz4 block, padded to whole sectors; and its checksum.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use xxhash_rust::xxh3::xxh3_64;

use super::extents::SECTOR;

pub(super) const PAGE: usize = 4096;

/// How a page is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Bytes of the lz4 block; [`PAGE`] if it is not compressed.
    length: usize,
    /// Of the page itself.
    checksum: u64,
}

impl Form {
    /// Sectors that it takes.
    pub(super) fn sectors(self) -> u64 {
        (self.length as u64).div_ceil(SECTOR)
    }
}

/// Adds the page to `bytes`, in whole sectors.
pub(super) fn pack(page: &[u8; PAGE], compress: bool, bytes: &mut Vec<u8>) -> Form {
    let (checksum, start) = (xxh3_64(page), bytes.len());
    if compress {
        bytes.resize(start + get_maximum_output_size(PAGE), 0);
        let length = compress_into(page, &mut bytes[start..]).unwrap_or(PAGE);
        let form = Form { length, checksum };
        if form.sectors() < (PAGE as u64).div_ceil(SECTOR) {
            bytes.truncate(start + length);
            bytes.resize(start + (form.sectors() * SECTOR) as usize, 0);
            return form;
        }
        bytes.truncate(start);
    }
    bytes.extend_from_slice(page);
    Form { length: PAGE, checksum }
}

/// The page that was packed so; `None` if the bytes are others.
pub(super) fn unpack(bytes: &[u8], form: Form) -> Option<Box<[u8; PAGE]>> {
    let mut page = Box::new([0; PAGE]);
    let packed = bytes.get(..form.length)?;
    if form.length == PAGE {
        page.copy_from_slice(packed);
    } else if decompress_into(packed, &mut page[..]).ok()? != PAGE {
        return None;
    }
    (xxh3_64(&page[..]) == form.checksum).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_and_a_changed_one_does_not() {
        let mut random = [0; PAGE];
        let mut value = 1_u64;
        random.iter_mut().for_each(|byte| {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (value >> 56) as u8;
        });
        // It gets smaller, but saves no sector.
        let mut hardly = random;
        hardly[..256].fill(7);
        for (page, smaller) in [(random, 4096), (hardly, 4096), ([7; PAGE], 512)] {
            for compress in [false, true] {
                let mut bytes = vec![9; 512];
                let form = pack(&page, compress, &mut bytes);
                assert_eq!(bytes.len() - 512, if compress { smaller } else { 4096 });
                assert_eq!(form.sectors() as usize * 512, bytes.len() - 512);
                match bytes.len() - 512 {
                    PAGE => assert_eq!(bytes[512..], page),
                    _ => assert!(bytes[512 + form.length..].iter().all(|byte| *byte == 0)),
                }
                assert_eq!(unpack(&bytes[512..], form).as_deref(), Some(&page));
                for at in [512, 515] {
                    bytes[at] ^= 1;
                    assert_eq!(unpack(&bytes[512..], form), None);
                    bytes[at] ^= 1;
                }
                assert_eq!(unpack(&[], form), None);
            }
        }
    }
}
