// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of operations that had an effect, by operation, size of leaf, and whether hardware records writes in it.

use std::fmt;

use super::operation::Kind;

/// The columns are the sizes of leaf, 1 GiB, 2 MiB and 4 KiB, each without and with DBM.
#[derive(Default)]
pub struct Counts {
    effects: [[u64; 6]; Kind::ALL.len()],
    pub loads: u64,
    pub stores: u64,
    pub fetches: u64,
    pub faults: u64,
    /// Mappings that were refused, since memory was withdrawn meanwhile.
    pub withdrawn: u64,
    /// Contiguous groups that were mapped where nothing was, and of leaves that were there.
    pub groups: u64,
    pub joined: u64,
}

impl Counts {
    pub fn effect(&mut self, kind: Kind, level: u8, dirty_by_hardware: bool) {
        self.effects[kind as usize][usize::from(level - 1) * 2 + usize::from(dirty_by_hardware)] += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, other) in self.effects.iter_mut().flatten().zip(other.effects.iter().flatten()) {
            *mine += other;
        }
        self.loads += other.loads;
        self.stores += other.stores;
        self.fetches += other.fetches;
        self.faults += other.faults;
        self.withdrawn += other.withdrawn;
        self.groups += other.groups;
        self.joined += other.joined;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "with effect{:19}1G    1G DBM        2M    2M DBM        4K    4K DBM", "")?;
        let mut least = u64::MAX;
        for (kind, effects) in Kind::ALL.iter().zip(&self.effects) {
            if *kind == Kind::MapGroup && self.groups + self.joined == 0 {
                continue;
            }
            write!(f, "{:<22}", format!("{kind:?}"))?;
            for (at, effects) in effects.iter().enumerate() {
                if kind.applies(at as u8 / 2 + 1, at % 2 == 1) {
                    least = least.min(*effects);
                    write!(f, "{effects:>10}")?;
                } else {
                    write!(f, "{:>10}", "-")?;
                }
            }
            writeln!(f)?;
        }
        writeln!(f, "least: {least}")?;
        let Self { loads, stores, fetches, faults, withdrawn, groups, joined, .. } = self;
        writeln!(f, "guests: {loads} loads, {stores} stores, {fetches} fetches, {faults} faults")?;
        write!(f, "mappings refused: {withdrawn}; groups: {groups} mapped, {joined} joined")
    }
}
