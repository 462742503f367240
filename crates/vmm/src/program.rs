// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program for a fixed address, in the place of a kernel. The launcher makes it from an ELF file.

use twofold_abi::bundle::{self, ALIGN, PROGRAM_MAGIC};
use zerocopy::FromBytes;

/// Such a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program<'a> {
    /// The guest physical address of its first byte.
    pub load: u64,
    /// The guest physical address at which it starts.
    pub entry: u64,
    /// What is loaded.
    pub bytes: &'a [u8],
}

impl<'a> Program<'a> {
    /// The program, if the kernel of a bundle is one.
    #[must_use]
    pub fn of(kernel: &'a [u8]) -> Option<Self> {
        let (head, _) = bundle::Program::ref_from_prefix(kernel).ok()?;
        let bytes = kernel.get(ALIGN as usize..)?;
        let is_one = head.magic == PROGRAM_MAGIC;
        is_one.then_some(Self { load: head.load.get(), entry: head.entry.get(), bytes })
    }

    /// Whether it starts within its own bytes.
    #[must_use]
    pub fn has_entry(&self) -> bool {
        self.entry.checked_sub(self.load).is_some_and(|at| at < self.bytes.len() as u64)
    }
}
