// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes in words, the same in every table, plot and sentence: `86 % less time`, `12 % more time`.
//!
//! Invariant: a change is that of a cost or a count from the baseline to the other figure, it names what it is a change
//! of, and it has no sign. From three times the baseline on, a percentage is hard to read: `85 times the time`.

use crate::results::{HeadlineRow, Quantity};
use crate::statistics::{Ratio, short};

/// What a change is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noun {
    name: &'static str,
    is_count: bool,
}

impl Noun {
    /// Time of any kind.
    pub const TIME: Self = Self { name: "time", is_count: false };
    /// Instructions, which are counted at EL2.
    pub const INSTRUCTIONS: Self = Self { name: "instructions", is_count: true };

    /// Work of a guest.
    pub const WORK: Self = Self { name: "work", is_count: false };

    /// The noun of a quantity.
    pub fn of(quantity: Quantity) -> Self {
        let name = match quantity {
            Quantity::Tlbi => "TLBIs",
            Quantity::Dsb => "DSBs",
            Quantity::LinesCleaned => "cleaned lines",
            other => other.name(),
        };
        Self { name, is_count: !matches!(quantity, Quantity::Time | Quantity::CpuTime | Quantity::Work) }
    }

    /// The noun of a row of the published numbers: time, unless the unit of ours is another.
    pub fn of_row(row: &HeadlineRow) -> Self {
        let others = [Self::INSTRUCTIONS, Self::WORK];
        others.into_iter().find(|other| other.name == row.unit).unwrap_or(Self::TIME)
    }

    /// Its name: `instructions`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Any saving of it: `less time`.
    pub fn saved(self) -> String {
        format!("{} {}", self.less(), self.name)
    }

    fn less(self) -> &'static str {
        if self.is_count { "fewer" } else { "less" }
    }
}

/// A change, with one decimal: `43.9 % less time`.
pub fn change(ratio: f64, of: Noun) -> String {
    worded(ratio, of, 1)
}

/// A change for a sentence: `44 % less time`; below ten percent with one decimal.
pub fn rounded(ratio: f64, of: Noun) -> String {
    worded(ratio, of, usize::from((ratio - 1.0).abs() < 0.0995)).replace(".0 %", " %")
}

/// The word between a [`rounded`] change and the baseline: `85 times the time of manual`, `9 % less time than manual`.
pub fn than(ratio: f64) -> &'static str {
    match ratio {
        _ if ratio >= MANY => "of",
        // Less is not shown: `the same time as manual`.
        _ if (ratio - 1.0).abs() < 0.0005 => "as",
        _ => "than",
    }
}

/// The ends of an interval: `42.0 to 45.2 % less`, `3.0 % less to 4.1 % more`.
pub fn interval(of: &Ratio, noun: Noun) -> String {
    if of.low == of.high {
        return part(of.low, noun, 1);
    }
    // The smaller change first; a range with one direction names it once.
    let (first, last) = if of.high <= 1.0 { (of.high, of.low) } else { (of.low, of.high) };
    let [one, other] = [first, last].map(|end| part(end, noun, 1));
    match one.split_once(' ') {
        Some((number, unit)) if other.ends_with(&format!(" {unit}")) => format!("{number} to {other}"),
        _ => format!("{one} to {other}"),
    }
}

fn worded(ratio: f64, of: Noun, decimals: usize) -> String {
    match part(ratio, of, decimals) {
        part if part == SAME => format!("the same {}", of.name),
        part if part.ends_with(TIMES) => format!("{part} the {}", of.name),
        part => format!("{part} {}", of.name),
    }
}

/// A change without its noun: `43.9 % less`, `85 times`.
pub fn part(ratio: f64, of: Noun, decimals: usize) -> String {
    if ratio >= MANY {
        return format!("{} {TIMES}", short(ratio));
    }
    let percent = (ratio - 1.0) * 100.0;
    // `100.0 % less` would be nothing at all.
    let decimals = if (0.0..0.001).contains(&ratio) && ratio > 0.0 { 3 } else { decimals };
    let shown = format!("{:.decimals$} %", percent.abs());
    match shown.trim_start_matches(['0', '.']) {
        " %" => SAME.to_owned(),
        _ if percent < 0.0 => format!("{shown} {}", of.less()),
        _ => format!("{shown} more"),
    }
}

const SAME: &str = "0 %";
const TIMES: &str = "times";
/// From this ratio on, a change is shown as a multiple.
const MANY: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Noun = Noun::TIME;
    const COUNT: Noun = Noun::INSTRUCTIONS;

    #[test]
    fn a_change_names_its_direction_and_what_it_is_of() {
        assert_eq!(change(0.149, TIME), "85.1 % less time");
        assert_eq!(change(1.12, TIME), "12.0 % more time");
        assert_eq!(change(0.091, COUNT), "90.9 % fewer instructions");
        assert_eq!(change(1.25, COUNT), "25.0 % more instructions");
        assert_eq!(change(1.0, TIME), "the same time");
        assert_eq!(change(0.9998, TIME), "the same time");
        assert_eq!(change(85.2, TIME), "85.2 times the time");
        assert_eq!(change(6914.9, TIME), "6915 times the time");
        assert_eq!(change(0.0004, TIME), "99.960 % less time");
        assert_eq!(change(0.0, COUNT), "100.0 % fewer instructions");
        assert_eq!(rounded(0.1149, TIME), "89 % less time");
        assert_eq!(rounded(0.921, TIME), "7.9 % less time");
        assert_eq!(rounded(0.9, TIME), "10 % less time");
        assert_eq!(rounded(1.05, TIME), "5 % more time");
        assert_eq!([0.5, 2.0, 85.0, 1.0004].map(than), ["than", "than", "of", "as"]);
        assert_eq!(rounded(1.0004, TIME), "the same time");
    }

    #[test]
    fn an_interval_goes_from_the_smaller_change_to_the_larger() {
        let of = |low, high| interval(&Ratio { median: (low + high) / 2.0, low, high }, TIME);
        assert_eq!(of(0.147, 0.152), "84.8 to 85.3 % less");
        assert_eq!(of(1.02, 1.1), "2.0 to 10.0 % more");
        assert_eq!(of(0.97, 1.041), "3.0 % less to 4.1 % more");
        assert_eq!(of(0.9, 0.9), "10.0 % less");
        assert_eq!(of(0.98, 1.0), "0 % to 2.0 % less");
        assert_eq!(of(80.0, 90.0), "80.0 to 90.0 times");
        assert_eq!(of(2.0, 4.0), "100.0 % more to 4.00 times");
    }

    #[test]
    fn quantities_have_nouns() {
        assert_eq!(change(0.5, Noun::of(Quantity::CpuTime)), "50.0 % less CPU time");
        assert_eq!(change(0.5, Noun::of(Quantity::Tlbi)), "50.0 % fewer TLBIs");
        assert_eq!(change(1.5, Noun::of(Quantity::Rate)), "50.0 % more accesses per second");
        assert_eq!(change(0.5, Noun::of(Quantity::Work)), "50.0 % less work");
        assert_eq!(change(0.5, Noun::of(Quantity::PagesBrought)), "50.0 % fewer pages brought");
    }
}
