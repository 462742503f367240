// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether what records say of their tables is so: for checked builds, while nobody changes anything.

use crate::platform::Platform;
use crate::record::Counts;
use crate::table::Table;
use crate::{Descriptor, Level, Pa, Stage2};

/// A table whose record is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of the table of level {level} at {table} has {kept:#x}, and what is in it counts for {found:#x}")]
pub struct Miscounted {
    /// The table.
    pub table: Pa,
    /// Its level.
    pub level: Level,
    /// The record's word.
    pub kept: u64,
    /// What it should be.
    pub found: u64,
}

impl<P: Platform> Stage2<P> {
    /// Compares each table with its record, and returns how many tables there are, without the root. Nobody may be
    /// changing the tree.
    ///
    /// # Errors
    ///
    /// The first whose lock is taken, in which an entry is busy, or whose counts are others.
    pub fn audit(&self) -> Result<u64, Miscounted> {
        self.audit_table(self.root(), self.geometry().root_level())
    }

    fn audit_table(&self, table: Table<'_>, level: Level) -> Result<u64, Miscounted> {
        let mut counts = Counts::EMPTY;
        let mut below = 0;
        for index in 0..table.len() {
            let entry = table.entry(index).look();
            if entry == Descriptor::BUSY {
                counts += Counts::BUSY;
            } else {
                counts += Counts::of(entry, level);
            }
            if let (Some(child), true) = (level.below(), entry.is_table(level)) {
                below += 1 + self.audit_table(self.table(entry), child)?;
            }
        }
        let kept = self.platform().record(table.pa()).word();
        if kept == counts.raw() && counts.busy() == 0 {
            return Ok(below);
        }
        Err(Miscounted { table: table.pa(), level, kept, found: counts.raw() })
    }
}
