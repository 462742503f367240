// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A row: an operation, timed once or counted once.
//!
//! Invariant: the clock runs for the operation alone, and its outcome is checked before the figure is given out.

use std::rc::Rc;

use serde::Serialize;

use super::arena::Arena;
use super::guest::{BLOCK, End, Failure, GIB, Guest, PAGE, Start};
use super::platform::Counts;
use crate::clock::Moment;

/// An operation with what it starts from and what it has to lead to.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What its figures are per.
    pub unit: Unit,
    /// What is in the tables before.
    pub start: Start,
    /// What has to be in them after.
    pub end: End,
    /// Does it.
    pub timed: fn(&mut Guest<false>) -> Result<(), Failure>,
    /// Does it on a platform that counts.
    pub counted: fn(&mut Guest<true>) -> Result<(), Failure>,
}

/// The row of the function of that name.
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

/// What a figure is per.
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
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Page => "ns/pte",
            Self::Block | Self::Gib => "ns/block",
        }
    }

    /// How many of them a guest of `size` bytes has.
    pub fn count(self, size: u64) -> u64 {
        match self {
            Self::Page => size / PAGE,
            Self::Block => size / BLOCK,
            Self::Gib => size / GIB,
        }
    }
}

/// Events per unit; `None` where nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerUnit {
    /// TLB invalidations.
    pub tlbi: Option<f64>,
    /// Data synchronization barriers.
    pub dsb: Option<f64>,
    /// Data cache lines cleaned to the point of coherency.
    pub lines_cleaned: Option<f64>,
    /// Table pages taken, and given back.
    pub tables: Option<f64>,
    /// Atomic read-modify-writes.
    pub atomics: Option<f64>,
}

impl Row {
    /// Does it once; nanoseconds per unit.
    pub fn time(&self, arena: Arena, size: u64) -> Result<f64, Failure> {
        let mut guest = Guest::new(arena, Rc::default(), size, self.start)?;
        let start = Moment::now();
        (self.timed)(&mut guest)?;
        let elapsed = start.elapsed();
        guest.check(self.end)?;
        Ok(elapsed / self.unit.count(size) as f64)
    }

    /// Does it once, and counts.
    pub fn count(&self, arena: Arena, size: u64) -> Result<PerUnit, Failure> {
        let counts = Rc::new(Counts::default());
        let mut guest = Guest::new(arena, Rc::clone(&counts), size, self.start)?;
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
