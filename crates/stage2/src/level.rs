// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The levels of a translation.

use core::fmt;

/// A level of the translation: level 3 holds the pages, level 0 is the farthest from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// 512 GiB an entry with the 4 KiB granule. Only FEAT_LPA2 has blocks there.
    pub const L0: Self = Self(0);
    /// 1 GiB an entry with the 4 KiB granule.
    pub const L1: Self = Self(1);
    /// 2 MiB an entry with the 4 KiB granule.
    pub const L2: Self = Self(2);
    /// Pages.
    pub const L3: Self = Self(3);

    /// The level from its number; `None` above 3.
    pub const fn new(raw: u8) -> Option<Self> {
        if raw <= 3 { Some(Self(raw)) } else { None }
    }

    /// The root's level in a tree of this many levels: 1 to 4.
    pub(crate) const fn of_root(levels: u32) -> Self {
        Self((4 - levels) as u8)
    }

    /// Its number.
    pub const fn raw(self) -> u8 {
        self.0
    }

    /// The next level down, where a table of this level points; `None` at the pages.
    pub const fn below(self) -> Option<Self> {
        if self.0 < 3 { Some(Self(self.0 + 1)) } else { None }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of levels. The levels that a walk skips are known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// No level.
    pub const NONE: Self = Self(0);

    /// The set with `level` added.
    pub const fn with(self, level: Level) -> Self {
        Self(self.0 | 1 << level.0)
    }

    /// Whether `level` is in the set.
    pub const fn contains(self, level: Level) -> bool {
        self.0 & 1 << level.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_four_levels() {
        let levels = [Level::L0, Level::L1, Level::L2, Level::L3].map(Some);
        assert_eq!([0, 1, 2, 3].map(Level::new), levels);
        assert_eq!([4, 5, 255].map(Level::new), [None; 3]);
        assert_eq!(levels.map(|level| level.and_then(Level::below)), [levels[1], levels[2], levels[3], None]);
        let some = Levels::NONE.with(Level::L1).with(Level::L3);
        assert_eq!(levels.map(|level| level.is_some_and(|level| some.contains(level))), [false, true, false, true]);
    }
}
