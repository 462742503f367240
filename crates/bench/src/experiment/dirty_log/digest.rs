// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A checked run as lines that can be compared with another program's: the dirty pages and the counts.
//!
//! Invariant: no line has a time, because a checked run is not timed.

use super::Run;
use crate::experiment::target::Taken;
use crate::results::Quantity;

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

/// A line for each phase; a get has the digest of its pages: `get 2: pages=16384 dirty=16384 sum=f024277fb3c50b25
/// instructions=1831`. If instructions are not counted, there are lines for the gets only.
pub fn lines(run: &Run) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |phase: String, reported: Option<&Digest>, taken: &Taken| {
        let reported =
            reported.map(|Digest { pages, dirty, sum }| format!(" pages={pages} dirty={dirty} sum={sum:016x}"));
        let counted = taken.get(&Quantity::Instructions).map(|count| format!(" instructions={count:.0}"));
        let words: String = reported.into_iter().chain(counted).collect();
        if !words.is_empty() {
            lines.push(format!("{phase}:{words}"));
        }
    };
    line("populate".to_owned(), None, &run.populate);
    line("enable".to_owned(), None, &run.enable);
    for (number, round) in (1..).zip(&run.iterations) {
        line(format!("dirty {number}"), None, &round.dirty);
        line(format!("get {number}"), round.reported.as_ref(), &round.get);
        if let Some(clear) = &round.clear {
            line(format!("clear {number}"), None, clear);
        }
    }
    line("disable".to_owned(), None, &run.disable);
    lines
}

/// The 64-bit constants of Fowler, Noll and Vo.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::dirty_log::Iteration;

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

    #[test]
    fn lines_tell_what_was_counted_and_no_time() {
        let taken = |count| Taken::from([(Quantity::Instructions, count), (Quantity::Time, 5.0)]);
        let reported = Some(Digest { pages: 64, dirty: 3, sum: 0xff });
        let round =
            |clear: Option<f64>| Iteration { dirty: taken(3.0), get: taken(4.0), clear: clear.map(taken), reported };
        let iterations = vec![round(Some(5.0)), round(None)];
        let run = Run { populate: taken(1e9), enable: taken(2.0), iterations, disable: taken(0.0) };
        let get = "pages=64 dirty=3 sum=00000000000000ff instructions=4";
        let expected = [
            "populate: instructions=1000000000",
            "enable: instructions=2",
            "dirty 1: instructions=3",
            &format!("get 1: {get}"),
            "clear 1: instructions=5",
            "dirty 2: instructions=3",
            &format!("get 2: {get}"),
            "disable: instructions=0",
        ];
        assert_eq!(lines(&run), expected);
        let uncounted = Run { iterations: vec![Iteration { reported, ..Iteration::default() }], ..Run::default() };
        assert_eq!(lines(&uncounted), ["get 1: pages=64 dirty=3 sum=00000000000000ff"]);
    }
}
