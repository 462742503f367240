// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of a range of memory, for instructions that take one line each.

/// The number of lines of `line` bytes in `size` bytes. `line` is a power of two ([`Stage2::new`](crate::Stage2::new)), so
/// this is a shift: a division would come with a path that panics, for a line of 0 bytes.
#[inline(always)]
pub(crate) fn lines_in(size: u64, line: u64) -> u64 {
    size >> line.trailing_zeros()
}

/// Calls `operation` with the address of each line of `line` bytes in the `size` bytes from `start`.
#[inline(always)]
pub(crate) fn each_line(start: usize, size: u64, line: u64, operation: impl Fn(usize)) {
    let (lines, line) = (lines_in(size, line) as usize, line as usize);
    let mut at = start;
    let mut one = || {
        operation(at);
        at += line;
    };
    let mut four = || {
        one();
        one();
        one();
        one();
    };
    // Unrolled: a test for the end at each line would be most of the work.
    for _ in 0..lines / 16 {
        four();
        four();
        four();
        four();
    }
    for _ in 0..lines % 16 {
        one();
    }
}
