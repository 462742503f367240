// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A row: an operation, timed once or counted once.
//!
//! Invariant: the clock runs during the operation alone, and its result is checked before the figure is returned.

use std::rc::Rc;

use serde::Serialize;
use twofold_stage2::Granule;

use super::arena::Arena;
use super::guest::{End, Failure, GIB, GuestTables, Start, block, geometry};
use super::platform::Counts;
use crate::clock::Moment;

/// An operation, with the tables it starts from and those it must leave.
pub struct Row<G: Granule> {
    /// Its name. That of an operation on blocks has their size in it.
    pub name: &'static str,
    /// The unit of its figures.
    pub unit: Unit,
    /// The tables before the operation.
    pub start: Start,
    /// The tables that the operation must leave.
    pub end: End,
    /// Runs the operation.
    pub timed: fn(&mut GuestTables<G, false>) -> Result<(), Failure>,
    /// Runs the operation on a platform that counts.
    pub counted: fn(&mut GuestTables<G, true>) -> Result<(), Failure>,
}

/// Makes the row of a function, with the function's name or another. `G` is the granule.
macro_rules! row {
    ($function:ident, $unit:expr, $start:expr, $end:expr) => {
        row!($function as stringify!($function), $unit, $start, $end)
    };
    ($function:ident as $name:expr, $unit:expr, $start:expr, $end:expr) => {
        Row {
            name: $name,
            unit: $unit,
            start: $start,
            end: $end,
            timed: $function::<G, false>,
            counted: $function::<G, true>,
        }
    };
}
pub(super) use row;

/// Makes a name with the size of a block of level 2 in it. `G` is the granule.
macro_rules! sized {
    ($before:literal $(, $after:literal)?) => {
        match G::SHIFT {
            12 => concat!($before, "2m" $(, $after)?),
            14 => concat!($before, "32m" $(, $after)?),
            _ => concat!($before, "512m" $(, $after)?),
        }
    };
}
pub(super) use sized;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// A page table entry of level 3.
    #[serde(rename = "ns/pte")]
    Page,
    /// A block of level 2.
    #[serde(rename = "ns/block")]
    Block,
    /// A block of level 1, which has 1 GiB with pages of 4 KiB.
    #[serde(rename = "ns/block")]
    Gib,
}

impl Unit {
    /// Returns its name, as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Page => "ns/pte",
            Self::Block | Self::Gib => "ns/block",
        }
    }

    /// Returns how many of these units a guest of `size` bytes has.
    pub fn count<G: Granule>(self, size: u64) -> u64 {
        match self {
            Self::Page => size / G::SIZE,
            Self::Block => size / block::<G>(),
            Self::Gib => size / GIB,
        }
    }
}

/// Events per unit; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerUnit {
    /// TLB invalidations.
    pub tlbi: Option<f64>,
    /// Data synchronization barriers.
    pub dsb: Option<f64>,
    /// Data cache lines cleaned to the point of coherency.
    pub lines_cleaned: Option<f64>,
    /// Table pages taken, plus those given back.
    pub tables: Option<f64>,
    /// Atomic read-modify-writes.
    pub atomics: Option<f64>,
}

impl<G: Granule> Row<G> {
    /// Returns whether the granule has the blocks that the operation starts from and those that it makes.
    pub fn exists(&self) -> bool {
        let levels = [self.start.level(), self.end.level()];
        geometry::<G>().is_ok_and(|geometry| levels.iter().all(|level| *level >= geometry.largest_block()))
    }

    /// Runs the operation once; returns nanoseconds per unit.
    pub fn time(&self, arena: Arena, size: u64) -> Result<f64, Failure> {
        let mut guest = GuestTables::new(arena, Rc::default(), size, self.start)?;
        let start = Moment::now();
        operate(self.timed, &mut guest)?;
        let elapsed = start.elapsed();
        guest.check(self.end)?;
        Ok(elapsed / self.unit.count::<G>(size) as f64)
    }

    /// Runs the operation once; returns the events per unit.
    pub fn count(&self, arena: Arena, size: u64) -> Result<PerUnit, Failure> {
        let counts = Rc::new(Counts::default());
        let mut guest = GuestTables::new(arena, Rc::clone(&counts), size, self.start)?;
        counts.reset();
        operate(self.counted, &mut guest)?;
        let per_unit = |count: u64| Some(count as f64 / self.unit.count::<G>(size) as f64);
        let result = PerUnit {
            tlbi: per_unit(counts.tlbi.get()),
            dsb: per_unit(counts.dsb.get()),
            lines_cleaned: per_unit(counts.lines_cleaned.get()),
            tables: per_unit(guest.tables_turned_over()),
            atomics: per_unit(counts.atomics.get()),
        };
        guest.check(self.end)?;
        Ok(result)
    }
}

/// Runs the operation and nothing else. Not inlined, so that callgrind, which is given this function's name, counts the
/// operation's instructions alone.
#[inline(never)]
fn operate<G: Granule, const COUNT: bool>(
    operation: fn(&mut GuestTables<G, COUNT>) -> Result<(), Failure>,
    guest: &mut GuestTables<G, COUNT>,
) -> Result<(), Failure> {
    operation(guest)
}
