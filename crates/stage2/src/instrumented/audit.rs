// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares each table with its metadata: for checked builds, while no operation is running.

use crate::counts::Counts;
use crate::platform::Platform;
use crate::table::Table;
use crate::{Descriptor, Granule, Level, Pa, Stage2};

/// A table whose counts differ from those in its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the metadata of the level {level} table at {table} is {kept:#x}, but the entries count as {found:#x}")]
pub struct Miscounted {
    /// The table.
    pub table: Pa,
    /// Its level.
    pub level: Level,
    /// The word in the metadata.
    pub kept: u64,
    /// The word for the entries that were found.
    pub found: u64,
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// How often a table was unlinked from the tree. A table and all tables below it count once.
    pub fn unlink_count(&self) -> u64 {
        self.sequence.unlinks()
    }

    /// Compares each table with its metadata, and returns the number of tables below the root. No CPU may be changing the
    /// tree.
    ///
    /// # Errors
    ///
    /// The first table that is locked, has a busy entry, or has other counts than its metadata.
    pub fn audit(&self) -> Result<u64, Miscounted> {
        self.audit_table(self.root(), self.geometry().root_level())
    }

    fn audit_table(&self, table: Table<'_, G>, level: Level) -> Result<u64, Miscounted> {
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
        let kept = self.platform().metadata(table.pa()).word();
        if kept == counts.raw() && counts.busy() == 0 {
            return Ok(below);
        }
        Err(Miscounted { table: table.pa(), level, kept, found: counts.raw() })
    }
}
