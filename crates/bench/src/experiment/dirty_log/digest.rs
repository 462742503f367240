// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A digest of the pages that a log reported, which can be compared with another program's.

/// A digest of a dirty log, for comparison with another log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Pages that the log covers.
    pub pages: u64,
    /// Dirty pages.
    pub dirty: u64,
    /// 64-bit FNV-1a of the bitmap's bytes. The first page is the lowest bit of the first little-endian 64-bit word.
    /// With one memslot this is the bitmap that KVM returns.
    pub sum: u64,
}

impl Digest {
    /// The digest of a log that covers `pages` pages and reported the pages `dirty`.
    pub fn of(pages: u64, dirty: &[u64]) -> Self {
        let mut words = vec![0_u64; pages.div_ceil(64) as usize];
        for page in dirty.iter().filter(|page| **page < pages) {
            words[(page / 64) as usize] |= 1 << (page % 64);
        }
        let count = words.iter().map(|word| u64::from(word.count_ones())).sum();
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        let sum = bytes.fold(FNV_OFFSET, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        Self { pages, dirty: count, sum }
    }
}

/// The 64-bit constants of Fowler, Noll and Vo.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_kvms_bitmap() {
        let all: Vec<u64> = (0..16384).collect();
        // The sum that peers/kvm/count.c computes from KVM's bitmap.
        assert_eq!(Digest::of(16384, &all), Digest { pages: 16384, dirty: 16384, sum: 0xf024_277f_b3c5_0b25 });
        // FNV-1a of no byte, and of eight bytes: 0x80 in the fourth byte is page 31.
        assert_eq!(Digest::of(0, &[]).sum, FNV_OFFSET);
        let eight = [1_u8, 0, 0, 0x80, 0, 0, 0, 0];
        let sum = eight.iter().fold(FNV_OFFSET, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
        assert_eq!(Digest::of(40, &[31, 0, 40]), Digest { pages: 40, dirty: 2, sum });
        assert_ne!(Digest::of(64, &[1]), Digest::of(64, &[2]));
    }
}
