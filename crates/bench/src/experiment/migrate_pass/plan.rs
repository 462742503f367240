// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `twofold bench migrate-pass`.
//!
//! Invariant: a guest that does not fit into this machine is refused before anything is set up.

use anyhow::ensure;

use crate::machine;
use crate::options::MigratePassOptions;
use crate::readable;
use crate::report::Files;

/// What to measure, and which files to write.
#[derive(Debug)]
pub struct Plan {
    /// Bytes of the guest, whole parts.
    pub bytes: u64,
    /// Bytes of a part, over which a stage and its library take turns.
    pub part: u64,
    /// How often a guest is moved on the host's clock.
    pub moves: u32,
    /// The guest that is moved, if one is.
    pub moving: Option<Box<Plan>>,
    /// The output files.
    pub files: Files,
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The guest does not fit here, or a file cannot be written.
    pub fn of(options: &MigratePassOptions) -> anyhow::Result<Self> {
        let typed = options.memory.0;
        ensure!((LEAST..=MOST).contains(&typed), "--memory {typed}: a guest has 8 MiB to {}", readable::bytes(MOST));
        let part = (typed / LEAST_PARTS).next_multiple_of(BLOCK).min(PART);
        let files = Files::check(&options.output)?;
        let (moves, moving) =
            (options.moves, Self { bytes: MOVING, part: PART, moves: 0, moving: None, files: Files::default() });
        let moving = (moves > 0).then(|| Box::new(moving));
        let plan = Self { bytes: typed.next_multiple_of(part), part, moves, moving, files };
        let (needed, free) = (plan.machine_bytes() + 4 * part, machine::memory("MemAvailable:"));
        ensure!(
            free.is_none_or(|free| needed <= free),
            "--memory {} needs {} MiB of this machine's memory, of which {} MiB are free: use a smaller guest",
            readable::bytes(typed),
            needed >> 20,
            free.unwrap_or(0) >> 20
        );
        Ok(plan)
    }

    /// The number of parts.
    pub fn parts(&self) -> u64 {
        self.bytes / self.part
    }

    /// The number of single measurements, and the filling.
    pub fn steps(&self) -> u64 {
        1 + self.parts() + 2 * u64::from(self.moves)
    }

    /// Bytes of the machine's memory: the guest's, and a few tables.
    pub fn machine_bytes(&self) -> u64 {
        self.bytes + SPARE
    }
}

const BLOCK: u64 = 2 << 20;
/// A part is larger than the last-level caches of most hosts, so that each stage reads it from memory.
const PART: u64 = 64 << 20;
/// As many parts as an interval needs, in a small guest too.
const LEAST_PARTS: u64 = 4;
/// The guest of the claim that `migrate-model` has.
const MOVING: u64 = 256 << 20;
const LEAST: u64 = LEAST_PARTS * BLOCK;
const MOST: u64 = 64 << 30;
const SPARE: u64 = 8 << 20;
