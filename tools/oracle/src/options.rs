// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options with which a log starts.

use twofold_memory::dirty::{LogOptions, Tracker};

use crate::random::Random;

/// Options for a log of this tracker, at random.
pub fn any(tracker: Tracker, random: &mut Random) -> LogOptions {
    LogOptions {
        tracker,
        all_dirty: tracker != Tracker::WriteProtect && random.once_in(2),
        chunk: [0, 4 << 10, 64 << 10, 2 << 20, 32 << 20][random.below(5) as usize],
        section: 8 << random.below(7),
    }
}
