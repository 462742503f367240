// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory whose log takes time to report pages. The guest runs meanwhile.

use std::time::Duration;

use twofold_migration::ram::{PageRead, RamError, SourceRam};
use twofold_migration::stream::Slot;

use crate::link::Virtual;

/// A memory whose `get` takes some nanoseconds for each memslot.
pub struct Slow<'v, 'g, M> {
    pub ram: M,
    pub clock: &'v Virtual<'g>,
    pub get: u64,
}

impl<M: SourceRam> SourceRam for Slow<'_, '_, M> {
    type Away = M::Away;

    fn slots(&self) -> &[Slot] {
        self.ram.slots()
    }

    fn page_shift(&self) -> u8 {
        self.ram.page_shift()
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        self.ram.start(all)
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        self.ram.get(slot, dirty)?;
        if self.get > 0 {
            self.clock.pass(self.get);
        }
        Ok(())
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        self.ram.clear(slot, first, pages)
    }

    fn stop(&self) {
        self.ram.stop();
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<M::Away>, RamError> {
        self.ram.read(slot, page, bytes)
    }

    fn patience(&self) -> Duration {
        self.ram.patience()
    }
}
