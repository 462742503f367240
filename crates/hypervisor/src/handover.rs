// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a boot loader hands over beside the device tree.
//!
//! Only EFI does: its memory map, not the tree, says which memory the firmware keeps for itself, and its volumes have the
//! bundle. Invariant: `usable` holds only memory that is free once the boot services have ended.

use core::ops::Range;

use arrayvec::ArrayVec;

/// The most ranges of usable memory.
pub const MAX_USABLE: usize = 64;

/// What EFI handed over. Ranges are physical addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// The bundle.
    pub bundle: Range<u64>,
    /// The memory that the firmware does not keep: in no order, without overlaps.
    usable: ArrayVec<Range<u64>, MAX_USABLE>,
}

/// The memory has too many pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Handover {
    /// A handover of this bundle, without memory.
    #[must_use]
    pub fn new(bundle: Range<u64>) -> Self {
        Self { bundle, usable: ArrayVec::new() }
    }

    /// Adds usable memory. Ranges that touch become one.
    ///
    /// # Errors
    /// The list is full.
    pub fn add(&mut self, mut range: Range<u64>) -> Result<(), TooMany> {
        while let Some(next) = self.usable.iter().position(|other| other.end >= range.start && other.start <= range.end)
        {
            let other = self.usable.swap_remove(next);
            range = range.start.min(other.start)..range.end.max(other.end);
        }
        self.usable.try_push(range).map_err(|_| TooMany)
    }

    /// The parts of `ram` that the firmware keeps, in ascending order.
    pub fn kept(&self, ram: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = ram.start;
        core::iter::from_fn(move || {
            // Ranges do not touch each other, so at most one contains `at`, and none contains its end.
            if let Some(usable) = self.usable.iter().find(|usable| usable.contains(&at)) {
                at = usable.end;
            }
            if at >= ram.end {
                return None;
            }
            let next = self.usable.iter().map(|usable| usable.start).filter(|start| *start > at).min();
            let kept = at..next.unwrap_or(ram.end).min(ram.end);
            at = kept.end;
            Some(kept)
        })
    }
}
