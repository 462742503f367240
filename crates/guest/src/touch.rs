// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `touch=SIZE`: first touches, and nothing else.
//!
//! The program writes one word in each page, in order. Between the first and the last touch it reaches no other fresh
//! memory, so a hypervisor's counts in between are the cost of these touches.

use crate::memory::{self, Memory, PAGE};
use crate::uart::println;

/// Why [`run`] failed.
#[derive(Debug, thiserror::Error)]
#[error("{wanted} bytes to touch, but only {free} bytes of RAM are free")]
pub struct Failure {
    wanted: u64,
    free: u64,
}

/// Touches `bytes` of free RAM, rounded up to whole pages.
pub fn run(memory: &Memory, bytes: u64) -> Result<(), Failure> {
    let free = memory.free_bytes();
    if bytes > free {
        return Err(Failure { wanted: bytes, free });
    }
    let pages = bytes.div_ceil(PAGE);
    let mut left = pages;
    for range in memory.free() {
        let count = left.min((range.end - range.start) / PAGE);
        let mut page = range.start;
        let end = page + count * PAGE;
        while page < end {
            // SAFETY: the first word of a page of a free range.
            unsafe { memory::write(page, page) };
            page += PAGE;
        }
        left -= count;
    }
    println!("touched {pages} pages");
    Ok(())
}
