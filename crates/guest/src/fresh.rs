// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `secrets` and `fresh=MILLISECONDS`: a guest that leaves secrets in all of its RAM, and one that touches its RAM only after
//! this time, and must find nothing there.

use crate::memory::{self, Memory};
use crate::secret::secret;
use crate::uart::println;
use crate::vcpus;

/// Why [`run`] failed.
#[derive(Debug, thiserror::Error)]
#[error("the word at {address:#x} is {word:#x}, and was never written")]
pub struct Failure {
    address: u64,
    word: u64,
}

/// Fills free RAM with secrets.
pub fn fill(memory: &Memory) {
    let mut count = 0;
    for address in words(memory) {
        // SAFETY: a word of free RAM.
        unsafe { memory::write(address, secret(address / 8)) };
        count += 1;
    }
    println!("secrets: {count} words");
    println!("guest check: ok");
}

/// Waits until the counter has reached this time, and reads all free RAM.
pub fn run(memory: &Memory, milliseconds: u64) -> Result<(), Failure> {
    while vcpus::counter() < milliseconds * vcpus::frequency() / 1000 {
        core::hint::spin_loop();
    }
    let mut count = 0;
    for address in words(memory) {
        // SAFETY: a word of free RAM.
        let word = unsafe { memory::read(address) };
        if word != 0 {
            return Err(Failure { address, word });
        }
        count += 1;
    }
    println!("fresh: {count} words");
    println!("guest check: ok");
    Ok(())
}

fn words(memory: &Memory) -> impl Iterator<Item = u64> {
    memory.free().flat_map(|range| range.step_by(8))
}
