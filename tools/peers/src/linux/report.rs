// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The comparison of a peer's figures with ours, as a table and as JSON.

use anyhow::{Context, bail};
use serde_json::{Value, json};
use twofold_workspace::table;

use super::program::Programs;
use super::spread::Spread;
use super::targets::{Target, peer, reason, target};
use super::turns::{Answer, Counts};
use crate::difference::Difference;
use crate::source::{PACKAGE, Source};

/// A whole run.
pub struct Comparison<'a> {
    /// The rows of the table.
    pub rows: Vec<Compared>,
    /// The source of Linux's code.
    pub source: &'a Source,
    /// The programs built from it.
    pub programs: &'a Programs,
    /// Bytes of guest memory.
    pub size: u64,
    /// Runs of each operation on each side.
    pub runs: u32,
}

/// One operation on both sides; `None` for a side that does not have it.
pub struct Compared {
    /// The operation's name.
    pub name: &'static str,
    /// Linux's side.
    pub theirs: Option<Side>,
    /// Twofold's side.
    pub ours: Option<Side>,
    /// The time of reading the same bytes.
    pub limit: Option<Spread>,
}

/// One side's figures of one operation.
#[derive(Default)]
pub struct Side {
    unit: String,
    times: Vec<f64>,
    counts: Counts,
    huge_page_bytes: Option<u64>,
}

impl Side {
    /// Sets the counts and their unit.
    pub fn count(&mut self, answer: Answer) {
        self.unit = answer.unit;
        self.counts = answer.counts;
        self.huge_page_bytes = answer.huge_page_bytes;
    }

    /// Adds the time of a run.
    pub fn add(&mut self, answer: Answer) -> anyhow::Result<()> {
        self.times.push(answer.ns.context("an answer without a time")?);
        Ok(())
    }

    fn spread(&self) -> Option<Spread> {
        Spread::of(&self.times)
    }
}

impl Compared {
    /// Returns the existing sides, each with its program and with the operation's name in that program.
    pub fn sides<'a, T>(
        &'a mut self,
        theirs: &'a mut T,
        ours: &'a mut T,
    ) -> impl Iterator<Item = (&'a mut Side, &'a mut T, &'static str)> {
        let theirs = self.theirs.as_mut().zip(peer(self.name)).map(|(side, peer)| (side, theirs, peer));
        let ours = self.ours.as_mut().map(|side| (side, ours, self.name));
        theirs.into_iter().chain(ours)
    }

    /// Checks that both sides have the same unit: a ratio of time per block to time per entry would mean nothing.
    pub fn check_units(&self) -> anyhow::Result<()> {
        if let (Some(theirs), Some(ours)) = (&self.theirs, &self.ours)
            && theirs.unit != ours.unit
        {
            bail!("{}: Linux's figure is in {}, ours in {}", self.name, theirs.unit, ours.unit);
        }
        Ok(())
    }

    fn medians(&self) -> (Option<f64>, Option<f64>) {
        let median = |side: &Option<Side>| side.as_ref()?.spread().map(|spread| spread.median);
        (median(&self.theirs), median(&self.ours))
    }

    fn ratio(&self) -> Option<f64> {
        let (theirs, ours) = self.medians();
        Some(ours? / theirs?)
    }

    /// Returns our time and the most that meets the target.
    fn ours_and_most(&self) -> Option<(f64, f64)> {
        let (theirs, ours) = self.medians();
        Some((ours?, target(self.name)?.most(theirs, self.limit.map(|limit| limit.median))?))
    }

    fn reached(&self) -> Option<bool> {
        self.ours_and_most().map(|(ours, most)| ours <= most)
    }

    /// Says whether the target is met, and if not by how much our time exceeds it.
    fn verdict(&self) -> String {
        self.ours_and_most().map_or_else(dash, |(ours, most)| match ours <= most {
            true => "met".to_owned(),
            false => format!("missed by {:.1} %", Difference::of(ours, most).percent()),
        })
    }

    fn unit(&self) -> &str {
        self.theirs.as_ref().or(self.ours.as_ref()).map_or("-", |side| &side.unit)
    }

    fn cells(&self) -> Vec<String> {
        let (theirs, ours) = self.medians();
        let reference = match target(self.name) {
            Some(Target::Ratio(linux, reach)) if linux != reach => Some(linux),
            _ => None,
        };
        let range = |side: &Option<Side>| {
            let spread = side.as_ref().and_then(Side::spread);
            spread.map_or_else(dash, |spread| format!("{}-{}", nanoseconds(spread.min), nanoseconds(spread.max)))
        };
        vec![
            self.name.to_owned(),
            self.unit().to_owned(),
            theirs.map_or_else(dash, nanoseconds),
            range(&self.theirs),
            ours.map_or_else(dash, nanoseconds),
            range(&self.ours),
            theirs.zip(ours).map_or_else(dash, |(theirs, ours)| Difference::of(ours, theirs).to_string()),
            target(self.name).map_or_else(dash, Target::shown),
            self.verdict(),
            reference.map_or_else(dash, nanoseconds),
        ]
    }

    /// Returns a pair of cells for each kind of event: Linux's and ours.
    fn events(&self) -> Vec<String> {
        let of = |side: &Option<Side>| side.as_ref().map(|side| side.counts).unwrap_or_default();
        let (theirs, ours) = (of(&self.theirs), of(&self.ours));
        let pairs = [
            (theirs.tlbi, ours.tlbi),
            (theirs.dsb, ours.dsb),
            (theirs.lines_cleaned, ours.lines_cleaned),
            (theirs.tables, ours.tables),
            (theirs.atomics, ours.atomics),
        ];
        let pairs = pairs.into_iter().flat_map(|(theirs, ours)| [count(theirs), count(ours)]);
        std::iter::once(self.name.to_owned()).chain(pairs).collect()
    }

    /// Returns the events of which we have more, and the reason.
    fn note(&self) -> Option<String> {
        let (theirs, ours) = (self.theirs.as_ref()?.counts, self.ours.as_ref()?.counts);
        let events = [
            ("TLBI", theirs.tlbi, ours.tlbi),
            ("DSB", theirs.dsb, ours.dsb),
            ("lines", theirs.lines_cleaned, ours.lines_cleaned),
        ];
        let more = events.into_iter().filter(|(_, theirs, ours)| ours > theirs).map(|(name, ..)| name);
        let more: Vec<_> = more.collect();
        let why = reason(self.name).unwrap_or("no reason is known");
        (!more.is_empty()).then(|| format!("{}: more {}: {why}", self.name, more.join(", ")))
    }

    fn json(&self) -> Value {
        let side = |side: &Option<Side>| {
            side.as_ref().and_then(|side| {
                let mut value = serde_json::to_value(side.counts).ok()?;
                let spread = serde_json::to_value(side.spread()?).ok()?;
                value.as_object_mut()?.extend(spread.as_object()?.clone());
                Some(value)
            })
        };
        json!({
            "name": self.name,
            "unit": self.unit(),
            "note": self.note(),
            "linux": side(&self.theirs),
            "ours": side(&self.ours),
            "ratio": self.ratio(),
            "target": target(self.name).map(|target| match target {
                Target::Ratio(linux, reach) => json!({ "ratio": reach / linux }),
                Target::Nanoseconds(most) => json!({ "ns": most }),
                Target::Readings(times) => json!({ "readings": times }),
            }),
            "reached": self.reached(),
        })
    }
}

impl Comparison<'_> {
    /// Formats the tables.
    pub fn shown(&self) -> String {
        let times = table::with_numbers(
            &[
                "operation",
                "unit",
                "Linux",
                "min-max",
                "ours",
                "min-max",
                "our time",
                "target",
                "result",
                "Linux when the target was set",
            ],
            self.rows.iter().map(Compared::cells),
            2..,
        );
        let header = [
            "per entry or block",
            "TLBI Linux",
            "ours",
            "DSB Linux",
            "ours",
            "lines Linux",
            "ours",
            "tables Linux",
            "ours",
            "atomics Linux",
            "ours",
        ];
        let events = table::with_numbers(&header, self.rows.iter().map(Compared::events), 1..);
        let reading = self.rows.first().and_then(|row| row.limit);
        let reading = reading.map_or_else(dash, |limit| nanoseconds(limit.median));
        let huge =
            self.huge().map(|bytes| bytes.map_or_else(dash, |bytes| format!("{} MiB", bytes >> 20))).join(" and ");
        let reached = self.rows.iter().filter(|row| row.reached() == Some(true)).count();
        let with_target = self.rows.iter().filter(|row| row.reached().is_some()).count();
        let notes: String = self.rows.iter().filter_map(Compared::note).map(|note| format!("{note}.\n")).collect();
        format!(
            "{times}\n\n{events}\n\n{notes}\n\
             {reached} of {with_target} targets met; {} operations without a figure of ours.\n\
             Linux: pgtable.c of {PACKAGE} {}, unmodified, in user space, {}, -O2.\n\
             Both: {} GiB of guest memory in 4 KiB pages, {huge} in huge pages, one thread, its CPU time, operations in turn, medians of {}; TLBI, DSB and \
             cache operations are free and counted.\nReading the same bytes: {reading} ns/pte.",
            self.rows.len() - with_target,
            self.source.version,
            self.programs.compiler,
            self.size >> 30,
            self.runs,
        )
    }

    /// Returns the bytes that Linux's program and ours had in huge pages.
    fn huge(&self) -> [Option<u64>; 2] {
        let most = |side: fn(&Compared) -> &Option<Side>| {
            self.rows.iter().filter_map(|row| side(row).as_ref()?.huge_page_bytes).max()
        };
        [most(|row| &row.theirs), most(|row| &row.ours)]
    }

    /// Returns the comparison as JSON.
    pub fn json(&self) -> Value {
        let [linux_huge, our_huge] = self.huge();
        json!({
            "operations": self.rows.iter().map(Compared::json).collect::<Vec<_>>(),
            "limits": { "read": self.rows.first().and_then(|row| row.limit) },
            "configuration": {
                "package": PACKAGE,
                "package_version": self.source.version,
                "compiler": self.programs.compiler,
                "guest_bytes": self.size,
                "runs": self.runs,
                "huge_page_bytes": { "linux": linux_huge, "ours": our_huge },
            },
        })
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// Formats nanoseconds with three significant digits.
fn nanoseconds(value: f64) -> String {
    match value {
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a count: `-` if it is unknown, no fraction if it is an integer.
fn count(value: Option<f64>) -> String {
    match value {
        None => dash(),
        Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
        Some(value) if value < 1e-3 => format!("{value:.0e}"),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(times: &[f64]) -> Option<Side> {
        Some(Side { unit: "ns/pte".to_owned(), times: times.to_vec(), ..Side::default() })
    }

    #[test]
    fn a_row_without_ours_has_no_ratio() {
        let row = Compared { name: "map_range", theirs: side(&[16.0]), ours: None, limit: None };
        let value = row.json();
        assert_eq!((&value["ours"], &value["ratio"], &value["reached"]), (&Value::Null, &Value::Null, &Value::Null));
        assert_eq!(value["linux"]["median"], 16.0);
    }

    #[test]
    fn a_ratio_is_of_one_unit() {
        let blocks = |times| side(times).map(|side| Side { unit: "ns/block".to_owned(), ..side });
        let mut row = Compared { name: "coalesce_2m", theirs: blocks(&[4000.0]), ours: blocks(&[160.0]), limit: None };
        row.check_units().unwrap();
        assert_eq!((row.unit(), row.reached()), ("ns/block", Some(true)));
        row.ours = side(&[0.3]);
        assert!(row.check_units().unwrap_err().to_string().contains("ns/block, ours in ns/pte"));
        row.ours = None;
        row.check_units().unwrap();
    }

    #[test]
    fn a_ratio_is_of_medians() {
        let row = Compared {
            name: "map_pages",
            theirs: side(&[40.0, 50.0, 90.0]),
            ours: side(&[9.0, 10.0, 90.0]),
            limit: None,
        };
        assert_eq!((row.ratio(), row.reached()), (Some(0.2), Some(true)));
        assert_eq!(row.cells()[2..5], ["50.0", "40.0-90.0", "10.0"]);
        assert_eq!(row.cells()[6..9], ["80.0 % less", "66.6 % less", "met"]);
        let slow = Compared { ours: side(&[25.0]), ..row };
        assert_eq!(slow.cells()[6..9], ["50.0 % less", "66.6 % less", "missed by 49.7 %"]);
    }
}
