// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A checked run in lines, for who compares it with another program's: which pages were dirty, and what was counted.
//!
//! Invariant: no line tells a time: a run that is checked is not one of those that are timed.

use super::Run;
use crate::experiment::target::Taken;
use crate::results::Quantity;

/// A dirty log, as far as two of them are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Pages that it is of.
    pub pages: u64,
    /// Pages that were dirty.
    pub dirty: u64,
    /// FNV-1a, 64 bits, of its bytes as a bitmap: the first page is the lowest bit, and there are words of 64. With one slot it
    /// is the bitmap that KVM gives.
    pub sum: u64,
}

impl Digest {
    /// Of a log with `pages` pages that told of these.
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

/// Each phase by its name, and each get with what it told: `get 2: pages=16384 dirty=16384 sum=f024277fb3c50b25
/// instructions=1831`. Where nothing counts instructions, the gets alone.
pub fn lines(run: &Run) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |phase: String, told: Option<&Digest>, taken: &Taken| {
        let told = told.map(|Digest { pages, dirty, sum }| format!(" pages={pages} dirty={dirty} sum={sum:016x}"));
        let counted = taken.get(&Quantity::Instructions).map(|count| format!(" instructions={count:.0}"));
        let words: String = told.into_iter().chain(counted).collect();
        if !words.is_empty() {
            lines.push(format!("{phase}:{words}"));
        }
    };
    line("populate".to_owned(), None, &run.populate);
    line("enable".to_owned(), None, &run.enable);
    for (number, round) in (1..).zip(&run.iterations) {
        line(format!("dirty {number}"), None, &round.dirty);
        line(format!("get {number}"), round.told.as_ref(), &round.get);
        if let Some(clear) = &round.clear {
            line(format!("clear {number}"), None, clear);
        }
    }
    line("disable".to_owned(), None, &run.disable);
    lines
}

/// Fowler, Noll and Vo's, for 64 bits.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::dirty_log::Iteration;

    #[test]
    fn a_digest_is_that_of_kvms_bitmap() {
        let all: Vec<u64> = (0..16384).collect();
        // As peers/kvm/count.c made it of what KVM gave.
        assert_eq!(Digest::of(16384, &all), Digest { pages: 16384, dirty: 16384, sum: 0xf024_277f_b3c5_0b25 });
        // FNV-1a of no byte, and of eight: 0x80 is the fourth page's byte's last bit.
        assert_eq!(Digest::of(0, &[]).sum, FNV_OFFSET);
        let eight = [1_u8, 0, 0, 0x80, 0, 0, 0, 0];
        let sum = eight.iter().fold(FNV_OFFSET, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
        assert_eq!(Digest::of(40, &[31, 0, 40]), Digest { pages: 40, dirty: 2, sum });
        assert_ne!(Digest::of(64, &[1]), Digest::of(64, &[2]));
    }

    #[test]
    fn lines_tell_what_was_counted_and_no_time() {
        let taken = |count| Taken::from([(Quantity::Instructions, count), (Quantity::Time, 5.0)]);
        let told = Some(Digest { pages: 64, dirty: 3, sum: 0xff });
        let round =
            |clear: Option<f64>| Iteration { dirty: taken(3.0), get: taken(4.0), clear: clear.map(taken), told };
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
        let uncounted = Run { iterations: vec![Iteration { told, ..Iteration::default() }], ..Run::default() };
        assert_eq!(lines(&uncounted), ["get 1: pages=64 dirty=3 sum=00000000000000ff"]);
    }
}
