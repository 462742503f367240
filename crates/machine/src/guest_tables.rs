// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stage-1 tables of a guest mode ([`twofold_workload::stage1`]) in a guest's RAM, written by its loader.
//!
//! Invariant: pages are taken from the range in order, each once, and are zeroed.

use twofold_memory::{Error, GuestMemory};
use twofold_stage2::{Ipa, IpaRange, Platform};
use twofold_workload::stage1::{self, TableMemory};

use crate::program::Stage1Registers;

/// A part of a guest's RAM that is reserved for the guest's stage-1 tables.
pub struct TablesInRam<'a, H: Platform> {
    memory: &'a GuestMemory<H>,
    free: IpaRange,
}

impl<'a, H: Platform> TablesInRam<'a, H> {
    /// Takes tables from `range`, which is RAM with no other use. Bytes before the first address that is aligned to the
    /// granule are not used.
    pub fn new(memory: &'a GuestMemory<H>, range: IpaRange) -> Self {
        Self { memory, free: range }
    }
}

impl<H: Platform> TableMemory for TablesInRam<'_, H> {
    type Error = Error;

    fn take(&mut self, size: u64) -> Result<Option<u64>, Error> {
        const ZEROES: [u8; 4096] = [0; 4096];
        let Some(start) = self.free.start.raw().checked_next_multiple_of(size) else { return Ok(None) };
        if self.free.end.raw().checked_sub(start).is_none_or(|left| left < size) {
            return Ok(None);
        }
        for offset in (0..size).step_by(ZEROES.len()) {
            self.memory.write(Ipa::new(start + offset), &ZEROES)?;
        }
        self.free.start = Ipa::new(start + size);
        Ok(Some(start))
    }

    fn read(&mut self, ipa: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.memory.read(Ipa::new(ipa), &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), Error> {
        self.memory.write(Ipa::new(ipa), &entry.to_le_bytes())
    }
}

impl From<stage1::Registers> for Stage1Registers {
    fn from(registers: stage1::Registers) -> Self {
        let stage1::Registers { sctlr, tcr, ttbr0, mair } = registers;
        Self { sctlr, tcr, ttbr0, ttbr1: 0, mair }
    }
}
