// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many entries a walk reads if everything is already split. That is what a split costs if it has to look at every
//! entry (Bras 2026).

use std::ops::ControlFlow;
use std::rc::Rc;

use serde::Serialize;
use twofold_stage2::walk::{Entry, Visitor};
use twofold_stage2::{Access, Attributes, Granule, Level, Levels};

use super::arena::Arena;
use super::guest::{End, Failure, GIB, GuestTables, Start, geometry};

/// Visits of one walk over all of a guest's memory. A walk visits every entry that it reads once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Visits {
    /// The walk visits entries of every level.
    pub every_level: u64,
    /// The walk skips entries of level 3, which are always leaves.
    pub leaves_skipped: u64,
}

impl Visits {
    /// Counts the visits in blocks of the granule's largest size that were split to pages.
    pub fn count<G: Granule>(arena: Arena, size: u64) -> Result<Self, Failure> {
        let start = Start::Blocks(geometry::<G>()?.largest_block(), WRITABLE);
        let mut guest = GuestTables::<G, false>::new(arena, Rc::default(), size, start)?;
        let range = guest.range();
        let (stage2, pool) = guest.parts()?;
        let _ = stage2.split(range.clone(), GIB, pool, |_, _| ControlFlow::Continue(()))?;
        let (mut every, mut skipping) = (Every(0), Skipping(0));
        stage2.walk(range.clone(), &mut every)?;
        stage2.walk(range, &mut skipping)?;
        guest.check(End::Pages(WRITABLE))?;
        Ok(Self { every_level: every.0, leaves_skipped: skipping.0 })
    }
}

const WRITABLE: Attributes = Attributes::ram(Access::READ_WRITE);

/// Counts every entry.
struct Every(u64);

impl<G: Granule> Visitor<G> for Every {
    const TABLE_BEFORE: bool = true;
    type Error = Failure;

    fn leaf(&mut self, _: &Entry<G>) -> Result<(), Failure> {
        self.0 += 1;
        Ok(())
    }

    fn table_before(&mut self, _: &Entry<G>) -> Result<(), Failure> {
        self.0 += 1;
        Ok(())
    }
}

/// Counts every entry above level 3.
struct Skipping(u64);

impl<G: Granule> Visitor<G> for Skipping {
    const TABLE_BEFORE: bool = true;
    const SKIP: Levels = Levels::NONE.with(Level::L3);
    type Error = Failure;

    fn leaf(&mut self, _: &Entry<G>) -> Result<(), Failure> {
        self.0 += 1;
        Ok(())
    }

    fn table_before(&mut self, _: &Entry<G>) -> Result<(), Failure> {
        self.0 += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::arena;
    use super::*;
    use twofold_stage2::{Kib4, Kib16, Kib64};

    #[test]
    fn every_entry_is_visited_once() {
        fn visits<G: Granule>() -> (u64, u64) {
            let visits = Visits::count::<G>(arena::<G>(2 * GIB).unwrap(), 2 * GIB).unwrap();
            (visits.every_level, visits.leaves_skipped)
        }
        assert_eq!(visits::<Kib4>(), (2 * (512 * 512 + 512 + 1), 2 * (512 + 1)));
        // One entry of level 1 covers all of it.
        assert_eq!(visits::<Kib16>(), (64 * 2048 + 64 + 1, 64 + 1));
        // The root is at level 2.
        assert_eq!(visits::<Kib64>(), (4 * 8192 + 4, 4));
    }
}
