// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A row: an operation, timed once or counted once.
//!
//! Invariant: the clock runs during the operation alone, and its result is checked before the figure is returned.

use std::rc::Rc;

use serde::Serialize;

use super::arena::Arena;
use super::guest::{BLOCK, End, Failure, GIB, GuestTables, PAGE, Start};
use super::platform::Counts;
use crate::clock::Moment;

/// An operation, with the tables it starts from and those it must leave.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The unit of its figures.
    pub unit: Unit,
    /// The tables before the operation.
    pub start: Start,
    /// The tables that the operation must leave.
    pub end: End,
    /// Runs the operation.
    pub timed: fn(&mut GuestTables<false>) -> Result<(), Failure>,
    /// Runs the operation on a platform that counts.
    pub counted: fn(&mut GuestTables<true>) -> Result<(), Failure>,
}

/// Makes the row of the function of that name.
macro_rules! row {
    ($name:ident, $unit:expr, $start:expr, $end:expr) => {
        Row {
            name: stringify!($name),
            unit: $unit,
            start: $start,
            end: $end,
            timed: $name::<false>,
            counted: $name::<true>,
        }
    };
}
pub(super) use row;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// A page table entry of level 3.
    #[serde(rename = "ns/pte")]
    Page,
    /// A block of 2 MiB.
    #[serde(rename = "ns/block")]
    Block,
    /// A block of 1 GiB.
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
    pub fn count(self, size: u64) -> u64 {
        match self {
            Self::Page => size / PAGE,
            Self::Block => size / BLOCK,
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

impl Row {
    /// Runs the operation once; returns nanoseconds per unit.
    pub fn time(&self, arena: Arena, size: u64) -> Result<f64, Failure> {
        let mut guest = GuestTables::new(arena, Rc::default(), size, self.start)?;
        let start = Moment::now();
        (self.timed)(&mut guest)?;
        let elapsed = start.elapsed();
        guest.check(self.end)?;
        Ok(elapsed / self.unit.count(size) as f64)
    }

    /// Runs the operation once; returns the events per unit.
    pub fn count(&self, arena: Arena, size: u64) -> Result<PerUnit, Failure> {
        let counts = Rc::new(Counts::default());
        let mut guest = GuestTables::new(arena, Rc::clone(&counts), size, self.start)?;
        counts.reset();
        (self.counted)(&mut guest)?;
        let per_unit = |count: u64| Some(count as f64 / self.unit.count(size) as f64);
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
